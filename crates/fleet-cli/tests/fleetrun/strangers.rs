//! Launcher messages about unauthorised connections, readable secrets and addresses.

use crate::{Place, Said, until};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

/// Writes the store's address to a file, and ends when the test has used it.
const SCRIPT: &str = r#"echo "$FLEET_STORE" > store.new
mv store.new store
while [ ! -e go ]; do sleep 0.02; done
env > environment
"#;

#[test]
fn a_stranger_at_the_launchers_port_is_named() {
    let place = Place::new("strangers", SCRIPT);
    let token = place.path("job.token");
    std::fs::write(&token, "0123456789abcdef0123456789abcdef").unwrap();
    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o644)).unwrap();
    let child = place.start("--token_file job.token --save_root saves job.py");
    until("the store", || place.path("store").exists());
    let mut stranger = TcpStream::connect(place.read("store").trim()).unwrap();
    let own = stranger.local_addr().unwrap();
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    // The connection may end with a reset.
    let _ = stranger.read(&mut [0; 1]);
    std::fs::write(place.path("go"), "").unwrap();
    let said = Said::new(child.wait_with_output().unwrap());
    let told = format!("fleetrun: dropped a connection from {own}: ");
    let secret = "every user of this machine can read the job's secret: chmod 600 job.token";
    said.check(0, &[&told, secret]);
    assert!(!place.read("environment").contains("FLEET_SAVE_ROOT"), "a worker saves nothing");

    std::fs::set_permissions(&token, std::fs::Permissions::from_mode(0o600)).unwrap();
    let said = place.run("--token_file job.token job.py");
    said.check(0, &[]);
    assert!(!said.err.contains("secret"), "{}", said.err);

    std::fs::write(&token, [0; 5000]).unwrap();
    let said = place.run("--token_file job.token job.py");
    said.check(2, &["the file is too large for a job token: expected at most 4 KiB"]);
}

/// A documentation address, which no machine has.
#[test]
fn listening_on_all_addresses_is_told() {
    let place = Place::new("strangers_everywhere", "true");
    let told =
        "192.0.2.1 is not an address of this machine: listening on all of its addresses, port ";
    place.run("--master 192.0.2.1:0 job.py").check(0, &[told]);
}

#[test]
fn servers_get_the_save_root() {
    let script =
        "[ $TRAINING_ROLE = TRAINER ] || env | grep FLEET_SAVE_ROOT > root.$TRAINING_ROLE\n";
    let place = Place::new("strangers_root", script);
    let local = place.folder.canonicalize().unwrap().join("saves");
    for (given, root) in [("saves", local.to_str().unwrap()), ("hdfs://h/a", "hdfs://h/a")] {
        place.run(&format!("--server_num 1 --worker_num 1 --save_root {given} job.py"));
        assert_eq!(place.read("root.PSERVER").trim(), format!("FLEET_SAVE_ROOT={root}"));
    }
    let said = place.run("--server_num 1 --worker_num 1 --save_root s3://a job.py");
    said.check(2, &["unknown file system 's3:'"]);
}
