//! `fleet data make`: generated data sets as files. `fleet data show`, which looks at files, is in
//! `data/show.rs`.

mod show;

use clap::{Args, Subcommand, ValueEnum};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, text};
use fleet_synth::{BlobsConfig, CtrConfig, Make, MakeFormat, MakeKind, TextConfig};
use fleet_topology::Env;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum DataCommand {
    /// Write a generated data set, deterministic for given settings, and print the best possible
    /// score
    Make(MakeArgs),
    /// Show what files with columns hold: names, kinds and values of the columns, and what is
    /// unusual
    Show(show::ShowArgs),
}

#[derive(Args)]
pub struct MakeArgs {
    /// Kind of data
    #[arg(value_enum)]
    kind: Kind,
    /// Output folder, created if missing
    folder: PathBuf,
    /// Number of rows
    #[arg(long, default_value_t = 100_000)]
    rows: u64,
    /// First row of an endless stream; start a test set where the training set ends
    #[arg(long, default_value_t = 0)]
    first_row: u64,
    /// Number of files
    #[arg(long, default_value_t = 1)]
    shards: u64,
    /// Format of the files
    #[arg(long, value_enum, default_value_t = FormatArg::Multislot)]
    format: FormatArg,
    /// Seed of the generator
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of ids or words (ctr, text) [default: small]
    #[arg(long, value_enum)]
    size: Option<Size>,
    /// Number of days to spread the rows over, between which user tastes drift (ctr) [default: 1]
    #[arg(long)]
    days: Option<u64>,
    /// Tokens per record (text) [default: 128]
    #[arg(long)]
    length: Option<usize>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Kind {
    /// Click logs: 13 numbers, 26 ids, a label
    Ctr,
    /// Images of digits, 28 x 28
    Digits,
    /// Words with hidden classes
    Text,
    /// Gaussian classes
    Blobs,
}

#[derive(Clone, Copy, ValueEnum)]
enum FormatArg {
    Multislot,
    Csv,
    Jsonl,
    /// Lines like Criteo's, of click logs
    Criteo,
    /// Digits as images, in one folder per class
    Png,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Size {
    /// 5,000 ids, 500 words
    Tiny,
    /// 50,000 ids, 10,000 words
    Small,
    /// 1,000,000 ids (ctr)
    Large,
    /// The same, with missing values and effects that are hard to learn (ctr)
    Hard,
}

pub fn run(command: &DataCommand, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    match command {
        DataCommand::Make(args) => make(args, out),
        DataCommand::Show(args) => show::run(args, env, out),
    }
}

fn make(args: &MakeArgs, out: &mut Output) -> Result<(), ExitReason> {
    let make = Make {
        kind: kind(args)?,
        format: match args.format {
            FormatArg::Multislot => MakeFormat::MultiSlot,
            FormatArg::Csv => MakeFormat::Csv,
            FormatArg::Jsonl => MakeFormat::JsonLines,
            FormatArg::Criteo => MakeFormat::Criteo,
            FormatArg::Png => MakeFormat::Png,
        },
        first_row: args.first_row,
        rows: args.rows,
        shards: args.shards,
        folder: args.folder.clone(),
    };
    let made = make.write()?;
    let (files, folder) = (text::counted(made.files.len(), "file"), args.folder.display());
    out.line(format_args!("{} rows in {files} under {folder}", args.rows))?;
    for slot in made.schema.slots() {
        let width = slot.width().map_or("ragged".to_string(), |width| width.to_string());
        out.line(format_args!("  {}: {} x {width}", slot.name, slot.kind))?;
    }
    for (name, value) in &made.facts {
        if value.fract() == 0.0 {
            out.line(format_args!("{name}: {}", text::count(*value)))?;
        } else {
            out.line(format_args!("{name}: {value:.4}"))?;
        }
    }
    Ok(())
}

fn kind(args: &MakeArgs) -> Result<MakeKind, Error> {
    let seed = args.seed;
    let has = (args.size.is_some(), args.days.is_some(), args.length.is_some());
    let unused = match (args.kind, has) {
        (Kind::Ctr | Kind::Digits | Kind::Blobs, (.., true)) => {
            Some("--length applies only to kind text")
        }
        (Kind::Text | Kind::Digits | Kind::Blobs, (_, true, _)) => {
            Some("--days applies only to kind ctr")
        }
        (Kind::Digits | Kind::Blobs, (true, ..)) => {
            Some("--size applies only to kinds ctr and text")
        }
        _ => None,
    };
    if let Some(problem) = unused {
        return Err(Error::invalid(problem).help("omit it, or choose another kind"));
    }
    let size = args.size.unwrap_or(Size::Small);
    Ok(match args.kind {
        Kind::Ctr => {
            let days = args.days.unwrap_or(1);
            if days == 0 || (args.rows > 0 && days > args.rows) {
                return Err(Error::invalid("--days out of range")
                    .expected(format!("1 to {}, the number of rows", args.rows))
                    .got(days));
            }
            let base = match size {
                Size::Tiny => CtrConfig::tiny(),
                Size::Small => CtrConfig::small(),
                Size::Large => CtrConfig::criteo_like(),
                Size::Hard => CtrConfig::hard(),
            };
            let drifts = days > 1;
            MakeKind::Ctr(CtrConfig {
                seed,
                samples_per_day: if drifts { args.rows.div_ceil(days) } else { 0 },
                drift_per_day: if drifts { DRIFT_PER_DAY } else { 0.0 },
                ..base
            })
        }
        Kind::Digits => MakeKind::Digits { seed },
        Kind::Text => {
            let base = match size {
                Size::Tiny => TextConfig::tiny(),
                Size::Small => TextConfig::small(),
                Size::Large | Size::Hard => {
                    let error = Error::invalid("--size is not supported for kind text");
                    return Err(error.expected("tiny or small"));
                }
            };
            let length = args.length.unwrap_or(TEXT_LENGTH);
            MakeKind::Text { config: TextConfig { seed, ..base }, length }
        }
        Kind::Blobs => MakeKind::Blobs(BlobsConfig { seed, ..BlobsConfig::default() }),
    })
}

/// Default number of tokens in a text record.
const TEXT_LENGTH: usize = 128;
/// Rotation of user tastes per day, in radians: a week changes half of them.
const DRIFT_PER_DAY: f64 = 0.1;
