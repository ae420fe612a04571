//! `DistributeTranspiler`: the older interface to the same rewrites. Instead of a strategy, it
//! takes the endpoints of a job and a few switches. It rewrites a network with a loss, or a program
//! that trains in one process already ([`Source`]).
//!
//! * `pserver`: dense parameters are cut into blocks, which servers update (`blocks.rs`). Each
//!   parameter is a table, so that a trainer sends a gradient directly after the op that completes
//!   it. Embeddings with `is_sparse` or `is_distributed` become tables of rows.
//! * `nccl2` and `collective`: trainers sum gradients among themselves (`collective.rs`).
//!
//! Difference from the original: gradients are cut where they are sent, so a trainer's program
//! needs no ops that split and join them. The attribute `epmap` of `send` and `recv` names the
//! server of each block.

mod blocks;
mod call;
mod collective;
mod program;
mod slice;
mod updates;

pub use call::{Trainers, Transpile};
pub use collective::TranspiledRanks;
pub use slice::{SplitMethod, block_lens};

use super::{Grouping, ParamBlock, Place, ServerPlan, minimize_from};
use crate::DistributedStrategy;
use crate::compiler::Start;
use blocks::name_endpoints;
use call::endpoints;
use fleet_base::{Error, Result};
use fleet_ir::VarId;
use fleet_nn::Programs;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::Registry;
use fleet_passes::PassManager;
use fleet_tensor::Shape;
use std::fmt;
use std::str::FromStr;
use updates::Updates;

/// The documented switches with their documented defaults. A switch that the mode does not have is
/// an error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DistributeTranspilerConfig {
    /// Whether there are servers, and what trainers exchange.
    pub mode: TranspilerMode,
    /// Adds notes with the place of each block or trainer.
    pub print_log: bool,

    // Mode pserver
    /// Cuts large parameters into blocks; otherwise each parameter is on one server.
    pub slice_var_up: bool,
    /// How blocks are assigned to servers.
    pub split_method: SplitMethod,
    /// Minimum number of elements in a block.
    pub min_block_size: usize,
    /// Makes workers wait for each other in every step.
    pub sync_mode: bool,
    /// Without `sync_mode`: a worker waits for its own gradients only.
    pub half_async: bool,
    /// The same as `half_async`, by which the original implements it.
    pub completely_not_async: bool,
    /// Without `sync_mode`: corrects late gradients (DC-ASGD).
    pub enable_dc_asgd: bool,
    /// Without `sync_mode`: workers train alone and exchange differences.
    pub geo_sgd_mode: bool,
    /// Steps between two exchanges of `geo_sgd_mode`.
    pub geo_sgd_need_push_nums: usize,
    /// Cuts gradients at run time. Here this is always so, but together with `sync_mode` the switch
    /// is rejected, as in the original.
    pub runtime_split_send_recv: bool,
    /// Makes trainers wait until all servers listen; otherwise a server that does not is an error.
    pub wait_port: bool,

    // Modes nccl2 and collective
    /// Number of communicators, which gradients use in turn.
    pub nccl_comm_num: i32,
    /// Sums gradients within groups of trainers first, then between the groups.
    pub use_hierarchical_allreduce: bool,
    /// Number of trainers in a group; 0 for those of a machine.
    pub hierarchical_allreduce_inter_nranks: i32,
    /// Mode collective: what trainers exchange; `None` for gradients.
    pub collective_mode: Option<CollectiveMode>,
}

impl Default for DistributeTranspilerConfig {
    fn default() -> Self {
        DistributeTranspilerConfig {
            mode: TranspilerMode::Pserver,
            print_log: false,
            slice_var_up: true,
            split_method: SplitMethod::RoundRobin,
            min_block_size: MIN_BLOCK_SIZE,
            sync_mode: true,
            half_async: false,
            completely_not_async: false,
            enable_dc_asgd: false,
            geo_sgd_mode: false,
            geo_sgd_need_push_nums: 100,
            runtime_split_send_recv: false,
            wait_port: true,
            nccl_comm_num: 1,
            use_hierarchical_allreduce: false,
            hierarchical_allreduce_inter_nranks: 0,
            collective_mode: None,
        }
    }
}

/// Smaller blocks are not worth a message.
const MIN_BLOCK_SIZE: usize = 8192;

/// How the trainers of a job cooperate.
///
/// ```
/// use fleet_strategy::servers::transpiler::TranspilerMode;
/// assert_eq!("nccl2".parse::<TranspilerMode>()?, TranspilerMode::Nccl2);
/// assert!("nccl".parse::<TranspilerMode>().is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TranspilerMode {
    /// Servers hold and update the parameters.
    #[default]
    Pserver,
    /// Trainers sum gradients, in buckets.
    Nccl2,
    /// Trainers exchange what [`CollectiveMode`] says, one all-reduce for each variable.
    Collective,
}

impl fmt::Display for TranspilerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            TranspilerMode::Pserver => "pserver",
            TranspilerMode::Nccl2 => "nccl2",
            TranspilerMode::Collective => "collective",
        })
    }
}

impl FromStr for TranspilerMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<TranspilerMode> {
        match text {
            "pserver" => Ok(TranspilerMode::Pserver),
            "nccl2" => Ok(TranspilerMode::Nccl2),
            "collective" => Ok(TranspilerMode::Collective),
            other => Err(Error::invalid("unknown mode of DistributeTranspiler")
                .expected("pserver, nccl2 or collective")
                .got(format!("'{other}'"))),
        }
    }
}

/// The values that trainers exchange in mode collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollectiveMode {
    /// The gradients of each step.
    GradAllreduce,
    /// The parameters, after each step.
    LocalSgd,
}

impl FromStr for CollectiveMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<CollectiveMode> {
        let expected = "grad_allreduce or local_sgd";
        match text {
            "grad_allreduce" => Ok(CollectiveMode::GradAllreduce),
            "local_sgd" => Ok(CollectiveMode::LocalSgd),
            "single_process_multi_thread" => {
                Err(Error::unsupported("collective_mode single_process_multi_thread")
                    .expected(expected)
                    .help("start one trainer: a process uses all cores of its machine"))
            }
            other => Err(Error::invalid("unknown collective_mode")
                .expected(expected)
                .got(format!("'{other}'"))),
        }
    }
}

/// The training to distribute.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// A network without updates.
    Loss(VarId, &'a OptimizerDesc),
    /// A program that trains in one process: with a backward pass and updates.
    Updates,
}

/// Result of [`DistributeTranspilerConfig::transpile`].
#[derive(Clone, Debug)]
pub struct Transpiled {
    /// The decisions and tables of the rewritten programs.
    pub plan: ServerPlan,
    /// The position of the trainer in the job.
    pub place: Place,
    /// The equivalent strategy.
    pub strategy: DistributedStrategy,
    /// Endpoints of the servers.
    pub endpoints: Vec<String>,
    optimizer: OptimizerDesc,
    /// Parameters with their shapes, by name.
    shapes: Vec<(String, Shape)>,
}

impl DistributeTranspilerConfig {
    /// Returns an error if a switch is set that the mode does not have.
    fn check_mode(&self) -> Result<()> {
        let usual = DistributeTranspilerConfig::default();
        let of_servers = [
            ("slice_var_up", self.slice_var_up != usual.slice_var_up),
            ("split_method", self.split_method != usual.split_method),
            ("min_block_size", self.min_block_size != usual.min_block_size),
            ("sync_mode", self.sync_mode != usual.sync_mode),
            ("half_async", self.half_async),
            ("completely_not_async", self.completely_not_async),
            ("enable_dc_asgd", self.enable_dc_asgd),
            ("geo_sgd_mode", self.geo_sgd_mode),
            ("geo_sgd_need_push_nums", self.geo_sgd_need_push_nums != usual.geo_sgd_need_push_nums),
            ("runtime_split_send_recv", self.runtime_split_send_recv),
            ("wait_port", self.wait_port != usual.wait_port),
        ];
        let of_ranks = [
            ("nccl_comm_num", self.nccl_comm_num != usual.nccl_comm_num),
            ("use_hierarchical_allreduce", self.use_hierarchical_allreduce),
            ("hierarchical_allreduce_inter_nranks", self.hierarchical_allreduce_inter_nranks != 0),
        ];
        let find = |switches: &[(&'static str, bool)]| {
            switches.iter().find(|(_, is_set)| *is_set).map(|(name, _)| *name)
        };
        let found = match self.mode {
            TranspilerMode::Pserver => find(&of_ranks).map(|name| (name, "nccl2 or collective")),
            _ => find(&of_servers).map(|name| (name, "pserver")),
        };
        let is_foreign = self.collective_mode.is_some() && self.mode != TranspilerMode::Collective;
        let found = found.or(is_foreign.then_some(("collective_mode", "collective")));
        let Some((name, modes)) = found else { return Ok(()) };
        Err(Error::invalid(format!("{name} has no effect in this mode"))
            .expected(format!("mode {modes}"))
            .got(self.mode)
            .help(format!("remove {name}, or choose another mode")))
    }

    /// Returns the equivalent strategy of mode pserver.
    fn server_strategy(&self, sync_mode: bool) -> Result<DistributedStrategy> {
        let refuse = |what: &str, why: &str| {
            Err(Error::invalid(format!("{what} conflicts with sync_mode")).help(why))
        };
        let half_async = self.is_half_async();
        if self.min_block_size < MIN_BLOCK_SIZE {
            return Err(Error::invalid("min_block_size is too small")
                .expected(format!("at least {MIN_BLOCK_SIZE}"))
                .got(self.min_block_size));
        }
        if sync_mode && self.runtime_split_send_recv {
            return refuse("runtime_split_send_recv", "turn off one of them");
        }
        if sync_mode && (self.geo_sgd_mode || half_async || self.enable_dc_asgd) {
            let what = "geo_sgd_mode, half_async, completely_not_async and enable_dc_asgd";
            return refuse(what, "set sync_mode to false");
        }
        if self.geo_sgd_mode && (half_async || self.enable_dc_asgd) {
            return Err(Error::invalid(
                "geo_sgd_mode conflicts with half_async, completely_not_async and enable_dc_asgd",
            )
            .help("turn off the others"));
        }
        let mut strategy = DistributedStrategy::new();
        strategy.set_a_sync(!(sync_mode || half_async && !self.enable_dc_asgd));
        let config = strategy.a_sync_configs_mut();
        config.set_k_steps(0);
        if self.geo_sgd_mode {
            let steps = i32::try_from(self.geo_sgd_need_push_nums).ok().filter(|steps| *steps > 0);
            config.set_k_steps(steps.ok_or_else(|| {
                Error::invalid("geo_sgd_need_push_nums is out of range")
                    .expected(format!("1 to {}", i32::MAX))
                    .got(self.geo_sgd_need_push_nums)
            })?);
        }
        if self.enable_dc_asgd {
            config.set_enable_dc_asgd(true);
        }
        // Not assigned when it is on, so that FLAGS_LAUNCH_BARRIER has an effect.
        if !self.wait_port {
            config.set_launch_barrier(false);
        }
        Ok(strategy)
    }

    fn is_half_async(&self) -> bool {
        self.half_async || self.completely_not_async
    }

    /// Rewrites programs into those of a trainer, and assigns its parameters to servers: mode
    /// pserver.
    ///
    /// ```
    /// use fleet_nn::prelude::*;
    /// use fleet_strategy::servers::transpiler::{DistributeTranspilerConfig, Source, Transpile};
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 784], DType::F32).fc(1000).mean().id();
    /// let pservers = "10.0.0.1:6174,10.0.0.2:6174";
    /// let who = Transpile { pservers, trainers: 2.into(), ..Default::default() };
    /// let done = net.rewrite_with(|programs, registry| {
    ///     let (config, optimizer) = (DistributeTranspilerConfig::default(), Sgd::new(0.1).into());
    ///     config.transpile(programs, registry, Source::Loss(loss, &optimizer), &who)
    /// })?;
    /// let blocks = done.blocks("10.0.0.2:6174")?;
    /// assert_eq!(blocks.len(), 1);
    /// assert_eq!(blocks[0].name, "fc_0.w_0.block0");
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn transpile(
        &self,
        programs: &mut Programs,
        registry: &'static Registry,
        source: Source<'_>,
        who: &Transpile<'_>,
    ) -> Result<Transpiled> {
        self.check_mode()?;
        if self.mode != TranspilerMode::Pserver {
            return Err(Error::invalid("this mode has no servers")
                .expected("mode pserver")
                .got(self.mode));
        }
        let strategy = self.server_strategy(who.sync_mode.unwrap_or(self.sync_mode))?;
        let endpoints = endpoints("pservers", who.pservers)?;
        let place = Place {
            worker: who.trainer_id,
            worker_count: who.trainers.count()?,
            server_count: endpoints.len(),
            half_async: self.is_half_async(),
        };
        let (start, optimizer, rows) = match source {
            Source::Loss(loss, optimizer) => (Start::Loss(loss), optimizer.clone(), None),
            Source::Updates => {
                let updates = Updates::find(programs, registry)?;
                let (optimizer, rows) = updates.optimizers(&programs.main)?;
                let start = match self.geo_sgd_mode {
                    true => updates.kept(),
                    false => updates.take(programs, registry)?,
                };
                (start, optimizer, rows)
            }
        };
        let (manager, on) = (PassManager::new(registry), (place, Grouping::ByParameter));
        let mut plan = minimize_from(
            manager,
            programs,
            registry,
            start,
            &optimizer,
            rows.as_ref(),
            &strategy,
            on,
        )?;
        let shapes = self.assign_blocks(programs, &mut plan, endpoints.len());
        name_endpoints(programs, &plan, &endpoints)?;
        if self.print_log {
            let blocks = plan.tables.dense.iter().flat_map(|table| table.blocks.iter().flatten());
            let notes = blocks.map(|it| {
                format!("{} ({} numbers) on {}", it.name, it.block.len, endpoints[it.block.server])
            });
            let notes: Vec<String> = notes.collect();
            plan.notes.extend(notes);
        }
        Ok(Transpiled { plan, place, strategy, endpoints, optimizer, shapes })
    }
}

impl Transpiled {
    fn server(&self, endpoint: &str) -> Result<usize> {
        self.endpoints.iter().position(|it| it == endpoint).ok_or_else(|| {
            Error::invalid("no server of this job has this endpoint")
                .expected(format!("one of {:?}", self.endpoints))
                .got(endpoint)
        })
    }

    /// Returns the blocks of dense parameters on a server.
    pub fn blocks(&self, endpoint: &str) -> Result<Vec<&ParamBlock>> {
        let server = self.server(endpoint)?;
        let blocks = self.plan.tables.dense.iter().flat_map(|table| table.blocks.iter().flatten());
        Ok(blocks.filter(|block| block.block.server == server).collect())
    }
}
