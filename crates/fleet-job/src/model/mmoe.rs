//! The network of several labels, a multi-gate mixture of experts: each label weighs the same
//! experts by a gate of its own, so that labels share what they have in common.

use super::hidden::layers;
use crate::job::ModelPart;
use fleet::nn::layers::Fc;
use fleet::nn::{Net, Var};

/// Returns the raw outputs, `[batch, labels]`.
///
/// Expert e is an mlp of the features, `f_e(x)`. The gate of label k is
/// `g_k(x) = softmax(W_k x)`, and the label's output is its tower over the sum of
/// `g_k(x)_e f_e(x)`.
pub fn network<'n>(net: &'n Net, x: Var<'n>, model: &ModelPart, labels: i64) -> Var<'n> {
    let expert = |index: usize| {
        let out = layers(x, model, &model.hidden, &format!("expert_{index}_"));
        out.unsqueeze([1])
    };
    let experts: Vec<Var<'n>> = (0..model.experts).map(expert).collect();
    // [batch, experts, size]
    let experts = joined(net, &experts);
    let output = |label: i64| {
        let gate = Fc::new(model.experts as i64).no_bias().name(format!("gate_{label}"));
        let gate = x.fc(gate).softmax().unsqueeze([2]);
        let mixed = (experts * gate).reduce_sum([1], false);
        let tower = layers(mixed, model, &model.tower, &format!("tower_{label}_"));
        tower.fc(Fc::new(1).name(format!("output_{label}")))
    };
    joined(net, &(0..labels).map(output).collect::<Vec<_>>())
}

fn joined<'n>(net: &'n Net, parts: &[Var<'n>]) -> Var<'n> {
    match parts {
        [only] => *only,
        parts => net.concat(parts, 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::{View, read_text};
    use crate::job::Job;
    use fleet::{DType, ExecOptions, Session, Tensor};

    const JOB: &str = "version = 1\ndata = { train = \"a.csv\" }\n[columns]\n[model]\n\
        kind = \"mmoe\"\nexperts = 3\nhidden = [5, 4]\ntower = [3]\nactivation = \"tanh\"\n";
    const ROWS: usize = 6;
    const WIDTH: usize = 7;
    const LABELS: usize = 2;

    /// A layer computed with plain loops.
    fn plain(session: &Session, name: &str, x: &[f64]) -> Vec<f64> {
        let weights = session.scope.tensor(&format!("{name}.w_0")).unwrap();
        let size = weights.shape().at(1);
        let weights = weights.to_vec::<f32>().unwrap();
        let bias = session.scope.tensor(&format!("{name}.b_0"));
        let bias = bias.map_or(vec![0.0; size], |bias| bias.to_vec::<f32>().unwrap());
        let sum = |out: usize| {
            let products = x.iter().enumerate();
            products.map(|(at, x)| x * f64::from(weights[at * size + out])).sum::<f64>()
        };
        (0..size).map(|out| sum(out) + f64::from(bias[out])).collect()
    }

    fn tanh(x: Vec<f64>) -> Vec<f64> {
        x.into_iter().map(f64::tanh).collect()
    }

    fn plain_output(session: &Session, x: &[f64], label: usize) -> f64 {
        let expert = |at: usize| {
            let first = tanh(plain(session, &format!("expert_{at}_hidden_0"), x));
            tanh(plain(session, &format!("expert_{at}_hidden_1"), &first))
        };
        let experts: Vec<Vec<f64>> = (0..3).map(expert).collect();
        let gate: Vec<f64> =
            plain(session, &format!("gate_{label}"), x).into_iter().map(f64::exp).collect();
        let sum: f64 = gate.iter().sum();
        let mixed = |at: usize| (0..3).map(|it| gate[it] / sum * experts[it][at]).sum::<f64>();
        let mixed: Vec<f64> = (0..4).map(mixed).collect();
        let tower = tanh(plain(session, &format!("tower_{label}_hidden_0"), &mixed));
        plain(session, &format!("output_{label}"), &tower)[0]
    }

    #[test]
    fn outputs_are_those_of_plain_loops() {
        let text = read_text("job.toml".as_ref(), JOB);
        let model = Job::of(View::root(&text.root)).model;
        let net = Net::new();
        net.set_seed(3);
        let x = net.data("x", [-1, WIDTH as i64], DType::F32);
        let name = network(&net, x, &model, LABELS as i64).name();
        let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
        let x: Vec<f32> = (0..ROWS * WIDTH).map(|at| ((at * 37 % 19) as f32 - 9.0) / 6.0).collect();
        let tensor = Tensor::from_slice(&x, [ROWS as i64, WIDTH as i64]).unwrap();
        let out = session.evaluate(&[("x", &tensor)], &[&name]).unwrap();
        assert_eq!(out[0].shape().dims(), [ROWS as i64, LABELS as i64]);
        let out = out[0].to_vec::<f32>().unwrap();
        for (row, x) in x.chunks(WIDTH).enumerate() {
            let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for label in 0..LABELS {
                let expected = plain_output(&session, &x, label);
                let got = f64::from(out[row * LABELS + label]);
                assert!((got - expected).abs() < 1e-5, "{row}, {label}: {got}, {expected}");
            }
        }
        // Labels differ, as their gates and towers do.
        assert!(out.chunks(LABELS).all(|row| row[0] != row[1]));
    }
}
