//! The whole model of a job whose ranks divide it, on rank 0: to save it in one place, or to export
//! it.

use crate::slices::{copy_common, divisions};
use crate::{Fleet, Session};
use fleet_base::{Error, Result};
use fleet_comm::Group;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::{Division, Param, Program, Var};
use fleet_nn::Programs;
use fleet_strategy::{LocalVar, Spread, local_state, undivided};
use fleet_tensor::{DType, Shape, Tensor};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A model with all of its state, for one process.
pub struct WholeModel {
    /// The forward part, as for inference, with all variables that persist between steps.
    pub program: Program,
    /// Parameters, optimizer state, statistics and counters.
    pub scope: Scope,
    /// The parts that are missing of variables that ranks divide.
    missing: BTreeMap<String, BTreeSet<usize>>,
}

impl Fleet {
    /// Returns the model with the state of all ranks, on rank 0. All ranks must call it. The ranks
    /// send the state that rank 0 does not have, if they divide state or layers.
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
        if let Some(whole) = &whole {
            whole.check_parts()?;
        }
        Ok(whole)
    }
}

impl WholeModel {
    /// Returns a session of one process that evaluates the model.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let y = net.data("x", [-1, 2], DType::F32).fc(1);
    /// let strategy = DistributedStrategy::new();
    /// let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, y.mean())?;
    /// let y = y.name();
    /// let session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    /// // .. training
    /// if let Some(whole) = fleet.whole(&session)? {
    ///     let mut whole = whole.session(ExecOptions::default())?;
    ///     let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2])?;
    ///     assert_eq!(whole.evaluate(&[("x", &x)], &[&y])?.len(), 1);
    /// }
    /// fleet.finish()?;
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn session(self, options: ExecOptions) -> Result<Session> {
        let programs = Programs { main: self.program, ..Programs::default() };
        Session::with_scope(programs, self.scope, Executor::new(options))
    }

    /// Returns the state that a rank has.
    fn of(session: &Session) -> Result<WholeModel> {
        let program = match session.whole_program() {
            Some(whole) => whole.clone(),
            None => undivided(session.test_program())?,
        };
        let mut model = WholeModel { program, scope: Scope::new(), missing: BTreeMap::new() };
        let kept = session.programs.main.vars().filter(|(_, var)| var.persistable);
        for (_, var) in kept {
            model.add(var.clone(), session.scope.tensor(&var.name)?)?;
        }
        model.scope.set_step(session.scope.step());
        Ok(model)
    }

    /// Adds a variable, or a part of it.
    fn add(&mut self, var: Var, value: Tensor) -> Result<()> {
        let Some(division) = var.division.filter(Division::is_part) else {
            self.scope.set(&var.name, value);
            return self.declare(var);
        };
        let whole = division.whole(&var.shape).filter(|_| division.fits(&var.shape));
        let whole =
            whole.ok_or_else(|| Error::invalid("invalid part of a variable").at(&var.name))?;
        if value.shape() != &var.shape {
            return Err(Error::internal("a part has the wrong shape").at(&var.name));
        }
        let name = var.name.clone();
        let missing = self.missing.entry(name.clone()).or_insert((0..division.parts).collect());
        missing.remove(&division.part);
        let mut tensor = match self.scope.contains(&name) {
            true => self.scope.tensor(&name)?,
            false => Tensor::zeros(value.dtype(), whole)?,
        };
        if tensor.shape() != &whole || tensor.dtype() != value.dtype() {
            return Err(Error::invalid("ranks have parts of different variables").at(&name));
        }
        copy_common((&mut tensor, division.undivided()), (&value, division));
        self.scope.set(&name, tensor);
        self.declare(Var { shape: whole, division: None, ..var })
    }

    fn declare(&mut self, var: Var) -> Result<()> {
        if self.program.find_var(&var.name).is_none() {
            self.program.add_var(Program::ROOT, var)?;
        }
        Ok(())
    }

    /// Returns whether a rank's variable, or its part of one, is still missing.
    fn lacks(&self, var: &Var) -> bool {
        match (self.missing.get(&var.name), var.division) {
            (Some(parts), Some(division)) => parts.contains(&division.part),
            _ => !self.scope.contains(&var.name),
        }
    }

    /// Fails if a part of a variable has not arrived.
    fn check_parts(&self) -> Result<()> {
        match self.missing.iter().find(|(_, parts)| !parts.is_empty()) {
            None => Ok(()),
            Some((name, parts)) => Err(Error::internal("no rank has sent a part of a variable")
                .got(format!("missing parts {parts:?}"))
                .at(name)),
        }
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
        let wanted: Vec<u8> = vars.iter().map(|var| u8::from(self.lacks(var))).collect();
        group.send("state: wanted", &wanted, rank)?;
        for (var, _) in vars.into_iter().zip(wanted).filter(|(_, wanted)| *wanted == 1) {
            let mut value = Tensor::zeros(var.dtype, var.shape)?;
            group.recv(&var.name, value.as_bytes_mut(), rank)?;
            self.add(var, value)?;
        }
        Ok(())
    }
}

/// Returns the variables that this rank owns, and those of which it has a part.
fn owned(main: &Program) -> Vec<Var> {
    let parts = divisions(main);
    let is_own = |var: &LocalVar| var.spread == Spread::Owner || parts.contains_key(&var.name);
    let local = local_state(main).into_iter().filter(is_own);
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
    let part = match var.division.filter(Division::is_part) {
        Some(it) => {
            let numbers = [it.axis, it.groups, it.part, it.parts, it.padding];
            numbers.map(|number| number.to_string()).join(",")
        }
        None => String::new(),
    };
    format!("{kind}\t{}\t{}\t{part}\t{}\n", var.dtype, dims.join(","), var.name)
}

fn parse(line: &str) -> Option<Var> {
    let [kind, dtype, dims, part, name] = line.splitn(5, '\t').collect::<Vec<_>>()[..] else {
        return None;
    };
    let dims = dims.split(',').filter(|dim| !dim.is_empty());
    let dims: Vec<i64> = dims.map(|dim| dim.parse().ok()).collect::<Option<_>>()?;
    let (dtype, shape) = (DType::parse(dtype).ok()?, Shape::new(&dims).ok()?);
    if !shape.is_known() {
        return None;
    }
    let mut var = match kind == PARAMETER {
        true => Var::parameter(name, dtype, shape, Param::default()),
        false => Var::persistable(name, dtype, shape),
    };
    if !part.is_empty() {
        let numbers: Vec<usize> =
            part.split(',').map(|number| number.parse().ok()).collect::<Option<_>>()?;
        let [axis, groups, part, parts, padding] = numbers[..] else { return None };
        let division = Division { axis, groups, part, parts, padding };
        var.division = Some(division).filter(|it| it.fits(&shape));
        var.division?;
    }
    Some(var)
}

const PARAMETER: &str = "parameter";
const STATE: &str = "state";
