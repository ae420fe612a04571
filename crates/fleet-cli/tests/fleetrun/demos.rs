//! Built-in jobs.

use crate::{Place, Said, signal, until};
use std::path::Path;

#[test]
fn a_demo_trains_as_one_worker() {
    let place = Place::new("demo", "");
    let said = place.run("demo:lenet --samples 64 --threads 2 --output saved");
    said.check(0, &["demo:lenet: collective, 1 worker"]);
    for part in ["100 %", "loss ", "samples/s", "unseen digits classified correctly"] {
        assert!(said.out.contains(part), "'{part}' is not in:\n{}", said.out);
    }
    assert_eq!(place.read("log/workerlog.0"), said.out);
    assert!(place.path("saved").is_dir());
}

/// Returns the loss in the last line of progress.
#[track_caller]
fn loss(said: &Said) -> f64 {
    let line = said.out.lines().find(|line| line.contains("100 %")).expect("the last line");
    let after = line.split_once("loss ").expect("a loss").1;
    after.split_whitespace().next().and_then(|it| it.parse().ok()).expect("a number")
}

#[test]
fn several_workers_train_the_same() {
    let sizes = [("lenet", "320"), ("resnet", "64"), ("bert", "320"), ("word2vec", "8192")];
    for (name, samples) in sizes {
        let place = Place::new(&format!("demo_several/{name}"), "");
        let line = format!("demo:{name} --samples {samples} --threads 1 --output saved");
        let alone = place.run(&line);
        alone.check(0, &[]);
        let several = place.run(&format!("--nproc_per_node 2 --log_overwrite {line}"));
        several.check(0, &["collective, 2 workers"]);
        for part in ["per worker for 2 workers", "over all 2 workers", "see fleet stats"] {
            assert!(several.out.contains(part), "'{part}' is not in:\n{}", several.out);
        }
        // Shares of a BERT batch have different numbers of masked words. ResNet normalises over one
        // share.
        let near = match name {
            "resnet" => 1.0,
            "bert" => 0.05,
            _ => 2e-3,
        };
        let (one, two) = (loss(&alone), loss(&several));
        assert!((one - two).abs() < near, "{name}: loss {one} alone, {two} with two workers");
        let other = place.read("log/workerlog.1");
        assert!(other.contains("100 %") && !other.contains("trained"), "{other}");
    }
}

/// With the same limit for each process, one worker cannot train a model, and four can.
#[test]
fn workers_train_what_does_not_fit_in_one() {
    let place = Place::new("demo_memory", "");
    let line = "--memory 40MiB --log_overwrite demo:gpt --samples 64 --threads 1";
    let told = ["does not fit into the memory", "at most 40 MiB", "of temporaries", "fleet plan"];
    place.run(line).check(1, &told);
    let strategy =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/strategies/sharding.prototxt");
    let four = place.run(&format!("--nproc_per_node 4 {line} --strategy {strategy}"));
    four.check(0, &["collective, 4 workers"]);
    let whole = place.run("--log_overwrite demo:gpt --samples 64 --threads 1");
    for said in [&four, &whole] {
        assert!(said.out.contains("gpt: 3.3 M parameters"), "{}", said.out);
    }
    let (four, whole) = (loss(&four), loss(&whole));
    assert!((four - whole).abs() < 2e-3, "loss {four} with four workers, {whole} with one");
    place.run("--memory lots demo:gpt").check(2, &["--memory", "a size with a unit", "'lots'"]);
}

/// Two stages share the embedding of GPT, which is also its output layer. Any schedule trains the
/// same model as one worker with the same micro-batches.
#[test]
fn two_workers_are_a_pipeline() {
    let place = Place::new("demo_pipeline", "");
    let trained = |workers: usize, schedule: &str| {
        let text = format!(
            "pipeline: true\n\
             pipeline_configs {{ accumulate_steps: 4 schedule_mode: \"{schedule}\" }}\n"
        );
        std::fs::write(place.path("job.prototxt"), text).unwrap();
        let said = place.run(&format!(
            "--nproc_per_node {workers} --log_overwrite demo:gpt --samples 64 --threads 1 \
             --strategy job.prototxt"
        ));
        said.check(0, &[]);
        loss(&said)
    };
    let one = trained(1, "1F1B");
    for schedule in ["1F1B", "F-then-B", "ZBH1"] {
        let two = trained(2, schedule);
        assert!((two - one).abs() < 2e-3, "{schedule}: loss {two}, {one} with one worker");
    }
}

#[test]
fn a_demo_trains_by_a_strategy() {
    let place = Place::new("demo_strategy", "");
    let write = |text: &str| std::fs::write(place.path("job.prototxt"), text).unwrap();
    let line = "--nproc_per_node 2 --log_overwrite demo:lenet --samples 64 --strategy job.prototxt";
    write("fp16_allreduce: true\ngradient_merge: true\ngradient_merge_configs { k_steps: 2 }\n");
    let said = place.run(line);
    said.check(0, &[]);
    let log = place.read("log/workerlog.0");
    assert!(log.contains("GradientMerge") && log.contains("FP16AllReduce"), "{log}");
    write("auto: true\n");
    place.run(line).check(0, &[]);
    let log = place.read("log/workerlog.0");
    assert!(log.contains("fleet: auto: ") && log.contains("(measured)"), "{log}");
    write("amp: true\namp_configs { decr_ratio: 1.5 incr_every_n_steps: 0 }\n");
    place.run(line).check(1, &["the strategy has 2 errors", "amp_configs.incr_every_n_steps"]);
    write("fp16_allreduc: true\n");
    place.run(line).check(1, &["job.prototxt", "fp16_allreduce"]);
    place.run("demo:lenet --strategy nothing.prototxt").check(1, &["nothing.prototxt"]);
}

/// An invalid strategy is reported with the line of its file, the field and the value. No line of
/// Rust code that the user did not write is shown.
#[test]
fn a_strategy_that_cannot_be_is_told_by_its_line() {
    let (ranks, servers) = ("--nproc_per_node 2", "--server_num=1 --worker_num=1");
    let place = Place::new("demo_strategy_lines", "");
    for (job, file, text, told) in [
        (
            ranks,
            "job.prototxt",
            "amp: true\nhybrid_configs { sep_degree: 2 }\n",
            "job.prototxt:2:30: hybrid_configs.sep_degree: 2 is not supported",
        ),
        (servers, "job.prototxt", "\n  lamb: true\n", "job.prototxt:2:9: lamb: true\n"),
        (
            servers,
            "job.toml",
            "gradient_merge = true\n[gradient_merge_configs]\nk_steps = 4\n",
            "job.toml:1:18: gradient_merge: true\n",
        ),
        (
            ranks,
            "job.json",
            "{\"recompute\": true,\n \"recompute_configs\": {\"checkpoints\": [\"nowhere\"]}}",
            "job.json:2:40: recompute_configs.checkpoints[0]: \"nowhere\"\n",
        ),
        // Invalid values: one error, and several.
        (
            servers,
            "job.prototxt",
            "a_sync: false\na_sync_configs { k_steps: 4 }",
            "job.prototxt:2:27: a_sync_configs.k_steps: expected 0 without a_sync, got 4",
        ),
        (
            ranks,
            "job.prototxt",
            "dgc: true\ndgc_configs { rampup_step: 0\n sparsity: 2.0 }",
            "job.prototxt:3:12: error: dgc_configs.sparsity[0]: ",
        ),
        // A conflict of a table's description is found only after all fields are read.
        (
            servers,
            "job.prototxt",
            "downpour_table_param { table_name: \"none\" shard_num: 2\n \
             accessor { accessor_class: \"CtrCommonAccessor\" } }",
            "at job.prototxt",
        ),
    ] {
        std::fs::write(place.path(file), text).unwrap();
        let line = format!("{job} --log_overwrite demo:wide_deep --samples 64 --strategy {file}");
        let said = place.run(&line);
        said.check(1, &[told]);
        assert!(!said.err.contains(".rs:"), "{text}: {}", said.err);
    }
}

/// Without `--output` nothing is saved, not even among the temporary files.
#[test]
fn a_demo_leaves_nothing_behind() {
    let place = Place::new("demo_leaves", "");
    let temporary = place.path("temporary");
    std::fs::create_dir(&temporary).unwrap();
    for line in [
        "demo:lenet",
        "--nproc_per_node 2 demo:lenet",
        "--server_num=1 --worker_num=1 demo:lenet",
        "--nproc_per_node 2 demo:wide_deep",
        "--server_num=1 --worker_num=1 demo:wide_deep",
    ] {
        let mut command = place.command(&format!("{line} --samples 64 --threads 1"));
        let said = Said::new(command.env("TMPDIR", &temporary).output().unwrap());
        said.check(0, &[]);
        assert!(!said.out.contains("saved  "), "{}", said.out);
        let left: Vec<_> = std::fs::read_dir(&temporary).unwrap().flatten().collect();
        assert!(left.is_empty(), "{line}: {left:?}");
    }
}

/// Every mode of parameter servers as real processes, with the command from the documentation, and
/// with mixed precision.
#[test]
fn a_demo_trains_on_parameter_servers() {
    let place = Place::new("demo_servers", "");
    let write = |text: &str| std::fs::write(place.path("job.prototxt"), text).unwrap();
    for (mode, strategy, servers, workers) in [
        ("sync", "amp: true\na_sync: false\na_sync_configs { k_steps: 0 }", 2, 2),
        ("async", "a_sync: true\na_sync_configs { k_steps: 0 max_merge_var_num: 2 }", 1, 2),
        ("geo", "amp: true\na_sync: true\na_sync_configs { k_steps: 4 }", 3, 1),
    ] {
        write(strategy);
        let said = place.run(&format!(
            "--server_num={servers} --worker_num={workers} --log_overwrite demo:wide_deep \
             --samples 8192 --strategy job.prototxt --output {mode}"
        ));
        said.check(0, &[]);
        assert!(place.path(mode).join("program/model").is_dir(), "{}", said.out);
        let held = format!("{mode} on {servers} server");
        let parts = ["trained     8.19 k samples", "samples/s", "AUC", "best AUC    0.", "pushes"];
        for part in parts.iter().chain(&[&*held]) {
            assert!(said.out.contains(part), "'{part}' of {mode} is not in:\n{}", said.out);
        }
        let log = place.read("log/serverlog.0");
        assert!(log.contains("tables at 127.0.0.1:"), "{log}");
    }
}

/// One model with only sparse tables, and one with only dense parameters.
#[test]
fn other_demos_train_on_parameter_servers() {
    for (name, samples, held, found) in [
        (
            "word2vec",
            65_536,
            "word2vec: async, rows of 16 on 1 server",
            "the best possible is 2.07",
        ),
        (
            "lenet",
            640,
            "lenet: async, 61.71 k parameters on 1 server",
            "unseen digits classified correctly",
        ),
    ] {
        let place = Place::new(&format!("demo_servers_{name}"), "");
        let said =
            place.run(&format!("--server_num=1 --worker_num=2 demo:{name} --samples {samples}"));
        said.check(0, &[]);
        for part in [held, "100 %", "over all 2 workers", found, "pushes"] {
            assert!(said.out.contains(part), "'{part}' of {name} is not in:\n{}", said.out);
        }
    }
}

/// The output folder is checked before training, not after it.
#[test]
fn a_folder_that_cannot_be_written_is_told_at_once() {
    let place = Place::new("demo_folders", "");
    std::fs::write(place.path("file"), "").unwrap();
    for line in [
        "--nproc_per_node 2 --log_overwrite demo:lenet --output file",
        "--nproc_per_node 2 --log_overwrite demo:lenet --trace file/traces",
        "--server_num 1 --worker_num 2 --log_overwrite demo:lenet --output file",
    ] {
        let said = place.run(line);
        said.check(1, &["file is not a folder"]);
        assert!(!said.out.contains("samples/s"), "{}", said.out);
    }
}

#[test]
fn what_is_not_there_is_said() {
    let place = Place::new("demo_refused", "");
    place.run("demo:lenet --sample 3").check(2, &["--samples"]);
}

#[test]
fn a_demo_goes_on_from_its_checkpoint() {
    let place = Place::new("demo_resume", "");
    let line = |samples: u32| {
        format!("demo:lenet --samples {samples} --checkpoint saves --checkpoint_every 2")
    };
    place.run(&line(128)).check(0, &[]);
    let said = place.run(&format!("--nproc_per_node 2 {}", line(256)));
    said.check(0, &[]);
    for part in
        ["resumed after step 4 of 8", "trained   128 samples", "after 128 of an earlier run"]
    {
        assert!(said.out.contains(part), "'{part}' is not in:\n{}", said.out);
    }
    // Three workers cannot divide batches of 32.
    place
        .run(&format!("--nproc_per_node 3 {}", line(256)))
        .check(1, &["batches of 33", "batches of 32"]);
}

/// Returns whether the first worker has printed progress.
pub fn is_at_work(place: &Place) -> bool {
    place.read("log/workerlog.0").contains(" samples/s  loss ")
}

/// Returns the process of a worker of a job in `folder`.
pub fn worker(number: u32, folder: &Path) -> Option<u32> {
    process_with(&format!("PADDLE_TRAINER_ID={number}"), folder)
}

/// Returns the process in a folder with this variable, if these tests started it.
pub fn process_with(place: &str, folder: &Path) -> Option<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let own = format!("{}={} ", crate::PLACE, std::process::id());
    pids.find(|pid| {
        let process = Path::new("/proc").join(pid.to_string());
        let is_there = std::fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder);
        let environ = std::fs::read(process.join("environ")).unwrap_or_default();
        let words = || environ.split(|byte| *byte == 0);
        is_there
            && words().any(|it| it == place.as_bytes())
            && words().any(|it| it.starts_with(own.as_bytes()))
    })
}

#[test]
fn a_killed_worker_costs_what_came_after_the_last_checkpoint() {
    let place = Place::new("demo_killed", "");
    let folder = place.folder.canonicalize().unwrap();
    let child = place.start(
        "--nproc_per_node 2 --max_restart 1 demo:lenet --samples 100000000 --checkpoint saves \
         --checkpoint_every 5",
    );
    let saved = || {
        let entries = std::fs::read_dir(place.path("saves")).into_iter().flatten().flatten();
        let steps = entries.filter(|it| it.file_name().to_string_lossy().starts_with("step-"));
        steps.count() >= 2
    };
    until("a checkpoint", saved);
    signal(worker(1, &folder).expect("worker 1"), "KILL");
    until("the second start", || place.read("log/workerlog.1").contains("resumed after step "));
    until("further steps", || place.read("log/workerlog.0").matches("batches of 32").count() == 2);
    signal(child.id(), "INT");
    let said = Said::new(child.wait_with_output().unwrap());
    said.check(
        130,
        &["worker 1 on 127.0.0.1 (pid ", "was killed by SIGKILL (9)", "started again (1 of 1)"],
    );
    // The other worker may be stopped before it prints anything. If it prints an error, the error
    // names the cause. It may see the end of the process before the launcher tells the signal.
    let log = place.read("log/workerlog.0");
    assert!(log.contains("rank 1 (host ") || !log.contains("error: "), "{log}");
}

/// Returns the number after some words.
fn count(said: &str, words: &str) -> f64 {
    let rest = said.split_once(words).expect(words).1;
    let mut words = rest.split_whitespace();
    let number: f64 = words.next().unwrap().parse().unwrap();
    if words.next() == Some("k") { number * 1000.0 } else { number }
}

/// The worker resumes after its last step that the servers have: with checkpoints, which are older
/// than that, and without.
#[test]
fn a_killed_worker_of_a_job_that_waits_for_nobody_comes_back() {
    let checkpoints = "--checkpoint saves --checkpoint_every 7";
    for (name, k_steps, killed, more) in [
        ("async", 0, 1, ""),
        ("saved", 0, 1, checkpoints),
        ("first", 0, 0, checkpoints),
        ("geo", 4, 1, checkpoints),
    ] {
        let place = Place::new(&format!("demo_worker_back/{name}"), "");
        let strategy = format!("a_sync: true\na_sync_configs {{ k_steps: {k_steps} }}\n");
        std::fs::write(place.path("job.prototxt"), strategy).unwrap();
        let folder = place.folder.canonicalize().unwrap();
        let child = place.start(&format!(
            "--server_num=2 --worker_num=2 --max_restart 1 demo:wide_deep --samples 65536 \
             --threads 1 --strategy job.prototxt {more}"
        ));
        let log = format!("log/workerlog.{killed}");
        until("some steps", || place.read(&log).contains(" 50 %"));
        // The other worker is stopped until this one has restarted, however long that takes on a
        // busy machine.
        let other = worker(1 - killed, &folder).expect("the other worker");
        signal(other, "STOP");
        signal(worker(killed, &folder).expect("the worker"), "KILL");
        until("the second start", || place.read(&log).contains("joined the training"));
        signal(other, "CONT");
        let said = Said::new(child.wait_with_output().unwrap());
        let again = format!("worker {killed} is started again (1 of 1)");
        said.check(0, &["was killed by SIGKILL (9)", &again]);
        let log = place.read(&log);
        assert_eq!(log.matches("batches of").count(), 2, "{log}");
        assert!(log.contains("joined the training in progress"), "{log}");
        // The first worker's output is the job's output, except the part printed before it was
        // killed.
        let told = place.read("log/workerlog.0");
        assert!(told.contains("AUC"), "{told}");
        let share = count(&told, &format!("restarted   worker {killed}: 2 starts, "));
        // The samples of all workers, this one included: all of them, and none twice.
        let all = count(&told, "trained     ");
        assert!((share - 32_768.0).abs() < 10.0, "{name}: {told}");
        assert!((all - 65_536.0).abs() < 10.0 && !told.contains(" planned"), "{name}: {told}");
        // The speed covers only the process that prints it, not all samples ever trained.
        assert_eq!(told.contains(" of them in the "), killed == 0, "{name}: {told}");
        // Checkpoints have the same step for both workers.
        for entry in std::fs::read_dir(place.path("saves")).into_iter().flatten().flatten() {
            let step = entry.file_name().to_string_lossy()["step-".len()..].parse::<u64>().unwrap();
            let done = std::fs::read_to_string(entry.path().join("done")).unwrap();
            assert!(done.contains(&format!("\nsteps {step} {step}\n")), "{name}: {done}");
        }
    }
}

/// A checkpoint made while a worker is lost contains that worker's step. A job that resumes from it
/// makes up the rest of the worker's share.
#[test]
fn what_a_lost_worker_lacked_is_made_when_the_job_goes_on() {
    let place = Place::new("demo_lost_share", "");
    std::fs::write(place.path("job.prototxt"), "a_sync: true").unwrap();
    let folder = place.folder.canonicalize().unwrap();
    let line = "--server_num=1 --worker_num=2 --log_overwrite demo:wide_deep --samples 81920 \
                --threads 1 --strategy job.prototxt --checkpoint saves --checkpoint_every 5";
    let child = place.start(line);
    until("some steps", || place.read("log/workerlog.1").contains(" 20 %"));
    signal(worker(1, &folder).expect("worker 1"), "KILL");
    // Returns the steps of both workers in the newest checkpoint.
    let steps = || {
        let entries = std::fs::read_dir(place.path("saves")).into_iter().flatten().flatten();
        let newest =
            entries.map(|entry| entry.path().join("done")).filter(|it| it.exists()).max()?;
        let text = std::fs::read_to_string(newest).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("steps "))?;
        let (one, other) = line.split_once(' ')?;
        Some((one.parse::<u64>().ok()?, other.parse::<u64>().ok()?))
    };
    until("a checkpoint without it", || steps().is_some_and(|(one, other)| one > other));
    signal(child.id(), "INT");
    child.wait_with_output().unwrap();
    let (one, other) = steps().unwrap();
    let said = place.run(line);
    said.check(0, &[]);
    let log = place.read("log/workerlog.1");
    assert!(log.contains(&format!("resumed after step {other} of 40")), "{log}");
    let told = format!("trained     {:.2} k samples", (80 - one - other) as f64 * 1.024);
    assert!(said.out.contains(&told), "'{told}' is not in:\n{}", said.out);
    assert!(!said.out.contains(" planned"), "{}", said.out);
}

/// Without restarts left, a sync job ends and names the worker. Other jobs continue and report it
/// at the end.
#[test]
fn a_dead_worker_ends_a_job_that_waits_for_it_and_no_other() {
    for (mode, strategy) in [
        ("sync", "a_sync: false"),
        ("async", "a_sync: true"),
        ("geo", "a_sync: true\na_sync_configs { k_steps: 4 }"),
    ] {
        let place = Place::new(&format!("demo_worker_dead/{mode}"), "");
        std::fs::write(place.path("job.prototxt"), strategy).unwrap();
        let folder = place.folder.canonicalize().unwrap();
        let child = place.start(
            "--server_num=1 --worker_num=2 demo:wide_deep --samples 24576 --threads 1 \
             --strategy job.prototxt",
        );
        until("a step", || is_at_work(&place));
        signal(worker(1, &folder).expect("worker 1"), "KILL");
        let said = Said::new(child.wait_with_output().unwrap());
        said.check(137, &["error: worker 1 on 127.0.0.1 (pid ", "was killed by SIGKILL (9)"]);
        let goes_on = mode != "sync";
        assert_eq!(said.out.contains("AUC         0."), goes_on, "{mode}: {}", said.out);
        let told = ["lost        worker 1 is lost: it closed", "over 2 workers, 1 of them lost"];
        for words in told.iter().chain(&[", of 24.58 k planned"]) {
            assert_eq!(said.out.contains(words), goes_on, "{mode}, '{words}': {}", said.out);
        }
        assert_eq!(said.err.contains("go on without worker 1"), goes_on, "{mode}: {}", said.err);
        assert_eq!(said.err.contains(" s without 1 worker, "), goes_on, "{mode}: {}", said.err);
        let server = place.read("log/serverlog.0");
        assert_eq!(server.contains("worker 1 is lost"), goes_on, "{mode}: {server}");
    }
}

#[test]
fn a_job_on_servers_goes_on_from_its_checkpoint() {
    for (name, strategy) in [("sync", "a_sync: false"), ("async", "a_sync: true")] {
        let place = Place::new(&format!("demo_servers_resume/{name}"), "");
        std::fs::write(place.path("job.prototxt"), strategy).unwrap();
        let line = |servers: u32| {
            format!(
                "--server_num={servers} --worker_num=2 --log_overwrite demo:wide_deep \
                 --samples 20480 --strategy job.prototxt --checkpoint saves --checkpoint_every 4 \
                 --threads 1"
            )
        };
        let child = place.start(&line(1));
        let is_done = |entry: std::fs::DirEntry| entry.path().join("done").exists();
        let saves = || std::fs::read_dir(place.path("saves")).into_iter().flatten().flatten();
        until("a checkpoint", || saves().any(is_done));
        signal(child.id(), "INT");
        child.wait_with_output().unwrap();

        let said = place.run(&line(2));
        said.check(0, &[]);
        let log = place.read("log/workerlog.1");
        for text in [&said.out, &log] {
            assert!(text.contains("resumed after step "), "{text}");
        }
        // Samples trained before are not trained again.
        let (now, before) = (count(&said.out, "trained     "), count(&said.out, ", after "));
        assert!((now + before - 20480.0).abs() < 600.0 && before > 0.0, "{}", said.out);
    }
}

/// The job resumes from the checkpoint before. If there is none, it fails instead of silently
/// starting from the beginning.
#[test]
fn a_damaged_checkpoint_is_passed_over() {
    let place = Place::new("demo_servers_damaged", "");
    let line = |samples: u32| {
        format!(
            "--server_num=2 --worker_num=2 --log_overwrite demo:wide_deep --samples {samples} \
             --checkpoint saves --checkpoint_every 4 --threads 1"
        )
    };
    place.run(&line(16_384)).check(0, &[]);
    let newest = "saves/step-000000000008";
    let part = place.path(&format!("{newest}/002/part-001"));
    std::fs::write(&part, "torn").unwrap();
    let said = place.run(&line(16_384));
    said.check(0, &[]);
    let told = format!("{newest}/002/part-001 has the wrong size: expected ");
    for words in ["skipped a checkpoint: ", &told, "resumed after step 4 of 8"] {
        assert!(said.out.contains(words), "'{words}' is not in:\n{}", said.out);
    }
    assert!(place.read("log/workerlog.1").contains("resumed after step 4 of 8"));
    // One bit changes in the file that completes the checkpoint of step 8, which was saved again.
    let done = place.path(&format!("{newest}/done"));
    let text = std::fs::read_to_string(&done).unwrap();
    assert!(text.contains("\nsteps 8 8\n"), "{text}");
    std::fs::write(&done, text.replace("steps 8 8", "steps 8 0")).unwrap();
    let said = place.run(&line(16_384));
    said.check(0, &[]);
    for words in ["/done is damaged: checksum mismatch", "resumed after step 4 of 8"] {
        assert!(said.out.contains(words), "'{words}' is not in:\n{}", said.out);
    }
    // Step 8, which was saved again, and step 4 each lose a part.
    for step in ["saves/step-000000000004", newest] {
        let parts = std::fs::read_dir(place.path(&format!("{step}/000"))).unwrap().flatten();
        let is_lost = |name: &str| name.starts_with("part-001-00000");
        parts
            .filter(|part| is_lost(&part.file_name().to_string_lossy()))
            .for_each(|part| std::fs::remove_file(part.path()).unwrap());
    }
    let said = place.run(&line(16_384));
    said.check(1, &["step-000000000008/000/part-001-00000", " is missing: expected", "help: "]);
}

#[test]
fn a_killed_server_goes_on_with_every_push() {
    let place = Place::new("demo_durable", "");
    let folder = place.folder.canonicalize().unwrap();
    let child =
        place.start("--server_num=1 --worker_num=2 demo:wide_deep --samples 51200 --durable kept");
    until("a step", || is_at_work(&place));
    signal(process_with("TRAINING_ROLE=PSERVER", &folder).expect("the server"), "KILL");
    let said = Said::new(child.wait_with_output().unwrap());
    said.check(0, &["was killed by SIGKILL (9)", "server 0 is started again (1 of 3)"]);
    for part in ["waits for server 0 at", "is reachable again after", "trained     51.2 k", "AUC"] {
        assert!(said.out.contains(part) || said.err.contains(part), "'{part}': {}", said.out);
    }
    let log = place.read("log/serverlog.0");
    assert!(log.contains("fleet: server 0: resumed ") && log.contains(" of the log"), "{log}");
    // Without servers, `--durable` is an error.
    place.run("demo:wide_deep --samples 1024 --durable kept").check(1, &["--durable"]);
}

/// The job ends without creating a new folder, so that the old one can be moved back.
#[test]
fn a_job_whose_durable_folder_is_moved_ends_with_an_error() {
    let place = Place::new("demo_durable_moved", "");
    let line = "--server_num=1 --worker_num=1 demo:lenet --samples 10000000 --durable kept";
    let child = place.start(line);
    until("a worker", || place.read("log/workerlog.0").contains("lenet: async"));
    std::fs::rename(place.path("kept"), place.path("moved")).unwrap();
    let said = Said::new(child.wait_with_output().unwrap());
    said.check(1, &["durable folder was changed", "expected kept/server-000/log-0"]);
    // The worker may detect the failure and end before the server restarts.
    assert!(!place.path("kept").exists() && place.path("moved/server-000/log-0").is_file());
}

/// A synchronous job resumes from the servers' durable folder, with the same result as an
/// uninterrupted run.
#[test]
fn a_stopped_synchronous_job_resumes_on_durable_servers() {
    let place = Place::new("demo_durable_sync", "");
    std::fs::write(place.path("job.prototxt"), "a_sync: false").unwrap();
    let line = |folder: &str| {
        format!(
            "--server_num=2 --worker_num=2 --log_overwrite demo:wide_deep --samples 51200 \
             --strategy job.prototxt --threads 1 {folder}"
        )
    };
    let score = |said: &Said| {
        said.out.lines().find(|line| line.starts_with("AUC  ")).expect("a score").to_string()
    };
    let durable = line("--durable kept");
    let child = place.start(&durable);
    until("a step", || is_at_work(&place));
    signal(child.id(), "INT");
    child.wait_with_output().unwrap();

    let resumed = place.run(&durable);
    resumed.check(0, &[]);
    assert!(resumed.out.contains("joined the training in progress after step "), "{}", resumed.out);
    // The folder of a job that finished successfully cannot be reused: the next job stops at once.
    let said = place.run(&durable);
    said.check(1, &["the job in kept has finished", "help: remove the folder"]);
    let whole = place.run(&line(""));
    whole.check(0, &[]);
    assert_eq!(score(&resumed), score(&whole));
}
