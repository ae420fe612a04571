//! Multi-head attention: projections, attention, output projection.

use crate::layers::{Attention, Linear, Split};
use crate::setters::setters;
use crate::{Init, Var};
use fleet_base::Error;
use std::panic::Location;

/// Options of multi-head attention.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 128, 768], DType::F32);
/// let y = x.multi_head_attention(MultiHeadAttention::new(12).causal());
/// assert_eq!(y.shape(), Shape::from([-1, 128, 768]));
/// ```
#[derive(Clone, Debug)]
pub struct MultiHeadAttention<'n> {
    /// Number of heads, which must divide the width of the input.
    pub heads: i64,
    /// Input of keys and values, for cross-attention. Without it, the layer is self-attention.
    pub key_value: Option<Var<'n>>,
    /// Whether each position attends only to itself and earlier positions.
    pub causal: bool,
    /// Mask, added to the scores.
    pub mask: Option<Var<'n>>,
    /// Dropout probability of the attention weights.
    pub dropout: f64,
    /// Whether ranks may divide the heads (tensor parallelism).
    pub split_heads: bool,
    /// Initializer of every projection's weight.
    pub init: Option<Init>,
    /// Prefix of names. Projections are named `<name>_qkv_fc` (or `_query_fc`, `_key_fc`,
    /// `_value_fc`) and `<name>_output_fc`.
    pub name: Option<String>,
}

impl<'n> MultiHeadAttention<'n> {
    /// Returns self-attention without mask and dropout.
    pub fn new(heads: i64) -> MultiHeadAttention<'n> {
        MultiHeadAttention {
            heads,
            key_value: None,
            causal: false,
            mask: None,
            dropout: 0.0,
            split_heads: false,
            init: None,
            name: None,
        }
    }

    setters! {
        key_value: Some(Var<'n>),
        causal: true,
        mask: Some(Var<'n>),
        dropout: f64,
        split_heads: true,
        init: Some(Init),
        name: Some(impl Into<String>),
    }

    fn linear(&self, size: i64, part: &str, split: Split) -> Linear {
        let name = self.name.as_ref().map(|name| format!("{name}_{part}"));
        let linear = Linear::part(size, self.init.clone(), name);
        linear.maybe_split(self.split_heads.then_some(split))
    }
}

impl<'n> Var<'n> {
    /// Applies multi-head attention to `[batch, length, hidden]`. Self-attention computes queries,
    /// keys and values in one matrix product.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 8, 32], DType::F32);
    /// let memory = net.data("memory", [-1, 20, 32], DType::F32);
    /// let y = x.multi_head_attention(MultiHeadAttention::new(4).key_value(memory));
    /// assert_eq!(y.shape(), Shape::from([-1, 8, 32]));
    /// ```
    #[track_caller]
    pub fn multi_head_attention(self, with: MultiHeadAttention<'n>) -> Var<'n> {
        let shape = self.shape();
        let hidden = shape.last().copied().unwrap_or(-1);
        let checked = self.net.try_emit(Location::caller(), |_| {
            if shape.rank() == 3 && with.heads > 0 && hidden > 0 && hidden % with.heads == 0 {
                return Ok(());
            }
            Err(Error::invalid("wrong input of multi-head attention")
                .expected(format!("[batch, length, a multiple of {} heads]", with.heads))
                .got(shape))
        });
        if checked.is_none() {
            return self.net.invalid_var();
        }
        let width = hidden / with.heads;
        let attention =
            Attention { causal: with.causal, scale: 0.0, mask: with.mask, dropout: with.dropout };
        let mixed = match with.key_value {
            None => {
                let qkv = self.linear(with.linear(
                    hidden.saturating_mul(3),
                    "qkv_fc",
                    Split::PackedColumns(3),
                ));
                qkv.reshape([0, 0, 3, with.heads, width]).attention_packed(attention)
            }
            Some(source) => {
                let query = self.linear(with.linear(hidden, "query_fc", Split::Columns));
                let key = source.linear(with.linear(hidden, "key_fc", Split::Columns));
                let value = source.linear(with.linear(hidden, "value_fc", Split::Columns));
                let split = [0, 0, with.heads, width];
                query.reshape(split).attention(key.reshape(split), value.reshape(split), attention)
            }
        };
        mixed.reshape([0, 0, hidden]).linear(with.linear(hidden, "output_fc", Split::Rows))
    }
}
