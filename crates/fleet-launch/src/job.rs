//! Runs a whole job: preparation, attempts, the exit code.

use crate::attempts::{Attempts, Job};
use crate::child::USAGE_CODE;
use crate::cluster::{self, Cluster, Run};
use crate::console::Console;
use crate::events::{End, Ended, Event};
use crate::flags::{Given, unknown_flag};
use crate::guard::{self, Guard};
use crate::link;
use crate::logs;
use crate::machine::Machine;
use crate::oom::OomWatch;
use crate::options::{Follow, Mode, Options};
use crate::ports::SystemPorts;
use crate::random;
use crate::scratch::Scratch;
use crate::script::{Builtins, Program, absolute};
use crate::several::{self, Members};
use crate::supervisor::Resources;
use fleet_base::fs::is_remote;
use fleet_base::text::printable;
use fleet_base::{Error, ErrorKind, Result};
use fleet_net::{Log, StoreServer, Time, Token};
use fleet_topology::{Endpoint, Env};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};

/// The launcher's own process, as its `main` function sees it.
pub struct OwnProcess {
    /// Arguments, without the program's name.
    pub args: Vec<String>,
    /// The environment.
    pub env: Env,
    /// Path of the program, which built-in jobs start again.
    pub executable: std::io::Result<PathBuf>,
}

/// Runs `fleetrun` and returns the exit code.
pub fn main(own: OwnProcess, builtins: &Builtins<'_>) -> u8 {
    let OwnProcess { args, env, executable } = own;
    if let [argument, mark, scratch] = args.as_slice()
        && argument == guard::ARGUMENT
    {
        guard::run(mark, Path::new(scratch));
        return 0;
    }
    let begun = Time::now();
    fleet_base::signals::ignore_file_size_signal();
    let given = match Given::parse(args) {
        Ok(given) => given,
        Err(error) => {
            // The text of `--help` is not an error and goes to the standard output.
            let _ = match unknown_flag(&error) {
                Some(unknown) => {
                    writeln!(std::io::stderr(), "error: {}", printable(&unknown.to_string()))
                }
                None if error.use_stderr() => {
                    let text = error.render().to_string();
                    std::io::stderr().write_all(printable(&text).as_bytes())
                }
                None => error.print(),
            };
            return if error.use_stderr() { USAGE_CODE } else { 0 };
        }
    };
    let ran = Job::prepare(&given, env, executable, builtins).and_then(|job| {
        match job.program.asks_for_help() {
            true => job.program.print_help(),
            false => job.run(begun),
        }
    });
    match ran {
        Ok(code) => code,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error}");
            match error.kind() {
                ErrorKind::Invalid | ErrorKind::Unsupported => USAGE_CODE,
                _ => 1,
            }
        }
    }
}

impl Job {
    fn prepare(
        given: &Given,
        env: Env,
        executable: std::io::Result<PathBuf>,
        builtins: &Builtins<'_>,
    ) -> Result<Job> {
        let mut options = Options::new(given, &env)?;
        let executable = executable
            .map_err(|error| Error::unavailable(format!("cannot find the executable: {error}")))?;
        let program = Program::resolve(&options, &env, builtins, &executable)?;
        if program.is_builtin {
            builtins.check_mode(&program.title, &options)?;
        }
        let machine = Machine::here();
        options.warnings.extend(cluster::device_warnings(&options, &env, &machine));
        let (arguments, written) = (given.table(), given.written());
        Ok(Job { options, env, executable, program, machine, arguments, written })
    }

    fn run(self, begun: Time) -> Result<u8> {
        let mut ports = SystemPorts::new(self.options.start_port);
        let members = several::members(&self.options, &self.env, &self.machine, &mut ports)?;
        let token = self.token(&members)?;
        logs::make_folder(&self.options.log_dir)?;
        let scratch = Scratch::new(Path::new(self.env.get("TMPDIR").unwrap_or("/tmp")))?;
        let mut run = Run {
            job_id: self.options.job_id.clone(),
            pod: random::hex(3)?,
            mark: random::hex(16)?,
            log_dir: absolute(&self.options.log_dir),
            scratch: scratch.path.display().to_string(),
            save_root: self.options.save_root.as_deref().map(save_root).transpose()?,
            master: self.options.master.clone(),
            store: None,
            token: Some(token.clone()),
            restarts: 0,
            progress: None,
            silence_timeout: self.options.timeouts.silence,
            memory: self.options.memory.clone(),
        };
        let follows_many = self.options.follow == Follow::All;
        let mut console = Console::new(&self.options, &self.env, Some(token), follows_many);
        if console.draws() {
            run.progress = Some(scratch.path.join("progress"));
        }
        let (sender, events) = channel();
        listen(sender.clone())?;
        become_reaper();
        let guard = Guard::start(&self.executable, &run.mark, &scratch.path)?;
        for warning in &self.options.warnings {
            console.warn(warning);
        }
        // As in the original: logs of collective jobs are appended to, others are emptied.
        let new_logs = self.options.log_overwrite || self.options.mode != Mode::Collective;
        let oom = OomWatch::new(begun);
        let resources = Resources { console, guard, oom, events, new_logs };
        let mut attempts = Attempts { job: &self, run, resources, begun };
        let code = match members {
            Members::Alone(cluster) => attempts.alone(&cluster),
            Members::Several(meeting) => attempts.several(*meeting, sender),
        };
        attempts.resources.console.clear_status();
        attempts.resources.guard.dismiss();
        code
    }

    /// Returns the job's secret. A job on one machine generates it; for several machines the user
    /// must provide it.
    fn token(&self, members: &Members) -> Result<Token> {
        if let Some(token) = &self.options.token {
            return Ok(token.clone());
        }
        if matches!(members, Members::Alone(_)) {
            return Token::generate();
        }
        Err(Error::invalid("the machines of a job need a common secret")
            .expected("FLEET_TOKEN, or --token_file FILE, the same on every machine")
            .help(
                "make one: openssl rand -hex 32 > job.token; give it to every machine, readable \
                 by you only",
            ))
    }
}

impl Attempts<'_> {
    /// Runs a job whose processes are all on this machine.
    fn alone(&mut self, cluster: &Cluster) -> Result<u8> {
        if self.job.options.is_elastic() {
            self.resources
                .console
                .warn("--elastic_level has no effect on one machine; use --max_restart");
        }
        let allowed = self.job.options.job_restarts();
        loop {
            // Each attempt gets a new store, without keys of the previous one.
            let store = self.store(cluster)?;
            let at = Endpoint::new(&self.store_endpoint(cluster).host, store.address().port());
            // Replaces port 0 by the port that the system chose.
            self.run.master = self.run.master.take().map(|_| at.clone());
            self.run.store = Some(at);
            let attempt = link::attempt(&self.run.job_id, self.run.restarts.into());
            let tell = |ended: &Ended| {
                store.report_end(&attempt, &link::member(ended), &ended.how);
            };
            match self.one(cluster, None, &tell)? {
                End::Failed(death) if self.run.restarts < allowed => {
                    self.run.restarts += 1;
                    self.abort_line(&death, cluster);
                    self.resources.console.warn(&format!(
                        "the job is started again ({} of {allowed})",
                        self.run.restarts
                    ));
                }
                End::Failed(death) => {
                    self.abort_line(&death, cluster);
                    return Ok(death.code);
                }
                End::Finished(lost) => return Ok(self.done(&lost)),
                End::Interrupted(signal) => return Ok(self.interrupted(signal)),
                End::Ordered(reason) => return Err(Error::internal(reason)),
            }
        }
    }

    /// Returns the endpoint at which the store listens: that of `--master`, else that of
    /// `--http_port`, else a free port.
    fn store_endpoint(&self, cluster: &Cluster) -> Endpoint {
        let http = cluster.gloo_http.as_ref().filter(|_| self.job.options.http_port.is_some());
        let given = self.run.master.as_ref().or(http);
        given.cloned().unwrap_or(Endpoint::new("127.0.0.1", 0))
    }

    /// Starts the store of the job's processes.
    fn store(&self, cluster: &Cluster) -> Result<StoreServer> {
        let token = self.run.token.as_ref().ok_or_else(|| Error::internal("no token"))?;
        let address = &self.store_endpoint(cluster);
        let log = Log::new(|line| {
            // A closed terminal is no reason to stop a job.
            let _ = writeln!(std::io::stderr(), "fleetrun: {line}");
        });
        let listener =
            link::listen(address, &log).map_err(|error| link::cannot_listen(address, &error))?;
        link::serve(listener, token, link::vigilance(self.job.options.timeouts.silence), log)
    }
}

/// Returns the folder for saves of servers: a URL as it is, or an absolute path.
fn save_root(folder: &Path) -> Result<String> {
    match folder.to_str() {
        Some(url) if is_remote(url)? => Ok(url.to_string()),
        _ => Ok(absolute(folder)),
    }
}

/// Starts a thread that forwards signals as events.
fn listen(sender: Sender<Event>) -> Result<()> {
    use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
    let caught = [SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM];
    let mut signals = signal_hook::iterator::Signals::new(caught)
        .map_err(|error| Error::unavailable(format!("cannot catch signals: {error}")))?;
    let forward = move || {
        for signal in signals.forever() {
            if sender.send(Event::Signal(signal)).is_err() {
                return;
            }
        }
    };
    link::spawn("signals", forward).map(drop)
}

/// Makes the launcher the subreaper of its descendants, so that it reaps orphans.
#[cfg(target_os = "linux")]
fn become_reaper() {
    // Without it init adopts orphans, and the mark still finds them.
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
}

#[cfg(not(target_os = "linux"))]
fn become_reaper() {}
