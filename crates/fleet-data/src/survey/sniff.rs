//! The format of a file, from its name and its first bytes.

use crate::columns::{CsvHeader, DataFormat};
use crate::multislot::whole_float;
use crate::pipe::FileSource;
use fleet_base::{Error, Result};
use std::io::Read;
use std::path::Path;

impl DataFormat {
    /// Returns the format of a file, from its name and its first bytes, which also tell the
    /// separator of CSV files and whether they have a header.
    ///
    /// ```
    /// use fleet_data::{CsvHeader, DataFormat};
    /// let path = std::env::temp_dir().join(format!("format-{}.csv", std::process::id()));
    /// std::fs::write(&path, "age;city\n30;Paris\n").unwrap();
    /// let format = DataFormat::of_file(&path)?;
    /// let header = CsvHeader::FirstLine;
    /// assert_eq!(format, DataFormat::Csv { separator: b';', header });
    /// assert_eq!(format.column_names(&path)?, ["age", "city"]);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn of_file(path: &Path) -> Result<DataFormat> {
        format_of(path, &FileSource::default())
    }
}

/// Returns the format of a file. The name decides, except for the separator of CSV files; the first
/// bytes decide if the name says nothing.
pub(super) fn format_of(path: &Path, source: &FileSource) -> Result<DataFormat> {
    let named = DataFormat::of_name(path);
    match &named {
        Ok(DataFormat::Csv { .. }) | Err(_) => {}
        Ok(_) => return named,
    }
    let mut start = Vec::new();
    let mut from = source.open(path)?;
    let read = from.by_ref().take(START_BYTES).read_to_end(&mut start);
    read.map_err(|error| Error::io("read", path, &error))?;
    match of_start(&start) {
        Some(format) => Ok(format),
        None => named.map_err(|error| error.at(path.display())),
    }
}

/// Returns the format of a file with these first bytes.
fn of_start(start: &[u8]) -> Option<DataFormat> {
    if start.starts_with(b"PAR1") {
        return Some(DataFormat::Parquet);
    }
    let start = start.strip_prefix("\u{feff}".as_bytes()).unwrap_or(start);
    let mut lines = start.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let first = lines.next()?.trim_ascii_end();
    if first.trim_ascii_start().starts_with(b"{") {
        return Some(DataFormat::JsonLines);
    }
    if is_criteo(first) {
        return Some(DataFormat::Criteo);
    }
    let count = |separator: &u8| memchr::memchr_iter(*separator, first).count();
    // Of equal counts the first one in the list is taken.
    let separator = SEPARATORS.iter().rev().max_by_key(|separator| count(separator))?;
    let is_text = first.iter().all(|byte| *byte >= b' ' || *byte == b'\t');
    if count(separator) == 0 || !is_text {
        return None;
    }
    let names: Vec<&[u8]> = first.split(|byte| byte == separator).map(<[u8]>::trim_ascii).collect();
    let header = if has_values(&names) { CsvHeader::Numbered } else { CsvHeader::FirstLine };
    Some(DataFormat::Csv { separator: *separator, header })
}

/// Returns whether the fields of a first line are values, not names: some are numbers, and not just
/// the numbers of the columns.
pub(super) fn has_values<S: AsRef<[u8]>>(names: &[S]) -> bool {
    let numbers = names.iter().map(|name| whole_float(name.as_ref()));
    let is_counted = |(at, number): (usize, Option<f32>)| {
        number.is_none_or(|number| (number - at as f32).abs() <= 1.0)
    };
    numbers.clone().any(|number| number.is_some()) && !numbers.enumerate().all(is_counted)
}

/// Returns whether a line is one of Criteo's click logs: a label, 13 integers and 26 words of
/// hexadecimal digits.
fn is_criteo(line: &[u8]) -> bool {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b'\t').collect();
    let is_hex = |field: &&[u8]| field.iter().all(u8::is_ascii_hexdigit);
    fields.len() == 40 && matches!(fields[0], b"0" | b"1") && fields[14..].iter().all(is_hex)
}

const SEPARATORS: [u8; 4] = [b',', b'\t', b';', b'|'];
/// Bytes that are looked at: a header of thousands of columns.
const START_BYTES: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_tells_the_format() {
        let csv = |separator, header| Some(DataFormat::Csv { separator, header });
        let click = format!("0\t1{}{}", "\t".repeat(12), "\t68fd1e64".repeat(26));
        for (start, format) in [
            ("a,b\n1,2\n", csv(b',', CsvHeader::FirstLine)),
            ("\u{feff}a;b,c;d\n1;2;3\n", csv(b';', CsvHeader::FirstLine)),
            ("1\t2.5\tx\n", csv(b'\t', CsvHeader::Numbered)),
            ("\"\",0,1,2\n", csv(b',', CsvHeader::FirstLine)),
            ("a|b\r\n", csv(b'|', CsvHeader::FirstLine)),
            ("{\"a\": 1}\n", Some(DataFormat::JsonLines)),
            ("PAR1\u{1}", Some(DataFormat::Parquet)),
            (&click, Some(DataFormat::Criteo)),
            ("one word\n", None),
            ("", None),
            ("\u{1}\u{2},\n", None),
        ] {
            assert_eq!(of_start(start.as_bytes()), format, "{start}");
        }
    }
}
