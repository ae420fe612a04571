//! Embedding tables on parameter servers, which create rows when ids first appear. In a single
//! process they behave as sparse embeddings of the given size.

use super::embedding::Remote;
use crate::layers::Embedding;
use crate::setters::setters;
use crate::{ParamAttr, Var};
use fleet_base::{Error, Result};
use fleet_tensor::DType;

/// Admission rule: which ids get a row on the server.
///
/// ```
/// use fleet_nn::prelude::*;
/// assert_eq!(Entry::Count(10).describe().unwrap(), "count_filter_entry:10");
/// assert_eq!(Entry::Probability(0.5).describe().unwrap(), "probability_entry:0.5");
/// assert!(Entry::Probability(1.5).describe().is_err());
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Entry {
    /// Admits ids that appeared this many times.
    Count(i64),
    /// Refuses ids at random with this probability, as `ProbabilityEntry` of the documents does.
    Probability(f64),
    /// Admits all ids, and counts their shows and clicks.
    ShowClick {
        /// Name of the variable with the shows of the samples.
        show: String,
        /// Name of the variable with the clicks of the samples.
        click: String,
    },
}

impl Entry {
    /// Returns the rule as text, as in table descriptions.
    pub fn describe(&self) -> Result<String> {
        match self {
            Entry::Count(count) if *count >= 0 => Ok(format!("count_filter_entry:{count}")),
            Entry::Count(count) => {
                Err(Error::invalid("count_filter is out of range").expected("0 or more").got(count))
            }
            Entry::Probability(p) if *p > 0.0 && *p < 1.0 => Ok(format!("probability_entry:{p}")),
            Entry::Probability(p) => Err(Error::invalid("probability is out of range")
                .expected("above 0 and below 1")
                .got(p)),
            Entry::ShowClick { show, click } => Ok(format!("show_click_entry:{show}:{click}")),
        }
    }
}

/// Options of an embedding on parameter servers.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let ids = net.data("ids", [-1, 1], DType::I64);
/// let rows = ids.sparse_embedding(SparseEmbedding::new(1_000_000, 9).entry(Entry::Count(10)));
/// assert_eq!(rows.shape(), Shape::from([-1, 1, 9]));
/// ```
#[derive(Clone, Debug)]
pub struct SparseEmbedding {
    table: Embedding,
    /// Which ids get a row; all by default.
    pub entry: Option<Entry>,
    /// Class of the table on the servers; `MemorySparseTable` by default.
    pub table_class: String,
    /// Feature slot of the ids. Click tables store it with each row, and text saves include it.
    pub slot: Option<u32>,
    /// Whether the lookup only reads. Unknown ids then get no row, and rows get no gradient.
    pub is_test: bool,
    /// Whether every 64-bit number is an id of the table, such as a hash of a feature. Otherwise a
    /// negative id is an error, and one above the vocabulary a warning.
    pub any_id: bool,
}

/// Number of distinct slots that a row can store.
const SLOT_COUNT: u32 = 1 << 31;

impl SparseEmbedding {
    /// Returns a table on parameter servers. In one process it has `vocabulary` rows of `width`
    /// numbers.
    pub fn new(vocabulary: impl TryInto<i64>, width: impl TryInto<i64>) -> SparseEmbedding {
        SparseEmbedding {
            table: Embedding::new(vocabulary, width).sparse().distributed(),
            entry: None,
            table_class: "MemorySparseTable".to_string(),
            slot: None,
            is_test: false,
            any_id: false,
        }
    }

    setters! {
        entry: Some(Entry),
        table_class: impl Into<String>,
        slot: Some(u32),
        is_test: bool,
        any_id: bool,
    }

    /// Sets the id whose row is always zero.
    pub fn padding_idx(mut self, id: i64) -> Self {
        self.table = self.table.padding_idx(id);
        self
    }

    /// Sets the element type of the rows; f32 by default.
    pub fn dtype(mut self, dtype: DType) -> Self {
        self.table = self.table.dtype(dtype);
        self
    }

    /// Sets the attributes of the table: name, initializer and others.
    pub fn weight(mut self, attr: impl Into<ParamAttr>) -> Self {
        self.table = self.table.weight(attr);
        self
    }

    /// Sets the name of the layer, which begins the names of its variables.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.table = self.table.name(name);
        self
    }
}

impl From<[i64; 2]> for SparseEmbedding {
    fn from([vocabulary, width]: [i64; 2]) -> SparseEmbedding {
        SparseEmbedding::new(vocabulary, width)
    }
}

impl<'n> Var<'n> {
    /// Looks up the rows of ids in a table on parameter servers.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let rows = net.data("ids", [-1, 1], DType::I64).sparse_embedding([1000, 128]);
    /// assert_eq!(net.var("sparse_embedding_0.w_0").shape(), Shape::from([1000, 128]));
    /// # let _ = rows;
    /// ```
    #[track_caller]
    pub fn sparse_embedding(self, with: impl Into<SparseEmbedding>) -> Var<'n> {
        let with = with.into();
        self.layer(|b, ids| {
            let entry = with.entry.as_ref().map(Entry::describe).transpose()?.unwrap_or_default();
            if let Some(slot) = with.slot
                && slot >= SLOT_COUNT
            {
                return Err(Error::invalid("wrong slot of sparse_embedding")
                    .expected(format!("0 to {}", SLOT_COUNT - 1))
                    .got(slot));
            }
            let remote = Remote {
                entry: &entry,
                class: &with.table_class,
                slot: with.slot.map_or(-1, i64::from),
                is_test: with.is_test,
                any_id: with.any_id,
            };
            let rows = with.table.emit(b, ids, "sparse_embedding", remote)?;
            b.main.program.var_mut(rows).stop_gradient |= with.is_test;
            Ok(rows)
        })
    }
}
