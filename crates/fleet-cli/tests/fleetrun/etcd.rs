//! Jobs whose machines meet in etcd: always in a stand-in of a few lines, and in a real etcd if the
//! variable FLEET_ETCD names its program.

use crate::machines::{ELASTIC, Machine, TOKEN, WHO};
use crate::{signal, until};
use serde_json::{Value, json};
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[test]
fn machines_meet_and_leave_nothing() {
    each(|name, server| {
        let line = |host: u8| {
            format!(
                "--elastic_server {} --job_id {name}-meet --nnodes 2 --host 127.0.0.{host} job.py",
                server.address()
            )
        };
        let first = Machine::start(&format!("etcd_{name}/a"), WHO, &line(1), TOKEN);
        let second = Machine::start(&format!("etcd_{name}/b"), WHO, &line(2), TOKEN);
        let first = first.check(0, &["machines meet in etcd at 127.0.0.1:", "done in"]);
        let second = second.check(0, &["done in"]);
        let mut lines = [first.read("log/workerlog.0"), second.read("log/workerlog.0")];
        lines.sort();
        assert!(
            lines[0].starts_with("0 of 2 at 127.0.0.") && lines[1].starts_with("1 of 2"),
            "{lines:?}"
        );
        if let Server::Small(small) = server {
            until("an etcd as it was", || small.keys() == 0);
        }
    });
}

#[test]
fn the_lead_passes_to_another_machine() {
    each(|name, server| {
        let line = |host: u8| {
            format!(
                "--elastic_server {} --job_id {name}-lead --nnodes 1:2 --elastic_timeout 0.2 \
                 --stop_timeout 5 --host 127.0.0.{host} job.py",
                server.address()
            )
        };
        let start = |host: u8, letter: &str| {
            Machine::start(&format!("etcd_lead_{name}/{letter}"), ELASTIC, &line(host), TOKEN)
        };
        let mut first = start(1, "a");
        until("a start alone", || first.place.path("up.0.0.of.1").exists());
        let mut second = start(2, "b");
        until("a start of two", || second.place.path("up.1.1.of.2").exists());
        first.child.kill().unwrap();
        first.child.wait().unwrap();
        until("a start under another lead", || second.place.path("up.2.0.of.1").exists());
        let third = start(3, "c");
        until("a start of two again", || third.place.path("up.3.1.of.2").exists());
        signal(second.child.id(), "TERM");
        assert_eq!(second.child.wait().unwrap().code(), Some(143));
        until("a start under the third", || third.place.path("up.4.0.of.1").exists());
        std::fs::write(third.place.path("go"), "").unwrap();
        let said = second.place.read("said");
        for part in [
            "this machine leads now",
            "machine 127.0.0.1, which led the job, is lost: its launcher has sent no heartbeat for \
             2 s",
        ] {
            assert!(said.contains(part), "'{part}' is not in:\n{said}");
        }
        third.check(0, &["machine 127.0.0.2 was stopped by its user", "this machine leads now"]);
    });
}

#[test]
fn a_fixed_number_ends_with_the_loss_of_its_leader() {
    each(|name, server| {
        let line = |host: u8| {
            format!(
                "--elastic_server {} --job_id {name}-off --nnodes 2 --stop_timeout 5 \
                 --host 127.0.0.{host} job.py",
                server.address()
            )
        };
        let mut first = Machine::start(&format!("etcd_off_{name}/a"), ELASTIC, &line(1), TOKEN);
        // So that the first machine leads.
        until("the first machine", || first.place.read("said").contains("waiting for machines"));
        let second = Machine::start(&format!("etcd_off_{name}/b"), ELASTIC, &line(2), TOKEN);
        until("a start", || second.place.path("up.0.1.of.2").exists());
        first.child.kill().unwrap();
        first.child.wait().unwrap();
        second.check(1, &["error: machine 127.0.0.1, which led the job, is lost: "]);
    });
}

#[test]
fn an_etcd_that_is_not_there() {
    let free = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = free.local_addr().unwrap().port();
    drop(free);
    let line = format!("--elastic_server 127.0.0.1:{port} --nnodes 2 --join_timeout 0.5 job.py");
    let lost = Machine::start("etcd_none", WHO, &line, TOKEN);
    lost.check(
        1,
        &[
            "waiting for etcd: cannot reach etcd at 127.0.0.1:",
            "is etcd running there? --elastic_server sets its address",
        ],
    );
    // Another kind of server may listen there.
    let other = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = other.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in other.incoming() {
            let _ = stream.unwrap().write_all(b"SSH-2.0-OpenSSH\r\n\r\n");
        }
    });
    let line = format!("--elastic_server 127.0.0.1:{port} --nnodes 2 --join_timeout 0.5 job.py");
    Machine::start("etcd_other", WHO, &line, TOKEN)
        .check(1, &["etcd at 127.0.0.1:", "is etcd running there"]);
}

/// Runs a test with the stand-in, and with a real etcd if there is one.
fn each(test: impl Fn(&str, &Server)) {
    test("small", &Server::Small(Small::start()));
    if let Some(program) = std::env::var_os("FLEET_ETCD") {
        test("real", &Real::start(std::path::Path::new(&program)));
    }
}

enum Server {
    Small(Small),
    Real(Real),
}

impl Server {
    fn address(&self) -> String {
        match self {
            Server::Small(small) => small.address.clone(),
            Server::Real(real) => real.address.clone(),
        }
    }
}

struct Real {
    child: Child,
    address: String,
}

impl Real {
    fn start(program: &std::path::Path) -> Server {
        let free = || {
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            listener.local_addr().unwrap().to_string()
        };
        let (address, peer) = (free(), free());
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("etcd-{}", address.replace(':', "-")));
        let url = |address: &str| format!("http://{address}");
        let child = Command::new(program)
            .args(["--data-dir".as_ref(), folder.as_os_str()])
            .args([
                "--listen-client-urls",
                &url(&address),
                "--advertise-client-urls",
                &url(&address),
            ])
            .args(["--listen-peer-urls", &url(&peer), "--initial-advertise-peer-urls", &url(&peer)])
            .args(["--initial-cluster", &format!("default={}", url(&peer))])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        until("etcd", || TcpStream::connect(&address).is_ok());
        Server::Real(Real { child, address })
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stand-in with the parts of etcd's gateway that the launcher uses.
struct Small {
    address: String,
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    revision: i64,
    entries: BTreeMap<Vec<u8>, Entry>,
    /// Duration and deadline of each lease.
    leases: HashMap<i64, (Duration, Instant)>,
}

struct Entry {
    value: String,
    lease: i64,
    created: i64,
    modified: i64,
}

impl Small {
    fn start() -> Small {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State { revision: 1, ..State::default() }));
        let shared = Arc::clone(&state);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream, &state));
            }
        });
        Small { address, state }
    }

    fn keys(&self) -> usize {
        let mut state = self.state.lock().unwrap();
        state.expire();
        state.entries.len()
    }
}

fn serve(mut stream: TcpStream, state: &Mutex<State>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().ok()?);
    let (mut line, mut length) = (String::new(), 0);
    reader.read_line(&mut line).ok()?;
    let path = line.split(' ').nth(1)?.to_string();
    loop {
        line.clear();
        reader.read_line(&mut line).ok()?;
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("content-length") => {
                length = value.parse().ok()?;
            }
            Some(_) => {}
            None => break,
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let answer = state.lock().ok()?.answer(&path, &serde_json::from_slice(&body).ok()?);
    let text = match &answer {
        // Streams use chunked encoding.
        Some(answer) if path.ends_with("keepalive") => {
            let body = format!("{answer}\n");
            format!(
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            )
        }
        Some(answer) => {
            let body = answer.to_string();
            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
        }
        None => "HTTP/1.1 404 Not Found\r\n\r\n{\"error\":\"not found\",\"code\":5}".to_string(),
    };
    stream.write_all(text.as_bytes()).ok()
}

impl State {
    fn answer(&mut self, path: &str, body: &Value) -> Option<Value> {
        self.expire();
        let id = || body["ID"].as_str()?.parse::<i64>().ok();
        let header = |state: &State| json!({ "revision": state.revision.to_string() });
        Some(match path {
            "/v3/kv/range" => self.range(body)?,
            "/v3/kv/put" => {
                self.put(body)?;
                json!({ "header": header(self) })
            }
            "/v3/kv/txn" => {
                let holds = self.holds(&body["compare"][0])?;
                if holds {
                    self.put(&body["success"][0]["request_put"])?;
                }
                // Like etcd, omits fields that are false.
                match holds {
                    true => json!({ "header": header(self), "succeeded": true }),
                    false => json!({ "header": header(self) }),
                }
            }
            "/v3/lease/grant" => {
                let ttl = Duration::from_secs(body["TTL"].as_u64()?);
                let id = self.leases.len() as i64 + self.revision * 1000 + 1;
                self.leases.insert(id, (ttl, Instant::now() + ttl));
                let (id, ttl) = (id.to_string(), ttl.as_secs().to_string());
                json!({ "header": header(self), "ID": id, "TTL": ttl })
            }
            "/v3/lease/keepalive" => match self.leases.get_mut(&id()?) {
                Some((ttl, until)) => {
                    *until = Instant::now() + *ttl;
                    let (id, ttl) = (id()?.to_string(), ttl.as_secs().to_string());
                    json!({ "result": { "ID": id, "TTL": ttl } })
                }
                None => json!({ "result": { "ID": id()?.to_string() } }),
            },
            "/v3/lease/revoke" => {
                self.leases.remove(&id()?)?;
                self.expire();
                json!({ "header": header(self) })
            }
            _ => return None,
        })
    }

    fn range(&self, body: &Value) -> Option<Value> {
        let from = decoded(body["key"].as_str()?);
        let to = body["range_end"].as_str().map(decoded);
        let wanted = |key: &&Vec<u8>| match &to {
            Some(to) => **key >= from && *key < to,
            None => **key == from,
        };
        let entries = self.entries.iter().filter(|(key, _)| wanted(key));
        let found: Vec<Value> = entries
            .map(|(key, entry)| {
                let revision = entry.modified.to_string();
                json!({ "key": encoded(key), "value": entry.value, "mod_revision": revision })
            })
            .collect();
        Some(json!({ "header": { "revision": self.revision.to_string() }, "kvs": found }))
    }

    fn put(&mut self, body: &Value) -> Option<()> {
        let lease = body["lease"].as_str()?.parse().ok()?;
        self.leases.get(&lease)?;
        self.revision += 1;
        let key = decoded(body["key"].as_str()?);
        let created = self.entries.get(&key).map_or(self.revision, |entry| entry.created);
        let value = body["value"].as_str()?.to_string();
        self.entries.insert(key, Entry { value, lease, created, modified: self.revision });
        Some(())
    }

    fn holds(&self, compare: &Value) -> Option<bool> {
        let entry = self.entries.get(&decoded(compare["key"].as_str()?));
        Some(match compare["target"].as_str()? {
            "CREATE" => entry.map_or(0, |entry| entry.created) == 0,
            "VALUE" => entry.is_some_and(|entry| compare["value"] == entry.value),
            _ => return None,
        })
    }

    fn expire(&mut self) {
        let now = Instant::now();
        self.leases.retain(|_, (_, until)| *until > now);
        let before = self.entries.len();
        self.entries.retain(|_, entry| self.leases.contains_key(&entry.lease));
        self.revision += i64::from(self.entries.len() < before);
    }
}

const DIGITS: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

fn decoded(text: &str) -> Vec<u8> {
    let (mut word, mut bits, mut bytes) = (0u32, 0, Vec::new());
    for digit in text.chars().filter_map(|c| DIGITS.find(c)) {
        (word, bits) = (word << 6 | digit as u32, bits + 6);
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
        }
    }
    bytes
}

fn encoded(bytes: &[u8]) -> String {
    let bits: String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let digit = |six: &str| {
        let index = usize::from_str_radix(&format!("{six:0<6}"), 2).unwrap();
        DIGITS.as_bytes()[index] as char
    };
    let mut text: String =
        (0..bits.len()).step_by(6).map(|at| digit(&bits[at..bits.len().min(at + 6)])).collect();
    while !text.len().is_multiple_of(4) {
        text.push('=');
    }
    text
}
