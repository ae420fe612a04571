//! The program that the launcher starts: a Python file, an executable, or a built-in job.

use crate::options::{Mode, Options};
use fleet_base::{Error, Result, text};
use fleet_topology::Env;
use std::path::{Path, PathBuf};

/// Jobs that the binary itself can run, selected by its first argument.
#[derive(Clone, Copy, Debug)]
pub struct Builtins<'a> {
    /// The hidden first argument, followed by the job's name and its arguments.
    pub argument: &'a str,
    /// Prefix of the names of jobs on the command line; if it is empty, every command is one.
    pub prefix: &'a str,
    /// Names of the jobs, without the prefix.
    pub names: &'a [&'a str],
    /// Jobs that do not support parameter servers, with the reason.
    pub not_on_servers: &'a [(&'a str, &'a str)],
    /// Jobs that files describe, if the binary can run them.
    pub files: Option<FileJobs<'a>>,
}

/// Jobs that files describe: `job:FILE`.
#[derive(Clone, Copy, Debug)]
pub struct FileJobs<'a> {
    /// The hidden first argument, followed by the file and the job's arguments.
    pub argument: &'a str,
    /// Prefix of the file on the command line.
    pub prefix: &'a str,
}

impl Builtins<'_> {
    /// Checks that a built-in job, given by its title, supports a mode and all roles.
    pub(crate) fn check_mode(&self, title: &str, options: &Options) -> Result<()> {
        if !options.ps.coordinators.is_empty() {
            return Err(Error::unsupported("built-in jobs have no part for coordinators")
                .help("leave out --coordinator_num and --coordinators"));
        }
        let name = title.strip_prefix(self.prefix).unwrap_or(title);
        let is_not = |name: &str| self.not_on_servers.iter().find(|(not, _)| *not == name);
        match (options.mode, is_not(name)) {
            (Mode::Collective, _) | (Mode::Ps, None) => Ok(()),
            (Mode::Ps, Some((_, why))) => {
                let able = self.names.iter().filter(|name| is_not(name).is_none());
                let able: Vec<String> = able.map(|name| self.title(name)).collect();
                Err(Error::unsupported(format!("{title} does not train on servers: {why}"))
                    .expected(able.join(", "))
                    .help(format!("data parallel it does: fleetrun --nproc_per_node 2 {title}")))
            }
            (Mode::PsHeter, _) => {
                Err(Error::unsupported("built-in jobs have no part for heterogeneous workers")
                    .help(format!(
                        "servers and workers alone: fleetrun --server_num 1 --worker_num 2 {title}"
                    )))
            }
        }
    }

    fn title(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

/// Returns whether the arguments of a job ask for its help and not for a run.
pub fn asks_for_help(args: &[String]) -> bool {
    args.iter().any(|arg| arg == "--help") || args.first().is_some_and(|arg| arg == "-h")
}

/// A command, ready to be started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Name for messages.
    pub title: String,
    /// Whether it is a built-in job.
    pub is_builtin: bool,
}

impl Program {
    /// Returns the program that the options name. Built-in jobs are run by `own`, the launcher's
    /// executable.
    pub fn resolve(
        options: &Options,
        env: &Env,
        builtins: &Builtins<'_>,
        own: &Path,
    ) -> Result<Program> {
        let [script, args @ ..] = options.command.as_slice() else {
            return Err(Error::internal("there is no script"));
        };
        let is_python = options.is_module || script.ends_with(".py");
        let file = builtins.files.and_then(|jobs| Some((jobs, script.strip_prefix(jobs.prefix)?)));
        let is_builtin = script.starts_with(builtins.prefix) || file.is_some();
        if options.is_compat && (is_builtin || !is_python) {
            return Err(Error::invalid("--compat needs a Python script")
                .expected("a file that ends in .py, or a module with --module")
                .got(format!("'{script}'")));
        }
        if let Some((jobs, file)) = file {
            if !asks_for_help(args) {
                job_file(file)?;
            }
            return own_job(own, &[jobs.argument, file], args, script.clone());
        }
        if let Some(name) = script.strip_prefix(builtins.prefix) {
            return builtin(name, args, builtins, own);
        }
        let mut argv = if is_python {
            if !options.is_module {
                readable(script)?;
            }
            python_command(options, env)?
        } else {
            Vec::new()
        };
        argv.push(if is_python { script.clone() } else { executable(script, env)? });
        argv.extend(args.iter().cloned());
        Ok(Program { argv, title: script.clone(), is_builtin: false })
    }

    /// Returns whether this is a built-in job with arguments that ask for its help.
    pub(crate) fn asks_for_help(&self) -> bool {
        self.is_builtin && asks_for_help(self.argv.get(3..).unwrap_or_default())
    }

    /// Runs one process, which prints the help of the built-in job, and returns its exit code.
    pub(crate) fn print_help(&self) -> Result<u8> {
        let ran = std::process::Command::new(&self.argv[0]).args(&self.argv[1..]).status();
        let status = ran.map_err(|error| Error::io("start", Path::new(&self.argv[0]), &error))?;
        Ok(if status.success() { 0 } else { 1 })
    }
}

fn builtin(name: &str, args: &[String], builtins: &Builtins<'_>, own: &Path) -> Result<Program> {
    if !builtins.names.contains(&name) {
        let near = text::did_you_mean(name, builtins.names.iter().copied());
        let all: Vec<String> = builtins.names.iter().map(|name| builtins.title(name)).collect();
        let title = builtins.title(name);
        return Err(Error::invalid(format!("there is no built-in job '{title}'{near}"))
            .expected(all.join(", ")));
    }
    own_job(own, &[builtins.argument, name], args, builtins.title(name))
}

/// Returns a job that the launcher's executable runs.
fn own_job(own: &Path, first: &[&str], args: &[String], title: String) -> Result<Program> {
    let own = own.to_str();
    let own = own.ok_or_else(|| Error::unsupported("the path of the executable is not Unicode"))?;
    let first = first.iter().map(|arg| arg.to_string());
    let argv = std::iter::once(own.to_string()).chain(first).chain(args.iter().cloned()).collect();
    Ok(Program { argv, title, is_builtin: true })
}

fn readable(script: &str) -> Result<()> {
    let path = Path::new(script);
    match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => {
            Err(Error::invalid(format!("{script} is a folder")).expected("a script"))
        }
        Ok(_) => Ok(()),
        Err(error) => Err(missing(script).help(format!("{error}: {}", absolute(path)))),
    }
}

fn job_file(file: &str) -> Result<()> {
    let path = Path::new(file);
    let fault = match std::fs::metadata(path) {
        Ok(found) if found.is_dir() => Error::invalid(format!("{file} is a folder")),
        Ok(_) => return Ok(()),
        Err(error) => Error::invalid(format!("cannot open the job file '{file}'"))
            .got(format!("{}: {error}", absolute(path))),
    };
    Err(fault.expected("a job file").help("fleet job init --data FILES writes one"))
}

/// Returns the command that runs a script of Python, which follows as the next argument.
fn python_command(options: &Options, env: &Env) -> Result<Vec<String>> {
    let mut argv = vec![python(options, env)?, "-u".into()];
    if options.is_compat {
        // This module makes `import paddle` work, and takes `-m` for a module as Python does.
        argv.extend(["-m".into(), "fleet.compat".into()]);
    }
    if options.is_module {
        argv.push("-m".into());
    }
    Ok(argv)
}

fn python(options: &Options, env: &Env) -> Result<String> {
    if let Some(python) = &options.python {
        return interpreter(python, env);
    }
    ["python3", "python"].iter().find_map(|name| in_path(name, env)).ok_or_else(|| {
        Error::invalid("there is no Python interpreter")
            .expected("python3 or python in PATH")
            .help("say where it is: --python FILE")
    })
}

fn interpreter(python: &str, env: &Env) -> Result<String> {
    let is_there = if python.contains('/') {
        let path = Path::new(python);
        (path.is_file() && is_executable(path)).then(|| python.to_string())
    } else {
        in_path(python, env)
    };
    is_there.ok_or_else(|| {
        Error::invalid(format!("cannot find the interpreter '{python}'"))
            .expected("a program: its path, or its name in PATH")
            .at("--python, or the variable PYTHON")
    })
}

fn executable(script: &str, env: &Env) -> Result<String> {
    let path = Path::new(script);
    if path.is_dir() {
        return Err(Error::invalid(format!("{script} is a folder")).expected("a script"));
    }
    if path.is_file() {
        if !is_executable(path) {
            return Err(Error::invalid(format!("{script} cannot be executed"))
                .help(format!("chmod +x {script}, or name it with .py if it is a Python script")));
        }
        // Without a slash the system would search PATH.
        let here = script.contains('/');
        return Ok(if here { script.to_string() } else { format!("./{script}") });
    }
    if script.contains('/') {
        return Err(missing(script));
    }
    in_path(script, env).ok_or_else(|| missing(script).help("it is neither a file nor in PATH"))
}

fn missing(script: &str) -> Error {
    Error::invalid(format!("cannot find the script '{script}'")).expected(
        "a Python file, an executable, job:FILE, or a built-in job such as demo:wide_deep",
    )
}

fn in_path(name: &str, env: &Env) -> Option<String> {
    let folders = env.get("PATH")?;
    let mut found = std::env::split_paths(folders).map(|folder: PathBuf| folder.join(name));
    let found = found.find(|path| path.is_file() && is_executable(path))?;
    found.into_os_string().into_string().ok()
}

/// Returns a path that does not depend on the current folder.
pub(crate) fn absolute(path: &Path) -> String {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf()).display().to_string()
}

fn is_executable(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & 0o111 != 0)
}
