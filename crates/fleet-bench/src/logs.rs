//! Job files of `examples/jobs` on generated click logs whose best AUC is known: 4 million rows in
//! Criteo's format, one pass. The data and its truth are in `fleet_synth::Ctr`.

use crate::measure::{Options, print_rates_of_others};
use fleet::{Error, Result};
use fleet_base::temporary::TemporaryFolder;
use fleet_synth::{Ctr, CtrConfig, Make, MakeFormat, MakeKind, auc_exact};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Job files, and the limit of the difference to the best AUC.
const JOBS: [(&str, f64); 3] =
    [("criteo_dcn_v2", 0.002), ("criteo_deepfm", 0.005), ("criteo_wide_deep", 0.005)];
const TRAIN_ROWS: u64 = 4_000_000;
const TEST_ROWS: u64 = 500_000;
/// Differences below this are taken as this: the AUC of the test rows is not known better.
const GAP_MIN: f64 = 1e-4;

/// Trains the jobs. The result is the smallest ratio of a limit to the difference that was reached.
pub fn run(options: &Options) -> Result<()> {
    let folder = TemporaryFolder::new(&std::env::temp_dir(), "fleet-bench-logs")?;
    let folder = folder.path();
    make(&folder.join("criteo-logs/train"), 0, TRAIN_ROWS)?;
    make(&folder.join("criteo-logs/test"), TRAIN_ROWS, TEST_ROWS)?;
    let best = best_auc()?;
    let mut ratios = Vec::new();
    println!("| job | test AUC | best AUC | difference | limit | seconds |");
    println!("| --- | --- | --- | --- | --- | --- |");
    for (name, limit) in JOBS {
        let (auc, seconds) = train(options, folder, name)?;
        let gap = best - auc;
        println!("| {name} | {auc:.4} | {best:.4} | {gap:.4} | {limit} | {seconds:.0} |");
        ratios.push(limit / gap.max(GAP_MIN));
    }
    ratios.sort_by(f64::total_cmp);
    print_rates_of_others(
        options,
        "limit of the difference to the best AUC, over it",
        ratios[..1].to_vec(),
        None,
    );
    Ok(())
}

fn make(folder: &Path, first_row: u64, rows: u64) -> Result<()> {
    let kind = MakeKind::Ctr(CtrConfig::hard());
    let (format, folder) = (MakeFormat::Criteo, folder.to_path_buf());
    Make { kind, format, first_row, rows, shards: 8, folder }.write()?;
    Ok(())
}

/// Returns the AUC of the true probabilities on the test rows.
fn best_auc() -> Result<f64> {
    let clicks = Ctr::new(CtrConfig::hard())?;
    let count = TEST_ROWS as usize;
    let mut truth = vec![0.0; count];
    clicks.fill_probabilities(&mut truth, TRAIN_ROWS);
    let mut dense = vec![0.0; count * clicks.dense_count()];
    let mut ids = vec![0; count * clicks.slot_count()];
    let mut labels = vec![0.0; count];
    clicks.fill_batch(&mut dense, &mut ids, &mut labels, TRAIN_ROWS)?;
    auc_exact(&truth, &labels)
}

/// Trains a job as a user does. Returns the AUC of its report, and the seconds of the command.
fn train(options: &Options, folder: &Path, name: &str) -> Result<(f64, f64)> {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/jobs");
    let (example, job) = (examples.join(name), folder.join(name));
    let (example, job) = (example.with_extension("toml"), job.with_extension("toml"));
    std::fs::copy(&example, &job).map_err(|error| Error::io("copy", &example, &error))?;
    let own = std::env::current_exe()
        .map_err(|error| Error::unavailable(format!("cannot find the executable: {error}")))?;
    let program = own.with_file_name("fleetrun");
    let mut command = Command::new(&program);
    // Logs are written into the current folder.
    command.current_dir(folder).arg(format!("job:{}", job.display()));
    command.args(["--threads", &options.threads.to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    let begin = Instant::now();
    let status = command.status().map_err(|error| {
        Error::unavailable(format!("cannot start {}: {error}", program.display()))
            .help("cargo build --release --package fleet-cli")
    })?;
    let seconds = begin.elapsed().as_secs_f64();
    if !status.success() {
        return Err(Error::internal(format!("the job {name} ended with {status}")));
    }
    let report = crate::csv_training::report(&folder.join(format!("{name}-model")))?;
    Ok((crate::csv_training::number(&report, "/report/all/auc")?, seconds))
}
