//! Files of scalars: `scalars.csv` and `scalars.jsonl`, one row for each step with a value.
//!
//! A resumed training continues the files. Rows of steps after the one that it resumes from are
//! removed first, so that no step is there twice.

use fleet_base::file::{make_folder, write_file};
use fleet_base::output::note;
use fleet_base::{Error, Result};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

/// Values of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Row {
    pub step: u64,
    pub epoch: u64,
    /// Rows of all workers up to this step.
    pub rows: u64,
    /// Duration of the training up to this step, in seconds.
    pub seconds: f64,
    /// A value for each column that this step has.
    pub values: Vec<Option<f64>>,
}

/// Names of the columns before the values.
const FIXED: [&str; 4] = ["step", "epoch", "rows", "seconds"];

/// The two files, open at their ends.
pub(super) struct ScalarFiles {
    columns: Vec<String>,
    files: [(PathBuf, File); 2],
    has_failed: bool,
}

impl ScalarFiles {
    /// Opens the files of a training that has made `step` steps. Creates the folder and the files
    /// if they do not exist.
    pub fn open(folder: &Path, columns: Vec<String>, step: u64) -> Result<ScalarFiles> {
        make_folder(folder)?;
        let csv = folder.join("scalars.csv");
        let header = FIXED.iter().copied().chain(columns.iter().map(String::as_str));
        let header = header.collect::<Vec<_>>().join(",");
        keep(&csv, Some(&header), step, |line| line.split(',').next())?;
        let jsonl = folder.join("scalars.jsonl");
        keep(&jsonl, None, step, |line| line.strip_prefix("{\"step\":")?.split(',').next())?;
        let open = |path: PathBuf| {
            let file = OpenOptions::new().append(true).open(&path);
            let file = file.map_err(|error| Error::io("open", &path, &error))?;
            Ok::<_, Error>((path, file))
        };
        Ok(ScalarFiles { columns, files: [open(csv)?, open(jsonl)?], has_failed: false })
    }

    /// Appends a row to both files. The first failure is reported on the standard error, and
    /// training continues: a full disk must not end it.
    pub fn write(&mut self, row: &Row) {
        let lines = [csv_line(row), json_line(row, &self.columns)];
        for ((path, file), line) in self.files.iter_mut().zip(lines) {
            // In one piece, so that a crash leaves at most one incomplete line.
            let Err(error) = file.write_all(line.as_bytes()) else { continue };
            if !std::mem::replace(&mut self.has_failed, true) {
                note(Error::io("write", path, &error));
            }
        }
    }
}

fn csv_line(row: &Row) -> String {
    let mut line = format!("{},{},{},{}", row.step, row.epoch, row.rows, row.seconds);
    for value in &row.values {
        line.push(',');
        if let Some(value) = value {
            // Writing to a string cannot fail.
            let _ = write!(line, "{value}");
        }
    }
    line.push('\n');
    line
}

fn json_line(row: &Row, columns: &[String]) -> String {
    let Row { step, epoch, rows, seconds, values } = row;
    let mut line =
        format!("{{\"step\":{step},\"epoch\":{epoch},\"rows\":{rows},\"seconds\":{seconds}");
    for (name, value) in columns.iter().zip(values) {
        let Some(value) = value else { continue };
        let _ = match value.is_finite() {
            true => write!(line, ",\"{name}\":{value}"),
            // JSON has no NaN and no infinity.
            false => write!(line, ",\"{name}\":null"),
        };
    }
    line.push_str("}\n");
    line
}

/// Keeps the lines of a file up to a step, and its first line if that is a header.
fn keep(
    path: &Path,
    header: Option<&str>,
    step: u64,
    step_of: impl Fn(&str) -> Option<&str>,
) -> Result<()> {
    let old = match std::fs::read_to_string(path) {
        Ok(old) => old,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(Error::io("read", path, &error)),
    };
    // A crash may have left an incomplete last line.
    let whole = old.rfind('\n').map_or("", |end| &old[..end + 1]);
    let is_kept = |line: &&str| {
        step_of(line).and_then(|text| text.parse::<u64>().ok()).is_some_and(|it| it <= step)
    };
    let skipped = usize::from(header.is_some());
    let kept: Vec<&str> = whole.lines().skip(skipped).filter(is_kept).collect();
    let found = whole.lines().next();
    if let (Some(header), false) = (header, kept.is_empty())
        && found != Some(header)
    {
        return Err(Error::invalid("the file of scalars has other columns")
            .expected(header)
            .got(found.unwrap_or_default())
            .at(path.display())
            .help("resume with the same scalars, or move the file away"));
    }
    let lines = header.into_iter().chain(kept);
    let text: String = lines.flat_map(|line| [line, "\n"]).collect();
    // A device or a pipe is written to as it is.
    if path.exists() && !path.is_file() {
        return Ok(());
    }
    write_file(path, text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(step: u64, values: [Option<f64>; 2]) -> Row {
        Row { step, epoch: step / 2, rows: step * 3, seconds: 0.5, values: values.to_vec() }
    }

    fn columns(names: [&str; 2]) -> Vec<String> {
        names.map(str::to_string).to_vec()
    }

    #[test]
    fn files_continue_without_duplicate_steps() {
        let folder = std::env::temp_dir().join(format!("fleet-scalars-{}", std::process::id()));
        std::fs::remove_dir_all(&folder).ok();
        let names = columns(["train/loss", "valid/AUC"]);
        let mut files = ScalarFiles::open(&folder, names.clone(), 0).unwrap();
        files.write(&row(1, [Some(0.5), None]));
        files.write(&row(2, [Some(0.25), Some(0.75)]));
        files.write(&row(3, [Some(f64::NAN), Some(f64::INFINITY)]));
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap();
        let header = "step,epoch,rows,seconds,train/loss,valid/AUC\n";
        let first = "1,0,3,0.5,0.5,\n2,1,6,0.5,0.25,0.75\n";
        assert_eq!(read("scalars.csv"), format!("{header}{first}3,1,9,0.5,NaN,inf\n"));
        let json = "{\"step\":1,\"epoch\":0,\"rows\":3,\"seconds\":0.5,\"train/loss\":0.5}\n\
                    {\"step\":2,\"epoch\":1,\"rows\":6,\"seconds\":0.5,\"train/loss\":0.25,\
                    \"valid/AUC\":0.75}\n";
        let last = "{\"step\":3,\"epoch\":1,\"rows\":9,\"seconds\":0.5,\"train/loss\":null,\
                    \"valid/AUC\":null}\n";
        assert_eq!(read("scalars.jsonl"), format!("{json}{last}"));

        // The last line is incomplete, and the training resumes from step 2.
        for name in ["scalars.csv", "scalars.jsonl"] {
            let mut file = OpenOptions::new().append(true).open(folder.join(name)).unwrap();
            file.write_all(b"1").unwrap();
        }
        let mut files = ScalarFiles::open(&folder, names, 2).unwrap();
        files.write(&row(3, [Some(0.125), None]));
        assert_eq!(read("scalars.csv"), format!("{header}{first}3,1,9,0.5,0.125,\n"));
        let last = "{\"step\":3,\"epoch\":1,\"rows\":9,\"seconds\":0.5,\"train/loss\":0.125}\n";
        assert_eq!(read("scalars.jsonl"), format!("{json}{last}"));

        // Other columns are refused, unless no row is kept.
        let other = columns(["train/loss", "valid/acc"]);
        let error = ScalarFiles::open(&folder, other.clone(), 3).err().unwrap().to_string();
        assert!(error.contains("other columns") && error.contains("valid/AUC"), "{error}");
        ScalarFiles::open(&folder, other, 0).unwrap();
        assert_eq!(read("scalars.csv"), "step,epoch,rows,seconds,train/loss,valid/acc\n");
        assert_eq!(read("scalars.jsonl"), "");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
