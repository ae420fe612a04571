//! Programs of Python: cells that hold a program, and the calls that write to them.
//!
//! A call of a layer takes both programs out of their cells, makes a network of them, and puts them
//! back. If it fails, the programs are as they were before. A run holds a share of the program, so
//! that a program may be extended while it runs elsewhere; it then is copied first.

use crate::error::{OrRaise, exception, forget_raised, guarded};
use crate::session::Job;
use fleet::ir;
use fleet::nn::{HostRate, Net, OpenCond, Programs, Var};
use fleet::ops::{Registry, Tables};
use fleet_base::EntityRef;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::cell::Cell;
use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard};

/// A program, with what belongs to it and is not part of its text.
#[derive(Default)]
pub struct Held {
    pub program: Arc<ir::Program>,
    /// Learning rates that are functions of Python.
    pub host_rates: Vec<HostRate>,
    /// The job that it was rewritten for, for the main and the startup program of the job.
    pub job: Option<Arc<Job>>,
    /// The saved rows that its lookups read.
    pub tables: Option<Arc<dyn Tables>>,
    /// Whether the program evaluates: its runs leave the random numbers of training as they are.
    pub for_test: bool,
    /// Names of the variables that other workers have: those of the other stages of a pipeline.
    pub left: HashMap<u32, String>,
    /// The branches that are being written, the innermost last. Layers are added to it.
    pub branches: Vec<OpenCond>,
}

/// A cell that holds a program.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct ProgramCell {
    held: Mutex<Held>,
}

impl ProgramCell {
    pub fn of(program: ir::Program) -> ProgramCell {
        let held = Held { program: Arc::new(program), ..Held::default() };
        ProgramCell { held: Mutex::new(held) }
    }

    /// Returns a cell for a program that evaluates.
    pub fn of_test(program: ir::Program) -> ProgramCell {
        let held = Held { program: Arc::new(program), for_test: true, ..Held::default() };
        ProgramCell { held: Mutex::new(held) }
    }

    /// Returns a cell for a model, whose lookups read these tables.
    pub fn of_model(program: ir::Program, tables: Option<Arc<dyn Tables>>) -> ProgramCell {
        let (program, for_test) = (Arc::new(program), true);
        ProgramCell { held: Mutex::new(Held { program, tables, for_test, ..Held::default() }) }
    }

    /// Locks the cell. Calls hold it only while they have the interpreter's lock. So it is in use
    /// if an argument of such a call runs Python code that uses the same program.
    pub fn lock(&self) -> PyResult<MutexGuard<'_, Held>> {
        self.held.try_lock().map_err(|_| {
            PyRuntimeError::new_err(
                "the program is in use by another call\n  help: build a program in one thread",
            )
        })
    }

    pub fn program(&self) -> PyResult<Arc<ir::Program>> {
        Ok(Arc::clone(&self.lock()?.program))
    }

    /// Like `lock`, for calls that need the whole program: not while a branch of it is written.
    pub fn lock_whole(&self) -> PyResult<MutexGuard<'_, Held>> {
        let held = self.lock()?;
        if held.branches.is_empty() {
            return Ok(held);
        }
        Err(PyValueError::new_err(
            "a branch of cond of the program is being written\n  \
             help: run, save, copy or minimize the program after the call of cond",
        ))
    }

    /// Like `program`, for calls that need the whole program.
    pub fn whole(&self) -> PyResult<Arc<ir::Program>> {
        Ok(Arc::clone(&self.lock_whole()?.program))
    }

    /// Changes the program.
    fn change<T>(&self, change: impl FnOnce(&mut ir::Program) -> PyResult<T>) -> PyResult<T> {
        change(Arc::make_mut(&mut self.lock()?.program))
    }
}

/// Returns the id of a variable that Python holds, if the program has it.
pub fn id_in(program: &ir::Program, id: u32) -> PyResult<ir::VarId> {
    let id = ir::VarId::from_index(id as usize);
    match program.has_var(id) && program.find_var(program.var_name(id)) == Some(id) {
        true => Ok(id),
        false => Err(PyValueError::new_err("the program does not have this variable any more")),
    }
}

pub fn index(id: ir::VarId) -> u32 {
    id.index() as u32
}

/// Returns the variables of a network that Python holds.
pub fn vars<'n>(net: &'n Net, given: &[u32]) -> PyResult<Vec<Var<'n>>> {
    let var = |id: &u32| net.var_with_id(ir::VarId::from_index(*id as usize)).or_raise();
    given.iter().map(var).collect()
}

/// Facts about a variable: name, shape, type, and whether it persists, stops gradients, is fed,
/// trains; then the levels of nesting of ragged rows.
type VarFacts = (String, Vec<i64>, &'static str, bool, bool, bool, bool, u8);

/// Facts about an op: its name, and the names of its inputs and outputs.
type OpFacts = (&'static str, Vec<String>, Vec<String>);

#[pymethods]
impl ProgramCell {
    #[new]
    fn new() -> ProgramCell {
        ProgramCell::of(ir::Program::new())
    }

    /// Reads the text form.
    #[staticmethod]
    fn parse(text: &str) -> PyResult<ProgramCell> {
        let parsed = guarded(|| ir::Program::parse(text, Registry::standard()));
        let program = parsed.and_then(|parsed| parsed).or_raise()?;
        Ok(ProgramCell::of(program))
    }

    /// Returns the text form, with the sources of ops if asked for.
    fn text(&self, with_sources: bool) -> PyResult<String> {
        let program = self.program()?;
        if with_sources {
            return Ok(program.to_string());
        }
        let mut plain = ir::Program::clone(&program);
        let ops: Vec<ir::OpId> =
            plain.block_ids().flat_map(|block| plain.block(block).ops().to_vec()).collect();
        ops.into_iter().for_each(|op| plain.op_mut(op).source = None);
        Ok(plain.to_string())
    }

    fn facts(&self, id: u32) -> PyResult<VarFacts> {
        let program = self.program()?;
        let var = program.var(id_in(&program, id)?);
        let trains = var.param.as_ref().is_some_and(|param| param.trainable);
        let (name, dtype) = (var.name.clone(), crate::arrays::long_name(var.dtype));
        let flags = (var.persistable, var.stop_gradient, var.is_data);
        Ok((name, var.shape.to_vec(), dtype, flags.0, flags.1, flags.2, trains, var.lod_level))
    }

    /// Returns the name of a variable, also of one that is in another stage of the pipeline.
    fn name_of(&self, id: u32) -> PyResult<String> {
        let held = self.lock()?;
        let found = id_in(&held.program, id).map(|id| held.program.var_name(id).to_string());
        found.or_else(|error| held.left.get(&id).cloned().ok_or(error))
    }

    fn find(&self, name: &str) -> PyResult<Option<u32>> {
        Ok(self.program()?.find_var(name).map(index))
    }

    /// Like `find`; an error suggests the nearest name.
    fn named(&self, name: &str) -> PyResult<u32> {
        let held = self.lock()?;
        let found = held.program.var_named(name).map(index);
        if found.is_err() && held.left.values().any(|left| left == name) {
            return Err(PyValueError::new_err(format!(
                "the variable '{name}' is in another stage of the pipeline\n  \
                 help: let all workers call fleet.distributed.fleet.whole_model(): worker 0 has it"
            )));
        }
        found.or_raise()
    }

    fn vars(&self) -> PyResult<Vec<u32>> {
        Ok(self.program()?.vars().map(|(id, _)| index(id)).collect())
    }

    fn parameters(&self) -> PyResult<Vec<u32>> {
        Ok(self.program()?.parameters().map(|(id, _)| index(id)).collect())
    }

    /// Returns the names of the ops of the root block.
    fn op_names(&self) -> PyResult<Vec<&'static str>> {
        Ok(self.program()?.root_ops().map(|(_, op)| op.name()).collect())
    }

    /// Returns the ops of the root block: names, and the names of inputs and outputs.
    fn ops(&self) -> PyResult<Vec<OpFacts>> {
        let program = self.program()?;
        let names = |ids: &mut dyn Iterator<Item = ir::VarId>| -> Vec<String> {
            ids.map(|id| program.var_name(id).to_string()).collect()
        };
        let row =
            |op: &ir::Op| (op.name(), names(&mut op.all_inputs()), names(&mut op.all_outputs()));
        Ok(program.root_ops().map(|(_, op)| row(op)).collect())
    }

    fn set_stop_gradient(&self, id: u32, value: bool) -> PyResult<()> {
        self.change(|program| {
            let id = id_in(program, id)?;
            let var = program.var_mut(id);
            if let Some(param) = &mut var.param {
                param.trainable = !value;
            }
            var.stop_gradient = value;
            Ok(())
        })
    }

    #[getter]
    fn seed(&self) -> PyResult<u64> {
        Ok(self.program()?.seed())
    }

    fn set_seed(&self, seed: u64) -> PyResult<()> {
        self.change(|program| {
            program.set_seed(seed);
            Ok(())
        })
    }

    /// Makes this program the one that `saved` has, a copy from before.
    fn restore(&self, saved: &ProgramCell) -> PyResult<()> {
        let (program, host_rates) = {
            let saved = saved.lock()?;
            (Arc::clone(&saved.program), saved.host_rates.clone())
        };
        let mut held = self.lock()?;
        (held.program, held.host_rates) = (program, host_rates);
        Ok(())
    }

    /// Returns the size of the program, to which `undo` returns.
    fn mark(&self) -> PyResult<MarkCell> {
        let held = self.lock()?;
        Ok(MarkCell { mark: Mark::of(&held.program), branches: held.branches.len() })
    }

    /// Removes all that layers have added since a mark.
    fn undo(&self, mark: &MarkCell) -> PyResult<()> {
        let mut held = self.lock()?;
        mark.mark.restore(Arc::make_mut(&mut held.program));
        held.branches.truncate(mark.branches);
        Ok(())
    }

    /// Returns a copy: of the whole program, or of its forward part for evaluation.
    fn copy(&self, for_test: bool) -> PyResult<ProgramCell> {
        let held = self.lock_whole()?;
        let tables = held.tables.clone();
        if for_test {
            return Ok(ProgramCell::of_model(held.program.clone_for_test().or_raise()?, tables));
        }
        let (program, job) = (Arc::clone(&held.program), held.job.clone());
        let (host_rates, for_test) = (held.host_rates.clone(), held.for_test);
        let left = held.left.clone();
        let copy = Held { program, host_rates, job, tables, for_test, left, ..Held::default() };
        Ok(ProgramCell { held: Mutex::new(copy) })
    }
}

/// Counters of automatic names, which programs share.
#[pyclass(module = "fleet._fleet", frozen)]
#[derive(Default)]
pub struct NamesCell {
    counters: Mutex<ir::NameCounters>,
}

#[pymethods]
impl NamesCell {
    #[new]
    fn new() -> NamesCell {
        NamesCell::default()
    }

    /// Returns the next name: `key_0`, `key_1`, ..
    fn generate(&self, py: Python<'_>, key: &str) -> PyResult<String> {
        let mut counting = ir::Program::new();
        let mut counters = self.lock(py)?;
        counting.swap_name_counters(&mut counters);
        let name = counting.unique_name(key);
        counting.swap_name_counters(&mut counters);
        Ok(name)
    }
}

thread_local! {
    /// Whether a call of this thread holds counters of names.
    static COUNTS: Cell<bool> = const { Cell::new(false) };
}

/// Locked counters of names.
pub struct Names<'a>(MutexGuard<'a, ir::NameCounters>);

impl Deref for Names<'_> {
    type Target = ir::NameCounters;

    fn deref(&self) -> &ir::NameCounters {
        &self.0
    }
}

impl DerefMut for Names<'_> {
    fn deref_mut(&mut self) -> &mut ir::NameCounters {
        &mut self.0
    }
}

impl Drop for Names<'_> {
    fn drop(&mut self) {
        COUNTS.set(false);
    }
}

impl NamesCell {
    /// Locks the counters. Threads share them, so a call waits for those of other threads. A call
    /// that an argument of another call makes does not wait for its own thread.
    pub fn lock(&self, py: Python<'_>) -> PyResult<Names<'_>> {
        loop {
            if let Ok(counters) = self.counters.try_lock() {
                COUNTS.set(true);
                return Ok(Names(counters));
            }
            if COUNTS.get() || self.counters.is_poisoned() {
                return Err(PyRuntimeError::new_err(
                    "another call uses the counters of names\n  \
                     help: write no layer in the arguments of another one",
                ));
            }
            py.detach(|| drop(self.counters.lock()));
        }
    }
}

/// The state of the guards around a call.
#[derive(FromPyObject)]
pub struct Place {
    pub names: Py<NamesCell>,
    /// `file:line` of the user's script.
    pub source: String,
    /// Name scopes, such as `encoder/layer_0`.
    scope: Option<String>,
    device: Option<String>,
    fp16_guard: bool,
}

/// Runs `write` on the network of two programs. If it fails, the programs stay as they were.
pub fn with_net<T>(
    main: &ProgramCell,
    startup: &ProgramCell,
    place: &Place,
    write: impl FnOnce(&Net) -> PyResult<T>,
) -> PyResult<T> {
    if std::ptr::eq(main, startup) {
        return Err(PyValueError::new_err(
            "one program cannot be the main and the startup program\n  \
             help: pass two programs to program_guard",
        ));
    }
    let (mut main, mut startup) = (main.lock()?, startup.lock()?);
    let mut names = Python::attach(|py| place.names.get().lock(py))?;
    let taken = |held: &mut Held| Arc::unwrap_or_clone(std::mem::take(&mut held.program));
    let host_rates = std::mem::take(&mut main.host_rates);
    let rate_count = host_rates.len();
    let (first, second) = (taken(&mut main), taken(&mut startup));
    let mut programs = Programs { main: first, startup: second, host_rates, ..Programs::new() };
    programs.main.swap_name_counters(&mut names);
    let before = [Mark::of(&programs.main), Mark::of(&programs.startup)];
    let net = Net::from_programs(programs);
    forget_raised();
    let made = {
        let _source = net.source_guard(&place.source);
        let _scope = place.scope.as_ref().map(|scope| net.name_scope(scope));
        let _device = place.device.as_ref().map(|device| net.device_guard(device));
        let _fp16 = place.fp16_guard.then(|| net.fp16_guard());
        let _branch = main.branches.last().map(|open| net.branch_guard(open));
        guarded(|| write(&net)).or_raise().and_then(|made| made)
    };
    let (mut programs, error) = net.into_parts();
    programs.main.swap_name_counters(&mut names);
    if error.is_some() || made.is_err() {
        before[0].restore(&mut programs.main);
        before[1].restore(&mut programs.startup);
        programs.host_rates.truncate(rate_count);
    }
    main.program = Arc::new(programs.main);
    main.host_rates = programs.host_rates;
    startup.program = Arc::new(programs.startup);
    match (made, error) {
        (Ok(_), Some(error)) => Err(exception(&error)),
        (made, _) => made,
    }
}

/// Runs a rewrite of whole programs, which may change any part of them: they are copied first.
pub fn rewriting<T>(
    main: &ProgramCell,
    startup: &ProgramCell,
    place: &Place,
    write: impl FnOnce(&Net) -> PyResult<T>,
) -> PyResult<T> {
    let saved = (main.program()?, startup.program()?);
    let made = with_net(main, startup, place, write);
    if made.is_err() {
        (main.lock()?.program, startup.lock()?.program) = saved;
    }
    made
}

/// The size of a program before a call.
struct Mark {
    vars: usize,
    /// Number of ops in each block.
    ops: Vec<usize>,
    streams: u64,
}

impl Mark {
    fn of(program: &ir::Program) -> Mark {
        let ops = program.block_ids().map(|block| program.block(block).ops().len()).collect();
        Mark { vars: program.var_capacity(), ops, streams: program.streams() }
    }

    /// Removes the ops, variables and blocks that a call has added.
    fn restore(&self, program: &mut ir::Program) {
        let blocks: Vec<ir::BlockId> = program.block_ids().collect();
        for (number, block) in blocks.into_iter().enumerate() {
            let count = self.ops.get(number).copied().unwrap_or(0);
            let kept = program.block(block).ops().iter().copied().take(count).collect();
            program.set_block_ops(block, kept);
        }
        let added: Vec<ir::VarId> =
            program.vars().map(|(id, _)| id).filter(|id| id.index() >= self.vars).collect();
        added.into_iter().for_each(|id| program.remove_var(id));
        program.truncate_blocks(self.ops.len());
        program.set_streams(self.streams);
    }
}

/// The size of a program, between two calls.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct MarkCell {
    mark: Mark,
    branches: usize,
}
