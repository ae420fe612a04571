//! A server's work as a program: a loop that receives gradients, and a block of update ops for each
//! block of parameters on the server.

use super::Transpiled;
use super::blocks::grad_name;
use crate::servers::{DenseTable, Exchange, ParamBlock, PushMode};
use fleet_base::Result;
use fleet_ir::{OpRole, Param, Program, Var, VarId};
use fleet_nn::Programs;
use fleet_nn::optimizer::{ApplyAt, OptimizerDesc};
use fleet_ops::{Emit, Registry};
use fleet_ops::{
    math::{scale, sum},
    ps::listen_and_serv,
    tensor::fill,
};
use fleet_tensor::{DType, Shape};

impl Transpiled {
    /// Returns the program of the server at an endpoint, for inspection and tests:
    /// `listen_and_serv`, and the update of each block once its gradients have arrived.
    /// `Fleet::init_server` does the same directly on the tables.
    pub fn get_pserver_program(&self, endpoint: &str) -> Result<Program> {
        Ok(self.get_pserver_programs(endpoint)?.main)
    }

    /// Returns the program that creates the server's parameters and optimizer state. Worker 0
    /// uploads the values.
    pub fn get_startup_program(&self, endpoint: &str) -> Result<Program> {
        Ok(self.get_pserver_programs(endpoint)?.startup)
    }

    /// Returns both programs.
    pub fn get_pserver_programs(&self, endpoint: &str) -> Result<Programs> {
        let server = self.server(endpoint)?;
        let mut programs = Programs::new();
        let mut optimizer = self.optimizer.clone();
        // Workers clip and decay gradients before they send them.
        (optimizer.settings.grad_clip, optimizer.settings.weight_decay) = (None, None);
        let rate = optimizer.emit_rate(&mut programs, Registry::standard())?;
        let (mut blocks, mut grads) = (Vec::new(), Vec::new());
        for table in &self.plan.tables.dense {
            let own = table.blocks.iter().flatten().filter(|block| block.block.server == server);
            for block in own {
                let at = ApplyAt {
                    block: programs.main.add_block(Program::ROOT),
                    rate: Some(rate),
                    ..ApplyAt::default()
                };
                self.update(&mut programs, &optimizer, table, block, &at)?;
                let number = programs.main.block_count() as i64 - 1;
                blocks.push(number);
                grads.push(format!("{}:{number}", grad_name(&block.name)));
            }
        }
        let mut emit = Emit::new(&mut programs.main, Registry::standard(), OpRole::RPC);
        emit.op(&listen_and_serv::DEF)
            .attr("endpoint", endpoint)
            .attr("optimize_blocks", blocks)
            .attr("grad_to_block_id", grads)
            .attr("Fanin", self.place.worker_count as i64)
            .attr("distributed_mode", self.mode_number())
            .attr("dc_asgd", self.plan.corrects_delay)
            .done()?;
        emit.append();
        Ok(programs)
    }

    /// Returns the mode's number in the original: 0 sync, 1 async, 2 half-async, 3 geo.
    fn mode_number(&self) -> i64 {
        match self.plan.exchange {
            Exchange::Pushes(PushMode::Sync) => 0,
            Exchange::Pushes(PushMode::Async) => 1,
            Exchange::Pushes(PushMode::HalfAsync) => 2,
            Exchange::Geo { .. } => 3,
        }
    }

    /// Adds the update of one block of parameters.
    fn update(
        &self,
        programs: &mut Programs,
        optimizer: &OptimizerDesc,
        table: &DenseTable,
        block: &ParamBlock,
        at: &ApplyAt,
    ) -> Result<()> {
        let shape = self.block_shape(block)?;
        let adds = self.plan.exchange.is_geo();
        let learning_rate = if adds { 1.0 } else { table.rate_scale };
        let held = Param { learning_rate, ..Param::default() };
        let var = Var::persistable(&block.name, DType::F32, shape);
        let var = Var { param: Some(held), ..var };
        let param = programs.main.add_var(Program::ROOT, var.clone())?;
        let made = programs.startup.add_var(Program::ROOT, var)?;
        let mut startup = Emit::new(&mut programs.startup, Registry::standard(), OpRole::FORWARD);
        startup
            .op(&fill::FILL_CONSTANT)
            .output("Out", made)
            .attr("shape", shape.to_vec())
            .attr("value", 0.0)
            .done()?;
        startup.append();

        let grad = grad_name(&block.name);
        let workers = self.place.worker_count;
        let per_worker = self.plan.exchange.is_sync() && workers > 1;
        let names: Vec<String> = match per_worker {
            true => (0..workers).map(|worker| format!("{grad}.trainer_{worker}")).collect(),
            false => vec![grad.clone()],
        };
        let mut received: Vec<VarId> = Vec::new();
        for name in &names {
            let var = Var::data(name, DType::F32, shape);
            received.push(programs.main.add_var(Program::ROOT, var)?);
        }
        let mut emit = Emit::new(&mut programs.main, Registry::standard(), OpRole::OPTIMIZE);
        emit.block = at.block;
        if adds {
            emit.op(&sum::DEF).inputs("X", &[param, received[0]]).output("Out", param).done()?;
            emit.append();
            return Ok(());
        }
        let mean = match per_worker {
            true => {
                let sum = emit.op(&sum::DEF).inputs("X", &received).named(&*grad).one("Out")?;
                let share = 1.0 / workers as f64;
                emit.op(&scale::DEF).input("X", sum).attr("scale", share).one("Out")?
            }
            false => received[0],
        };
        emit.append();
        optimizer.apply_gradients_at(programs, Registry::standard(), &[(param, mean)], at)?;
        Ok(())
    }

    /// Returns the shape of a block: whole rows of its parameter, or the whole parameter.
    fn block_shape(&self, block: &ParamBlock) -> Result<Shape> {
        let name = block.name.rsplit_once(".block").map_or(&*block.name, |(name, _)| name);
        let of = |name: &str| self.shapes.iter().find(|(other, _)| other == name);
        let shape = of(&block.name).or_else(|| of(name)).map(|(_, shape)| *shape);
        let Some(mut shape) = shape.filter(|shape| shape.rank() > 0) else {
            return Shape::new(&[block.block.len as i64]);
        };
        let row: usize = shape.dims().iter().skip(1).map(|dim| (*dim).max(1) as usize).product();
        shape.dims_mut()[0] = (block.block.len / row.max(1)) as i64;
        Ok(shape)
    }
}
