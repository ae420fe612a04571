//! The file that completes a checkpoint of a demo on parameter servers, and holds its progress.

use fleet::{Error, ErrorKind, Result};
use fleet_base::sealed::{Kind, Read};
use std::path::Path;

/// Name of the file in a checkpoint's folder.
pub const PROGRESS_FILE: &str = "done";
const KIND: Kind = Kind {
    name: "fleet checkpoint",
    version: 1,
    help: "rename the file `done` in this folder to resume from an older checkpoint",
};
/// Limit for the number of workers in a file, far above the size of any cluster: bounds the list's
/// memory.
const WORKERS_MAX: usize = 1 << 16;

/// Progress of a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckpointProgress {
    /// Step in the folder's name.
    pub step: u64,
    /// Samples per step of all workers together.
    pub samples: usize,
    /// Number of each worker's steps in the tables; empty if all have made `step`.
    pub steps: Vec<u64>,
}

impl CheckpointProgress {
    pub fn write(&self, folder: &Path) -> Result<()> {
        let mut body = format!("step {}\nsamples {}\n", self.step, self.samples);
        if !self.steps.is_empty() {
            let steps: Vec<String> = self.steps.iter().map(u64::to_string).collect();
            body += &format!("steps {}\n", steps.join(" "));
        }
        KIND.write(&folder.join(PROGRESS_FILE), &body)
    }

    /// Reads the file of the checkpoint of this step.
    pub fn read(folder: &Path, step: u64) -> Result<CheckpointProgress> {
        let path = folder.join(PROGRESS_FILE);
        let (done, body) = match KIND.read(&path)? {
            Read::Body(body) => (parse(&body), body),
            Read::Unsealed(body) => {
                let done = parse(&format!("step {step}\n{body}"));
                if done.iter().flat_map(|done| &done.steps).any(|of_worker| *of_worker != step) {
                    return Err(unconfirmed(&path, step, &body));
                }
                (done, body)
            }
        };
        let broken = |why: &str| Err(KIND.damaged(&path, why).got(format!("{body:?}")));
        match done {
            Some(done) if done.step != step => broken("it belongs to another step"),
            Some(done) => Ok(done),
            None => broken("it is not a valid progress file"),
        }
    }

    /// Returns the steps of each worker.
    pub fn steps_of(&self, workers: usize) -> Result<Vec<u64>> {
        match self.steps.len() {
            0 => Ok(vec![self.step; workers]),
            len if len == workers => Ok(self.steps.clone()),
            len => Err(Error::new(ErrorKind::Invalid, "the checkpoint belongs to another job")
                .expected(format!("steps of {workers} workers"))
                .got(format!("steps of {len}"))),
        }
    }
}

/// Returns the error of a file without a checksum whose steps the folder's name does not confirm.
fn unconfirmed(path: &Path, step: u64, body: &str) -> Error {
    Error::unsupported(format!("{} has version 0, which has no checksum", path.display()))
        .expected(format!("{step} steps of every worker, as in the folder's name"))
        .got(format!("{body:?}"))
        .help(KIND.help)
}

fn parse(body: &str) -> Option<CheckpointProgress> {
    let mut lines = body.strip_suffix('\n')?.split('\n');
    let step = lines.next()?.strip_prefix("step ")?.parse().ok()?;
    let samples = lines.next()?.strip_prefix("samples ")?.parse().ok()?;
    let steps = match lines.next() {
        Some(line) => {
            let words = line.strip_prefix("steps ")?.split(' ').take(WORKERS_MAX + 1);
            words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?
        }
        None => Vec::new(),
    };
    let is_whole = lines.next().is_none() && steps.len() <= WORKERS_MAX;
    is_whole.then_some(CheckpointProgress { step, samples, steps })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Flips every bit of every byte, truncates at every length, and reads another checkpoint's
    /// file.
    #[test]
    fn a_changed_file_is_refused() {
        let folder = std::env::temp_dir().join(format!("fleet-done-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join(PROGRESS_FILE);
        let done = CheckpointProgress { step: 98, samples: 4096, steps: vec![98, 97] };
        done.write(&folder).unwrap();
        assert_eq!(CheckpointProgress::read(&folder, 98).unwrap(), done);
        assert!(
            CheckpointProgress::read(&folder, 88)
                .unwrap_err()
                .message()
                .contains("belongs to another step")
        );
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                std::fs::write(&path, changed).unwrap();
                CheckpointProgress::read(&folder, 98)
                    .expect_err(&format!("bit {bit} of byte {at}"));
            }
            std::fs::write(&path, &bytes[..at]).unwrap();
            CheckpointProgress::read(&folder, 98).expect_err(&format!("{at} bytes"));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    /// Older versions wrote no checksum. Such a file is safe only if all workers had made the
    /// folder's step: then no change can go unnoticed.
    #[test]
    fn files_of_earlier_builds() {
        let folder = std::env::temp_dir().join(format!("fleet-done-old-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let read = |text: &str| {
            std::fs::write(folder.join(PROGRESS_FILE), text).unwrap();
            CheckpointProgress::read(&folder, 98)
        };
        let steps = |text: &str| read(text).unwrap().steps_of(2).unwrap();
        assert_eq!(steps("samples 4096\n"), [98, 98]);
        assert_eq!(steps("samples 4096\nsteps 98 98\n"), [98, 98]);
        let error = read("samples 4096\nsteps 88 98\n").unwrap_err().to_string();
        assert!(error.contains("version 0") && error.contains("help: "), "{error}");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
