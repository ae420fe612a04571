//! One start of the processes of this machine, and the messages about it: shared by jobs on one
//! machine and on several.

use crate::cluster::{Cluster, Process, Run};
use crate::display::counted_roles;
use crate::events::{Death, End, Ended};
use crate::link::Link;
use crate::logs;
use crate::machine::Machine;
use crate::options::{Follow, Mode, Options, Verbosity};
use crate::script::Program;
use crate::supervisor::{Resources, Supervisor};
use crate::tables;
use fleet_base::Result;
use fleet_net::Time;
use fleet_topology::{Env, Role};
use std::path::PathBuf;

/// Everything known before the first process starts.
pub(crate) struct Job {
    pub options: Options,
    pub env: Env,
    /// The launcher's own executable.
    pub executable: PathBuf,
    pub program: Program,
    pub machine: Machine,
    /// All arguments, and those that the user wrote.
    pub arguments: Vec<(String, String)>,
    pub written: Vec<(String, String)>,
}

/// Runs attempts until the job is done or may not be restarted.
pub(crate) struct Attempts<'a> {
    pub job: &'a Job,
    pub run: Run,
    pub resources: Resources,
    pub begun: Time,
}

impl Attempts<'_> {
    /// Prints the final message and returns the exit code: that of the first lost process, or 0.
    pub fn done(&mut self, lost: &[Death]) -> u8 {
        let seconds = Time::now().since(self.begun).as_secs_f64();
        let of = |role: Role| lost.iter().filter(|death| death.role == role).count();
        let without = counted_roles([Role::Worker, Role::Server], of).join(" and ");
        let without = match without.as_str() {
            "" => String::new(),
            lost => format!(" without {lost}"),
        };
        let logs = self.job.options.log_dir.display();
        self.resources.console.info(&format!("done in {seconds:.1} s{without}, logs in {logs}"));
        for death in lost {
            self.resources.console.info(death.line());
        }
        lost.first().map_or(0, |death| death.code)
    }

    pub fn interrupted(&mut self, signal: i32) -> u8 {
        let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
        self.resources.console.info(&format!("stopped by {name}"));
        128 + signal as u8
    }

    /// Starts the processes of this machine and supervises them until they have ended.
    pub fn one(
        &mut self,
        cluster: &Cluster,
        link: Option<(&Link, u64)>,
        notify_ended: &dyn Fn(&Ended),
    ) -> Result<End> {
        let processes = cluster.processes(&self.run, &self.job.env);
        self.announce(cluster, &processes)?;
        let mut supervisor = Supervisor::new(
            &self.job.options,
            &self.job.program,
            &mut self.resources,
            link,
            notify_ended,
        );
        let end = supervisor.run(processes);
        // A later attempt appends to the logs of this one.
        self.resources.new_logs = false;
        end
    }

    /// Prints the header, and the tables and lines of the documentation.
    fn announce(&mut self, cluster: &Cluster, processes: &[Process]) -> Result<()> {
        if self.job.options.mode == Mode::Collective {
            let endpoints: Vec<String> =
                cluster.workers.iter().map(|worker| worker.endpoint.to_string()).collect();
            let path = self.job.options.log_dir.join("endpoints.log");
            let text = format!("PADDLE_TRAINER_ENDPOINTS: \n{}", endpoints.join("\n"));
            logs::write(&path, &text)?;
        }
        if self.run.restarts == 0 {
            let header = header(&self.job.options, cluster, processes, &self.job.program.title);
            self.resources.console.info(&header);
            self.show_environment(cluster, processes);
        }
        Ok(())
    }

    /// Prints arguments and variables: the important ones, or all with -v.
    fn show_environment(&mut self, cluster: &Cluster, processes: &[Process]) {
        let (job, console) = (self.job, &mut self.resources.console);
        let is_whole = job.options.verbosity >= Verbosity::Debug;
        let is_collective = job.options.mode == Mode::Collective;
        console.plain(match is_whole {
            true => tables::arguments(&job.arguments).trim_end().to_string(),
            false => tables::written_arguments(&job.written),
        });
        let has_gpus = cluster.workers.iter().any(|worker| !worker.devices.is_empty());
        if is_whole && job.options.is_mode_default && has_gpus {
            console.warn(
                "Not found distinct arguments and compiled with cuda. Default use collective mode",
            );
        }
        console.plain(match has_gpus {
            true => "launch train in GPU mode",
            false => "launch train in CPU mode",
        });
        let first = processes.iter().find(|it| it.role == Role::Worker).or(processes.first());
        if let Some(first) = first {
            let important = if is_collective { tables::COLLECTIVE } else { tables::SERVERS };
            let table = match is_whole {
                true => tables::environment(&variables(first), Some(tables::HEADER)),
                false => {
                    let mut rows = variables(first);
                    rows.retain(|(name, _)| important.contains(name));
                    tables::compact(&rows, tables::HEADER)
                }
            };
            console.plain(format!(
                "Local start {} processes. First process distributed environment info (Only For \
                 Debug): \n{}",
                processes.len(),
                table.trim_end()
            ));
        }
        if is_collective {
            let folder = job.options.log_dir.display();
            console.plain(format!(
                "details about PADDLE_TRAINER_ENDPOINTS can be found in {folder}/endpoints.log, \
                 and detail running logs maybe found in {folder}/workerlog.0"
            ));
        }
    }

    pub fn abort_line(&mut self, death: &Death, cluster: &Cluster) {
        if self.job.options.mode == Mode::Collective {
            self.resources.console.line(&format!(
                "ABORT!!! Out of all {} trainers, the trainer process with rank=[{}] was aborted. \
                 Please check its log.",
                cluster.workers.len(),
                death.rank
            ));
        }
    }
}

/// Returns the variables that a process gets.
fn variables(process: &Process) -> Vec<(&str, &str)> {
    let set = process.env.iter();
    set.filter_map(|(name, value)| Some((*name, value.as_deref()?))).collect()
}

/// Returns the header: `train.py: collective, 2 workers; logs in log, the first worker's
/// is shown`.
fn header(options: &Options, cluster: &Cluster, processes: &[Process], title: &str) -> String {
    let mode = match cluster.mode {
        Mode::Collective => "collective",
        Mode::Ps => "parameter server",
        Mode::PsHeter => "heterogeneous parameter server",
    };
    let count = |role: Role| processes.iter().filter(|process| process.role == role).count();
    let roles = [Role::Server, Role::Worker, Role::HeterWorker, Role::Coordinator];
    let here = counted_roles(roles, count).join(", ");
    let machines = match cluster.node_count {
        1 => String::new(),
        several => format!(" on this machine, number {} of {several}", cluster.node),
    };
    let shown = match options.follow {
        Follow::First if count(Role::Worker) > 0 => ", the first worker's is shown",
        Follow::All => ", all are shown",
        _ => "",
    };
    format!("{title}: {mode}, {here}{machines}; logs in {}{shown}", options.log_dir.display())
}
