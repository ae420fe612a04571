//! No process outlives the launcher, however it ends.
#![cfg(target_os = "linux")]

use crate::{Place, Said, kill, marked, signal, until};
use std::panic::{catch_unwind, resume_unwind};
use std::sync::Mutex;

/// A worker with a child in its process group and a daemon outside it.
const FAMILY: &str = "echo $FLEET_LAUNCH > mark.tmp; mv mark.tmp mark\n\
                      echo $PADDLE_GLOO_FS_PATH > scratch\n\
                      sleep 600 &\n\
                      setsid sh -c 'trap \"\" TERM HUP; touch daemon; sleep 600 & wait' &\n\
                      touch up.$PADDLE_TRAINER_ID\n\
                      until [ -e go ]; do sleep 0.05; done";

fn start(name: &str) -> (Place, std::process::Child, String) {
    let place = Place::new(name, FAMILY);
    let child = place.start("--nproc_per_node 2 job.py");
    until("the start", || place.count("up.") == 2 && place.path("daemon").exists());
    let mark = place.read("mark").trim().to_string();
    until("two families", || marked(&mark).len() >= 8);
    (place, child, mark)
}

#[test]
fn kill_9_of_the_launcher() {
    let (place, mut child, mark) = start("kill9");
    let scratch = std::path::PathBuf::from(place.read("scratch").trim());
    assert!(scratch.is_dir());
    child.kill().unwrap();
    child.wait().unwrap();
    until("the end of all", || marked(&mark).is_empty());
    until("the end of the temporary folder", || !scratch.exists());
}

#[test]
fn the_end_of_the_job() {
    let (place, child, mark) = start("daemons");
    std::fs::write(place.path("go"), "").unwrap();
    Said::new(child.wait_with_output().unwrap()).check(0, &[]);
    assert_eq!(marked(&mark), [] as [u32; 0], "nothing is left when the launcher has ended");
}

#[test]
fn ctrl_c() {
    let (_place, child, mark) = start("ctrl_c");
    signal(child.id(), "INT");
    Said::new(child.wait_with_output().unwrap()).check(130, &[]);
    assert_eq!(marked(&mark), [] as [u32; 0]);
}

#[test]
fn kill_9_of_the_launcher_and_its_guard() {
    let (_place, mut child, mark) = start("kill9_guard");
    let guards = || -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.filter(|pid| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
        })
        .collect()
    };
    let guard = guards();
    assert_eq!(guard.len(), 1);
    signal(guard[0], "KILL");
    child.kill().unwrap();
    child.wait().unwrap();
    // The kernel still kills the direct children; no process tracks the others.
    let workers = || {
        let direct = |pid: &u32| {
            let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            String::from_utf8_lossy(&line).contains("job.py")
        };
        marked(&mark).into_iter().filter(direct).count()
    };
    until("the end of the workers", || workers() == 0);
    until("the end of the rest", || {
        marked(&mark).into_iter().for_each(kill);
        marked(&mark).is_empty()
    });
}

/// The guard of a launcher may be killed too; the launcher replaces it.
#[test]
fn another_guard_follows_one_that_is_killed() {
    let place = Place::new("guards", "touch up; until [ -e go ]; do sleep 0.05; done");
    let child = place.start("job.py");
    until("the start", || place.path("up").exists());
    let guard = || {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
        pids.find(|pid| crate::parent(*pid) == Some(child.id()) && is_guard(*pid))
    };
    until("a guard", || guard().is_some());
    let first = guard().unwrap();
    signal(first, "KILL");
    until("another guard", || guard().is_some_and(|pid| pid != first));
    std::fs::write(place.path("go"), "").unwrap();
    let said = Said::new(child.wait_with_output().unwrap());
    said.check(
        0,
        &[&format!(
            "warning: the guard of this launch (pid {first}) was killed by SIGKILL (9); another \
             one was started"
        )],
    );
}

fn is_guard(pid: u32) -> bool {
    let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.split(|byte| *byte == 0).any(|word| word == b"__guard")
}

/// Dropping a [`Place`] ends its job, even if the test failed.
#[test]
fn a_test_that_fails_ends_its_job() {
    let seen = Mutex::new((String::new(), std::path::PathBuf::new()));
    let failed = catch_unwind(|| {
        let (place, _child, mark) = start("failed");
        *seen.lock().unwrap() = (mark, place.read("scratch").trim().into());
        resume_unwind(Box::new("as a panic, without words"));
    });
    assert!(failed.is_err());
    let (mark, scratch) = seen.into_inner().unwrap();
    assert_eq!(marked(&mark), [] as [u32; 0]);
    assert!(!mark.is_empty() && !scratch.exists(), "{}", scratch.display());
}
