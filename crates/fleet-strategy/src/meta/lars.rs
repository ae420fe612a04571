//! LARS momentum replaces the user's Momentum. Learning rate, momentum, regularizer, clipping and
//! parameters are kept.

use super::{Applies, Facts, Strategy, WithServers, weight_decay};
use crate::effective::Effective;
use crate::job::Job;
use fleet_base::Result;
use fleet_config::Problem;
use fleet_ir::Program;
use fleet_nn::optimizer::{LarsMomentumRule, Rule};

pub struct Lars;

impl Strategy for Lars {
    fn unmatched(&self, strategy: &Effective<'_>, program: &Program, problems: &mut Vec<Problem>) {
        let path = "lars_configs.exclude_from_weight_decay";
        let names = &strategy.lars_configs().exclude_from_weight_decay;
        weight_decay::unmatched(program, path, names, problems);
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused(
            "its rule needs norms of whole parameters, and servers hold parts of them; Momentum \
             alone works",
        )
    }

    fn applies(&self, _: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        match &facts.optimizer.rule {
            Rule::Momentum(rule) if rule.use_nesterov => {
                Applies::Yes(format!("Momentum becomes LARS; {NO_NESTEROV}"))
            }
            Rule::Momentum(_) => Applies::Yes("Momentum becomes LARS".into()),
            other => Applies::No(format!("LARS requires Momentum, got {}", other.op())),
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
