//! `fleet ps`: controls running parameter servers over gRPC.

use crate::{Output, Stop};
use clap::{Args, Subcommand, ValueEnum};
use fleet::ps::control::message::{
    LoadRequest, SaveFormat, SaveMode, SaveRequest, ShrinkRequest, StatisticsAnswer, WorkerState,
};
use fleet::ps::control::{ClientTls, ControlClient};
use fleet_base::{Error, Result, text};
use fleet_net::Token;
use fleet_topology::{Env, names};
use std::path::PathBuf;
use std::time::Duration;

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Prints what a server holds and has done
    Stat(Place),
    /// Saves the tables of all servers, while training goes on; asks server 0
    Save {
        #[command(flatten)]
        place: Place,
        /// As the servers see it
        folder: String,
        #[arg(long, value_enum, default_value = "all")]
        mode: Mode,
        /// Lines that people can read, larger and slower
        #[arg(long)]
        text: bool,
    },
    /// Loads the latest save over the tables of all servers; asks server 0
    Load {
        #[command(flatten)]
        place: Place,
        /// As the servers see it
        folder: String,
    },
    /// Deletes rows of a sparse table that nobody needs, on all servers; asks server 0
    Shrink {
        #[command(flatten)]
        place: Place,
        /// The table's number, as `stat` has it
        table: u32,
        /// Rows that were not seen for more days; by default as the table says
        #[arg(long)]
        unseen_days: Option<u32>,
    },
    /// Prints the header by which other tools may call a server:
    /// `grpcurl -H "$(fleet ps credential ...)"`
    Credential {
        #[command(flatten)]
        place: Place,
        /// How long it holds
        #[arg(long, default_value_t = 600)]
        seconds: u64,
    },
}

#[derive(Args)]
pub(crate) struct Place {
    /// Where the server answers over gRPC, HOST:PORT, as its log says
    address: String,
    /// A file with the job's secret; by default FLEET_TOKEN_FILE, then FLEET_TOKEN
    #[arg(long)]
    token_file: Option<PathBuf>,
    /// TLS: a PEM file with the server's certificate, or with that of who signed it
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Whom the certificate is made out to, where that is not the host of ADDRESS
    #[arg(long, value_name = "NAME", requires = "ca")]
    server_name: Option<String>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum Mode {
    All,
    Base,
    Delta,
    /// Every row, all a day older afterwards
    AllAndAge,
}

pub(crate) fn run(command: &Command, out: &mut Output) -> Result<(), Stop> {
    match command {
        Command::Stat(place) => stat(&place.connect()?.statistics()?, out),
        Command::Save { place, folder, mode, text } => {
            let mode = match mode {
                Mode::All => SaveMode::All,
                Mode::Base => SaveMode::Base,
                Mode::Delta => SaveMode::Delta,
                Mode::AllAndAge => SaveMode::AllAndAge,
            };
            let format = if *text { SaveFormat::Text } else { SaveFormat::Binary };
            let (folder, mode, format) = (folder.clone(), mode.into(), format.into());
            let saved = place.connect()?.save(SaveRequest { folder, mode, format })?;
            out.line(format!("saved {} rows, {}", saved.rows, text::bytes(saved.bytes)))
        }
        Command::Load { place, folder } => {
            let loaded = place.connect()?.load(LoadRequest { folder: folder.clone() })?;
            out.line(format!("loaded {} rows", loaded.rows))
        }
        Command::Shrink { place, table, unseen_days } => {
            let request = ShrinkRequest { table: *table, unseen_days: *unseen_days };
            let shrunk = place.connect()?.shrink(request)?;
            out.line(format!("deleted {} rows", shrunk.deleted_rows))
        }
        Command::Credential { place, seconds } => {
            let credential = place.connect()?.credential(Duration::from_secs(*seconds))?;
            out.line(format!("authorization: Bearer {credential}"))
        }
    }
}

impl Place {
    fn connect(&self) -> Result<ControlClient> {
        let env = Env::process();
        let named = env.text(names::FLEET_TOKEN_FILE).map(PathBuf::from);
        let token = match self.token_file.clone().or(named) {
            Some(path) => Token::read(&path)?,
            None => Token::from_text(env.text(names::FLEET_TOKEN).ok_or_else(|| {
                Error::invalid("the job's secret is not known")
                    .expected("--token-file FILE, FLEET_TOKEN_FILE or FLEET_TOKEN")
                    .help("start the job with `fleetrun --token_file FILE`, and give that file")
            })?)?,
        };
        match &self.ca {
            Some(ca) => {
                let tls = ClientTls::read(ca, self.server_name.as_deref())?;
                ControlClient::connect_under(&self.address, &token, tls)
            }
            None if token.is_over_tls() => Err(Error::invalid("the job's token asks for TLS")
                .expected("--ca FILE, the server's certificate or that of who signed it")),
            None => ControlClient::connect(&self.address, &token),
        }
    }
}

fn stat(answer: &StatisticsAnswer, out: &mut Output) -> Result<(), Stop> {
    let kind = if answer.synchronous { "synchronous" } else { "asynchronous" };
    let (server, count, workers) = (answer.server, answer.server_count, answer.worker_count);
    out.line(format!("server {server} of {count}, {workers} workers, {kind}"))?;
    out.line(format!("workers have met {} times", answer.rounds))?;
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
            WorkerState::NeverCame => format!("worker {number} has not come"),
            WorkerState::Connected => format!(
                "worker {number} has {} connections, heard {seconds:.1} s ago",
                worker.connections
            ),
            WorkerState::Gone => format!("worker {number} is gone, heard {seconds:.1} s ago"),
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
        error => out.line(format!("the last snapshot was not written: {error}")),
    }
}
