//! Large-scale classification: the workers divide the weights of 20,000 classes, each has those of
//! some classes for the samples of all. A step uses a tenth of them, and all that its labels need.
//! `fleetrun --nproc_per_node=2 target/release/examples/classification [STEPS]`

use fleet::prelude::*;
use fleet::strategy::{HybridConfig, cost};

const CLASSES: i64 = 20_000;
/// Numbers of a sample, and of its features.
const WIDTH: usize = 64;
/// Samples of all workers together.
const BATCH: u64 = 256;
const WEIGHTS: &str = "classes.w_0";

fn loss<'n>(features: Var<'n>, label: Var<'n>) -> Var<'n> {
    let loss = ClassLoss::arcface(CLASSES).margin(0.3).scale(32.0).sample(0.1).name("classes");
    features.class_loss(label, loss)
}

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let fleet = Fleet::collective()?;
    let net = Net::new();
    let image = net.data("image", [-1, WIDTH as i64], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let features = image.fc(Fc::new(128).act(Act::Relu)).fc(WIDTH);
    let loss = loss(features, label);
    let hybrid = HybridConfig::default().with_split_classes(true);
    let strategy = DistributedStrategy::new().with_hybrid_configs(hybrid);
    // Class weights are rows of a table: only those in use are updated.
    let job = fleet.distributed_optimizer(Sgd::new(0.5), &strategy).minimize(&net, loss)?;
    let (loss, features) = (loss.name(), features.name());
    let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    fleet.util().print_on_rank(cost::cost(&session.programs.main), 0);

    let share = BATCH / fleet.worker_num() as u64;
    for step in 1..=steps {
        let first = step * BATCH + share * fleet.worker_index() as u64;
        let (images, labels) = samples(first, share)?;
        let out = session.run(&[("image", &images), ("label", &labels)], &[&loss])?;
        if step % steps.div_ceil(10) == 0 {
            let own = [f64::from(out[0].item::<f32>()?)];
            let mean = fleet.util().all_reduce(&own, ReduceOp::Avg)?;
            fleet.util().print_on_rank(format!("step {step}: loss {:.4}", mean[0]), 0);
        }
    }
    let held = session.scope.tensor(WEIGHTS)?.shape().to_vec();
    println!("this worker has {held:?} of the [{CLASSES}, {WIDTH}] class weights");
    if let Some(whole) = fleet.whole(&session)? {
        let mut whole = whole.session(ExecOptions::default())?;
        let (images, labels) = samples(0, BATCH)?;
        let out = whole.evaluate(&[("image", &images), ("label", &labels)], &[&features])?;
        let weights = whole.scope.tensor(WEIGHTS)?;
        let right = count_right(out[0].as_slice()?, weights.as_slice()?, labels.as_slice()?);
        println!("accuracy on {BATCH} unseen samples: {:.3}", right as f64 / BATCH as f64);
    }
    fleet.finish()
}

/// Returns samples: the directions of their classes, with noise.
fn samples(first: u64, count: u64) -> Result<(Tensor, Tensor)> {
    let class = |sample: u64| i64::from(hash(sample)) % CLASSES;
    let labels: Vec<i64> = (first..first + count).map(class).collect();
    let mut values = Vec::with_capacity(count as usize * WIDTH);
    for (sample, label) in (first..).zip(&labels) {
        let number = |seed: u64, at: u64| hash(seed * WIDTH as u64 + at) as f32 / u32::MAX as f32;
        let value = |at| number(*label as u64 + NOISE, at) + 0.3 * number(sample, at) - 0.65;
        values.extend((0..WIDTH as u64).map(value));
    }
    let images = Tensor::from_slice(&values, [count as i64, WIDTH as i64])?;
    Ok((images, Tensor::from_slice(&labels, [count as i64, 1])?))
}

/// Separates the numbers of classes from those of samples.
const NOISE: u64 = 1 << 40;

/// Returns 32 random bits.
fn hash(number: u64) -> u32 {
    let mixed = (number ^ (number >> 33)).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    let mixed = (mixed ^ (mixed >> 33)).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    (mixed >> 32) as u32
}

/// Counts the samples whose class weights have the smallest angle with their features.
fn count_right(features: &[f32], weights: &[f32], labels: &[i64]) -> usize {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f32>();
    let norms: Vec<f32> = weights.chunks(WIDTH).map(|row| dot(row, row).sqrt()).collect();
    let is_right = |(features, label): (&[f32], &i64)| {
        let cosine =
            |class: usize| dot(features, &weights[class * WIDTH..][..WIDTH]) / norms[class];
        let best = (0..norms.len()).max_by(|a, b| cosine(*a).total_cmp(&cosine(*b)));
        best == Some(*label as usize)
    };
    features.chunks(WIDTH).zip(labels).filter(|it| is_right(*it)).count()
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(200), |steps| steps.parse())?)
}
