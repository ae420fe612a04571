//! Scaled dot-product attention, fused: the score matrix is not stored.

use crate::build::Build;
use crate::setters::setters;
use crate::{OpCall, Var};
use fleet_base::Result;
use std::panic::Location;

/// Options of attention.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let q = net.data("q", [-1, 128, 12, 64], DType::F32);
/// let y = q.attention(q, q, Attention::new().causal());
/// assert_eq!(y.shape(), Shape::from([-1, 128, 12, 64]));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Attention<'n> {
    /// Whether each position attends only to itself and earlier positions.
    pub causal: bool,
    /// Factor of the scores; 0 means `1 / sqrt(D)`, where D is the width of a head.
    pub scale: f64,
    /// Mask, added to the scores.
    pub mask: Option<Var<'n>>,
    /// Dropout probability of the attention weights.
    pub dropout: f64,
}

impl<'n> Attention<'n> {
    /// Returns the defaults: no mask, no dropout, scores scaled by `1 / sqrt(D)`.
    pub fn new() -> Attention<'n> {
        Attention::default()
    }

    setters! {
        causal: true,
        scale: f64,
        mask: Some(Var<'n>),
        dropout: f64,
    }

    fn attrs(&self, call: OpCall<'n>, stream: i64) -> OpCall<'n> {
        let call = call.maybe("Mask", self.mask).attr("scale", self.scale);
        let call = call.attr("causal", self.causal);
        match self.dropout {
            0.0 => call,
            prob => call.attr("dropout_prob", prob).attr("stream", stream),
        }
    }
}

impl<'n> Var<'n> {
    /// Returns the attention of the queries `self` over keys and values, all
    /// `[batch, length, heads, width]`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let q = net.data("q", [-1, 8, 2, 16], DType::F32);
    /// let kv = net.data("kv", [-1, 20, 2, 16], DType::F32);
    /// assert_eq!(q.attention(kv, kv, Attention::new()).shape(), Shape::from([-1, 8, 2, 16]));
    /// ```
    #[track_caller]
    pub fn attention(self, key: Var<'n>, value: Var<'n>, with: Attention<'n>) -> Var<'n> {
        let stream = self.attention_stream(&with);
        let call = self.net.op("flash_attn").input("Q", self).input("K", key).input("V", value);
        with.attrs(call, stream).one("Out")
    }

    /// Returns self-attention. Queries, keys and values are packed as
    /// `[batch, length, 3, heads, width]`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let qkv = net.data("qkv", [-1, 128, 3, 12, 64], DType::F32);
    /// let y = qkv.attention_packed(Attention::new());
    /// assert_eq!(y.shape(), Shape::from([-1, 128, 12, 64]));
    /// ```
    #[track_caller]
    pub fn attention_packed(self, with: Attention<'n>) -> Var<'n> {
        let stream = self.attention_stream(&with);
        let call = self.net.op("flash_attn_qkvpacked").input("QKV", self);
        with.attrs(call, stream).one("Out")
    }

    /// Returns a random-number stream for the dropout of the weights; 0 without dropout.
    #[track_caller]
    fn attention_stream(self, with: &Attention<'n>) -> i64 {
        if with.dropout == 0.0 {
            return 0;
        }
        let next = |b: &mut Build<'_>| -> Result<i64> { Ok(b.main.program.next_stream() as i64) };
        self.net.try_emit(Location::caller(), next).unwrap_or(0)
    }
}
