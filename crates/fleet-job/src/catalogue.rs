//! The items of a retrieval's model, among which the best ones for a user are found, for files and
//! for requests.

use crate::features::Choices;
use crate::job::{ColumnPart, Job, Side};
use crate::nearest::{Index, Scratch};
use crate::origin::Origin;
use crate::raw::{Raw, format_of};
use crate::rows::for_each_row;
use crate::saved::SavedModel;
use crate::vectors::{Vectors, check_version, index_path};
use clap::ValueEnum;
use fleet::ExecOptions;
use fleet_base::{Error, Result};
use fleet_data::Block;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// The items of a model, and those that users are known to have.
pub struct Catalogue {
    /// The items.
    pub items: Vectors,
    /// Columns that name users and items.
    pub choices: Choices,
    index: Option<Index>,
    /// The place of each item, by the hash of its name.
    places: HashMap<u64, u32>,
    /// Places of the items that a user has, in order, by the hash of the user's name.
    known: HashMap<u64, Vec<u32>>,
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

/// How a catalogue is searched, and which items are left out.
pub struct CatalogueOptions<'a> {
    /// How items are found.
    pub search: SearchWay,
    /// Files with users and items that are left out.
    pub exclude: &'a [String],
    /// Where these files are.
    pub origin: &'a Origin,
    /// Threads that build an index.
    pub threads: usize,
}

impl Catalogue {
    /// Opens a model folder with its items, which are none if the model is not a retrieval's.
    pub fn open(
        folder: &Path,
        exec: ExecOptions,
        options: &CatalogueOptions<'_>,
    ) -> Result<(SavedModel, Option<Catalogue>)> {
        let read = |model: &SavedModel| {
            let Some(choices) = &model.features.choices else { return Ok(None) };
            check_version(folder, model.version.version)?;
            let items = Vectors::load(folder, Side::Item)?;
            if !items.is_empty() && items.dim as i64 != model.job.model.dim {
                return Err(Error::invalid("the vectors of items are not as long as the model's")
                    .expected(model.job.model.dim)
                    .got(items.dim)
                    .at(folder.display())
                    .help("copy the model folder again, or train the model again"));
            }
            let index = index_of(folder, options.search, &items, options.threads)?;
            Ok(Some((items, index, choices.clone())))
        };
        let (model, read) = SavedModel::open_with(folder, exec, read)?;
        let Some((items, index, choices)) = read else { return Ok((model, None)) };
        let hash = |text: &String| fleet_data::category_hash(text.as_bytes());
        let places: HashMap<u64, u32> = items.texts.values.iter().map(hash).zip(0..).collect();
        let known = known(&model.job, options, &choices, &places)?;
        Ok((model, Some(Catalogue { items, choices, index, places, known })))
    }

    /// Returns whether items are found by the index.
    pub fn is_indexed(&self) -> bool {
        self.index.is_some()
    }

    /// Returns the place of an item, by the hash of its name.
    pub fn place(&self, item: u64) -> Option<u32> {
        self.places.get(&item).copied()
    }

    /// Returns the places of the items that a user is known to have, in order.
    pub fn known(&self, user: u64) -> &[u32] {
        self.known.get(&user).map_or(&[], Vec::as_slice)
    }

    /// Returns the places and scores of the `count` best items for the vector of a user, best
    /// first. `excluded` are the places of items that are left out, in order.
    pub fn best(
        &self,
        user: &[f32],
        count: usize,
        excluded: &[u32],
        scratch: &mut Scratch,
    ) -> Vec<(usize, f32)> {
        let is_excluded = |at: usize| excluded.binary_search(&(at as u32)).is_ok();
        match &self.index {
            Some(index) => index.nearest(user, (count, excluded.len()), is_excluded, scratch),
            None => self.items.nearest(user, count, is_excluded),
        }
    }
}

/// Returns the index that a search uses, if it uses one.
fn index_of(
    folder: &Path,
    search: SearchWay,
    items: &Vectors,
    threads: usize,
) -> Result<Option<Index>> {
    let path = index_path(folder);
    match (search, path.is_file()) {
        (SearchWay::Exact, _) | (SearchWay::Auto, false) => Ok(None),
        (_, true) => Index::load(&path, items).map(Some),
        (SearchWay::Index, false) => Index::build(items, threads).map(Some),
    }
}

/// Opens the columns that `which` selects, of files that must be free of faults.
pub fn open_columns(
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
fn known(
    job: &Job,
    options: &CatalogueOptions<'_>,
    choices: &Choices,
    places: &HashMap<u64, u32>,
) -> Result<HashMap<u64, Vec<u32>>> {
    let mut known: HashMap<u64, Vec<u32>> = HashMap::new();
    if options.exclude.is_empty() {
        return Ok(known);
    }
    let names = [&choices.user, &choices.item];
    let is_one = |column: &ColumnPart| names.contains(&&column.name);
    let (raw, files) = open_columns(job, options.origin, options.exclude, is_one)?;
    let [user, item] = [raw.names.index(names[0])?, raw.names.index(names[1])?];
    for_each_row(&raw, &files, |_, _, block, row| {
        let [user, item] = [user, item].map(|at| first_id(block, at, row));
        if let Some(place) = places.get(&item) {
            known.entry(user).or_default().push(*place);
        }
        Ok(true)
    })?;
    for items in known.values_mut() {
        items.sort_unstable();
        items.dedup();
    }
    Ok(known)
}

/// Returns the hash of a row's category, or 0 if it is missing.
pub fn first_id(block: &Block, at: usize, row: usize) -> u64 {
    block.column(at).ids(row).and_then(|ids| ids.first()).map_or(0, |id| *id as u64)
}
