//! The whole model of a sharded job, on rank 0: to save it in one place, or to export it.

use crate::{Fleet, Session};
use fleet_base::{Error, Result};
use fleet_comm::Group;
use fleet_exec::Scope;
use fleet_ir::{Param, Program, Var};
use fleet_strategy::{Spread, local_state, undivided};
use fleet_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;

/// A model with all of its state, for one process.
pub struct WholeModel {
    /// The forward part, as for inference, with all variables that persist between steps.
    pub program: Program,
    /// Parameters, optimizer state, statistics and counters.
    pub scope: Scope,
}

impl Fleet {
    /// Returns the model with the state of all ranks, on rank 0. All ranks must call it. In a
    /// sharded job, the ranks send the state that rank 0 does not have.
    ///
    /// Rank 0 needs memory for the whole state. Checkpoints and saves of single ranks do not.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::strategy::ShardingConfig;
    /// # let folder = std::env::temp_dir().join(format!("fleet-whole-doc-{}", std::process::id()));
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let y = net.data("x", [-1, 2], DType::F32).fc(1);
    /// let strategy = DistributedStrategy::new().use_sharding(ShardingConfig::default());
    /// let job = fleet.distributed_optimizer(Adam::new(0.1), &strategy).minimize(&net, y.mean())?;
    /// let y = y.name();
    /// let session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    /// // .. training
    /// if let Some(whole) = fleet.whole(&session)? {
    ///     fleet::save_inference_model(&folder, &whole.program, &[&y], &whole.scope)?;
    /// }
    /// fleet.finish()?;
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn whole(&self, session: &Session) -> Result<Option<WholeModel>> {
        let main = &session.programs.main;
        let mut whole = match self.is_first_worker() {
            true => Some(WholeModel::of(session)?),
            false => None,
        };
        let Some(group) = self.workers()? else { return Ok(whole) };
        let own = owned(main);
        match &mut whole {
            None => send(group, &own, &session.scope)?,
            Some(whole) => (1..group.size()).try_for_each(|rank| whole.receive(group, rank))?,
        }
        Ok(whole)
    }
}

impl WholeModel {
    /// Returns the state that a rank has.
    fn of(session: &Session) -> Result<WholeModel> {
        let mut model =
            WholeModel { program: undivided(session.test_program())?, scope: Scope::new() };
        let kept = session.programs.main.vars().filter(|(_, var)| var.persistable);
        for (_, var) in kept {
            model.add(var.clone(), session.scope.tensor(&var.name)?)?;
        }
        model.scope.set_step(session.scope.step());
        Ok(model)
    }

    fn add(&mut self, var: Var, value: Tensor) -> Result<()> {
        self.scope.set(&var.name, value);
        if self.program.find_var(&var.name).is_none() {
            self.program.add_var(Program::ROOT, var)?;
        }
        Ok(())
    }

    /// Receives the state of a rank that this model does not have yet.
    fn receive(&mut self, group: &Group, rank: usize) -> Result<()> {
        let mut length = [0i64];
        group.recv("state: length", &mut length, rank)?;
        let mut text = vec![0u8; usize::try_from(length[0]).unwrap_or(0)];
        group.recv("state: names", &mut text, rank)?;
        let broken = || Error::invalid("invalid list of state").at(format!("rank {rank}"));
        let text = String::from_utf8(text).map_err(|_| broken())?;
        let vars: Vec<Var> =
            text.lines().map(|line| parse(line).ok_or_else(broken)).collect::<Result<_>>()?;
        let wanted: Vec<u8> =
            vars.iter().map(|var| u8::from(!self.scope.contains(&var.name))).collect();
        group.send("state: wanted", &wanted, rank)?;
        for (var, _) in vars.into_iter().zip(wanted).filter(|(_, wanted)| *wanted == 1) {
            let mut value = Tensor::zeros(var.dtype, var.shape)?;
            group.recv(&var.name, value.as_bytes_mut(), rank)?;
            self.add(var, value)?;
        }
        Ok(())
    }
}

/// Returns the variables that this rank owns.
fn owned(main: &Program) -> Vec<Var> {
    let local = local_state(main).into_iter().filter(|var| var.spread == Spread::Owner);
    let by_name: HashMap<&str, &Var> = main.vars().map(|(_, var)| (&*var.name, var)).collect();
    local.filter_map(|var| by_name.get(&*var.name).map(|var| (*var).clone())).collect()
}

/// Sends the state to rank 0 that it does not have.
fn send(group: &Group, own: &[Var], scope: &Scope) -> Result<()> {
    let text: String = own.iter().map(line).collect();
    group.send("state: length", &[text.len() as i64], 0)?;
    group.send("state: names", text.as_bytes(), 0)?;
    let mut wanted = vec![0u8; own.len()];
    group.recv("state: wanted", &mut wanted, 0)?;
    for (var, _) in own.iter().zip(wanted).filter(|(_, wanted)| *wanted == 1) {
        group.send(&var.name, scope.tensor(&var.name)?.as_bytes(), 0)?;
    }
    Ok(())
}

fn line(var: &Var) -> String {
    let kind = if var.is_parameter() { PARAMETER } else { STATE };
    let dims: Vec<String> = var.shape.iter().map(i64::to_string).collect();
    format!("{kind}\t{}\t{}\t{}\n", var.dtype, dims.join(","), var.name)
}

fn parse(line: &str) -> Option<Var> {
    let [kind, dtype, dims, name] = line.splitn(4, '\t').collect::<Vec<_>>()[..] else {
        return None;
    };
    let dims = dims.split(',').filter(|dim| !dim.is_empty());
    let dims: Vec<i64> = dims.map(|dim| dim.parse().ok()).collect::<Option<_>>()?;
    let (dtype, shape) = (DType::parse(dtype).ok()?, Shape::new(&dims).ok()?);
    if !shape.is_known() {
        return None;
    }
    Some(match kind == PARAMETER {
        true => Var::parameter(name, dtype, shape, Param::default()),
        false => Var::persistable(name, dtype, shape),
    })
}

const PARAMETER: &str = "parameter";
const STATE: &str = "state";
