//! Mixed precision in bfloat16. On machines with bf16 multiplication, gradients equal those of the
//! f32 program up to rounding, fused or not.

use fleet::prelude::*;

/// Large enough for the machine's bf16 unit, with edges that do not fill a tile.
const ROWS: i64 = 70;
const INPUTS: i64 = 45;
const HIDDEN: i64 = 83;

const SEEN: [&str; 5] =
    ["fc_0.w_0@GRAD", "fc_0.b_0@GRAD", "fc_1.w_0@GRAD", "fc_1.b_0@GRAD", "fc_2.w_0@GRAD"];

/// Returns the gradients of one step.
fn gradients(act: Option<Act>, half: bool, fused: bool) -> Result<Vec<Vec<f32>>> {
    let net = Net::new();
    let x = net.data("x", [-1, INPUTS], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let layer = |width: i64| act.map_or(Fc::new(width), |act| Fc::new(width).act(act));
    let out = x.fc(layer(HIDDEN)).fc(layer(HIDDEN)).fc(1);
    let loss = out.mse_loss(y, Reduction::Mean);
    let mut strategy = DistributedStrategy::new().with_amp(half);
    strategy.amp_configs_mut().set_use_pure_bf16(true);
    let fleet = Fleet::collective()?;
    let job = fleet.distributed_optimizer(Sgd::new(0.0), &strategy).minimize(&net, loss)?;
    let build = BuildOptions { fuse_elewise_add_act_ops: fused, ..BuildOptions::default() };
    let options = ExecOptions { build, ..ExecOptions::threads(2) };
    let mut session = fleet.session(net.build()?, &job, options)?;
    let mut rng = fleet::rng::Sequence::new(5, 5);
    let mut numbers =
        |len: i64| -> Vec<f32> { (0..len).map(|_| rng.unit() as f32 - 0.5).collect() };
    let x = Tensor::from_slice(&numbers(ROWS * INPUTS), [ROWS, INPUTS])?;
    let y = Tensor::from_slice(&numbers(ROWS), [ROWS, 1])?;
    let out = session.run(&[("x", &x), ("y", &y)], &SEEN)?;
    out.iter().map(|tensor| tensor.to_vec::<f32>()).collect()
}

fn distance(a: &[f32], b: &[f32]) -> f64 {
    let square = |x: f32| f64::from(x) * f64::from(x);
    let apart: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
    (apart / b.iter().map(|b| square(*b)).sum::<f64>()).sqrt()
}

#[test]
fn bf16_gradients_are_those_of_f32_but_for_rounding() {
    for act in [None, Some(Act::Relu), Some(Act::Tanh), Some(Act::Gelu)] {
        let exact = gradients(act, false, true).unwrap();
        for fused in [true, false] {
            let half = gradients(act, true, fused).unwrap();
            for ((half, exact), name) in half.iter().zip(&exact).zip(SEEN) {
                assert_eq!(half.len(), exact.len());
                let distance = distance(half, exact);
                assert!(distance < 0.06, "{act:?}, fused {fused}: {name} is off by {distance}");
                assert!(distance > 1e-5, "{act:?}: {name} was not made in bf16");
            }
        }
    }
}

/// A model that was trained in 16 bits is exported in f32, without the blocks of gradient merge.
#[test]
fn exports_are_in_single_precision() {
    let merged = |strategy: DistributedStrategy| strategy.use_gradient_merge(2);
    let amp = |pure: bool| {
        let mut strategy = DistributedStrategy::new().with_amp(true);
        strategy.amp_configs_mut().set_use_pure_bf16(pure);
        strategy
    };
    for (index, strategy) in [amp(true), amp(false), merged(amp(true))].into_iter().enumerate() {
        let net = Net::new();
        let lenet = fleet::nn::models::lenet(&net, 10);
        let fleet = Fleet::collective().unwrap();
        let optimizer = fleet.distributed_optimizer(Momentum::new(0.01, 0.9), &strategy);
        let job = optimizer.minimize(&net, lenet.loss).unwrap();
        let logits = lenet.logits.name();
        let options = ExecOptions::threads(2);
        let mut session = fleet.session(net.build().unwrap(), &job, options.clone()).unwrap();
        let mut rng = fleet::rng::Sequence::new(3, index as u64);
        let pixels: Vec<f32> = (0..8 * 28 * 28).map(|_| rng.unit() as f32).collect();
        let image = Tensor::from_slice(&pixels, [8, 1, 28, 28]).unwrap();
        let label = Tensor::from_slice(&[0i64, 1, 2, 3, 4, 5, 6, 7], [8, 1]).unwrap();
        let feed = [("x", &image), ("y", &label)];
        for _ in 0..4 {
            session.run(&feed, &[]).unwrap();
        }
        let trained = session.evaluate(&feed, &[&logits]).unwrap().remove(0);
        assert_ne!(trained.dtype(), DType::F32);

        let folder = format!("fleet-export-{}-{index}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        fleet::save_inference_model(&folder, &session.programs.main, &[&logits], &session.scope)
            .unwrap();
        let mut model = fleet::load_inference_model(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        let half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
        let left = model.program.vars().find(|(_, var)| half(var.dtype));
        assert!(left.is_none(), "{left:?}");
        let casts = model.program.root_ops().filter(|(_, op)| op.name() == "cast").count();
        assert_eq!((casts, model.program.block_count()), (0, 1), "{}", model.program);
        let mut executor = Executor::new(options);
        let feed = [("x", &image)];
        let found = executor.run(&model.program, &mut model.scope, &feed, &[&logits]).unwrap();
        let found = found[0].to_vec::<f32>().unwrap();
        let trained = trained.cast(DType::F32).unwrap().to_vec::<f32>().unwrap();
        let distance = distance(&trained, &found);
        assert!((1e-6..0.02).contains(&distance), "{distance}");
    }
}
