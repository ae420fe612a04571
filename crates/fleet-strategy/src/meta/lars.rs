//! LARS momentum replaces the user's Momentum. Learning rate, momentum, regularizer, clipping and
//! parameters are kept.

use super::{Applies, Facts, Job, Kind, Strategy};
use crate::DistributedStrategy;
use fleet_base::Result;
use fleet_nn::optimizer::{LarsMomentumRule, Rule};

pub struct Lars;

impl Strategy for Lars {
    fn name(&self) -> &'static str {
        "Lars"
    }

    fn kind(&self) -> Kind {
        Kind::Changes
    }

    fn switch(&self) -> &'static str {
        "lars"
    }

    fn wanted(&self, strategy: &DistributedStrategy) -> bool {
        strategy.lars()
    }

    fn applies(&self, facts: &Facts<'_>) -> Applies {
        match facts.rule() {
            "momentum" if is_nesterov(&facts.optimizer.rule) => {
                Applies::Yes(format!("Momentum becomes LARS; {NO_NESTEROV}"))
            }
            "momentum" => Applies::Yes("Momentum becomes LARS".into()),
            other => Applies::No(format!("LARS requires Momentum, got {other}")),
        }
    }

    fn optimizer(&self, job: &mut Job<'_>) -> Result<()> {
        if let Rule::Momentum(rule) = &job.optimizer.rule {
            if rule.use_nesterov {
                job.notes.push(format!("lars: {NO_NESTEROV}"));
            }
            let configs = job.strategy.lars_configs();
            job.optimizer.rule = Rule::LarsMomentum(LarsMomentumRule {
                mu: rule.mu,
                lars_coeff: f64::from(configs.lars_coeff()),
                lars_weight_decay: f64::from(configs.lars_weight_decay()),
                epsilon: f64::from(configs.epsilon()),
                exclude_from_weight_decay: configs.exclude_from_weight_decay.clone(),
            });
        }
        Ok(())
    }
}

const NO_NESTEROV: &str = "Nesterov is ignored, because LARS does not support it";

fn is_nesterov(rule: &Rule) -> bool {
    matches!(rule, Rule::Momentum(rule) if rule.use_nesterov)
}
