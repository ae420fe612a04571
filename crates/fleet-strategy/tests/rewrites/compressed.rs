//! Compressed training (DGC) compared with its closed form in plain loops: momentum before the
//! rampup, then the largest accumulated elements. Covers every supported optimizer setting, and the
//! strategies with which DGC can be combined.

use crate::world::{batch, rewritten, train_at};
use fleet_nn::prelude::*;
use fleet_strategy::{DgcConfig, DistributedStrategy, Ranks};

const ROWS: usize = 6;
const WIDE: usize = 4096;
const ELEMENTS: usize = ROWS * WIDE;
const RANKS: usize = 4;
const STEPS: usize = 5;
/// The first compressed step.
const BEGIN: i32 = 2;
const RATE: f64 = 10.0;
const MU: f64 = 0.9;

fn clipped(net: &Net, need_clip: bool) -> fleet_ir::VarId {
    let x = net.data("x", [-1, ROWS as i64], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let weight = ParamAttr::from("big").init(Init::uniform(-0.02, 0.02)).need_clip(need_clip);
    let out = x.fc(Fc::new(WIDE as i64).weight(weight).no_bias());
    (out.square().mean() + y.mean() * 0.0).id()
}

fn network(net: &Net) -> fleet_ir::VarId {
    clipped(net, true)
}

fn unclipped(net: &Net) -> fleet_ir::VarId {
    clipped(net, false)
}

/// Settings of the closed form.
#[derive(Clone, Copy, Default)]
struct Form {
    nesterov: bool,
    l1: f64,
    l2: f64,
    /// Norm limit; 0 for none.
    clip: f64,
}

impl Form {
    fn optimizer(self) -> OptimizerDesc {
        let mut rule = Momentum::new(RATE, MU).use_nesterov(self.nesterov);
        for decay in [Regularizer::L1(self.l1), Regularizer::L2(self.l2)] {
            if let Regularizer::L1(coeff) | Regularizer::L2(coeff) = decay
                && coeff > 0.0
            {
                rule = rule.weight_decay(decay);
            }
        }
        match self.clip > 0.0 {
            true => rule.grad_clip(GradClip::Norm(self.clip)).into(),
            false => rule.into(),
        }
    }

    fn decayed(self, mut grad: Vec<f64>, w: &[f64]) -> Vec<f64> {
        grad.iter_mut().zip(w).for_each(|(g, w)| *g += self.l2 * w + self.l1 * w.signum());
        grad
    }

    fn train(self, mut w: Vec<f64>) -> Vec<f64> {
        let mut velocity = vec![0f64; ELEMENTS];
        let mut waiting = vec![(vec![0f64; ELEMENTS], vec![0f64; ELEMENTS]); RANKS];
        for step in 0..STEPS {
            let grads: Vec<Vec<f64>> = (0..RANKS).map(|rank| square_grad(&w, step, rank)).collect();
            let change = match (step as i32) < BEGIN {
                true => self.dense(&grads, &w, &mut velocity),
                false => self.compressed(grads, &w, step, &mut waiting),
            };
            w.iter_mut().zip(&change).for_each(|(w, change)| *w -= RATE * change);
        }
        w
    }

    fn dense(self, grads: &[Vec<f64>], w: &[f64], velocity: &mut [f64]) -> Vec<f64> {
        let mean = |at: usize| grads.iter().map(|grad| grad[at]).sum::<f64>() / RANKS as f64;
        let mean = clip((0..ELEMENTS).map(mean).collect(), self.clip);
        let mean = self.decayed(mean, w);
        let step = |(v, g): (&mut f64, f64)| {
            *v = MU * *v + g;
            if self.nesterov { g + MU * *v } else { *v }
        };
        velocity.iter_mut().zip(mean).map(step).collect()
    }

    fn compressed(
        self,
        grads: Vec<Vec<f64>>,
        w: &[f64],
        step: usize,
        waiting: &mut [(Vec<f64>, Vec<f64>)],
    ) -> Vec<f64> {
        let entry = ((step as i32 - BEGIN) * 2 / 4).min(1) as usize;
        let count = [ELEMENTS / 4, ELEMENTS / 1000][entry];
        let mut sent = vec![0f64; ELEMENTS];
        for (grad, (u, v)) in grads.into_iter().zip(waiting) {
            let grad = self.decayed(clip(grad, self.clip / (RANKS as f64).sqrt()), w);
            for (at, g) in grad.into_iter().enumerate() {
                if self.nesterov {
                    u[at] = MU * (u[at] + g);
                    v[at] += u[at] + g;
                } else {
                    u[at] = MU * u[at] + g;
                    v[at] += u[at];
                }
            }
            let mut order: Vec<usize> = (0..ELEMENTS).collect();
            order.sort_by(|a, b| v[*b].abs().total_cmp(&v[*a].abs()).then(a.cmp(b)));
            for at in &order[..count] {
                sent[*at] += v[*at] / RANKS as f64;
                (u[*at], v[*at]) = (0.0, 0.0);
            }
        }
        sent
    }
}

fn clip(grad: Vec<f64>, norm_max: f64) -> Vec<f64> {
    let norm = grad.iter().map(|g| g * g).sum::<f64>().sqrt();
    match norm_max > 0.0 && norm > norm_max {
        true => grad.into_iter().map(|g| g * norm_max / norm).collect(),
        false => grad,
    }
}

/// The gradient of mean((x w)^2) over a rank's rows.
fn square_grad(w: &[f64], step: usize, rank: usize) -> Vec<f64> {
    let (x, _) = batch(step, rank, RANKS).unwrap();
    let x: Vec<f64> = x.to_vec::<f32>().unwrap().iter().map(|v| f64::from(*v)).collect();
    let rows = x.len() / ROWS;
    let mut grad = vec![0.0; ELEMENTS];
    for row in x.chunks(ROWS) {
        for column in 0..WIDE {
            let out: f64 = (0..ROWS).map(|i| row[i] * w[i * WIDE + column]).sum();
            for i in 0..ROWS {
                grad[i * WIDE + column] += 2.0 * out * row[i] / (rows * WIDE) as f64;
            }
        }
    }
    grad
}

fn strategy() -> DistributedStrategy {
    let configs = DgcConfig::default().with_rampup_begin_step(BEGIN).with_rampup_step(4);
    DistributedStrategy::new().use_dgc(configs.with_sparsity([0.75f32, 0.999]))
}

fn check(
    what: &str,
    network: fn(&Net) -> fleet_ir::VarId,
    optimizer: &OptimizerDesc,
    strategy: &DistributedStrategy,
    form: Form,
) {
    let train = |steps| train_at(network, optimizer, strategy, RANKS, 2, steps, &[]);
    let start = train(0)[0].kept["big"].iter().map(|v| f64::from(*v)).collect();
    let expected = form.train(start);
    let ranks = train(STEPS);
    assert!(ranks.iter().all(|rank| rank.kept["big"] == ranks[0].kept["big"]), "{what}");
    // The closed form does not determine which of two elements is sent if they differ only by
    // rounding.
    let differs = |(a, b): &(&f32, &f64)| (f64::from(**a) - **b).abs() > 1e-5;
    let found = ranks[0].kept["big"].iter().zip(&expected).filter(differs).count();
    assert!(found <= 4, "{what}: {found} elements differ");
}

#[test]
fn dgc_is_its_closed_form_with_every_setting() {
    let plain = Form::default();
    let forms = [
        ("plain", plain),
        ("nesterov", Form { nesterov: true, ..plain }),
        ("L2", Form { l2: 1e-4, ..plain }),
        ("L1", Form { l1: 1e-6, ..plain }),
        ("clip", Form { clip: 2e-4, ..plain }),
        ("clip and L2 and nesterov", Form { clip: 2e-4, l2: 1e-4, nesterov: true, ..plain }),
    ];
    let mut ends: Vec<Vec<f64>> = Vec::new();
    for (what, form) in forms {
        check(what, network, &form.optimizer(), &strategy(), form);
        ends.push(form.train(vec![0.01; ELEMENTS]));
        assert!(
            ends[..ends.len() - 1].iter().all(|it| *it != ends[ends.len() - 1]),
            "{what} is another"
        );
    }
}

/// A parameter with `need_clip` false is not clipped.
#[test]
fn what_needs_no_clip_is_not_clipped() {
    let optimizer = Form { clip: 2e-4, ..Form::default() }.optimizer();
    check("no clip", unclipped, &optimizer, &strategy(), Form::default());
}

#[test]
fn dgc_beside_what_it_goes_with() {
    let form = Form { l2: 1e-4, ..Form::default() };
    let others = [
        ("recompute", strategy().with_recompute(true)),
        ("rings", strategy().with_nccl_comm_num(2).with_fuse_all_reduce_ops(false)),
        ("levels", strategy().with_use_hierarchical_allreduce(true)),
        ("synchronous batch norm", strategy().with_sync_batch_norm(true)),
    ];
    for (what, strategy) in others {
        let (_, plan) =
            rewritten(network, &form.optimizer(), &strategy, Ranks::new(0, RANKS)).unwrap();
        assert!(plan.chain.contains(&"DGC"), "{what}");
        check(what, network, &form.optimizer(), &strategy, form);
    }
}
