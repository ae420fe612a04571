//! `fleet run`: runs a program with tensors from `.npy` files, and prints or saves its results.

use super::inspect::results;
use super::models::Models;
use clap::Args;
use fleet_base::output::{ExitReason, Output, note};
use fleet_base::{Error, Result};
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_format::{Meta, load_tensors, read_npy, save_tensors, write_file, write_npy, write_npz};
use fleet_ir::{Program, VarKind};
use fleet_tensor::Tensor;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct RunArgs {
    /// Program: a file, the folder of a saved model, or model:NAME
    program: PathBuf,
    /// Startup program to run once first; initialises parameters [default: that of model:NAME]
    #[arg(long, value_name = "PROGRAM")]
    startup: Option<PathBuf>,
    /// Checkpoint whose variables to start from [default: PROGRAM, if it is the folder of a saved
    /// model]
    #[arg(long, value_name = "CHECKPOINT")]
    load: Option<PathBuf>,
    /// Feed the tensor of a .npy file to a variable; repeatable
    #[arg(long, value_name = "NAME=FILE.npy")]
    feed: Vec<String>,
    /// Print a variable after the last run, or write it to a .npy file; repeatable [default: the
    /// results, which no op reads]
    #[arg(long, value_name = "NAME[=FILE.npy]")]
    fetch: Vec<String>,
    /// Write all fetched variables to one .npz file instead of printing them
    #[arg(long, value_name = "FILE.npz")]
    save_fetched: Option<PathBuf>,
    /// Save all variables that are kept between runs to a checkpoint
    #[arg(long, value_name = "CHECKPOINT")]
    save: Option<PathBuf>,
    /// Number of runs with the same feeds
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    runs: u64,
    /// Number of threads, or 0 for the number of cores
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=1024),
    )]
    threads: u16,
    /// Stop at the first op that produces a NaN or an infinity
    #[arg(long)]
    check_nan_inf: bool,
    /// Write a trace of the last run's ops, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE.json")]
    trace: Option<PathBuf>,
}

pub fn run(args: &RunArgs, models: &Models, out: &mut Output) -> Result<(), ExitReason> {
    let program = models.load(&args.program)?;
    let feeds = feeds(args, &program)?;
    let options = ExecOptions {
        check_nan_inf: args.check_nan_inf,
        profile: args.trace.is_some(),
        ..ExecOptions::threads(usize::from(args.threads))
    };
    let mut executor = Executor::new(options);
    let mut scope = Scope::new();
    if let Some(startup) = &args.startup {
        let place = |error: Error| error.at(format!("--startup {}", startup.display()));
        executor.run(&models.load(startup)?, &mut scope, &[], &[]).map_err(place)?;
    } else if let Some(startup) = models.startup(&args.program)? {
        executor.run(&startup, &mut scope, &[], &[])?;
    }
    let saved_model = Some(&args.program).filter(|program| program.is_dir());
    if let Some(checkpoint) = args.load.as_ref().or(saved_model) {
        let checkpoint = load_tensors(checkpoint)?;
        scope.set_step(checkpoint.meta.step);
        for (name, tensor) in checkpoint.tensors {
            scope.set(name, tensor);
        }
    }
    let feeds: Vec<(&str, &Tensor)> = feeds.iter().map(|(name, it)| (*name, it)).collect();
    let fetches = fetches(args, &program)?;
    let names: Vec<&str> = fetches.iter().map(|fetch| fetch.name).collect();
    let mut fetched = Vec::new();
    for done in 1..=args.runs {
        let names = if done == args.runs { &names[..] } else { &[] };
        executor.run_into(&program, &mut scope, &feeds, names, &mut fetched)?;
    }
    if let Some(path) = &args.trace {
        write_file(path, executor.trace().to_chrome_json(0).as_bytes())?;
    }
    save_scope(args, &scope)?;
    if let Some(path) = &args.save_fetched {
        write_npz(path, names.iter().copied().zip(&fetched))?;
    }
    for (fetch, tensor) in fetches.iter().zip(&fetched) {
        match &fetch.file {
            Some(path) => write_npy(path, tensor)?,
            None if args.save_fetched.is_some() => {}
            None => out.line(format!("{} {}", fetch.name, shown(tensor)))?,
        }
    }
    Ok(())
}

/// A variable to fetch, and the file to write it to.
struct Fetch<'a> {
    name: &'a str,
    file: Option<&'a Path>,
}

fn fetches<'a>(args: &'a RunArgs, program: &'a Program) -> Result<Vec<Fetch<'a>>> {
    let mut fetches = Vec::new();
    if args.fetch.is_empty() {
        let is_tensor = |name: &&str| {
            program.find_var(name).is_some_and(|id| program.var(id).kind == VarKind::Dense)
        };
        let found: Vec<&str> = results(program).into_iter().filter(is_tensor).collect();
        note(match &found[..] {
            [] => "the program has no result to fetch: name variables with --fetch".to_string(),
            names => format!("fetching the results: {}", names.join(", ")),
        });
        return Ok(found.into_iter().map(|name| Fetch { name, file: None }).collect());
    }
    for given in &args.fetch {
        // The whole argument may be a variable name that contains '='.
        let (name, file) = match given.split_once('=') {
            Some((name, file)) if program.find_var(given).is_none() => {
                (name, Some(Path::new(file)))
            }
            _ => (given.as_str(), None),
        };
        program.var_named(name)?;
        fetches.push(Fetch { name, file });
    }
    Ok(fetches)
}

fn feeds<'a>(args: &'a RunArgs, program: &Program) -> Result<Vec<(&'a str, Tensor)>> {
    let mut feeds = Vec::new();
    for given in &args.feed {
        let (name, file) = given
            .split_once('=')
            .ok_or_else(|| Error::invalid("invalid --feed").expected("NAME=FILE.npy").got(given))?;
        program.var_named(name)?;
        let tensor = read_npy(file).map_err(|error| error.at(format!("--feed {given}")))?;
        feeds.push((name, tensor));
    }
    Ok(feeds)
}

fn save_scope(args: &RunArgs, scope: &Scope) -> Result<()> {
    let Some(path) = &args.save else { return Ok(()) };
    let names: Vec<&str> = scope.names().collect();
    let tensors: Vec<Tensor> =
        names.iter().map(|name| scope.tensor(name)).collect::<Result<_>>()?;
    let meta = Meta { step: scope.step(), ..Meta::default() };
    save_tensors(path, names.into_iter().zip(&tensors), &meta)
}

/// Maximum number of elements printed per tensor; files hold all of them.
const SHOWN_MAX: usize = 24;

/// Formats `f32[2, 2] 1.0 2.0 3.0 4.0`.
fn shown(tensor: &Tensor) -> String {
    let mut text = format!("{}{}", tensor.dtype(), tensor.shape());
    let count = tensor.shape().numel().unwrap_or(0);
    for index in 0..count.min(SHOWN_MAX) {
        text.push(' ');
        text += &tensor.element_text(index);
    }
    if count > SHOWN_MAX {
        text += &format!(" .. ({count} elements)");
    }
    text
}
