//! `fleet strategy`: strategies as files, without a program.

use crate::inspect::counted;
use crate::rewrite::report_on;
use crate::strategy_file::{load_with_source, print_warnings};
use clap::{Args, Subcommand, ValueEnum};
use fleet::{ExecOptions, exec_options, in_force};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result};
use fleet_format::write_file;
use fleet_strategy::{
    DistributedStrategy, Inspection, Problem, StrategyForm, Value, Written, all_in_one,
    inspect as inspect_bytes, read_file, undecided, validate,
};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub enum Command {
    /// Create a strategy and print it, or write it to a file
    New(NewArgs),
    /// Check files and list every problem as FILE:LINE:COLUMN; exit code 1 if there is an error
    Check(CheckArgs),
    /// Print all effective settings of a strategy
    Show {
        /// Strategy file [default: the default strategy]
        file: Option<PathBuf>,
        #[command(flatten)]
        changes: Changes,
    },
    /// Explain which strategies apply to a program and which are rejected; needs no hardware
    Explain(ExplainArgs),
    /// Convert a strategy to another format
    Convert {
        /// Strategy file
        input: PathBuf,
        /// Output file
        output: PathBuf,
        /// Format of OUTPUT [default: from its extension]
        #[arg(long, value_enum)]
        to: Option<To>,
    },
}

#[derive(Args)]
pub struct CheckArgs {
    /// Strategy files; the extension gives the format: .prototxt, .pb, .json, .toml
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// Treat warnings as errors
    #[arg(long)]
    strict: bool,
    /// Forward program, a file or model:NAME from the zoo: also check the strategy for it, its
    /// optimizer and its ranks
    #[arg(long, value_name = "PROGRAM")]
    program: Option<String>,
    #[command(flatten)]
    program_args: crate::rewrite::ProgramArgs,
}

#[derive(Args)]
pub struct ExplainArgs {
    /// Strategy file
    file: PathBuf,
    /// Forward program: a file, or model:NAME from the zoo
    #[arg(long, value_name = "PROGRAM")]
    program: String,
    #[command(flatten)]
    program_args: crate::rewrite::ProgramArgs,
}

#[derive(Args)]
pub struct NewArgs {
    #[command(flatten)]
    changes: Changes,
    /// Output file; the extension gives the format [default: print]
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Format [default: from FILE's extension]
    #[arg(long, value_enum)]
    to: Option<To>,
}

#[derive(Args)]
pub struct Changes {
    /// Assign a field, such as amp=true, amp_configs.decr_ratio=0.5, or
    /// recompute_configs.checkpoints='["x", "y"]'; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub enum To {
    Prototxt,
    Binary,
    Json,
    Toml,
}

impl From<To> for StrategyForm {
    fn from(to: To) -> StrategyForm {
        match to {
            To::Prototxt => StrategyForm::Prototxt,
            To::Binary => StrategyForm::Binary,
            To::Json => StrategyForm::Json,
            To::Toml => StrategyForm::Toml,
        }
    }
}

pub fn run(command: &Command, out: &mut Output) -> Result<(), ExitReason> {
    match command {
        Command::New(args) => new(args, out),
        Command::Check(args) => check(args, out),
        Command::Show { file, changes } => {
            let mut strategy = match file {
                Some(file) => load(file)?,
                None => DistributedStrategy::new(),
            };
            changes.apply(&mut strategy)?;
            out.text(&strategy)?;
            let options = exec_options(&strategy, ExecOptions::default());
            out.line(format!("in force: {}", in_force(&options)))
        }
        Command::Explain(args) => {
            let (strategy, source) = load_with_source(&args.file)?;
            let written = Written { strategy: &strategy, source: Some(&source) };
            crate::rewrite::explain(&written, &args.program, &args.program_args, out)
        }
        Command::Convert { input, output, to } => {
            let form = to.map_or(StrategyForm::of(output), StrategyForm::from);
            Ok(write_file(output, &load(input)?.to_bytes(form))?)
        }
    }
}

fn new(args: &NewArgs, out: &mut Output) -> Result<(), ExitReason> {
    let mut strategy = DistributedStrategy::new();
    args.changes.apply(&mut strategy)?;
    print_warnings(&validate(&strategy)?);
    let form = args.to.map(StrategyForm::from);
    match &args.output {
        Some(path) => {
            let form = form.unwrap_or(StrategyForm::of(path));
            Ok(write_file(path, &strategy.to_bytes(form))?)
        }
        None => match form.unwrap_or(StrategyForm::Prototxt) {
            StrategyForm::Binary => Err(Error::invalid("cannot print the binary form")
                .help("write it to a file with --output")
                .into()),
            form => out.text(String::from_utf8_lossy(&strategy.to_bytes(form))),
        },
    }
}

/// Prints every problem of every file, one per line, with its place, cause and help.
fn check(args: &CheckArgs, out: &mut Output) -> Result<(), ExitReason> {
    let mut wrong = 0;
    for path in &args.files {
        match inspect(path) {
            Ok(inspection) => wrong += check_one(path, &inspection, args, out)?,
            // The other files are still checked.
            Err(error) => {
                out.line(format!("{}: error: {error}", path.display()))?;
                wrong += 1;
            }
        }
    }
    match wrong {
        0 => Ok(()),
        count => Err(Error::invalid(counted(count, "problem")).into()),
    }
}

/// Checks a file that can be parsed; returns the number of its errors.
fn check_one(
    path: &Path,
    inspection: &Inspection,
    args: &CheckArgs,
    out: &mut Output,
) -> Result<usize, ExitReason> {
    let Inspection { problems, strategy, .. } = inspection;
    let is_error = |problem: &&Problem| args.strict || problem.is_error();
    let errors = problems.iter().filter(is_error).count();
    if let (0, Some(program)) = (errors, &args.program) {
        return check_for(path, program, args, out);
    }
    for problem in problems {
        // `FILE:LINE:COLUMN: `, or `FILE: ` for a problem without a position.
        let after = if problem.place.is_some() { ":" } else { ": " };
        out.line(format!("{}{after}{problem}", path.display()))?;
    }
    if errors == 0 {
        print_ok(path, problems.len(), out)?;
        let open = undecided(strategy);
        if !open.is_empty() {
            let open = open.join(", ");
            out.line(format!("  not decided without --program: whether {open} can be applied"))?;
        }
    }
    Ok(errors)
}

/// Checks a file without errors for a program; returns the number of errors.
fn check_for(
    path: &Path,
    program: &str,
    args: &CheckArgs,
    out: &mut Output,
) -> Result<usize, ExitReason> {
    let (strategy, source) = load_with_source(path)?;
    let written = Written { strategy: &strategy, source: Some(&source) };
    let (report, error) = report_on(written, program, &args.program_args)?;
    out.text(&report)?;
    let warnings = report.warnings().len();
    let mut wrong = report.error_count() + if args.strict { warnings } else { 0 };
    if let Some(error) = error {
        out.line(format!("{}: error: {error}", path.display()))?;
        wrong += 1;
    }
    if wrong == 0 {
        print_ok(path, warnings, out)?;
    }
    Ok(wrong)
}

fn print_ok(path: &Path, warnings: usize, out: &mut Output) -> Result<(), ExitReason> {
    let warnings = match warnings {
        0 => String::new(),
        count => format!(", {}", counted(count, "warning")),
    };
    out.line(format!("{}: ok{warnings}", path.display()))
}

fn inspect(path: &Path) -> Result<Inspection> {
    inspect_bytes(&read_file(path)?, StrategyForm::of(path))
}

/// Loads a strategy from a file without checking its meaning, as [`check`] does.
fn load(path: &Path) -> Result<DistributedStrategy> {
    load_with_source(path).map(|(strategy, _)| strategy)
}

impl Changes {
    pub fn apply(&self, strategy: &mut DistributedStrategy) -> Result<()> {
        for given in &self.set {
            let Some((key, value)) = given.split_once('=') else {
                return Err(Error::invalid("invalid --set")
                    .expected("KEY=VALUE, such as amp=true")
                    .got(given));
            };
            let place = || format!("--set {given}");
            let notices = strategy
                .set_strictly(key.trim(), Value::read(value))
                .map_err(|error| error.at(place()))?;
            print_warnings(&all_in_one(notices.into_vec())?);
        }
        Ok(())
    }
}
