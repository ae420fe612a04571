//! Wide & deep, written out: `cargo run --example wide_deep` prints its training program.

use fleet_nn::prelude::*;

fn main() -> Result<(), fleet_nn::Error> {
    let net = Net::new();
    let dense = net.data("dense_input", [-1, 13], DType::F32);
    let ids = net.data("sparse_input", [-1, 26], DType::I64);
    let label = net.data("label", [-1, 1], DType::F32);

    let table = ParamAttr::from("table").init(Init::uniform(-0.01, 0.01));
    let rows = ids.embedding(Embedding::new(1_000_000, 16).sparse().weight(table));
    let mut deep = net.concat(&[rows.flatten(1), dense], 1);
    for _ in 0..3 {
        deep = deep.fc(Fc::new(400).act(Act::Relu));
    }
    let logit = dense.fc(1) + deep.fc(1);
    let loss = logit.sigmoid_cross_entropy_with_logits(label).mean();
    let auc = logit.sigmoid().auc(label.cast(DType::I64), Auc::new());

    let (table, rest) = net.backward(loss)?.partition(|name| name == "table");
    net.apply_gradients(Adagrad::new(0.01), table)?;
    net.apply_gradients(Adam::new(1e-3).grad_clip(GradClip::GlobalNorm(10.0)), rest)?;

    let programs = net.build()?;
    println!("{}\n# fetch {} and {}", programs.main, loss.name(), auc.auc.name());
    Ok(())
}
