//! Overhead of `fleetrun`: the time of `fleetrun /bin/true` minus that of `/bin/true`, alternately.
//!
//! It includes the start of the launcher, its guard, a store, a log and the child, and the end of
//! all of them.

use crate::measure::{Options, print_rates_of_others};
use fleet::{Error, Result};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

pub fn startup(options: &Options) -> Result<()> {
    let (steps, warmup) = options.counts(100, 10);
    let own = std::env::current_exe()
        .map_err(|error| Error::unavailable(format!("cannot find the executable: {error}")))?;
    let launcher = own.with_file_name("fleetrun");
    let folder = std::env::temp_dir().join(format!("fleet-bench-launch-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    let measured = (0..warmup + steps)
        .map(|_| {
            let with = seconds(&launcher, &[CHILD], &folder)?;
            Ok(with - seconds(Path::new(CHILD), &[], &folder)?)
        })
        .collect::<Result<Vec<f64>>>();
    // If this fails, the system cleans up temporary files later.
    let _ = std::fs::remove_dir_all(&folder);
    // If the system delayed the child alone, the difference says nothing about the launcher.
    let taken = measured?.into_iter().skip(warmup).map(|seconds| seconds.max(SHORTEST));
    print_rates_of_others(options, "starts/s", taken.map(f64::recip).collect(), None);
    Ok(())
}

fn seconds(program: &Path, args: &[&str], folder: &Path) -> Result<f64> {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let begin = Instant::now();
    let status = command.status().map_err(|error| {
        Error::unavailable(format!("cannot start {}: {error}", program.display()))
            .help("cargo build --release --package fleet-cli")
    })?;
    match status.success() {
        true => Ok(begin.elapsed().as_secs_f64()),
        false => Err(Error::internal(format!("{} ended with {status}", program.display()))),
    }
}

const CHILD: &str = "/bin/true";
/// Smallest difference in seconds; less is noise.
const SHORTEST: f64 = 1e-4;
