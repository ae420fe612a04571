//! `fleet env`: lists every environment variable of Fleet with its value here.

use clap::Args;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, text};
use fleet_topology::{Env, VARIABLES, Variable, names, names::Reader};

#[derive(Args)]
pub struct EnvArgs {
    /// List only variables that are set
    #[arg(long)]
    set: bool,
}

/// Prefixes of Fleet's variables: an unknown name with one of them is probably a typo.
const OURS: [&str; 2] = ["PADDLE_", "FLEET_"];

pub fn run(args: &EnvArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let mut wrong = Vec::new();
    for variable in VARIABLES {
        let value = env.get(variable.name);
        if args.set && value.is_none() {
            continue;
        }
        out.line(row(variable, value))?;
        wrong.extend(variable.check(env).err());
    }
    for (name, _) in env.iter() {
        if OURS.iter().any(|prefix| name.starts_with(prefix)) && names::find(name).is_none() {
            let known = VARIABLES.iter().map(|variable| variable.name);
            let hint = text::did_you_mean(name, known);
            out.line(format!("{name} is set, but is not a variable of Fleet{hint}"))?;
        }
    }
    match &wrong[..] {
        [] => Ok(()),
        [only] => Err(only.clone().into()),
        many => {
            let lines: String = many.iter().map(|error| format!("\n{error}")).collect();
            let message = format!("{} variables have invalid values{lines}", many.len());
            Err(Error::invalid(message).into())
        }
    }
}

fn reader_text(reader: Reader) -> &'static str {
    match reader {
        Reader::RoleMaker => "read by workers and servers",
        Reader::Launcher => "read by fleetrun",
        Reader::Worker => "read by workers",
        Reader::Server => "read by parameter servers",
        Reader::Script => "written for scripts",
        Reader::Unused => "known, but unused",
    }
}

fn row(variable: &Variable, value: Option<&str>) -> String {
    let value = match value {
        Some(value) => format!("= {}", names::shown(variable.name, value)),
        None => "is not set".into(),
    };
    let default = match variable.default {
        "" => String::new(),
        default => format!(" (default: {default})"),
    };
    let readers: Vec<&str> = variable.readers.iter().map(|reader| reader_text(*reader)).collect();
    let no_effect = variable.no_effect.map(|why| format!("; no effect: {why}")).unwrap_or_default();
    let readers = readers.join(", ");
    format!("{} {value}{default}\n    {}{no_effect} ({readers})", variable.name, variable.meaning)
}
