//! `fleet data show`: a table of what files with columns hold.

use clap::{Args, ValueEnum};
use fleet::data::{
    ColumnSummary, CsvHeader, DataFormat, InferredKind, ObjectStores, Survey, SurveyOptions, glob,
};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_topology::Env;
use std::path::PathBuf;

#[derive(Args)]
pub struct ShowArgs {
    /// Files, patterns such as 'clicks/*.csv', or objects such as s3://bucket/clicks/*.csv;
    /// compressed ones too
    #[arg(required = true)]
    files: Vec<String>,
    /// Format of the files [default: by the name and the first line]
    #[arg(long, value_enum)]
    format: Option<FormatArg>,
    /// Character between two fields (csv) [default: guessed]
    #[arg(long, value_parser = separator)]
    separator: Option<u8>,
    /// The files have no line with the names of the columns (csv)
    #[arg(long)]
    no_header: bool,
    /// Text that stands for a missing value, such as '?'; may be given several times
    #[arg(long)]
    missing: Vec<String>,
    /// Largest number of rows to read, from all files in equal parts
    #[arg(long, default_value_t = 200_000)]
    rows: u64,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum FormatArg {
    Csv,
    /// Criteo's click logs
    Criteo,
    Jsonl,
    Parquet,
    Tfrecord,
}

pub fn run(args: &ShowArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let settings = env.iter().map(|(name, value)| (name.to_string(), value.to_string()));
    let stores = ObjectStores::new(settings)?;
    let files = files(&args.files, &stores)?;
    let options = SurveyOptions {
        format: format(args)?,
        rows_max: args.rows,
        missing: args.missing.clone(),
        stores: Some(stores),
        ..SurveyOptions::default()
    };
    let survey = Survey::of(&files, &options)?;
    print(&survey, files.len(), out)
}

fn print(survey: &Survey, files: usize, out: &mut Output) -> Result<(), ExitReason> {
    let rows = match survey.is_complete {
        true => text::counted(survey.rows as usize, "row"),
        false => format!("the first {}", text::counted(survey.rows as usize, "row")),
    };
    let columns = text::counted(survey.columns.len(), "column");
    let files = text::counted(files, "file");
    out.line(format_args!("{files} of {}: {columns}, {rows}", survey.format))?;
    let head = ["column", "kind", "missing", "distinct", "values"].map(str::to_string);
    let body = survey.columns.iter().map(|column| row(column, survey.rows));
    let table: Vec<[String; 5]> = std::iter::once(head).chain(body).collect();
    for line in lines(&table) {
        out.line(line)?;
    }
    if !survey.missing_marks.is_empty() {
        let marks: Vec<String> =
            survey.missing_marks.iter().map(|mark| format!("--missing '{mark}'")).collect();
        out.line(format_args!("help: read these texts as missing: {}", marks.join(" ")))?;
    }
    for finding in &survey.findings {
        out.line(format_args!("note: {finding}"))?;
    }
    Ok(())
}

/// Returns the cells of a column's line.
fn row(column: &ColumnSummary, rows: u64) -> [String; 5] {
    let share = 100.0 * column.missing as f64 / rows.max(1) as f64;
    let missing = match column.missing {
        0 => "0".to_string(),
        _ => format!("{share:.1} %"),
    };
    let distinct = match column.is_distinct_exact {
        true => column.distinct.to_string(),
        false => format!("~{}", text::count(column.distinct as f64)),
    };
    let name = text::printable_line(&column.name).into_owned();
    [name, kind(column), missing, distinct, values(column)]
}

fn kind(column: &ColumnSummary) -> String {
    let separated = |what: &str, separator: &Option<String>| match separator {
        Some(separator) => format!("{what} by '{separator}'"),
        None => what.to_string(),
    };
    match &column.kind {
        InferredKind::Number => "number".to_string(),
        InferredKind::Integer if column.is_id => "id".to_string(),
        InferredKind::Integer => "integer".to_string(),
        InferredKind::Category => "category".to_string(),
        InferredKind::Categories { separator } => separated("categories", separator),
        InferredKind::Numbers { separator } => separated("numbers", separator),
        InferredKind::Time => "time".to_string(),
        InferredKind::Constant => "constant".to_string(),
        InferredKind::AllMissing => "all missing".to_string(),
    }
}

/// Returns the range of a column of numbers, or the most frequent values of another.
fn values(column: &ColumnSummary) -> String {
    let is_number = matches!(
        column.kind,
        InferredKind::Number | InferredKind::Integer | InferredKind::Numbers { .. }
    );
    if let (Some(numbers), true) = (&column.numbers, is_number && !column.is_id) {
        let [min, max, mean] = [numbers.min, numbers.max, numbers.mean].map(number);
        return format!("{min} .. {max}, mean {mean}");
    }
    let share = |count: u64| 100.0 * count as f64 / column.values.max(1) as f64;
    let top = column.top.iter().take(TOP_SHOWN);
    let shown: Vec<String> =
        top.map(|(value, count)| format!("{} {:.1} %", short(value), share(*count))).collect();
    let more = if column.distinct > TOP_SHOWN as u64 { ", .." } else { "" };
    shown.join(", ") + more
}

/// Returns a number with up to six significant digits.
fn number(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let digits = (5 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    match (1e-6..1e15).contains(&value.abs()) {
        true => {
            let text = format!("{value:.digits$}");
            match text.contains('.') {
                true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
                false => text,
            }
        }
        false => format!("{value:.3e}"),
    }
}

fn short(value: &str) -> String {
    let line = text::printable_line(value);
    match line.chars().count() > VALUE_CHARS_MAX {
        true => line.chars().take(VALUE_CHARS_MAX - 2).chain("..".chars()).collect(),
        false => line.into_owned(),
    }
}

/// Aligns the columns of a table: texts to the left, numbers to the right.
fn lines(table: &[[String; 5]]) -> Vec<String> {
    let width = |at: usize| table.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let [name, kind, missing, distinct] = [0, 1, 2, 3].map(width);
    let line = |row: &[String; 5]| {
        format!(
            "{:name$}  {:kind$}  {:>missing$}  {:>distinct$}  {}",
            row[0], row[1], row[2], row[3], row[4]
        )
    };
    table.iter().map(|row| line(row).trim_end().to_string()).collect()
}

fn files(patterns: &[String], stores: &ObjectStores) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for pattern in patterns {
        match pattern.contains("://") {
            true => files.extend(stores.glob(pattern)?),
            // A name that has the signs of a pattern may be a file's.
            false if PathBuf::from(pattern).is_file() => files.push(PathBuf::from(pattern)),
            false => files.extend(glob(pattern)?),
        }
    }
    Ok(files)
}

fn format(args: &ShowArgs) -> Result<Option<DataFormat>> {
    let is_csv = args.separator.is_some() || args.no_header;
    let header = if args.no_header { CsvHeader::Numbered } else { CsvHeader::FirstLine };
    Ok(match args.format {
        None if !is_csv => None,
        None | Some(FormatArg::Csv) => {
            Some(DataFormat::Csv { separator: args.separator.unwrap_or(b','), header })
        }
        Some(_) if is_csv => {
            return Err(Error::invalid("--separator and --no-header apply only to format csv")
                .help("omit them"));
        }
        Some(FormatArg::Criteo) => Some(DataFormat::Criteo),
        Some(FormatArg::Jsonl) => Some(DataFormat::JsonLines),
        Some(FormatArg::Parquet) => Some(DataFormat::Parquet),
        Some(FormatArg::Tfrecord) => Some(DataFormat::TfRecord),
    })
}

fn separator(text: &str) -> Result<u8, String> {
    match text {
        "tab" | "\\t" => Ok(b'\t'),
        _ => match text.as_bytes() {
            [byte] if byte.is_ascii() => Ok(*byte),
            _ => Err("expected one character, or tab".to_string()),
        },
    }
}

/// Values of a column that are shown.
const TOP_SHOWN: usize = 3;
/// Characters of a value that are shown.
const VALUE_CHARS_MAX: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, shown) in [
            (17.0, "17"),
            (38.581646, "38.5816"),
            (-0.00012345678, "-0.000123457"),
            (0.0, "0"),
            (1e20, "1.000e20"),
            (123456.789, "123457"),
            (0.5, "0.5"),
        ] {
            assert_eq!(number(value), shown);
        }
        assert_eq!(short(&"x".repeat(30)), format!("{}..", "x".repeat(22)));
    }
}
