//! Jobs that are killed resume from their checkpoints. When the kill comes does not matter to what
//! is compared: the finished model.

use super::*;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Steps between checkpoints are few, so that a job is killed in the middle of an epoch.
pub const LONG: &str = "[train]\nbatch = 60\nepochs = 30\noptimizer = { rate = 0.003 }\n\
    checkpoint_every = 7\n[model]\ndropout = 0.1\n";
/// A training in one process.
const ALONE: &str = "fleet job train job.toml --threads 1";
/// A job that takes longer is broken.
const TIMEOUT: Duration = Duration::from_secs(300);

fn start(place: &Place, line: &str) -> Child {
    let mut words = line.split_whitespace();
    let mut command = Command::new(Place::binary(words.next().unwrap()));
    let command = command.current_dir(&place.0).args(words).envs(place.1.iter().cloned());
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts")
}

/// Starts a job, and kills it once these files are in a checkpoint, which is whole then.
pub fn kill_after_checkpoint(place: &Place, line: &str, last_files: &[&str]) {
    let folder = place.0.join("model/checkpoints");
    let mut child = start(place, line);
    let begin = Instant::now();
    let has_checkpoint = || {
        let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).any(|path| {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            name.starts_with("step-") && last_files.iter().all(|file| path.join(file).exists())
        })
    };
    while !has_checkpoint() {
        assert!(child.try_wait().unwrap().is_none(), "the job ended without a checkpoint");
        assert!(begin.elapsed() < TIMEOUT, "no checkpoint in {TIMEOUT:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the files of a model whose bytes follow from the job alone.
fn model(place: &Place) -> Vec<(String, Vec<u8>)> {
    let mut files = vec!["features.json".to_string(), "job.toml".to_string()];
    for entry in fs::read_dir(place.0.join("model/program")).unwrap() {
        let path = entry.unwrap().path();
        assert!(path.is_file(), "{}", path.display());
        files.push(format!("program/{}", path.file_name().unwrap().to_str().unwrap()));
    }
    files.sort();
    let read = |name: String| {
        let bytes = fs::read(place.0.join("model").join(&name)).unwrap();
        (name, bytes)
    };
    files.into_iter().map(read).collect()
}

/// Returns the report without the times.
pub fn report(place: &Place) -> serde_json::Value {
    let mut report: serde_json::Value =
        serde_json::from_str(&place.read("model/report.json")).unwrap();
    report.as_object_mut().unwrap().remove("seconds");
    report
}

/// Trains the job of `place` without a kill, and in another folder with one.
fn a_killed_job_makes_the_same_model(
    name: &str,
    place: impl Fn(&str) -> Place,
    line: &str,
    last_files: &[&str],
) {
    let whole = place(&format!("{name}_whole"));
    whole.run(line);
    let killed = place(&format!("{name}_killed"));
    kill_after_checkpoint(&killed, line, last_files);
    assert!(!killed.0.join("model/report.json").exists());
    let said = killed.run(line);
    assert!(said.contains("resumed after step"), "{said}");
    let (expected, got) = (model(&whole), model(&killed));
    for ((name, expected), (_, got)) in expected.iter().zip(&got) {
        assert!(expected == got, "{name} differs");
    }
    assert_eq!(expected.len(), got.len());
    assert_eq!(report(&killed), report(&whole));
    assert!(!killed.0.join("model/checkpoints").exists());
}

#[test]
fn one_process_resumes_to_the_same_bits() {
    let place = |name: &str| binary_job(name, LONG);
    a_killed_job_makes_the_same_model("one", place, ALONE, &["checkpoint.json"]);
}

#[test]
fn several_labels_resume_to_the_same_bits() {
    let place = |name: &str| mmoe::mmoe_job(name, &LONG.replace("[model]\ndropout = 0.1\n", ""));
    a_killed_job_makes_the_same_model("mmoe", place, ALONE, &["checkpoint.json"]);
}

/// Drawn items follow from epoch and batch, so a training that resumes draws the same ones.
#[test]
fn drawn_items_resume_to_the_same_bits() {
    let place = |name: &str| {
        let place = retrieval_job(name, "hidden = [16]\nnegatives = 30");
        let job =
            place.read("job.toml").replace(SHORT, &LONG.replace("[model]\ndropout = 0.1\n", ""));
        fs::write(place.0.join("job.toml"), job).unwrap();
        place
    };
    a_killed_job_makes_the_same_model("drawn", place, ALONE, &["checkpoint.json"]);
}

#[test]
fn streamed_rows_resume_to_the_same_bits() {
    let place = |name: &str| {
        let place = binary_job(name, LONG);
        let job = place.read("job.toml");
        let job = job.replace("missing", "memory = \"1KB\"\nwindow = 500\nmissing");
        let job = job.replace("train = \"train.csv\"", "train = [\"train.csv\", \"more.csv\"]");
        fs::write(place.0.join("job.toml"), job).unwrap();
        fs::write(place.0.join("more.csv"), rows(3, 1000)).unwrap();
        place
    };
    a_killed_job_makes_the_same_model("streamed", place, ALONE, &["checkpoint.json"]);
}

#[test]
fn two_ranks_resume_to_the_same_bits() {
    let line = "fleetrun --nproc_per_node 2 job:job.toml --threads 1";
    let files = ["checkpoint.json", "rank-00000/checkpoint.json", "rank-00001/checkpoint.json"];
    let place = |name: &str| binary_job(name, LONG);
    a_killed_job_makes_the_same_model("ranks", place, line, &files);
}

/// Asynchronous servers do not give the same bits twice. No row is trained twice or left out.
#[test]
fn servers_resume_without_repeating_rows() {
    let line = "fleetrun --server_num 1 --worker_num 2 job:job.toml --threads 1";
    let rest = LONG.replace("[model]\ndropout = 0.1\n", "");
    let whole = binary_job("servers_whole", &rest);
    whole.run(line);
    let killed = binary_job("servers_killed", &rest);
    kill_after_checkpoint(&killed, line, &["done"]);
    let said = killed.run(line);
    assert!(said.contains("resumed after step"), "{said}");
    let (expected, got) = (report(&whole), report(&killed));
    assert_eq!(got["steps"], expected["steps"]);
    assert_eq!(got["rows"], expected["rows"]);
    assert!(killed.measure("auc") > 0.85, "{}", killed.measure("auc"));
}
