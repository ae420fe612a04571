//! Jobs whose data is in an object store: a test server that speaks a small part of S3, and serves
//! the same objects to plain web clients.

use super::*;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A bucket `clicks`.
struct Bucket {
    objects: BTreeMap<String, Vec<u8>>,
    requests: Mutex<Vec<String>>,
    closed: AtomicBool,
}

struct Server {
    address: SocketAddr,
    bucket: Arc<Bucket>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(objects: impl IntoIterator<Item = (&'static str, Vec<u8>)>) -> Server {
        let objects = objects.into_iter().map(|(key, bytes)| (key.to_string(), bytes)).collect();
        let (requests, closed) = (Mutex::default(), AtomicBool::new(false));
        let bucket = Arc::new(Bucket { objects, requests, closed });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, served) = (listener.local_addr().unwrap(), Arc::clone(&bucket));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if served.closed.load(Ordering::SeqCst) {
                    break;
                }
                let bucket = Arc::clone(&served);
                // The thread ends when the client closes its connection.
                std::thread::spawn(move || bucket.serve(stream));
            }
        });
        Server { address, bucket, thread: Some(thread) }
    }

    fn settings(&self) -> Vec<(String, String)> {
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_string()),
            ("AWS_REGION", "nowhere-1".to_string()),
            ("AWS_ACCESS_KEY_ID", "key".to_string()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_string()),
        ];
        settings.map(|(name, value)| (name.to_string(), value)).to_vec()
    }

    fn lists(&self) -> usize {
        let requests = self.bucket.requests.lock().unwrap();
        requests.iter().filter(|request| request.contains("list-type")).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.bucket.closed.store(true, Ordering::SeqCst);
        // Wakes the thread, which then sees that the server is closed.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Bucket {
    fn serve(&self, mut stream: TcpStream) {
        let mut from = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = head(&mut from) {
            let mut words = head[0].split(' ');
            let (method, target) = (words.next().unwrap(), words.next().unwrap());
            self.requests.lock().unwrap().push(format!("{method} {target}"));
            let range = head.iter().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("range").then(|| value.to_string())
            });
            let answer = match (method, target.split_once('?')) {
                ("GET", Some(("/clicks", query))) => self.list(query),
                ("GET" | "HEAD", None) => self.object(target, range),
                _ => answer("405 Method Not Allowed", "", b""),
            };
            let body = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
            let end = if method == "HEAD" { body } else { answer.len() };
            if stream.write_all(&answer[..end]).is_err() {
                return;
            }
        }
    }

    fn list(&self, query: &str) -> Vec<u8> {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let prefix = pairs.find(|(name, _)| *name == "prefix");
        let prefix = prefix.map(|(_, value)| value.replace("%2F", "/")).unwrap_or_default();
        let mut page = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
        for (key, bytes) in self.objects.iter().filter(|(key, _)| key.starts_with(&prefix)) {
            let size = bytes.len();
            let _ = write!(
                page,
                "<Contents><Key>{key}</Key><LastModified>2024-02-29T12:00:00.000Z</LastModified>\
                 <ETag>\"1\"</ETag><Size>{size}</Size></Contents>"
            );
        }
        answer("200 OK", "", (page + "</ListBucketResult>").as_bytes())
    }

    fn object(&self, target: &str, range: Option<String>) -> Vec<u8> {
        let found = target.strip_prefix("/clicks/").and_then(|key| self.objects.get(key));
        let Some(bytes) = found else { return answer("404 Not Found", "", b"") };
        let tag = "ETag: \"1\"\r\n";
        let Some(range) = range else { return answer("200 OK", tag, bytes) };
        let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let end = end.parse().map_or(bytes.len(), |last: usize| last + 1);
        let place = format!("{tag}Content-Range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
        answer("206 Partial Content", &place, &bytes[start..end])
    }
}

/// Reads the header lines of a request.
fn head(from: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => return Some(lines),
            line => lines.push(line.to_string()),
        }
    }
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\
         Last-Modified: Thu, 29 Feb 2024 12:00:00 GMT\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    answer
}

/// Files of a job, and the same as objects.
fn parts() -> [(&'static str, Vec<u8>); 4] {
    let file = |seed| rows(seed, 1000).into_bytes();
    [
        ("days/part-1.csv", file(1)),
        ("days/part-2.csv", file(2)),
        ("days/notes.txt", b"not a part".to_vec()),
        ("new/test.csv", file(3)),
    ]
}

/// A job over objects, or over the same files.
fn job(name: &str, root: &str, rest: &str) -> Place {
    let place = binary_job(name, rest);
    let text = place.read("job.toml");
    let text = text.replace("\"train.csv\"", &format!("[\"{root}days/part-*.csv\"]"));
    let text = text.replace("\"test.csv\"", &format!("\"{root}new/test.csv\""));
    fs::write(place.0.join("job.toml"), text).unwrap();
    place
}

/// The files of a model that follow from the job's rows alone.
fn model(place: &Place) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let bytes = fs::read(place.0.join("model").join(&name)).unwrap();
        (name, bytes)
    };
    let mut names: Vec<String> = fs::read_dir(place.0.join("model/program"))
        .unwrap()
        .map(|entry| format!("program/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    names.push("features.json".to_string());
    names.sort();
    names.into_iter().map(read).collect()
}

/// Rows have the same parts, and the model the same bits, wherever the files are.
#[test]
fn objects_train_the_same_model_as_files() {
    let server = Server::start(parts());
    let settings = server.settings();
    for (name, line) in [
        ("memory", "fleet job train job.toml --threads 2"),
        ("ranks", "fleetrun --nproc_per_node 2 job:job.toml"),
        ("streams", "fleet job train job.toml --threads 2"),
    ] {
        // Rows are streamed if they do not fit into memory.
        let streams = |place: Place| {
            let memory = if name == "streams" { "memory = \"1KB\"\nmissing" } else { "missing" };
            let text = place.read("job.toml").replace("missing", memory);
            fs::write(place.0.join("job.toml"), text).unwrap();
            place
        };
        let local = streams(job(&format!("objects-{name}-files"), "", SHORT));
        for (key, bytes) in parts() {
            let path = local.0.join(key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let remote = job(&format!("objects-{name}"), "s3://clicks/", SHORT);
        let remote = streams(remote).with(&settings);
        if name == "memory" {
            let said = remote.run("fleet job check job.toml");
            assert!(said.contains("no problems, 2 k rows of 2 files"), "{said}");
        }
        local.run(line);
        remote.run(line);
        assert!(remote.measure("auc") > 0.85, "{}", remote.measure("auc"));
        assert_eq!(local.measure("auc"), remote.measure("auc"), "{name}");
        let (local, remote) = (model(&local), model(&remote));
        assert!(local == remote, "{name}: the models differ");
    }
}

#[test]
fn a_killed_job_resumes_with_its_objects() {
    let server = Server::start(parts());
    let place = |name: &str| {
        let place = job(name, "s3://clicks/", resume::LONG).with(&server.settings());
        let memory = "memory = \"1KB\"\nwindow = 500\nmissing";
        fs::write(place.0.join("job.toml"), place.read("job.toml").replace("missing", memory))
            .unwrap();
        place
    };
    let (whole, killed) = (place("objects-whole"), place("objects-killed"));
    let line = "fleet job train job.toml --threads 1";
    whole.run(line);
    resume::kill_after_checkpoint(&killed, line, &["checkpoint.json"]);
    let said = killed.run(line);
    assert!(said.contains("resumed after step"), "{said}");
    assert!(model(&whole) == model(&killed));
    assert_eq!(resume::report(&killed), resume::report(&whole));
}

#[test]
fn objects_are_predicted_measured_and_described() {
    let server = Server::start(parts());
    let place = job("objects-predicted", "s3://clicks/", SHORT).with(&server.settings());
    place.run("fleet job train job.toml --threads 2");
    let by_bucket = place.predict("s3://clicks/new/*.csv");
    assert_eq!(by_bucket.len(), 1000);
    // A plain name is not listed, so that web servers will do.
    let lists = server.lists();
    let web = format!("http://{}/clicks/new/test.csv", server.address);
    assert_eq!(place.predict(&web), by_bucket);
    assert_eq!(server.lists(), lists);
    fs::write(place.0.join("test.csv"), &parts()[3].1).unwrap();
    assert_eq!(place.predict("test.csv"), by_bucket);
    let said = place.run("fleet job report model --data s3://clicks/new/test.csv");
    assert!(said.contains(&format!("AUC         {:.4}", place.measure("auc"))), "{said}");
    let said = place.run("fleet job init --data s3://clicks/days/part-*.csv --out init.toml");
    assert!(said.contains("the label is 'y'"), "{said}");
    assert!(place.read("init.toml").contains("train = [\"s3://clicks/days/part-*.csv\"]"));
    place.run("fleet job check init.toml");
}

/// Parquet files are read in parts: footers and columns.
#[test]
fn parquet_objects_are_read() {
    let classes = "[columns]\nkind = { role = \"label\", kind = \"category\", \
        classes = [\"a\", \"b\", \"c\"] }\ncity = { kind = \"category\" }\n[task]\n\
        kind = \"multi_class\"\n";
    let place = Place::new("objects-classes", classes, SHORT);
    place.run("fleet job train job.toml --threads 2");
    place.run("fleet predict model --data train.csv --out scores.parquet");
    let bytes = fs::read(place.0.join("scores.parquet")).unwrap();
    let server = Server::start([("scores.parquet", bytes)]);
    let head = "[columns]\nscore_a = { role = \"label\" }\nscore_b = { kind = \"number\" }\n\
        score_c = { kind = \"number\" }\n[task]\nkind = \"regression\"\n";
    let place = Place::new("objects-parquet", head, SHORT).with(&server.settings());
    let text = place.read("job.toml").replace("\"train.csv\"", "\"s3://clicks/*.parquet\"");
    let text = text.replace("test = { files = [\"test.csv\"] }", "test = { share = 0.2 }");
    fs::write(place.0.join("job.toml"), text).unwrap();
    place.run("fleet job train job.toml --threads 2");
    // The scores of a row add up to 1.
    assert!(place.measure("r2") > 0.95, "{}", place.measure("r2"));
    assert_eq!(place.predict("s3://clicks/scores.parquet").len(), 3000);
}

#[test]
fn faults_of_objects_are_named() {
    let server = Server::start(parts());
    let place = job("objects-faults", "s3://clicks/", SHORT).with(&server.settings());
    let text = place.read("job.toml");
    let change = |from: &str, to: &str| {
        assert!(text.contains(from));
        fs::write(place.0.join("job.toml"), text.replace(from, to)).unwrap();
    };
    let web = format!("http://{}/clicks/days", server.address);
    for (from, to, expected) in [
        ("days/part-*", "years/part-*", "no object matches the pattern"),
        // A missing test is found before the training.
        ("new/test.csv", "new/none.csv", "s3://clicks/new/none.csv"),
        ("s3://clicks/days", &web, "give the name of each file"),
    ] {
        change(from, to);
        let said = place.fail("fleet job train job.toml");
        assert!(said.contains(expected) && !said.contains("epoch"), "{said}");
    }
    change("missing", "missing");
    for line in [
        "fleet job train job.toml --output s3://clicks/model",
        "fleet job check s3://clicks/job.toml",
        "fleet predict s3://clicks/model --data x.csv --out scores.csv",
    ] {
        let said = place.fail(line);
        assert!(said.contains("cannot be in an object store"), "{said}");
    }
}
