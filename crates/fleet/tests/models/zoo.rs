//! Every model of the zoo at a small size, each with three batches of random input.

use fleet::nn::Programs;
use fleet::nn::models::*;
use fleet::prelude::*;
use fleet::rng::Sequence;

pub type Batch = Vec<(&'static str, Tensor)>;

/// A model ready for training.
pub struct Model {
    pub name: &'static str,
    pub programs: Programs,
    pub loss: String,
    /// Variables to fetch in evaluation.
    pub outputs: Vec<String>,
    pub batches: Vec<Batch>,
    /// Initial value of the shifts of batch norms.
    pub shift: f32,
}

pub const STEPS: usize = 3;

/// Returns a batch as a feed list.
pub fn feed(batch: &Batch) -> Vec<(&str, &Tensor)> {
    batch.iter().map(|(name, tensor)| (*name, tensor)).collect()
}

impl Model {
    fn new(
        name: &'static str,
        net: &Net,
        loss: String,
        outputs: Vec<String>,
        draw: impl Fn(&mut Sequence) -> Batch,
    ) -> Model {
        let mut rng = Sequence::new(103, 0);
        let batches = (0..STEPS).map(|_| draw(&mut rng)).collect();
        Model { name, programs: net.build().unwrap(), loss, outputs, batches, shift: 0.0 }
    }
}

fn floats(rng: &mut Sequence, shape: &[i64]) -> Tensor {
    let values: Vec<f32> = (0..count(shape)).map(|_| rng.normal() as f32).collect();
    Tensor::from_slice(&values, Shape::new(shape).unwrap()).unwrap()
}

fn ids(rng: &mut Sequence, shape: &[i64], bound: u64) -> Tensor {
    let values: Vec<i64> = (0..count(shape)).map(|_| rng.below(bound) as i64).collect();
    Tensor::from_slice(&values, Shape::new(shape).unwrap()).unwrap()
}

fn clicks(rng: &mut Sequence, rows: i64) -> Tensor {
    let values: Vec<f32> = (0..rows).map(|_| rng.below(2) as f32).collect();
    Tensor::from_slice(&values, [rows, 1]).unwrap()
}

fn count(shape: &[i64]) -> i64 {
    shape.iter().product()
}

fn seeded() -> Net {
    let net = Net::new();
    net.set_seed(3);
    net
}

fn images(
    name: &'static str,
    net: &Net,
    model: &ImageClassifier<'_>,
    optimizer: OptimizerDesc,
) -> (&'static str, String, Vec<String>) {
    net.minimize(model.loss, optimizer).unwrap();
    let outputs = vec![model.logits.name(), model.loss.name(), model.acc1.name()];
    (name, model.loss.name(), outputs)
}

fn image_batch(rows: i64, channels: i64, size: i64) -> impl Fn(&mut Sequence) -> Batch {
    move |rng| {
        let x = floats(rng, &[rows, channels, size, size]);
        vec![("x", x), ("y", ids(rng, &[rows, 1], 10))]
    }
}

pub fn lenet() -> Model {
    let net = seeded();
    let model = fleet::nn::models::lenet(&net, 10);
    let (name, loss, outputs) = images("lenet", &net, &model, Adam::new(1e-3).epsilon(1e-4).into());
    Model::new(name, &net, loss, outputs, image_batch(8, 1, 28))
}

pub fn resnet18() -> Model {
    residual("resnet18", 18, 0.01, 2.0)
}

pub fn resnet50() -> Model {
    residual("resnet50", 50, 0.001, 3.0)
}

/// A network with a branch inside a branch, and images before, in and after them. A batch's mean
/// decides which branch it takes.
pub fn forked() -> Model {
    let net = seeded();
    let (x, y) = (net.data("x", [-1, 3, 12, 12], DType::F32), net.data("y", [-1, 1], DType::I64));
    let stem = x.conv2d(Conv2d::new(64, 3).padding(1).act(Act::Relu));
    let deep = || {
        let hidden = stem.conv2d(Conv2d::new(64, 3).padding(1)).batch_norm(BatchNorm::new()).relu();
        let scaled = || hidden * 0.5;
        let again = || hidden.conv2d(Conv2d::new(64, 1)) + stem;
        net.cond(x.mean().less_than(2.0), scaled, again)
    };
    let image = net.cond(x.mean().greater_than(0.0), deep, || stem * stem.sigmoid());
    let logits = (image + stem).pool2d(Pool2d::avg(12)).flatten(1).fc(10);
    let loss = logits.cross_entropy(y);
    net.minimize(loss, Momentum::new(0.01, 0.9).grad_clip(GradClip::GlobalNorm(5.0))).unwrap();
    let outputs = vec![logits.name(), loss.name()];
    let mut model = Model::new("forked", &net, loss.name(), outputs, image_batch(4, 3, 12));
    // Each path is taken once.
    for ((_, x), shift) in model.batches.iter_mut().map(|batch| &mut batch[0]).zip([1.0, 3.0, -1.0])
    {
        x.as_mut_slice::<f32>().unwrap().iter_mut().for_each(|value| *value += shift);
    }
    model
}

/// Depthwise convolutions after relus: one keeps the size, one halves it.
pub fn depthwise() -> Model {
    let net = seeded();
    let (x, y) = (net.data("x", [-1, 3, 16, 16], DType::F32), net.data("y", [-1, 1], DType::I64));
    let apart = |channels| Conv2d::new(channels, 3).groups(channels).padding(1);
    let stem = x.conv2d(Conv2d::new(16, 3).padding(1).act(Act::Relu));
    let kept =
        stem.conv2d(apart(16)).batch_norm(BatchNorm::new()).conv2d(Conv2d::new(32, 1)).relu();
    let kept =
        (0..3).fold(kept, |x, _| x.conv2d(apart(32)).relu().conv2d(Conv2d::new(32, 1)).relu());
    let logits =
        kept.conv2d(apart(32).stride(2)).relu().pool2d(Pool2d::global_avg()).flatten(1).fc(10);
    let loss = logits.cross_entropy(y);
    net.minimize(loss, Momentum::new(0.01, 0.9)).unwrap();
    let outputs = vec![logits.name(), loss.name()];
    Model::new("depthwise", &net, loss.name(), outputs, image_batch(4, 3, 16))
}

/// Builds a ResNet. Freshly initialised batch norms amplify rounding until the sign of a relu's
/// input flips. Shifts of some standard deviations leave few values near zero.
fn residual(name: &'static str, layers: u32, rate: f64, shift: f32) -> Model {
    let net = seeded();
    let model = resnet(&net, &ResNetConfig { layers, classes: 10, size: 64 });
    let optimizer = Momentum::new(rate, 0.9).weight_decay(Regularizer::L2(1e-4));
    let (name, loss, outputs) = images(name, &net, &model, optimizer.into());
    let model = Model::new(name, &net, loss, outputs, image_batch(4, 3, 64));
    Model { shift, ..model }
}

pub fn vgg() -> Model {
    let net = seeded();
    let config = VggConfig { classes: 10, size: 32, hidden: 64, ..VggConfig::new(16) };
    let model = fleet::nn::models::vgg(&net, &config);
    let optimizer = Momentum::new(0.01, 0.9).use_nesterov(true);
    let (name, loss, outputs) = images("vgg", &net, &model, optimizer.into());
    Model::new(name, &net, loss, outputs, image_batch(4, 3, 32))
}

fn small_bert() -> BertConfig {
    BertConfig {
        vocabulary: 60,
        hidden: 32,
        layers: 2,
        heads: 2,
        ffn: 64,
        length: 12,
        positions: 16,
        ..BertConfig::base()
    }
}

fn encoder_batch(rng: &mut Sequence, rows: i64, length: i64) -> Batch {
    // Each sequence has a random length and is padded after it.
    let lengths: Vec<i64> = (0..rows).map(|_| length - rng.below(6) as i64).collect();
    let mask: Vec<f32> = (0..rows * length)
        .map(|at| f32::from(u8::from(at % length < lengths[(at / length) as usize])))
        .collect();
    vec![
        ("src_ids", ids(rng, &[rows, length], 60)),
        ("sent_ids", ids(rng, &[rows, length], 2)),
        ("input_mask", Tensor::from_slice(&mask, [rows, length]).unwrap()),
    ]
}

pub fn bert() -> Model {
    let net = seeded();
    let model = bert_tokens(&net, &small_bert(), 7);
    let clip = GradClip::GlobalNorm(1.0);
    let optimizer = AdamW::new(1e-3).epsilon(1e-4).coeff(0.01).grad_clip(clip);
    net.minimize(model.loss, optimizer).unwrap();
    let outputs = vec![model.logits.name(), model.loss.name()];
    Model::new("bert", &net, model.loss.name(), outputs, |rng| {
        let mut batch = encoder_batch(rng, 6, 12);
        batch.push(("labels", ids(rng, &[6, 12], 7)));
        batch
    })
}

pub fn bert_masked() -> Model {
    let net = seeded();
    let model = bert_mlm(&net, &small_bert());
    net.minimize(model.loss, Lamb::new(0.01).epsilon(1e-4)).unwrap();
    let outputs = vec![model.logits.name(), model.loss.name()];
    Model::new("bert_masked", &net, model.loss.name(), outputs, |rng| {
        let mut batch = encoder_batch(rng, 6, 12);
        batch.push(("mask_pos", ids(rng, &[9, 1], 72)));
        batch.push(("mask_label", ids(rng, &[9, 1], 60)));
        batch
    })
}

pub fn gpt() -> Model {
    let net = seeded();
    let config = GptConfig {
        vocabulary: 50,
        hidden: 32,
        layers: 2,
        heads: 2,
        ffn: 64,
        length: 10,
        ..GptConfig::small()
    };
    let model = fleet::nn::models::gpt(&net, &config);
    let schedule = LrSchedule::cosine(1e-3, 10).warmup(2, 0.0, 1e-3);
    net.minimize(model.loss, AdamW::new(schedule).epsilon(1e-4)).unwrap();
    let outputs = vec![model.logits.name(), model.loss.name()];
    Model::new("gpt", &net, model.loss.name(), outputs, |rng| {
        vec![("tokens", ids(rng, &[4, 10], 50)), ("labels", ids(rng, &[4, 10], 50))]
    })
}

fn click_batch(rng: &mut Sequence) -> Batch {
    vec![
        ("dense_input", floats(rng, &[32, 4])),
        ("sparse_input", ids(rng, &[32, 5], 100)),
        ("label", clicks(rng, 32)),
    ]
}

pub fn wide_deep() -> Model {
    wide_deep_by("wide_deep", Sgd::new(0.5))
}

pub fn wide_deep_adagrad() -> Model {
    wide_deep_by("wide_deep_adagrad", Adagrad::new(0.01))
}

/// Builds the model with a separate update rule for the table.
fn wide_deep_by(name: &'static str, rule: impl Into<OptimizerDesc>) -> Model {
    let net = seeded();
    let config = WideDeepConfig {
        numbers: 4,
        slots: 5,
        vocabulary: 100,
        width: 8,
        hidden: vec![32, 16],
        ..WideDeepConfig::criteo()
    };
    let model = fleet::nn::models::wide_deep(&net, &config);
    let gradients = net.backward(model.loss).unwrap();
    let (table, rest) = gradients.partition(|name| name == "table");
    net.apply_gradients(rule, table).unwrap();
    net.apply_gradients(Adam::new(1e-3).epsilon(1e-4), rest).unwrap();
    let outputs = vec![model.prediction.name(), model.loss.name()];
    Model::new(name, &net, model.loss.name(), outputs, click_batch)
}

pub fn deepfm() -> Model {
    let net = seeded();
    let config = DeepFmConfig {
        numbers: 4,
        slots: 5,
        vocabulary: 100,
        width: 6,
        hidden: vec![32, 16],
        ..DeepFmConfig::criteo()
    };
    let model = fleet::nn::models::deepfm(&net, &config);
    net.minimize(model.loss, Adam::new(1e-3).epsilon(1e-4).lazy_mode(true)).unwrap();
    let outputs = vec![model.prediction.name(), model.loss.name()];
    Model::new("deepfm", &net, model.loss.name(), outputs, click_batch)
}

pub fn word2vec() -> Model {
    let net = seeded();
    let config = Word2VecConfig { vocabulary: 80, width: 8, negatives: 3 };
    let model = fleet::nn::models::word2vec(&net, &config);
    net.minimize(model.loss, Adagrad::new(0.1)).unwrap();
    let outputs = vec![model.logits.name(), model.loss.name()];
    Model::new("word2vec", &net, model.loss.name(), outputs, |rng| {
        vec![
            ("center", ids(rng, &[24, 1], 80)),
            ("context", ids(rng, &[24, 1], 80)),
            ("negatives", ids(rng, &[24, 3], 80)),
        ]
    })
}
