//! Tests of the command-line tool: output and exit code are compared with `golden/*.out`
//! (`FLEET_BLESS=1` rewrites these files).

use fleet_format::{load_tensors, read_npy, read_npz, save_tensors, write_npy};
use fleet_tensor::Tensor;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden");

/// Runs the tool in the folder of the golden files.
fn fleet(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
    command.args(args).current_dir(GOLDEN).output().expect("the tool can be started")
}

/// Runs the tool and compares all of its output.
fn check(name: &str, args: &[&str]) {
    let output = fleet(args);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    let mut found = format!("$ fleet {}\n{stdout}", args.join(" "));
    if !stderr.is_empty() {
        found += &format!("--- stderr\n{stderr}");
    }
    found += &format!("--- exit code {}\n", output.status.code().expect("no signal"));
    let path = Path::new(GOLDEN).join(format!("{name}.out"));
    if std::env::var_os("FLEET_BLESS").is_some() {
        std::fs::write(&path, found).expect("the tests' folder can be written");
        return;
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(found, expected, "{}", path.display());
}

fn ok(args: &[&str]) -> String {
    let output = fleet(args);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "fleet {}: {stderr}", args.join(" "));
    String::from_utf8(output.stdout).expect("text")
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("cli");
    std::fs::create_dir_all(&folder).expect("the target folder can be written");
    folder.join(name)
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

/// A saved model of one layer becomes an ONNX file; wrong calls change nothing.
#[test]
fn models_become_onnx_files() {
    use fleet_nn::prelude::*;
    let folder = scratch("onnx");
    let (model, file) = (folder.join("model"), folder.join("model.onnx"));
    std::fs::create_dir_all(&folder).unwrap();
    let _ = std::fs::remove_file(&file);
    let net = Net::new();
    let y = net.data("x", [-1, 2], DType::F32).fc(1).name();
    let main = net.build().unwrap().main;
    let y_id = main.var_named(&y).unwrap();
    let zeros = |shape: [i64; 2]| Tensor::zeros(DType::F32, shape).unwrap();
    let bias = Tensor::zeros(DType::F32, [1]).unwrap();
    let tensors = [("fc_0.w_0", &zeros([2, 1])), ("fc_0.b_0", &bias)];
    let entries = [("targets".to_string(), y.clone())].into();
    let meta = fleet_format::Meta { step: 0, entries };
    fleet_format::save_model(&model, &main.prune(&[y_id]), tensors, &meta).unwrap();

    let failed = |args: &[&str], code: i32, words: &[&str]| {
        let output = fleet(&[&["export"], args].concat());
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{text}");
        words.iter().for_each(|word| assert!(text.contains(word), "'{word}' is not in: {text}"));
        assert!(!file.exists());
    };
    let (from, to) = (path(&model), path(&file));
    failed(&[from, to], 2, &["--onnx"]);
    failed(&["--onnx", from, to, "--opset", "16"], 2, &["16", "17..=23"]);
    failed(&["--onnx", "no-such", to], 1, &["no-such"]);
    failed(&["--onnx", "linear.fleet", to], 1, &["linear.fleet"]);

    let said = ok(&["export", "--onnx", from, to]);
    let start = format!("{to}: inputs x; outputs {y}; opset 17, 2 nodes, ");
    assert!(said.starts_with(&start) && said.lines().count() == 1, "{said}");
    let first = std::fs::read(&file).unwrap();
    // An existing file is replaced.
    ok(&["export", "--onnx", from, to, "--opset=18"]);
    assert_ne!(std::fs::read(&file).unwrap(), first);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2);
}

#[test]
fn programs_are_printed_and_checked() {
    check("print", &["print", "linear.fleet"]);
    check("verify", &["verify", "linear.fleet"]);
    check("verify-shapes", &["verify", "broken.fleet"]);
    check("verify-order", &["verify", "early.fleet"]);
    check("verify-text", &["verify", "typo.fleet"]);
    check("missing-file", &["print", "no-such.fleet"]);
    check("not-a-program", &["print", "diary.txt"]);
}

#[test]
fn programs_are_counted() {
    check("stats", &["stats", "linear.fleet"]);
    check("stats-batch", &["stats", "forward.fleet", "--batch", "1000"]);
    check("stats-offload", &["stats", "offloaded.fleet", "--batch", "1000"]);
    check("stats-shape", &["stats", "forward.fleet", "--shape", "x=16,2"]);
    check("stats-wrong-shape", &["stats", "forward.fleet", "--shape", "x=16,3"]);
    check("stats-wrong-text", &["stats", "forward.fleet", "--shape", "x=a"]);
    check("stats-twice", &["stats", "forward.fleet", "--shape", "x=1,2", "--shape", "x=2,2"]);
    check("stats-endless", &["stats", "forward.fleet", "--shape", "x=9223372036854775807,2"]);
}

#[test]
fn strategies_are_checked() {
    check("strategy-check", &["strategy", "check", "job.prototxt"]);
    check("strategy-wrong", &["strategy", "check", "wrong.prototxt", "wrong.json", "wrong.toml"]);
    check("strategy-missing", &["strategy", "check", "no-such.prototxt"]);
}

#[test]
fn strategies_are_made_and_shown() {
    let set = |name: &str, sets: &[&str]| {
        let sets = sets.iter().flat_map(|set| ["--set", set]);
        check(name, &["strategy", "new"].into_iter().chain(sets).collect::<Vec<_>>());
    };
    let checkpoints = r#"recompute_configs.checkpoints=["x", "y"]"#;
    set("strategy-new", &["recompute=true", checkpoints, "amp_configs.decr_ratio=0.5"]);
    set("strategy-new-type", &["amp=yes"]);
    set("strategy-new-key", &["amp_configs.decr_ration=0.5"]);
    set("strategy-new-range", &["nccl_comm_num=0", "lars=true", "lamb=true"]);
    set("strategy-new-text", &["amp"]);
    check("strategy-show", &["strategy", "show", "job.prototxt", "--set", "dgc=true"]);
    let (json, toml) = (scratch("job.json"), scratch("job.toml"));
    ok(&["strategy", "convert", "job.prototxt", path(&json)]);
    ok(&["strategy", "convert", path(&json), path(&toml)]);
    let (binary, text) = (scratch("job.pb"), scratch("job.prototxt"));
    ok(&["strategy", "convert", path(&toml), path(&binary)]);
    ok(&["strategy", "convert", path(&binary), path(&text)]);
    let written = std::fs::read_to_string(&text).unwrap();
    assert!(written.starts_with("amp: true\nnccl_comm_num: 2\n"), "{written}");
    assert!(ok(&["strategy", "show", path(&json)]) == ok(&["strategy", "show", "job.prototxt"]));
    let made = scratch("new.toml");
    ok(&["strategy", "new", "--set", "amp=true", "--output", path(&made)]);
    assert_eq!(std::fs::read_to_string(&made).unwrap(), "amp = true\n");
}

#[test]
fn the_environment_is_listed() {
    let env = |name: &str, value: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
        let command = command.args(["env", "--set"]).env_clear().env(name, value);
        let output = command.output().expect("the tool can be started");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let meaning = "    Rank of the worker, from 0 (read by workers and servers)\n";
    let right = (Some(0), format!("PADDLE_TRAINER_ID = 1\n{meaning}"), String::new());
    assert_eq!(env("PADDLE_TRAINER_ID", "1"), right);
    let (code, out, error) = env("PADDLE_TRAINER_ID", "first");
    assert_eq!((code, out), (Some(1), format!("PADDLE_TRAINER_ID = first\n{meaning}")));
    assert!(error.contains("expected a whole number, at least 0, got 'first'"), "{error}");
    let (code, out, _) = env("PADDLE_TRAINER_IDS", "1");
    let typo = "PADDLE_TRAINER_IDS is set, but is not a variable of Fleet; \
                did you mean 'PADDLE_TRAINER_ID'?\n";
    assert_eq!((code, out.as_str()), (Some(0), typo));
    let (_, out, _) = env("FLEET_TOKEN", "0123456789abcdef0123456789abcdef");
    assert!(out.starts_with("FLEET_TOKEN = ***\n"), "{out}");
    assert!(ok(&["env"]).contains("FLAGS_fuse_parameter_memory_size"));
}

#[test]
fn a_wrong_command_line_ends_with_2() {
    check("usage", &["prnt", "linear.fleet"]);
    check("usage-batch", &["stats", "linear.fleet", "--batch", "0"]);
    assert_eq!(fleet(&[]).status.code(), Some(2));
    assert_eq!(fleet(&["--help"]).status.code(), Some(0));
}

#[test]
fn programs_are_converted_there_and_back() {
    let (binary, text) = (scratch("linear.pb"), scratch("linear.fleet"));
    ok(&["convert", "linear.fleet", path(&binary)]);
    ok(&["convert", path(&binary), path(&text)]);
    let printed = ok(&["print", "linear.fleet"]);
    assert_eq!(std::fs::read_to_string(&text).unwrap(), printed);
    assert_eq!(ok(&["print", path(&binary)]), printed);
    assert_eq!(std::fs::read(&binary).unwrap()[0], 8);
    ok(&["convert", "linear.fleet", path(&text), "--to", "text"]);
    assert_eq!(std::fs::read_to_string(&text).unwrap(), printed);
}

#[test]
fn programs_are_run() {
    let x = scratch("x.npy");
    write_npy(&x, &Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap()).unwrap();
    let feed = format!("x={}", path(&x));
    let out = ok(&["run", "forward.fleet", "--feed", &feed, "--fetch", "y", "--fetch", "x"]);
    assert_eq!(out, "y f32[2, 2] 3.0 5.0 7.0 9.0\nx f32[2, 2] 1.0 2.0 3.0 4.0\n");

    let (y, all) = (scratch("y.npy"), scratch("all.npz"));
    let fetch = format!("y={}", path(&y));
    let out = ok(&[
        "run",
        "forward.fleet",
        "--feed",
        &feed,
        "--fetch",
        &fetch,
        "--save-fetched",
        path(&all),
    ]);
    assert_eq!(out, "");
    assert_eq!(read_npy(&y).unwrap().to_vec::<f32>().unwrap(), [3.0, 5.0, 7.0, 9.0]);
    assert_eq!(read_npz(&all).unwrap()[0].1.to_vec::<f32>().unwrap(), [3.0, 5.0, 7.0, 9.0]);

    let trace = scratch("trace.json");
    ok(&["run", "forward.fleet", "--feed", &feed, "--fetch", "y", "--trace", path(&trace)]);
    let trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&trace).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    assert!(events.iter().any(|event| event["ph"] == "X" && event["dur"].is_number()), "{trace}");

    // From a checkpoint to a checkpoint. The gradient is x^T (2 y), with y = x w.
    let (before, after) = (scratch("before"), scratch("after"));
    let w = Tensor::from_slice(&[1.0f32, 0.0], [2, 1]).unwrap();
    let lr = Tensor::from_slice(&[0.125f32], [1]).unwrap();
    save_tensors(&before, [("w", &w), ("lr", &lr)], &Default::default()).unwrap();
    let (load, save) = (path(&before), path(&after));
    ok(&["run", "linear.fleet", "--feed", &feed, "--load", load, "--save", save]);
    let saved = load_tensors(&after).unwrap();
    let (_, w) = saved.tensors.iter().find(|(name, _)| name == "w").unwrap();
    // y = [1, 3]; gradient = 2 [1 + 9, 2 + 12] = [20, 28].
    assert_eq!(w.to_vec::<f32>().unwrap(), [1.0 - 20.0 / 8.0, -28.0 / 8.0]);
    assert_eq!(saved.meta.step, 1);
}

/// Without --fetch, a run fetches the results and names them.
#[test]
fn results_are_fetched_unless_others_are_named() {
    let x = scratch("results.npy");
    write_npy(&x, &Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap()).unwrap();
    let feed = format!("x={}", path(&x));
    let output = fleet(&["run", "forward.fleet", "--feed", &feed]);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "y f32[2, 2] 3.0 5.0 7.0 9.0\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "fleet: fetching the results: y\n");
    let all = scratch("results.npz");
    ok(&["run", "forward.fleet", "--feed", &feed, "--save-fetched", path(&all)]);
    assert_eq!(read_npz(&all).unwrap()[0].0, "y");
}

#[test]
fn networks_of_the_zoo_are_programs() {
    let file = scratch("lenet.fleet");
    ok(&["convert", "model:lenet", path(&file)]);
    let printed = ok(&["print", "model:lenet"]);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), printed);
    assert!(printed.starts_with("fleet program 1\n") && printed.contains("conv2d("), "{printed}");
    let startup = ok(&["print", "model:lenet/startup"]);
    assert!(!startup.contains("conv2d(") && startup.contains("%conv2d_0.w_0"), "{startup}");
    assert!(ok(&["verify", "model:lenet"]).starts_with("model:lenet: ok, "));
    assert!(ok(&["verify", "model:lenet/startup"]).starts_with("model:lenet/startup: ok, "));
    assert!(
        ok(&["stats", "model:lenet", "--batch", "8"]).contains("plan for x: f32[8, 1, 28, 28]")
    );

    // Its own startup program runs first.
    let (x, y) = (scratch("digits.npy"), scratch("labels.npy"));
    write_npy(&x, &Tensor::zeros(fleet_tensor::DType::F32, [2, 1, 28, 28]).unwrap()).unwrap();
    write_npy(&y, &Tensor::zeros(fleet_tensor::DType::I64, [2, 1]).unwrap()).unwrap();
    let feeds = [format!("x={}", path(&x)), format!("y={}", path(&y))];
    let said = ok(&["run", "model:lenet", "--feed", &feeds[0], "--feed", &feeds[1]]);
    assert!(said.contains(" f32[1] 2."), "the loss of equal images is about ln 10: {said}");

    let output = fleet(&["print", "model:lenett"]);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(error.contains("unknown model 'lenett'; did you mean 'lenet'?"), "{error}");
}

#[test]
fn wrong_runs_are_explained() {
    let x = scratch("wide.npy");
    write_npy(&x, &Tensor::zeros(fleet_tensor::DType::F32, [2, 3]).unwrap()).unwrap();
    let run = |args: &[&str], part: &str| {
        let output = fleet(&[&["run", "forward.fleet"], args].concat());
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.starts_with("error: ") && error.contains(part), "{error}");
    };
    run(&["--fetch", "y"], "'x'");
    run(&["--fetch", "yy"], "no variable 'yy'; did you mean 'y'?");
    run(&["--feed", "x"], "invalid --feed: expected NAME=FILE.npy, got x");
    run(&["--feed", "x=diary.txt", "--fetch", "y"], "not npy data");
    run(&["--feed", &format!("x={}", path(&x)), "--fetch", "y"], "[-1, 2]");
    run(&["--load", "no-such"], "no-such");
    run(&["--load", "diary.txt"], "not a safetensors file");
    run(&["--startup", "linear.fleet"], "at --startup linear.fleet");
}

/// Texts of files and arguments have no effect on the terminal.
#[test]
fn control_characters_are_printed_as_escapes() {
    let file = |name: &str, text: &str| {
        let file = scratch(name);
        std::fs::write(&file, text).unwrap();
        path(&file).to_string()
    };
    let program = |op: &str, var: &str| {
        let vars = "  %x: f32[1] data\n";
        format!("fleet program 1\nblock0 {{\n{vars}  (Out: {var}) = {op}(X: %x, Y: %x)\n}}\n")
    };
    let named = file("control\x1b[31m.fleet", &program("no_such", "%x"));
    let op = file("control-op.fleet", &program("\"\x1b]0;title\x07mul\"", "%x"));
    let json = file("control.json", r#"{"\u001b[31mamp\nx": true}"#);
    let checkpoints = r#"{"recompute": true,
        "recompute_configs": {"checkpoints": ["\u001b[2J\u009b"]}}"#;
    let shown = file("shown.json", checkpoints);
    let header = "{'descr': '\x1b[31m', 'fortran_order': False, 'shape': (1,), }\n";
    let npy = file("control.npy", "");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.bytes());
    std::fs::write(&npy, bytes).unwrap();
    let feed = format!("x={npy}");
    for args in [
        &["verify", &named][..],
        &["verify", &op],
        &["print", "no\x1b[31m.fleet"],
        &["strategy", "check", &json],
        &["strategy", "show", &json],
        &["strategy", "show", &shown],
        &["strategy", "check", "no\x1b[31m.json"],
        &["strategy", "new", "--set", "am\x1b[31mp=1"],
        &["strategy", "new", "--set", "\x1b[31m"],
        &["run", "forward.fleet", "--fetch", "y\x1b[31m"],
        &["run", "forward.fleet", "--feed", &feed, "--fetch", "y"],
        &["trace", "no\x1b[31m"],
        &["doctor", "--hosts", "no\x1b[31m", "--port", "0"],
        &["durable", "inspect", "no\x1b[31m"],
        &["no\x1b[31m"],
        &["demo", "--samples", "\x1b[31m"],
    ] {
        let output = fleet(args);
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("\\u{1b}"), "{args:?}: {said:?}");
        let raw = |c: char| c.is_control() && c != '\n' && c != '\t';
        assert!(!said.contains(raw), "{args:?}: {said:?}");
    }
    // A written strategy reads back unchanged.
    let set = "recompute_configs.checkpoints=[\"\u{9b}\u{7f}\"]";
    for form in ["json", "toml", "prototxt"] {
        let text = ok(&["strategy", "new", "--to", form, "--set", "recompute=true", "--set", set]);
        assert!(!text.contains("\\u{"), "{text}");
        let overview = ok(&["strategy", "show", &file(&format!("control-written.{form}"), &text)]);
        assert!(overview.contains("\\u{9b}\\u{7f}"), "{overview}");
    }
}

/// Pipes such as `<(command)` are valid inputs; an endless input is rejected at a limit.
#[test]
fn pipes_and_devices_are_inputs_with_limits() {
    let fifo = scratch("fifo.prototxt");
    let _ = std::fs::remove_file(&fifo);
    assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let writer = {
        let fifo = fifo.clone();
        std::thread::spawn(move || std::fs::write(fifo, "amp: true\n").unwrap())
    };
    assert!(ok(&["strategy", "check", path(&fifo)]).contains(": ok\n"));
    writer.join().unwrap();
    let refused = |args: &[&str], part: &str| {
        let output = fleet(args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && error.contains(part), "{error}");
    };
    refused(&["trace", "/dev/zero"], "too large for a trace: expected at most 256 MiB");
    let doctor = ["doctor", "--hosts", "127.0.0.1", "--port", "0", "--token-file", "/dev/zero"];
    refused(&doctor, "too large for a job token: expected at most 4 KiB, got more than 4 KiB");
    let long = scratch("long.prototxt");
    std::fs::File::create(&long).unwrap().set_len((16 << 20) + 1).unwrap();
    let output = fleet(&["strategy", "check", path(&long)]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("expected at most 16 MiB, got more than 16 MiB"), "{said}");
    std::fs::remove_file(&long).unwrap();
}

/// As `fleet print x | head -1`.
#[test]
fn a_reader_may_leave() {
    use std::process::Stdio;
    let big = scratch("big.fleet");
    let vars: String = (0..20_000).map(|i| format!("%v{i}: f32[2] data\n")).collect();
    std::fs::write(&big, format!("fleet program 1\nblock0 {{\n{vars}}}\n")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
    command.args(["print", path(&big)]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the tool can be started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn files_are_shown_as_tables() {
    check("data-show", &["data", "show", "people.csv"]);
    check("data-show-missing", &["data", "show", "peop*.csv", "--missing", "?", "--rows", "20"]);
    check("data-show-no-file", &["data", "show", "nobody-*.csv"]);
    check("data-show-unknown", &["data", "show", "diary.txt"]);
    check(
        "data-show-conflict",
        &["data", "show", "people.csv", "--format", "jsonl", "--no-header"],
    );
}

#[test]
fn data_sets_are_made() {
    let folder = scratch("clicks");
    let _ = std::fs::remove_dir_all(&folder);
    let make = |more: &[&str]| {
        let all = [&["data", "make", "ctr", path(&folder), "--rows", "2000"], more].concat();
        fleet(&all)
    };
    let output = make(&["--shards", "2", "--size", "tiny", "--days", "3"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.starts_with("2000 rows in 2 files"), "{said}");
    assert!(
        said.contains("  C26: uint64 x 1\n") && said.contains("best possible AUC: 0."),
        "{said}"
    );
    let part = std::fs::read_to_string(folder.join("part-00001")).expect("the second file");
    assert_eq!(part.lines().count(), 1000);
    assert!(part.lines().all(|line| line.starts_with("13 ") && line.split(' ').count() == 68));
    // Existing files are not overwritten.
    let again = make(&[]);
    let said = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(!again.status.success() && said.contains("part-00000"), "{said}");
    let said = make(&["--days", "0"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("--days out of range"));
    let said = make(&["--length", "3"]);
    assert!(String::from_utf8_lossy(&said.stderr).contains("--length applies only to kind text"));
}

/// A durable folder that is intact, then damaged, then accepted with the loss.
#[test]
fn durable_folders_are_inspected() {
    use fleet::ps::{
        Durability, JobTables, LocalServers, ServerTables, Step, TableAccess, TableConfig,
    };
    let folder = scratch("durable");
    let _ = std::fs::remove_dir_all(&folder);
    let tables = vec![TableConfig::GlobalStep { table_id: 0 }];
    let job = JobTables { server_count: 1, worker_count: 2, sync: false, tables };
    let server = ServerTables::durable(&job, 0, Durability::in_folder(&folder)).unwrap();
    let worker = LocalServers::new(std::slice::from_ref(&server), 1).unwrap();
    (1..=5).for_each(|step| _ = worker.push_steps(0, Step::new(step), 1).unwrap());
    drop((worker, server));
    let inspect = ["durable", "inspect", path(&folder)];
    let said = ok(&inspect);
    for part in ["servers 1, workers 2", "0: requests 0 to 4, ", "1: step 5, on all servers"] {
        assert!(said.contains(part), "'{part}': {said}");
    }
    let log = folder.join("server-000/log-0");
    let mut bytes = std::fs::read(&log).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let output = fleet(&inspect);
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr);
    for part in
        ["log-0 is damaged at byte ", "2 complete ones follow", "error: 1 of 1 servers", "help: "]
    {
        assert!(said.contains(part), "'{part}': {said}");
    }
    let said = ok(&["durable", "inspect", path(&folder), "--accept-loss"]);
    for part in ["lost: 2 whole requests", "worker 1: step 5 before, 2 now", "aside: log-0"] {
        assert!(said.contains(part), "'{part}': {said}");
    }
    let server = ServerTables::durable(&job, 0, Durability::in_folder(&folder)).unwrap();
    let worker = LocalServers::new(std::slice::from_ref(&server), 1).unwrap();
    assert_eq!(worker.push_steps(0, None, 0).unwrap(), 2);
    assert!(ok(&inspect).contains("in use"));
    // All good data is lost, which is accepted once.
    drop((worker, server));
    let mut bytes = std::fs::read(&log).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&log, bytes).unwrap();
    let empty = "the folder is empty: the next start creates new tables";
    let said = ok(&["durable", "inspect", path(&folder), "--accept-loss"]);
    assert!(said.contains("everything is lost: the next start creates new tables"), "{said}");
    assert!(said.contains(empty), "{said}");
    let said = ok(&["durable", "inspect", path(&folder), "--accept-loss"]);
    assert!(said.contains("no damage found") && said.contains(empty), "{said}");
    assert!(ok(&inspect).contains(empty));
    // A copy beside the servers' folders, and a path that is a file.
    let copy = folder.join("server-000.bak");
    std::fs::create_dir(&copy).unwrap();
    assert!(ok(&inspect).contains("server-000.bak belongs to no server of the job"));
    let output = fleet(&["durable", "inspect", path(&log.with_file_name("lock"))]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("lock is not a folder"));
    // A folder that is not a durable one.
    let output = fleet(&["durable", "inspect", GOLDEN]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no durable server in "));
}
