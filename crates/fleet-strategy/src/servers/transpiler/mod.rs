//! `DistributeTranspiler`: the older interface to the same rewrites. Instead of a strategy, it
//! takes a list of servers and a few switches. It cuts dense parameters into blocks and assigns
//! these to servers.
//!
//! Differences from the original: it takes the loss and the optimizer, not a program that already
//! has updates. Embeddings with `is_sparse` or `is_distributed` become tables of rows. Gradients
//! are cut where they are sent, so a trainer's program needs no ops that split and join them; the
//! attribute `epmap` of `send` and `recv` names the server of each block.

mod program;
mod slice;

pub use slice::{SplitMethod, block_lens};

use super::{ParamBlock, Place, ServerPlan, minimize};
use crate::DistributedStrategy;
use fleet_base::rng::Sequence;
use fleet_base::{Error, Result};
use fleet_ir::VarId;
use fleet_nn::Programs;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::Registry;
use fleet_ops::ps::{recv, send};
use fleet_table::DenseBlock;
use fleet_tensor::Shape;

/// The documented switches with their documented defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DistributeTranspilerConfig {
    /// Cuts large parameters into blocks; otherwise each parameter is on one server.
    pub slice_var_up: bool,
    pub split_method: SplitMethod,
    /// Minimum number of elements in a block.
    pub min_block_size: usize,
    /// Makes workers wait for each other in every step.
    pub sync_mode: bool,
    /// Without `sync_mode`: a worker waits for its own gradients only.
    pub half_async: bool,
    /// Without `sync_mode`: corrects late gradients (DC-ASGD).
    pub enable_dc_asgd: bool,
    /// Without `sync_mode`: workers train alone and exchange differences.
    pub geo_sgd_mode: bool,
    /// Steps between two exchanges of `geo_sgd_mode`.
    pub geo_sgd_need_push_nums: usize,
    /// Cuts gradients at run time. Here this is always so, but together with `sync_mode` the switch
    /// is rejected, as in the original.
    pub runtime_split_send_recv: bool,
    /// Must be `pserver`; `Fleet::collective` replaces `nccl2` and `collective`.
    pub mode: String,
    /// Adds notes with the server of each block.
    pub print_log: bool,
    /// Makes trainers wait until all servers listen; otherwise a server that does not is an error.
    pub wait_port: bool,
}

impl Default for DistributeTranspilerConfig {
    fn default() -> Self {
        DistributeTranspilerConfig {
            slice_var_up: true,
            split_method: SplitMethod::RoundRobin,
            min_block_size: MIN_BLOCK_SIZE,
            sync_mode: true,
            half_async: false,
            enable_dc_asgd: false,
            geo_sgd_mode: false,
            geo_sgd_need_push_nums: 100,
            runtime_split_send_recv: false,
            mode: "pserver".into(),
            print_log: false,
            wait_port: true,
        }
    }
}

/// Smaller blocks are not worth a message.
const MIN_BLOCK_SIZE: usize = 8192;

/// The trainer to transpile for, and its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transpile<'a> {
    pub trainer_id: usize,
    /// Addresses of the servers, separated by commas.
    pub pservers: &'a str,
    pub trainers: usize,
    /// Overrides the switch of that name.
    pub sync_mode: Option<bool>,
}

impl Default for Transpile<'_> {
    fn default() -> Self {
        Transpile { trainer_id: 0, pservers: "127.0.0.1:6174", trainers: 1, sync_mode: None }
    }
}

/// Result of [`DistributeTranspilerConfig::transpile`].
#[derive(Clone, Debug)]
pub struct Transpiled {
    pub plan: ServerPlan,
    pub place: Place,
    /// The equivalent strategy.
    pub strategy: DistributedStrategy,
    pub endpoints: Vec<String>,
    optimizer: OptimizerDesc,
    /// Parameters with their shapes, by name.
    shapes: Vec<(String, Shape)>,
}

impl DistributeTranspilerConfig {
    /// Returns the equivalent strategy.
    fn strategy(&self, sync_mode: bool) -> Result<DistributedStrategy> {
        let refuse = |what: &str, why: &str| {
            Err(Error::invalid(format!("{what} conflicts with sync_mode")).help(why))
        };
        if self.mode != "pserver" {
            return Err(Error::unsupported("unsupported mode of DistributeTranspiler")
                .expected("pserver")
                .got(&self.mode)
                .help("use Fleet::collective and distributed_optimizer for jobs without servers"));
        }
        if self.min_block_size < MIN_BLOCK_SIZE {
            return Err(Error::invalid("min_block_size is too small")
                .expected(format!("at least {MIN_BLOCK_SIZE}"))
                .got(self.min_block_size));
        }
        if sync_mode && self.runtime_split_send_recv {
            return refuse("runtime_split_send_recv", "turn off one of them");
        }
        if sync_mode && (self.geo_sgd_mode || self.half_async || self.enable_dc_asgd) {
            return refuse("geo_sgd_mode, half_async and enable_dc_asgd", "set sync_mode to false");
        }
        if self.geo_sgd_mode && (self.half_async || self.enable_dc_asgd) {
            return Err(Error::invalid(
                "geo_sgd_mode conflicts with half_async and enable_dc_asgd",
            )
            .help("turn off half_async and enable_dc_asgd"));
        }
        let mut strategy = DistributedStrategy::new();
        strategy.set_a_sync(!(sync_mode || self.half_async && !self.enable_dc_asgd));
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

    /// Rewrites the programs of a network into those of a trainer, and assigns its parameters to
    /// servers.
    ///
    /// ```
    /// use fleet_nn::prelude::*;
    /// use fleet_strategy::servers::transpiler::{DistributeTranspilerConfig, Transpile};
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 784], DType::F32).fc(1000).mean().id();
    /// let pservers = "10.0.0.1:6174,10.0.0.2:6174";
    /// let who = Transpile { pservers, trainers: 2, ..Default::default() };
    /// let done = net.rewrite_with(|programs, registry| {
    ///     let (config, optimizer) = (DistributeTranspilerConfig::default(), Sgd::new(0.1).into());
    ///     config.transpile(programs, registry, loss, &optimizer, &who)
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
        loss: VarId,
        optimizer: &OptimizerDesc,
        who: &Transpile<'_>,
    ) -> Result<Transpiled> {
        let sync_mode = who.sync_mode.unwrap_or(self.sync_mode);
        let strategy = self.strategy(sync_mode)?;
        let endpoints = endpoints(who.pservers)?;
        let place = Place {
            worker: who.trainer_id,
            worker_count: who.trainers,
            server_count: endpoints.len(),
            half_async: self.half_async,
        };
        let mut plan = minimize(programs, registry, loss, optimizer, None, &strategy, place)?;
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
        let optimizer = optimizer.clone();
        Ok(Transpiled { plan, place, strategy, endpoints, optimizer, shapes })
    }

    /// Cuts parameters into blocks and assigns each block to a server; returns the parameters'
    /// shapes.
    fn assign_blocks(
        &self,
        programs: &Programs,
        plan: &mut ServerPlan,
        server_count: usize,
    ) -> Vec<(String, Shape)> {
        let main = &programs.main;
        let params = plan.tables.dense.iter().flat_map(|table| &table.params);
        let shape = |name: &str| main.find_var(name).map(|var| main.var(var).shape);
        let mut shapes: Vec<(String, Shape)> =
            params.filter_map(|(name, _)| Some((name.clone(), shape(name)?))).collect();
        shapes.sort_by(|a, b| a.0.cmp(&b.0));
        let mut order: Vec<usize> = (0..shapes.len()).collect();
        if !self.slice_var_up {
            // In name order, large and small parameters alternate, so some servers would get only
            // large ones.
            Sequence::new(main.seed(), STREAM).shuffle(&mut order);
        }
        let mut dealt: Vec<Vec<ParamBlock>> = vec![Vec::new(); shapes.len()];
        let mut at = 0;
        for param in order {
            let (name, shape) = &shapes[param];
            let lens = match self.slice_var_up {
                true => block_lens(shape, server_count, self.min_block_size),
                false => vec![shape.numel().unwrap_or(0)],
            };
            for (block, len) in lens.iter().enumerate() {
                let name = match lens.len() {
                    1 => name.clone(),
                    _ => format!("{name}.block{block}"),
                };
                let server = self.split_method.server(at, &name, server_count);
                let block = DenseBlock { len: *len, server };
                dealt[param].push(ParamBlock { name, block });
                at += 1;
            }
        }
        for table in &mut plan.tables.dense {
            let blocks = table.params.iter().filter_map(|(name, _)| {
                Some(dealt[shapes.iter().position(|(other, _)| other == name)?].clone())
            });
            table.blocks = Some(blocks.flatten().collect());
        }
        shapes
    }
}

/// Random number stream for the assignment of parameters to servers.
const STREAM: u64 = 0x7472_616E;

fn endpoints(text: &str) -> Result<Vec<String>> {
    let endpoints: Vec<String> =
        text.split(',').map(|it| it.trim().to_string()).filter(|it| !it.is_empty()).collect();
    let mut sorted = endpoints.clone();
    sorted.sort();
    sorted.dedup();
    if endpoints.is_empty() || sorted.len() < endpoints.len() {
        return Err(Error::invalid("invalid list of servers in pservers")
            .expected("HOST:PORT,HOST:PORT,... each once")
            .got(format!("'{text}'")));
    }
    Ok(endpoints)
}

/// Writes the server of each block into `send` and `recv`.
fn name_endpoints(programs: &mut Programs, plan: &ServerPlan, endpoints: &[String]) -> Result<()> {
    let main = &mut programs.main;
    let ops: Vec<_> = main
        .root_ops()
        .filter(|(_, op)| (send::DEF.is(op) || recv::DEF.is(op)) && op.attr_int("is_sparse") == 0)
        .map(|(id, op)| (id, op.attr_int("table_id"), send::DEF.is(op)))
        .collect();
    for (id, table_id, sends) in ops {
        let table = plan.tables.dense.iter().find(|it| i64::from(it.table_id) == table_id);
        let Some(blocks) = table.and_then(|table| table.blocks.as_ref()) else { continue };
        let epmap: Vec<String> =
            blocks.iter().map(|block| endpoints[block.block.server].clone()).collect();
        let op = main.op_mut(id);
        op.set_attr("epmap", epmap)?;
        if sends {
            let names: Vec<String> = blocks.iter().map(|block| grad_name(&block.name)).collect();
            op.set_attr("send_varnames", names)?;
        }
    }
    Ok(())
}

/// Returns the name of a block's gradient: `w@GRAD.block0` for `w.block0`.
fn grad_name(block: &str) -> String {
    match block.rsplit_once(".block") {
        Some((name, number)) => format!("{name}@GRAD.block{number}"),
        None => format!("{block}@GRAD"),
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
