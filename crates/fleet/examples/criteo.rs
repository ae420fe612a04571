//! Wide & deep on Criteo's click logs, with parameter servers: lines go through a data generator, a
//! pass of training is followed by a pass over the test files, and metrics cover all workers.
//!
//! `fleetrun --server_num=1 --worker_num=2 target/release/examples/criteo FOLDER [MODE] [PASSES]`;
//! MODE is `sync`, `async` or `geo`. The files are those of Criteo in `FOLDER/train` and
//! `FOLDER/test`; generated ones if there are none. To see what the generator writes:
//! `cat FOLDER/train/part-0 | target/release/examples/criteo --reader`.

use fleet::data::{BatchLayout, DataGenerator, Input, Sample, Value, glob, hash_bucket};
use fleet::nn::models::{WideDeepConfig, wide_deep};
use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::rng::Sequence;
use fleet::servers::Worker;
use std::path::Path;

const NUMBERS: usize = 13;
const WORDS: usize = 26;
/// Rows of the table. For the whole of Criteo's logs the documents take 1,000,001.
const BUCKETS: u64 = 10_001;
const MIN: [f64; NUMBERS] = [0., -3., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0., 0.];
const DIFFERENCE: [f64; NUMBERS] =
    [20., 603., 100., 50., 64000., 500., 100., 50., 500., 10., 10., 10., 50.];

/// Turns a line of the logs into a sample: 13 numbers, 26 ids and the label.
struct Reader;

impl DataGenerator for Reader {
    fn generate_sample(&mut self, line: Option<&str>, emit: &mut dyn FnMut(Sample)) -> Result<()> {
        let fields: Vec<&str> = line.unwrap_or_default().split('\t').collect();
        if fields.len() != 1 + NUMBERS + WORDS {
            let error = Error::invalid("line of a click log has another number of columns");
            return Err(error.expected(1 + NUMBERS + WORDS).got(fields.len()));
        }
        let mut dense = Vec::new();
        for (at, field) in fields[1..=NUMBERS].iter().enumerate() {
            dense.push(Value::Float(match field.is_empty() {
                true => 0.0,
                false => (field.parse::<i64>()? as f64 - MIN[at]) / DIFFERENCE[at],
            }));
        }
        let mut sample = vec![("dense_input".to_string(), dense)];
        for (at, word) in fields[1 + NUMBERS..].iter().enumerate() {
            let column = (1 + NUMBERS + at).to_string();
            let id = hash_bucket(column.as_bytes(), word.as_bytes(), BUCKETS);
            sample.push((format!("C{}", at + 1), vec![Value::Int(id as i64)]));
        }
        sample.push(("label".to_string(), vec![Value::Int(fields[0].parse()?)]));
        emit(sample);
        Ok(())
    }
}

/// Runs the data generator: from standard input to standard output.
pub fn read() -> Result<()> {
    Reader.run_from_stdin()
}

/// Writes logs in Criteo's form, in which some words are clicked more often.
fn write_logs(path: &Path, rows: u64, seed: u64) -> Result<()> {
    let (mut rng, mut text) = (Sequence::new(3, seed), String::new());
    for _ in 0..rows {
        let words: Vec<u64> = (0..WORDS).map(|_| rng.below(20)).collect();
        let liked = words[..4].iter().filter(|word| *word % 3 == 0).count() as u64;
        let click = u64::from(rng.below(8) < 2 * liked);
        let numbers: Vec<String> = (0..NUMBERS).map(|_| rng.below(50).to_string()).collect();
        let words: Vec<String> = words.iter().map(|word| format!("{:08x}", word * 7919)).collect();
        text += &format!("{click}\t{}\t{}\n", numbers.join("\t"), words.join("\t"));
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    std::fs::write(path, text).map_err(|error| Error::io("write", path, &error))
}

/// Returns this worker's share of the files, read through the data generator.
fn dataset(fleet: &Fleet, pattern: &Path, reader: &str) -> Result<InMemoryDataset> {
    let ids: Vec<String> = (1..=WORDS).map(|slot| format!("C{slot}")).collect();
    let mut slots = vec![Slot::dense_floats("dense_input", [NUMBERS])];
    slots.extend(ids.iter().map(|name| Slot::dense_ids(name, [1])));
    slots.push(Slot::dense_ids("label", [1]));
    let schema = Schema::new(slots)?;
    // The ids side by side in one input, and the label as a float.
    let inputs = [
        Input::new("dense_input", ["dense_input"]),
        Input::new("sparse_input", ids),
        Input::new("label", ["label"]).dtype(DType::F32),
    ];
    let files = TextFiles::multi_slot(&schema).pipe_command(reader);
    let layout = BatchLayout::new(&schema, inputs)?;
    let options = DatasetOptions { layout, batch_size: 100, ..DatasetOptions::new(files)? };
    let mut dataset = InMemoryDataset::new(options)?;
    let all = glob(&pattern.to_string_lossy())?;
    dataset.set_filelist(fleet.util().get_file_shard(&all)?)?;
    dataset.load_into_memory()?;
    Ok(dataset)
}

/// Names of the cost, and of the counts from which the area under the curve follows.
struct Names {
    cost: String,
    counts: [String; 2],
}

/// Runs a pass of training or of a test, prints the metrics of all workers, and returns the area
/// under the curve.
fn pass(
    (fleet, worker): (&Fleet, &mut Worker),
    (title, number, dataset): (&str, u64, &InMemoryDataset),
    names: &Names,
) -> Result<f64> {
    for counts in &names.counts {
        let empty = Tensor::zeros(DType::I64, *worker.session.scope.tensor(counts)?.shape())?;
        worker.session.scope.assign(counts, &empty)?;
    }
    let run = DatasetRun::new().fetch("cost", &names.cost).print_period(0);
    // Synchronous workers make their steps together; their shares may differ in size.
    let is_sync = worker.job().plan.exchange.is_sync();
    let report = match (title, is_sync) {
        ("TRAIN", true) => worker.train_from_dataset(dataset, run.together(fleet))?,
        ("TRAIN", false) => worker.train_from_dataset(dataset, run)?,
        _ => worker.infer_from_dataset(dataset, run)?,
    };
    let scope = &worker.session.scope;
    let [positives, negatives] = &names.counts;
    let area = fleet.metrics().auc((scope, positives.as_str()), (scope, negatives.as_str()))?;
    let records = fleet.metrics().sum(report.records as f64)?[0];
    let cost = report.last.first().map_or(Ok(f32::NAN), |(_, cost)| cost.item::<f32>())?;
    let util = fleet.util();
    util.print_on_rank(format!("{title} ---> pass: {number} loss: {cost:.5}"), 0);
    util.print_on_rank(format!("Global Metrics ---> auc: {area:.5}, records: {records}"), 0);
    Ok(area)
}

fn strategy(mode: &str) -> Result<(DistributedStrategy, OptimizerDesc)> {
    let plain = DistributedStrategy::new();
    match mode {
        "sync" => Ok((plain.with_a_sync(false), Adagrad::new(0.05).into())),
        "async" => Ok((plain.with_a_sync(true), Adagrad::new(0.05).into())),
        // The differences of workers add up under SGD only.
        "geo" => Ok((plain.use_geo(10), Sgd::new(8.0).into())),
        other => {
            let error = Error::invalid(format!("unknown mode '{other}'"));
            Err(error.expected("sync, async or geo"))
        }
    }
}

/// Lowers the rate of the layers. Each row occurs in few samples of a batch, so its gradient is
/// small, and plain SGD needs a high rate for it.
fn slow_down_layers(net: &Net) -> Result<()> {
    net.rewrite_with(|programs, _| {
        let layers = programs.main.parameters().filter(|(_, var)| var.shape.dims()[0] < 1000);
        let layers: Vec<_> = layers.map(|(id, _)| id).collect();
        for id in layers {
            if let Some(param) = &mut programs.main.var_mut(id).param {
                param.learning_rate = 0.02;
            }
        }
        Ok(())
    })
}

/// Trains as one process of a job, and returns the area under the curve of the last test pass (none
/// on servers). `reader` is the command of the data generator.
pub fn train_in(folder: &Path, mode: &str, passes: u64, reader: &str) -> Result<Option<f64>> {
    let (fleet, net) = (Fleet::parameter_server()?, Net::new());
    let (strategy, optimizer) = strategy(mode)?;
    let model = wide_deep(
        &net,
        &WideDeepConfig {
            vocabulary: BUCKETS as i64,
            width: 8,
            hidden: vec![64, 32],
            use_parameter_servers: true,
            ..WideDeepConfig::criteo()
        },
    );
    let (cost, prediction) = (model.loss.name(), model.prediction.name());
    let counts = model.auc.map(|auc| [auc.stat_pos, auc.stat_neg].map(|var| var.name()));
    let names = Names { cost, counts: counts.unwrap_or_default() };
    if mode == "geo" {
        slow_down_layers(&net)?;
    }
    let optimizer = fleet.distributed_optimizer(optimizer, &strategy);
    let job = optimizer.minimize_on_servers(&net, model.loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;
        return Ok(None);
    }
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    if fleet.is_first_worker() && !folder.join("train").exists() {
        for part in 0..2 {
            write_logs(&folder.join(format!("train/part-{part}")), 3000, part)?;
            write_logs(&folder.join(format!("test/part-{part}")), 1000, 10 + part)?;
        }
    }
    worker.barrier()?;
    let mut train = dataset(&fleet, &folder.join("train/*"), reader)?;
    let test = dataset(&fleet, &folder.join("test/*"), reader)?;
    let mut area = 0.0;
    for number in 0..passes {
        train.local_shuffle();
        pass((&fleet, &mut worker), ("TRAIN", number, &train), &names)?;
        worker.flush()?;
        worker.barrier()?; // the test pass reads what all workers have trained
        worker.flush()?;
        area = pass((&fleet, &mut worker), ("TEST", number, &test), &names)?;
    }
    if fleet.is_first_worker() {
        let to = folder.join("model");
        worker.save_inference_model(&to, &[&prediction], SaveMode::All, SaveFormat::Binary)?;
    }
    worker.barrier()?;
    fleet.finish()?;
    worker.stop()?;
    Ok(Some(area))
}

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().collect();
    let Some(folder) = args.get(1) else {
        return Err(Error::invalid("no folder given").help("criteo FOLDER [MODE] [PASSES]"));
    };
    if folder == "--reader" {
        return read();
    }
    let mode = args.get(2).map_or("async", String::as_str);
    let passes = args.get(3).map_or(Ok(4), |passes| passes.parse())?;
    let reader = format!("'{}' --reader", args[0]);
    train_in(Path::new(folder), mode, passes, &reader).map(drop)
}
