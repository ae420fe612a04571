//! `fleet checkpoint`: what it shows of checkpoints of one and several ranks, damage, bad input.

use fleet::prelude::*;
use fleet::{CheckpointPolicy, Checkpoints};
use std::path::{Path, PathBuf};
use std::process::Command;

struct Folder(PathBuf);

impl Folder {
    /// Makes a folder with the checkpoints of two steps of a job of one rank (`job`), and one of
    /// two ranks (`two`).
    fn new(name: &str) -> Folder {
        let name = format!("fleet-cli-checkpoint-{name}-{}", std::process::id());
        let folder = Folder(std::env::temp_dir().join(name));
        std::fs::remove_dir_all(&folder.0).ok();
        let net = Net::new();
        let loss = net.data("x", [-1, 4], DType::F32).fc(3).mean();
        net.minimize(loss, Momentum::new(0.1, 0.9)).expect("a network");
        let programs = net.build().expect("a program");
        let session = Session::new(programs, ExecOptions::default()).expect("a session");
        let policy = CheckpointPolicy::default();
        let mut checkpoints = Checkpoints::open(folder.0.join("job"), policy).expect("a folder");
        for step in [5, 6] {
            let entries = [("cursor".to_string(), format!("sample {step}"))].into();
            let main = &session.programs.main;
            checkpoints.save(step, main, &session.scope, entries).expect("a save");
        }
        checkpoints.finish().expect("a save");
        folder.run(&["convert", "job", "two", "--ranks", "2"], 0);
        folder
    }

    /// Runs the command in the folder and returns its output.
    fn run(&self, args: &[&str], code: i32) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
        let output = command.arg("checkpoint").args(args).current_dir(&self.0).output();
        let output = output.expect("the tool can be started");
        let text = [&output.stdout[..], &output.stderr[..]].concat();
        let text = String::from_utf8(text).expect("text");
        assert_eq!(output.status.code(), Some(code), "{args:?}: {text}");
        text
    }

    /// Runs the command and checks parts of its output.
    fn check(&self, args: &[&str], code: i32, parts: &[&str]) {
        let text = self.run(args, code);
        for part in parts {
            assert!(text.contains(part), "{args:?}: no '{part}' in {text}");
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

const TENSORS: &str = "tensors-000001-000.safetensors";

/// Changes a file of tensors.
fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = std::fs::read(path).expect("the file exists");
    change(&mut bytes);
    std::fs::write(path, bytes).expect("the file can be written");
}

#[test]
fn contents_are_shown() {
    let folder = Folder::new("shown");
    folder.check(
        &["inspect", "job"],
        0,
        &["step 5: complete\n", "step 6: complete\n", "ranks     1\n", "fc_0.w_0", "f32[4, 3]"],
    );
    folder.check(&["inspect", "job", "--step", "5"], 0, &["step      5\n"]);
    folder.check(&["inspect", "job/step-000000000006"], 0, &["step      6\n", "common\n"]);
    folder.check(&["verify", "job"], 0, &["step-000000000005: intact, 5 variables", "006: intact"]);
    let json = folder.run(&["inspect", "two", "--json"], 0);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!((&json["ranks"], &json["step"]), (&2.into(), &6.into()));
    let vars = json["variables"].as_array().expect("a list");
    let weight = vars.iter().find(|var| var["name"] == "fc_0.w_0").expect("the weight");
    assert_eq!(weight["shape"], serde_json::json!([4, 3]));
    assert_eq!((&weight["dtype"], &weight["bytes"]), (&"f32".into(), &48.into()));
}

#[test]
fn models_are_converted() {
    let folder = Folder::new("converted");
    for (from, to) in [("job", "a.npz"), ("two", "b.safetensors")] {
        folder.check(&["convert", from, to], 0, &[": 5 variables of step 6"]);
        folder.check(&["convert", from, to], 1, &["the output exists already", to]);
    }
    let load = |name: &str| {
        let loaded = fleet::format::load_tensors(folder.0.join(name)).expect("a model");
        let mut all = loaded.tensors;
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.into_iter().map(|(name, it)| (name, it.as_bytes().to_vec())).collect::<Vec<_>>()
    };
    let expected = load("job/step-000000000006");
    assert_eq!((load("a.npz"), load("b.safetensors")), (expected.clone(), expected));
    folder.check(&["convert", "job", "c.txt"], 1, &["expected a name that ends in .npz or"]);
    folder.check(&["convert", "job", "c.npz", "--ranks", "2"], 1, &["several ranks is a folder"]);
    folder.check(&["convert", "job", "two", "--ranks", "4"], 1, &["the output exists already"]);
    folder.check(&["convert", "job", "c", "--ranks", "0"], 2, &["--ranks"]);
    assert!(!folder.0.join("c").exists() && !folder.0.join("c.npz").exists());
}

#[test]
fn damage_is_named() {
    let folder = Folder::new("damaged");
    let file = folder.0.join("job/step-000000000006").join(TENSORS);
    let whole = std::fs::read(&file).expect("the file exists");
    change(&file, |bytes| *bytes.last_mut().expect("not empty") ^= 1);
    let place = format!("step-000000000006/{TENSORS}: variable '");
    let parts = ["its checksum does not match", "error: 1 of 2 checkpoints damaged", ", bytes "];
    folder.check(&["verify", "job"], 1, &[&place[..], parts[0], parts[1], parts[2]]);
    folder.check(&["convert", "job", "bad.npz"], 1, &["its checksum does not match", TENSORS]);
    assert!(!folder.0.join("bad.npz").exists());
    folder.check(&["convert", "job", "bad", "--ranks", "2"], 1, &["its checksum does not match"]);
    assert!(!folder.0.join("bad").exists());

    std::fs::write(&file, &whole[..whole.len() - 5]).expect("the file can be written");
    let cut = "which end in tensor '";
    folder.check(&["verify", "job"], 1, &["(truncated?)", cut, TENSORS]);
    folder.check(&["inspect", "job"], 0, &["step 6: damaged: ", "step      5\n"]);
    folder.check(&["inspect", "job", "--step", "6"], 1, &["(truncated?)", TENSORS]);

    std::fs::remove_file(file.with_file_name("checkpoint.json")).expect("the file exists");
    folder.check(&["verify", "job"], 1, &["no checkpoint.json in it"]);
}

#[test]
fn bad_input_is_refused() {
    let folder = Folder::new("refused");
    folder.check(&["inspect", "nowhere"], 1, &["cannot open nowhere"]);
    folder.check(&["verify", "nowhere"], 1, &["cannot open nowhere"]);
    std::fs::create_dir(folder.0.join("other")).expect("a folder");
    std::fs::write(folder.0.join("other/model.pdparams"), "x").expect("a file");
    for command in ["inspect", "verify"] {
        folder.check(&[command, "other"], 1, &["no checkpoint.json in it", "other"]);
        folder.check(&[command, "other/model.pdparams"], 1, &["not a checkpoint", "got a file"]);
    }
    folder.check(&["inspect", "job", "--step", "7"], 1, &["no checkpoint of step 7", "step 5, 6"]);
    folder.check(&["inspect", "job/step-000000000006", "--step", "6"], 1, &["not the folder of"]);

    // Rank 1 was stopped before it had saved.
    std::fs::remove_dir_all(folder.0.join("two/step-000000000006/rank-00001")).expect("a part");
    let told = "rank 1 has not saved";
    folder.check(&["inspect", "two"], 1, &["no complete checkpoint in the folder", told]);
    folder.check(&["inspect", "two", "--step", "6"], 1, &["the checkpoint is unfinished", told]);
    folder.check(&["verify", "two"], 1, &["unfinished: rank 1", "no complete checkpoint"]);
    folder.check(&["convert", "two", "out.npz"], 1, &[told]);
}
