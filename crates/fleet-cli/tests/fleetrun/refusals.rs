//! Errors reported before anything starts.

use crate::Place;

#[test]
fn wrong_command_lines() {
    let place = Place::new("refused", "touch ran");
    std::fs::write(place.path("plain"), "echo").unwrap();
    std::fs::create_dir(place.path("folder.py")).unwrap();
    let check = |line: &str, parts: &[&str]| {
        place.run(line).check(2, parts);
        assert!(!place.path("ran").exists(), "{line}");
    };
    check(
        "--nproc_per_nod 2 job.py",
        &["no flag --nproc_per_nod; did you mean '--nproc_per_node'?"],
    );
    check("--nproc_per_node", &["a value is required", "--nproc_per_node"]);
    check("", &["there is nothing to start", "fleetrun demo:wide_deep"]);
    check("nothing.py", &["cannot find the script 'nothing.py'"]);
    check("./nothing", &["cannot find the script './nothing'"]);
    check("nothing-of-this-name", &["neither a file nor in PATH"]);
    check("folder.py", &["folder.py is a folder"]);
    check("plain", &["plain cannot be executed", "chmod +x plain"]);
    check("demo:widedeep", &["no built-in job 'demo:widedeep'; did you mean 'wide_deep'?"]);
    check("--python no-such-python job.py", &["cannot find the interpreter", "--python"]);
    check(
        "--log_dir plain/log job.py",
        &["plain is not a folder", "log folder plain/log", "--log_dir FOLDER"],
    );
    check(
        "--ips 198.51.100.1,198.51.100.2 job.py",
        &["this machine is not in the list of hosts", "--host"],
    );
    check("--ips 127.0.0.1 --server_num 1 --worker_num 1 job.py", &["Only one mode", "--ips"]);
    check(
        "--ips 127.0.0.1,127.0.0.2 --host 127.0.0.2 job.py",
        &["common secret", "FLEET_TOKEN", "openssl"],
    );
}

#[test]
fn a_log_that_cannot_be_written() {
    let place = Place::new("log_folder", "touch ran");
    std::fs::create_dir_all(place.path("log/workerlog.0")).unwrap();
    let said = place.run("job.py");
    assert_ne!(said.code, Some(0));
    assert!(said.err.contains("cannot write the log log/workerlog.0"), "{}", said.err);
    assert!(!place.path("ran").exists());
}

/// A pipe must not make the launcher wait for a reader, nor a device make it read without end.
#[test]
fn logs_that_are_not_regular_files() {
    let place = Place::new("log_special", "touch ran");
    std::fs::create_dir(place.path("log")).unwrap();
    let log = place.path("log/workerlog.0");
    let check = || {
        let said = place.run("job.py");
        said.check(
            2,
            &["cannot write the log log/workerlog.0: expected a regular file", "remove it"],
        );
        assert!(!place.path("ran").exists());
    };
    assert!(std::process::Command::new("mkfifo").arg(&log).status().unwrap().success());
    check();
    std::fs::remove_file(&log).unwrap();
    std::os::unix::fs::symlink("/dev/full", &log).unwrap();
    check();
}

#[test]
fn arguments_are_printed_without_control_characters() {
    let place = Place::new("control_characters", "true");
    for line in ["--no\x1b[31m job.py", "--nproc_per_node \x1b[31m job.py", "no\x1b[31m.py"] {
        let said = place.run(line);
        said.check(2, &["\\u{1b}[31m"]);
        assert!(!said.err.contains('\x1b') && !said.out.contains('\x1b'), "{:?}", said.err);
    }
}

#[test]
fn a_port_that_is_taken() {
    let place = Place::new("port", "touch ran");
    let taken = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let want = format!("port {port} of 127.0.0.1 is taken");
    place.run(&format!("--start_port {port} job.py")).check(1, &[&want, "--start_port"]);
    let line = format!("--servers 127.0.0.1:{port} --workers 127.0.0.1 job.py");
    place.run(&line).check(1, &[&want]);
    let line = format!("--server_num 1 --worker_num 1 --http_port {port} job.py");
    place.run(&line).check(1, &[&want]);
    let line = format!("--master 127.0.0.1:{port} job.py");
    place
        .run(&line)
        .check(1, &[&format!("cannot answer at 127.0.0.1:{port}"), "choose another port"]);
    assert!(!place.path("ran").exists());
}

/// A missing interpreter is reported as such, not as an error in the script.
#[test]
fn no_python_anywhere() {
    let place = Place::new("no_python", "touch ran");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_fleetrun"));
    command
        .current_dir(&place.folder)
        .arg("job.py")
        .env("PATH", &place.folder)
        .env_remove("PYTHON");
    let said = crate::Said::new(command.output().unwrap());
    said.check(2, &["there is no Python interpreter", "--python FILE"]);
}

#[test]
fn built_in_jobs_without_a_part_for_the_mode() {
    let place = Place::new("builtin_mode", "");
    let said = place.run("--server_num=1 --worker_num=1 demo:bert --samples 64");
    said.check(
        2,
        &[
            "demo:bert does not train on servers",
            "AdamW",
            "demo:wide_deep",
            "--nproc_per_node 2 demo:bert",
        ],
    );
    assert!(!place.path("log").exists(), "nothing was started");
    let said = place.run("--server_num=1 --worker_num=1 --heter_worker_num=1 demo:wide_deep");
    said.check(2, &["no part for heterogeneous workers", "--worker_num 2 demo:wide_deep"]);
    let said = place.run("--server_num=1 --worker_num=1 --coordinator_num=1 demo:wide_deep");
    said.check(2, &["no part for coordinators", "leave out --coordinator_num"]);
}
