//! Jobs whose layout is planned: the choice of `auto`, and the reports after the run.

use crate::launch::{assert_success, run, stderr_of};
use fleet::prelude::*;
use fleet::strategy::PipelineConfig;
use fleet::trainer::{Progress, from_fn};
use fleet::{Distributed, DistributedStrategy, Fleet, Trainer};
use std::path::Path;

const WIDTH: i64 = 1024;
const LAYERS: usize = 7;
const ROWS: usize = 128;
const STEPS: usize = 5;

/// A network of 28 MiB of parameters, whose layers ranks may divide.
fn network(net: &Net) -> Var<'_> {
    let x = net.data("x", [-1, WIDTH], DType::F32);
    let hidden = (0..LAYERS).fold(x, |x, _| x.fc(Fc::new(WIDTH).act(Act::Tanh)));
    hidden.square().mean()
}

/// Trains with `auto` in `memory` bytes of a rank.
pub fn train(fleet: &Fleet, memory: u64) -> Result<()> {
    let net = Net::new();
    let loss = network(&net);
    let auto = DistributedStrategy::new().with_auto(true);
    let optimizer = fleet.distributed_optimizer(Adam::new(1e-4), &auto).batch(ROWS).memory(memory);
    let job = optimizer.minimize(&net, loss)?;
    println!("chain {}", job.plan.chain_text());
    println!("auto {}", job.plan.decisions[0].reason.starts_with("layout "));
    let (copy, _) = job.plan.copy;
    let name = loss.name();
    // Touched before the session, whose memory is measured.
    let values: Vec<f32> = (0..ROWS * WIDTH as usize)
        .map(|at| ((at * 37 + copy * 101) % 97) as f32 / 97.0 - 0.5)
        .collect();
    let x = Tensor::from_slice(&values, [ROWS as i64, WIDTH])?;
    let mut session = fleet.session(net.build()?, &job, ExecOptions::threads(1))?;
    let mut losses = Vec::new();
    for _ in 0..STEPS {
        losses.push(session.run(&[("x", &x)], &[&name])?[0].item::<f32>()?);
    }
    assert!(losses[STEPS - 1] < losses[0], "{losses:?}");
    fleet.finish()
}

/// Trains with a strategy that `fleet plan` has written, of which only the first worker's machine
/// has the prediction.
pub fn train_with_file(fleet: &Fleet, folder: &Path) -> Result<()> {
    let name = if fleet.is_first_worker() { "planned" } else { "without" };
    let mut strategy = DistributedStrategy::new();
    let (source, _) = strategy.load_with_source(folder.join(format!("{name}.prototxt")))?;
    let net = Net::new();
    let loss = network(&net);
    let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).read_from(source);
    let job = optimizer.minimize(&net, loss)?;
    job.plan.notes.iter().for_each(|note| println!("{note}"));
    run_steps(fleet, net, &job)
}

/// Trains a pipeline with the training loop.
pub fn train_pipeline(fleet: &Fleet) -> Result<()> {
    let net = Net::new();
    let loss = network(&net);
    let pipeline = PipelineConfig::default().with_accumulate_steps(4);
    let strategy = DistributedStrategy::new().use_pipeline(pipeline);
    let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss)?;
    run_steps(fleet, net, &job)
}

fn run_steps(fleet: &Fleet, net: Net, job: &Distributed) -> Result<()> {
    let mut session = fleet.session(net.build()?, job, ExecOptions::threads(1))?;
    let data = from_fn(|_, batch, feeds| {
        feeds.set("x", Tensor::from_slice(&vec![0.5f32; 32 * WIDTH as usize], [32, WIDTH])?);
        Ok(batch < STEPS as u64)
    });
    let mut log = Vec::new();
    let progress = Progress::lines(&mut log);
    Trainer::new(fleet)
        .epochs(1)
        .progress(progress)
        .run(&mut session, data.batches(STEPS as u64))?;
    print!("{}", String::from_utf8_lossy(&log));
    fleet.finish()
}

/// Returns the percentage in parentheses after a text.
fn percent_after(line: &str, text: &str) -> f64 {
    let rest = line.split(text).nth(1).and_then(|rest| rest.split('(').nth(1));
    let number = rest.and_then(|rest| rest.split(" %").next()).expect(line);
    number.parse().expect(line)
}

#[test]
fn auto_chooses_a_layout_and_the_job_reports_its_prediction() {
    for (memory, is_alone) in [(1u64 << 30, true), (90 << 20, false)] {
        let name = memory.to_string();
        let outputs = crate::launch::run_in("train planned", 2, &name);
        assert_success(&outputs);
        for output in &outputs {
            let out = String::from_utf8_lossy(&output.stdout);
            assert_eq!(out.contains("chain RawProgram"), is_alone, "{out}");
            assert!(out.contains("auto true"), "{out}");
        }
        let log = stderr_of(&outputs[0]);
        assert!(log.contains("auto: layout "), "{log}");
        assert_eq!(log.contains("left out: dp 2: does not fit"), !is_alone, "{log}");
        let line = log.lines().find(|line| line.contains("planned: ")).expect(&log);
        assert!(line.contains(" a step predicted, "), "{line}");
        #[cfg(target_os = "linux")]
        if !cfg!(debug_assertions) || is_alone {
            let off = percent_after(line, " of memory predicted");
            assert!(off.abs() <= 10.0, "{line}");
        }
    }
}

/// The prediction in a strategy file is compared, unless it is for another number of ranks.
#[test]
fn predictions_of_strategy_files_are_compared() {
    for (ranks, is_compared) in [(2, true), (3, false)] {
        let folder = crate::scratch("planned-file");
        std::fs::create_dir_all(&folder).unwrap();
        let text = "fuse_grad_size_in_MB: 16\n";
        let comment = format!(
            "# fleet plan: ranks={ranks} samples=64 step_seconds=0.025 compute_seconds=0.02 \
             wait_seconds=0 memory_bytes=67108864\n"
        );
        std::fs::write(folder.join("without.prototxt"), text).unwrap();
        std::fs::write(folder.join("planned.prototxt"), comment + text).unwrap();
        let outputs =
            crate::launch::run_in("train with a planned file", 2, folder.to_str().unwrap());
        assert_success(&outputs);
        let out = String::from_utf8_lossy(&outputs[0].stdout);
        let line = out.lines().find(|line| line.starts_with("planned: 25.0 ms a step predicted, "));
        assert_eq!(line.is_some(), is_compared, "{out}");
        let other = "the strategy was planned for 3 ranks, and the job has 2";
        assert_eq!(out.contains(other), !is_compared, "{out}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

#[test]
fn pipelines_report_their_waits() {
    let outputs = run("train a pipeline", 2);
    assert_success(&outputs);
    let out = String::from_utf8_lossy(&outputs[0].stdout);
    let line = out.lines().find(|line| line.starts_with("pipeline: waits")).expect(&out);
    let formula = "(S - 1) / (M + S - 1) = 20.0 % (S = 2, M = 4)";
    assert!(line.contains("rank 0 ") && line.contains("rank 1 "), "{line}");
    assert!(line.ends_with(formula), "{line}");
}
