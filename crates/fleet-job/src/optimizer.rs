//! The optimizer of a job, for layers and for embedding tables.

use crate::job::{Job, OptimizerPart};
use fleet::nn::optimizer::{Adagrad, Adam, AdamW, Momentum, OptimizerDesc, Sgd};
use fleet::nn::{GradClip, LearningRate, LrSchedule, Regularizer};

/// Returns the optimizer for a training of this many steps.
pub fn optimizer(job: &Job, steps: u64) -> OptimizerDesc {
    let part = &job.train.optimizer;
    let schedule = |rate: f64| scheduled(&job.train.schedule, rate, steps);
    let mut layers = rule(part, schedule(part.rate), part.weight_decay);
    layers.settings.grad_clip = part.clip_norm.map(GradClip::GlobalNorm);
    let rate = job.tables.rate.unwrap_or(part.rate);
    let rows = rule(part, schedule(rate), job.tables.weight_decay);
    layers.rows = Some(Box::new(rows));
    layers
}

fn scheduled(schedule: &str, learning_rate: f64, steps: u64) -> LearningRate {
    let decay_steps = steps.max(1) as f64;
    match schedule {
        "linear" => LrSchedule::Polynomial {
            learning_rate,
            decay_steps,
            end: 0.0,
            power: 1.0,
            cycle: false,
        }
        .into(),
        "cosine" => LrSchedule::cosine(learning_rate, steps.max(1)).into(),
        _ => learning_rate.into(),
    }
}

fn rule(part: &OptimizerPart, rate: LearningRate, decay: f64) -> OptimizerDesc {
    // AdamW subtracts its decay from the parameters; the others add it to the gradients.
    let mut made: OptimizerDesc = match part.kind.as_str() {
        "adamw" => return AdamW::new(rate).coeff(decay).lazy_mode(true).into(),
        "adagrad" => Adagrad::new(rate).into(),
        "sgd" => Sgd::new(rate).into(),
        "momentum" => Momentum::new(rate, part.momentum).into(),
        _ => Adam::new(rate).lazy_mode(true).into(),
    };
    if decay > 0.0 {
        made.settings.weight_decay = Some(Regularizer::L2(decay));
    }
    made
}
