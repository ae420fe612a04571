//! LAMB replaces the user's Adam. Learning rate, betas, epsilon, regularizer, clipping and
//! parameters are kept.

use super::{Applies, Conflict, Facts, Strategy, StrategyId, WithServers, weight_decay};
use crate::effective::Effective;
use crate::job::Job;
use fleet_base::Result;
use fleet_config::Problem;
use fleet_ir::Program;
use fleet_nn::optimizer::{LambRule, Rule};

pub struct Lamb;

impl Strategy for Lamb {
    fn conflicts(&self) -> &'static [Conflict] {
        &[(
            StrategyId::Lars,
            "LARS replaces a Momentum optimizer and LAMB an Adam optimizer; there is one optimizer",
        )]
    }

    fn unmatched(&self, strategy: &Effective<'_>, program: &Program, problems: &mut Vec<Problem>) {
        let path = "lamb_configs.exclude_from_weight_decay";
        let names = &strategy.lamb_configs().exclude_from_weight_decay;
        weight_decay::unmatched(program, path, names, problems);
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused(
            "its rule needs norms of whole parameters, and servers hold parts of them; Adam alone \
             works",
        )
    }

    fn applies(&self, _: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        match &facts.optimizer.rule {
            Rule::Adam(_) => Applies::Yes("Adam becomes LAMB".into()),
            other => Applies::No(format!("LAMB requires Adam, got {}", other.op())),
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
