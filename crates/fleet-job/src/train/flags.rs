//! Flags of a training, which jobs and demos share, and the number of generated rows.

use crate::file::{Data, Text, set};
use crate::job::{Job, Split};
use crate::made;
use clap::Args;
use fleet_base::{Error, Result};
use fleet_config::Place;
use std::path::PathBuf;

/// Flags of a training.
#[derive(Args, Clone, Debug, Default)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct RunFlags {
    /// Number of generated samples to train on
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub samples: Option<u64>,
    /// DistributedStrategy file (see fleet strategy)
    #[arg(long, value_name = "FILE")]
    pub strategy: Option<PathBuf>,
    /// Save checkpoints to this folder, and resume from the newest one in it. They are kept when
    /// the training ends
    #[arg(long, value_name = "FOLDER")]
    pub checkpoint: Option<PathBuf>,
    /// Make parameter servers durable: they log every push to this folder, and resume from it
    /// after a restart
    #[arg(long, value_name = "FOLDER")]
    pub durable: Option<PathBuf>,
    /// Steps between checkpoints
    #[arg(
        long,
        alias = "checkpoint_every",
        value_name = "STEPS",
        requires = "checkpoint",
        value_parser = clap::value_parser!(u64).range(1..),
    )]
    pub checkpoint_every: Option<u64>,
    /// Write a trace of the last step's ops to FOLDER/rank-N.json, and print its exposed
    /// communication (see fleet trace)
    #[arg(long, value_name = "FOLDER")]
    pub trace: Option<PathBuf>,
}

impl RunFlags {
    /// Fails if a flag does not apply to a job with or without parameter servers. `job` is its name
    /// on the command line.
    pub fn check_mode(&self, has_servers: bool, job: &str) -> Result<()> {
        if self.trace.is_some() && has_servers {
            return Err(Error::unsupported("--trace is supported only for collective jobs")
                .got("a job with parameter servers")
                .help(format!("run fleetrun --nproc_per_node 2 {job} --trace FOLDER")));
        }
        if self.durable.is_some() && !has_servers {
            return Err(Error::invalid("--durable needs parameter servers, and this job has none")
                .help(format!(
                    "run fleetrun --server_num=1 --worker_num=2 {job} --durable FOLDER"
                )));
        }
        Ok(())
    }
}

/// Changes a job whose training rows are generated to this number of them. Other parts have at most
/// as many rows, which follow those of the training where they did before.
pub fn set_samples(text: &mut Text, job: &Job, samples: u64) -> Result<()> {
    let [name] = &job.data.train[..] else { return Err(not_made(job)) };
    if !made::is_made(name) {
        return Err(not_made(job));
    }
    let old = made::range_of(name)?;
    let rows = |start: u64, count: u64| {
        let end = start.checked_add(count).ok_or_else(|| {
            Error::invalid("too many generated rows").at("--samples").got(samples)
        })?;
        made::range_of(made::name_of(&(start..end)))
    };
    let new = rows(old.start, samples)?;
    let mut end = new.end;
    put(text, &["train"], vec![made::name_of(&new)]);
    for (part, split) in [("validation", &job.data.validation), ("test", &job.data.test)] {
        let Some(Split::Files(names)) = split else { continue };
        let mut moved = Vec::new();
        for name in names {
            let range = made::range_of(name)?;
            let start = if range.start < old.start { range.start } else { range.start.max(end) };
            let range = rows(start, (range.end - range.start).min(samples))?;
            end = end.max(range.end);
            moved.push(made::name_of(&range));
        }
        put(text, &[part, "files"], moved);
    }
    Ok(())
}

fn not_made(job: &Job) -> Error {
    Error::invalid("--samples applies only to jobs whose training rows are one generated range")
        .got(job.data.train.join(", "))
        .help("set data.train, such as train = \"made:ctr/0..1500000\"")
}

fn put(text: &mut Text, path: &[&str], names: Vec<String>) {
    let at = Place { line: 1, column: 1 };
    let keys: Vec<String> = ["data"].iter().chain(path).map(ToString::to_string).collect();
    let node = |name| crate::file::Node { at, data: Data::Text(name) };
    // The tables exist, since the job was made from them.
    let _ = set(&mut text.root, &keys, Data::List(names.into_iter().map(node).collect()), at);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{View, read_text, to_toml};

    fn with(data: &str, samples: u64) -> Result<Job> {
        let job = format!("version = 1\n[data]\n{data}\n[columns]\n");
        let mut text = read_text("job.toml".as_ref(), &job);
        let job = Job::of(View::root(&text.root));
        set_samples(&mut text, &job, samples)?;
        let again = read_text("job.toml".as_ref(), &to_toml(&text.root));
        Ok(Job::of(View::root(&again.root)))
    }

    #[test]
    fn other_parts_follow_the_training_rows() -> Result<()> {
        let data = "train = \"made:ctr/100..2000\"\nvalidation = { files = \"made:ctr/0..50\" }\n\
                    test = { files = [\"made:ctr/2000..3000\", \"made:ctr/5000..6000\"] }";
        let files = |names: &[&str]| {
            Some(Split::Files(names.iter().map(|name| format!("made:ctr/{name}")).collect()))
        };
        for (samples, train, validation, test) in [
            (20, "100..120", ["0..20"], ["2000..2020", "5000..5020"]),
            (2500, "100..2600", ["0..50"], ["2600..3600", "5000..6000"]),
            (6000, "100..6100", ["0..50"], ["6100..7100", "7100..8100"]),
        ] {
            let job = with(data, samples)?;
            assert_eq!(job.data.train, [format!("made:ctr/{train}")]);
            assert_eq!(job.data.validation, files(&validation), "{samples}");
            assert_eq!(job.data.test, files(&test), "{samples}");
        }
        assert!(with("train = \"a.csv\"", 5).is_err_and(|it| it.to_string().contains("a.csv")));
        assert!(with(data, u64::MAX).is_err());
        Ok(())
    }
}
