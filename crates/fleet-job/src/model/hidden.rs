//! Hidden layers, which most networks have.

use crate::job::ModelPart;
use fleet::nn::layers::{BatchNorm, Fc};
use fleet::nn::{Act, Var};

/// Layers of these sizes, with the activation, dropout and normalization of hidden layers.
pub fn layers<'n>(mut x: Var<'n>, model: &ModelPart, sizes: &[i64], name: &str) -> Var<'n> {
    // The schema lists the same names.
    let act: Act = model.activation.parse().unwrap_or(Act::Relu);
    for (index, size) in sizes.iter().enumerate() {
        let layer = Fc::new(*size).name(format!("{name}hidden_{index}"));
        x = match model.has_batch_norm {
            true => {
                let norm = BatchNorm::new().name(format!("{name}norm_{index}"));
                x.fc(layer).batch_norm(norm).act(act)
            }
            false => x.fc(layer.act(act)),
        };
        if model.dropout > 0.0 {
            x = x.dropout(model.dropout);
        }
    }
    x
}
