//! `fleet recommend`: the best items for users, by the vectors of a model with two towers.

pub use crate::catalogue::SearchWay;
use crate::catalogue::{Catalogue, CatalogueOptions, first_id, open_columns};
use crate::features::{Applied, Scratch};
use crate::job::Side;
use crate::nearest;
use crate::origin::{self, Origin};
use crate::raw::Raw;
use crate::rows::for_each_row;
use crate::saved::{SCORE_ROWS, SavedModel};
use crate::threads::Threads;
use crate::vectors::vectors_of;
use clap::Args;
use fleet::topology::Env;
use fleet_base::file::AtomicFile;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_data::Block;
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

/// Runs the command.
pub fn run(args: &RecommendArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let begin = Instant::now();
    origin::check_local("the file of items", &args.out)?;
    let (options, origin) = (args.threads.options(), Origin::new("", env)?);
    let how = CatalogueOptions {
        search: args.search,
        exclude: &args.exclude,
        origin: &origin,
        threads: args.threads.started(),
    };
    let (mut model, catalogue) = Catalogue::open(&args.model, options, &how)?;
    let catalogue = catalogue.ok_or_else(|| no_items().got(args.model.display()))?;
    let names = [&catalogue.choices.user, &catalogue.choices.item];
    let users = Users::open(&model, &origin, &args.users, names[0])?;
    let mut file = AtomicFile::create(&args.out)?;
    let header = format!("{},rank,{},score\n", quoted(names[0]), quoted(names[1]));
    let write = |file: &mut AtomicFile, text: &str| {
        file.write_all(text.as_bytes()).map_err(|error| file.error("write", &error))
    };
    write(&mut file, &header)?;
    let mut count = 0;
    let mut scratch = nearest::Scratch::default();
    users.for_each(&mut model, |user, hash, vector| {
        let excluded = catalogue.known(hash);
        let best = catalogue.best(vector, args.k as usize, excluded, &mut scratch);
        let mut text = String::new();
        for (rank, (at, score)) in best.iter().enumerate() {
            let item = quoted(&catalogue.items.texts.values[*at]);
            let _ = writeln!(text, "{},{},{item},{score}", quoted(user), rank + 1);
        }
        count += 1;
        write(&mut file, &text)
    })?;
    file.commit()?;
    let seconds = begin.elapsed().as_secs_f64();
    let (found, users) =
        (text::counted(catalogue.items.len(), "item"), text::counted(count, "user"));
    let by = if catalogue.is_indexed() { " by their index" } else { "" };
    out.line(format!("{users} among {found}{by} in {seconds:.1} s: {}", args.out.display()))
}

/// The error of a model that does not recommend.
pub fn no_items() -> Error {
    Error::unsupported("the model has no vectors of users and items")
        .expected("a model of kind two_tower with the task retrieval")
}

/// Returns a field of a CSV file.
fn quoted(field: &str) -> String {
    match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field.to_string(),
    }
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
        let (raw, files) =
            open_columns(&model.job, origin, patterns, |it| it.side == Some(Side::User))?;
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
