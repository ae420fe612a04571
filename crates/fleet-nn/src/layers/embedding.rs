//! Embedding tables stored in the program.

use crate::build::Build;
use crate::setters::setters;
use crate::{Init, ParamAttr, Var};
use fleet_base::{Error, Result};
use fleet_ir::{Division, VarId};
use fleet_tensor::DType;

/// Attributes of a lookup on parameter servers.
#[derive(Clone, Copy)]
pub(super) struct Remote<'a> {
    pub entry: &'a str,
    pub class: &'a str,
    pub slot: i64,
    pub is_test: bool,
    pub any_id: bool,
}

impl Remote<'_> {
    pub const NONE: Remote<'static> =
        Remote { entry: "", class: "", slot: -1, is_test: false, any_id: false };
}

/// Options of an embedding: a table of `[vocabulary, width]`.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let ids = net.data("ids", [-1, 26], DType::I64);
/// let table = Embedding::new(1_000_000, 16).sparse().weight(Init::uniform(-0.01, 0.01));
/// let rows = ids.embedding(table);
/// assert_eq!(rows.shape(), Shape::from([-1, 26, 16]));
/// assert_eq!(net.var("embedding_0.w_0").shape(), Shape::from([1_000_000, 16]));
/// ```
#[derive(Clone, Debug)]
pub struct Embedding {
    /// Number of rows and their width.
    pub size: [i64; 2],
    /// Whether the gradient holds only the rows in use, so that only these are updated.
    pub is_sparse: bool,
    /// Whether the table is stored on parameter servers, if the job has any.
    pub is_distributed: bool,
    /// Id whose row is always zero. Negative ids count from the end.
    pub padding_idx: Option<i64>,
    /// Element type of the rows; f32 by default.
    pub dtype: DType,
    /// The table.
    pub weight: ParamAttr,
    /// Whether ranks may divide the rows of the table (tensor parallelism).
    pub split_vocabulary: bool,
    /// Name of the layer, which begins the names of its variables; `embedding_0` and so on by
    /// default.
    pub name: Option<String>,
}

impl Embedding {
    /// Returns a table of `vocabulary` rows of `width` numbers, with dense gradients.
    pub fn new(vocabulary: impl TryInto<i64>, width: impl TryInto<i64>) -> Embedding {
        Embedding {
            // A size out of range becomes -1, which is rejected like any negative size.
            size: [vocabulary.try_into().unwrap_or(-1), width.try_into().unwrap_or(-1)],
            is_sparse: false,
            is_distributed: false,
            padding_idx: None,
            dtype: DType::F32,
            weight: ParamAttr::new(),
            split_vocabulary: false,
            name: None,
        }
    }

    /// Makes the gradient hold only the rows in use: see [`is_sparse`](field@Self::is_sparse).
    pub fn sparse(mut self) -> Self {
        self.is_sparse = true;
        self
    }

    /// Stores the table on parameter servers, if the job has any.
    pub fn distributed(mut self) -> Self {
        self.is_distributed = true;
        self
    }

    setters! {
        padding_idx: Some(i64),
        dtype: DType,
        weight: impl Into<ParamAttr>,
        split_vocabulary: true,
        name: Some(impl Into<String>),
    }

    /// Emits the lookup.
    pub(super) fn emit(
        &self,
        b: &mut Build<'_>,
        ids: VarId,
        kind: &str,
        remote: Remote<'_>,
    ) -> Result<VarId> {
        let padding = self.padding(kind)?;
        let layer = b.layer_name(kind, self.name.as_deref());
        let mut attr = self.weight.clone();
        attr.is_distributed |= self.is_distributed;
        attr = attr.or_split(self.split_vocabulary.then_some(Division::along(0)));
        let table =
            b.parameter(&layer, "w", &attr, self.size, self.dtype, &Init::XAVIER_UNIFORM)?;
        let call = b.op("lookup_table_v2")?.input("W", table).input("Ids", ids);
        let call = call.attr("padding_idx", padding).attr("is_sparse", self.is_sparse);
        let call = call.attr("is_distributed", self.is_distributed);
        let call = call.attr("entry", remote.entry).attr("table_class", remote.class);
        let call = call.attr("slot", remote.slot).attr("is_test", remote.is_test);
        let call = call.attr("any_id", remote.any_id);
        call.named(format!("{layer}.tmp")).one("Out")
    }

    /// Returns the attribute `padding_idx`; -1 for none.
    fn padding(&self, kind: &str) -> Result<i64> {
        let vocabulary = self.size[0].max(0);
        let Some(id) = self.padding_idx else { return Ok(-1) };
        let place = if id < 0 { id + vocabulary } else { id };
        if (0..vocabulary).contains(&place) {
            return Ok(place);
        }
        Err(Error::invalid(format!("wrong padding_idx of {kind}"))
            .expected(format!("{} to {}", -vocabulary, vocabulary - 1))
            .got(id))
    }
}

impl From<[i64; 2]> for Embedding {
    fn from([vocabulary, width]: [i64; 2]) -> Embedding {
        Embedding::new(vocabulary, width)
    }
}

impl<'n> Var<'n> {
    /// Looks up the rows of ids in a table.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let rows = net.data("ids", [-1, 1], DType::I64).embedding([1000, 128]);
    /// assert_eq!(rows.shape(), Shape::from([-1, 1, 128]));
    /// ```
    #[track_caller]
    pub fn embedding(self, with: impl Into<Embedding>) -> Var<'n> {
        let with = with.into();
        self.layer(|b, ids| with.emit(b, ids, "embedding", Remote::NONE))
    }
}
