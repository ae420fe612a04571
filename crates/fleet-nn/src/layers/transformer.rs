//! A transformer layer: attention and a feed-forward net, each with a residual connection and a
//! norm.

use crate::layers::{LayerNorm, Linear, MultiHeadAttention, Split};
use crate::setters::setters;
use crate::{Act, Init, Var};

/// Options of a transformer layer. The defaults are post-norm and GELU, as in BERT.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 128, 768], DType::F32);
/// let y = x.transformer_layer(TransformerLayer::new(12, 3072).pre_norm().causal().dropout(0.1));
/// assert_eq!(y.shape(), Shape::from([-1, 128, 768]));
/// let mask = net.data("mask", [-1, 1, 1, 128], DType::F32);
/// y.transformer_layer(TransformerLayer::new(12, 3072).mask(mask).attention_dropout(0.1));
/// ```
#[derive(Clone, Debug)]
pub struct TransformerLayer<'n> {
    /// Number of heads, which must divide the width of the input.
    pub heads: i64,
    /// Width of the feed-forward net.
    pub ffn: i64,
    /// Whether norms precede the two parts (GPT) instead of following them (BERT).
    pub pre_norm: bool,
    /// Activation of the feed-forward net; GELU by default.
    pub act: Act,
    /// Whether each position attends only to itself and earlier positions.
    pub causal: bool,
    /// Mask, added to the scores of the attention.
    pub mask: Option<Var<'n>>,
    /// Dropout probability of the outputs of the two parts.
    pub dropout: f64,
    /// Dropout probability of the attention weights.
    pub attention_dropout: f64,
    /// Epsilon of both layer norms; 1e-5 by default.
    pub epsilon: f64,
    /// Whether ranks may divide the layer (tensor parallelism): the heads of the attention, and the
    /// width of the feed-forward net.
    pub split: bool,
    /// Initializer of every weight.
    pub init: Option<Init>,
    /// Prefix of the names of the layer's parts.
    pub name: Option<String>,
}

impl<'n> TransformerLayer<'n> {
    /// Returns a layer as in BERT: norms after the two parts, GELU, no dropout.
    pub fn new(heads: i64, ffn: i64) -> TransformerLayer<'n> {
        TransformerLayer {
            heads,
            ffn,
            pre_norm: false,
            act: Act::Gelu,
            causal: false,
            mask: None,
            dropout: 0.0,
            attention_dropout: 0.0,
            epsilon: 1e-5,
            split: false,
            init: None,
            name: None,
        }
    }

    setters! {
        pre_norm: true,
        act: Act,
        causal: true,
        mask: Some(Var<'n>),
        dropout: f64,
        attention_dropout: f64,
        epsilon: f64,
        split: true,
        init: Some(Init),
        name: Some(impl Into<String>),
    }

    fn part(&self, part: &str) -> Option<String> {
        self.name.as_ref().map(|name| format!("{name}_{part}"))
    }

    fn attention(&self) -> MultiHeadAttention<'n> {
        MultiHeadAttention {
            heads: self.heads,
            key_value: None,
            causal: self.causal,
            mask: self.mask,
            dropout: self.attention_dropout,
            split_heads: self.split,
            init: self.init.clone(),
            name: self.part("multi_head_att"),
        }
    }

    fn norm(&self, part: &str) -> LayerNorm {
        let norm = LayerNorm::last().epsilon(self.epsilon);
        LayerNorm { name: self.part(part), ..norm }
    }

    fn linear(&self, size: i64, part: &str, split: Split) -> Linear {
        let linear = Linear::part(size, self.init.clone(), self.part(part));
        linear.maybe_split(self.split.then_some(split))
    }

    #[track_caller]
    fn feed_forward(&self, x: Var<'n>, hidden: i64) -> Var<'n> {
        let wide = x.linear(self.linear(self.ffn, "ffn_fc_0", Split::Columns).act(self.act));
        wide.linear(self.linear(hidden, "ffn_fc_1", Split::Rows))
    }
}

impl<'n> Var<'n> {
    /// Applies a transformer layer to `[batch, length, hidden]`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 8, 32], DType::F32);
    /// assert_eq!(x.transformer_layer(TransformerLayer::new(4, 64)).shape(), x.shape());
    /// ```
    #[track_caller]
    pub fn transformer_layer(self, with: TransformerLayer<'n>) -> Var<'n> {
        let hidden = self.shape().last().copied().unwrap_or(-1);
        if with.pre_norm {
            let normed = self.layer_norm(with.norm("pre_att_layer_norm"));
            let x = self + normed.multi_head_attention(with.attention()).dropout(with.dropout);
            let normed = x.layer_norm(with.norm("pre_ffn_layer_norm"));
            x + with.feed_forward(normed, hidden).dropout(with.dropout)
        } else {
            let mixed = self.multi_head_attention(with.attention()).dropout(with.dropout);
            let x = (self + mixed).layer_norm(with.norm("post_att_layer_norm"));
            let wide = with.feed_forward(x, hidden).dropout(with.dropout);
            (x + wide).layer_norm(with.norm("post_ffn_layer_norm"))
        }
    }
}
