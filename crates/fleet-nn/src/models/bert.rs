//! BERT: an encoder, a masked-word head, and a head that classifies each token.

use crate::prelude::*;

/// Sizes of an encoder.
///
/// ```
/// use fleet_nn::models::BertConfig;
/// assert_eq!(BertConfig::base().hidden, 768);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct BertConfig {
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
    /// Number of position embeddings, at least `length`.
    pub positions: i64,
    /// Number of sentence types; 0 disables their embedding.
    pub sentence_types: i64,
    /// Whether sequences are padded. `input_mask` then marks the real tokens.
    pub padded: bool,
    /// Dropout probability of embeddings, layers and attention weights.
    pub dropout: f64,
    /// Standard deviation of initial weights.
    pub initializer_range: f64,
    /// Epsilon of the layer norms.
    pub epsilon: f64,
}

impl BertConfig {
    /// Returns the sizes of BERT base: 12 layers of width 768.
    pub fn base() -> BertConfig {
        BertConfig {
            vocabulary: 30522,
            hidden: 768,
            layers: 12,
            heads: 12,
            ffn: 3072,
            length: 128,
            positions: 512,
            sentence_types: 2,
            padded: true,
            dropout: 0.1,
            initializer_range: 0.02,
            epsilon: 1e-12,
        }
    }

    /// Returns the sizes of BERT large: 24 layers of width 1024.
    pub fn large() -> BertConfig {
        BertConfig { hidden: 1024, layers: 24, heads: 16, ffn: 4096, ..BertConfig::base() }
    }

    fn init(&self) -> Init {
        Init::truncated_normal(0.0, self.initializer_range)
    }

    fn attr(&self, name: &str) -> ParamAttr {
        ParamAttr::from(name).init(self.init())
    }
}

/// Inputs and outputs of an encoder.
#[derive(Clone, Debug)]
pub struct Encoder<'n> {
    /// `src_ids`: `[batch, length]`.
    pub tokens: Var<'n>,
    /// `sent_ids`, if there are sentence types.
    pub sentences: Option<Var<'n>>,
    /// `input_mask`: `[batch, length]`, 1 for a token and 0 for padding.
    pub mask: Option<Var<'n>>,
    /// `[batch, length, hidden]`.
    pub output: Var<'n>,
    /// Output of each layer; these are suitable checkpoints for recompute.
    pub layers: Vec<Var<'n>>,
}

/// Builds the embeddings and transformer layers. Ranks may divide the layers and the vocabulary
/// (`mp_degree`).
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{BertConfig, bert_encoder};
/// let net = Net::new();
/// let encoder = bert_encoder(&net, &BertConfig { layers: 2, ..BertConfig::base() });
/// assert_eq!(encoder.output.shape(), Shape::from([-1, 128, 768]));
/// ```
pub fn bert_encoder<'n>(net: &'n Net, config: &BertConfig) -> Encoder<'n> {
    let BertConfig { hidden, length, .. } = *config;
    let tokens = net.data("src_ids", [-1, length], DType::I64);
    let words = Embedding::new(config.vocabulary, hidden).weight(config.attr("word_embedding"));
    let mut x = tokens.embedding(words.split_vocabulary());

    let shape = [config.positions, hidden];
    let positions = net.create_parameter(shape, DType::F32, config.attr("pos_embedding"));
    let whole = config.positions == length;
    x = x + if whole { positions } else { positions.slice([0], [0], [length]) };

    let sentences = (config.sentence_types > 0).then(|| {
        let ids = net.data("sent_ids", [-1, length], DType::I64);
        let types = Embedding::new(config.sentence_types, hidden);
        (ids, ids.embedding(types.weight(config.attr("sent_embedding"))))
    });
    if let Some((_, rows)) = sentences {
        x = x + rows;
    }
    x = x.layer_norm(LayerNorm::last().epsilon(config.epsilon).name("pre_encoder_layer_norm"));
    x = x.dropout(config.dropout);

    let mask = config.padded.then(|| net.data("input_mask", [-1, length], DType::F32));
    let bias = mask.map(|mask| ((mask - 1.0) * 1e4).unsqueeze([1, 2]));
    let mut layers = Vec::with_capacity(config.layers);
    for index in 0..config.layers {
        let mut layer = TransformerLayer::new(config.heads, config.ffn)
            .dropout(config.dropout)
            .attention_dropout(config.dropout)
            .epsilon(config.epsilon)
            .split()
            .init(config.init())
            .name(format!("encoder_layer_{index}"));
        layer.mask = bias;
        x = x.transformer_layer(layer);
        layers.push(x);
    }
    Encoder { tokens, sentences: sentences.map(|(ids, _)| ids), mask, output: x, layers }
}

/// Inputs and outputs of an encoder that classifies each token.
#[derive(Clone, Debug)]
pub struct TokenClassifier<'n> {
    /// The encoder below the head.
    pub encoder: Encoder<'n>,
    /// `labels`: `[batch, length]`; -100 for tokens to ignore.
    pub labels: Var<'n>,
    /// `[batch, length, classes]`.
    pub logits: Var<'n>,
    /// Mean cross entropy over the tokens that are not ignored.
    pub loss: Var<'n>,
}

/// Builds an encoder that classifies each token.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{BertConfig, bert_tokens};
/// let net = Net::new();
/// let model = bert_tokens(&net, &BertConfig { layers: 1, ..BertConfig::base() }, 9);
/// net.minimize(model.loss, AdamW::new(1e-4).coeff(0.01))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub fn bert_tokens<'n>(net: &'n Net, config: &BertConfig, classes: i64) -> TokenClassifier<'n> {
    let encoder = bert_encoder(net, config);
    let logits = encoder.output.linear(Linear::new(classes).weight(config.init()));
    let labels = net.data("labels", [-1, config.length], DType::I64);
    let flat = (logits.reshape([-1, classes]), labels.reshape([-1, 1]));
    let loss = flat.0.cross_entropy_with(flat.1, CrossEntropy::new().ignore_index(-100));
    TokenClassifier { encoder, labels, logits, loss }
}

/// Inputs and outputs of an encoder that predicts masked words.
#[derive(Clone, Debug)]
pub struct BertMlm<'n> {
    /// The encoder below the head.
    pub encoder: Encoder<'n>,
    /// `mask_pos`: `[masked, 1]`, positions in the flattened batch.
    pub positions: Var<'n>,
    /// `mask_label`: `[masked, 1]`, the masked words.
    pub labels: Var<'n>,
    /// `[masked, vocabulary]`.
    pub logits: Var<'n>,
    /// Mean cross entropy over the masked words.
    pub loss: Var<'n>,
}

/// Builds an encoder that predicts masked words. The output layer shares the word embedding.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{BertConfig, bert_mlm};
/// let net = Net::new();
/// let model = bert_mlm(&net, &BertConfig { layers: 1, ..BertConfig::base() });
/// assert_eq!(model.logits.shape(), Shape::from([-1, 30522]));
/// ```
pub fn bert_mlm<'n>(net: &'n Net, config: &BertConfig) -> BertMlm<'n> {
    let encoder = bert_encoder(net, config);
    let positions = net.data("mask_pos", [-1, 1], DType::I64);
    let labels = net.data("mask_label", [-1, 1], DType::I64);
    let hidden = config.hidden;
    let masked = encoder.output.reshape([-1, hidden]).gather(positions.reshape([-1]));
    let transform = Fc::new(hidden).act(Act::Gelu).weight(config.init()).name("mask_lm_trans_fc");
    let norm = LayerNorm::last().epsilon(config.epsilon).name("mask_lm_trans_layer_norm");
    let words = masked.fc(transform).layer_norm(norm);
    let bias = ParamAttr::from("mask_lm_out_fc.b_0").init(Init::Constant(0.0));
    let bias = bias.split(0);
    let bias = net.create_parameter([config.vocabulary], DType::F32, bias);
    let logits = words.matmul_transposed(net.var("word_embedding"), false, true) + bias;
    let loss = logits.cross_entropy(labels);
    BertMlm { encoder, positions, labels, logits, loss }
}
