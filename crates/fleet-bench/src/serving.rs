//! Models of job files in use: predictions of files, and of a server under load.
//!
//! The data is shaped like Adult's: six numbers, eight categories. The model is the default one
//! (`dcn_v2`, piecewise encodings). The load comes from threads of the same process, so that two
//! cores do all of the work. Requests are due at fixed times, and latencies count from these, so
//! that a late answer delays no other request.

use crate::measure::{Options, print_rates};
use fleet::ir::Program;
use fleet::ops::Services;
use fleet::rng::Sequence;
use fleet::{DType, Error, ExecOptions, Executor, Fleet, Result, Scope, Shape, Tensor};
use fleet_base::output::{ExitReason, Output};
use fleet_job::recommend::SearchWay;
use fleet_job::{predict, train};
use fleet_serve::{ServeArgs, Server};
use fleet_topology::Env;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Rows of a request.
const REQUEST_ROWS: usize = 50;
/// Requests that differ.
const REQUESTS: usize = 64;
/// Connections of the load.
const CONNECTIONS: usize = 16;
/// Time over which a latency is taken, in seconds.
const WINDOW: f64 = 2.0;
/// Requests per second.
const JSON_RATE: f64 = 500.0;
#[cfg(feature = "grpc")]
const GRPC_RATE: f64 = 2000.0;
/// Rows to train on, and rows of the file that is scored.
const TRAIN_ROWS: usize = 30_000;
const PREDICT_ROWS: usize = 400_000;

pub const NUMBERS: [&str; 6] = ["age", "weight", "education_num", "gain", "loss", "hours"];
pub const CATEGORIES: [(&str, u64); 8] = [
    ("workclass", 9),
    ("education", 16),
    ("marital", 7),
    ("occupation", 15),
    ("relationship", 6),
    ("race", 5),
    ("sex", 2),
    ("country", 42),
];

/// Latency of a server over HTTP with JSON: the 99th percentile in ms, at 500 requests/s.
pub fn serve_json(options: &Options) -> Result<()> {
    let place = Place::new()?;
    let server = place.serve(options)?;
    let address = server.address();
    let bodies: Vec<Vec<u8>> = (0..REQUESTS)
        .map(|at| {
            let body = json(&rows(100 + at as u64, REQUEST_ROWS));
            let head = format!(
                "POST /v1/predict HTTP/1.1\r\nhost: bench\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            [head.as_bytes(), body.as_bytes()].concat()
        })
        .collect();
    load(options, JSON_RATE, |_| {
        let stream = TcpStream::connect(address).map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        let mut reader = BufReader::new(stream.try_clone().map_err(broken)?);
        let (mut stream, bodies) = (stream, &bodies);
        Ok(move |at: usize| {
            stream.write_all(&bodies[at % REQUESTS]).map_err(broken)?;
            read_answer(&mut reader)
        })
    })
}

/// The same over gRPC, at 2,000 requests/s.
#[cfg(feature = "grpc")]
pub fn serve_grpc(options: &Options) -> Result<()> {
    use fleet_serve::client::PredictClient;
    let place = Place::new()?;
    let server = place.serve(options)?;
    let address = server.grpc_address().ok_or_else(|| Error::internal("no gRPC"))?.to_string();
    let requests: Vec<_> =
        (0..REQUESTS).map(|at| message(&rows(100 + at as u64, REQUEST_ROWS))).collect();
    load(options, GRPC_RATE, |_| {
        let mut client = PredictClient::connect(&address, None)?;
        let requests = &requests;
        Ok(move |at: usize| {
            let answer = client.predict(requests[at % REQUESTS].clone())?;
            match answer.scores.len() == REQUEST_ROWS {
                true => Ok(()),
                false => Err(Error::internal("scores are missing")),
            }
        })
    })
}

/// Speed of `fleet predict` on a CSV file, as a share of that of the program alone on batches in
/// memory, in the fastest of some ways to run it.
pub fn predict(options: &Options) -> Result<()> {
    let place = Place::new()?;
    let file = place.path("new.csv");
    write(&file, &csv(&rows(9, PREDICT_ROWS)))?;
    let (steps, warmup) = options.counts(5, 1);
    let mut shares = Vec::new();
    let way = place.fastest(options)?;
    for step in 0..warmup + steps {
        let forward = place.forward(options, way)?;
        let args = predict::PredictArgs {
            model: place.path("model"),
            data: vec![file.display().to_string()],
            out: place.path("scores.csv"),
            keep: Vec::new(),
            threads: (options.threads as u16).into(),
        };
        let begin = Instant::now();
        command(|out| predict::run(&args, &Env::new(), out))?;
        let speed = PREDICT_ROWS as f64 / begin.elapsed().as_secs_f64();
        println!("predict {speed:.0} rows/s, forward from memory {forward:.0} rows/s");
        if step >= warmup {
            shares.push(speed / forward);
        }
    }
    print_rates(options, "of the forward speed", shares);
    Ok(())
}

/// A temporary folder with a trained model.
struct Place(fleet_base::temporary::TemporaryFolder);

impl Place {
    fn new() -> Result<Place> {
        let folder =
            fleet_base::temporary::TemporaryFolder::new(&std::env::temp_dir(), "fleet-bench-rec")?;
        let place = Place(folder);
        write(&place.path("train.csv"), &csv(&rows(1, TRAIN_ROWS)))?;
        let mut job = "version = 1\n[data]\ntrain = \"train.csv\"\n[columns]\n\
            income = { role = \"label\", positive = \">50K\" }\n"
            .to_string();
        for name in NUMBERS {
            let _ = writeln!(job, "{name} = {{ kind = \"number\", embed = \"piecewise\" }}");
        }
        for (name, _) in CATEGORIES {
            let _ = writeln!(job, "{name} = {{ kind = \"category\" }}");
        }
        job.push_str("[train]\nepochs = 1\n");
        write(&place.path("job.toml"), &job)?;
        let args = train::TrainArgs {
            file: place.path("job.toml"),
            threads: 2.into(),
            fresh: true,
            ..train::TrainArgs::default()
        };
        let fleet = Fleet::join(&Env::new())?;
        command(|out| train::run(&args, &fleet, out))?;
        Ok(place)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn serve(&self, options: &Options) -> Result<Server> {
        let args = ServeArgs {
            model: self.path("model"),
            listen: "127.0.0.1:0".into(),
            grpc: cfg!(feature = "grpc").then(|| "127.0.0.1:0".into()),
            token_file: None,
            rows: 4096,
            body: 16 << 20,
            queue: 256,
            exclude: Vec::new(),
            search: SearchWay::Auto,
            threads: (options.threads as u16).into(),
            watch: 1,
        };
        Server::start(&args, &Env::default())
    }

    /// Returns the fastest way to run the program on batches in memory.
    fn fastest(&self, options: &Options) -> Result<Way> {
        let mut best = (0.0, WAYS[0]);
        for way in WAYS {
            let speed = self.forward(options, way)?;
            println!("from memory, batches of {}, {} executors: {speed:.0} rows/s", way.0, way.1);
            if speed > best.0 {
                best = (speed, way);
            }
        }
        Ok(best.1)
    }

    /// Returns the rows per second of the program on batches in memory.
    fn forward(&self, options: &Options, (batch, executors): Way) -> Result<f64> {
        let mut model = fleet::load_inference_model(self.path("model").join("program"))?;
        let executors = executors.min(options.threads).max(1);
        let feeds = feeds(&model.program, &model.feeds, batch)?;
        let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, it)| (*name, it)).collect();
        let fetch: Vec<&str> = model.targets.iter().map(String::as_str).collect();
        let scopes: Vec<Scope> = (0..executors).map(|_| model.scope.share()).collect();
        let exec = ExecOptions::threads(options.threads / executors);
        let runs = PREDICT_ROWS / batch / executors;
        let (program, feeds, fetch, exec) = (&model.program, &feeds[..], &fetch[..], &exec);
        let ready = Barrier::new(executors + 1);
        let work = |mut scope: Scope| -> Result<()> {
            let mut executor = Executor::new(exec.clone()).services(Services::none());
            let mut out = Vec::new();
            let mut run = || executor.run_into(program, &mut scope, feeds, fetch, &mut out);
            let first = run();
            ready.wait();
            first?;
            (0..runs).try_for_each(|_| run())
        };
        let begin = std::thread::scope(|threads| -> Result<Instant> {
            let work = &work;
            let running: Vec<_> =
                scopes.into_iter().map(|scope| threads.spawn(move || work(scope))).collect();
            ready.wait();
            let begin = Instant::now();
            for thread in running {
                thread.join().unwrap_or_else(|_| Err(Error::internal("a thread panicked")))?;
            }
            Ok(begin)
        })?;
        Ok((runs * batch * executors) as f64 / begin.elapsed().as_secs_f64())
    }
}

/// Rows of a batch, and number of executors that run batches at the same time.
type Way = (usize, usize);

/// Ways to run a program on rows in memory, with all threads. Which one is the fastest depends on
/// the caches.
const WAYS: [Way; 5] = [(4096, 1), (512, 1), (512, 2), (128, 2), (64, 2)];

/// Returns values for the inputs of a program.
fn feeds<'n>(
    program: &Program,
    names: &'n [String],
    batch: usize,
) -> Result<Vec<(&'n str, Tensor)>> {
    let mut random = Sequence::new(3, 3);
    let mut feeds = Vec::new();
    for name in names {
        let var = program.var(program.var_named(name)?);
        let width = var.shape.dims().get(1).copied().unwrap_or(1).max(1) as usize;
        let shape = Shape::from([batch as i64, width as i64]);
        let count = batch * width;
        let tensor = match var.dtype {
            DType::I64 => {
                let ids: Vec<i64> = (0..count).map(|_| random.below(90) as i64).collect();
                Tensor::from_slice(&ids, shape)?
            }
            _ => {
                let numbers: Vec<f32> =
                    (0..count).map(|_| random.below(1000) as f32 / 250.0 - 2.0).collect();
                Tensor::from_slice(&numbers, shape)?
            }
        };
        feeds.push((name.as_str(), tensor));
    }
    Ok(feeds)
}

/// Sends requests at a rate, and prints the 99th percentiles of their latencies.
fn load<F>(options: &Options, rate: f64, connect: impl Fn(usize) -> Result<F> + Sync) -> Result<()>
where
    F: FnMut(usize) -> Result<()>,
{
    let (windows, warmup) = options.counts(5, 1);
    let total = ((windows + warmup) as f64 * WINDOW * rate) as usize;
    let begin = Instant::now() + Duration::from_millis(200);
    let work = |connection: usize| -> Result<Vec<(f64, f64)>> {
        let mut call = connect(connection)?;
        let mut seen = Vec::new();
        for at in (connection..total).step_by(CONNECTIONS) {
            let due = begin + Duration::from_secs_f64(at as f64 / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            call(at)?;
            let due_s = due.saturating_duration_since(begin).as_secs_f64();
            seen.push((due_s, due.elapsed().as_secs_f64() * 1e3));
        }
        Ok(seen)
    };
    let mut all = Vec::new();
    std::thread::scope(|scope| -> Result<()> {
        let running: Vec<_> = (0..CONNECTIONS)
            .map(|at| {
                scope.spawn({
                    let work = &work;
                    move || work(at)
                })
            })
            .collect();
        for thread in running {
            let seen = thread.join();
            all.extend(seen.unwrap_or_else(|_| Err(Error::internal("a thread panicked")))?);
        }
        Ok(())
    })?;
    let mut latencies = Vec::new();
    for window in warmup..warmup + windows {
        let (from, to) = (window as f64 * WINDOW, (window + 1) as f64 * WINDOW);
        let own = all.iter().filter(|(due, _)| (from..to).contains(due));
        let mut own: Vec<f64> = own.map(|(_, ms)| *ms).collect();
        own.sort_by(f64::total_cmp);
        let at = |share: f64| own[((own.len() - 1) as f64 * share) as usize];
        println!("p50 {:.2} ms, p99 {:.2} ms, max {:.2} ms", at(0.5), at(0.99), at(1.0));
        latencies.push(at(0.99));
    }
    print_rates(options, "ms", latencies);
    Ok(())
}

/// Reads an answer, which must be 200.
fn read_answer(reader: &mut BufReader<TcpStream>) -> Result<()> {
    let (mut line, mut length, mut is_first) = (String::new(), 0, true);
    loop {
        line.clear();
        reader.read_line(&mut line).map_err(broken)?;
        if std::mem::take(&mut is_first) && !line.starts_with("HTTP/1.1 200") {
            return Err(Error::internal("a request failed").got(line.trim()));
        }
        if line.trim().is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).map_err(broken)
}

/// A row: numbers, categories and the label.
pub struct Row {
    numbers: [f64; NUMBERS.len()],
    categories: [u64; CATEGORIES.len()],
    is_rich: bool,
}

pub fn rows(seed: u64, count: usize) -> Vec<Row> {
    let mut random = Sequence::new(seed, 1);
    let mut row = || {
        let numbers = std::array::from_fn(|_| random.below(100_000) as f64 / 1000.0);
        let categories = std::array::from_fn(|at: usize| random.below(CATEGORIES[at].1));
        let logit = (numbers[0] - 50.0) / 20.0 + categories[0] as f64 / 4.0 - 1.0;
        let share = 1.0 / (1.0 + (-logit).exp());
        Row { numbers, categories, is_rich: (random.below(1000) as f64) < 1000.0 * share }
    };
    (0..count).map(|_| row()).collect()
}

fn text_of(column: usize, value: u64) -> String {
    format!("{}-{value}", CATEGORIES[column].0)
}

pub fn csv(rows: &[Row]) -> String {
    let names = NUMBERS.into_iter().chain(CATEGORIES.iter().map(|it| it.0));
    let mut text = names.collect::<Vec<_>>().join(",") + ",income\n";
    for row in rows {
        for number in &row.numbers {
            let _ = write!(text, "{number},");
        }
        for (at, value) in row.categories.iter().enumerate() {
            let _ = write!(text, "{},", text_of(at, *value));
        }
        text.push_str(if row.is_rich { ">50K\n" } else { "<=50K\n" });
    }
    text
}

fn json(rows: &[Row]) -> String {
    let mut text = "{\"rows\":[".to_string();
    for (index, row) in rows.iter().enumerate() {
        text.push_str(if index == 0 { "{" } else { ",{" });
        for (name, number) in NUMBERS.iter().zip(&row.numbers) {
            let _ = write!(text, "\"{name}\":{number},");
        }
        for (at, value) in row.categories.iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            let _ = write!(text, "{comma}\"{}\":\"{}\"", CATEGORIES[at].0, text_of(at, *value));
        }
        text.push('}');
    }
    text + "]}"
}

#[cfg(feature = "grpc")]
fn message(rows: &[Row]) -> fleet_serve::message::PredictRequest {
    use fleet_serve::message::{Column, PredictRequest};
    let numbers = NUMBERS.iter().enumerate().map(|(at, name)| Column {
        name: name.to_string(),
        numbers: rows.iter().map(|row| row.numbers[at] as f32).collect(),
        ..Column::default()
    });
    let categories = CATEGORIES.iter().enumerate().map(|(at, (name, _))| Column {
        name: name.to_string(),
        texts: rows.iter().map(|row| text_of(at, row.categories[at])).collect(),
        ..Column::default()
    });
    PredictRequest { columns: numbers.chain(categories).collect() }
}

/// Runs a command, whose lines come before the result.
fn command(run: impl FnOnce(&mut Output) -> Result<(), ExitReason>) -> Result<()> {
    let mut error = None;
    Output::run(|out| {
        match run(out) {
            Err(ExitReason::Failed(failed)) => error = Some(failed),
            Err(_) => error = Some(Error::internal("the command has ended early")),
            Ok(()) => {}
        }
        Ok(())
    });
    error.map_or(Ok(()), Err)
}

pub fn write(path: &Path, text: &str) -> Result<()> {
    fleet_base::file::write_file(path, text.as_bytes())
}

fn broken(error: std::io::Error) -> Error {
    Error::unavailable(format!("the connection broke: {error}"))
}
