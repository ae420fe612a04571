//! The optimizer of a job, for layers and for embedding tables.

use crate::job::{Job, OptimizerPart};
use crate::model::is_table;
use fleet::nn::optimizer::{Adagrad, Adam, AdamW, Momentum, OptimizerDesc, Sgd};
use fleet::nn::{GradClip, LearningRate, LrSchedule, Net, Regularizer};
use fleet_base::Result;

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

/// Returns one optimizer for tables and layers, as GEO needs: with the rate of the tables, and a
/// factor for the parameters of layers.
pub fn single_optimizer(net: &Net, job: &Job, steps: u64) -> Result<OptimizerDesc> {
    let mut both = optimizer(job, steps);
    let Some(rows) = both.rows.take() else { return Ok(both) };
    let (own, of_tables) = (job.train.optimizer.rate, job.tables.rate);
    let Some(factor) = of_tables.map(|rate| own / rate).filter(|factor| factor.is_finite()) else {
        return Ok(both);
    };
    both.settings.learning_rate = rows.settings.learning_rate.clone();
    net.rewrite_with(|programs, _| {
        let layers = programs.main.parameters().filter(|(_, var)| !is_table(&var.name));
        let layers: Vec<_> = layers.map(|(id, _)| id).collect();
        for id in layers {
            if let Some(param) = &mut programs.main.var_mut(id).param {
                param.learning_rate = factor;
            }
        }
        Ok(())
    })?;
    Ok(both)
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
