//! The code of README.md and docs/quick-start.md as one program:
//! `cargo run --release --example quick_start`.
//! `cargo xtask tidy` checks that the documents quote it.

use fleet::prelude::*;
use fleet_synth::{Ctr, CtrConfig};

/// Wide & deep, as README.md shows it.
fn wide_deep(batches: impl Iterator<Item = [Tensor; 3]>) -> Result<()> {
    let net = Net::new();
    let dense = net.data("dense", [-1, 13], DType::F32);
    let ids = net.data("ids", [-1, 26], DType::I64);
    let click = net.data("click", [-1, 1], DType::F32);

    let rows = ids.embedding(Embedding::new(1_000_000, 16).sparse().weight("table"));
    let mut deep = net.concat(&[rows.flatten(1), dense], 1);
    for width in [400, 400, 400] {
        deep = deep.fc(Fc::new(width).act(Act::Relu));
    }
    let logit = dense.fc(1) + deep.fc(1);
    let loss = logit.sigmoid_cross_entropy_with_logits(click).mean();

    let (table, rest) = net.backward(loss)?.partition(|name| name == "table");
    net.apply_gradients(Sgd::new(2.0), table)?;
    net.apply_gradients(Adam::new(1e-3), rest)?;

    let loss = loss.name();
    let mut session = Session::new(net.build()?, ExecOptions::default())?;
    for [dense, ids, click] in batches {
        let out = session.run(&[("dense", &dense), ("ids", &ids), ("click", &click)], &[&loss])?;
        println!("loss {}", out[0].item::<f32>()?);
    }
    Ok(())
}

/// The network, the loop and the files of docs/quick-start.md.
fn digits(batches: impl Iterator<Item = [Tensor; 2]>, folder: &std::path::Path) -> Result<()> {
    let net = Net::new();
    let image = net.data("image", [-1, 784], DType::F32); // -1: the batch
    let label = net.data("label", [-1, 1], DType::I64);
    let hidden = image.fc(Fc::new(128).act(Act::Relu)).dropout(0.1);
    let logits = hidden.fc(10);
    let loss = logits.cross_entropy(label); // softmax inside, mean
    let accuracy = logits.accuracy(label, 1);
    net.minimize(loss, Adam::new(1e-3).grad_clip(GradClip::GlobalNorm(1.0)))?;

    let (loss, accuracy) = (loss.name(), accuracy.name());
    let logits = logits.name();
    // Runs the startup program.
    let mut session = Session::new(net.build()?, ExecOptions::threads(2))?;
    for [image, label] in batches {
        let feed = [("image", &image), ("label", &label)];
        let out = session.run(&feed, &[&loss])?;
        println!("loss {}", out[0].item::<f32>()?);
        let out = session.evaluate(&feed, &[&accuracy])?;
        println!("accuracy {}", out[0].item::<f32>()?);
    }

    let [model, params, infer] = ["model", "params", "infer"].map(|name| folder.join(name));
    let main = &session.programs.main;
    fleet::save_persistables(&model, main, &session.scope)?; // parameters and optimizer state
    fleet::load_persistables(&model, main, &mut session.scope)?; // all or nothing
    fleet::load_vars(&model, main, &mut session.scope, &["fc_0.w_0"])?;
    fleet::save_params(&params, main, &session.scope)?; // parameters alone, without optimizer state
    fleet::load_params(&params, main, &mut session.scope)?;
    fleet::save_inference_model(&infer, main, &[&logits], &session.scope)?;
    Ok(())
}

/// Runs the programs of the pages for this many steps each.
pub fn train(steps: u64) -> Result<()> {
    let clicks = Ctr::new(CtrConfig::small())?;
    wide_deep((0..steps).map(|step| {
        let mut dense = vec![0.0; 64 * 13];
        let mut ids = vec![0; 64 * 26];
        let mut click = vec![0.0; 64];
        clicks.fill_batch(&mut dense, &mut ids, &mut click, step * 64).expect("sizes fit");
        [tensor(&dense, [64, 13]), tensor(&ids, [64, 26]), tensor(&click, [64, 1])]
    }))?;

    let folder = std::env::temp_dir().join(format!("fleet-quick-start-{}", std::process::id()));
    let batch = |step: i64| {
        let label: Vec<i64> = (0..32).map(|row| (row + step) % 10).collect();
        let image: Vec<f32> = (0..32 * 784)
            .map(|at| if at as i64 % 784 / 79 == label[at / 784] { 1.0 } else { 0.0 })
            .collect();
        [tensor(&image, [32, 784]), tensor(&label, [32, 1])]
    };
    let result = digits((0..steps as i64).map(batch), &folder);
    std::fs::remove_dir_all(&folder).ok();
    result
}

fn tensor<T: fleet::Element>(values: &[T], shape: [i64; 2]) -> Tensor {
    Tensor::from_slice(values, shape).expect("as many values as the shape has")
}

fn main() -> Result<()> {
    train(20)
}
