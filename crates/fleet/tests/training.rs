//! Training reaches the known optimum of generated data, with the same result in every run.

use fleet::nn::models::{WideDeepConfig, Word2VecConfig, lenet, wide_deep, word2vec};
use fleet::prelude::*;
use fleet_synth::{Ctr, CtrConfig, Digits, IMAGE_PIXELS, Text, TextConfig, auc_exact};

/// Returns a learning rate that falls linearly to zero.
fn linear_decay(rate: f64, steps: u64) -> LrSchedule {
    LrSchedule::Polynomial {
        learning_rate: rate,
        decay_steps: steps as f64,
        end: 0.0,
        power: 1.0,
        cycle: false,
    }
}

#[test]
fn lenet_reads_digits() -> Result<()> {
    const BATCH: usize = 32;
    const STEPS: u64 = 500;
    const TESTED: usize = 2000;
    let net = Net::new();
    net.set_seed(1);
    let model = lenet(&net, 10);
    net.minimize(model.loss, Adam::new(1e-3))?;
    let accuracy = model.acc1.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;
    let digits = Digits::new(1);
    let mut x = Tensor::zeros(DType::F32, [BATCH as i64, 1, 28, 28])?;
    let mut y = Tensor::zeros(DType::I64, [BATCH as i64, 1])?;
    for step in 0..STEPS {
        digits.fill_batch_f32(x.as_mut_slice()?, y.as_mut_slice()?, step * BATCH as u64)?;
        session.run(&[("x", &x), ("y", &y)], &[])?;
    }
    let mut images = vec![0.0f32; TESTED * IMAGE_PIXELS];
    let mut labels = vec![0i64; TESTED];
    digits.fill_batch_f32(&mut images, &mut labels, 1_000_000)?;
    let x = Tensor::from_slice(&images, [TESTED as i64, 1, 28, 28])?;
    let y = Tensor::from_slice(&labels, [TESTED as i64, 1])?;
    let right: f32 = session.evaluate(&[("x", &x), ("y", &y)], &[&accuracy])?[0].item()?;
    println!("{:.2} % of digits classified correctly", 100.0 * right);
    assert!(right > 0.97, "{right}");
    Ok(())
}

#[test]
fn wide_deep_reaches_the_best_area() -> Result<()> {
    const BATCH: usize = 512;
    const STEPS: u64 = 300_000 / BATCH as u64;
    const TESTED: usize = 200_000;
    const TEST_BATCH: usize = 10_000;
    const FIRST_TESTED: u64 = 10_000_000;
    let clicks = Ctr::new(CtrConfig::tiny())?;
    let net = Net::new();
    net.set_seed(1);
    let config = WideDeepConfig {
        vocabulary: clicks.row_count() as i64,
        auc: false,
        ..WideDeepConfig::criteo()
    };
    let model = wide_deep(&net, &config);
    let (table, rest) = net.backward(model.loss)?.partition(|name| name == "table");
    net.apply_gradients(Sgd::new(linear_decay(4.0, STEPS)), table)?;
    net.apply_gradients(Adam::new(linear_decay(2e-3, STEPS)), rest)?;
    let prediction = model.prediction.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    let inputs = |rows: usize| -> Result<[Tensor; 3]> {
        let rows = rows as i64;
        let dense = Tensor::zeros(DType::F32, [rows, 13])?;
        let ids = Tensor::zeros(DType::I64, [rows, 26])?;
        Ok([dense, ids, Tensor::zeros(DType::F32, [rows, 1])?])
    };
    let fill = |to: &mut [Tensor; 3], first: u64| -> Result<()> {
        let [dense, ids, label] = to;
        let (dense, ids) = (dense.as_mut_slice()?, ids.as_mut_slice()?);
        clicks.fill_batch(dense, ids, label.as_mut_slice()?, first)
    };
    let mut batch = inputs(BATCH)?;
    for step in 0..STEPS {
        fill(&mut batch, step * BATCH as u64)?;
        let [dense, ids, label] = &batch;
        let feed = [("dense_input", dense), ("sparse_input", ids), ("label", label)];
        session.run(&feed, &[])?;
    }

    let (mut scores, mut labels) = (Vec::new(), Vec::new());
    let mut batch = inputs(TEST_BATCH)?;
    for at in (0..TESTED).step_by(TEST_BATCH) {
        fill(&mut batch, FIRST_TESTED + at as u64)?;
        let [dense, ids, label] = &batch;
        let feed = [("dense_input", dense), ("sparse_input", ids)];
        let out = session.evaluate(&feed, &[&prediction])?;
        scores.extend(out[0].to_vec::<f32>()?);
        labels.extend(label.to_vec::<f32>()?);
    }
    let reached = auc_exact(&scores, &labels)?;
    let mut truth = vec![0.0; TESTED];
    clicks.fill_probabilities(&mut truth, FIRST_TESTED);
    let best = auc_exact(&truth, &labels)?;
    println!("area {reached:.4}, the best is {best:.4}");
    // The area that the true probabilities reach on these samples.
    assert!((best - 0.80).abs() < 0.002, "{best}");
    assert!(reached > best - 0.005, "{reached} of {best}");
    assert!(reached < best, "better than the truth: {reached} of {best}");
    Ok(())
}

#[test]
fn word2vec_reaches_the_best_loss() -> Result<()> {
    const BATCH: usize = 1024;
    const STEPS: u64 = 2000;
    const TESTED: usize = 200_000;
    let text = Text::new(TextConfig::tiny())?;
    let net = Net::new();
    net.set_seed(1);
    let model = word2vec(&net, &Word2VecConfig { width: 16, ..Word2VecConfig::new(500) });
    net.minimize(model.loss, Adagrad::new(linear_decay(0.2, STEPS)))?;
    let loss = model.loss.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;
    let pairs = |to: &mut [Tensor; 3], first: u64| -> Result<()> {
        let [center, context, negatives] = to;
        let (center, context) = (center.as_mut_slice()?, context.as_mut_slice()?);
        text.fill_pairs(center, context, negatives.as_mut_slice()?, first)
    };
    let inputs = |rows: usize| -> Result<[Tensor; 3]> {
        let ids = |width| Tensor::zeros(DType::I64, [rows as i64, width]);
        Ok([ids(1)?, ids(1)?, ids(5)?])
    };
    let mut batch = inputs(BATCH)?;
    for step in 0..STEPS {
        pairs(&mut batch, step * BATCH as u64)?;
        let [center, context, negatives] = &batch;
        let feed = [("center", center), ("context", context), ("negatives", negatives)];
        session.run(&feed, &[])?;
    }
    let mut tested = inputs(TESTED)?;
    pairs(&mut tested, 1 << 40)?;
    let [center, context, negatives] = &tested;
    let feed = [("center", center), ("context", context), ("negatives", negatives)];
    let reached: f32 = session.evaluate(&feed, &[&loss])?[0].item()?;
    // The loss of the true model on these pairs.
    let (mut truth, terms) = (0.0, |tensor: &Tensor| tensor.to_vec::<i64>());
    let (center, context, negatives) = (terms(center)?, terms(context)?, terms(negatives)?);
    let softplus = |x: f64| x.max(0.0) + (-x.abs()).exp().ln_1p();
    for (row, center) in center.iter().enumerate() {
        truth += softplus(-text.true_log_odds(*center, context[row])?);
        for noise in &negatives[5 * row..][..5] {
            truth += softplus(text.true_log_odds(*center, *noise)?);
        }
    }
    let truth = truth / TESTED as f64;
    let best = text.best_skip_gram_loss();
    println!("loss {reached:.4}; the truth's {truth:.4} here, {best:.4} in the long run");
    assert!((best - 2.0753).abs() < 1e-4, "{best}");
    assert!((f64::from(reached) - truth).abs() < 0.005, "{reached}, the best is {truth}");
    Ok(())
}

#[test]
fn training_is_a_function_of_the_seed() -> Result<()> {
    let train = |seed: u64, threads: usize| -> Result<Vec<u8>> {
        let net = Net::new();
        net.set_seed(seed);
        let model = word2vec(&net, &Word2VecConfig { width: 8, ..Word2VecConfig::new(500) });
        net.minimize(model.loss, Adagrad::new(0.2))?;
        let mut session = Session::new(net.build()?, ExecOptions::threads(threads))?;
        let text = Text::new(TextConfig::tiny())?;
        let ids = |width| Tensor::zeros(DType::I64, [64, width]);
        let (mut center, mut context, mut negatives) = (ids(1)?, ids(1)?, ids(5)?);
        for step in 0..20 {
            let noise = negatives.as_mut_slice()?;
            text.fill_pairs(center.as_mut_slice()?, context.as_mut_slice()?, noise, step * 64)?;
            let feed = [("center", &center), ("context", &context), ("negatives", &negatives)];
            session.run(&feed, &[])?;
        }
        Ok(session.scope.tensor("emb")?.as_bytes().to_vec())
    };
    assert_eq!(train(1, 1)?, train(1, 2)?);
    assert_ne!(train(1, 2)?, train(2, 2)?);
    Ok(())
}

/// Two towers over one table, written by hand: norms, dropout, a schedule with warm-up, and
/// gradient clipping.
#[test]
fn two_towers_find_hidden_tastes() -> Result<()> {
    const BATCH: usize = 256;
    const STEPS: u64 = 1500;
    const TESTED: usize = 20_000;
    const PEOPLE: u64 = 200;
    let mut rng = fleet::rng::Sequence::new(3, 0);
    let tastes: Vec<f64> = (0..2 * PEOPLE * 4).map(|_| rng.normal()).collect();
    let taste = |id: u64| &tastes[id as usize * 4..][..4];
    let mut draw = |rows: usize| -> Result<(Tensor, Tensor, Vec<f32>, Vec<f32>)> {
        let (mut users, mut items) = (Vec::new(), Vec::new());
        let (mut labels, mut truth) = (Vec::new(), Vec::new());
        for _ in 0..rows {
            let (user, item) = (rng.below(PEOPLE), PEOPLE + rng.below(PEOPLE));
            let fit: f64 = taste(user).iter().zip(taste(item)).map(|(a, b)| a * b).sum();
            let chance = 1.0 / (1.0 + (-fit).exp());
            labels.push(f32::from(rng.unit() < chance));
            truth.push(chance as f32);
            users.push(user as i64);
            items.push(item as i64);
        }
        let shape = [rows as i64, 1];
        Ok((Tensor::from_slice(&users, shape)?, Tensor::from_slice(&items, shape)?, labels, truth))
    };

    let net = Net::new();
    net.set_seed(1);
    let click = net.data("click", [-1, 1], DType::F32);
    let tower = |name: &str| {
        let rows = Embedding::new(2 * PEOPLE, 16).sparse().weight("table");
        let ids = net.data(name, [-1, 1], DType::I64);
        let hidden = ids.embedding(rows).flatten(1).fc(Fc::new(32).act(Act::Relu));
        hidden.layer_norm(LayerNorm::last()).dropout(0.1).fc(16)
    };
    let logit = (tower("user") * tower("item")).reduce_sum([1], true);
    let loss = logit.sigmoid_cross_entropy_with_logits(click).mean();
    let schedule = LrSchedule::cosine(0.01, STEPS).warmup(STEPS / 10, 0.0, 0.01);
    net.minimize(loss, Adam::new(schedule).grad_clip(GradClip::GlobalNorm(1.0)))?;
    let chance = logit.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;
    for _ in 0..STEPS {
        let (user, item, labels, _) = draw(BATCH)?;
        let click = Tensor::from_slice(&labels, [BATCH as i64, 1])?;
        session.run(&[("user", &user), ("item", &item), ("click", &click)], &[])?;
    }

    let (user, item, labels, truth) = draw(TESTED)?;
    let scores = session.evaluate(&[("user", &user), ("item", &item)], &[&chance])?;
    let reached = auc_exact(&scores[0].to_vec::<f32>()?, &labels)?;
    let best = auc_exact(&truth, &labels)?;
    println!("area {reached:.4}, the best is {best:.4}");
    assert!(reached > best - 0.03, "{reached} of {best}");
    Ok(())
}
