//! The files of a dataset, whose names may depend on a date.

use super::RecordFormat;
use crate::files::{is_url, object_name_error};
use fleet_base::{Error, Result};
use std::path::PathBuf;

/// The part of a name that stands for the date.
const DATE: &str = "{date}";
const DATE_DIGITS: usize = 8;

/// Files as given, and the date that replaces [`DATE`] in their names.
#[derive(Default)]
pub(super) struct FileList {
    given: Vec<PathBuf>,
    date: Option<String>,
}

impl FileList {
    /// Replaces the list, and returns the files.
    pub fn set<P: Into<PathBuf>>(
        &mut self,
        format: &dyn RecordFormat,
        files: impl IntoIterator<Item = P>,
    ) -> Result<Vec<PathBuf>> {
        let given: Vec<PathBuf> = files.into_iter().map(Into::into).collect();
        let files = dated(&given, self.date.as_deref())?;
        check_files(format, &files)?;
        self.given = given;
        Ok(files)
    }

    /// Sets the date, and returns the files of that day, which need not exist yet.
    pub fn set_date(&mut self, date: &str) -> Result<Vec<PathBuf>> {
        check_date(date)?;
        self.date = Some(date.to_string());
        dated(&self.given, Some(date))
    }
}

fn check_date(date: &str) -> Result<()> {
    let is_number = date.len() == DATE_DIGITS && date.bytes().all(|digit| digit.is_ascii_digit());
    let part = |range| date.get(range).and_then(|part: &str| part.parse::<u32>().ok());
    let is_date = is_number
        && part(4..6).is_some_and(|month| (1..=12).contains(&month))
        && part(6..8).is_some_and(|day| (1..=31).contains(&day));
    match is_date {
        true => Ok(()),
        false => Err(Error::invalid("invalid date of a dataset")
            .expected("year, month and day, such as 20210222")
            .got(format!("'{date}'"))),
    }
}

/// Checks that all files exist before hours are spent on the first ones.
fn check_files(format: &dyn RecordFormat, files: &[PathBuf]) -> Result<()> {
    for file in files.iter().filter(|_| format.is_local()) {
        if is_url(file) {
            return Err(object_name_error(file.display()));
        }
        std::fs::metadata(file).map_err(|error| Error::io("read", file, &error))?;
    }
    Ok(())
}

/// Fills in the date.
fn dated(files: &[PathBuf], date: Option<&str>) -> Result<Vec<PathBuf>> {
    let fill = |file: &PathBuf| match (file.to_str().filter(|it| it.contains(DATE)), date) {
        (None, _) => Ok(file.clone()),
        (Some(name), Some(date)) => Ok(name.replace(DATE, date).into()),
        (Some(name), None) => {
            Err(Error::invalid("the name of a file has a date, and the dataset has none")
                .got(format!("'{name}'"))
                .help("call set_date first"))
        }
    };
    files.iter().map(fill).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::TextFiles;
    use crate::slot::{Schema, Slot};

    #[test]
    fn dates_are_filled_in_and_checked() {
        let format = TextFiles::multi_slot(&Schema::new([Slot::dense_ids("id", [1])]).unwrap());
        let folder = std::env::temp_dir().join(format!("fleet-dates-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("20210222")).unwrap();
        std::fs::write(folder.join("20210222/part-0"), "1 7\n").unwrap();
        let named = folder.join("{date}/part-0");
        let mut list = FileList::default();
        let error = list.set(&format, [&named]).unwrap_err().to_string();
        assert!(error.contains("the dataset has none") && error.contains("set_date"), "{error}");
        for date in ["2021022", "20211322", "20210200", "2021-2-2"] {
            let error = list.set_date(date).unwrap_err().to_string();
            assert!(error.contains("invalid date of a dataset"), "{date}: {error}");
        }
        list.set_date("20210222").unwrap();
        assert_eq!(list.set(&format, [&named]).unwrap(), [folder.join("20210222/part-0")]);
        // The files of a day may appear later.
        assert_eq!(list.set_date("20210223").unwrap(), [folder.join("20210223/part-0")]);
        list.set(&format, [&named]).unwrap_err();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
