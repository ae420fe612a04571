//! `fleet durable`: inspects the folders of durable parameter servers.

use clap::{Args, Subcommand};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, text};
use fleet_ps::{FolderState, Loss, ServerReport, Tail, WorkerReport, accept_loss, inspect};
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum Command {
    /// Show the contents of a durable folder and any damage; exit code 1 if it is damaged
    Inspect(InspectArgs),
}

#[derive(Args)]
pub struct InspectArgs {
    /// Folder given as --durable, or one server's folder in it
    folder: PathBuf,
    /// Let servers resume from the last good state, and report the loss; damaged files are moved
    /// to the folder `aside`
    #[arg(long, alias = "accept_loss")]
    accept_loss: bool,
}

pub fn run(command: &Command, out: &mut Output) -> Result<(), ExitReason> {
    let Command::Inspect(args) = command;
    if args.accept_loss {
        let losses = accept_loss(&args.folder)?;
        if losses.is_empty() {
            out.line("no damage found, nothing changed")?;
        }
        losses.iter().try_for_each(|loss| show_loss(loss, out))?;
    }
    let report = inspect(&args.folder)?;
    match report.state {
        FolderState::Finished => out.line("the job has finished")?,
        FolderState::Empty => out.line("the folder is empty: the next start creates new tables")?,
        FolderState::Unfinished => {}
    }
    report.servers.iter().try_for_each(|server| show(server, out))?;
    for stray in &report.strays {
        out.line(format!("  stray     {} belongs to no server of the job", stray.display()))?;
    }
    let bad = report.servers.iter().filter(|server| !server.is_good()).count();
    match bad {
        0 => Ok(()),
        bad => Err(Error::invalid(format!(
            "{bad} of {} servers cannot start",
            report.servers.len()
        ))
        .at(args.folder.display())
        .help(format!(
            "run fleet durable inspect {} --accept-loss to resume from the last good state, or \
             remove the folder and load a save",
            args.folder.display()
        ))
        .into()),
    }
}

fn show(server: &ServerReport, out: &mut Output) -> Result<(), ExitReason> {
    let mut fact = |what: &str, found: String| out.line(format!("  {what:<10}{found}"));
    let life = match (server.is_empty, server.life) {
        (true, _) => "empty".to_string(),
        (false, Some(life)) => format!("life {life:016x}"),
        (false, None) => "life unknown".to_string(),
    };
    let used = if server.is_in_use { ", in use" } else { "" };
    let finished = if server.is_finished { ", finished" } else { "" };
    fact("folder", format!("{}, {life}{used}{finished}", server.folder.display()))?;
    if let Some(job) = &server.job {
        fact("job", job_summary(job))?;
    }
    if let Some(snapshot) = &server.snapshot {
        let (number, bytes) = (snapshot.number, text::bytes(snapshot.bytes));
        fact("snapshot", format!("{number}: {} requests, {bytes}", snapshot.request_count))?;
    }
    for log in &server.logs {
        let requests = match log.request_count {
            0 => "no requests".to_string(),
            count => format!("requests {} to {}", log.first, log.first + count - 1),
        };
        fact("log", format!("{}: {requests}, {}", log.number, text::bytes(log.bytes)))?;
    }
    for (worker, report) in &server.workers {
        fact("worker", format!("{worker}: {}", progress(report)))?;
    }
    if let Some(tail) = &server.tail {
        fact("tail", tail_text(tail, server.is_in_use))?;
    }
    if !server.leftovers.is_empty() {
        fact("leftovers", server.leftovers.join(" "))?;
    }
    if server.accepts_loss {
        fact(
            "accepted",
            "loss accepted: the next start resumes without the lost requests".to_string(),
        )?;
    }
    if let Some(damage) = &server.damage {
        fact("damage", damage.to_string())?;
    }
    if let Some(behind) = &server.behind {
        fact("behind", behind.clone())?;
    }
    Ok(())
}

/// Summarises the job's text: the numbers of servers, workers and tables.
fn job_summary(job: &str) -> String {
    let value = |name: &str| {
        let line = job.lines().find_map(|line| line.trim().strip_prefix(name));
        line.map_or("unknown".to_string(), |value| value.trim_end_matches(',').to_string())
    };
    if job.is_empty() {
        return "unknown (file lost): taken from the next start".to_string();
    }
    let tables = job.lines().filter(|line| line.trim().starts_with("table_id: ")).count();
    let (servers, workers) = (value("server_count: "), value("worker_count: "));
    format!("servers {servers}, workers {workers}, sync {}, tables {tables}", value("sync: "))
}

fn progress(worker: &WorkerReport) -> String {
    let (step, complete, sequence) = (worker.step, worker.complete, worker.sequence);
    format!("step {step}, on all servers up to {complete}, last request {sequence}")
}

fn tail_text(tail: &Tail, is_in_use: bool) -> String {
    let (bytes, offset) = (text::bytes(tail.bytes), tail.offset);
    let place = format!("{bytes} at byte {offset} of {}", tail.file.display());
    match (is_in_use, tail.request_count) {
        (true, _) => format!("{place} are being written"),
        (false, 0) => {
            format!("{place}: incomplete request, truncated at the next start")
        }
        (false, count) => {
            format!(
                "{place}: {count} requests after one lost in a power cut, truncated at the next \
                 start"
            )
        }
    }
}

fn show_loss(loss: &Loss, out: &mut Output) -> Result<(), ExitReason> {
    out.line(format!("loss accepted for {}:", loss.folder.display()))?;
    for damage in &loss.damages {
        out.line(format!("  {damage}"))?;
    }
    if let Some(behind) = &loss.behind {
        out.line(format!("  {behind}"))?;
    }
    match loss.is_everything {
        true => out.line("  everything is lost: the next start creates new tables")?,
        false => out.line(format!(
            "  lost: {} whole requests, {} of logs and snapshots",
            loss.request_count,
            text::bytes(loss.bytes)
        ))?,
    }
    for (worker, (had, left)) in &loss.workers {
        out.line(format!("  worker {worker}: step {} before, {} now", had.step, left.step))?;
    }
    match loss.moved.is_empty() {
        true => Ok(()),
        false => out.line(format!(
            "  moved into {}: {}",
            loss.folder.join("aside").display(),
            loss.moved.join(" ")
        )),
    }
}
