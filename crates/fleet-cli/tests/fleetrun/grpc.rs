//! Control of parameter servers over gRPC: `FLEET_GRPC_PORT` and `fleet ps`. The calls themselves
//! are tested in `fleet-ps`.

use crate::{Place, Said};
use std::process::Command;

const TOKEN: &str = "6f1d2c3b4a5968778695a4b3c2d1e0f00123456789abcdef0123456789abcdef";

fn fleet(place: &Place, line: &str) -> Said {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
    command.current_dir(&place.folder).args(line.split_whitespace());
    for name in ["FLEET_TOKEN", "FLEET_TOKEN_FILE"] {
        command.env_remove(name);
    }
    Said::new(command.output().unwrap())
}

/// Returns a launch whose servers open a gRPC port.
fn launch(place: &Place, line: &str, token: &str) -> Command {
    std::fs::write(place.path("job.token"), token).unwrap();
    let mut command = place.command(line);
    command.env("FLEET_TOKEN_FILE", "job.token").env("FLEET_GRPC_PORT", "0");
    command
}

#[cfg(not(feature = "grpc"))]
#[test]
fn without_the_feature_it_is_refused() {
    let place = Place::new("grpc_refused", "");
    let line = "--server_num 1 --worker_num 1 --max_restart 0 demo:wide_deep --samples 64";
    let said = Said::new(launch(&place, line, TOKEN).output().unwrap());
    assert_ne!(said.code, Some(0));
    let all = format!("{}{}", said.out, said.err);
    for part in ["FLEET_GRPC_PORT requests control over gRPC", "cargo build --features grpc"] {
        assert!(all.contains(part), "{all}");
    }
    fleet(&place, "ps stat 127.0.0.1:1 --token-file job.token")
        .check(1, &["fleet was built without gRPC", "--features grpc"]);
}

#[cfg(feature = "grpc")]
mod with_the_feature {
    use super::*;
    use crate::demos::process_with;
    use crate::{signal, until};
    use std::net::TcpStream;
    use std::process::{Child, Stdio};

    /// Returns the addresses in a server's log, one for each start.
    fn addresses(place: &Place, server: usize) -> Vec<String> {
        let log = place.read(&format!("log/serverlog.{server}"));
        let start = format!("server {server}: control over gRPC at ");
        let found = log.lines().filter_map(|line| line.split_once(&start));
        found.map(|(_, address)| address.trim().to_string()).collect()
    }

    fn start(place: &Place, line: &str) -> Child {
        let mut command = launch(place, line, TOKEN);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    #[test]
    fn a_job_is_looked_at_and_saved_while_it_trains() {
        let place = Place::new("grpc_job", "");
        let child = start(
            &place,
            "--server_num=2 --worker_num=1 demo:wide_deep --samples 3000000 --durable kept",
        );
        until("addresses", || !addresses(&place, 0).is_empty() && !addresses(&place, 1).is_empty());
        let at = [0, 1].map(|server| addresses(&place, server)[0].clone());
        let ask = |what: &str| fleet(&place, &format!("ps {what} --token-file job.token"));

        let joined = || ask(&format!("stat {}", at[1])).out.contains("worker 0: 1 connections");
        until("a worker", joined);
        let said = ask(&format!("stat {}", at[1]));
        said.check(0, &[]);
        for part in
            ["server 1 of 2, 1 workers, asynchronous", "worker 0: 1 connections", "of log since"]
        {
            assert!(said.out.contains(part), "{}", said.out);
        }
        let said = ask(&format!("save {} {}", at[0], place.path("saved").display()));
        said.check(0, &[]);
        assert!(said.out.starts_with("saved "), "{}", said.out);
        assert!(
            place.path("saved/saved-000.1").exists() && place.path("saved/saved-001.1").exists()
        );
        ask(&format!("save {} there", at[1])).check(1, &["only server 0 accepts this call"]);
        ask(&format!("shrink {} 99", at[0])).check(1, &["no such table"]);
        let said = ask(&format!("credential {} --seconds 5", at[0]));
        said.check(0, &[]);
        assert!(said.out.starts_with("authorization: Bearer "), "{}", said.out);

        std::fs::write(place.path("other.token"), TOKEN.replace('6', "7")).unwrap();
        let line = format!("ps stat {} --token-file other.token", at[0]);
        fleet(&place, &line).check(1, &["not valid for this job and server"]);
        fleet(&place, &format!("ps stat {}", at[0])).check(1, &["no job secret given"]);
        assert!(place.read("log/serverlog.0").contains("rejected control over gRPC from"));

        // A killed server loses its port, and binds another one when it is restarted.
        let folder = place.folder.canonicalize().unwrap();
        signal(process_with("TRAINING_ROLE=PSERVER", &folder).expect("a server"), "KILL");
        let again = || {
            (0..2).find_map(|server| {
                Some((server, addresses(&place, server).pop()?))
                    .filter(|(_, last)| *last != at[server])
            })
        };
        until("another address", || again().is_some());
        let (killed, again) = again().unwrap();
        assert!(TcpStream::connect(&at[killed]).is_err(), "{}", at[killed]);
        until("it serves", || ask(&format!("stat {again}")).code == Some(0));
        signal(child.id(), "TERM");
        child.wait_with_output().unwrap();
        for address in [&again, &at[0], &at[1]] {
            assert!(TcpStream::connect(address).is_err(), "{address}");
        }
    }

    #[test]
    fn ports_that_are_taken_and_tls_are_refused() {
        let place = Place::new("grpc_port", "");
        let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = taken.local_addr().unwrap().port().to_string();
        let line = "--server_num 1 --worker_num 1 --max_restart 0 demo:wide_deep --samples 64";
        let refused = |token: &str, port: &str, part: &str| {
            let mut command = launch(&place, line, token);
            let said = Said::new(command.env("FLEET_GRPC_PORT", port).output().unwrap());
            assert_ne!(said.code, Some(0));
            let all = format!("{}{}", said.out, said.err);
            assert!(all.contains(part), "{all}");
        };
        refused(TOKEN, &port, "for gRPC");
        refused(TOKEN, "99999", "FLEET_GRPC_PORT");
        refused(&format!("tls:{TOKEN}"), "0", "control over gRPC has no certificate");
    }

    /// A job under TLS, whose servers present a certificate to operators.
    #[test]
    fn a_job_under_tls_is_looked_at_and_saved_under_tls() {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../fleet-ps/tests/data");
        let cert = format!("{data}/control-cert.pem");
        let place = Place::new("grpc_tls", "");
        let line = "--server_num=2 --worker_num=1 demo:wide_deep --samples 3000000";
        let mut command = launch(&place, line, &format!("tls:{TOKEN}"));
        command.env("FLEET_GRPC_CERT", &cert);
        command.env("FLEET_GRPC_KEY", format!("{data}/control-key.pem"));
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("addresses", || !addresses(&place, 0).is_empty() && !addresses(&place, 1).is_empty());
        let at = addresses(&place, 0)[0].clone();
        let ask =
            |what: &str, ca: &str| fleet(&place, &format!("ps {what} --token-file job.token {ca}"));
        let ca = format!("--ca {cert}");
        until("a worker", || ask(&format!("stat {at}"), &ca).out.contains("worker 0: "));
        let said = ask(&format!("save {at} {}", place.path("saved").display()), &ca);
        said.check(0, &[]);
        assert!(place.path("saved/saved-001.1").exists(), "{}", said.out);
        ask(&format!("stat {at}"), "").check(1, &["the job's token requires TLS", "--ca FILE"]);
        ask(&format!("stat {at}"), &format!("{ca} --server-name fleet.example"))
            .check(1, &["certificate"]);
        signal(child.id(), "TERM");
        child.wait_with_output().unwrap();
    }
}
