//! The file that completes a checkpoint of a job with parameter servers, and holds the progress of
//! its workers.

use fleet_base::sealed::{Kind, Read};
use fleet_base::{Error, Result};
use std::path::Path;

/// Name of the file in a checkpoint's folder.
pub const PROGRESS_FILE: &str = "done";
const KIND: Kind = Kind {
    name: "fleet checkpoint",
    version: 2,
    help: "rename the file `done` in this folder to resume from an older checkpoint",
};
/// Limit for the number of workers in a file, far above the size of any cluster: bounds the list's
/// memory.
const WORKERS_MAX: usize = 1 << 16;

/// Progress of a checkpoint.
#[derive(Debug, PartialEq, Eq)]
pub struct ServerProgress {
    /// Step in the folder's name.
    pub step: u64,
    /// Number of each worker's steps in the tables; empty if all have made `step`.
    pub steps: Vec<u64>,
}

impl ServerProgress {
    pub fn write(&self, folder: &Path) -> Result<()> {
        let mut body = format!("step {}\n", self.step);
        if !self.steps.is_empty() {
            let steps: Vec<String> = self.steps.iter().map(u64::to_string).collect();
            body += &format!("steps {}\n", steps.join(" "));
        }
        KIND.write(&folder.join(PROGRESS_FILE), &body)
    }

    /// Reads the file of the checkpoint of this step.
    pub fn read(folder: &Path, step: u64) -> Result<ServerProgress> {
        let path = folder.join(PROGRESS_FILE);
        let broken = |why: &str, body: &str| KIND.damaged(&path, why).got(format!("{body:?}"));
        match KIND.read(&path)? {
            Read::Unsealed(body) => Err(broken("it has no version and no checksum", &body)),
            Read::Body(body) => match parse(&body) {
                Some(done) if done.step == step => Ok(done),
                Some(_) => Err(broken("it belongs to another step", &body)),
                None => Err(broken("it is not a valid progress file", &body)),
            },
        }
    }

    /// Returns the steps of each worker.
    pub fn steps_of(&self, workers: usize) -> Result<Vec<u64>> {
        match self.steps.len() {
            0 => Ok(vec![self.step; workers]),
            len if len == workers => Ok(self.steps.clone()),
            len => Err(Error::invalid("the checkpoint belongs to another job")
                .expected(format!("steps of {workers} workers"))
                .got(format!("steps of {len}"))),
        }
    }
}

fn parse(body: &str) -> Option<ServerProgress> {
    let mut lines = body.strip_suffix('\n')?.split('\n');
    let step = lines.next()?.strip_prefix("step ")?.parse().ok()?;
    let steps = match lines.next() {
        Some(line) => {
            let words = line.strip_prefix("steps ")?.split(' ').take(WORKERS_MAX + 1);
            words.map(|word| word.parse().ok()).collect::<Option<Vec<u64>>>()?
        }
        None => Vec::new(),
    };
    let is_whole = lines.next().is_none() && steps.len() <= WORKERS_MAX;
    is_whole.then_some(ServerProgress { step, steps })
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
        let done = ServerProgress { step: 98, steps: vec![98, 97] };
        done.write(&folder).unwrap();
        assert_eq!(ServerProgress::read(&folder, 98).unwrap(), done);
        let error = ServerProgress::read(&folder, 88).unwrap_err();
        assert!(error.message().contains("belongs to another step"));
        let bytes = std::fs::read(&path).unwrap();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[at] ^= 1 << bit;
                std::fs::write(&path, changed).unwrap();
                ServerProgress::read(&folder, 98).expect_err(&format!("bit {bit} of byte {at}"));
            }
            std::fs::write(&path, &bytes[..at]).unwrap();
            ServerProgress::read(&folder, 98).expect_err(&format!("{at} bytes"));
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn steps_belong_to_a_number_of_workers() {
        let of = |steps: &[u64]| ServerProgress { step: 9, steps: steps.to_vec() };
        assert_eq!(of(&[]).steps_of(3).unwrap(), [9, 9, 9]);
        assert_eq!(of(&[9, 8]).steps_of(2).unwrap(), [9, 8]);
        let error = of(&[9, 8]).steps_of(3).unwrap_err().to_string();
        assert!(error.contains("another job: expected steps of 3 workers, got steps of 2"));
    }
}
