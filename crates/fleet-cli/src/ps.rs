//! `fleet ps`: controls running parameter servers over gRPC.

use clap::{Args, Subcommand, ValueEnum};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_net::Token;
use fleet_ps::control::message::{
    LoadRequest, SaveFormat, SaveMode, SaveRequest, ShrinkRequest, StatisticsAnswer, WorkerState,
};
use fleet_ps::control::{ClientTls, ControlClient};
use fleet_topology::{Env, names};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Print a server's tables and counters
    Stat(ServerArgs),
    /// Save the tables of all servers while training continues; ADDRESS must be server 0's
    Save {
        #[command(flatten)]
        server: ServerArgs,
        /// Folder, as the servers see it
        folder: String,
        /// Rows to save
        #[arg(long, value_enum, default_value = "all")]
        mode: Mode,
        /// Save as text: readable, but larger and slower
        #[arg(long)]
        text: bool,
    },
    /// Load the latest save over the tables of all servers; ADDRESS must be server 0's
    Load {
        #[command(flatten)]
        server: ServerArgs,
        /// Folder, as the servers see it
        folder: String,
    },
    /// Delete stale rows of a sparse table on all servers; ADDRESS must be server 0's
    Shrink {
        #[command(flatten)]
        server: ServerArgs,
        /// Table id, as printed by `stat`
        table: u32,
        /// Delete rows unseen for more than this many days [default: the table's setting]
        #[arg(long)]
        unseen_days: Option<u32>,
    },
    /// Print the header with which other tools can call a server:
    /// `grpcurl -H "$(fleet ps credential ...)"`
    Credential {
        #[command(flatten)]
        server: ServerArgs,
        /// Validity in seconds
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
}

#[derive(Args)]
pub(crate) struct ServerArgs {
    /// gRPC endpoint of the server, HOST:PORT (see its log)
    address: String,
    /// File with the job's secret [default: FLEET_TOKEN_FILE, then FLEET_TOKEN]
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// TLS: PEM file with the certificate of the server or of its issuer
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Server name in the certificate, if it differs from the host of ADDRESS
    #[arg(long, value_name = "NAME", requires = "ca")]
    server_name: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Mode {
    All,
    Base,
    Delta,
    /// All rows; afterwards every row is one day older
    AllAndAge,
}

pub(crate) fn run(command: &Command, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    match command {
        Command::Stat(server) => stat(&server.connect(env)?.statistics()?, out),
        Command::Save { server, folder, mode, text } => {
            let mode = match mode {
                Mode::All => SaveMode::All,
                Mode::Base => SaveMode::Base,
                Mode::Delta => SaveMode::Delta,
                Mode::AllAndAge => SaveMode::AllAndAge,
            };
            let format = if *text { SaveFormat::Text } else { SaveFormat::Binary };
            let (folder, mode, format) = (folder.clone(), mode.into(), format.into());
            let saved = server.connect(env)?.save(SaveRequest { folder, mode, format })?;
            out.line(format!("saved {} rows, {}", saved.rows, text::bytes(saved.bytes)))
        }
        Command::Load { server, folder } => {
            let loaded = server.connect(env)?.load(LoadRequest { folder: folder.clone() })?;
            out.line(format!("loaded {} rows", loaded.rows))
        }
        Command::Shrink { server, table, unseen_days } => {
            let request = ShrinkRequest { table: *table, unseen_days: *unseen_days };
            let shrunk = server.connect(env)?.shrink(request)?;
            out.line(format!("deleted {} rows", shrunk.deleted_rows))
        }
        Command::Credential { server, seconds } => {
            let credential = server.connect(env)?.credential(Duration::from_secs(*seconds))?;
            out.line(format!("authorization: Bearer {credential}"))
        }
    }
}

impl ServerArgs {
    fn connect(&self, env: &Env) -> Result<ControlClient> {
        let named = env.text(names::FLEET_TOKEN_FILE).map(PathBuf::from);
        let token = match self.token_file.clone().or(named) {
            Some(path) => Token::read(&path)?,
            None => Token::from_text(env.text(names::FLEET_TOKEN).ok_or_else(|| {
                Error::invalid("no job secret given")
                    .expected("--token-file FILE, FLEET_TOKEN_FILE or FLEET_TOKEN")
                    .help("start the job with `fleetrun --token_file FILE`, and use that file here")
            })?)?,
        };
        match &self.ca {
            Some(ca) => {
                let tls = ClientTls::read(ca, self.server_name.as_deref())?;
                ControlClient::connect_under(&self.address, &token, tls)
            }
            None if token.is_over_tls() => Err(Error::invalid("the job's token requires TLS")
                .expected("--ca FILE with the certificate of the server or of its issuer")),
            None => ControlClient::connect(&self.address, &token),
        }
    }
}

fn stat(answer: &StatisticsAnswer, out: &mut Output) -> Result<(), ExitReason> {
    let kind = if answer.synchronous { "synchronous" } else { "asynchronous" };
    let (server, count, workers) = (answer.server, answer.server_count, answer.worker_count);
    out.line(format!("server {server} of {count}, {workers} workers, {kind}"))?;
    out.line(format!("completed barriers: {}", answer.rounds))?;
    out.line(format!(
        "{:>5} {:<11} {:>12} {:>9} {:>10} {:>10} {:>13} {:>13} {:>8} {:>10} {:>8} {:>7} {:>13}",
        "table",
        "kind",
        "rows",
        "waiting",
        "payload",
        "held",
        "pulled",
        "pushed",
        "dropped",
        "non-finite",
        "deleted",
        "queued",
        "stale (most)"
    ))?;
    for table in &answer.tables {
        out.line(format!(
            "{:>5} {:<11} {:>12} {:>9} {:>10} {:>10} {:>13} {:>13} {:>8} {:>10} {:>8} {:>7} {:>13}",
            table.table,
            table.kind,
            table.rows,
            table.waiting_ids,
            text::bytes(table.payload_bytes),
            text::bytes(table.held_bytes),
            table.pulled_ids,
            table.pushed_ids,
            table.dropped_ids,
            table.non_finite,
            table.deleted_rows,
            table.queued_pushes,
            match table.kind.as_str() {
                "dense" => format!("{:.1} ({})", table.staleness_mean, table.staleness_max),
                _ => "-".to_string(),
            }
        ))?;
    }
    for worker in &answer.workers {
        let (number, seconds) = (worker.worker, worker.silent_seconds);
        out.line(match worker.state() {
            WorkerState::NeverCame => format!("worker {number}: never connected"),
            WorkerState::Connected => format!(
                "worker {number}: {} connections, last seen {seconds:.1} s ago",
                worker.connections
            ),
            WorkerState::Gone => format!("worker {number}: lost, last seen {seconds:.1} s ago"),
        })?;
    }
    let Some(log) = &answer.log else { return Ok(()) };
    out.line(format!(
        "{} of log since the last snapshot, in {}",
        text::bytes(log.bytes),
        log.folder
    ))?;
    match log.snapshot_error.as_str() {
        "" => Ok(()),
        error => out.line(format!("last snapshot failed: {error}")),
    }
}
