//! `fleet job init`: looks at files, and writes a commented job file for them.

use crate::made::is_made;
use crate::origin::{Origin, is_object};
use crate::problems::fail_on_errors;
use clap::Args;
use fleet::topology::Env;
use fleet_base::file::AtomicFile;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_data::{ColumnSummary, DataFormat, InferredKind, Survey, SurveyOptions};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

/// Arguments of `fleet job init`.
#[derive(Args)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct InitArgs {
    /// Files to train on: names or patterns, also of object stores such as s3://bucket/day-*.csv
    #[arg(long, value_name = "FILES", required = true, num_args = 1..)]
    data: Vec<String>,
    /// Column that the model predicts [default: guessed]
    #[arg(long, value_name = "COLUMN")]
    label: Option<String>,
    /// The job file to write; an existing file is not replaced
    #[arg(long, value_name = "FILE", default_value = "job.toml")]
    out: PathBuf,
    /// Number of rows to read
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    rows: u64,
}

/// Runs the command.
pub fn run(args: &InitArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    if args.out.exists() {
        return Err(Error::invalid(format!("{} exists already", args.out.display()))
            .help("remove it, or name another file with --out")
            .into());
    }
    let origin = Origin::new("", env)?;
    if let Some(made) = args.data.iter().find(|name| is_made(name)) {
        return Err(Error::unsupported("fleet job init looks at files, not at generated rows")
            .got(made)
            .help("examples/jobs/wide_deep.toml is a job file for generated rows")
            .into());
    }
    let files = origin.expand(&args.data)?;
    let options = SurveyOptions { rows_max: args.rows, ..SurveyOptions::default() };
    let options = origin.survey(options);
    let survey = Survey::of(&files, &options)?;
    let label = label_of(&survey, args.label.as_deref())?;
    expect_features(&survey, label)?;
    let base = args.out.parent().unwrap_or(Path::new(""));
    let text = job_text(&survey, label, &relative(&args.data, base)?);
    fail_on_errors(&crate::problems_of(&args.out, &text))
        .map_err(|error| error.help("this is a fault of fleet job init: please report it"))?;
    AtomicFile::create(&args.out)?.commit_with(text.as_bytes())?;
    for finding in &survey.findings {
        out.line(format!("note: {finding}"))?;
    }
    let name = &survey.columns[label].name;
    let (rows, columns) = (text::count(survey.rows as f64), survey.columns.len());
    let file = args.out.display();
    out.line(format!(
        "{file}: written for {columns} columns of {rows} rows; the label is '{name}'"
    ))?;
    out.line(format!("next: look at the file, then fleet job check {file}"))
}

/// Returns patterns as they are written in a job file, which are relative to its folder.
fn relative(patterns: &[String], base: &Path) -> Result<Vec<String>> {
    if base.as_os_str().is_empty() {
        return Ok(patterns.to_vec());
    }
    let absolute = |pattern: &String| {
        if is_object(pattern) {
            return Ok(pattern.clone());
        }
        let path = std::path::absolute(pattern);
        let path = path.map_err(|error| Error::io("find", Path::new(pattern), &error))?;
        Ok(path.display().to_string())
    };
    patterns.iter().map(absolute).collect()
}

/// Names that labels usually have.
const LABELS: [&str; 10] = [
    "label", "target", "y", "click", "clicked", "is_click", "outcome", "class", "income", "rating",
];

/// Returns the column of the label: the given one, one with a usual name, or the last one with two
/// values.
fn label_of(survey: &Survey, given: Option<&str>) -> Result<usize> {
    let columns = &survey.columns;
    let names = || columns.iter().map(|column| column.name.as_str());
    if let Some(given) = given {
        return columns.iter().position(|column| column.name == given).ok_or_else(|| {
            let near = text::did_you_mean(given, names());
            Error::invalid(format!("no column '{given}'{near}"))
                .expected(names().collect::<Vec<_>>().join(", "))
                .at("--label")
        });
    }
    let is_usable = |column: &ColumnSummary| {
        !matches!(column.kind, InferredKind::Constant | InferredKind::AllMissing)
    };
    let named = |name: &&str| {
        columns.iter().position(|it| it.name.eq_ignore_ascii_case(name) && is_usable(it))
    };
    let two = || columns.iter().rposition(|column| column.distinct == 2 && is_usable(column));
    LABELS.iter().find_map(named).or_else(two).ok_or_else(|| no_label(survey))
}

fn no_label(survey: &Survey) -> Error {
    if survey.rows == 0 {
        return Error::invalid("the files have no rows").help("name files with data: --data FILE");
    }
    let is_label = |name: &str| LABELS.iter().any(|usual| usual.eq_ignore_ascii_case(name));
    let names = survey.columns.iter().map(|column| match column.kind {
        InferredKind::Constant if is_label(&column.name) => {
            format!("{} (the same value in all rows)", column.name)
        }
        InferredKind::AllMissing if is_label(&column.name) => {
            format!("{} (all values are missing)", column.name)
        }
        _ => column.name.clone(),
    });
    Error::invalid("cannot guess which column the model should predict")
        .expected("a column such as 'label', or one with two values")
        .got(names.collect::<Vec<_>>().join(", "))
        .help("name it: --label COLUMN")
}

/// Task, and the fields of the label's column.
fn task_of(label: &ColumnSummary) -> (&'static str, String) {
    let is_text = matches!(label.kind, InferredKind::Category) && label.numbers.is_none();
    let values: Vec<&str> = label.top.iter().map(|(value, _)| value.as_str()).collect();
    match (label.distinct, is_text) {
        (2, false) if values.iter().all(|value| ["0", "1"].contains(value)) => {
            ("binary", String::new())
        }
        (2, is_text) => {
            // The rarer value is usually what one looks for.
            let positive = values.last().copied().unwrap_or_default();
            let positive = if is_text { quoted(positive) } else { positive.to_string() };
            ("binary", format!(", positive = {positive}"))
        }
        (count, true) if count as usize == values.len() => {
            let classes: Vec<String> = values.iter().map(|value| quoted(value)).collect();
            ("multi_class", format!(", kind = \"category\", classes = [{}]", classes.join(", ")))
        }
        (_, true) => ("binary", format!(", positive = {}", quoted(values.first().unwrap_or(&"")))),
        (_, false) => ("regression", String::new()),
    }
}

fn job_text(survey: &Survey, label: usize, patterns: &[String]) -> String {
    let (task, label_fields) = task_of(&survey.columns[label]);
    let time = survey.columns.iter().position(|column| column.kind == InferredKind::Time);
    let mut out = String::new();
    let rows = text::count(survey.rows as f64);
    let only = if survey.is_complete { "all" } else { "the first" };
    let _ = writeln!(
        out,
        "# Written by fleet job init from {only} {rows} rows. Check every line: kinds are \
         guesses.\n\
         # All fields: fleet job fields. Problems: fleet job check. Training: fleetrun \
         job:FILE.\n\n\
         version = 1\n\n[data]"
    );
    let files: Vec<String> = patterns.iter().map(|pattern| quoted(pattern)).collect();
    let _ = writeln!(out, "train = [{}]", files.join(", "));
    if let Some(format) = format_name(&survey.format) {
        let _ = writeln!(out, "format = \"{format}\"");
    }
    if let DataFormat::Csv { separator, .. } = survey.format
        && separator != b','
    {
        let _ = writeln!(out, "separator = {}", quoted(&char::from(separator).to_string()));
    }
    let marks: Vec<String> = survey.missing_marks.iter().map(|mark| quoted(mark)).collect();
    let _ = writeln!(out, "missing = [{}]", marks.join(", "));
    match time {
        Some(at) => {
            let name = quoted(&survey.columns[at].name);
            let _ = writeln!(
                out,
                "# The newest rows, as in use: the model predicts what it has not seen yet.\n\
                 test = {{ column = {name}, share = 0.2 }}\n\
                 validation = {{ column = {name}, share = 0.1 }}"
            );
        }
        None => {
            let _ = writeln!(out, "test = {{ share = 0.2 }}\nvalidation = {{ share = 0.1 }}");
        }
    }
    let _ = writeln!(out, "\n[columns]");
    for (at, column) in survey.columns.iter().enumerate() {
        let (fields, remark) = match at {
            at if at == label => (format!("role = \"label\"{label_fields}"), shares(column)),
            at if Some(at) == time => ("role = \"time\"".to_string(), String::new()),
            _ => feature(column, survey.rows),
        };
        let remark = if remark.is_empty() { remark } else { format!(" # {remark}") };
        let _ = writeln!(out, "{} = {{ {fields} }}{remark}", key(&column.name));
    }
    let _ = write!(
        out,
        "\n[task]\nkind = \"{task}\"\n\n[model]\n\
         kind = \"dcn_v2\" # or mlp, wide_deep, deepfm, mf, din, two_tower, mmoe\n\
         dim = 16\nhidden = [128, 64]\ndropout = 0.1\n\n[train]\nbatch = 512\nepochs = 10\n\
         early_stop = 3\noptimizer = {{ kind = \"adam\", rate = 0.001 }}\n\n[output]\n\
         folder = \"model\"\n"
    );
    out
}

/// Checks that a model has something to predict from.
fn expect_features(survey: &Survey, label: usize) -> Result<()> {
    let mut ignored = Vec::new();
    for (_, column) in survey.columns.iter().enumerate().filter(|(at, _)| *at != label) {
        let (fields, why) = feature(column, survey.rows);
        if fields != IGNORED {
            return Ok(());
        }
        ignored.push(format!("'{}' ({why})", column.name));
    }
    let got = if ignored.is_empty() { "no other column".into() } else { ignored.join(", ") };
    let name = &survey.columns[label].name;
    Err(Error::invalid(format!("no column can be a feature beside the label '{name}'"))
        .expected("columns with numbers or categories that differ between rows")
        .got(got)
        .help("look at the columns with fleet data show; name another label with --label"))
}

/// Fields of a column that the model does not use.
const IGNORED: &str = "role = \"ignore\"";

/// Returns the fields of a feature, and a remark.
fn feature(column: &ColumnSummary, rows: u64) -> (String, String) {
    let missing = match column.missing {
        0 => String::new(),
        count => format!("{:.1} % missing; ", 100.0 * count as f64 / rows.max(1) as f64),
    };
    let ignore = |why: &str| (IGNORED.to_string(), why.to_string());
    let distinct = text::count(column.distinct as f64);
    let is_unique = column.distinct >= rows.saturating_sub(column.missing) / 10 * 9 && rows > 100;
    let number = || {
        let fields = "kind = \"number\", embed = \"piecewise\"".to_string();
        let range =
            column.numbers.map(|it| format!("{} to {}, mean {:.4}", it.min, it.max, it.mean));
        (fields, missing.clone() + &range.unwrap_or_default())
    };
    let category = || {
        let vocabulary = match column.distinct {
            0..=100 => "",
            _ => ", vocabulary = { min_count = 2 }",
        };
        (format!("kind = \"category\"{vocabulary}"), format!("{missing}{distinct} values"))
    };
    match &column.kind {
        InferredKind::Constant => ignore("the same value in all rows"),
        InferredKind::AllMissing => ignore("all values are missing"),
        InferredKind::Numbers { .. } => ignore("lists of numbers are not supported"),
        InferredKind::Time => ignore("another time"),
        InferredKind::Category if is_unique => ignore("a different value in nearly every row"),
        InferredKind::Integer if column.is_id => category(),
        InferredKind::Number | InferredKind::Integer => number(),
        InferredKind::Category => category(),
        InferredKind::Categories { separator } => {
            let separator = separator.as_ref().map(|it| format!(", separator = {}", quoted(it)));
            let fields = format!("kind = \"categories\"{}", separator.unwrap_or_default());
            let longest = text::counted(column.longest, "value");
            (fields, format!("{missing}{distinct} values, at most {longest} in a row"))
        }
    }
}

/// Returns the shares of a label's values.
fn shares(column: &ColumnSummary) -> String {
    let share = |count: u64| 100.0 * count as f64 / column.values.max(1) as f64;
    let top = column.top.iter().take(3);
    let shares: Vec<String> =
        top.map(|(value, count)| format!("{value}: {:.1} %", share(*count))).collect();
    if column.distinct > 20 { String::new() } else { shares.join(", ").replace('\n', " ") }
}

fn format_name(format: &DataFormat) -> Option<&'static str> {
    Some(match format {
        DataFormat::Csv { .. } => "csv",
        DataFormat::Criteo => "criteo",
        DataFormat::JsonLines => "jsonl",
        DataFormat::Parquet => "parquet",
        DataFormat::TfRecord => "tfrecord",
        DataFormat::MultiSlot { .. } => return None,
    })
}

/// Returns a key of TOML.
fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(is_bare) { name.to_string() } else { quoted(name) }
}

/// Returns a text of TOML.
fn quoted(value: &str) -> String {
    let mut out = String::from("\"");
    for c in value.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out + "\""
}
