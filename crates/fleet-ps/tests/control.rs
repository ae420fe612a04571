//! Control over gRPC (feature `grpc`): the functions of frames, for holders of the token.

use crate::common::{DENSE, Fleet, GEO, SPARSE, STEPS, dense, job, pull};
use crate::saves::Folder;
use fleet_base::ErrorKind;
use fleet_net::{Log, Token};
use fleet_ps::control::message::{
    LoadRequest, SaveFormat, SaveMode, SaveRequest, ShrinkRequest, WorkerState,
};
use fleet_ps::control::{ControlClient, ControlServer};
use fleet_ps::{Durability, Push, ServerTables, TableAccess, TableAdmin, Tables};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::{Duration, Instant};
use tonic::codegen::tokio_stream;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};
use tonic_reflection::pb::v1 as reflection;

/// Starts control for every server of a job.
fn controls(fleet: &Fleet) -> Vec<ControlServer> {
    let addresses = fleet.addresses();
    let start = |server: &fleet_ps::TableServer| {
        let control = ControlServer::bind("127.0.0.1:0", &fleet.token, Log::silent()).unwrap();
        control.serve(server.tables().clone(), &addresses).unwrap();
        control
    };
    fleet.servers.iter().map(start).collect()
}

fn operator(control: &ControlServer, token: &Token) -> ControlClient {
    ControlClient::connect(&control.address().to_string(), token).unwrap()
}

fn is_reset(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::ConnectionReset
}

/// Repeats a call until it returns a value.
#[track_caller]
fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "timed out waiting for {what}");
        std::thread::yield_now();
    }
}

/// Runs a call of another client to its end.
fn run<R>(call: impl Future<Output = R>) -> R {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.unwrap().block_on(call)
}

async fn channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

fn health(address: SocketAddr, service: &str) -> Result<ServingStatus, Status> {
    run(async {
        let request = HealthCheckRequest { service: service.to_string() };
        let answer = HealthClient::new(channel(address).await).check(request).await?;
        Ok(answer.into_inner().status())
    })
}

#[test]
fn health_follows_the_tables_and_the_port_ends_with_the_server() {
    let (fleet, log) = (Fleet::start(&job(1, 1, false)), Log::silent());
    let control = ControlServer::bind("127.0.0.1:0", &fleet.token, log).unwrap();
    let address = control.address();
    let services = ["", "fleet.ps.v1.Control"];
    for service in services {
        assert_eq!(health(address, service).unwrap(), ServingStatus::NotServing, "'{service}'");
    }
    let error = operator(&control, &fleet.token).statistics().unwrap_err();
    assert!(error.kind() == ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("this server has no tables yet"), "{error}");

    let tables = fleet.servers[0].tables();
    control.serve(tables.clone(), &fleet.addresses()).unwrap();
    for service in services {
        assert_eq!(health(address, service).unwrap(), ServingStatus::Serving, "'{service}'");
    }
    assert_eq!(health(address, "another").unwrap_err().code(), Code::NotFound);
    operator(&control, &fleet.token).statistics().unwrap();
    assert!(control.serve(tables.clone(), &fleet.addresses()).is_err());

    let idle = TcpStream::connect(address).unwrap();
    drop(control);
    assert!(TcpStream::connect(address).is_err(), "the port is closed");
    idle.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // A connection that was not accepted yet is reset.
    let end = (&idle).read(&mut [0; 64]);
    let is_over = end.as_ref().map_or_else(is_reset, |count| *count < 64);
    assert!(is_over, "and so do connections: {end:?}");
}

#[test]
fn statistics_are_what_was_pushed() {
    let fleet = Fleet::start(&job(2, 2, false));
    let controls = controls(&fleet);
    let worker = fleet.worker(1);
    // Server 1 has the odd ids: two of four, one of them pushed twice.
    worker.push_sparse(SPARSE, None, Push::new(&[1, 2, 4, 7], &[1.0; 8])).unwrap();
    worker.push_sparse(SPARSE, None, Push::new(&[7], &[1.0; 2])).unwrap();
    pull(&worker, &[1, 7, 9]);
    worker.push_steps(STEPS, None, 5).unwrap();
    worker.push_dense(DENSE, None, &[1.0; 5]).unwrap();
    dense(&worker);
    // The second of these comes from parameters that lack the first, and the third from parameters
    // that lack two.
    (0..3).for_each(|_| worker.push_dense(DENSE, None, &[1.0; 5]).unwrap());
    let answer = operator(&controls[1], &fleet.token).statistics().unwrap();
    assert_eq!((answer.server, answer.server_count, answer.worker_count), (1, 2, 2));
    assert!(!answer.synchronous && answer.rounds == 0 && answer.log.is_none());
    let tables: Vec<_> = answer.tables.iter().map(|it| (it.table, it.kind.as_str())).collect();
    assert_eq!(
        tables,
        [(SPARSE, "sparse"), (DENSE, "dense"), (GEO, "geo"), (STEPS, "global step")]
    );
    let sparse = &answer.tables[0];
    assert_eq!((sparse.rows, sparse.pushed_ids, sparse.pulled_ids), (3, 3, 3));
    assert!(sparse.held_bytes >= sparse.payload_bytes && sparse.payload_bytes > 0);
    let dense = &answer.tables[1];
    assert_eq!((dense.pushed_ids, dense.pulled_ids), (4, 1));
    assert_eq!((dense.staleness_mean, dense.staleness_max), (0.75, 2));
    let all = worker.stats(DENSE).unwrap();
    assert_eq!((all.staleness_mean(), all.staleness_max), (0.75, 2), "of both servers");
    assert_eq!(dense.payload_bytes, 8, "two of five numbers");
    assert_eq!(answer.tables[3].pushed_ids, 5, "server 1 counts the steps");
    let states: Vec<_> = answer.workers.iter().map(|it| (it.state(), it.connections)).collect();
    assert_eq!(states, [(WorkerState::NeverCame, 0), (WorkerState::Connected, 1)]);
    drop(worker);
    let gone = |answer: fleet_ps::control::message::StatisticsAnswer| {
        answer.workers[1].state() == WorkerState::Gone
    };
    let mut operator = operator(&controls[1], &fleet.token);
    until("the worker's end", || gone(operator.statistics().unwrap()).then_some(()));
}

/// Operators are not counted: neither at barriers nor as connected workers.
#[test]
fn pushes_that_wait_and_logs_are_told() {
    let fleet = Fleet::start(&job(1, 1, true));
    let controls = controls(&fleet);
    fleet.worker(0).push_sparse(SPARSE, None, Push::new(&[1], &[1.0; 2])).unwrap();
    fleet.worker(0).push_dense(DENSE, None, &[1.0; 5]).unwrap();
    let answer = operator(&controls[0], &fleet.token).statistics().unwrap();
    assert!(answer.synchronous && answer.tables[0].queued_pushes == 1);
    assert_eq!(answer.tables[1].queued_pushes, 1);
    assert_eq!(answer.tables[0].pushed_ids, 0, "not applied yet");

    let folder = Folder::new("control_log");
    let job = job(1, 1, false);
    let tables = ServerTables::durable(&job, 0, Durability::in_folder(&folder.0)).unwrap();
    let control = ControlServer::bind("127.0.0.1:0", &fleet.token, Log::silent()).unwrap();
    control.serve(tables.clone(), &[]).unwrap();
    let log = || operator(&control, &fleet.token).statistics().unwrap().log.unwrap();
    let empty = log().bytes;
    let worker = fleet_ps::LocalServers::new(&[tables], 0).unwrap();
    worker.push_dense(DENSE, None, &[1.0; 5]).unwrap();
    let (record, least) = (log().bytes - empty, 48 + 20);
    assert!((least..least + 64).contains(&record), "head, numbers and a header: {record} bytes");
    assert_eq!(Path::new(&log().folder), folder.0.join("server-000"));
}

fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap().flatten() {
        let name = entry.file_name().into_string().unwrap();
        match entry.path().is_dir() {
            true => found.extend(
                files(&entry.path()).into_iter().map(|(file, it)| (format!("{name}/{file}"), it)),
            ),
            false => drop(found.insert(name, std::fs::read(entry.path()).unwrap())),
        }
    }
    found
}

#[test]
fn a_save_over_grpc_is_one_over_frames_and_so_are_loads_and_shrinking() {
    let fleet = Fleet::start(&job(2, 1, false));
    let controls = controls(&fleet);
    let worker = fleet.worker(0);
    let ids: Vec<u64> = (0..50).collect();
    worker.push_sparse(SPARSE, None, Push::new(&ids, &[1.0; 100])).unwrap();
    worker.push_dense(DENSE, None, &[2.0; 5]).unwrap();
    worker.push_steps(STEPS, None, 3).unwrap();
    let folder = Folder::new("control_save");
    let mut operator = operator(&controls[0], &fleet.token);
    for (ours, theirs) in [
        (fleet_ps::SaveFormat::Binary, SaveFormat::Binary),
        (fleet_ps::SaveFormat::Text, SaveFormat::Text),
    ] {
        let (frames, grpc) =
            (folder.0.join(format!("frames{theirs:?}")), folder.0.join(format!("grpc{theirs:?}")));
        let saved = worker.save(Tables::All, &frames, fleet_ps::SaveMode::All, ours).unwrap();
        let request = SaveRequest {
            folder: grpc.to_str().unwrap().into(),
            mode: SaveMode::All.into(),
            format: theirs.into(),
        };
        let answer = operator.save(request).unwrap();
        assert_eq!((answer.rows, answer.bytes), (saved.row_count, saved.bytes));
        let (frames, grpc) = (files(&frames), files(&grpc));
        assert!(frames.len() > 4 && frames == grpc, "{:?} {:?}", frames.keys(), grpc.keys());
    }
    worker.push_sparse(SPARSE, None, Push::new(&ids, &[1.0; 100])).unwrap();
    worker.push_dense(DENSE, None, &[2.0; 5]).unwrap();
    let from = folder.0.join("grpcBinary");
    let loaded = operator.load(LoadRequest { folder: from.to_str().unwrap().into() }).unwrap();
    assert_eq!(loaded.rows, 55);
    assert_eq!(pull(&worker, &[0, 49]), [0.5; 4], "as it was when it was saved");
    assert_eq!(dense(&worker), [-1.0; 5]);

    // After a day, all rows are unseen for one day.
    let aged = SaveRequest {
        folder: folder.0.join("aged").to_str().unwrap().into(),
        mode: SaveMode::AllAndAge.into(),
        format: SaveFormat::Binary.into(),
    };
    operator.save(aged.clone()).unwrap();
    let shrunk = operator.shrink(ShrinkRequest { table: SPARSE, unseen_days: Some(0) }).unwrap();
    assert_eq!(shrunk.deleted_rows, 50);
    assert_eq!(worker.stats(SPARSE).unwrap().row_count, 0);

    let mut check = |request: SaveRequest, kind: ErrorKind, words: &str| {
        let error = operator.save(request).unwrap_err();
        assert!(error.kind() == kind && error.to_string().contains(words), "{error}");
    };
    let invalid = ErrorKind::Invalid;
    check(SaveRequest { mode: 9, ..aged.clone() }, invalid, "unknown save mode");
    check(SaveRequest { format: 9, ..aged.clone() }, invalid, "unknown save format");
    let nowhere = SaveRequest { folder: String::new(), ..aged.clone() };
    check(nowhere, invalid, "missing folder");
    let file = folder.0.join("file");
    std::fs::write(&file, "").unwrap();
    let blocked = SaveRequest { folder: file.to_str().unwrap().into(), ..aged.clone() };
    check(blocked, invalid, "request of an operator");
    let error = operator.shrink(ShrinkRequest { table: 99, unseen_days: None }).unwrap_err();
    assert!(error.to_string().contains("no such table"), "{error}");
    let error = operator.shrink(ShrinkRequest { table: 0, unseen_days: Some(256) }).unwrap_err();
    assert!(error.to_string().contains("too many unseen days"), "{error}");
    let error = crate::control::operator(&controls[1], &fleet.token).save(aged).unwrap_err();
    assert!(error.to_string().contains("only server 0 accepts this call"), "{error}");
}

fn list(authorization: Option<&str>, address: SocketAddr) -> Result<Vec<String>, Status> {
    use reflection::server_reflection_request::MessageRequest;
    use reflection::server_reflection_response::MessageResponse;
    run(async {
        let mut client = reflection::server_reflection_client::ServerReflectionClient::new(
            channel(address).await,
        );
        let asked = reflection::ServerReflectionRequest {
            message_request: Some(MessageRequest::ListServices(String::new())),
            ..Default::default()
        };
        let mut request = Request::new(tokio_stream::iter([asked]));
        if let Some(shown) = authorization {
            let shown = AsciiMetadataValue::try_from(shown).unwrap();
            request.metadata_mut().insert("authorization", shown);
        }
        let mut answers = client.server_reflection_info(request).await?.into_inner();
        let answer = answers.message().await?.and_then(|answer| answer.message_response);
        match answer {
            Some(MessageResponse::ListServicesResponse(list)) => {
                Ok(list.service.into_iter().map(|service| service.name).collect())
            }
            other => panic!("{other:?}"),
        }
    })
}

#[test]
fn strangers_are_refused_and_logged() {
    let fleet = Fleet::start(&job(1, 1, false));
    let (log, lines) = Log::collect();
    let control = ControlServer::bind("127.0.0.1:0", &fleet.token, log).unwrap();
    control.serve(fleet.servers[0].tables().clone(), &fleet.addresses()).unwrap();
    let address = control.address();

    let stranger = Token::generate().unwrap();
    let error = operator(&control, &stranger).statistics().unwrap_err();
    assert!(error.to_string().contains("not valid for this job and server"), "{error}");
    for shown in [None, Some("Bearer 1.2"), Some("Basic YTpi"), Some("Bearer "), Some("")] {
        let status = list(shown, address).unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{shown:?}");
    }
    assert_eq!(lines().len(), 6, "{:#?}", lines());
    let told = |line: &String| line.starts_with("rejected control over gRPC from 127.0.0.1:");
    assert!(lines().iter().all(told), "{:#?}", lines());

    let credential = operator(&control, &fleet.token).credential(Duration::from_secs(60)).unwrap();
    let shown = format!("Bearer {credential}");
    let mut services = list(Some(&shown), address).unwrap();
    services.sort();
    let known = ["fleet.ps.v1.Control", "grpc.health.v1.Health"];
    assert_eq!(services[..2], known);
    assert_eq!(services[2..], ["grpc.reflection.v1.ServerReflection"]);
    // The credential is not valid for another server of the same job.
    let other = ControlServer::bind("127.0.0.1:0", &fleet.token, Log::silent()).unwrap();
    assert_eq!(list(Some(&shown), other.address()).unwrap_err().code(), Code::Unauthenticated);
    assert_eq!(lines().len(), 6, "clients with the token are served");
}

/// Bytes that no gRPC client would send, silent connections, and messages that are too long.
#[test]
fn hostile_bytes_leave_the_server_up() {
    let fleet = Fleet::start(&job(1, 1, false));
    let control = controls(&fleet).remove(0);
    let address = control.address();
    let mut rng = fleet_base::rng::Sequence::new(5, 0);
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for case in 0..300 {
        let noise: Vec<u8> = (0..rng.below(400)).map(|_| rng.below(256) as u8).collect();
        let mut socket = TcpStream::connect(address).unwrap();
        let start: &[u8] = match case % 4 {
            0 => b"",
            1 => b"GET / HTTP/1.1\r\n\r\n",
            2 => PREFACE,
            // Valid settings before frames of noise.
            _ => b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        };
        // The server may close the connection in between.
        let _ = socket.write_all(start).and_then(|()| socket.write_all(&noise));
    }
    let idle: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(address).unwrap()).collect();
    let is_over = |mut socket: &TcpStream| {
        socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        // Settings may come first.
        let end = socket.read_to_end(&mut Vec::new());
        end.as_ref().map_or_else(is_reset, |_| true)
    };
    // Operators are still served at once, and all idle connections are closed in time.
    assert_eq!(operator(&control, &fleet.token).statistics().unwrap().worker_count, 1);
    assert!(idle.iter().all(is_over));
    let long = SaveRequest { folder: "x".repeat(1 << 20), mode: 0, format: 0 };
    let error = operator(&control, &fleet.token).save(long).unwrap_err();
    assert!(error.to_string().contains("too large"), "{error}");
    assert_eq!(health(address, "").unwrap(), ServingStatus::Serving);
    assert_eq!(pull(&fleet.worker(0), &[1]), [1.0; 2]);
}

/// Unknown peers that answer pings do not keep operators out, and are closed. Known peers keep
/// their connections. The 65th known peer gets an error that says why it has no seat.
#[test]
fn strangers_that_answer_pings_are_closed() {
    let fleet = Fleet::start(&job(1, 1, false));
    let (log, lines) = Log::collect();
    let control = ControlServer::bind("127.0.0.1:0", &fleet.token, log).unwrap();
    control.serve(fleet.servers[0].tables().clone(), &fleet.addresses()).unwrap();
    let address = control.address();
    let mut known = operator(&control, &fleet.token);
    known.statistics().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let strangers = runtime.block_on(async {
        let mut strangers = Vec::new();
        for _ in 0..80 {
            let mut client = HealthClient::new(channel(address).await);
            let request = HealthCheckRequest { service: String::new() };
            // An open stream gives the client a reason to stay connected.
            strangers.push(client.watch(request).await.unwrap().into_inner());
        }
        strangers
    });
    operator(&control, &fleet.token).statistics().unwrap();
    runtime.block_on(async {
        for mut stranger in strangers {
            while let Ok(Some(_)) = stranger.message().await {}
        }
    });
    assert!(lines().iter().any(|line| line.contains("without a credential")), "{:?}", lines());
    known.statistics().unwrap();
    let peer = |_| {
        let mut peer = operator(&control, &fleet.token);
        peer.statistics().map(|_| peer).unwrap()
    };
    // The slots of the operators above may or may not be free again.
    let mut peers: Vec<ControlClient> = (2..64).map(peer).collect();
    until("64 connections in use", || {
        peers.push(operator(&control, &fleet.token));
        peers.last_mut()?.statistics().err()
    });
    drop(peers.pop());
    let error = operator(&control, &fleet.token).statistics().unwrap_err();
    assert!(error.to_string().contains("all 64 connections for control"), "{error}");
    drop((peers.pop(), peers.pop()));
    until("a free connection", || operator(&control, &fleet.token).statistics().ok());
}

/// A certificate of 100 years for 127.0.0.1 and fleet.test with its key, and another certificate.
#[test]
fn under_tls_servers_show_a_certificate() {
    use fleet_ps::control::{ClientTls, ServerTls};
    let file = |name: &str| Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let (cert, key) = (file("control-cert.pem"), file("control-key.pem"));
    let fleet = Fleet::start(&job(1, 1, false));
    let token = fleet.token.clone().over_tls().unwrap();
    let error = ControlServer::bind("127.0.0.1:0", &token, Log::silent()).err().unwrap();
    assert!(error.to_string().contains("FLEET_GRPC_CERT and FLEET_GRPC_KEY"), "{error}");

    let tls = ServerTls::read(&cert, &key).unwrap();
    let control = ControlServer::bind_under("127.0.0.1:0", &token, tls, Log::silent()).unwrap();
    control.serve(fleet.servers[0].tables().clone(), &fleet.addresses()).unwrap();
    let address = control.address().to_string();
    let believes = |authority: &str, name: Option<&str>| {
        let tls = ClientTls::read(&file(authority), name).unwrap();
        ControlClient::connect_under(&address, &token, tls)
    };
    for name in [None, Some("fleet.test")] {
        assert_eq!(believes("control-cert.pem", name).unwrap().statistics().unwrap().server, 0);
    }
    for (authority, name, words) in [
        ("control-cert.pem", Some("10.0.0.1"), "certificate"),
        ("other-cert.pem", None, "certificate"),
    ] {
        let error = believes(authority, name).err().unwrap();
        assert!(error.to_string().contains(words), "{error}");
    }
    let plain = ControlClient::connect(&address, &fleet.token).and_then(|mut it| it.statistics());
    let error = plain.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("for a server with TLS"), "{error}");

    let error = ServerTls::read(&file("nothing.pem"), &key).err().unwrap();
    assert!(error.to_string().contains("nothing.pem"), "{error}");
    let swapped = ServerTls::read(&key, &cert).unwrap();
    let error = ControlServer::bind_under("127.0.0.1:0", &token, swapped, Log::silent());
    let error = error.err().unwrap().to_string();
    assert!(
        error.contains("invalid certificate or key") && error.contains("control-key.pem"),
        "{error}"
    );
}
