//! Modes nccl2 and collective: trainers without servers.

use super::updates::Updates;
use super::{CollectiveMode, DistributeTranspilerConfig, Source, Transpile, TranspilerMode};
use crate::compiler::{Start, minimize_from};
use crate::{DistributedStrategy, Plan, Ranks, Verdict};
use fleet_base::{Error, Result};
use fleet_nn::Programs;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::Registry;
use fleet_passes::PassManager;

/// Result of [`DistributeTranspilerConfig::transpile_ranks`].
#[derive(Clone, Debug)]
pub struct TranspiledRanks {
    /// The decisions, rings and gradients of the rewritten programs.
    pub plan: Plan,
    /// The equivalent strategy.
    pub strategy: DistributedStrategy,
    /// The position of the trainer among the ranks.
    pub ranks: Ranks,
    /// Endpoints of the trainers, by rank.
    pub endpoints: Vec<String>,
    /// The optimizer; of a program with updates, the one that its first update has.
    pub optimizer: OptimizerDesc,
}

impl DistributeTranspilerConfig {
    /// Rewrites programs into those of a trainer that exchanges gradients or parameters with the
    /// other trainers: modes nccl2 and collective.
    ///
    /// ```
    /// use fleet_nn::prelude::*;
    /// use fleet_strategy::servers::transpiler::{
    ///     DistributeTranspilerConfig, Source, Transpile, TranspilerMode,
    /// };
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// net.minimize(loss, Sgd::new(0.1))?;
    /// let mut programs = net.build()?;
    /// let trainers = "10.0.0.1:6174,10.0.0.2:6174".into();
    /// let who = Transpile { trainers, current_endpoint: "10.0.0.1:6174", ..Default::default() };
    /// let mode = TranspilerMode::Nccl2;
    /// let config = DistributeTranspilerConfig { mode, ..Default::default() };
    /// let made = config.transpile_ranks(&mut programs, net.registry(), Source::Updates, &who)?;
    /// assert_eq!(made.plan.chain_text(), "RawProgram -> sgd");
    /// assert!(programs.main.to_string().contains("c_allreduce_sum"));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn transpile_ranks(
        &self,
        programs: &mut Programs,
        registry: &'static Registry,
        source: Source<'_>,
        who: &Transpile<'_>,
    ) -> Result<TranspiledRanks> {
        self.check_mode()?;
        let strategy = self.rank_strategy()?;
        let endpoints = who.trainers.endpoints()?;
        let ranks = ranks(&endpoints, who)?;
        let (start, optimizer) = match source {
            Source::Loss(loss, optimizer) => (Start::Loss(loss), optimizer.clone()),
            Source::Updates => {
                let updates = Updates::find(programs, registry)?;
                let optimizer = updates.first_optimizer();
                (updates.set_aside(&mut programs.main)?, optimizer)
            }
        };
        let manager = PassManager::new(registry);
        let mut plan =
            minimize_from(manager, programs, registry, start, &optimizer, &strategy, ranks)?;
        // The call asks for it, so it is not left out with a warning.
        if let Some(dropped) = plan.decisions.iter().find(|it| it.verdict == Verdict::Dropped) {
            return Err(Error::unsupported(dropped.reason.clone()).at("collective_mode"));
        }
        if self.print_log {
            let notes = endpoints.iter().enumerate();
            plan.notes.extend(notes.map(|(rank, at)| format!("trainer {rank} at {at}")));
        }
        Ok(TranspiledRanks { plan, strategy, ranks, endpoints, optimizer })
    }

    fn rank_strategy(&self) -> Result<DistributedStrategy> {
        if self.mode == TranspilerMode::Pserver {
            return Err(Error::invalid("mode pserver has servers")
                .expected("mode nccl2 or collective")
                .got("pserver"));
        }
        let group = self.hierarchical_allreduce_inter_nranks;
        if group != 0 && !self.use_hierarchical_allreduce {
            return Err(Error::invalid(
                "hierarchical_allreduce_inter_nranks requires use_hierarchical_allreduce",
            )
            .expected("0 without it")
            .got(group)
            .help("set use_hierarchical_allreduce to true"));
        }
        let mut strategy = DistributedStrategy::new().with_nccl_comm_num(self.nccl_comm_num);
        if self.use_hierarchical_allreduce {
            strategy.set_use_hierarchical_allreduce(true);
            // In strategies, 1 means the trainers of a machine.
            let group = if group == 0 { 1 } else { group };
            strategy.set_hierarchical_allreduce_inter_nranks(group);
        }
        if self.mode == TranspilerMode::Collective {
            // The original has one all-reduce for each variable.
            strategy.set_fuse_all_reduce_ops(false);
        }
        if self.collective_mode == Some(CollectiveMode::LocalSgd) {
            strategy.set_localsgd(true);
            strategy.localsgd_configs_mut().set_k_steps(1);
        }
        Ok(strategy)
    }
}

/// Returns the place of the trainer among all.
fn ranks(endpoints: &[String], who: &Transpile<'_>) -> Result<Ranks> {
    let (rank, own) = (who.trainer_id, who.current_endpoint);
    match endpoints.get(rank) {
        Some(listed) if listed == own => {}
        Some(listed) => {
            return Err(Error::invalid("current_endpoint is not the endpoint of trainer_id")
                .expected(format!("{listed}, entry {rank} of trainers"))
                .got(own));
        }
        None => {
            return Err(Error::invalid("trainer_id is not a number of a trainer")
                .expected(format!("below {}, the number of trainers", endpoints.len()))
                .got(rank));
        }
    }
    let host = |endpoint: &str| endpoint.rsplit_once(':').map_or("", |(host, _)| host).to_string();
    let hosts: Vec<String> = endpoints.iter().map(|endpoint| host(endpoint)).collect();
    let per_node = hosts.iter().map(|one| hosts.iter().filter(|other| *other == one).count());
    Ok(Ranks::new(rank, endpoints.len()).per_node(per_node.max().unwrap_or(1)))
}
