//! Jobs of several processes on this machine. The test itself acts as the launcher.

mod arrival;
#[cfg(target_os = "linux")]
mod bytes;
mod classes;
#[path = "../common/counting.rs"]
mod counting;
mod counts;
mod deaths;
mod examples;
#[path = "../common/launch.rs"]
mod launch;
mod layers;
mod meet;
#[cfg(target_os = "linux")]
mod mpi;
#[cfg(target_os = "linux")]
mod nccl;
mod planned;
mod resume;
mod strategies;
mod trainer;
mod unused;
mod whole;

use fleet::prelude::*;
use fleet::strategy::BuildStrategy;
use fleet::topology::Env;
use fleet_testhost::process;
use launch::{init, run, stderr_of};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const BATCH: usize = 12;
const STEPS: usize = 5;

/// The test whose processes are the ranks of all jobs.
const RANKS: &str = "many_ranks_train_what_one_trains_on_all_of_the_batch";

/// Runs a job in a rank.
fn work(job: &str, folder: &Path) -> Result<()> {
    match job {
        "train" => train_and_print(&DistributedStrategy::new()),
        "train in rings" => {
            let rings = DistributedStrategy::new().with_nccl_comm_num(2);
            train_and_print(&rings.with_fuse_all_reduce_ops(false))
        }
        "draw" => {
            let path = folder.join("program.dot");
            let path = path.to_str().unwrap_or_default();
            let build = BuildStrategy::default().with_debug_graphviz_path(path);
            train_and_print(&DistributedStrategy::new().with_build_strategy(build))
        }
        "leave early" => unequal_steps(false),
        "finish early" => unequal_steps(true),
        "die" => die(),
        "stop and resume" => init().and_then(|fleet| resume::stop_and_resume(&fleet, folder)),
        "resume elsewhere" => init().and_then(|fleet| resume::resume_elsewhere(&fleet, folder)),
        "save sums" => init().and_then(|fleet| resume::save_sums(&fleet, folder)),
        "load sums" => init().and_then(|fleet| resume::load_sums(&fleet, folder)),
        "save in two folders" => init().and_then(|fleet| resume::two_folders(&fleet, folder)),
        "die while saving" => init().and_then(|fleet| resume::die_while_saving(&fleet, folder)),
        "train until killed" => init().and_then(|fleet| deaths::train_until_killed(&fleet, folder)),
        "train again" => init().and_then(|fleet| deaths::train_again(&fleet, folder)),
        "unequal" => {
            let name = folder.to_str().unwrap_or_default();
            init().and_then(|fleet| deaths::unequal(&fleet, name))
        }
        "count allocations" => {
            let name = folder.to_str().unwrap_or_default();
            init().and_then(|fleet| counts::allocations(&fleet, name))
        }
        #[cfg(target_os = "linux")]
        "count bytes" => {
            let name = folder.to_str().unwrap_or_default();
            init().and_then(|fleet| bytes::count(&fleet, name))
        }
        "update on arrival" => {
            let name = folder.to_str().unwrap_or_default();
            init().and_then(|fleet| arrival::compare(&fleet, name))
        }
        "meet" => init().and_then(|fleet| meet::compare(&fleet, folder)),
        "save whole" => init().and_then(|fleet| whole::save(&fleet, folder)),
        "save classes" => init().and_then(|fleet| classes::save(&fleet, folder)),
        "load classes" => init().and_then(|fleet| classes::load(&fleet, folder)),
        "misuse classes" => {
            let what = folder.to_str().unwrap_or_default();
            init().and_then(|fleet| classes::misuse(&fleet, what))
        }
        "save layers" => init().and_then(|fleet| layers::save(&fleet, folder)),
        "load layers" => init().and_then(|fleet| layers::load(&fleet, folder)),
        "seeds of layers" => init().and_then(|fleet| layers::seeds(&fleet)),
        "load whole" => init().and_then(|fleet| whole::load(&fleet, folder)),
        "leave parameters unused" => init().and_then(|fleet| unused::train(&fleet)),
        "example" => examples::run_example(folder.to_str().unwrap_or_default()),
        "resnet" => examples::run_resnet(folder.to_str().unwrap_or_default()),
        "train and resume" => init().and_then(|fleet| trainer::train_and_resume(&fleet, folder)),
        "share unequally" => init().and_then(|fleet| trainer::share_unequally(&fleet)),
        "train until terminated" => {
            init().and_then(|fleet| trainer::train_until_terminated(&fleet, folder))
        }
        "train planned" => {
            let memory = folder.to_str().and_then(|text| text.parse().ok()).unwrap_or_default();
            init().and_then(|fleet| planned::train(&fleet, memory))
        }
        "train with a planned file" => {
            init().and_then(|fleet| planned::train_with_file(&fleet, folder))
        }
        "train a pipeline" => init().and_then(|fleet| planned::train_pipeline(&fleet)),
        "resume after death" => init().and_then(|fleet| resume::resume_after_death(&fleet, folder)),
        other => panic!("no job {other}"),
    }
}

/// Returns a folder for this test that does not exist yet.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("fleet-ranks-{}-{name}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    folder
}

/// Ends this process as the kernel does: without destructors or leaving the job.
fn die_now() -> ! {
    Command::new("kill").args(["-9", &std::process::id().to_string()]).status().unwrap();
    loop {
        std::thread::park();
    }
}

/// Builds a network whose parameters depend on every gradient, with a mean over the batch as loss.
fn network(net: &Net) -> Var<'_> {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let hidden = x.fc(Fc::new(8).act(Act::Tanh));
    hidden.fc(1).mse_loss(y, Reduction::Mean)
}

fn optimizer() -> Momentum {
    Momentum::new(0.1, 0.9).grad_clip(GradClip::GlobalNorm(0.05))
}

/// Returns rows `from..from + count` of the batch of a step.
fn rows(step: usize, from: usize, count: usize) -> (Tensor, Tensor) {
    let number = |at: usize| ((at * 37 + step * 101) % 97) as f32 / 97.0 - 0.5;
    let x: Vec<f32> = (from * 6..(from + count) * 6).map(number).collect();
    let y: Vec<f32> = (from..from + count).map(|row| number(row * 7 + 3)).collect();
    let count = count as i64;
    (Tensor::from_slice(&x, [count, 6]).unwrap(), Tensor::from_slice(&y, [count, 1]).unwrap())
}

fn step(session: &mut Session, number: usize, from: usize, count: usize) -> Result<()> {
    let (x, y) = rows(number, from, count);
    session.run(&[("x", &x), ("y", &y)], &[]).map(|_| ())
}

fn parameters(session: &Session) -> Vec<f32> {
    let names = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];
    names.iter().flat_map(|name| session.scope.tensor(name).unwrap().to_vec().unwrap()).collect()
}

fn session(fleet: &Fleet, strategy: &DistributedStrategy) -> Result<Session> {
    let net = Net::new();
    let loss = network(&net);
    let job = fleet.distributed_optimizer(optimizer(), strategy).minimize(&net, loss)?;
    fleet.session(net.build()?, &job, ExecOptions::default())
}

fn train_and_print(strategy: &DistributedStrategy) -> Result<()> {
    let fleet = init()?;
    let mut session = session(&fleet, strategy)?;
    let share = BATCH / fleet.worker_num();
    for number in 0..STEPS {
        step(&mut session, number, fleet.worker_index() * share, share)?;
    }
    let bits: Vec<String> =
        parameters(&session).iter().map(|value| value.to_bits().to_string()).collect();
    println!("parameters {}", bits.join(" "));
    fleet.finish()
}

/// Rank 1 makes one step less than rank 0.
fn unequal_steps(finish: bool) -> Result<()> {
    let fleet = init()?;
    let mut session = session(&fleet, &DistributedStrategy::new())?;
    for number in 0..STEPS - fleet.worker_index() {
        step(&mut session, number, 0, 4)?;
    }
    if finish { fleet.finish() } else { Ok(()) }
}

/// Rank 1 is killed between two steps.
fn die() -> Result<()> {
    let fleet = init()?;
    let mut session = session(&fleet, &DistributedStrategy::new())?;
    for number in 0.. {
        step(&mut session, number, 0, 4)?;
        if fleet.worker_index() == 1 && number == 3 {
            die_now();
        }
    }
    Ok(())
}

/// Returns the parameters that a rank printed.
fn printed(output: &Output) -> Vec<f32> {
    assert!(output.status.success(), "{}", stderr_of(output));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().find_map(|line| line.split("parameters ").nth(1)).expect("parameters");
    line.split(' ').map(|bits| f32::from_bits(bits.parse().unwrap())).collect()
}

#[test]
fn many_ranks_train_what_one_trains_on_all_of_the_batch() {
    if let Some((job, folder)) = launch::work() {
        return process::end(work(&job, &folder));
    }
    let alone = Fleet::join(&Env::new()).unwrap();
    let mut whole = session(&alone, &DistributedStrategy::new()).unwrap();
    (0..STEPS).for_each(|number| step(&mut whole, number, 0, BATCH).unwrap());
    let expected = parameters(&whole);
    for (job, ranks) in [("train", 2), ("train", 3), ("train in rings", 2)] {
        let outputs = run(job, ranks);
        let first = printed(&outputs[0]);
        for (a, b) in first.iter().zip(&expected) {
            assert!((a - b).abs() <= 1e-6, "{job} at {ranks} ranks: {a} and {b}");
        }
        assert!(outputs.iter().all(|output| printed(output) == first), "ranks differ");
    }
}

/// The documented flags set the buckets of a strategy that leaves them open.
#[test]
fn flags_of_the_environment_set_the_buckets() {
    const FLAG: &str = "FLAGS_fuse_parameter_memory_size";
    let report = |value: &str| {
        let outputs = launch::run_with("train", 2, "", &[(FLAG, value)]);
        let said = stderr_of(&outputs[0]);
        let flag = format!("fuse_grad_size_in_MB: {value}, from {FLAG}");
        assert!(outputs.iter().all(|it| it.status.success()) && said.contains(&flag), "{said}");
        said
    };
    // One bucket, and one for each of the two layers.
    for (value, sums) in [("0", "4 -> 1"), ("-1", "4 -> 2")] {
        let said = report(value);
        let line = format!("all-reduce ops before and after fusion: {sums}");
        assert!(said.contains(&line), "{value}: {said}");
    }
    // A rank that is slower to start may see first that the other has failed.
    let outputs = launch::run_with("train", 2, "", &[(FLAG, "half")]);
    assert!(outputs.iter().all(|output| !output.status.success()));
    let said: Vec<String> = outputs.iter().map(stderr_of).collect();
    let fault = format!("invalid value of {FLAG}");
    assert!(said.iter().any(|said| said.contains(&fault)), "{said:?}");
}

/// The flag assigns the strategy's field: the computing thread sums gradients, to the same results.
#[test]
fn a_flag_moves_sums_to_the_computing_thread() {
    const FLAG: &str = "FLAGS_sync_nccl_allreduce";
    let trained = |value: &str| {
        let outputs = launch::run_with("train", 2, "", &[(FLAG, value)]);
        let said = stderr_of(&outputs[0]);
        let flag = format!(", from {FLAG}");
        assert!(said.contains("sync_nccl_allreduce: ") && said.contains(&flag), "{said}");
        let waits = said.contains("gradients are summed in the computing thread, without overlap");
        assert_eq!(waits, value == "1", "{said}");
        printed(&outputs[0])
    };
    let (beside, inside) = (trained("0"), trained("1"));
    let off = beside.iter().zip(&inside).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= 1e-6, "{off}");
}

/// The graph is that of the program after the passes of strategies and of the executor.
#[test]
fn the_first_worker_draws_the_training_program() {
    let folder = scratch("draw");
    std::fs::create_dir_all(&folder).unwrap();
    let outputs = launch::run_with("draw", 2, folder.to_str().unwrap(), &[]);
    assert_eq!(printed(&outputs[0]), printed(&outputs[1]));
    let graph = std::fs::read_to_string(folder.join("program.dot")).unwrap();
    for op in ["c_allreduce_sum", "fused_gemm_epilogue_grad", "fused_momentum"] {
        assert!(graph.contains(&format!("[shape=box, label=\"{op}\"")), "no {op} in {graph}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
    // A path that cannot be written is an error of the first worker.
    let outputs = launch::run_with("draw", 1, folder.to_str().unwrap(), &[]);
    let said = stderr_of(&outputs[0]);
    assert!(!outputs[0].status.success() && said.contains("debug_graphviz_path"), "{said}");
}

/// The first worker prints what its strategy does, on one rank, too.
#[test]
fn a_job_of_one_rank_reports_its_strategy() {
    let report = |job: &str, overview: &str| {
        let outputs = launch::run_with(job, 1, "", &[("FLEET_OVERVIEW", overview)]);
        assert!(outputs[0].status.success(), "{}", stderr_of(&outputs[0]));
        stderr_of(&outputs[0])
    };
    let said = report("train in rings", "");
    for part in [
        "nccl_comm_num                    2",
        "1 rank, momentum",
        "nothing to do for nccl_comm_num, fuse_all_reduce_ops: one rank: nothing to send",
        "in force: ",
    ] {
        assert!(said.contains(part), "no '{part}' in {said}");
    }
    assert!(!said.contains("Build Strategy"), "{said}");
    assert!(report("train in rings", "full").contains("Build Strategy"));
    assert!(!report("train in rings", "none").contains("Overview"));
    let said = report("train", "");
    assert!(!said.contains("1 rank") && !said.contains("Overview"), "{said}");
}

#[test]
fn a_rank_that_leaves_early_is_named() {
    let outputs = run("leave early", 2);
    let text = stderr_of(&outputs[0]);
    assert!(!outputs[0].status.success() && outputs[1].status.success(), "{text}");
    assert!(text.contains("rank 1") && text.contains("before it had finished"), "{text}");
}

#[test]
fn unequal_numbers_of_steps_are_an_error_that_names_both_sides() {
    let outputs = run("finish early", 2);
    for output in &outputs {
        let text = stderr_of(output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("finish") && text.contains("all_reduce"), "{text}");
    }
}

#[test]
fn a_rank_that_is_killed_is_named() {
    let outputs = run("die", 2);
    let text = stderr_of(&outputs[0]);
    assert!(!outputs[0].status.success(), "{text}");
    assert!(text.contains("rank 1 (host") && text.contains("died"), "{text}");
}
