//! The networks over the features.

use super::hidden::layers;
use super::inputs::{Inputs, width};
use super::mmoe;
use crate::features::Features;
use crate::job::{Job, ModelKind, ModelPart, Side};
use fleet::DType;
use fleet::nn::layers::Fc;
use fleet::nn::{Init, Net, ParamAttr, Var};

/// Returns whether a network has one weight for each id.
pub fn has_linear(job: &Job) -> bool {
    matches!(job.model.kind, ModelKind::WideDeep | ModelKind::DeepFm | ModelKind::Mf)
}

/// Returns the raw outputs of a network without towers, `[batch, outputs]`.
pub fn network<'n>(net: &'n Net, inputs: &Inputs<'n>, job: &Job, outputs: i64) -> Var<'n> {
    let model = &job.model;
    match model.kind {
        ModelKind::Mlp | ModelKind::Din | ModelKind::TwoTower => {
            hidden(inputs.flat(), model).fc(Fc::new(outputs).name("output"))
        }
        ModelKind::Mmoe => {
            mmoe::network(net, with_input_dropout(inputs.flat(), model), model, outputs)
        }
        ModelKind::WideDeep => {
            let deep = hidden(inputs.flat(), model).fc(Fc::new(outputs).name("output"));
            sum(net, [Some(deep), linear(inputs, outputs)])
        }
        ModelKind::DeepFm => {
            let fields = inputs.fields();
            let deep = hidden(fields.flatten(1), model).fc(Fc::new(outputs).name("output"));
            let pairs = match outputs {
                1 => pairs(fields),
                // Each output weighs the products of pairs.
                outputs => {
                    let vector = pair_vector(fields);
                    vector.fc(Fc::new(outputs).no_bias().name("pairs"))
                }
            };
            sum(net, [Some(deep), linear(inputs, outputs), Some(pairs)])
        }
        ModelKind::DcnV2 => {
            let flat = inputs.flat();
            let crossed = (0..model.cross_layers)
                .fold(flat, |x, layer| cross_layer(flat, x, layer, model.rank));
            let all = match model.hidden.is_empty() {
                true => crossed,
                false => net.concat(&[crossed, hidden(flat, model)], 1),
            };
            all.fc(Fc::new(outputs).name("output"))
        }
        ModelKind::Mf => {
            let products = match (side(net, inputs, Side::User), side(net, inputs, Side::Item)) {
                (Some(user), Some(item)) => Some(match outputs {
                    1 => (user * item).reduce_sum([1], true),
                    outputs => (user * item).fc(Fc::new(outputs).no_bias().name("products")),
                }),
                _ => None,
            };
            let deep = match model.hidden.is_empty() {
                true => net.create_parameter(
                    [outputs],
                    DType::F32,
                    ParamAttr::from("bias").init(Init::Constant(0.0)),
                ),
                false => hidden(inputs.flat(), model).fc(Fc::new(outputs).name("output")),
            };
            sum(net, [products, linear(inputs, outputs)]) + deep
        }
    }
}

/// Returns the vectors of the user and the item, `[batch, dim]` each.
pub fn towers<'n>(
    net: &'n Net,
    inputs: &Inputs<'n>,
    features: &Features,
    job: &Job,
) -> Option<[Var<'n>; 2]> {
    let tower = |which: Side, name: &str| {
        let vector = match job.model.hidden.is_empty() {
            true => side(net, inputs, which)?,
            false => {
                let layers = hidden_of(inputs.flat_of(which, features, job), &job.model, name);
                layers.fc(Fc::new(job.model.dim).name(format!("{name}vector")))
            }
        };
        Some(match job.model.is_cosine {
            true => {
                let squares = vector.square().reduce_sum([1], true);
                vector * squares.maximum(LENGTH_MIN).rsqrt()
            }
            false => vector.scale(1.0, 0.0),
        })
    };
    Some([tower(Side::User, "user_")?, tower(Side::Item, "item_")?])
}

/// Squared length below which a vector is not made longer: that of zeros stays 0.
const LENGTH_MIN: f64 = 1e-12;

/// The vector of a side, `[batch, dim]`: the sum of the embeddings of its features.
fn side<'n>(net: &'n Net, inputs: &Inputs<'n>, side: Side) -> Option<Var<'n>> {
    let vectors: Vec<Var<'n>> =
        inputs.of_side(side).into_iter().map(|rows| rows.reduce_sum([1], false)).collect();
    match &vectors[..] {
        [] => None,
        [only] => Some(*only),
        all => Some(net.sum_of(all)),
    }
}

/// The hidden layers.
fn hidden<'n>(x: Var<'n>, model: &ModelPart) -> Var<'n> {
    hidden_of(x, model, "")
}

/// The hidden layers, with a start of their names.
fn hidden_of<'n>(x: Var<'n>, model: &ModelPart, name: &str) -> Var<'n> {
    layers(with_input_dropout(x, model), model, &model.hidden, name)
}

/// Drops some of the inputs of the hidden layers.
fn with_input_dropout<'n>(x: Var<'n>, model: &ModelPart) -> Var<'n> {
    match !model.hidden.is_empty() && model.input_dropout > 0.0 {
        true => x.dropout(model.input_dropout),
        false => x,
    }
}

/// One weight for each id and number.
fn linear<'n>(inputs: &Inputs<'n>, outputs: i64) -> Option<Var<'n>> {
    let numbers =
        inputs.numbers.map(|numbers| numbers.fc(Fc::new(outputs).no_bias().name("linear")));
    match (inputs.wide, numbers) {
        (Some(ids), Some(numbers)) => Some(ids + numbers),
        (ids, numbers) => ids.or(numbers),
    }
}

/// The sum of the products of all pairs of features, elementwise: half of the square of the sum
/// minus the sum of squares.
fn pair_vector(fields: Var<'_>) -> Var<'_> {
    let square_of_sum = fields.reduce_sum([1], false).square();
    let sum_of_squares = fields.square().reduce_sum([1], false);
    (square_of_sum - sum_of_squares) * 0.5
}

fn pairs(fields: Var<'_>) -> Var<'_> {
    pair_vector(fields).reduce_sum([1], true)
}

/// `x0 * (W x + b) + x`; with a rank, W is a product of two matrices.
fn cross_layer<'n>(x0: Var<'n>, x: Var<'n>, layer: usize, rank: Option<i64>) -> Var<'n> {
    let size = width(x0);
    let name = format!("cross_{layer}");
    let mapped = match rank.filter(|rank| *rank < size) {
        None => x.fc(Fc::new(size).name(name)),
        Some(rank) => {
            let narrow = x.fc(Fc::new(rank).no_bias().name(format!("{name}_in")));
            narrow.fc(Fc::new(size).name(name))
        }
    };
    x0 * mapped + x
}

fn sum<'n, const N: usize>(net: &'n Net, terms: [Option<Var<'n>>; N]) -> Var<'n> {
    let terms: Vec<Var<'n>> = terms.into_iter().flatten().collect();
    match &terms[..] {
        [only] => *only,
        terms => net.sum_of(terms),
    }
}
