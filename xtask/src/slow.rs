//! `cargo xtask slow`: the slowest tests, and the time of each test binary.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Options {
    /// Number of tests to list
    #[arg(long, default_value_t = 40)]
    count: usize,
    /// Packages to test; default: the workspace
    #[arg(short, long)]
    package: Vec<String>,
    /// Runs tests whose name contains this
    filter: Option<String>,
}

/// A test binary, and the folder in which cargo would run it.
struct Binary {
    name: String,
    path: PathBuf,
    folder: PathBuf,
}

struct Timed {
    seconds: f64,
    binary: String,
    test: String,
}

pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let (mut tests, mut totals, mut failed) = (Vec::new(), Vec::new(), Vec::new());
    for binary in binaries(root, options)? {
        eprintln!("running {}", binary.name);
        let begun = Instant::now();
        let output = output_of(&binary, options)?;
        totals.push((begun.elapsed(), binary.name.clone()));
        if !output.status.success() {
            failed.push(binary.name.clone());
        }
        let text = String::from_utf8_lossy(&output.stdout);
        tests.extend(text.lines().filter_map(|line| timed(line, &binary.name)));
    }
    tests.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    println!("the slowest tests:");
    for it in tests.iter().take(options.count) {
        println!("{:8.2} s  {}  {}", it.seconds, it.binary, it.test);
    }
    totals.sort_by(|a, b| b.cmp(a));
    println!("binaries:");
    for (time, name) in totals.iter().take(options.count) {
        println!("{:8.2} s  {name}", time.as_secs_f64());
    }
    let all: Duration = totals.iter().map(|(time, _)| *time).sum();
    println!("{:8.2} s  all (without doc tests)", all.as_secs_f64());
    match failed[..] {
        [] => Ok(()),
        _ => Err(format!("tests failed in {}", failed.join(", "))),
    }
}

/// Builds the tests.
fn binaries(root: &Path, options: &Options) -> Result<Vec<Binary>, String> {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root).args(["test", "--no-run", "--message-format=json"]);
    match options.package[..] {
        [] => command.arg("--workspace"),
        _ => command.args(options.package.iter().flat_map(|name| ["--package", name])),
    };
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| format!("cannot start cargo: {error}"))?;
    if !output.status.success() {
        return Err(format!("cannot build the tests ({})", output.status));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let parsed = messages.lines().filter_map(|line| serde_json::from_str(line).ok());
    Ok(parsed.filter_map(|message: serde_json::Value| binary(&message)).collect())
}

/// Returns the test binary that a message of cargo announces.
fn binary(message: &serde_json::Value) -> Option<Binary> {
    if message["profile"]["test"] != true {
        return None;
    }
    let path = PathBuf::from(message["executable"].as_str()?);
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = folder.file_name()?.to_str()?;
    let name = format!("{package} {}", message["target"]["name"].as_str()?);
    Some(Binary { name, path, folder })
}

fn output_of(binary: &Binary, options: &Options) -> Result<std::process::Output, String> {
    let mut command = Command::new(&binary.path);
    // The stable test harness hides `--report-time` behind this variable.
    command.env("RUSTC_BOOTSTRAP", "1").args(["-Zunstable-options", "--report-time"]);
    command.args(&options.filter).current_dir(&binary.folder).stderr(Stdio::null());
    command.output().map_err(|error| format!("cannot start {}: {error}", binary.path.display()))
}

/// Parses `test NAME ... ok <1.234s>`.
fn timed(line: &str, binary: &str) -> Option<Timed> {
    let (test, rest) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let seconds = rest.rsplit_once('<')?.1.strip_suffix("s>")?.parse().ok()?;
    Some(Timed { seconds, binary: binary.to_string(), test: test.to_string() })
}
