//! Jobs whose ranks share layers: evaluation, saves and loads at any other layout.

use crate::launch::{assert_success, run_in};
use crate::strategies::session_of;
use crate::whole::check_conversions;
use crate::{rows, scratch};
use fleet::ir::Division;
use fleet::prelude::*;
use fleet::strategy::{HybridConfig, ShardingConfig};
use std::path::Path;

const POLICY: CheckpointPolicy =
    CheckpointPolicy { every_steps: Some(1), every: None, keep_last: 1 };

const LOSS: &str = "mean_0.tmp_0";
/// Samples of a step, of all copies together.
const BATCH: usize = 12;
/// The step of the checkpoint: in the middle of merged gradients.
const SAVED: usize = 3;
const STEPS: usize = 6;

fn network(net: &Net) -> Var<'_> {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let packed = x.fc(Fc::new(12).act(Act::Tanh)).fc(Fc::new(24).split(Split::PackedColumns(2)));
    let rows = ParamAttr::new().split_groups(0, 2);
    packed.gelu().fc(Fc::new(12).act(Act::Tanh).weight(rows)).fc(1).mse_loss(y, Reduction::Mean)
}

/// A table of words, which is also the last layer, of a size that no number of ranks divides.
fn words(net: &Net) -> Var<'_> {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let ids = x.scale(2.0, 6.0).clip(0.0, 12.0).cast(DType::I64);
    let table = Embedding::new(13, 6).weight(ParamAttr::from("words")).split_vocabulary();
    let hidden = ids.embedding(table).reduce_mean([1], false).fc(Fc::new(6).act(Act::Tanh));
    let bias = ParamAttr::from("bias").init(Init::Constant(0.1)).split(0);
    let bias = net.create_parameter([13], DType::F32, bias);
    let logits = hidden.matmul_transposed(net.var("words"), false, true) + bias;
    logits.cross_entropy(y.scale(2.0, 6.0).clip(0.0, 12.0).cast(DType::I64))
}

/// The jobs that save: name, and the number of ranks that share layers.
const JOBS: [(&str, usize); 6] =
    [("layers", 2), ("all", 4), ("merged", 2), ("sharded", 2), ("odd", 4), ("odd sharded", 2)];

fn open(fleet: &Fleet, name: &str, parts: usize) -> Result<Session> {
    let hybrid = HybridConfig::default().with_mp_degree(parts as i32);
    let strategy = DistributedStrategy::new().with_hybrid_configs(hybrid);
    let strategy = match name {
        "merged" => strategy.use_gradient_merge(2),
        "sharded" | "odd sharded" => strategy.use_sharding(ShardingConfig::default().with_stage(2)),
        _ => strategy,
    };
    let optimizer = Adam::new(0.01).grad_clip(GradClip::GlobalNorm(0.5)).into();
    let network = if name.starts_with("odd") { words } else { network };
    session_of(fleet, &strategy, optimizer, network)
}

/// Returns the samples of this rank: those of its copy of the model.
fn feed(fleet: &Fleet, parts: usize, step: usize) -> (Tensor, Tensor) {
    let (copy, copies) = (fleet.worker_index() / parts, fleet.worker_num() / parts);
    let count = BATCH / copies;
    rows(step, copy * count, count)
}

fn train(session: &mut Session, fleet: &Fleet, parts: usize, steps: &[usize]) -> Result<f32> {
    let mut loss = 0.0;
    for step in steps {
        let (x, y) = feed(fleet, parts, *step);
        loss = session.run(&[("x", &x), ("y", &y)], &[LOSS])?[0].item()?;
    }
    Ok(loss)
}

/// Trains, saves in each form, trains on, and saves the model at the end.
pub fn save(fleet: &Fleet, folder: &Path) -> Result<()> {
    for (name, parts) in JOBS {
        let mut session = open(fleet, name, parts)?;
        train(&mut session, fleet, parts, &[0, 1, 2])?;
        let (x, y) = rows(9, 0, BATCH);
        let value = session.evaluate(&[("x", &x), ("y", &y)], &[LOSS])?[0].item::<f32>()?;
        let main = &session.programs.main;
        let error = fleet::save_params(folder.join("part"), main, &session.scope);
        assert!(error.unwrap_err().to_string().contains("of which this rank has a part"));
        let folder = folder.join(name);
        let mut checkpoints = fleet.checkpoints(folder.join("checkpoints"), POLICY)?;
        checkpoints.save(SAVED as u64, main, &session.scope, Default::default())?;
        checkpoints.finish()?;
        if let Some(whole) = fleet.whole(&session)? {
            let ops = || whole.program.root_ops().map(|(_, op)| op.name());
            assert!(ops().all(|op| !op.starts_with("c_") && !op.starts_with("mp_")));
            let (program, scope) = (&whole.program, &whole.scope);
            fleet::save_inference_model(folder.join("model"), program, &[LOSS], scope)?;
            fleet::save_persistables(folder.join("all"), program, scope)?;
            let mut model = fleet::load_inference_model(folder.join("model"))?;
            let mut executor = Executor::new(ExecOptions::threads(1));
            let feeds = [("x", &x), ("y", &y)];
            let out = executor.run(&model.program, &mut model.scope, &feeds, &[LOSS])?;
            let alone = out[0].item::<f32>()?;
            assert!((alone - value).abs() < 1e-5 * value.abs(), "{name}: {alone} and {value}");
        }
        train(&mut session, fleet, parts, &[3, 4, 5])?;
        if let Some(whole) = fleet.whole(&session)? {
            fleet::save_persistables(folder.join("last"), &whole.program, &whole.scope)?;
        }
    }
    fleet.finish()
}

/// Returns a part of a whole tensor of f32 or i32, as bytes.
fn part_of(whole: &Tensor, division: Division) -> Vec<u8> {
    let shape = whole.shape();
    let inner: usize = shape.product(division.axis + 1..shape.rank()) * whole.dtype().size();
    let block = shape.at(division.axis) / division.groups;
    let piece = (block + division.padding) / division.parts;
    let own = |row: &usize| row % block / piece == division.part;
    let rows = whole.as_bytes().chunks(inner).enumerate();
    let mut part: Vec<u8> =
        rows.filter(|(row, _)| own(row)).flat_map(|(_, row)| row.to_vec()).collect();
    if division.padding > 0 {
        part.resize(piece * inner, 0);
    }
    part
}

/// Checks that a rank has its parts of what a job saved.
fn assert_held(session: &Session, saved: &Path, what: &str) -> Result<usize> {
    let main = &session.programs.main;
    let mut count = 0;
    for (name, whole) in fleet::format::load_tensors(saved)?.tensors {
        // Sums of a copy's own samples are shared among the copies of this job.
        let Some(id) = main.find_var(&name).filter(|_| !name.contains("@GradientMerge")) else {
            continue;
        };
        let held = session.scope.tensor(&name)?;
        let expected = match main.var(id).division.filter(Division::is_part) {
            Some(division) => part_of(&whole, division),
            None => whole.as_bytes().to_vec(),
        };
        assert!(held.as_bytes() == expected, "{what}: {name}");
        count += 1;
    }
    assert!(count >= 8, "{what}: {count} variables");
    Ok(count)
}

/// Loads what another number of ranks saved, and trains on.
pub fn load(fleet: &Fleet, folder: &Path) -> Result<()> {
    let ranks = fleet.worker_num();
    let layouts: &[usize] = match ranks {
        1 => &[1],
        2 => &[2, 1],
        3 => &[3],
        _ => &[2, 4, 1],
    };
    for (name, saved_parts) in JOBS {
        for parts in layouts {
            let what = format!("{name}: {saved_parts} of 4 to {parts} of {ranks}");
            let folder = folder.join(name);
            let mut session = open(fleet, name, *parts)?;
            let Session { programs, scope, .. } = &mut session;
            fleet::load_persistables(folder.join("all"), &programs.main, scope)?;
            assert_held(&session, &folder.join("all"), &what)?;

            let converted = folder.join(format!("converted-{ranks}"));
            if converted.exists() {
                let mut session = open(fleet, name, *parts)?;
                let Session { programs, scope, .. } = &mut session;
                let resumed =
                    fleet.checkpoints(&converted, POLICY)?.resume(&programs.main, scope)?;
                assert_eq!(resumed.map(|it| it.step), Some(SAVED as u64), "{what}");
                assert_held(&session, &folder.join("all"), &what)?;
            }

            let mut session = open(fleet, name, *parts)?;
            let Session { programs, scope, .. } = &mut session;
            let mut checkpoints = fleet.checkpoints(folder.join("checkpoints"), POLICY)?;
            let resumed = checkpoints.resume(&programs.main, scope)?;
            assert_eq!(resumed.map(|it| it.step), Some(SAVED as u64), "{what}");
            assert_held(&session, &folder.join("all"), &what)?;
            train(&mut session, fleet, *parts, &[3, 4, 5])?;
            let Some(whole) = fleet.whole(&session)? else { continue };
            let is_same = ranks == 4 && *parts == saved_parts;
            for (name, expected) in fleet::format::load_tensors(folder.join("last"))?.tensors {
                if name.contains("@GradientMerge") || expected.dtype() != DType::F32 {
                    continue;
                }
                let found = whole.scope.tensor(&name)?;
                if is_same {
                    assert!(found.as_bytes() == expected.as_bytes(), "{what}: {name}");
                }
                let (found, expected) = (found.to_vec::<f32>()?, expected.to_vec::<f32>()?);
                let largest = expected.iter().fold(0.01f32, |all, it| all.max(it.abs()));
                for (a, b) in found.iter().zip(&expected) {
                    assert!((a - b).abs() < 1e-4 * largest, "{what}: {name}: {a} and {b}");
                }
            }
        }
    }
    assert_eq!(STEPS, 2 * SAVED);
    fleet.finish()
}

/// Ranks that share layers must draw the same numbers.
pub fn seeds(fleet: &Fleet) -> Result<()> {
    let net = Net::new();
    net.set_seed(5 + fleet.worker_index() as u64);
    let loss = network(&net);
    let hybrid = HybridConfig::default().with_mp_degree(2);
    let strategy = DistributedStrategy::new().with_hybrid_configs(hybrid);
    let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss)?;
    let error = fleet.session(net.build()?, &job, ExecOptions::threads(1)).err();
    let error = error.expect("ranks differ").to_string();
    assert!(error.contains("ranks that share layers have different seeds"), "{error}");
    Ok(())
}

#[test]
fn a_divided_model_is_saved_whole_and_loads_anywhere() {
    let folder = scratch("layers");
    let text = folder.to_str().unwrap();
    assert_success(&run_in("save layers", 4, text));
    for (name, _) in JOBS {
        check_conversions(&folder.join(name), &[1, 2]).unwrap();
    }
    for ranks in [1, 2, 3, 4] {
        assert_success(&run_in("load layers", ranks, text));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn ranks_that_share_layers_have_one_seed() {
    assert_success(&run_in("seeds of layers", 2, ""));
}
