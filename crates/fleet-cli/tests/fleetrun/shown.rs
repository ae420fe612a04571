//! Display of a job's logs.

use crate::Place;
use std::io::Read;

#[test]
fn all_logs_with_prefixes_or_none() {
    let place = Place::new("follow", "echo from $PADDLE_TRAINER_ID; printf unended");
    let said = place.run("--nproc_per_node 2 --follow all job.py");
    for line in ["[worker 0] from 0", "[worker 1] from 1", "[worker 1] unended"] {
        assert!(said.out.lines().any(|it| it == line), "{line}: {}", said.out);
    }
    assert!(!said.out.contains('\x1b'), "no colours where there is no terminal");
    assert_eq!(place.run("--follow none job.py").out, "");
    assert_eq!(place.run("--log_level error job.py").err, "");
}

/// By default the arguments of the user and the variables that the documents show.
#[test]
fn the_tables_of_the_documents_in_short() {
    let place = Place::new("compact", "echo $PADDLE_CURRENT_ENDPOINT > endpoint; sleep 0");
    let said = place.run("--nproc_per_node 1 job.py x");
    let endpoint = place.read("endpoint").trim().to_string();
    let row = |name: &str, value: &str| {
        let found =
            |line: &&str| line.contains(name) && line.trim_end_matches([' ', '|']).ends_with(value);
        assert!(said.err.lines().any(|line| found(&line)), "{name} {value}: {}", said.err);
    };
    said.check(
        0,
        &[
            "fleetrun: job.py: collective, 1 worker;",
            "Configuration Arguments: nproc_per_node: 1; python: sh; training_script: job.py; \
         training_script_args: ['x']\n",
            "launch train in CPU mode\n",
            "Local start 1 processes. \
         First process distributed environment info (Only For Debug): \n    +====",
            "details about PADDLE_TRAINER_ENDPOINTS can be found in log/endpoints.log, \
         and detail running logs maybe found in log/workerlog.0",
        ],
    );
    row("Distributed Envs", "Value");
    row("PADDLE_TRAINER_ID", "0");
    row("PADDLE_CURRENT_ENDPOINT", &endpoint);
    row("PADDLE_TRAINERS_NUM", "1");
    row("PADDLE_TRAINER_ENDPOINTS", &endpoint);
    for other in ["FLEET_", "POD_NAME", "heter_workers", "launch proc_id:"] {
        assert!(!said.err.contains(other), "{other}: {}", said.err);
    }
    let said = place.run("--server_num 1 --worker_num 1 job.py");
    for name in ["PADDLE_PSERVERS_IP_PORT_LIST", "TRAINING_ROLE", "PADDLE_PORT"] {
        assert!(said.err.contains(name), "{name}: {}", said.err);
    }
    let said = place.run("--log_level warning job.py");
    assert_eq!(said.err, "");
}

#[test]
fn the_tables_of_the_documents() {
    let place = Place::new("verbose", "echo $FLEET_TOKEN > token; echo my token is $FLEET_TOKEN");
    let said = place.run("-v --nproc_per_node 2 job.py x");
    said.check(0, &[
        "-----------  Configuration Arguments -----------\n",
        "nproc_per_node: 2\n",
        "training_script_args: ['x']\n",
        "launch train in CPU mode\n",
        "Local start 2 processes. \
         First process distributed environment info (Only For Debug): \n    +====",
        "|                        Distributed Envs                      Value                    |",
        "details about PADDLE_TRAINER_ENDPOINTS can be found in log/endpoints.log, \
         and detail running logs maybe found in log/workerlog.0",
        "launch proc_id:",
    ]);
    let token = place.read("token").trim().to_string();
    assert_eq!(token.len(), 64);
    assert!(!said.err.contains(&token) && !said.out.contains(&token), "the secret is not shown");
    assert!(said.out.contains("my token is ***"), "{}", said.out);
}

/// Output that is not text, does not end its line, or is long does no harm.
#[test]
fn logs_that_are_no_text() {
    let script = "if [ $PADDLE_TRAINER_ID = 1 ]; then printf 'a\\000\\377\\033[2Jb\\n'\n\
                  head -c 300000 /dev/zero | tr '\\0' x; printf '\\rend'; exit 3; fi; sleep 600";
    let place = Place::new("no_text", script);
    let said = place.run("--nproc_per_node 2 --follow all job.py");
    said.check(3, &["exited with code 3", "  | end"]);
    assert!(!said.err.contains('\x1b') && !said.err.contains('\0'), "reports are for reading");
    assert_eq!(said.out.matches('x').count(), 300_000, "the followed log is whole");
}

/// With the log and the messages in one pipe, a message starts on a line of its own.
#[test]
fn a_message_after_an_unended_line() {
    let place = Place::new("unended", "printf unended; exit 3");
    let (mut reader, out) = std::io::pipe().unwrap();
    let mut command = place.command("job.py");
    command.stdout(out.try_clone().unwrap()).stderr(out);
    let mut launcher = command.spawn().unwrap();
    // The command keeps ends of the pipe open until it is dropped.
    drop(command);
    let mut text = String::new();
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(3), "{text}");
    assert!(text.lines().any(|line| line == "unended"), "{text}");
    assert!(text.lines().any(|line| line.starts_with("error: worker 0 ")), "{text}");
}

/// The secret is also hidden if it is written in two parts.
#[test]
fn a_secret_in_parts() {
    let script = "printf %s \"$FLEET_TOKEN\" | head -c 20; sleep 0.3\n\
                  printf %s \"$FLEET_TOKEN\" | tail -c +21; echo .";
    let place = Place::new("parts", script);
    assert_eq!(place.run("job.py").out, "***.\n");
}

/// A full disk, if one can be created.
#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_said() {
    let place = Place::new(
        "full",
        "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done\n\
                                    until [ -e go ]; do sleep 0.05; done; exit 5",
    );
    std::fs::create_dir(place.path("log")).unwrap();
    let line = format!(
        "mount -t tmpfs -o size=48k none log && exec {} --python sh --log_dir log job.py",
        env!("CARGO_BIN_EXE_fleetrun")
    );
    // A mount namespace of its own, if the system allows unprivileged ones.
    let unshare = |line: &str| {
        let mut command = std::process::Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-c", line]);
        command.current_dir(&place.folder).stdin(std::process::Stdio::null());
        command.env(crate::PLACE, place.mark());
        command
    };
    let can = unshare("mount -t tmpfs none log").output().is_ok_and(|it| it.status.success());
    if !can {
        eprintln!("no disk can be made here: the test has nothing to do");
        return;
    }
    let said = std::fs::File::create(place.path("said")).unwrap();
    let mut child =
        unshare(&line).stdout(std::process::Stdio::null()).stderr(said).spawn().unwrap();
    crate::until("a warning", || place.read("said").contains("warning: the disk of log is full"));
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(5));
    assert!(
        place.read("said").contains("what it wrote last may be lost"),
        "{}",
        place.read("said")
    );
}
