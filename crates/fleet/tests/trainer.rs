//! The training loop in one process: a session, and workers of parameter servers with their servers
//! in this process.

use fleet::data::{
    Batch, DatasetOptions, InMemoryDataset, Loader, LoaderOptions, Schema, Slot, TextFiles,
};
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, ServerTables};
use fleet::servers::{Place, ServerJob, Worker};
use fleet::topology::Env;
use fleet::trainer::{
    Ended, Evaluation, Event, Every, Feeds, Goal, Model, Progress, Source, StopFlag, from_fn,
};
use fleet::{CheckpointPolicy, DistributedStrategy, Fleet, Trainer};
use std::cell::RefCell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

fn fleet() -> Fleet {
    Fleet::join(&Env::new()).unwrap()
}

/// Returns a folder for this test that does not exist yet.
fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("fleet-trainer-{}-{name}", std::process::id()));
    std::fs::remove_dir_all(&folder).ok();
    folder
}

fn every(steps: u64) -> CheckpointPolicy {
    CheckpointPolicy { every_steps: Some(steps), every: None, keep_last: 2 }
}

/// A network with random numbers (dropout), optimizer state and a schedule, and its loss.
fn session() -> (Session, String) {
    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 1], DType::F32));
    let hidden = x.fc(Fc::new(8).act(Act::Tanh)).dropout(0.2);
    let loss = hidden.fc(1).mse_loss(y, Reduction::Mean);
    net.minimize(loss, Adam::new(LrSchedule::exponential(0.05, 0.9))).unwrap();
    let loss = loss.name();
    (Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap(), loss)
}

fn state(session: &Session) -> Vec<(String, Vec<u8>)> {
    let bytes = |name: &str| session.scope.tensor(name).unwrap().as_bytes().to_vec();
    session.scope.names().map(|name| (name.to_string(), bytes(name))).collect()
}

/// Records of the data set; the last batch of an epoch is short.
const RECORDS: usize = 22;
const BATCH: usize = 5;
const BATCHES: u64 = 5;

fn record(at: usize) -> ([f32; 2], f32) {
    let x = [(at * 7 % 11) as f32 / 11.0, (at * 5 % 13) as f32 / 13.0];
    (x, x[0] - 2.0 * x[1])
}

fn fill(feeds: &mut Feeds, records: std::ops::Range<usize>) -> Result<()> {
    let rows = records.len() as i64;
    let (x, y): (Vec<[f32; 2]>, Vec<f32>) = records.map(record).unzip();
    feeds.set("x", Tensor::from_slice(x.as_flattened(), [rows, 2])?);
    feeds.set("y", Tensor::from_slice(&y, [rows, 1])?);
    Ok(())
}

fn batch_in_order(_: u64, batch: u64, feeds: &mut Feeds) -> Result<bool> {
    let from = batch as usize * BATCH;
    if from < RECORDS {
        fill(feeds, from..RECORDS.min(from + BATCH))?;
    }
    Ok(from < RECORDS)
}

/// The records in order, with the number of batches known or not.
fn in_order(is_known: bool) -> Box<dyn Source> {
    let data = from_fn(batch_in_order);
    if is_known { Box::new(data.batches(BATCHES)) } else { Box::new(data) }
}

fn dataset(folder: &Path) -> InMemoryDataset {
    std::fs::create_dir_all(folder).unwrap();
    let line = |at| {
        let (x, y) = record(at);
        format!("2 {} {} 1 {y}\n", x[0], x[1])
    };
    let path = folder.join("records");
    std::fs::write(&path, (0..RECORDS).map(line).collect::<String>()).unwrap();
    let schema = Schema::new([Slot::dense_floats("x", [2]), Slot::dense_floats("y", [1])]).unwrap();
    let options = DatasetOptions::new(TextFiles::multi_slot(&schema)).unwrap();
    let options = DatasetOptions { batch_size: BATCH, threads: 2, ..options };
    let mut dataset = InMemoryDataset::new(options).unwrap();
    dataset.set_filelist([path]).unwrap();
    dataset.load_into_memory().unwrap();
    dataset
}

fn loader(folder: &Path) -> Loader {
    let options = LoaderOptions {
        batch_size: BATCH,
        shuffle: true,
        seed: 3,
        drop_last: false,
        ..LoaderOptions::default()
    };
    Loader::new(Arc::new(dataset(folder)), options).unwrap()
}

/// Trains three epochs with everything on, and stops after `stop` steps if that is given.
fn train(
    folder: &Path,
    session: &mut Session,
    loss: &str,
    data: &mut dyn Source,
    stop: u64,
) -> Ended {
    let (fleet, flag) = (fleet(), StopFlag::new());
    let evaluation = Evaluation::new().mean("loss", loss);
    let trained = Trainer::new(&fleet)
        .epochs(3)
        .watch("loss", loss)
        .validate(evaluation, in_order(false), Every::Steps(3))
        .goal(Goal::lowest("loss"))
        .checkpoints(folder.join("saves"), every(4))
        .scalars(folder.join("scalars"))
        .scalars_every(2)
        .progress(Progress::none())
        .clock(|| Duration::ZERO)
        .stop_on(&flag)
        .on_event(|event, _| {
            if let Event::Step { step, .. } = event
                && *step == stop
            {
                flag.request();
            }
            Ok(ControlFlow::Continue(()))
        });
    trained.run(&mut *session, data).unwrap().ended
}

fn scalars(folder: &Path) -> [String; 2] {
    ["scalars.csv", "scalars.jsonl"]
        .map(|name| std::fs::read_to_string(folder.join("scalars").join(name)).unwrap())
}

/// For each kind of data: a training that is stopped after any of its steps and resumed has the
/// bits, scalars and best model of one that never stopped.
#[test]
fn a_resumed_training_computes_the_same_bits() {
    type Make = fn(&Path) -> Box<dyn FnMut(&mut dyn FnMut(&mut dyn Source))>;
    let kinds: [(&str, Make); 6] = [
        ("known", |_| Box::new(|run| run(&mut in_order(true)))),
        ("unknown", |_| Box::new(|run| run(&mut in_order(false)))),
        ("ahead", |_| Box::new(|run| run(&mut from_fn(batch_in_order).batches(BATCHES).ahead(2)))),
        ("dataset", |folder| {
            let dataset = dataset(folder);
            Box::new(move |run| run(&mut &dataset))
        }),
        ("reshuffled", |folder| {
            let mut dataset = dataset(folder);
            Box::new(move |run| run(&mut dataset))
        }),
        ("loader", |folder| {
            let folder = folder.to_path_buf();
            Box::new(move |run| run(&mut loader(&folder)))
        }),
    ];
    for (kind, make) in kinds {
        let folder = scratch(&format!("bits-{kind}"));
        let mut with_data = make(&folder);
        let (mut whole, loss) = session();
        with_data(&mut |data| {
            let ended = train(&folder.join("whole"), &mut whole, &loss, data, u64::MAX);
            assert_eq!(ended, Ended::Completed);
        });
        // Inside an epoch, at its end, at a validation and at a checkpoint.
        for stop in [1, 5, 9, 14] {
            let (stopped, mut second) = (folder.join(stop.to_string()), session().0);
            for (stop, expected) in [(stop, Ended::Requested), (0, Ended::Completed)] {
                second = session().0;
                with_data(&mut |data| {
                    assert_eq!(train(&stopped, &mut second, &loss, data, stop), expected, "{kind}");
                });
            }
            assert!(state(&second) == state(&whole), "{kind}, stopped after step {stop}");
            assert_eq!(scalars(&stopped), scalars(&folder.join("whole")), "{kind} {stop}");
            let best = |folder: &Path| names(&folder.join("saves/best"));
            assert_eq!(best(&stopped), best(&folder.join("whole")), "{kind} {stop}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// An in-memory dataset that is lent for changes has another order in each epoch, which depends on
/// nothing else. Otherwise all epochs have its own order.
#[test]
fn datasets_are_shuffled_for_each_epoch_if_they_may_change() {
    let folder = scratch("orders");
    let mut dataset = dataset(&folder);
    fn order(data: &mut dyn Source, epoch: u64) -> Vec<f32> {
        let (mut feeds, mut seen) = (Feeds::default(), Vec::new());
        let mut pass = data.pass(epoch, Default::default()).unwrap();
        while pass.next(&mut feeds).unwrap() {
            let y = feeds.list().into_iter().find(|(name, _)| *name == "y").unwrap().1;
            seen.extend(y.to_vec::<f32>().unwrap());
        }
        seen
    }
    let plain = order(&mut &dataset, 0);
    assert_eq!(order(&mut &dataset, 1), plain);
    let shuffled: Vec<Vec<f32>> = (0..3).map(|epoch| order(&mut dataset, epoch)).collect();
    dataset.local_shuffle();
    assert_eq!(order(&mut dataset, 1), shuffled[1]);
    let sorted = |mut values: Vec<f32>| {
        values.sort_by(f32::total_cmp);
        values
    };
    for (epoch, order) in shuffled.iter().enumerate() {
        assert_eq!(sorted(order.clone()), sorted(plain.clone()));
        assert!(*order != plain && *order != shuffled[(epoch + 1) % 3], "epoch {epoch}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Returns the names of the checkpoints in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.starts_with("step-")).collect();
    names.sort();
    names
}

/// A training of a network without parameters worth training, whose validations have given values.
fn validated(
    values: &[f32],
    trainer: impl FnOnce(Trainer<'_>) -> Trainer<'_>,
) -> fleet::trainer::Trained {
    let fleet = fleet();
    let net = Net::new();
    let score = net.data("score", [-1, 1], DType::F32);
    net.minimize(score.fc(1).mean(), Sgd::new(0.1)).unwrap();
    let score = score.mean().name();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let feed = |feeds: &mut Feeds, value: f32| {
        feeds.set("score", Tensor::from_slice(&[value], [1, 1])?);
        Ok(true)
    };
    let next = RefCell::new(values.iter());
    let scores = from_fn(|_, batch, feeds| match batch {
        0 => feed(feeds, *next.borrow_mut().next().expect("one validation for each value")),
        _ => Ok(false),
    });
    let base = Trainer::new(&fleet)
        .epochs(values.len() as u64)
        .validate(Evaluation::new().mean("score", &score), scores, Every::Epoch)
        .progress(Progress::none());
    let data = from_fn(|_, _, feeds| feed(feeds, 0.0)).batches(2);
    trainer(base).run(&mut session, data).unwrap()
}

#[test]
fn the_best_model_and_the_last_ones_are_kept() {
    let folder = scratch("best");
    let values = [0.5, f32::NAN, 0.7, 0.6, 0.7, 0.65];
    for (name, goal, step, value) in
        [("highest", Goal::highest("score"), 6, 0.7f32), ("lowest", Goal::lowest("score"), 2, 0.5)]
    {
        let folder = folder.join(name);
        let saves = every(100);
        let trained = validated(&values, |it| it.goal(goal).checkpoints(&folder, saves));
        let best = trained.best.unwrap();
        assert_eq!((best.step, best.value as f32), (step, value));
        assert_eq!(names(&folder.join("best")), [format!("step-{step:012}")]);
        assert_eq!(names(&folder), ["step-000000000012"]);
        assert_eq!(trained.validated.unwrap().get("score").map(|it| it as f32), Some(0.65));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn training_stops_when_the_validation_does_not_improve() {
    let values = [0.5, 0.7, 0.705, 0.6, 0.8, 0.9];
    let goal = || Goal::highest("score");
    for (patience, goal, steps, ended) in [
        (1, goal(), 8, Ended::EarlyStop),
        (2, goal(), 12, Ended::Completed),
        (2, goal().by_at_least(0.01), 8, Ended::EarlyStop),
        (2, Goal::lowest("score"), 6, Ended::EarlyStop),
    ] {
        let trained = validated(&values, |it| it.goal(goal).early_stop(patience));
        assert_eq!((trained.step, trained.ended), (steps, ended), "{patience}");
    }
}

/// Means are weighted by rows: the last batch of the evaluation and of the epoch is short.
#[test]
fn short_batches_count_by_their_rows() {
    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 1], DType::F32));
    let (mean, probability) = (y.mean().name(), y.sigmoid().name());
    let positive = y.greater_than(net.full([1], 0.0, DType::F32)).cast(DType::F32).name();
    net.minimize(x.fc(1).mean(), Sgd::new(0.0)).unwrap();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let fleet = fleet();
    let evaluation = Evaluation::new().mean("batch mean", &mean).mean("each row", "y").auc(
        "AUC",
        &probability,
        &positive,
    );
    let evaluation = evaluation.mean_of("both", ["AUC", "each row"]);
    let found = evaluation.run(&fleet, &mut session, in_order(true)).unwrap();
    let expected = (0..RECORDS).map(|at| f64::from(record(at).1)).sum::<f64>() / RECORDS as f64;
    assert_eq!((found.rows, found.batches), (RECORDS as u64, BATCHES));
    for label in ["batch mean", "each row"] {
        assert!((found.get(label).unwrap() - expected).abs() < 1e-6, "{label}");
    }
    assert_eq!(found.get("AUC"), Some(1.0));
    let both = f64::midpoint(1.0, found.get("each row").unwrap());
    assert_eq!(found.get("both"), Some(both));
    let unknown = Evaluation::new().mean("each row", "y").mean_of("both", ["each rows"]);
    let error = unknown.run(&fleet, &mut session, in_order(true)).unwrap_err().to_string();
    assert!(error.contains("unknown metric; did you mean 'each row'?"), "{error}");

    let folder = scratch("weights");
    let trainer = Trainer::new(&fleet).watch("mean", &mean).watch("each", "y").scalars(&folder);
    let trained = trainer.progress(Progress::none()).run(&mut session, in_order(true)).unwrap();
    assert_eq!(trained.rows, RECORDS as u64);
    let text = std::fs::read_to_string(folder.join("scalars.csv")).unwrap();
    let last: Vec<&str> = text.lines().last().unwrap().split(',').collect();
    assert_eq!(last[..3], ["5", "0", "22"]);
    for value in &last[4..] {
        assert!((value.parse::<f64>().unwrap() - expected).abs() < 1e-6, "{text}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn callbacks_see_every_event_and_may_stop() {
    let folder = scratch("events");
    let run = |stop: &str| {
        let seen = RefCell::new(Vec::new());
        let (fleet, (mut session, loss)) = (fleet(), session());
        let call = |event: &Event<'_>, model: &mut Model<'_>| {
            assert!(model.worker().is_none() && model.session().scope.step() > 0);
            let name = match event {
                Event::Step { step, epoch, rows, values } => {
                    assert_eq!((values.len(), values[0].is_finite()), (1, true));
                    format!("step {step} of epoch {epoch}: {rows}")
                }
                Event::Epoch { epoch, .. } => format!("epoch {epoch}"),
                Event::Validated { result, is_best, .. } => {
                    format!("validated {} rows, best {is_best}", result.rows)
                }
                Event::Saved { step, is_best } => format!("saved {step}, best {is_best}"),
                other => panic!("{other:?}"),
            };
            let stops = name == stop;
            seen.borrow_mut().push(name);
            Ok(if stops { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        };
        let trained = Trainer::new(&fleet)
            .steps(6)
            .watch("loss", &loss)
            .validate(Evaluation::new().mean("loss", &loss), in_order(true), Every::Epoch)
            .goal(Goal::lowest("loss"))
            .checkpoints(folder.join(if stop.is_empty() { "all" } else { stop }), every(2))
            .progress(Progress::none())
            .on_event(call)
            .run(&mut session, in_order(true))
            .unwrap();
        (trained.step, trained.ended, seen.into_inner())
    };
    let (step, ended, seen) = run("");
    assert_eq!((step, ended), (6, Ended::Completed));
    let start = [
        "step 1 of epoch 0: 5",
        "step 2 of epoch 0: 5",
        "saved 2, best false",
        "step 3 of epoch 0: 5",
        "step 4 of epoch 0: 5",
        "saved 4, best false",
        "step 5 of epoch 0: 2",
        "epoch 0",
        "saved 5, best true",
        "validated 22 rows, best true",
        "step 6 of epoch 1: 5",
    ];
    assert_eq!(seen[..start.len()], start);
    for (stop, at) in [("step 3 of epoch 0: 5", 3), ("epoch 0", 5), ("saved 2, best false", 3)] {
        let (step, ended, seen) = run(stop);
        assert_eq!((step, ended), (at, Ended::Callback), "{stop}");
        // The last step is saved.
        assert_eq!(*seen.last().unwrap(), format!("saved {at}, best false"));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A program that restores the model by itself gives the step, which determines the batch.
#[test]
fn a_training_begins_after_a_given_step() {
    let (fleet, (mut session, _)) = (fleet(), session());
    let mut first = None;
    let trained = Trainer::new(&fleet)
        .steps(9)
        .resume_after(7)
        .progress(Progress::none())
        .on_event(|event, _| {
            if let Event::Step { step, epoch, rows, .. } = event {
                first.get_or_insert((*step, *epoch, *rows));
            }
            Ok(ControlFlow::Continue(()))
        })
        .run(&mut session, in_order(true))
        .unwrap();
    assert_eq!((trained.step, trained.rows, first), (9, 10, Some((8, 1, 5))));
    let trainer = Trainer::new(&fleet).resume_after(7).progress(Progress::none());
    let error = trainer.run(&mut session, in_order(false)).unwrap_err().to_string();
    assert!(error.contains("cannot find the position of a step in the data"), "{error}");
}

/// Files of scalars parse, have one row for each step, and the columns of all values.
#[test]
fn scalars_parse() {
    let folder = scratch("parse");
    let (mut session, loss) = session();
    train(&folder, &mut session, &loss, &mut in_order(true), 0);
    let [csv, jsonl] = scalars(&folder);
    let mut lines = csv.lines();
    let header = "step,epoch,rows,seconds,train/loss,valid/loss";
    assert_eq!(lines.next(), Some(header));
    let rows: Vec<Vec<&str>> = lines.map(|line| line.split(',').collect()).collect();
    let steps: Vec<u64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    // Every second step, every third, and the ends of epochs.
    assert_eq!(steps, [2, 3, 4, 5, 6, 8, 9, 10, 12, 14, 15]);
    let objects: Vec<&str> = jsonl.lines().collect();
    assert_eq!(objects.len(), rows.len());
    for (row, object) in rows.iter().zip(objects) {
        let fields: Vec<String> = header
            .split(',')
            .zip(row)
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        assert_eq!(object, format!("{{{}}}", fields.join(",")));
        assert!(row[4..].iter().all(|value| value.is_empty() || value.parse::<f64>().is_ok()));
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn mistakes_are_refused_with_the_reason() {
    let (fleet, folder) = (fleet(), scratch("mistakes"));
    let (_, loss) = session();
    let evaluation = || Evaluation::new().mean("loss", &loss);
    type Change = dyn Fn(Trainer<'static>) -> Trainer<'static>;
    let fleet: &'static Fleet = Box::leak(Box::new(fleet));
    let cases: [(&str, Box<Change>); 8] = [
        ("invalid epochs: expected at least 1", Box::new(|it| it.epochs(0))),
        ("early stop needs a goal", Box::new(|it| it.early_stop(1))),
        ("expected a validation", Box::new(|it| it.goal(Goal::lowest("loss")))),
        ("did you mean 'loss'", {
            let evaluation = evaluation();
            Box::new(move |it| {
                let it = it.validate(evaluation.clone(), in_order(true), Every::Epoch);
                it.goal(Goal::lowest("los"))
            })
        }),
        ("a label names more than one watched value", {
            let loss = loss.clone();
            Box::new(move |it| it.watch("a", &loss).watch("a", &loss))
        }),
        ("without commas", {
            let loss = loss.clone();
            Box::new(move |it| it.watch("a,b", &loss))
        }),
        ("'nothing'", Box::new(|it| it.watch("a", "nothing"))),
        ("cannot take the mean of variable 'x'", Box::new(|it| it.watch("a", "x"))),
    ];
    for (expected, change) in cases {
        let (mut session, _) = session();
        let trainer = change(Trainer::new(fleet).progress(Progress::none()));
        let error = trainer.run(&mut session, in_order(true)).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let (mut session, loss) = session();
    let quiet = || Trainer::new(fleet).progress(Progress::none());
    let none = || from_fn(|_, _, _| Ok(false));
    let error = quiet().run(&mut session, none()).unwrap_err().to_string();
    assert!(error.contains("the training data has no batches"), "{error}");
    let error = quiet().run(&mut session, none().batches(2)).unwrap_err().to_string();
    assert!(error.contains("ended early: expected 2 batches in this pass, got 0"), "{error}");
    let evaluation = Evaluation::new().mean("loss", &loss);
    let error = evaluation.run(fleet, &mut session, none()).unwrap_err().to_string();
    assert!(error.contains("has no rows"), "{error}");
    // A checkpoint of a program that saves by itself.
    let mut checkpoints = fleet.checkpoints(&folder, every(1)).unwrap();
    checkpoints.save(3, &session.programs.main, &session.scope, Default::default()).unwrap();
    checkpoints.finish().unwrap();
    drop(checkpoints);
    let trainer = quiet().checkpoints(&folder, every(1));
    let error = trainer.run(&mut session, in_order(true)).unwrap_err().to_string();
    assert!(error.contains("not made by a trainer") && error.contains("step-"), "{error}");
    // Another batch size.
    let with_rows = |rows: usize| {
        let trainer =
            quiet().checkpoints(folder.join("rows"), every(1)).constant("batch size", rows);
        trainer.run(&mut crate::session().0, in_order(true))
    };
    assert_eq!(with_rows(4).unwrap().step, BATCHES);
    assert_eq!(with_rows(4).unwrap().resumed.map(|it| it.step), Some(BATCHES));
    let error = with_rows(5).unwrap_err().to_string();
    assert!(error.contains("have another batch size: expected 5, got 4"), "{error}");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Progress has one line for each tenth, and the validations.
#[test]
fn progress_is_shown_in_lines() {
    let (fleet, (mut session, loss)) = (fleet(), session());
    let mut text = Vec::new();
    Trainer::new(&fleet)
        .epochs(4)
        .watch("loss", &loss)
        .validate(Evaluation::new().mean("loss", &loss), in_order(true), Every::Steps(10))
        .progress(Progress::lines(&mut text))
        .run(&mut session, in_order(true))
        .unwrap();
    let text = String::from_utf8(text).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 12, "{text}");
    assert!(lines[0].starts_with(" 10 %  epoch 1/4 ") && lines[0].contains("  loss 0."), "{text}");
    assert!(lines[5].starts_with("validation after step 10:  loss 0."), "{text}");
}

#[test]
fn a_layout_is_needed_to_make_batches() {
    struct Samples;
    impl fleet::data::Samples for Samples {
        fn sample_count(&self) -> u64 {
            4
        }
        fn fill(&self, _: &[u64], _: &mut Batch) -> Result<()> {
            Ok(())
        }
    }
    let loader = Loader::new(Arc::new(Samples), LoaderOptions::default()).unwrap();
    let (fleet, (mut session, _)) = (fleet(), session());
    let trainer = Trainer::new(&fleet).progress(Progress::none());
    let error = trainer.run(&mut session, loader).unwrap_err().to_string();
    assert!(error.contains("have no layout") && error.contains("Samples::batch_layout"), "{error}");
}

const WORKERS: usize = 2;
const STEPS: u64 = 60;

/// Runs two workers and two servers in this process, and returns what `work` returns on each.
fn on_servers<T: Send>(
    mode: (&DistributedStrategy, bool),
    work: impl Fn(&mut Worker, &str) -> T + Sync,
) -> Vec<T> {
    workers_on_servers(WORKERS, mode, work)
}

fn workers_on_servers<T: Send>(
    worker_count: usize,
    (strategy, half_async): (&DistributedStrategy, bool),
    work: impl Fn(&mut Worker, &str) -> T + Sync,
) -> Vec<T> {
    let job = |worker| {
        let net = Net::new();
        let (ids, y) = (net.data("ids", [-1, 2], DType::I64), net.data("y", [-1, 1], DType::F32));
        let rows = ids.sparse_embedding([100, 4]).flatten(1).dropout(0.1);
        let loss = rows.fc(1).mse_loss(y, Reduction::Mean);
        let place = Place { worker, worker_count, server_count: 2, half_async };
        let optimizer = Sgd::new(0.02).into();
        let job = ServerJob::minimize(&net, loss, &optimizer, None, strategy, place).unwrap();
        let loss = loss.name();
        (net.build().unwrap(), job, loss)
    };
    let servers = ServerTables::all(&job(0).1.tables).unwrap();
    std::thread::scope(|scope| {
        let (servers, work, job) = (&servers, &work, &job);
        let run = move |worker| {
            let client = Arc::new(LocalServers::new(servers, worker).unwrap());
            let ((programs, job, loss), options) = (job(worker), CommunicatorOptions::default());
            let mut worker =
                Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap();
            let result = work(&mut worker, &loss);
            worker.stop().unwrap();
            result
        };
        let workers = 0..worker_count;
        let threads: Vec<_> = workers.map(|worker| scope.spawn(move || run(worker))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// A worker's batches: ten of four rows, over and over.
fn clicks(worker: u64) -> impl Source {
    let batch = move |_, batch: u64, feeds: &mut Feeds| {
        let ids: Vec<i64> = (0..8).map(|at| ((at + batch * 8 + worker * 80) % 50) as i64).collect();
        let y: Vec<f32> = ids.chunks(2).map(|pair| (pair[0] % 3) as f32 - 1.0).collect();
        feeds.set("ids", Tensor::from_slice(&ids, [4, 2])?);
        feeds.set("y", Tensor::from_slice(&y, [4, 1])?);
        Ok(true)
    };
    from_fn(batch).batches(10)
}

/// Returns the losses of all steps, and the loss of the validation at the end.
fn train_on_servers(worker: &mut Worker, loss: &str) -> (Vec<f64>, f64) {
    let (fleet, own) = (fleet(), worker.job().place.worker as u64);
    let mut losses = Vec::new();
    let trained = Trainer::new(&fleet)
        .steps(STEPS)
        .watch("loss", loss)
        .look_ahead(false)
        .validate(Evaluation::new().mean("loss", loss), clicks(own), Every::Steps(STEPS / 2))
        .progress(Progress::none())
        .on_event(|event, model| {
            assert!(model.worker().is_some());
            if let Event::Step { values, .. } = event {
                losses.push(values[0]);
            }
            Ok(ControlFlow::Continue(()))
        })
        .run(&mut *worker, clicks(own))
        .unwrap();
    assert_eq!((trained.step, trained.epoch), (STEPS, STEPS / 10));
    let validated = trained.validated.unwrap();
    assert_eq!(validated.rows, 40);
    (losses, validated.get("loss").unwrap())
}

/// In each mode the trainer makes the steps of a loop by hand. Only sync gives the same numbers.
#[test]
fn workers_of_parameter_servers_train() {
    let plain = DistributedStrategy::new;
    for (name, strategy, half_async) in [
        ("sync", plain().with_a_sync(false), false),
        ("half-async", plain().with_a_sync(false), true),
        ("async", plain().with_a_sync(true), false),
        ("geo", plain().use_geo(4), false),
    ] {
        let trained = on_servers((&strategy, half_async), train_on_servers);
        for (losses, validated) in &trained {
            assert_eq!(losses.len(), STEPS as usize, "{name}");
            let first = losses[..10].iter().sum::<f64>() / 10.0;
            assert!(*validated < first, "{name}: {validated}, and {first} in the first epoch");
        }
        if name != "sync" {
            continue;
        }
        let by_hand = on_servers((&strategy, half_async), |worker, loss| {
            let mut data = clicks(worker.job().place.worker as u64);
            let (mut losses, mut feeds) = (Vec::new(), Feeds::default());
            for epoch in 0..STEPS / 10 {
                let mut pass = data.pass(epoch, Default::default()).unwrap();
                while pass.next(&mut feeds).unwrap() {
                    let out = worker.run(&feeds.list(), &[loss]).unwrap();
                    losses.push(f64::from(out[0].item::<f32>().unwrap()));
                }
            }
            losses
        });
        for ((losses, _), by_hand) in trained.iter().zip(&by_hand) {
            assert_eq!(losses, by_hand);
        }
    }
}

#[test]
fn workers_stop_alone_where_they_do_not_wait_for_each_other() {
    let strategy = DistributedStrategy::new().with_a_sync(true);
    let steps = on_servers((&strategy, false), |worker, _| {
        let (fleet, flag) = (fleet(), StopFlag::new());
        let last = 10 + 7 * worker.job().place.worker as u64;
        let trained = Trainer::new(&fleet)
            .epochs(100)
            .progress(Progress::none())
            .stop_on(&flag)
            .on_event(|event, _| {
                if let Event::Step { step, .. } = event
                    && *step == last
                {
                    flag.request();
                }
                Ok(ControlFlow::Continue(()))
            })
            .run(&mut *worker, clicks(0))
            .unwrap();
        assert_eq!((trained.ended, trained.epoch), (Ended::Requested, last / 10));
        worker.flush().unwrap();
        trained.step
    });
    assert_eq!(steps, [10, 17]);
}

/// Trains with checkpoints, and stops after a step. Returns the loss of each step.
fn train_and_save(
    worker: &mut Worker,
    loss: &str,
    folder: &Path,
    stop: u64,
) -> Result<(fleet::trainer::Trained, Vec<(u64, f64)>)> {
    let (fleet, own) = (fleet(), worker.job().place.worker as u64);
    let mut losses = Vec::new();
    let trained = Trainer::new(&fleet)
        .steps(STEPS)
        .watch("loss", loss)
        .look_ahead(false)
        .checkpoints(folder, every(7))
        .constant("batch size", 4)
        .progress(Progress::none())
        .on_event(|event, _| {
            let Event::Step { step, values, .. } = event else {
                return Ok(ControlFlow::Continue(()));
            };
            losses.push((*step, values[0]));
            Ok(if *step == stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })
        .run(&mut *worker, clicks(own))?;
    Ok((trained, losses))
}

/// A job that dies between two checkpoints resumes from the last one, on new servers: no step is
/// lost or made twice, and synchronous workers compute the same bits.
#[test]
fn jobs_with_servers_resume_from_their_checkpoints() {
    let plain = DistributedStrategy::new;
    for (name, strategy, half_async) in [
        ("sync", plain().with_a_sync(false), false),
        ("half-async", plain().with_a_sync(false), true),
        ("async", plain().with_a_sync(true), false),
        ("geo", plain().use_geo(4), false),
    ] {
        let folder = scratch(&format!("servers-{name}"));
        let train = |to: &str, stop: u64| {
            let folder = folder.join(to);
            on_servers((&strategy, half_async), |worker, loss| {
                train_and_save(worker, loss, &folder, stop).unwrap()
            })
        };
        let whole = train("whole", u64::MAX);
        assert!(train("stopped", 30).iter().all(|(trained, _)| trained.ended == Ended::Callback));
        assert_eq!(names(&folder.join("stopped")), ["step-000000000021", "step-000000000028"]);
        for ((trained, losses), (_, whole)) in train("stopped", u64::MAX).iter().zip(&whole) {
            assert_eq!(trained.resumed.as_ref().map(|it| it.step), Some(28), "{name}");
            assert_eq!((trained.step, trained.epoch), (STEPS, STEPS / 10));
            assert_eq!(trained.steps_before, 2 * 28);
            let steps: Vec<u64> = losses.iter().map(|(step, _)| *step).collect();
            assert_eq!(steps, (29..=STEPS).collect::<Vec<u64>>(), "{name}");
            if name == "sync" {
                assert_eq!(losses[..], whole[28..]);
            }
        }
        // The last step is saved, too.
        let kept = names(&folder.join("stopped"));
        assert_eq!(kept, ["step-000000000056", "step-000000000060"], "{name}");
        // Another number of workers: only those at one step can divide the data anew.
        let path = folder.join("stopped");
        std::fs::remove_file(path.join("step-000000000060/done")).unwrap();
        let alone = workers_on_servers(1, (&strategy, half_async), |worker, loss| {
            train_and_save(worker, loss, &path, u64::MAX)
                .map(|(trained, losses)| (trained.resumed.unwrap(), trained.step, losses.len()))
        });
        match &alone[0] {
            Ok((resumed, step, made)) => {
                assert_eq!((name, resumed.step, *step, *made), ("sync", 56, STEPS, 4));
                assert!(resumed.skipped[0].contains("the save was not finished"), "{resumed:?}");
            }
            Err(error) => {
                let error = error.to_string();
                assert!(name != "sync" && error.contains("belongs to another job"), "{error}");
            }
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}

/// The parameters and rows of a worker of GEO.
fn copies(worker: &Worker) -> Vec<f32> {
    let tables = &worker.job().plan.tables;
    let rows = tables.sparse.iter().map(|table| &table.name);
    let names =
        rows.chain(tables.dense.iter().flat_map(|it| it.params.iter().map(|(name, _)| name)));
    let values =
        |name: &String| worker.session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap();
    names.flat_map(values).collect()
}

/// A checkpoint of GEO has the mean of the workers' copies, and all workers resume from it.
#[test]
fn workers_of_geo_resume_from_their_mean() {
    const STEPS: u64 = 7;
    let folder = scratch("servers-geo-mean");
    // No exchange before the checkpoint.
    let strategy = DistributedStrategy::new().use_geo(100);
    let train = || {
        on_servers((&strategy, false), |worker, _| {
            let (fleet, own) = (fleet(), worker.job().place.worker as u64);
            let mut before = Vec::new();
            Trainer::new(&fleet)
                .steps(STEPS)
                .checkpoints(&folder, every(STEPS))
                .progress(Progress::none())
                .on_event(|event, model| {
                    if let Event::Step { step: STEPS, .. } = event {
                        before = copies(model.worker().unwrap());
                    }
                    Ok(ControlFlow::Continue(()))
                })
                .run(&mut *worker, clicks(own))
                .unwrap();
            (before, copies(worker))
        })
    };
    let trained = train();
    let [(one, _), (other, _)] = &trained[..] else { panic!("two workers") };
    assert!(!one.is_empty() && one != other);
    // All steps are made.
    let again = train();
    let [(none, resumed), (_, same)] = &again[..] else { panic!("two workers") };
    assert!(none.is_empty() && resumed == same && resumed.len() == one.len());
    for ((one, other), resumed) in one.iter().zip(other).zip(resumed) {
        let mean = (one + other) / 2.0;
        assert!((mean - resumed).abs() < 1e-6, "{resumed}, not the mean of {one} and {other}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

/// The checkpoint of the best model holds the tables of its validation.
#[test]
fn the_best_model_on_servers_is_kept() {
    let (folder, strategy) =
        (scratch("servers-best"), DistributedStrategy::new().with_a_sync(false));
    let evaluation = |loss: &str| Evaluation::new().mean("loss", loss);
    let best = on_servers((&strategy, false), |worker, loss| {
        let (fleet, own) = (fleet(), worker.job().place.worker as u64);
        Trainer::new(&fleet)
            .steps(STEPS)
            .validate(evaluation(loss), clicks(own), Every::Steps(10))
            .goal(Goal::highest("loss"))
            .checkpoints(&folder, every(30))
            .progress(Progress::none())
            .run(&mut *worker, clicks(own))
            .unwrap()
            .best
            .unwrap()
    });
    // The loss falls, so the first validation has the highest.
    assert_eq!(best[0].step, 10);
    assert_eq!(names(&folder.join("best")), ["step-000000000010"]);
    let loaded = on_servers((&strategy, false), |worker, loss| {
        if worker.job().place.worker == 0 {
            worker.load_persistables(folder.join("best/step-000000000010")).unwrap();
        }
        worker.barrier().unwrap();
        worker.flush().unwrap();
        let own = worker.job().place.worker as u64;
        let found = evaluation(loss).run(&fleet(), &mut *worker, clicks(own)).unwrap();
        worker.barrier().unwrap();
        found.get("loss").unwrap()
    });
    assert_eq!(loaded[0], best[0].value);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn checkpoints_of_servers_need_steps_that_all_workers_make() {
    let folder = scratch("servers-mistakes");
    let plain = DistributedStrategy::new;
    type Change = fn(Trainer<'_>) -> Trainer<'_>;
    let cases: [(DistributedStrategy, CheckpointPolicy, Change, &str); 4] = [
        (plain(), CheckpointPolicy::default(), |it| it.steps(4), "need an interval in steps"),
        (plain(), every(2), |it| it.epochs(1), "need a number of steps"),
        (plain(), every(2), |it| it.epochs(1).steps(4), "expected Trainer::steps without epochs"),
        (plain().use_geo(4), every(2), |it| it.epochs(1), "need a number of steps"),
    ];
    for (strategy, policy, change, expected) in cases {
        let errors = on_servers((&strategy, false), |worker, _| {
            let fleet = fleet();
            let trainer = change(Trainer::new(&fleet).progress(Progress::none()));
            let run = trainer.checkpoints(&folder, policy.clone()).run(worker, clicks(0));
            run.unwrap_err().to_string()
        });
        assert!(errors[0].contains(expected), "{}", errors[0]);
    }
}
