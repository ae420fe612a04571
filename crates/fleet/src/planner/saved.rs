//! The prediction of a planned layout in its strategy file: a comment that `fleet plan` writes, and
//! that a job with the file compares with its own steps.

use super::predict::Prediction;
use fleet_base::disk::{RealDisk, read_file};
use std::path::Path;

/// Begins the comment.
const START: &str = "# fleet plan:";
/// Limit of a strategy file, far above the size of any.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// A prediction that was read from a strategy file.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Saved {
    /// The number of ranks for which the layout was planned.
    pub ranks: usize,
    /// The predicted step.
    pub prediction: Prediction,
}

impl Saved {
    /// Returns the comment, for text forms in which `#` begins one.
    pub fn comment(&self) -> String {
        let Saved { ranks, prediction } = self;
        let Prediction { step_seconds, samples, compute_seconds, wait_seconds, memory_bytes } =
            prediction;
        format!(
            "{START} ranks={ranks} samples={samples} step_seconds={step_seconds} \
             compute_seconds={compute_seconds} wait_seconds={wait_seconds} \
             memory_bytes={memory_bytes}\n"
        )
    }

    /// Returns the prediction in a strategy file, if `fleet plan` has written one. A file that is
    /// gone, or a comment that was changed, has none: the strategy is valid without it.
    pub fn read(file: &Path) -> Option<Saved> {
        let bytes = read_file(&RealDisk, file, FILE_BYTES_MAX).ok().flatten()?;
        Saved::parse(std::str::from_utf8(&bytes).ok()?)
    }

    fn parse(text: &str) -> Option<Saved> {
        let line = text.lines().find_map(|line| line.strip_prefix(START))?;
        let value = |name: &str| {
            let mut pairs = line.split_whitespace().filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        let count = |name: &str| value(name)?.parse::<u64>().ok();
        let seconds = |name: &str| {
            let seconds = value(name)?.parse::<f64>().ok()?;
            (seconds.is_finite() && seconds >= 0.0).then_some(seconds)
        };
        let prediction = Prediction {
            step_seconds: seconds("step_seconds")?,
            samples: usize::try_from(count("samples")?).ok()?,
            compute_seconds: seconds("compute_seconds")?,
            wait_seconds: seconds("wait_seconds")?,
            memory_bytes: count("memory_bytes")?,
        };
        Some(Saved { ranks: usize::try_from(count("ranks")?).ok()?, prediction })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_read_back() {
        let prediction = Prediction {
            step_seconds: 0.0123,
            samples: 64,
            compute_seconds: 0.01,
            wait_seconds: 0.0,
            memory_bytes: 3 << 30,
        };
        let saved = Saved { ranks: 4, prediction };
        let comment = saved.comment();
        assert_eq!(Saved::parse(&format!("# made by hand\n{comment}amp: true\n")), Some(saved));
        for changed in
            ["amp: true\n", &comment.replace("ranks=4 ", ""), &comment.replace("64", "?")]
        {
            assert_eq!(Saved::parse(changed), None, "{changed}");
        }
        assert_eq!(Saved::parse(&comment.replace("0.0123", "NaN")), None);
        assert_eq!(Saved::read(Path::new("no such file")), None);
    }
}
