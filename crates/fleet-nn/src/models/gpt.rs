//! GPT: a decoder that predicts the next token.

use crate::prelude::*;

/// Sizes of a decoder.
///
/// ```
/// use fleet_nn::models::GptConfig;
/// assert_eq!(GptConfig::small().layers, 12);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct GptConfig {
    /// Number of words.
    pub vocabulary: i64,
    /// Width of a token.
    pub hidden: i64,
    /// Number of transformer layers.
    pub layers: usize,
    /// Number of attention heads per layer.
    pub heads: i64,
    /// Width of the feed-forward nets.
    pub ffn: i64,
    /// Number of tokens per sequence.
    pub length: i64,
    /// Dropout probability of embeddings, layers and attention weights.
    pub dropout: f64,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
}

impl GptConfig {
    /// Returns the sizes of GPT-2 small: 12 layers of width 768, 124,439,808 parameters at length
    /// 1024.
    pub fn small() -> GptConfig {
        GptConfig {
            vocabulary: 50257,
            hidden: 768,
            layers: 12,
            heads: 12,
            ffn: 3072,
            length: 1024,
            dropout: 0.1,
            initializer_range: 0.02,
        }
    }
}

/// Inputs and outputs of a decoder.
#[derive(Clone, Debug)]
pub struct Gpt<'n> {
    /// `tokens`: `[batch, length]`.
    pub tokens: Var<'n>,
    /// `labels`: `[batch, length]`, the next token of each position.
    pub labels: Var<'n>,
    /// `[batch * length, vocabulary]`.
    pub logits: Var<'n>,
    /// Mean cross entropy over all tokens.
    pub loss: Var<'n>,
    /// Output of each layer; these are suitable checkpoints for recompute.
    pub layers: Vec<Var<'n>>,
}

/// Builds the model. The output layer shares the word embedding. Ranks may divide its layers and
/// its vocabulary (`mp_degree`).
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{GptConfig, gpt};
/// let net = Net::new();
/// let model = gpt(&net, &GptConfig { layers: 2, length: 64, ..GptConfig::small() });
/// net.minimize(model.loss, AdamW::new(1e-4).grad_clip(GradClip::GlobalNorm(1.0)))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub fn gpt<'n>(net: &'n Net, config: &GptConfig) -> Gpt<'n> {
    let GptConfig { vocabulary, hidden, length, dropout, .. } = *config;
    let init = Init::normal(0.0, config.initializer_range);
    let attr = |name: &str| ParamAttr::from(name).init(init.clone());
    let tokens = net.data("tokens", [-1, length], DType::I64);
    let labels = net.data("labels", [-1, length], DType::I64);

    let table = Embedding::new(vocabulary, hidden).weight(attr("word_embedding"));
    let words = tokens.embedding(table.split_vocabulary());
    let positions = net.create_parameter([length, hidden], DType::F32, attr("pos_embedding"));
    let mut x = (words + positions).dropout(dropout);
    let mut layers = Vec::with_capacity(config.layers);
    for index in 0..config.layers {
        let layer = TransformerLayer::new(config.heads, config.ffn)
            .pre_norm()
            .causal()
            .act(Act::GeluTanh)
            .dropout(dropout)
            .attention_dropout(dropout)
            .split()
            .init(init.clone())
            .name(format!("decoder_layer_{index}"));
        x = x.transformer_layer(layer);
        layers.push(x);
    }
    let last = x.layer_norm(LayerNorm::last().name("final_layer_norm")).reshape([-1, hidden]);
    let logits = last.matmul_transposed(net.var("word_embedding"), false, true);
    let loss = logits.cross_entropy(labels.reshape([-1, 1]));
    Gpt { tokens, labels, logits, loss, layers }
}
