//! Evaluation, saves and loads in jobs whose ranks divide the state.

use crate::launch::{assert_success, run_in};
use crate::scratch;
use crate::strategies::{feed, session, session_of, step};
use fleet::prelude::*;
use fleet::strategy::ShardingConfig;
use fleet::{Held, SavedCheckpoint, VerifyState};
use std::path::Path;

const STRATEGIES: [&str; 8] = [
    "sharding",
    "sharding_in_groups",
    "sharded_parameters",
    "pipeline",
    "pipelines",
    "virtual_stages",
    "sharded_stages",
    "sharded_parameters_of_stages",
];

/// A network whose first layer is that of the saved one.
fn network(net: &Net) -> Var<'_> {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    x.fc(Fc::new(32).act(Act::Tanh)).fc(1).mse_loss(y, Reduction::Mean)
}

const POLICY: CheckpointPolicy =
    CheckpointPolicy { every_steps: Some(1), every: None, keep_last: 1 };

/// Trains, evaluates on all ranks, and saves on rank 0. Runs in a rank process.
pub fn save(fleet: &Fleet, folder: &Path) -> Result<()> {
    for name in STRATEGIES {
        let mut session = session(fleet, name)?;
        (1..=3).try_for_each(|number| step(&mut session, fleet, number))?;
        fleet.meet(&mut session)?;
        let loss = "mean_0.tmp_0";
        let (x, y) = feed(&session, fleet, 0)?;
        let values = session.evaluate(&[("x", &x), ("y", &y)], &[loss])?;
        let value = values[0].item::<f32>()?;
        let main = &session.programs.main;
        let error = fleet::save_persistables(folder.join("part"), main, &session.scope);
        assert!(error.unwrap_err().to_string().contains("the ranks of this job divide"));
        let folder = folder.join(name);
        let mut checkpoints = fleet.checkpoints(folder.join("checkpoints"), POLICY)?;
        checkpoints.save(3, main, &session.scope, Default::default())?;
        checkpoints.finish()?;
        let Some(whole) = fleet.whole(&session)? else { continue };
        assert!(whole.program.root_ops().all(|(_, op)| op.attr("ring_id").is_none()));
        fleet::save_inference_model(folder.join("model"), &whole.program, &[loss], &whole.scope)?;
        fleet::save_persistables(folder.join("all"), &whole.program, &whole.scope)?;
        // One process has the same model.
        let mut model = fleet::load_inference_model(folder.join("model"))?;
        let mut executor = Executor::new(ExecOptions::threads(1));
        let feeds = [("x", &x), ("y", &y)];
        let out = executor.run(&model.program, &mut model.scope, &feeds, &[loss])?;
        let alone = out[0].item::<f32>()?;
        // An exported model computes in f32.
        let mixed = ["sharding", "sharded_parameters", "pipelines", "sharded_parameters_of_stages"];
        let is_mixed = mixed.contains(&name);
        let tolerance = if is_mixed { 1e-2 } else { 1e-6 };
        assert!((alone - value).abs() < tolerance * (1.0 + value.abs()), "{name}: {alone} {value}");
    }
    fleet.finish()
}

/// Loads what another number of ranks saved, whole or in parts of this rank, and compares.
pub fn load(fleet: &Fleet, folder: &Path) -> Result<()> {
    for name in STRATEGIES {
        let mut session = session(fleet, name)?;
        let path = folder.join(name).join("all");
        let saved = fleet::format::load_tensors(&path)?;
        let Session { programs, scope, .. } = &mut session;
        fleet::load_persistables(&path, &programs.main, scope)?;
        let held = saved.tensors.iter().filter(|(name, _)| scope.contains(name));
        let mut count = 0;
        for (name, tensor) in held {
            assert_eq!(scope.tensor(name)?.as_bytes(), tensor.as_bytes(), "{name}");
            count += 1;
        }
        assert_eq!(count == saved.tensors.len(), fleet.worker_num() == 1, "{name}: {count}");
        step(&mut session, fleet, 4)?;
    }
    resume_converted(fleet, folder)?;
    // All ranks reject a checkpoint of another model, even those whose variables fit.
    let configs = ShardingConfig::default();
    let strategy = DistributedStrategy::new().use_sharding(configs);
    let mut other = session_of(fleet, &strategy, Adam::new(0.01).into(), network)?;
    let Session { programs, scope, .. } = &mut other;
    let checkpoints = folder.join("sharded_parameters").join("checkpoints");
    let mut checkpoints = fleet.checkpoints(checkpoints, POLICY)?;
    let error = checkpoints.resume(&programs.main, scope).unwrap_err().to_string();
    let told = ["has no variable", "another type or shape", "not of this model"];
    assert!(told.iter().any(|it| error.contains(it)), "{error}");
    fleet.finish()
}

/// Resumes a checkpoint that was converted to this number of ranks.
fn resume_converted(fleet: &Fleet, folder: &Path) -> Result<()> {
    for name in STRATEGIES {
        let converted = folder.join(name).join(format!("converted-{}", fleet.worker_num()));
        if !converted.exists() {
            continue;
        }
        let mut session = session(fleet, name)?;
        let mut checkpoints = fleet.checkpoints(&converted, POLICY)?;
        let Session { programs, scope, .. } = &mut session;
        let resumed = checkpoints.resume(&programs.main, scope)?.expect("a checkpoint");
        // The ranks that saved, as if the job had resumed from their own checkpoint.
        assert_eq!((resumed.step, resumed.entries_of_ranks.len()), (3, 4));
        for (name, tensor) in owned_or_common(&folder.join(name))? {
            if scope.contains(&name) {
                assert!(scope.tensor(&name)?.as_bytes() == tensor.as_bytes(), "{name}");
            }
        }
        step(&mut session, fleet, 4)?;
    }
    Ok(())
}

/// Returns the state that is the same with any number of ranks, as rank 0 has put it together.
fn owned_or_common(job: &Path) -> Result<Vec<(String, Tensor)>> {
    let saved = SavedCheckpoint::open(job.join("checkpoints"), None)?;
    let differs = |held: &Held| matches!(held, Held::Each(_) | Held::Parts { spread: Some(_), .. });
    let differs =
        |name: &str| saved.vars().iter().any(|var| var.name == name && differs(&var.held));
    let mut all = fleet::format::load_tensors(job.join("all"))?.tensors;
    all.retain(|(name, _)| !differs(name));
    Ok(all)
}

/// Checks that a job's checkpoint is intact, and that its conversions have the bits that rank 0
/// has put together.
pub fn check_conversions(job: &Path, ranks: &[usize]) -> Result<()> {
    let found = fleet::verify_checkpoints(job.join("checkpoints"))?;
    assert!(matches!(found[0].state, VerifyState::Intact { .. }), "{:?}", found[0]);
    let saved = SavedCheckpoint::open(job.join("checkpoints"), None)?;
    let expected = owned_or_common(job)?;
    assert!(!expected.is_empty());
    let check = |saved: &SavedCheckpoint, name: &str| -> Result<()> {
        let file = job.join(name);
        saved.convert_to_file(&file)?;
        let found = fleet::format::load_tensors(&file)?;
        assert_eq!(found.tensors.len(), saved.vars().len());
        for (name, tensor) in &expected {
            let (_, other) = found.tensors.iter().find(|(other, _)| other == name).unwrap();
            assert!(other.shape() == tensor.shape(), "{name}");
            assert!(other.as_bytes() == tensor.as_bytes(), "{name}");
        }
        let error = saved.convert_to_file(&file).unwrap_err().to_string();
        assert!(error.contains("exists already"), "{error}");
        Ok(())
    };
    check(&saved, "direct.safetensors")?;
    for count in ranks {
        let folder = job.join(format!("converted-{count}"));
        saved.convert_to_ranks(&folder, *count)?;
        let converted = SavedCheckpoint::open(&folder, None)?;
        assert_eq!((converted.ranks(), converted.step()), (*count, saved.step()));
        check(&converted, &format!("{count}.safetensors"))?;
    }
    Ok(())
}

#[test]
fn a_sharded_model_is_saved_whole_and_loads_anywhere() {
    let folder = scratch("whole");
    let text = folder.to_str().unwrap();
    assert_success(&run_in("save whole", 4, text));
    for name in STRATEGIES {
        check_conversions(&folder.join(name), &[1, 2]).unwrap();
    }
    for ranks in [1, 2, 6] {
        assert_success(&run_in("load whole", ranks, text));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
