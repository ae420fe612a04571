//! LAMB replaces the user's Adam. Learning rate, betas, epsilon, regularizer, clipping and
//! parameters are kept.

use super::{Applies, Facts, Job, Kind, Strategy};
use crate::DistributedStrategy;
use fleet_base::Result;
use fleet_nn::optimizer::{LambRule, Rule};

pub struct Lamb;

impl Strategy for Lamb {
    fn name(&self) -> &'static str {
        "Lamb"
    }

    fn kind(&self) -> Kind {
        Kind::Changes
    }

    fn switch(&self) -> &'static str {
        "lamb"
    }

    fn wanted(&self, strategy: &DistributedStrategy) -> bool {
        strategy.lamb()
    }

    fn applies(&self, facts: &Facts<'_>) -> Applies {
        match facts.rule() {
            "adam" => Applies::Yes("Adam becomes LAMB".into()),
            other => Applies::No(format!("LAMB requires Adam, got {other}")),
        }
    }

    fn optimizer(&self, job: &mut Job<'_>) -> Result<()> {
        if let Rule::Adam(rule) = &job.optimizer.rule {
            let configs = job.strategy.lamb_configs();
            job.optimizer.rule = Rule::Lamb(LambRule {
                beta1: rule.beta1,
                beta2: rule.beta2,
                epsilon: rule.epsilon,
                lamb_weight_decay: f64::from(configs.lamb_weight_decay()),
                always_adapt: false,
                exclude_from_weight_decay: configs.exclude_from_weight_decay.clone(),
            });
        }
        Ok(())
    }
}
