//! A failure is an error on every rank, and the error names its cause.

use crate::common::each_rank;
use fleet_base::{Error, ErrorKind, Result};
use fleet_comm::{Group, GroupOptions, ReduceOp};
use std::time::{Duration, Instant};

/// Checks that every rank fails with a text that contains all of `parts`.
fn check(work: impl Fn(&Group) -> Result<()> + Sync, parts: &[&str]) {
    for shared_memory in [true, false] {
        let options = GroupOptions { shared_memory, ..GroupOptions::default() };
        let results = each_rank(3, &options, |group, _| work(group));
        for (rank, result) in results.into_iter().enumerate() {
            let text = result.expect_err("every rank fails").to_string();
            for part in parts {
                assert!(
                    text.contains(part),
                    "'{part}' is missing in the error of rank {rank}: {text}"
                );
            }
        }
    }
}

#[test]
fn different_calls_are_named() {
    check(
        |group| match group.rank() {
            1 => group.all_reduce("fc_1.w@GRAD", &mut [0.0f32; 7], ReduceOp::Sum),
            _ => group.all_reduce("fc_0.w@GRAD", &mut [0.0f32; 7], ReduceOp::Sum),
        },
        &["rank 1", "all_reduce #0 'fc_1.w@GRAD' (sum f32 x 7)", "'fc_0.w@GRAD'"],
    );
    check(
        |group| match group.rank() {
            2 => group.all_reduce("x", &mut [0.0f32; 8], ReduceOp::Sum),
            _ => group.all_reduce("x", &mut [0.0f32; 7], ReduceOp::Sum),
        },
        &["f32 x 7", "f32 x 8", "same order"],
    );
    check(
        |group| match group.rank() {
            0 => group.all_reduce("x", &mut vec![0.0f32; 100_000], ReduceOp::Sum),
            _ => group.all_reduce("x", &mut vec![0.0f64; 100_000], ReduceOp::Sum),
        },
        &["f32 x 100000", "f64 x 100000"],
    );
    check(
        |group| match group.rank() {
            0 => group.barrier("epoch"),
            _ => group.all_reduce("x", &mut [0.0f32; 7], ReduceOp::Max),
        },
        &["barrier #0 'epoch'", "(max f32 x 7)"],
    );
    check(
        |group| match group.rank() {
            2 => group.broadcast("x", &mut [0.0f32; 7], 2).and_then(|()| group.barrier("after")),
            _ => group.broadcast("x", &mut [0.0f32; 7], 1).and_then(|()| group.barrier("after")),
        },
        &["root 1", "root 2"],
    );
}

#[test]
fn wrong_arguments_of_one_rank_are_told_to_all() {
    check(
        |group| {
            let mut output = vec![0.0f32; if group.rank() == 1 { 5 } else { 6 }];
            group.all_gather("x", &[0.0; 2], &mut output)
        },
        &["output of all_gather has the wrong length"],
    );
    check(
        |group| {
            let root = if group.rank() == 0 { 3 } else { 0 };
            group.reduce("x", &mut [0; 4], ReduceOp::Sum, root)?;
            group.barrier("y")
        },
        &["no such rank in the group"],
    );
    check(
        |group| {
            let sends = [1, 1, 1];
            let receives = if group.rank() == 2 { [1, 2, 1] } else { [1, 1, 1] };
            let mut output = vec![0u8; receives.iter().sum()];
            group.all_to_all_v("x", &[1, 2, 3], &sends, &mut output, &receives)?;
            group.barrier("y")
        },
        &["rank 1 sends 1 bytes to rank 2"],
    );
}

#[test]
fn messages_must_match() {
    let results = each_rank(2, &GroupOptions::default(), |group, _| match group.rank() {
        0 => group.send("a", &[1.0f32; 4], 1).and_then(|()| group.barrier("end")),
        _ => group.recv("b", &mut [0.0f32; 4], 0),
    });
    for result in results {
        let text = result.expect_err("both fail").to_string();
        assert!(text.contains("send #0 'a'") && text.contains("recv #0 'b'"), "{text}");
    }
}

#[test]
fn a_rank_that_leaves_is_named() {
    let results = each_rank(3, &GroupOptions::default(), |group, _| match group.rank() {
        1 => Ok(()),
        _ => group.all_reduce("x", &mut [0.0f32; 7], ReduceOp::Sum),
    });
    for rank in [0, 2] {
        let error = results[rank].as_ref().expect_err("the others fail");
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        assert!(text.contains("rank 1 (host"), "{text}");
        assert!(
            text.contains("has left the group") && text.contains("all_reduce #0 'x'"),
            "{text}"
        );
        assert!(text.contains("missing: 1)"), "{text}");
    }
}

#[test]
fn a_deadline_ends_a_wait() {
    for (shared_memory, waited_for, joined) in [
        (true, "rank 1 (host", "joined: 0; missing: 1"),
        (false, "from rank 1 (host", "joined: 0; missing: 1"),
    ] {
        let timeout = Duration::from_millis(100);
        let options = GroupOptions { timeout, shared_memory, ..Default::default() };
        let gate = std::sync::Barrier::new(2);
        let results = each_rank(2, &options, |group, _| {
            let result = match group.rank() {
                0 => group.all_reduce("x", &mut [0.0f32; 7], ReduceOp::Sum),
                _ => Ok(()),
            };
            gate.wait();
            result
        });
        let text = results[0].as_ref().expect_err("rank 1 did not join").to_string();
        assert!(text.contains("the deadline passed while waiting for"), "{text}");
        assert!(text.contains(waited_for) && text.contains(joined), "{text}");
    }
}

#[test]
fn abort_wakes_everybody() {
    let begin = Instant::now();
    let results = each_rank(4, &GroupOptions::default(), |group, _| {
        if group.rank() == 3 {
            group.abort(Error::unavailable("the user pressed a key"));
        }
        group.barrier("never")
    });
    assert!(begin.elapsed() < Duration::from_secs(60));
    for result in results {
        assert!(result.expect_err("all fail").to_string().contains("the user pressed a key"));
    }
}

#[test]
fn what_happened_is_written_down() {
    let folder = std::env::temp_dir().join(format!("fleet-comm-record-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the test");
    let all = [0, 1];
    std::thread::scope(|scope| {
        for world in fleet_comm::World::threads(2) {
            let path = folder.join(format!("{}.jsonl", world.rank()));
            scope.spawn(move || {
                let world = world.record_to(path.clone());
                let group = world.group("world", &all, &GroupOptions::default()).expect("opens");
                for _ in 0..3 {
                    group.all_reduce("fine", &mut [1.0f32], ReduceOp::Sum).expect("succeeds");
                }
                let label = if group.rank() == 0 { "left" } else { "right" };
                let error = group.barrier(label).expect_err("the calls differ");
                assert!(error.to_string().contains(&path.display().to_string()), "{error}");
                assert_eq!(group.barrier("again").expect_err("the group has failed"), error);
            });
        }
    });
    for (rank, label) in ["left", "right"].iter().enumerate() {
        let text = std::fs::read_to_string(folder.join(format!("{rank}.jsonl"))).expect("a file");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[3].contains(label) && lines[3].contains("\"state\": \"failed\""), "{text}");
    }
    std::fs::remove_dir_all(&folder).expect("the folder is removed");
}
