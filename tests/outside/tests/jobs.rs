//! The program as a user runs it: alone, as two ranks, and as a server with two workers.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Runs the program in a folder, and returns its output.
fn run(folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outside"));
    let output = command.args(args).current_dir(folder).output().expect("the program starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{args:?}: {said}");
    said
}

/// Creates an empty folder with data.
fn with_data(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("jobs").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    run(&folder, &["make", "data"]);
    folder
}

/// Asserts that most test points are predicted, and that the saved model predicts one.
fn check_model(folder: &Path, said: &str) {
    let share = said.lines().find_map(|line| line.split_once(" % of the test points"));
    let word = share.and_then(|(share, _)| share.split_whitespace().last());
    let share: f64 = word.and_then(|word| word.parse().ok()).expect(said);
    assert!(share > 80.0, "{said}");
    run(folder, &["verify", "out/model"]);
    let predicted: f32 = run(folder, &["predict", "out/model", "0.5", "1"]).trim().parse().unwrap();
    assert!((predicted - 0.98).abs() < 0.3, "{predicted}");
}

#[test]
fn alone() {
    let folder = with_data("alone");
    let said = run(&folder, &["train", "data", "out", "2"]);
    assert!(said.contains("% of the test points"), "{said}");
    // The same command continues the training.
    let said = run(&folder, &["train", "data", "out", "10"]);
    check_model(&folder, &said);
    let scalars = std::fs::read_to_string(folder.join("out/scalars.csv")).expect("scalars");
    assert!(scalars.lines().next().expect("a header").contains("test loss"), "{scalars}");
    assert!(folder.join("out/params.npz").is_file());
}

#[test]
fn two_ranks() {
    let folder = with_data("ranks");
    let said = run(&folder, &["launch", "--nproc_per_node=2", "train", "data", "out", "10"]);
    check_model(&folder, &said);
}

#[test]
fn a_server_and_two_workers() {
    let folder = with_data("servers");
    let flags = ["launch", "--server_num=1", "--worker_num=2"];
    let said = run(&folder, &[&flags[..], &["train", "data", "out", "10"]].concat());
    check_model(&folder, &said);
}

#[test]
fn commands_know_the_op_and_the_network() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    assert!(run(folder, &["print", "model:surface"]).contains(" = bent(X: "));
    assert!(run(folder, &["stats", "model:surface", "--batch", "8"]).contains("  bent"));
    assert!(run(folder, &["rewrite", "model:surface", "--ranks", "2"]).contains("bent_grad("));
    let help = run(folder, &["--help"]);
    assert!(["make", "train", "predict", "launch", "print"].iter().all(|it| help.contains(it)));
    assert!(run(folder, &["launch", "train", "--help"]).contains("FOLDER OUTPUT [EPOCHS]"));
}
