//! Connections of peers that do not belong to the job.

use fleet_base::ErrorKind;
use fleet_base::rng::Sequence;
use fleet_net::{
    HANDSHAKE_SPAN, Limits, Log, PENDING_MAX, PROTOCOL_VERSION, Store, StoreClient, StoreServer,
    Token, Vigilance,
};
use fleet_testhost::process;
use rustix::process::{Resource, Rlimit, setrlimit};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

fn long() -> Limits {
    Limits::within(Duration::from_secs(60))
}

fn server(token: &Token, log: Log) -> StoreServer {
    StoreServer::bind("127.0.0.1:0", token, Vigilance::default(), log).unwrap()
}

/// Sends `bytes` and reads until the server closes. Returns the bytes read and the own address.
fn send_and_read(server: &StoreServer, bytes: &[u8]) -> (Vec<u8>, String) {
    let mut stream = TcpStream::connect(server.address()).unwrap();
    let own = stream.local_addr().unwrap().to_string();
    // The server may close the connection before everything is sent.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend(&buffer[..count]);
    }
    (answer, own)
}

/// The first bytes of a header of this version.
fn magic(version: u16) -> Vec<u8> {
    [&b"FLEETNET"[..], &version.to_le_bytes()].concat()
}

/// Waits until the log has a line that contains all of `words`.
fn await_line(lines: &impl Fn() -> Vec<String>, words: &[&str]) -> String {
    let start = Instant::now();
    loop {
        let found = lines().into_iter().find(|line| words.iter().all(|word| line.contains(word)));
        if let Some(line) = found {
            return line;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no {words:?} in {:?}", lines());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn strangers_are_dropped_and_named() {
    let token = Token::generate().unwrap();
    let (log, lines) = Log::collect();
    let server = server(&token, log);

    let (answer, own) = send_and_read(&server, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    assert!(answer.is_empty(), "an unauthenticated peer gets no bytes");
    let words = ["dropped a connection from", &own, "does not speak Fleet's protocol", "GET / HT"];
    await_line(&lines, &words);

    let mut other_version = b"FLEETNET".to_vec();
    other_version.extend(9u16.to_le_bytes());
    other_version.resize(44, 0);
    let (answer, own) = send_and_read(&server, &other_version);
    assert_eq!(&answer[..8], b"FLEETNET", "another version of Fleet gets the version");
    await_line(
        &lines,
        &[&own, "protocol version mismatch", &format!("expected {PROTOCOL_VERSION}, got 9")],
    );

    let error = StoreClient::connect(server.address(), &Token::generate().unwrap(), &long());
    let error = error.err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "a retry cannot help");
    assert!(error.message().contains("rejected the job token"), "{error}");
    await_line(&lines, &["does not know the job token"]);

    // The server still works.
    StoreClient::connect(server.address(), &token, &long())
        .unwrap()
        .set("a", b"", &long())
        .unwrap();
}

#[test]
fn garbage_does_no_harm() {
    let token = Token::generate().unwrap();
    let server = server(&token, Log::silent());
    let mut random = Sequence::new(5, 0);
    for round in 0..200 {
        let mut bytes: Vec<u8> = (0..random.below(300)).map(|_| random.next_u64() as u8).collect();
        if round % 2 == 0 {
            // A valid start, and then an absurd length.
            let mut header = magic(PROTOCOL_VERSION);
            header.resize(44, 7);
            header.extend(&bytes);
            bytes = header;
        }
        let mut stream = TcpStream::connect(server.address()).unwrap();
        let _ = stream.write_all(&bytes);
    }
    StoreClient::connect(server.address(), &token, &long())
        .unwrap()
        .set("a", b"", &long())
        .unwrap();
}

/// Members can join while unauthenticated peers hold connections open, which are dropped in time.
#[test]
fn slow_strangers_hold_nothing_up() {
    let token = Token::generate().unwrap();
    let (log, lines) = Log::collect();
    let server = server(&token, log);
    let start = Instant::now();
    let mut slow: Vec<TcpStream> = (0..PENDING_MAX + 20)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address()).unwrap();
            stream.write_all(b"FLEET").unwrap();
            stream
        })
        .collect();
    let client = StoreClient::connect(server.address(), &token, &long()).unwrap();
    client.set("a", b"", &long()).unwrap();
    await_line(&lines, &["too many unauthenticated connections"]);
    let mut last = slow.pop().unwrap();
    last.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(last.read(&mut [0; 1]).unwrap_or(0), 0, "dropped");
    assert!(start.elapsed() < HANDSHAKE_SPAN * 4);
}

/// Process of the next test: hosts a store with few descriptors, and opens the files of a
/// save on request.
fn server_under_a_low_limit() {
    const FILES: usize = 30;
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: Some(300) }).unwrap();
    let token = Token::from_text(&std::env::var("TOKEN").unwrap()).unwrap();
    let server = server(&token, Log::silent());
    println!("address {}", server.address());
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    let files: Result<Vec<File>, _> = (0..FILES).map(|_| File::open("/dev/null")).collect();
    let open = std::fs::read_dir("/proc/self/fd").map(|fds| fds.count());
    println!("save {:?} {:?}", files.map(|files| files.len()), open);
    std::io::stdin().read_line(&mut line).unwrap();
}

/// 400 unauthenticated peers connect to a process that may open 300 descriptors. Members can still
/// join, and files can still be opened.
#[test]
fn strangers_leave_descriptors_for_saves() {
    if process::role().is_some() {
        return server_under_a_low_limit();
    }
    let token = Token::generate().unwrap();
    let test = "unauthenticated::strangers_leave_descriptors_for_saves";
    let mut child = process::command(test, "server")
        .env("TOKEN", token.to_text())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut next = |what: &str| loop {
        let mut line = String::new();
        assert!(output.read_line(&mut line).unwrap() > 0, "the child ended before '{what}'");
        if let Some(at) = line.find(what) {
            return line[at + what.len()..].trim().to_string();
        }
    };
    let address: SocketAddr = next("address ").parse().unwrap();
    let peers: Vec<TcpStream> = (0..400)
        .map(|_| {
            let mut stream = TcpStream::connect(address).unwrap();
            // It may be dropped already.
            let _ = stream.write_all(b"FLEET");
            stream
        })
        .collect();
    let client = StoreClient::connect(address, &token, &long()).unwrap();
    client.set("a", b"", &long()).unwrap();
    let mut input = child.stdin.take().unwrap();
    writeln!(input, "save").unwrap();
    let saved = next("save ");
    let open = saved.strip_prefix("Ok(30) Ok(").and_then(|rest| rest.strip_suffix(')'));
    let open: usize = open.expect(&saved).parse().unwrap();
    assert!(open < 100, "{open} descriptors are open");
    drop((peers, input));
    assert!(child.wait().unwrap().success());
}

/// A client that connects to something other than a server of its job.
#[test]
fn wrong_servers_are_named() {
    let token = Token::generate().unwrap();
    for (answer, words) in [
        (b"HTTP/1.1 400 Bad Request and a long page about it".to_vec(), "does not speak Fleet"),
        ([magic(PROTOCOL_VERSION + 1), vec![0; 34]].concat(), "protocol version mismatch"),
        // Speaks the protocol and accepts any client, but cannot authenticate itself.
        (
            [magic(PROTOCOL_VERSION), vec![0; 34 + 32], vec![1, 0, 0, 0, 1]].concat(),
            "does not know the job token",
        ),
        ([magic(PROTOCOL_VERSION), vec![0; 34 + 32], vec![255; 4]].concat(), "too long"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(&answer).unwrap();
            // Reads until the client closes.
            while let Ok(1..) = stream.read(&mut [0; 256]) {}
        });
        let error = StoreClient::connect(address, &token, &long()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(words), "{error}");
        thread.join().unwrap();
    }
}
