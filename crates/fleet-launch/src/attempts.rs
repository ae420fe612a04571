//! One start of the processes of this machine, and the messages about it: shared by jobs on one
//! machine and on several.

use crate::cluster::{Cluster, Process, Run};
use crate::console::Console;
use crate::events::{Death, End, Ended, Event};
use crate::guard::Guard;
use crate::link::Link;
use crate::logs;
use crate::machine::Machine;
use crate::oom::OomWatch;
use crate::options::{Follow, Mode, Options, Verbosity};
use crate::script::Program;
use crate::supervisor::{Rules, Supervisor};
use crate::tables;
use crate::words::counted;
use fleet_base::Result;
use fleet_topology::{Env, Role};
use std::sync::mpsc::Receiver;
use std::time::Instant;

/// Everything known before the first process starts.
pub(crate) struct Job {
    pub options: Options,
    pub env: Env,
    pub program: Program,
    pub machine: Machine,
    pub arguments: Vec<(String, String)>,
}

/// Runs attempts until the job is done or may not be restarted.
pub(crate) struct Attempts<'a> {
    pub job: &'a Job,
    pub rules: Rules,
    pub run: Run,
    pub oom: OomWatch,
    pub guard: Guard,
    pub console: Console,
    pub events: Receiver<Event>,
    pub begun: Instant,
}

impl Attempts<'_> {
    /// Prints the final message and returns the exit code: that of the first lost process, or 0.
    pub fn done(&mut self, lost: &[Death]) -> u8 {
        let seconds = self.begun.elapsed().as_secs_f64();
        let of = |role: Role| lost.iter().filter(|death| death.role == role).count();
        let without: Vec<String> = [Role::Worker, Role::Server]
            .into_iter()
            .filter(|role| of(*role) > 0)
            .map(|role| counted(role, of(role)))
            .collect();
        let without = match without.is_empty() {
            true => String::new(),
            false => format!(" without {}", without.join(" and ")),
        };
        let logs = self.rules.log_dir.display();
        self.console.say(&format!("fleetrun: done in {seconds:.1} s{without}, logs in {logs}"));
        for death in lost {
            self.console.say(&format!("fleetrun: {}", death.line()));
        }
        lost.first().map_or(0, |death| death.code)
    }

    pub fn interrupted(&mut self, signal: i32) -> u8 {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        self.console.say(&format!("fleetrun: stopped by {name}"));
        128 + signal as u8
    }

    /// Starts the processes of this machine and supervises them until they have ended.
    pub fn one(
        &mut self,
        cluster: &Cluster,
        link: Option<(&Link, u64)>,
        tell_ended: &dyn Fn(&Ended),
    ) -> Result<End> {
        let processes = cluster.processes(&self.run, &self.job.env);
        self.announce(cluster, &processes)?;
        let mut supervisor = Supervisor::new(
            &self.rules,
            &self.job.program.argv,
            &self.run.mark,
            &self.events,
            &mut self.console,
            &mut self.guard,
            &mut self.oom,
            link,
            tell_ended,
        );
        let end = supervisor.run(processes);
        // A later attempt appends to the logs of this one.
        self.rules.new_logs = false;
        end
    }

    /// Prints the header and, with -v, the tables of the documentation.
    fn announce(&mut self, cluster: &Cluster, processes: &[Process]) -> Result<()> {
        let is_collective = self.rules.mode == Mode::Collective;
        if is_collective {
            let endpoints: Vec<String> =
                cluster.workers.iter().map(|worker| worker.endpoint.to_string()).collect();
            let path = self.rules.log_dir.join("endpoints.log");
            let text = format!("PADDLE_TRAINER_ENDPOINTS: \n{}", endpoints.join("\n"));
            logs::write(&path, &text)?;
        }
        if self.run.restarts > 0 {
            return Ok(());
        }
        let header = header(&self.job.options, cluster, processes, &self.job.program.title);
        self.console.say(&header);
        if self.job.options.verbosity < Verbosity::Debug {
            return Ok(());
        }
        self.console.debug(tables::arguments(&self.job.arguments).trim_end());
        let has_gpus = cluster.workers.iter().any(|worker| !worker.devices.is_empty());
        if self.job.options.is_mode_default && has_gpus {
            self.console.warn(
                "Not found distinct arguments and compiled with cuda. Default use collective mode",
            );
        }
        self.console.debug(match has_gpus {
            true => "launch train in GPU mode",
            false => "launch train in CPU mode",
        });
        if let Some(first) =
            processes.iter().find(|it| it.role == Role::Worker).or(processes.first())
        {
            let rows: Vec<(&str, &str)> = first
                .env
                .iter()
                .filter_map(|(name, value)| Some((*name, value.as_deref()?)))
                .collect();
            self.console.debug(&format!(
                "Local start {} processes. First process distributed environment info (Only For \
                 Debug): \n{}",
                processes.len(),
                tables::environment(&rows, Some(("Distributed Envs", "Value")))
            ));
        }
        if is_collective {
            let folder = self.rules.log_dir.display();
            self.console.debug(&format!(
                "details about PADDLE_TRAINER_ENDPOINTS can be found in {folder}/endpoints.log, \
                 and detail running logs maybe found in {folder}/workerlog.0"
            ));
        }
        Ok(())
    }

    pub fn abort_line(&mut self, death: &Death, cluster: &Cluster) {
        if self.rules.mode == Mode::Collective {
            self.console.line(&format!(
                "ABORT!!! Out of all {} trainers, the trainer process with rank=[{}] was aborted. \
                 Please check its log.",
                cluster.workers.len(),
                death.rank
            ));
        }
    }
}

/// Returns the header: `fleetrun: train.py: collective, 2 workers; logs in log, the first worker's
/// is shown`.
fn header(options: &Options, cluster: &Cluster, processes: &[Process], title: &str) -> String {
    let mode = match cluster.mode {
        Mode::Collective => "collective",
        Mode::Ps => "parameter server",
        Mode::PsHeter => "heterogeneous parameter server",
    };
    let count = |role: Role| processes.iter().filter(|process| process.role == role).count();
    let roles = [Role::Server, Role::Worker, Role::HeterWorker, Role::Coordinator];
    let here: Vec<String> = roles
        .into_iter()
        .map(|role| (role, count(role)))
        .filter(|(_, count)| *count > 0)
        .map(|(role, count)| counted(role, count))
        .collect();
    let machines = match cluster.node_count {
        1 => String::new(),
        several => format!(" on this machine, number {} of {several}", cluster.node),
    };
    let shown = match options.follow {
        Follow::First if count(Role::Worker) > 0 => ", the first worker's is shown",
        Follow::All => ", all are shown",
        _ => "",
    };
    format!(
        "fleetrun: {title}: {mode}, {}{machines}; logs in {}{shown}",
        here.join(", "),
        options.log_dir.display()
    )
}
