//! The client against a stand-in for etcd's gateway, which answers as the test says.

use super::EtcdAccess;
use super::gateway::Gateway;
use crate::flags::Given;
use fleet_base::sync::lock;
use fleet_base::{Error, ErrorKind};
use fleet_topology::Env;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Longer than any answer takes.
const TIME: Duration = Duration::from_secs(20);
const EMPTY: &str = r#"{"header":{"revision":"7"}}"#;

/// A request as the stand-in received it.
struct Request {
    path: String,
    token: Option<String>,
    body: Value,
}

type Answers = Box<dyn FnMut(&Request) -> (u16, String) + Send>;

/// Serves each connection in a thread of its own.
fn serve<S: Read + Write + Send + 'static>(
    listener: &TcpListener,
    accept: impl Fn(TcpStream) -> Option<S>,
    answers: Answers,
    requests: &Sender<Request>,
) {
    let answers = Arc::new(Mutex::new(answers));
    for stream in listener.incoming() {
        let Some(stream) = stream.ok().and_then(&accept) else { continue };
        let (answers, requests) = (answers.clone(), requests.clone());
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            let Some(request) = read(&mut stream) else { return };
            let (status, body) = lock(&answers)(&request);
            let length = body.len();
            let head = format!("HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\r\n");
            let _ = requests.send(request);
            let _ = stream.get_mut().write_all(format!("{head}{body}").as_bytes());
        });
    }
}

fn read(stream: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    stream.read_line(&mut line).ok()?;
    let path = line.strip_prefix("POST /v3/")?.split(' ').next()?.to_string();
    let (mut length, mut token) = (0, None);
    loop {
        line.clear();
        stream.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(": ") else { break };
        match name.to_ascii_lowercase().as_str() {
            "content-length" => length = value.parse().ok()?,
            "authorization" => token = Some(value.to_string()),
            _ => {}
        }
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).ok()?;
    Some(Request { path, token, body: serde_json::from_slice(&body).ok()? })
}

/// Starts a stand-in without TLS. Returns its address and what it receives.
fn start(
    answers: impl FnMut(&Request) -> (u16, String) + Send + 'static,
) -> (String, Receiver<Request>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (sender, receiver) = channel();
    std::thread::spawn(move || serve(&listener, Some, Box::new(answers), &sender));
    (address, receiver)
}

fn access(address: &str, flags: &str) -> Result<(EtcdAccess, Vec<String>), Error> {
    let flags = flags.split_whitespace().map(str::to_string);
    let given = Given::parse(flags).unwrap_or_else(|error| panic!("{error}"));
    let mut warnings = Vec::new();
    let access = EtcdAccess::new(address, "--elastic_server", &given, &Env::new(), &mut warnings)?;
    Ok((access, warnings))
}

fn gateway(address: &str, flags: &str) -> Gateway {
    Gateway::new(&access(address, flags).unwrap_or_else(|error| panic!("{error}")).0)
}

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

/// Returns flags of a user, whose password is in a new file.
fn user(test: &str, password: &str) -> String {
    let file = std::env::temp_dir().join(format!("fleet-{test}-{}", std::process::id()));
    std::fs::write(&file, format!("{password}\n")).unwrap();
    format!("--etcd_user ann --etcd_password_file {}", file.display())
}

fn check<T>(result: Result<T, Error>, kind: ErrorKind, parts: &[&str]) {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
    }
}

fn ok() -> (u16, String) {
    (200, EMPTY.into())
}

/// An etcd with one user, which gives out the tokens `1`, `2` and so on.
fn with_users(request: &Request, tokens: &mut usize, is_valid: bool) -> (u16, String) {
    if request.path != "auth/authenticate" {
        return match request.token.as_deref() == Some(&*tokens.to_string()) && is_valid {
            true => ok(),
            false => (401, r#"{"error":"etcdserver: invalid auth token","code":16}"#.into()),
        };
    }
    if request.body["name"] != "ann" || request.body["password"] != "right" {
        let why = "etcdserver: authentication failed, invalid user ID or password";
        return (400, format!(r#"{{"error":"{why}","code":3}}"#));
    }
    *tokens += 1;
    (200, format!(r#"{{"header":{{}},"token":"{tokens}"}}"#))
}

#[test]
fn a_user_logs_in_once() {
    let mut tokens = 0;
    let (address, requests) = start(move |request| with_users(request, &mut tokens, true));
    let gateway = gateway(&address, &user("once", "right"));
    for _ in 0..3 {
        assert_eq!(gateway.range("/a", false, TIME).unwrap(), (Vec::new(), 7));
    }
    let seen: Vec<_> = requests.try_iter().map(|it| (it.path, it.token)).collect();
    let range = ("kv/range".to_string(), Some("1".to_string()));
    let login = ("auth/authenticate".to_string(), None);
    assert_eq!(seen, [login, range.clone(), range.clone(), range]);
}

#[test]
fn an_expired_token_is_renewed() {
    let (mut tokens, mut calls) = (0, 0);
    let (address, requests) = start(move |request| {
        calls += 1;
        with_users(request, &mut tokens, calls != 3)
    });
    let gateway = gateway(&address, &user("renewed", "right"));
    for _ in 0..2 {
        gateway.put("/a", b"1", 5, TIME).unwrap();
    }
    let tokens: Vec<_> = requests.try_iter().map(|it| it.token.unwrap_or_default()).collect();
    assert_eq!(tokens, ["", "1", "1", "", "2"]);
}

#[test]
fn a_token_that_is_never_accepted_is_an_error() {
    let mut tokens = 0;
    let (address, _requests) = start(move |request| with_users(request, &mut tokens, false));
    let gateway = gateway(&address, &user("never", "right"));
    let result = gateway.range("/a", false, TIME);
    check(result, ErrorKind::Unavailable, &[&address, "refused kv/range", "invalid auth token"]);
}

#[test]
fn a_wrong_password_is_an_error_for_the_user() {
    let mut tokens = 0;
    let (address, _requests) = start(move |request| with_users(request, &mut tokens, true));
    let gateway = gateway(&address, &user("wrong", "left"));
    let parts = [&*address, "refused the user 'ann'", "invalid user ID", "--etcd_password_file"];
    check(gateway.range("/a", false, TIME), ErrorKind::Invalid, &parts);
}

#[test]
fn refusals_say_what_to_do() {
    let refusals = [
        (400, r#"{"message":"etcdserver: user name is empty","code":3}"#, "need"),
        (403, r#"{"error":"etcdserver: permission denied","code":7}"#, "keys below /paddle/"),
        (404, r#"{"error":"etcdserver: requested lease not found","code":5}"#, "lease not found"),
        (400, "Client sent an HTTP request to an HTTPS server.\n", "with https:// if it uses TLS"),
        (200, "no JSON", "expected an etcd of version 3.4 or newer"),
        (200, "{}", "malformed answer"),
    ];
    for (status, body, part) in refusals {
        let (address, _requests) = start(move |_| (status, body.to_string()));
        let error = gateway(&address, "").range("/a", false, TIME).unwrap_err();
        assert!(error.to_string().contains(part), "'{part}' is not in: {error}");
        let is_fault = body.contains("\"code\":3") || body.contains("\"code\":7");
        assert_eq!(error.kind() == ErrorKind::Invalid, is_fault, "{error}");
    }
}

#[test]
fn a_server_that_is_gone_is_reported() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let gateway = gateway(&address, "");
    drop(listener);
    let result = gateway.range("/a", false, TIME);
    check(result, ErrorKind::Unavailable, &["cannot reach etcd at", &address, "refused"]);
}

#[test]
fn a_silent_server_costs_no_more_than_the_limit() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    // Connections wait in the queue of the listener, or get one byte at a time.
    let slow = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let slow_address = slow.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for mut stream in slow.incoming().flatten() {
            while stream.write_all(b"H").is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    for address in [address, slow_address] {
        let begun = Instant::now();
        let result = gateway(&address, "").range("/a", false, Duration::from_millis(500));
        assert!(begun.elapsed() < TIME / 2, "{:?}", begun.elapsed());
        check(result, ErrorKind::Unavailable, &["cannot reach etcd at", &address]);
    }
}

#[test]
fn flags_that_do_not_fit_are_refused() {
    for (address, flags, parts) in [
        ("https://a:1", "", &["--etcd_ca is missing"][..]),
        ("a:1", "--etcd_ca x", &["need TLS", "--elastic_server https://a:1"]),
        ("a:1", "--etcd_user ann", &["--etcd_user needs --etcd_password_file"]),
        ("a:1", "--etcd_user ann --etcd_password_file /no/such", &["cannot read /no/such"]),
        ("a:1", "--etcd_user ann --etcd_password_file /dev/null", &["password", "is empty"]),
    ] {
        check(access(address, flags), ErrorKind::Invalid, parts);
    }
    let (_, warnings) = access("a:1", &user("clear", "x")).unwrap();
    assert!(warnings.iter().any(|line| line.contains("in clear")), "{warnings:?}");
}

mod under_tls {
    use super::*;
    use rustls::crypto::ring;
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::server::WebPkiClientVerifier;
    use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

    /// Starts a stand-in with TLS, which may demand a certificate of its clients.
    fn start(demands: bool) -> String {
        let provider = Arc::new(ring::default_provider());
        let certificate =
            |name: &str| CertificateDer::from_pem_file(data(name)).expect("a certificate");
        let mut store = RootCertStore::empty();
        store.add(certificate("authority-cert.pem")).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(store.into(), provider.clone()).build();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let config = match demands {
            true => config.with_client_cert_verifier(verifier.unwrap()),
            false => config.with_no_client_auth(),
        };
        let key = PrivateKeyDer::from_pem_file(data("server-key.pem")).unwrap();
        let config = config.with_single_cert(vec![certificate("server-cert.pem")], key);
        let config = Arc::new(config.unwrap());
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let accept = |stream| {
                let connection = ServerConnection::new(config.clone()).ok()?;
                Some(StreamOwned::new(connection, stream))
            };
            serve(&listener, accept, Box::new(|_| ok()), &channel().0);
        });
        format!("https://{address}")
    }

    fn flags(authority: &str, own: Option<(&str, &str)>) -> String {
        let own = own.map_or(String::new(), |(certificate, key)| {
            format!(
                "--etcd_cert {} --etcd_key {}",
                data(certificate).display(),
                data(key).display()
            )
        });
        format!("--etcd_ca {} {own}", data(authority).display())
    }

    #[test]
    fn the_authority_of_the_server_is_checked() {
        let address = start(false);
        let trusting = gateway(&address, &flags("authority-cert.pem", None));
        for _ in 0..2 {
            assert_eq!(trusting.range("/a", false, TIME).unwrap().1, 7);
        }
        let other = gateway(&address, &flags("other-cert.pem", None));
        let parts = [&*address, "no TLS with etcd", "invalid peer certificate", "--etcd_ca"];
        check(other.range("/a", false, TIME), ErrorKind::Invalid, &parts);
        // The certificate is for 127.0.0.1 alone.
        let named = address.replace("127.0.0.1", "localhost");
        let named = gateway(&named, &flags("authority-cert.pem", None));
        check(named.range("/a", false, TIME), ErrorKind::Invalid, &["not valid for name"]);
    }

    #[test]
    fn a_demanded_certificate_is_presented() {
        let address = start(true);
        let own = Some(("client-cert.pem", "client-key.pem"));
        let known = gateway(&address, &flags("authority-cert.pem", own));
        assert_eq!(known.range("/a", false, TIME).unwrap().1, 7);
        let unknown = gateway(&address, &flags("authority-cert.pem", None));
        let error = unknown.range("/a", false, TIME).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("--etcd_cert"), "{error}");
    }

    #[test]
    fn a_server_without_tls_is_reported() {
        let (address, _requests) = super::start(|_| ok());
        let gateway = gateway(&format!("https://{address}"), &flags("authority-cert.pem", None));
        let result = gateway.range("/a", false, Duration::from_secs(2));
        check(result, ErrorKind::Unavailable, &["cannot reach etcd at https://"]);
    }

    #[test]
    fn wrong_files_are_refused_at_once() {
        for (authority, own, part) in [
            ("server-key.pem", None, "it has none"),
            ("make.sh", None, "it has none"),
            ("no-such.pem", None, "cannot read"),
            ("authority-cert.pem", Some(("client-cert.pem", "server-key.pem")), "key"),
            ("authority-cert.pem", Some(("client-cert.pem", "client-cert.pem")), "key"),
        ] {
            check(access("https://a:1", &flags(authority, own)), ErrorKind::Invalid, &[part]);
        }
    }
}
