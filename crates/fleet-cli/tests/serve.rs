//! `fleet serve` as a process: scores are those of `fleet predict`, limits hold, and a model is
//! replaced without a failed request.
#![cfg(unix)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[path = "serve/equal.rs"]
mod equal;
#[path = "serve/recommend.rs"]
mod recommend;

const FLEET: &str = env!("CARGO_BIN_EXE_fleet");

/// A folder with generated rows and a trained model.
struct Place {
    folder: PathBuf,
}

const JOB: &str = r#"
version = 1
[data]
train = "train.csv"
missing = ["?"]
[columns]
y = { role = "label", positive = "yes" }
age = { kind = "number", embed = "piecewise", bins = 8 }
height = { kind = "number", transform = "quantile" }
city = { kind = "category", vocabulary = { min_count = 2 } }
tags = { kind = "categories", at_most = 20 }
words = { kind = "categories", pooling = "sum", dim = 4 }
user = { kind = "category", buckets = 50, dim = 4 }
day = { role = "time" }
[crosses]
city_user = ["city", "user"]
[model]
kind = "KIND"
hidden = [HIDDEN, 16]
dim = 8
[train]
batch = 64
epochs = 1
seed = SEED
optimizer = { rate = 0.01 }
"#;

impl Place {
    fn new(name: &str, kind: &str) -> Place {
        let folder: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "serve", name].iter().collect();
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("train.csv"), csv(&rows(1, 1500))).unwrap();
        let place = Place { folder };
        place.train(kind, 1);
        place
    }

    fn train(&self, kind: &str, seed: u64) {
        let kind = if kind.contains("kind =") { kind } else { &format!("kind = \"{kind}\"") };
        // Inputs beyond 768 have sums in several parts.
        let hidden = if kind.contains("wide_layers") { "1000" } else { "32" };
        let kind = kind.replace("wide_layers", "mlp");
        let job = JOB.replace("kind = \"KIND\"", &kind).replace("HIDDEN", hidden);
        let job = job.replace("SEED", &seed.to_string());
        // It multiplies embeddings, which have one width.
        let job = match kind.contains("deepfm") {
            true => job.replace(", dim = 4", ""),
            false => job,
        };
        fs::write(self.folder.join("job.toml"), job).unwrap();
        self.run("job train job.toml --threads 1");
    }

    fn run(&self, line: &str) -> String {
        let output = Command::new(FLEET)
            .current_dir(&self.folder)
            .args(line.split_whitespace())
            .output()
            .expect("the command starts");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{line}:\n{text}");
        text
    }

    /// Returns the scores that `fleet predict` writes.
    fn predict(&self, rows: &[Row]) -> Vec<f32> {
        fs::write(self.folder.join("new.csv"), csv(rows)).unwrap();
        self.run("predict model --data new.csv --out scores.csv --threads 2");
        let scores = fs::read_to_string(self.folder.join("scores.csv")).unwrap();
        scores.lines().skip(1).map(|line| line.parse().unwrap()).collect()
    }

    fn serve(&self, options: &str) -> Serving {
        let mut child = Command::new(FLEET)
            .current_dir(&self.folder)
            .args(["serve", "model", "--listen", "127.0.0.1:0"])
            .args(options.split_whitespace())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the command starts");
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.split("http://").nth(1).and_then(|rest| rest.split([',', ' ']).next());
        let grpc = line.split("gRPC at ").nth(1).and_then(|rest| rest.split(',').next());
        let grpc = grpc.unwrap_or_default().to_string();
        let Some(address) = address.map(str::to_string) else {
            let mut errors = String::new();
            let _ = child.stderr.take().unwrap().read_to_string(&mut errors);
            panic!("not serving: {line}{errors}");
        };
        Serving { child, out, address, grpc }
    }
}

/// A running server.
struct Serving {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    address: String,
    #[cfg_attr(not(feature = "grpc"), allow(dead_code, reason = "built without gRPC"))]
    grpc: String,
}

impl Serving {
    fn connect(&self) -> Connection {
        connect(&self.address)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops the server, and returns what it printed.
    fn stop(mut self) -> String {
        self.signal(rustix::process::Signal::TERM);
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        let _ = self.child.stderr.take().unwrap().read_to_string(&mut text);
        assert!(self.child.wait().unwrap().success(), "{text}");
        assert!(text.contains("stopped"), "{text}");
        text
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // After a failed test; else it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Connection {
    stream: TcpStream,
    reader: BufReader<TcpStream>,
    headers: String,
}

struct Answer {
    code: u16,
    head: String,
    body: String,
}

fn connect(address: &str) -> Connection {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let reader = BufReader::new(stream.try_clone().unwrap());
    Connection { stream, reader, headers: String::new() }
}

impl Connection {
    fn get(&mut self, path: &str) -> Answer {
        self.send("GET", path, b"");
        self.answer()
    }

    fn post(&mut self, body: &str) -> Answer {
        self.send("POST", "/v1/predict", body.as_bytes());
        self.answer()
    }

    fn send(&mut self, method: &str, path: &str, body: &[u8]) {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n{}\r\n",
            body.len(),
            self.headers
        );
        // The server may refuse a body before it has come.
        let _ = self.stream.write_all(&[head.as_bytes(), body].concat());
    }

    fn answer(&mut self) -> Answer {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(self.reader.read_line(&mut head).unwrap() > 0, "closed after: {head}");
        }
        let value = |name: &str| {
            let line = head.lines().find(|line| line.to_lowercase().starts_with(name));
            line.map(|line| line[name.len()..].trim().to_string())
        };
        let length: usize = value("content-length:").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.reader.read_exact(&mut body).unwrap();
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { code, head: head.to_lowercase(), body: String::from_utf8(body).unwrap() }
    }

    /// Returns the version and the scores of a body.
    fn scores(&mut self, body: &str) -> (u64, Vec<f32>) {
        let answer = self.post(body);
        assert_eq!(answer.code, 200, "{}", answer.body);
        (answer.version(), answer.scores())
    }
}

impl Answer {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("not JSON: {}", self.body))
    }

    fn version(&self) -> u64 {
        self.json()["version"].as_u64().unwrap()
    }

    /// Reads the texts of the scores as 32-bit floats.
    fn scores(&self) -> Vec<f32> {
        let list = self.body.split("\"scores\":[").nth(1).unwrap().split(']').next().unwrap();
        list.split(',').filter(|it| !it.is_empty()).map(|it| it.parse().unwrap()).collect()
    }
}

/// Texts of the columns; an empty one is missing.
type Row = Vec<(&'static str, String)>;

fn rows(seed: u64, count: usize) -> Vec<Row> {
    let mut state = seed;
    let mut unit = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) as f64 / (1u64 << 31) as f64
    };
    let mut row = || {
        let is_missing = unit() < 0.1;
        let age = if is_missing { String::new() } else { format!("{:.2}", 20.0 + 60.0 * unit()) };
        let city = (unit() * 12.0) as u32;
        let (tags, words) = ((unit() * unit() * 20.0) as usize, (unit() * unit() * 40.0) as usize);
        let mut list = |count: usize, kinds: f64| {
            let words: Vec<String> =
                (0..count).map(|_| format!("w{}", (unit() * kinds) as u32)).collect();
            words.join("|")
        };
        let (tags, words) = (list(tags, 9.0), list(words, 30.0));
        let y = if unit() < if city.is_multiple_of(2) { 0.7 } else { 0.2 } { "yes" } else { "no" };
        vec![
            ("age", age),
            ("height", format!("{:.3e}", 1.5 + 0.5 * unit())),
            ("city", if city == 11 { "?".to_string() } else { format!("city \"{city}\", é") }),
            ("tags", tags),
            ("words", words),
            ("user", format!("{}", (unit() * 50.0) as u32)),
            ("y", y.to_string()),
            ("day", format!("2024-03-{:02}", 1 + (unit() * 28.0) as u32)),
        ]
    };
    (0..count).map(|_| row()).collect()
}

fn csv(rows: &[Row]) -> String {
    let mut text = "age,height,city,tags,words,user,y,day\n".to_string();
    for row in rows {
        let fields: Vec<String> =
            row.iter().map(|(_, value)| format!("\"{}\"", value.replace('"', "\"\""))).collect();
        let _ = writeln!(text, "{}", fields.join(","));
    }
    text
}

/// Writes a value as JSON: numbers as numbers, lists as lists or texts, missing ones as null.
fn value(name: &str, text: &str, is_list: bool) -> String {
    match name {
        "age" | "height" if text.is_empty() => "null".to_string(),
        "age" | "height" | "user" => text.to_string(),
        "tags" | "words" if is_list => {
            let words: Vec<&str> = text.split('|').filter(|word| !word.is_empty()).collect();
            serde_json::json!(words).to_string()
        }
        _ => serde_json::json!(text).to_string(),
    }
}

fn json_rows(rows: &[Row]) -> String {
    let mut objects = Vec::new();
    for (index, row) in rows.iter().enumerate() {
        let fields = row.iter().filter(|(name, text)| *name != "day" && !text.is_empty());
        let fields =
            fields.map(|(name, text)| format!("\"{name}\": {}", value(name, text, index % 2 == 0)));
        objects.push(format!("{{{}}}", fields.collect::<Vec<_>>().join(", ")));
    }
    format!("{{\"rows\": [{}]}}", objects.join(",\n"))
}

fn json_columns(rows: &[Row]) -> String {
    let names: Vec<&str> = rows[0].iter().map(|(name, _)| *name).collect();
    let column = |at: usize| {
        let values = rows.iter().map(|row| value(row[at].0, &row[at].1, true));
        format!("\"{}\": [{}]", names[at], values.collect::<Vec<_>>().join(","))
    };
    let columns: Vec<String> = (0..names.len()).map(column).collect();
    format!("{{\"columns\": {{{}}}}}", columns.join(", "))
}

fn bits(scores: &[f32]) -> Vec<u32> {
    scores.iter().map(|score| score.to_bits()).collect()
}

/// Scores of JSON rows are those of the same CSV rows, in batches of any size.
fn check_equal(name: &str, kind: &str) {
    let place = Place::new(name, kind);
    let rows = rows(7, 400);
    let expected = place.predict(&rows);
    let serving = place.serve("--threads 2");
    let mut connection = serving.connect();
    for size in [1, 2, 7, 50, 63, 64, 65, 130, 400] {
        let mut got = Vec::new();
        for part in rows[..if size == 1 { 60 } else { 400 }].chunks(size) {
            got.extend(connection.scores(&json_rows(part)).1);
        }
        assert_eq!(bits(&got), bits(&expected[..got.len()]), "{kind}: batches of {size}");
        let got = connection.scores(&json_columns(&rows[..size])).1;
        assert_eq!(bits(&got), bits(&expected[..size]), "{kind}: {size} rows as columns");
    }
    // A single row of a file, too.
    let few: Vec<f32> = rows[..20].chunks(1).flat_map(|row| place.predict(row)).collect();
    assert_eq!(bits(&few), bits(&expected[..20]), "{kind}: files of a row");
    drop(connection);
    serving.stop();
}

#[test]
fn scores_are_those_of_predict_dcn_v2() {
    check_equal("dcn_v2", "dcn_v2");
}

#[test]
fn scores_are_those_of_predict_wide_deep() {
    check_equal("wide_deep", "wide_deep");
}

#[test]
fn scores_are_those_of_predict_deepfm() {
    check_equal("deepfm", "deepfm");
}

#[test]
fn scores_are_those_of_predict_wide_layers() {
    check_equal("wide_layers", "kind = \"wide_layers\"\nnorm = \"batch\"");
}

#[test]
fn requests_are_checked_and_counted() {
    let place = Place::new("limits", "mlp");
    let serving = place.serve("--rows 100 --body 64KiB");
    let mut connection = serving.connect();
    let health = connection.get("/health");
    assert_eq!((health.code, health.body.as_str()), (200, "{\"status\":\"ready\"}\n"));
    let model = connection.get("/v1/model").json();
    assert_eq!((model["task"].as_str(), model["version"].as_u64()), (Some("binary"), Some(1)));
    assert_eq!(model["columns"][0]["name"], "age");
    assert!(model["report"]["report"]["all"]["auc"].is_number(), "{model}");

    let many = json_rows(&rows(1, 101));
    let nested = format!("{{\"rows\": [{{\"age\": {}", "[".repeat(500));
    for (body, code, part) in [
        ("", 400, "not valid JSON"),
        ("[]", 400, "not valid JSON"),
        ("{\"lines\": []}", 400, "'rows' or 'columns'"),
        ("{\"rows\": [{\"age\": 3}", 400, "',' or ']'"),
        ("{\"rows\": [{\"age\": 3}]} x", 400, "not valid JSON"),
        ("{\"rows\": [{}, {\"agee\": 3}]}", 400, "did you mean 'age'?"),
        ("{\"rows\": [{}, {\"age\": \"old\"}]}", 400, "'age' is not a finite"),
        ("{\"rows\": [{\"city\": {\"name\": 1}}]}", 400, "'city' is an object"),
        ("{\"rows\": [{\"city\": [\"a\", \"b\"]}]}", 400, "list of values"),
        ("{\"rows\": [{\"age\": 1, \"age\": 2}]}", 400, "duplicate key 'age'"),
        ("{\"columns\": {\"age\": [1, 2], \"city\": [\"x\"]}}", 400, "different numbers"),
        ("{\"columns\": {\"age\": 1}}", 400, "not valid JSON"),
        (&nested, 413, "nested too deeply"),
        (&many, 413, "too many rows"),
        (&" ".repeat(70_000), 413, "body is too long"),
    ] {
        let mut connection = serving.connect();
        let answer = connection.post(body);
        assert_eq!(answer.code, code, "{body:.60}: {}", answer.body);
        assert!(answer.body.contains(part), "{body:.60}: no '{part}' in {}", answer.body);
    }
    let wrong = connection.post("{\"rows\": [{}, {\"age\": \"old\"}]}").json();
    assert_eq!(
        (&wrong["row"], &wrong["column"], &wrong["got"]),
        (&1.into(), &"age".into(), &"\"old\"".into())
    );
    // The label and the columns that are no features are ignored.
    let (_, scores) = connection.scores("{\"rows\": [{\"y\": \"yes\", \"day\": 5}, {}]}");
    assert_eq!(scores[0].to_bits(), scores[1].to_bits());
    assert!(connection.scores("{\"rows\": []}").1.is_empty());

    connection.send("GET", "/v1/predict", b"");
    let answer = connection.answer();
    assert!(answer.code == 405 && answer.head.contains("allow: post"), "{}", answer.head);
    let answer = connection.get("/v1/predic");
    assert!(answer.code == 404 && answer.body.contains("/v1/predict"), "{}", answer.body);
    let metrics = connection.get("/metrics").body;
    for part in ["code=\"400\"} 13", "code=\"413\"} 3", "fleet_rows_total 2\n", "model_version 1"] {
        assert!(metrics.contains(part), "no '{part}' in:\n{metrics}");
    }
    drop(connection);
    serving.stop();
}

#[test]
fn slow_and_many_clients_do_not_block_others() {
    let place = Place::new("slow", "mlp");
    let serving = place.serve("--queue 1 --threads 1");
    let mut slow: Vec<TcpStream> =
        (0..50).map(|_| TcpStream::connect(&serving.address).unwrap()).collect();
    for (at, stream) in slow.iter_mut().enumerate() {
        let part: &[u8] = match at % 3 {
            0 => b"",
            1 => b"POST /v1/predict HTT",
            _ => b"POST /v1/predict HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{\"rows\":",
        };
        stream.write_all(part).unwrap();
    }
    let body = json_rows(&rows(3, 4000));
    let begin = Instant::now();
    let (mut answered, mut full) = (0, 0);
    std::thread::scope(|threads| {
        let running: Vec<_> = (0..8)
            .map(|_| {
                threads.spawn(|| {
                    let mut connection = serving.connect();
                    (0..5).map(|_| connection.post(&body)).collect::<Vec<_>>()
                })
            })
            .collect();
        for answer in running.into_iter().flat_map(|thread| thread.join().unwrap()) {
            match answer.code {
                200 => answered += 1,
                503 => {
                    full += 1;
                    assert!(answer.head.contains("retry-after: 1"), "{}", answer.head);
                }
                code => panic!("{code}: {}", answer.body),
            }
        }
    });
    assert!(answered > 0 && full > 0, "{answered} answered, {full} refused");
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    drop(slow);
    serving.stop();
}

#[test]
fn other_machines_need_a_token() {
    let place = Place::new("token", "mlp");
    let output = Command::new(FLEET)
        .current_dir(&place.folder)
        .args(["serve", "model", "--listen", "0.0.0.0:0"])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("--token-file"), "{text}");
    fs::write(place.folder.join("token"), "0123456789abcdef0123\n").unwrap();
    let serving = place.serve("--token-file token");
    let mut connection = serving.connect();
    assert_eq!(connection.get("/health").code, 200);
    let body = json_rows(&rows(3, 2));
    for headers in ["", "authorization: Bearer 0123456789abcdef0124\r\n"] {
        connection.headers = headers.to_string();
        let answer = connection.post(&body);
        assert!(answer.code == 401 && answer.head.contains("www-authenticate"), "{}", answer.head);
        assert_eq!(connection.get("/metrics").code, 401);
    }
    connection.headers = "authorization: Bearer 0123456789abcdef0123\r\n".to_string();
    assert_eq!(connection.post(&body).code, 200);
    drop(connection);
    serving.stop();
}

#[test]
fn a_model_is_replaced_without_a_failed_request() {
    let place = Place::new("reload", "mlp");
    let rows = rows(5, 50);
    let mut versions = HashMap::from([(1, bits(&place.predict(&rows)))]);
    let serving = place.serve("--threads 2");
    let body = json_rows(&rows);
    let stop = AtomicBool::new(false);
    let answers: Vec<(u64, Vec<f32>)> = std::thread::scope(|threads| {
        let load = || {
            let (mut connection, mut seen) = (serving.connect(), Vec::new());
            while !stop.load(Ordering::Relaxed) {
                seen.push(connection.scores(&body));
            }
            seen
        };
        let running: Vec<_> = (0..2).map(|_| threads.spawn(load)).collect();
        let mut connection = serving.connect();
        for version in 2..=6 {
            place.train("mlp", version);
            versions.insert(version, bits(&place.predict(&rows)));
            let begin = Instant::now();
            if version % 2 == 0 {
                serving.signal(rustix::process::Signal::HUP);
            }
            while connection.get("/v1/model").json()["version"].as_u64() != Some(version) {
                assert!(
                    begin.elapsed() < Duration::from_secs(20),
                    "version {version} is not served"
                );
                std::thread::sleep(Duration::from_millis(20));
            }
            // Each worker has changed to it.
            let served = (0..10).map(|_| connection.scores(&body).0);
            assert!(served.into_iter().all(|served| served == version));
        }
        stop.store(true, Ordering::Relaxed);
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(versions.values().collect::<std::collections::HashSet<_>>().len(), 6);
    assert!(answers.len() > 100, "{}", answers.len());
    for (version, scores) in &answers {
        assert_eq!(&bits(scores), &versions[version], "version {version}");
    }

    // A version with a damaged file leaves the last good one.
    let model = place.folder.join("model");
    let tensors = fs::read_dir(model.join("program")).unwrap();
    let tensors = tensors.map(|file| file.unwrap().path());
    for file in tensors.filter(|path| path.extension().is_some_and(|it| it == "safetensors")) {
        let mut bytes = fs::read(&file).unwrap();
        let middle = bytes.len() - 20;
        bytes[middle] ^= 0x55;
        fs::write(&file, bytes).unwrap();
    }
    let version = fs::read_to_string(model.join("version.json")).unwrap();
    let newer = version.replace("\"version\":6", "\"version\":7");
    assert_ne!(newer, version);
    fs::write(model.join("version.json"), newer).unwrap();
    let mut connection = serving.connect();
    let begin = Instant::now();
    while !connection.get("/metrics").body.contains("fleet_reload_failures_total 1\n") {
        assert!(begin.elapsed() < Duration::from_secs(20), "the failure is not counted");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(bits(&connection.scores(&body).1), versions[&6]);
    drop(connection);
    let said = serving.stop();
    assert!(said.contains("serving version 6") && said.contains("version 6 stays"), "{said}");
}

#[test]
fn a_server_that_is_stopped_answers_what_it_accepted() {
    let place = Place::new("stop", "mlp");
    let serving = place.serve("--threads 1");
    let body = json_rows(&rows(3, 4000));
    let mut connections: Vec<Connection> = (0..6).map(|_| serving.connect()).collect();
    for connection in &mut connections {
        connection.send("POST", "/v1/predict", body.as_bytes());
    }
    // The bodies are read when the first one is answered.
    let first = connections[0].answer();
    let mut idle = serving.connect();
    assert_eq!(idle.get("/health").code, 200);
    serving.signal(rustix::process::Signal::TERM);
    for connection in &mut connections[1..] {
        let answer = connection.answer();
        assert_eq!((answer.code, answer.scores().len()), (200, 4000));
        assert_eq!(answer.body, first.body);
    }
    serving.stop();
}

#[test]
fn classes_have_names_and_scores() {
    let place = Place::new("classes", "mlp");
    let job = JOB.replace("KIND", "mlp").replace("SEED", "1").replace("HIDDEN", "32");
    let job = job.replace(
        "y = { role = \"label\", positive = \"yes\" }",
        "y = { role = \"label\", kind = \"category\", classes = [\"no\", \"yes\"] }",
    );
    let job = job.replace("[model]", "[task]\nkind = \"multi_class\"\n[model]");
    fs::write(place.folder.join("job.toml"), job).unwrap();
    place.run("job train job.toml --threads 1");
    let rows = rows(9, 10);
    fs::write(place.folder.join("new.csv"), csv(&rows)).unwrap();
    place.run("predict model --data new.csv --out scores.csv");
    place.run("predict model --data new.csv --out scores.parquet");
    let scores = fs::read_to_string(place.folder.join("scores.csv")).unwrap();
    let expected: Vec<f32> = scores
        .lines()
        .skip(1)
        .flat_map(|line| line.split(',').map(|it| it.parse::<f32>().unwrap()))
        .collect();
    let serving = place.serve("");
    let mut connection = serving.connect();
    let answer = connection.post(&json_rows(&rows));
    let json = answer.json();
    assert_eq!(json["classes"], serde_json::json!(["no", "yes"]));
    let got: Vec<f32> = json["scores"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|row| row.as_array().unwrap().iter().map(|it| it.to_string().parse().unwrap()))
        .collect();
    assert_eq!(got.len(), 20);
    assert_eq!(bits(&got), bits(&expected));
    let parquet = fs::read(place.folder.join("scores.parquet")).unwrap();
    assert!(parquet.starts_with(b"PAR1") && parquet.ends_with(b"PAR1"));
    drop(connection);
    serving.stop();
}

#[cfg(feature = "grpc")]
mod grpc {
    use super::*;
    use fleet_serve::client::PredictClient;
    use fleet_serve::message::{Column, PredictRequest};

    /// Returns rows as columns.
    pub fn request(rows: &[Row], is_list: bool) -> PredictRequest {
        let column = |at: usize| {
            let name = rows[0][at].0;
            let texts = rows.iter().map(|row| row[at].1.clone());
            let mut column = Column { name: name.to_string(), ..Column::default() };
            match name {
                "height" => column.numbers = texts.map(|text| text.parse().unwrap()).collect(),
                "user" => column.integers = texts.map(|text| text.parse().unwrap()).collect(),
                "tags" if is_list => {
                    for text in texts {
                        let words = text.split('|').filter(|word| !word.is_empty());
                        let before = column.texts.len();
                        column.texts.extend(words.map(str::to_string));
                        column.lengths.push((column.texts.len() - before) as u32);
                    }
                }
                _ => column.texts = texts.collect(),
            }
            column
        };
        PredictRequest { columns: (0..rows[0].len()).map(column).collect() }
    }

    #[test]
    fn it_gives_the_same_scores() {
        let place = Place::new("grpc", "dcn_v2");
        let rows = rows(7, 130);
        let expected = place.predict(&rows);
        fs::write(place.folder.join("token"), "0123456789abcdef0123\n").unwrap();
        let serving = place.serve("--grpc 127.0.0.1:0 --token-file token --rows 130");
        let address = &serving.grpc;
        let mut client = PredictClient::connect(address, Some("0123456789abcdef0123")).unwrap();
        for size in [1, 7, 50, 130] {
            let answer = client.predict(request(&rows[..size], size % 2 == 0)).unwrap();
            assert_eq!((answer.version, answer.scores_per_row), (1, 1));
            assert_eq!(bits(&answer.scores), bits(&expected[..size]), "{size} rows");
        }
        let model = client.model().unwrap();
        assert!(model.version == 1 && model.json.contains("\"age\""), "{model:?}");
        for (change, part) in [
            (Column { name: "agee".into(), ..Column::default() }, "did you mean 'age'?"),
            (
                Column { name: "age".into(), texts: vec!["old".into()], ..Column::default() },
                "row 0",
            ),
            (Column { name: "tags".into(), lengths: vec![3], ..Column::default() }, "lengths"),
            (
                Column { name: "age".into(), numbers: vec![1.0; 131], ..Column::default() },
                "too many",
            ),
            (
                Column {
                    name: "age".into(),
                    numbers: vec![1.0],
                    integers: vec![1],
                    ..Column::default()
                },
                "two kinds",
            ),
        ] {
            let error = client.predict(PredictRequest { columns: vec![change] }).unwrap_err();
            assert!(error.to_string().contains(part), "no '{part}' in {error}");
        }
        let mut other = PredictClient::connect(address, None).unwrap();
        let error = other.predict(request(&rows[..1], false)).unwrap_err().to_string();
        assert!(error.contains("no valid token"), "{error}");
        let mut connection = serving.connect();
        connection.headers = "authorization: Bearer 0123456789abcdef0123\r\n".to_string();
        let metrics = connection.get("/metrics").body;
        assert!(metrics.contains("protocol=\"grpc\",code=\"200\"} 5"), "{metrics}");
        drop((client, other, connection));
        serving.stop();
    }
}
