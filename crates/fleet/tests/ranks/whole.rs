//! Evaluation, saves and loads in jobs whose ranks divide the state.

use crate::launch::{assert_success, run_in};
use crate::scratch;
use crate::strategies::{feed, session, session_of, step};
use fleet::prelude::*;
use fleet::strategy::ShardingConfig;
use std::path::Path;

const STRATEGIES: [&str; 3] = ["sharding", "sharding_in_groups", "sharded_parameters"];

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
        let (x, y) = feed(fleet, 0)?;
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
        assert!(whole.program.root_ops().all(|(_, op)| !op.name().starts_with("c_")));
        fleet::save_inference_model(folder.join("model"), &whole.program, &[loss], &whole.scope)?;
        fleet::save_persistables(folder.join("all"), &whole.program, &whole.scope)?;
        // One process has the same model.
        let mut model = fleet::load_inference_model(folder.join("model"))?;
        let mut executor = Executor::new(ExecOptions::threads(1));
        let feeds = [("x", &x), ("y", &y)];
        let out = executor.run(&model.program, &mut model.scope, &feeds, &[loss])?;
        let alone = out[0].item::<f32>()?;
        // An exported model computes in f32.
        let tolerance = if name == "sharding_in_groups" { 1e-6 } else { 1e-2 };
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

#[test]
fn a_sharded_model_is_saved_whole_and_loads_anywhere() {
    let folder = scratch("whole");
    let text = folder.to_str().unwrap();
    assert_success(&run_in("save whole", 4, text));
    for ranks in [1, 2, 6] {
        assert_success(&run_in("load whole", ranks, text));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
