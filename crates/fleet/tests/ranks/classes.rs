//! Jobs whose ranks divide classes: evaluation, saves and loads at any other number of ranks.

use crate::launch::{assert_success, run_in};
use crate::strategies::session_of;
use crate::whole::check_conversions;
use crate::{rows, scratch};
use fleet::ir::Division;
use fleet::prelude::*;
use fleet::strategy::HybridConfig;
use std::path::Path;

const POLICY: CheckpointPolicy =
    CheckpointPolicy { every_steps: Some(1), every: None, keep_last: 1 };

const LOSS: &str = "mean_0.tmp_0";
const WEIGHTS: &str = "class_loss_0.w_0";
/// 2, 3 and 4 ranks do not divide them.
const CLASSES: i64 = 11;
/// Samples of a step, of all ranks together.
const BATCH: usize = 12;
const SAVED: usize = 3;

fn features(net: &Net) -> (Var<'_>, Var<'_>) {
    let x = net.data("x", [-1, 6], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let hidden = x.fc(Fc::new(8).act(Act::Tanh)).batch_norm(BatchNorm::new());
    (hidden.fc(Fc::new(7).act(Act::Tanh)), label)
}

fn dense(net: &Net) -> Var<'_> {
    let (x, label) = features(net);
    x.class_loss(label, ClassLoss::arcface(CLASSES).scale(8.0))
}

fn sampled(net: &Net) -> Var<'_> {
    let (x, label) = features(net);
    x.class_loss(label, ClassLoss::softmax(CLASSES).sample(1))
}

const JOBS: [&str; 3] = ["dense", "sampled", "merged"];

fn open(fleet: &Fleet, name: &str) -> Result<Session> {
    let hybrid = HybridConfig::default().with_split_classes(true);
    let strategy =
        DistributedStrategy::new().with_hybrid_configs(hybrid).with_sync_batch_norm(true);
    match name {
        "sampled" => session_of(fleet, &strategy, Adagrad::new(0.05).into(), sampled),
        "merged" => {
            let merged = strategy.use_gradient_merge(2);
            session_of(fleet, &merged, Adam::new(0.01).into(), dense)
        }
        _ => {
            let adam = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.5));
            session_of(fleet, &strategy, adam.into(), dense)
        }
    }
}

/// Returns this rank's samples of a step.
fn feed(fleet: &Fleet, step: usize) -> Result<[(&'static str, Tensor); 2]> {
    let count = BATCH / fleet.worker_num();
    let first = fleet.worker_index() * count;
    let (x, _) = rows(step, first, count);
    let labels = first..first + count;
    let labels: Vec<i64> = labels.map(|row| (row * row + step) as i64 % CLASSES).collect();
    Ok([("x", x), ("label", Tensor::from_slice(&labels, [count as i64, 1])?)])
}

fn train(session: &mut Session, fleet: &Fleet, steps: &[usize]) -> Result<()> {
    steps.iter().try_for_each(|step| {
        let [(x, of_x), (label, of_label)] = feed(fleet, *step)?;
        session.run(&[(x, &of_x), (label, &of_label)], &[]).map(drop)
    })
}

/// Returns the mean loss over all ranks.
fn evaluate(session: &mut Session, fleet: &Fleet) -> Result<f64> {
    let [(x, of_x), (label, of_label)] = feed(fleet, 9)?;
    let out = session.evaluate(&[(x, &of_x), (label, &of_label)], &[LOSS])?;
    let own = f64::from(out[0].item::<f32>()?);
    Ok(fleet.util().all_reduce(&[own], ReduceOp::Avg)?[0])
}

fn assert_near(a: f64, b: f64, what: &str) {
    assert!((a - b).abs() < 1e-5 * b.abs(), "{what}: {a} and {b}");
}

/// Trains, saves in each form, trains on, and saves the model at the end.
pub fn save(fleet: &Fleet, folder: &Path) -> Result<()> {
    for name in JOBS {
        let mut session = open(fleet, name)?;
        train(&mut session, fleet, &[0, 1, 2])?;
        let value = evaluate(&mut session, fleet)?;
        let again = evaluate(&mut session, fleet)?;
        assert!(value == again, "an evaluation uses all classes: {value} and {again}");
        let main = &session.programs.main;
        let error = fleet::save_params(folder.join("part"), main, &session.scope);
        assert!(error.unwrap_err().to_string().contains("of which this rank has a part"));
        let folder = folder.join(name);
        let mut checkpoints = fleet.checkpoints(folder.join("checkpoints"), POLICY)?;
        checkpoints.save(SAVED as u64, main, &session.scope, Default::default())?;
        checkpoints.finish()?;
        if let Some(whole) = fleet.whole(&session)? {
            assert!(whole.program.root_ops().all(|(_, op)| !op.name().starts_with("c_")));
            assert_eq!(whole.scope.tensor(WEIGHTS)?.shape().to_vec(), [CLASSES, 7]);
            fleet::save_persistables(folder.join("all"), &whole.program, &whole.scope)?;
            fleet::save_inference_model(
                folder.join("model"),
                &whole.program,
                &[LOSS],
                &whole.scope,
            )?;
            let mut model = fleet::load_inference_model(folder.join("model"))?;
            let mut executor = Executor::new(ExecOptions::threads(1));
            let (x, _) = rows(9, 0, BATCH);
            let labels: Vec<i64> = (0..BATCH).map(|row| (row * row + 9) as i64 % CLASSES).collect();
            let labels = Tensor::from_slice(&labels, [BATCH as i64, 1])?;
            let feeds = [("x", &x), ("label", &labels)];
            let out = executor.run(&model.program, &mut model.scope, &feeds, &[LOSS])?;
            assert_near(f64::from(out[0].item::<f32>()?), value, name);
        }
        train(&mut session, fleet, &[3, 4, 5])?;
        if let Some(whole) = fleet.whole(&session)? {
            fleet::save_persistables(folder.join("last"), &whole.program, &whole.scope)?;
        }
    }
    fleet.finish()
}

/// Returns a part of the rows of a whole tensor, as bytes, without padding.
fn part_of(whole: &Tensor, division: Division) -> &[u8] {
    let rows = whole.shape().at(0);
    let row = whole.as_bytes().len() / rows;
    let count = rows.div_ceil(division.parts);
    let end = |part: usize| (part * count).min(rows) * row;
    &whole.as_bytes()[end(division.part)..end(division.part + 1)]
}

/// Checks that a rank has its parts of what a job saved.
fn assert_held(session: &Session, saved: &Path, what: &str) -> Result<()> {
    let main = &session.programs.main;
    let mut count = 0;
    for (name, whole) in fleet::format::load_tensors(saved)?.tensors {
        let is_own_sum = name.contains("@GradientMerge") && !name.starts_with(WEIGHTS);
        let Some(id) = main.find_var(&name).filter(|_| !is_own_sum) else { continue };
        let held = session.scope.tensor(&name)?;
        let expected = match main.var(id).division.filter(Division::is_part) {
            Some(division) => part_of(&whole, division),
            None => whole.as_bytes(),
        };
        assert!(&held.as_bytes()[..expected.len()] == expected, "{what}: {name}");
        count += 1;
    }
    assert!(count >= 8, "{what}: {count} variables");
    Ok(())
}

/// Loads what another number of ranks saved, and trains on.
pub fn load(fleet: &Fleet, folder: &Path) -> Result<()> {
    let ranks = fleet.worker_num();
    for name in JOBS {
        let what = format!("{name}: 4 to {ranks} ranks");
        let folder = folder.join(name);
        let mut session = open(fleet, name)?;
        let Session { programs, scope, .. } = &mut session;
        fleet::load_persistables(folder.join("all"), &programs.main, scope)?;
        assert_held(&session, &folder.join("all"), &what)?;

        let converted = folder.join(format!("converted-{ranks}"));
        let both = [converted, folder.join("checkpoints")];
        for checkpoints in both.iter().filter(|it| it.exists()) {
            session = open(fleet, name)?;
            let Session { programs, scope, .. } = &mut session;
            let resumed = fleet.checkpoints(checkpoints, POLICY)?.resume(&programs.main, scope)?;
            assert_eq!(resumed.map(|it| it.step), Some(SAVED as u64), "{what}");
            assert_held(&session, &folder.join("all"), &what)?;
        }
        train(&mut session, fleet, &[3, 4, 5])?;
        let Some(whole) = fleet.whole(&session)? else { continue };
        for (var, expected) in fleet::format::load_tensors(folder.join("last"))?.tensors {
            if var.contains("@GradientMerge") || expected.dtype() != DType::F32 {
                continue;
            }
            let found = whole.scope.tensor(&var)?;
            if ranks == 4 {
                assert!(found.as_bytes() == expected.as_bytes(), "{what}: {var}");
            }
            // Other ranks draw other classes.
            if name == "sampled" {
                continue;
            }
            let (found, expected) = (found.to_vec::<f32>()?, expected.to_vec::<f32>()?);
            let largest = expected.iter().fold(0.01f32, |all, it| all.max(it.abs()));
            for (a, b) in found.iter().zip(&expected) {
                assert!((a - b).abs() < 1e-4 * largest, "{what}: {var}: {a} and {b}");
            }
        }
    }
    fleet.finish()
}

/// Ranks with different batch sizes, and labels that are no class, are errors with their cause.
pub fn misuse(fleet: &Fleet, what: &str) -> Result<()> {
    let mut session = open(fleet, "dense")?;
    let is_odd = fleet.worker_index() == 1;
    let count = if what == "sizes" && is_odd { 3 } else { 2 };
    let label = if what == "label" && is_odd { CLASSES } else { 0 };
    let (x, _) = rows(0, 0, count);
    let labels = Tensor::from_slice(&vec![label; count], [count as i64, 1])?;
    let error = session.run(&[("x", &x), ("label", &labels)], &[]).unwrap_err().to_string();
    match what {
        "sizes" => assert!(error.contains("class_cross_entropy"), "{error}"),
        _ if is_odd => assert!(error.contains("label at position 0 is not a class"), "{error}"),
        _ => assert!(error.contains("rank 1"), "{error}"),
    }
    Ok(())
}

#[test]
fn divided_classes_are_saved_whole_and_load_anywhere() {
    let folder = scratch("classes");
    let text = folder.to_str().unwrap();
    assert_success(&run_in("save classes", 4, text));
    for name in JOBS {
        check_conversions(&folder.join(name), &[1, 2]).unwrap();
    }
    for ranks in [1, 2, 3, 4] {
        assert_success(&run_in("load classes", ranks, text));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn misuse_of_divided_classes_is_an_error_on_all_ranks() {
    for what in ["sizes", "label"] {
        assert_success(&run_in("misuse classes", 2, what));
    }
}
