//! `fleet doctor` as two processes on this machine.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn fleet() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
    command.arg("doctor");
    command
}

#[test]
fn two_machines() {
    let mut first = fleet()
        .args(["--hosts", "127.0.0.1,localhost", "--rank", "0", "--port", "0"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(first.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let rendezvous = lines.find(|line| line.starts_with("rendezvous")).unwrap();
    let (_, port) = rendezvous.split(',').next().unwrap().rsplit_once(':').unwrap();
    let second = fleet()
        .args(["--hosts", "127.0.0.1,localhost", "--rank", "1", "--port", port])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stdout).into_owned();
    assert!(second.status.success(), "{said}{}", String::from_utf8_lossy(&second.stderr));
    for word in ["host ", "interface ", "shared memory", "localhost is 127.0.0.1", "printed on"] {
        assert!(said.contains(word), "no '{word}' in:\n{said}");
    }
    let report: Vec<String> = lines.collect();
    assert!(first.wait().unwrap().success(), "{report:?}");
    let link = report.iter().find(|line| line.starts_with("127.0.0.1  localhost")).unwrap();
    let words: Vec<&str> = link.split_whitespace().collect();
    let (latency, bandwidth): (f64, f64) = (words[2].parse().unwrap(), words[4].parse().unwrap());
    // Rounded to zero, the bandwidth is still valid on a busy machine.
    assert!(latency > 0.0 && bandwidth >= 0.0, "{link}");
    assert!(link.contains("ms") && link.contains("uses shared memory"), "{link}");
    assert!(report.contains(&"all machines reach each other".to_string()));
}

#[test]
fn mistakes_are_named() {
    for (args, words) in [
        (&["--hosts", "no-such-host.invalid"][..], "unknown hosts: no-such-host.invalid"),
        (&["--hosts", "203.0.113.9"], "this machine is not one of the hosts"),
        (&["--hosts", "127.0.0.1,localhost"], "several of the hosts are this machine"),
        (&["--hosts", "127.0.0.1", "--rank", "1"], "--rank is not one of the hosts"),
        (
            &["--hosts", "127.0.0.1,localhost", "--rank", "1", "--port", "9", "--wait", "1"],
            "cannot connect to 127.0.0.1:9",
        ),
        (
            &["--hosts", "127.0.0.1,localhost", "--rank", "0", "--port", "0", "--wait", "1"],
            "1 of 2 keys are missing: doctor/address/rank 1",
        ),
    ] {
        let output = fleet().args(args).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{args:?}: {said}");
        assert!(said.contains(words), "{args:?}: {said}");
    }
}
