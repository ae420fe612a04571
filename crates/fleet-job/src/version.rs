//! The version of a model folder. A training replaces the files of a folder one after the other;
//! `version.json` lets readers take all of them from the same training.
//!
//! The file is one JSON object. While files are replaced, `complete` is false. When all are in
//! place, it becomes true, with a new version and the sums of the files that describe the others.

use fleet_base::file::write_file;
use fleet_base::{Error, Result, input};
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::time::Duration;

/// File of the job in a model folder.
pub const JOB_FILE: &str = "job.toml";
/// File of the features.
pub const FEATURES_FILE: &str = "features.json";
/// Folder of the program.
pub const PROGRAM_FOLDER: &str = "program";
/// File of the version.
pub const VERSION_FILE: &str = "version.json";
/// Version of the file's form.
const FORM: u32 = 1;
/// Limit of the file.
const BYTES_MAX: u64 = 64 << 10;
/// Limit of a file that is summed: features with a hundred million known values.
const SUMMED_BYTES_MAX: u64 = 2 << 30;
/// Looks at the file before it is an error: 10 s, in which a training replaces the files.
const LOOKS_MAX: u32 = 200;
/// Interval between looks at the file.
const INTERVAL: Duration = Duration::from_millis(50);

/// A version of a model folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    fleet_model: u32,
    /// Counts the trainings of the folder.
    pub version: u64,
    /// Whether all files are of this version.
    complete: bool,
    /// CRC-32 of each summed file.
    sums: Vec<u32>,
}

impl Version {
    /// Returns whether all files are of this version.
    pub fn is_complete(&self) -> bool {
        self.complete
    }
}

/// Marks the files of a folder as being replaced.
pub fn begin(folder: &Path) -> Result<()> {
    let version = match read(folder)? {
        Some(last) => Version { complete: false, ..last },
        None => Version { fleet_model: FORM, version: 0, complete: false, sums: Vec::new() },
    };
    write(folder, &version)
}

/// Marks the files of a folder as complete, and of a new version.
pub fn finish(folder: &Path) -> Result<()> {
    let last = read(folder)?.map_or(0, |last| last.version);
    let sums = sums(folder)?;
    write(folder, &Version { fleet_model: FORM, version: last + 1, complete: true, sums })
}

/// Reads a version. `None` if the folder has none.
pub fn read(folder: &Path) -> Result<Option<Version>> {
    let path = folder.join(VERSION_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = input::read(&path, "the version of a model", BYTES_MAX)?;
    let version: Version = serde_json::from_slice(&bytes).map_err(|error| {
        Error::invalid(format!("{} is damaged: {error}", path.display()))
            .help("copy the model folder again, or train the model again")
    })?;
    match version.fleet_model {
        FORM => Ok(Some(version)),
        other => Err(Error::unsupported(format!("unsupported version of {}", path.display()))
            .expected(FORM)
            .got(other)
            .help("use the build of Fleet that trained the model, or train it again")),
    }
}

/// Calls a function that reads a folder's files, until all of them are of one version.
pub fn read_whole<T>(folder: &Path, read_all: impl Fn(&Version) -> Result<T>) -> Result<T> {
    let mut last = None;
    for look in 0..LOOKS_MAX {
        if look > 0 {
            std::thread::sleep(INTERVAL);
        }
        match look_at(folder, &read_all)? {
            Look::Whole(read) => return read,
            Look::Changing(error) => last = error.or(last),
        }
    }
    let error = last.unwrap_or_else(|| {
        Error::invalid("the files of the model folder do not belong together").got(folder.display())
    });
    Err(error
        .or_help("wait for the training that writes the folder; if it was stopped, run it again"))
}

/// The outcome of one look at a folder.
enum Look<T> {
    /// All files were of one version, and were read.
    Whole(Result<T>),
    /// A training is writing the files, with the error of reading them meanwhile.
    Changing(Option<Error>),
}

fn look_at<T>(folder: &Path, read_all: &impl Fn(&Version) -> Result<T>) -> Result<Look<T>> {
    let Some(version) = read(folder)? else {
        return Err(Error::invalid(format!("the model folder has no {VERSION_FILE}"))
            .got(folder.display())
            .help("train the model again, or copy all files of the folder"));
    };
    let are_of_version = version.complete && sums(folder).is_ok_and(|sums| sums == version.sums);
    if !are_of_version {
        return Ok(Look::Changing(None));
    }
    let whole = read_all(&version);
    Ok(match read(folder)?.as_ref() == Some(&version) {
        true => Look::Whole(whole),
        false => Look::Changing(whole.err()),
    })
}

/// Returns the sums of the job, the features, and the list of the program's files.
fn sums(folder: &Path) -> Result<Vec<u32>> {
    let program = folder.join(PROGRAM_FOLDER);
    let lists = ["checkpoint.json", "model/checkpoint.json"].map(|name| program.join(name));
    let files = [folder.join(JOB_FILE), folder.join(FEATURES_FILE)].into_iter();
    let all = files.chain(lists.into_iter().filter(|list| list.is_file()));
    all.map(|file| Ok(crc32fast::hash(&input::read(&file, "a file of a model", SUMMED_BYTES_MAX)?)))
        .collect()
}

fn write(folder: &Path, version: &Version) -> Result<()> {
    let json = serde_json::to_string(version)
        .map_err(|error| Error::internal(format!("a version has no JSON form: {error}")))?;
    write_file(&folder.join(VERSION_FILE), format!("{json}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::temporary::TemporaryFolder;
    use std::fs;

    #[test]
    fn files_of_two_trainings_are_not_mixed() {
        let folder = TemporaryFolder::new(&std::env::temp_dir(), "fleet-version").unwrap();
        let folder = folder.path();
        let put = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
        begin(folder).unwrap();
        put(JOB_FILE, "job 1");
        put(FEATURES_FILE, "features 1");
        finish(folder).unwrap();
        let number = |version: &Version| Ok(version.version);
        let read = || read_whole(folder, number);
        assert_eq!(read().unwrap(), 1);
        // A reader that looks in the middle of a training looks again.
        begin(folder).unwrap();
        put(JOB_FILE, "job 2");
        assert!(matches!(look_at(folder, &number), Ok(Look::Changing(None))));
        put(FEATURES_FILE, "features 2");
        finish(folder).unwrap();
        assert_eq!(read().unwrap(), 2);
        // A file that does not belong to the version.
        put(JOB_FILE, "job 3");
        assert!(matches!(look_at(folder, &number), Ok(Look::Changing(None))));
        put(VERSION_FILE, "{}");
        assert!(read().unwrap_err().to_string().contains("is damaged"));
        put(VERSION_FILE, r#"{"fleet_model":2,"version":1,"complete":true,"sums":[]}"#);
        assert!(read().unwrap_err().to_string().contains("unsupported version"));
    }
}
