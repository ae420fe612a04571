//! `fleet checkpoint`: inspects, verifies and converts checkpoints of jobs and saves of models.

use clap::{Args, Subcommand};
use fleet::{Held, SavedCheckpoint, SavedVar, Verified, VerifyState};
use fleet_base::output::{ExitReason, Output};
use fleet_base::text::{self, counted};
use fleet_base::{Error, Result};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Command {
    /// Show the steps, the ranks and the variables of a checkpoint, without reading tensors
    Inspect(InspectArgs),
    /// Read and check every byte of a checkpoint, or of all checkpoints of a job; exit code 1 if
    /// one is damaged
    Verify {
        /// Folder of a job's checkpoints, of one checkpoint, or of a save
        folder: PathBuf,
    },
    /// Convert a checkpoint to a file with the whole model, or to another number of ranks
    ///
    /// One variable at a time is in memory.
    Convert(ConvertArgs),
}

#[derive(Args)]
pub struct InspectArgs {
    /// Folder of a job's checkpoints, of one checkpoint, or of a save
    folder: PathBuf,
    /// Step of the checkpoint [default: the newest complete one]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
pub struct ConvertArgs {
    /// Folder of a job's checkpoints, of one checkpoint, or of a save
    folder: PathBuf,
    /// New file that ends in .npz or .safetensors; with --ranks, the new folder of a job
    out: PathBuf,
    /// Step of the checkpoint [default: the newest complete one]
    #[arg(long, value_name = "N")]
    step: Option<u64>,
    /// Write a checkpoint of N ranks, which jobs of any layout of N ranks load
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks: Option<u32>,
}

pub fn run(command: &Command, out: &mut Output) -> Result<(), ExitReason> {
    match command {
        Command::Inspect(args) => inspect(args, out),
        Command::Verify { folder } => {
            let found = fleet::verify_checkpoints(folder)?;
            found.iter().try_for_each(|it| show_verified(it, out))?;
            Ok(judge(&found).map_err(|error| error.at(folder.display()))?)
        }
        Command::Convert(args) => convert(args, out),
    }
}

fn convert(args: &ConvertArgs, out: &mut Output) -> Result<(), ExitReason> {
    let saved = SavedCheckpoint::open(&args.folder, args.step)?;
    match args.ranks {
        Some(ranks) => saved.convert_to_ranks(&args.out, ranks as usize)?,
        None => saved.convert_to_file(&args.out)?,
    }
    let variables = counted(saved.vars().len(), "variable");
    out.line(format!("{}: {variables} of step {}", args.out.display(), saved.step()))
}

fn inspect(args: &InspectArgs, out: &mut Output) -> Result<(), ExitReason> {
    let saved = SavedCheckpoint::open(&args.folder, args.step)?;
    let steps = fleet::checkpoints_in(&args.folder)?;
    if args.json {
        return out.line(format!("{:#}", to_json(&saved, &steps)));
    }
    for (step, why) in &steps {
        let state = why.as_deref().unwrap_or("complete");
        out.line(format!("step {step}: {state}"))?;
    }
    let mut fact = |what: &str, found: String| out.line(format!("  {what:<10}{found}"));
    fact("folder", saved.path().display().to_string())?;
    fact("step", saved.step().to_string())?;
    let ranks = match (saved.ranks(), saved.layer_ranks()) {
        (ranks, 1) => ranks.to_string(),
        (ranks, layers) => {
            format!("{ranks}: {} copies of {layers} that divide layers", ranks / layers)
        }
    };
    fact("ranks", ranks)?;
    fact("size", text::bytes(saved.bytes()))?;
    fact("variables", saved.vars().len().to_string())?;
    let name_width = saved.vars().iter().map(|var| var.name.len()).max().unwrap_or(0);
    let name_width = name_width.min(NAME_WIDTH_MAX);
    for var in saved.vars() {
        let shape = format!("{}{}", var.dtype, var.shape);
        let (name, bytes) = (&var.name, text::bytes(var.bytes));
        let held = held_text(var);
        out.line(format!("  {name:<name_width$}  {shape:<16}  {bytes:>10}  {held}"))?;
    }
    Ok(())
}

/// Limit of a column's width; a longer name moves the rest of its own line.
const NAME_WIDTH_MAX: usize = 48;

/// Describes which ranks hold a variable.
fn held_text(var: &SavedVar) -> String {
    match &var.held {
        Held::Common => "common".to_string(),
        Held::Owners(ranks) => ranks_text(ranks),
        Held::Each(spread) => format!("each rank its own ({spread})"),
        Held::Parts { division, ranks, spread } => {
            let mut text = format!("parts of axis {}", division.axis);
            if division.groups > 1 {
                let _ = write!(text, " in {} blocks", division.groups);
            }
            if let Some(spread) = spread {
                let _ = write!(text, " ({spread})");
            }
            for (part, ranks) in ranks.iter().enumerate() {
                let separator = if part == 0 { ": " } else { ", " };
                let piece = var.shape.at(division.axis) / (division.groups * division.parts).max(1);
                let range = format!("{}..{}", part * piece, (part + 1) * piece);
                let _ = write!(text, "{separator}{range} {}", ranks_text(ranks));
            }
            text
        }
    }
}

/// Lists ranks: `rank 3`, or `ranks 0 2`.
fn ranks_text(ranks: &[usize]) -> String {
    let list: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match &list[..] {
        [one] => format!("rank {one}"),
        _ => format!("ranks {}", list.join(" ")),
    }
}

fn to_json(saved: &SavedCheckpoint, steps: &[(u64, Option<String>)]) -> Value {
    let step = |(step, why): &(u64, Option<String>)| match why {
        None => json!({"step": step, "complete": true}),
        Some(why) => json!({"step": step, "complete": false, "reason": why}),
    };
    json!({
        "steps": steps.iter().map(step).collect::<Vec<_>>(),
        "folder": saved.path().display().to_string(),
        "step": saved.step(),
        "ranks": saved.ranks(),
        "layer_ranks": saved.layer_ranks(),
        "bytes": saved.bytes(),
        "variables": saved.vars().iter().map(var_json).collect::<Vec<_>>(),
    })
}

fn var_json(var: &SavedVar) -> Value {
    let mut held = match &var.held {
        Held::Common => json!({"held": "common"}),
        Held::Owners(ranks) => json!({"held": "owners", "ranks": ranks}),
        Held::Each(spread) => json!({"held": "each", "spread": spread.to_string()}),
        Held::Parts { division, ranks, spread } => json!({
            "held": "parts",
            "axis": division.axis,
            "blocks": division.groups,
            "ranks_of_parts": ranks,
            "spread": spread.map(|spread| spread.to_string()),
        }),
    };
    let dims: Vec<i64> = var.shape.iter().copied().collect();
    held["name"] = json!(var.name);
    held["dtype"] = json!(var.dtype.to_string());
    held["shape"] = json!(dims);
    held["bytes"] = json!(var.bytes);
    held
}

fn show_verified(found: &Verified, out: &mut Output) -> Result<(), ExitReason> {
    let path = found.path.display();
    match &found.state {
        VerifyState::Intact { variable_count, bytes } => {
            let variables = counted(*variable_count, "variable");
            out.line(format!("{path}: intact, {variables}, {}", text::bytes(*bytes)))
        }
        VerifyState::Unfinished(why) => out.line(format!("{path}: unfinished: {why}")),
        VerifyState::Damaged(damages) => {
            out.line(format!("{path}: damaged"))?;
            for damage in damages {
                let place = match &damage.tensor {
                    None => String::new(),
                    Some((name, start, bytes)) => {
                        format!(": variable '{name}', bytes {start} to {}", start + bytes)
                    }
                };
                out.line(format!("  {}{place}", damage.file.display()))?;
                out.line(format!("    {}", damage.error.to_string().replace('\n', "\n    ")))?;
            }
            Ok(())
        }
    }
}

/// Returns an error if a checkpoint is damaged, or none is complete.
fn judge(found: &[Verified]) -> Result<()> {
    let count = |is: fn(&VerifyState) -> bool| found.iter().filter(|it| is(&it.state)).count();
    let damaged = count(|state| matches!(state, VerifyState::Damaged(_)));
    if damaged > 0 {
        return Err(Error::invalid(format!(
            "{damaged} of {} damaged",
            counted(found.len(), "checkpoint")
        ))
        .help("resume from an intact checkpoint, or restore the files from a copy"));
    }
    match count(|state| matches!(state, VerifyState::Intact { .. })) {
        0 => Err(Error::invalid("no complete checkpoint")),
        _ => Ok(()),
    }
}
