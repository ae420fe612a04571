//! The best items for the users of requests.

use crate::catalogue::{Catalogue, first_id};
use crate::features::{Applied, Scratch};
use crate::job::{ColumnPart, Side};
use crate::nearest;
use crate::raw::{RawNames, spec};
use crate::saved::SavedModel;
use crate::vectors::vectors_of;
use fleet_base::{Error, Result, text};
use fleet_data::{Block, ColumnSpec, RequestColumn, RequestError, RequestRows};
use std::sync::Arc;

/// Limit of the items of a user.
const COUNT_MAX: usize = 1000;
/// Limit of the items of an answer: with names of 20 bytes, some 50 MB of JSON.
const ITEMS_MAX: usize = 1_000_000;
/// Items of a user if the request does not say how many.
const COUNT: usize = 10;
/// The key of a user's row with items that are left out.
const EXCLUDE: &str = "exclude";
/// No name of an item has it, so each text is one item.
const NO_SEPARATOR: &str = "\u{1f}";

/// Number and choice of the items that a request asks for, for each user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// Number of items, or the default of 10.
    pub count: Option<u32>,
    /// Whether items that a user is known to have are left out, too; by default they are.
    pub includes_known: bool,
}

/// The best items for the users of a request.
#[derive(Debug, Default, PartialEq)]
pub struct Recommended {
    /// Place and score of each item of each user, best first.
    pub users: Vec<Vec<(usize, f32)>>,
}

/// The parts of a model that recommenders share.
pub(super) struct Towers {
    catalogue: Catalogue,
    applied: Applied,
    rows: RequestRows,
    /// Where the column is that names users.
    user: usize,
    /// Where the items are that are left out; none if a column of users has this name.
    exclude: Option<usize>,
}

impl Towers {
    pub fn new(saved: &SavedModel, catalogue: Catalogue) -> Result<Towers> {
        let is_user = |column: &&ColumnPart| column.side == Some(Side::User);
        let (read, others): (Vec<_>, Vec<_>) = saved.job.columns.iter().partition(is_user);
        let mut columns: Vec<ColumnSpec> = read.iter().map(|column| spec(column)).collect();
        let is_taken = read.iter().any(|column| column.source == EXCLUDE);
        let exclude = (!is_taken).then_some(columns.len());
        columns.extend(exclude.map(|_| ColumnSpec::categories(EXCLUDE, NO_SEPARATOR)));
        let ignored = others.iter().map(|column| column.source.as_str());
        let rows = RequestRows::new(columns, &saved.job.data.missing, ignored)?;
        let names = RawNames::new(read.iter().map(|column| column.name.clone()));
        let applied = Applied::of_side(&saved.features, &names)?;
        let user = names.index(&catalogue.choices.user)?;
        Ok(Towers { catalogue, applied, rows, user, exclude })
    }

    pub fn item(&self, place: usize) -> &str {
        self.catalogue.items.texts.values.get(place).map_or("", String::as_str)
    }
}

/// Finds the best items for the users of requests.
pub struct Recommender {
    saved: SavedModel,
    towers: Arc<Towers>,
    rows: RequestRows,
    raw: Block,
    slots: Block,
    scratch: Scratch,
    search: nearest::Scratch,
}

impl Recommender {
    pub(super) fn new(saved: SavedModel, towers: Arc<Towers>) -> Result<Recommender> {
        let rows = towers.rows.clone();
        let (raw, slots) = (Block::new(rows.schema()), Block::new(towers.applied.schema()));
        let (scratch, search) = (Scratch::default(), nearest::Scratch::default());
        Ok(Recommender { saved, towers, rows, raw, slots, scratch, search })
    }

    /// Finds items for the users of a JSON body: rows or columns as in
    /// [`RequestRows::json`], with the further keys `count` and `include_known`.
    pub fn json(&mut self, body: &[u8], rows_max: usize) -> Result<Recommended, RequestError> {
        self.raw.clear();
        let keys = ["count", "include_known"];
        let (_, [count, known]) = self.rows.json_with(body, keys, rows_max, &mut self.raw)?;
        let wrong = |name: &str, expected: &str, got: &[u8]| {
            let got: String = String::from_utf8_lossy(got).chars().take(VALUE_SHOWN).collect();
            let error = Error::invalid(format!("'{name}' is not valid")).expected(expected);
            RequestError::of_request(error.got(text::printable_line(&got)))
        };
        let read =
            |got: &[u8]| serde_json::from_slice(got).map_err(|_| wrong(keys[0], COUNTS, got));
        let count = count.map(read).transpose()?;
        let includes_known = match known {
            None => false,
            Some(b"true") => true,
            Some(b"false") => false,
            Some(got) => return Err(wrong(keys[1], "true or false", got)),
        };
        self.find(Wanted { count, includes_known })
    }

    /// Finds items for the users of a table, like [`RequestRows::table`].
    pub fn table<'a>(
        &mut self,
        columns: impl IntoIterator<Item = (&'a str, RequestColumn<'a>)>,
        wanted: Wanted,
        rows_max: usize,
    ) -> Result<Recommended, RequestError> {
        self.raw.clear();
        self.rows.table(columns, rows_max, &mut self.raw)?;
        self.find(wanted)
    }

    /// Tries a user without values.
    pub fn warm_up(&mut self) -> Result<()> {
        self.json(b"{\"rows\":[{}]}", 1).map(drop).map_err(Error::from)
    }

    fn find(&mut self, wanted: Wanted) -> Result<Recommended, RequestError> {
        let count = check_count(wanted.count, self.raw.len()).map_err(RequestError::of_request)?;
        let Recommender { towers, raw, slots, scratch, search, .. } = self;
        slots.clear();
        for row in 0..raw.len() {
            // Without a label, every row can be used.
            let applied = towers.applied.apply(raw, row, scratch, slots);
            let _ =
                applied.map_err(|error| RequestError { row: Some(row), column: None, error })?;
        }
        let vectors = vectors_of(&mut self.saved, &towers.applied, slots, Side::User);
        let vectors = vectors.map_err(RequestError::of_request)?;
        let dim = (vectors.len() / raw.len().max(1)).max(1);
        let users = vectors.chunks_exact(dim).enumerate().map(|(row, vector)| {
            let excluded = towers.excluded(raw, row, wanted);
            towers.catalogue.best(vector, count, &excluded, search)
        });
        Ok(Recommended { users: users.collect() })
    }
}

impl Towers {
    /// Returns the places of the items that are left out for a row, in order.
    fn excluded(&self, raw: &Block, row: usize, wanted: Wanted) -> Vec<u32> {
        let ids = self.exclude.and_then(|at| raw.column(at).ids(row)).unwrap_or_default();
        let mut excluded: Vec<u32> =
            ids.iter().filter_map(|id| self.catalogue.place(*id as u64)).collect();
        if !wanted.includes_known {
            excluded.extend(self.catalogue.known(first_id(raw, self.user, row)));
        }
        excluded.sort_unstable();
        excluded.dedup();
        excluded
    }
}

/// The numbers of items that a request may want.
const COUNTS: &str = "an integer from 1 to 1000";
/// Characters of a value that an error shows.
const VALUE_SHOWN: usize = 40;

fn check_count(count: Option<u32>, rows: usize) -> Result<usize> {
    let count = count.map_or(COUNT, |count| count as usize);
    if !(1..=COUNT_MAX).contains(&count) {
        return Err(Error::invalid("'count' is not valid").expected(COUNTS).got(count));
    }
    if count * rows > ITEMS_MAX {
        return Err(Error::exhausted("too many items in an answer")
            .expected(format!("at most {ITEMS_MAX} for all users"))
            .got(format!("{rows} times {count}"))
            .help("divide the users among several requests"));
    }
    Ok(count)
}
