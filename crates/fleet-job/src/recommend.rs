//! `fleet recommend`: the best items for users, by the vectors of a model with two towers.

use crate::features::{Applied, Scratch};
use crate::job::{ColumnPart, Job, Side};
use crate::nearest::{Index, Seen};
use crate::origin::{self, Origin};
use crate::raw::{Raw, format_of};
use crate::rows::for_each_row;
use crate::saved::{SCORE_ROWS, SavedModel};
use crate::threads::Threads;
use crate::vectors::{Vectors, index_path, vectors_of};
use clap::{Args, ValueEnum};
use fleet::topology::Env;
use fleet_base::file::AtomicFile;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_data::Block;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;
use std::time::Instant;

/// Finds the best items for users.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct RecommendArgs {
    /// Model folder of a job with the model two_tower and the task retrieval
    pub model: PathBuf,
    /// Files with a row for each user: names or patterns; columns of items are not needed
    #[arg(long, value_name = "FILES", required = true, num_args = 1..)]
    pub users: Vec<String>,
    /// Number of items for each user
    #[arg(
        short,
        value_name = "K",
        default_value_t = 10,
        value_parser = clap::value_parser!(u32).range(1..),
    )]
    pub k: u32,
    /// CSV file for the items: a line for each user and item, best items first
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Files with users and items, such as the training files: these items are left out
    #[arg(long, value_name = "FILES", num_args = 1..)]
    pub exclude: Vec<String>,
    /// How items are found
    #[arg(long, value_name = "WAY", value_enum, default_value_t = SearchWay::Auto)]
    pub search: SearchWay,
    #[command(flatten)]
    pub threads: Threads,
}

/// Ways to find items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SearchWay {
    /// By the index if the model has one, as those with 20,000 items or more; otherwise exact
    Auto,
    /// Compares each user with all items
    Exact,
    /// Compares each user with few items, and may miss some of the best; builds the index if the
    /// model has none
    Index,
}

/// Runs the command.
pub fn run(args: &RecommendArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let begin = Instant::now();
    origin::check_local("the file of items", &args.out)?;
    let (options, origin) = (args.threads.options(), Origin::new("", env)?);
    let mut model = SavedModel::open(&args.model, options)?;
    let names = match &model.features.choices {
        Some(choices) => [choices.user.clone(), choices.item.clone()],
        None => {
            return Err(Error::invalid("the model has no vectors of users and items")
                .expected("a model of kind two_tower with the task retrieval")
                .got(args.model.display())
                .into());
        }
    };
    let items = Vectors::load(&args.model, Side::Item)?;
    let index = index_of(args, &items)?;
    let excluded = excluded(&model.job, &origin, &args.exclude, &names, &items)?;
    let users = Users::open(&model, &origin, &args.users, &names[0])?;
    let mut file = AtomicFile::create(&args.out)?;
    let header = format!("{},rank,{},score\n", quoted(&names[0]), quoted(&names[1]));
    let write = |file: &mut AtomicFile, text: &str| {
        file.write_all(text.as_bytes()).map_err(|error| file.error("write", &error))
    };
    write(&mut file, &header)?;
    let mut count = 0;
    let mut nodes = Seen::default();
    users.for_each(&mut model, |user, hash, vector| {
        let seen = excluded.get(&hash);
        let is_excluded = |at: usize| seen.is_some_and(|seen| seen.contains(&at));
        let counts = (args.k as usize, seen.map_or(0, HashSet::len));
        let best = match &index {
            Some(index) => index.nearest(&items, vector, counts, is_excluded, &mut nodes),
            None => items.nearest(vector, args.k as usize, is_excluded),
        };
        let mut text = String::new();
        for (rank, (at, score)) in best.iter().enumerate() {
            let item = quoted(&items.texts.values[*at]);
            let _ = writeln!(text, "{},{},{item},{score}", quoted(user), rank + 1);
        }
        count += 1;
        write(&mut file, &text)
    })?;
    file.commit()?;
    let seconds = begin.elapsed().as_secs_f64();
    let (found, users) = (text::counted(items.len(), "item"), text::counted(count, "user"));
    let by = if index.is_some() { " by their index" } else { "" };
    out.line(format!("{users} among {found}{by} in {seconds:.1} s: {}", args.out.display()))
}

/// Returns the index that the command uses, if it uses one.
fn index_of(args: &RecommendArgs, items: &Vectors) -> Result<Option<Index>> {
    let path = index_path(&args.model);
    match (args.search, path.is_file()) {
        (SearchWay::Exact, _) | (SearchWay::Auto, false) => Ok(None),
        (_, true) => Index::load(&path, items).map(Some),
        (SearchWay::Index, false) => Index::build(items).map(Some),
    }
}

/// Returns a field of a CSV file.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
    }
}

/// Opens the columns that `which` selects, of files that must be free of faults.
fn open(
    job: &Job,
    origin: &Origin,
    patterns: &[String],
    which: impl Fn(&ColumnPart) -> bool,
) -> Result<(Raw, Vec<PathBuf>)> {
    let files = origin.expand(patterns)?;
    let first = files.first().ok_or_else(|| Error::invalid("no files to read"))?;
    let mut job = job.clone();
    (job.data.bad_rows_max, job.data.bad_rows_kept) = (0, None);
    let format = format_of(&job.data, &job.columns, first)?;
    Ok((Raw::new(&job, origin, format, true, which)?, files))
}

/// Returns the places of the items that are left out, for each user.
fn excluded(
    job: &Job,
    origin: &Origin,
    patterns: &[String],
    names: &[String; 2],
    items: &Vectors,
) -> Result<HashMap<u64, HashSet<usize>>> {
    let mut excluded: HashMap<u64, HashSet<usize>> = HashMap::new();
    if patterns.is_empty() {
        return Ok(excluded);
    }
    let (raw, files) = open(job, origin, patterns, |column| names.contains(&column.name))?;
    let hash = |text: &String| fleet_data::category_hash(text.as_bytes());
    let places: HashMap<u64, usize> = items.texts.values.iter().map(hash).zip(0..).collect();
    let [user, item] = [raw.names.index(&names[0])?, raw.names.index(&names[1])?];
    for_each_row(&raw, &files, |_, _, block, row| {
        let [user, item] = [user, item].map(|at| first_id(block, at, row));
        if let Some(place) = places.get(&item) {
            excluded.entry(user).or_default().insert(*place);
        }
        Ok(true)
    })?;
    Ok(excluded)
}

fn first_id(block: &Block, at: usize, row: usize) -> u64 {
    block.column(at).ids(row).and_then(|ids| ids.first()).map_or(0, |id| *id as u64)
}

/// The rows of users.
struct Users {
    raw: Raw,
    files: Vec<PathBuf>,
    applied: Applied,
    /// Where the column that names users is.
    at: usize,
}

impl Users {
    fn open(model: &SavedModel, origin: &Origin, patterns: &[String], name: &str) -> Result<Users> {
        let (raw, files) = open(&model.job, origin, patterns, |it| it.side == Some(Side::User))?;
        let applied = Applied::of_side(&model.features, &raw.names)?;
        let at = raw.names.index(name)?;
        Ok(Users { raw, files, applied, at })
    }

    /// Calls a function with text, hash and vector of each user.
    fn for_each(
        &self,
        model: &mut SavedModel,
        mut call: impl FnMut(&str, u64, &[f32]) -> Result<()>,
    ) -> Result<()> {
        let (mut rows, mut hashes) = (Block::new(self.applied.schema()), Vec::new());
        let mut scratch = Scratch::default();
        let mut flush = |rows: &mut Block, hashes: &mut Vec<u64>| -> Result<()> {
            let vectors = vectors_of(model, &self.applied, rows, Side::User)?;
            let dim = vectors.len() / hashes.len().max(1);
            for (hash, vector) in hashes.drain(..).zip(vectors.chunks_exact(dim.max(1))) {
                call(&self.text(hash)?, hash, vector)?;
            }
            rows.clear();
            Ok(())
        };
        for_each_row(&self.raw, &self.files, |_, _, block, row| {
            hashes.push(first_id(block, self.at, row));
            // Without a label, every row can be used.
            let _ = self.applied.apply(block, row, &mut scratch, &mut rows)?;
            if rows.len() == SCORE_ROWS {
                flush(&mut rows, &mut hashes)?;
            }
            Ok(true)
        })?;
        flush(&mut rows, &mut hashes)
    }

    fn text(&self, hash: u64) -> Result<String> {
        if hash == 0 {
            return Ok(String::new());
        }
        self.raw.text(self.at, hash)
    }
}
