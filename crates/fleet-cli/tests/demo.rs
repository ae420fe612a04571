//! The demos, with a few batches each: their output, and use of the saved models.

use std::path::PathBuf;
use std::process::Command;

fn fleet(args: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fleet"))
        .args(args)
        .output()
        .expect("the tool can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "fleet {}: {stderr}", args.join(" "));
    String::from_utf8(output.stdout).expect("text")
}

fn check(name: &str, samples: &str, target: &str) {
    let folder: PathBuf = [env!("CARGO_TARGET_TMPDIR"), "demo", name].iter().collect();
    let folder = folder.to_str().expect("text");
    let said = fleet(&["demo", name, "--samples", samples, "--threads", "2", "--output", folder]);
    for part in ["parameters", "100 %", "samples/s", "loss ", "trained", target, folder] {
        assert!(said.contains(part), "'{part}' is not in:\n{said}");
    }
    assert!(!said.contains('\r'), "no bar where there is no terminal");
    // A job has its report beside the program.
    let program = if name == "wide_deep" { format!("{folder}/program") } else { folder.into() };
    assert!(fleet(&["stats", &program]).contains("parameters"));
}

#[test]
fn wide_deep() {
    check("wide_deep", "4096", "best AUC    0.8179");
}

#[test]
fn lenet() {
    check("lenet", "64", "unseen digits classified correctly");
}

#[test]
fn word2vec() {
    check("word2vec", "2048", "the best possible is 2.0753");
}

#[test]
fn bert() {
    check("bert", "64", "the best possible is 3.761");
}

#[test]
fn resnet() {
    check("resnet", "64", "unseen digits classified correctly");
}

#[test]
fn gpt() {
    check("gpt", "32", "and 4.939 without context");
}
