//! The interpreter: one op at a time on one thread, each output in fresh memory, without rewrites.
//!
//! It is simple enough to be obviously correct, and tests compare the executor with it.

use crate::Scope;
use crate::bind::{check_fed, copy_out};
use crate::executor::{check_no_duplicates, find_feed, find_fetch};
use crate::flat::{self, CONDITIONAL, Flat, LaneAssignment};
use crate::lanes::first_non_finite;
use crate::shapes::{KnownShapes, Shapes};
use crate::spill::FileSpill;
use fleet_base::{Error, Result, SecondaryMap};
use fleet_ir::{BlockId, OpId, Program, VarId, VarKind};
use fleet_kernels::pool::Pool;
use fleet_ops::{Kernel, KernelCtx, Meta, OpDef, PrepareCtx, Registry, Services};
use fleet_tensor::{Arg, ArgList, Buffer, Layout, Tensor};
use std::collections::HashSet;
use std::sync::Arc;

/// Runs programs one op at a time, as a reference.
///
/// ```
/// use fleet_exec::{ExecOptions, Executor, Interpreter, Scope};
/// use fleet_ir::Program;
/// use fleet_ops::Registry;
/// use fleet_tensor::Tensor;
///
/// # fn main() -> fleet_base::Result<()> {
/// let text = "fleet program 1
/// block0 { %x: f32[-1] data %y: f32[-1] (Out: %y) = tanh(X: %x) }";
/// let program = Program::parse(text, Registry::standard())?;
/// let x = Tensor::from_slice(&[0.5f32, -2.0], [2])?;
/// let plain = Interpreter::new().run(&program, &mut Scope::new(), &[("x", &x)], &["y"])?;
/// let mut executor = Executor::new(ExecOptions::default());
/// let fast = executor.run(&program, &mut Scope::new(), &[("x", &x)], &["y"])?;
/// assert_eq!(plain[0].as_bytes(), fast[0].as_bytes());
/// # Ok(())
/// # }
/// ```
pub struct Interpreter {
    registry: &'static Registry,
    pool: Pool,
    /// Whether to stop at the first op that produces a NaN or an infinity.
    pub check_nan_inf: bool,
    services: Services,
}

impl Default for Interpreter {
    fn default() -> Self {
        Interpreter::new()
    }
}

/// The memory of a variable.
struct Value {
    meta: Meta,
    /// `None` for variables in the scope and fed variables.
    data: Option<Buffer>,
    address: *mut u8,
    rows: Option<(Buffer, Buffer)>,
}

struct Frame<'a> {
    program: &'a Program,
    shapes: Shapes<'a>,
    scope: &'a mut Scope,
    values: SecondaryMap<VarId, Value>,
    kernels: SecondaryMap<OpId, Kernel>,
    step: u64,
}

impl Interpreter {
    /// Creates an interpreter with the ops of [`Registry::standard`].
    pub fn new() -> Interpreter {
        Self::with_registry(Registry::standard())
    }

    /// Creates an interpreter with these ops.
    pub fn with_registry(registry: &'static Registry) -> Interpreter {
        Interpreter {
            registry,
            pool: Pool::new(1),
            check_nan_inf: false,
            services: Services::none().with_spill(Arc::new(FileSpill::new(None))),
        }
    }

    /// Like [`Executor::services`](crate::Executor::services).
    pub fn services(mut self, services: Services) -> Interpreter {
        self.services = services.with_spill(Arc::new(FileSpill::new(None)));
        self
    }

    /// Like [`Executor::run`](crate::Executor::run). An error that the executor reports before the
    /// first op runs is reported before it here too, and leaves the scope's step unchanged.
    pub fn run(
        &self,
        program: &Program,
        scope: &mut Scope,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>> {
        let metas: Vec<_> = feed.iter().map(|(name, t)| (*name, t.dtype(), *t.shape())).collect();
        check_no_duplicates(&metas)?;
        let feeds = metas.iter().map(|fed| find_feed(program, fed)).collect::<Result<Vec<_>>>()?;
        let fetches: Vec<VarId> =
            fetch.iter().map(|name| find_fetch(program, name)).collect::<Result<_>>()?;
        let lanes = LaneAssignment::new(program, self.registry, true)?;
        let flat = flat::flatten(program, self.registry, &lanes)?;
        let known = KnownShapes { feeds: &feeds, scope_meta: &|name| scope.meta(name) };
        let shapes = Shapes::infer(program, &flat, &known)?;
        fetches.iter().try_for_each(|var| shapes.check_known(*var))?;
        let kernels = self.prepare_all(program, &flat, &shapes)?;
        check_scope(program, &flat, &fetches, scope)?;
        let step = scope.step();
        let mut frame =
            Frame { program, shapes, scope, values: SecondaryMap::new(), kernels, step };
        for ((id, meta), (name, tensor)) in feeds.iter().zip(feed) {
            check_fed(name, *meta, tensor)?;
            let value = Value { meta: *meta, data: None, address: tensor.as_ptr(), rows: None };
            frame.values.insert(*id, value);
        }
        frame.scope.set_step(step + 1);
        self.run_block(&mut frame, Program::ROOT)?;
        let fetch = |var: &VarId| {
            let arg = frame.arg(*var)?;
            // SAFETY: `Frame::arg` binds to memory that lives as long as the frame; no kernel runs.
            copy_out(unsafe { arg.view() }, None)
        };
        fetches.iter().map(fetch).collect()
    }

    /// Prepares the kernels of all ops.
    fn prepare_all(
        &self,
        program: &Program,
        flat: &[Flat],
        shapes: &Shapes<'_>,
    ) -> Result<SecondaryMap<OpId, Kernel>> {
        let ops = flat.iter().filter_map(|step| match step {
            Flat::Op(id, def) => Some((*id, *def)),
            Flat::Jump { .. } => None,
        });
        ops.map(|(id, def)| {
            let kernel = self.prepare(program, id, def, shapes);
            Ok((id, kernel.map_err(|error| error.at(program.describe_op(id)))?))
        })
        .collect()
    }

    fn prepare(
        &self,
        program: &Program,
        id: OpId,
        def: &OpDef,
        shapes: &Shapes<'_>,
    ) -> Result<Kernel> {
        let op = program.op(id);
        let layouts = |slots: &[Vec<VarId>]| -> Vec<Vec<Layout>> {
            slots.iter().map(|vars| vec![Layout::RowMajor; vars.len()]).collect()
        };
        (def.cpu)(&PrepareCtx {
            op,
            inputs: &shapes.of_slots(&op.inputs),
            outputs: &shapes.of_slots(&op.outputs),
            input_layouts: &layouts(&op.inputs),
            output_layouts: &layouts(&op.outputs),
            threads: 1,
            seed: program.seed(),
            services: &self.services,
        })
    }

    fn run_block(&self, frame: &mut Frame<'_>, block: BlockId) -> Result<()> {
        let program = frame.program;
        for (id, op) in program.block_ops(block) {
            if op.name() != CONDITIONAL {
                self.run_op(frame, id).map_err(|error| error.at(program.describe_op(id)))?;
                continue;
            }
            let (Some(inner), Some(condition)) = (op.sub_block(), op.input("Cond").first()) else {
                return Err(Error::invalid("conditional_block without condition or block"));
            };
            let condition = frame.arg(*condition)?;
            // SAFETY: as for fetches.
            if unsafe { condition.view() }.slice::<u8>().first() == Some(&1) {
                self.run_block(frame, inner)?;
            }
        }
        Ok(())
    }

    fn run_op(&self, frame: &mut Frame<'_>, id: OpId) -> Result<()> {
        let op = frame.program.op(id);
        let arg_slots = |frame: &mut Frame<'_>, slots: &[Vec<VarId>]| -> Result<Vec<Vec<Arg>>> {
            slots.iter().map(|vars| vars.iter().map(|var| frame.arg(*var)).collect()).collect()
        };
        let inputs = arg_slots(frame, &op.inputs)?;
        for var in op.all_outputs() {
            // A variable that the op both reads and writes is updated in place.
            let is_held = frame.values.contains(var);
            if !is_held || !op.all_inputs().any(|input| input == var) {
                frame.make(var)?;
            }
        }
        let outputs = arg_slots(frame, &op.outputs)?;
        let kernel = &frame.kernels[id];
        let scratch = Buffer::zeroed(kernel.scratch_bytes)?;
        let mut args = ArgList::new(inputs, outputs);
        self.registry.get(op.name())?.shape_only_slots().for_each(|slot| args.hide(slot));
        args.mark_overlaps();
        (kernel.run)(&KernelCtx {
            // SAFETY: `Frame::arg` binds to memory of the right size. Outputs have memory of their
            // own, or that of an input of the same variable, and nothing else runs.
            args: unsafe { args.lend(scratch.as_ptr(), kernel.scratch_bytes) },
            pool: &self.pool,
            step: frame.step,
            seed: frame.program.seed(),
            talked: None,
        })?;
        if self.check_nan_inf {
            for (arg, var) in args.args()[args.input_count()..].iter().zip(op.all_outputs()) {
                // SAFETY: as above; the kernel has finished.
                if let Some((position, value)) = first_non_finite(unsafe { arg.view() }) {
                    let name = frame.program.var_name(var);
                    return Err(Error::numeric(format!("output '{name}' is not finite"))
                        .got(format!("{value} at element {position}")));
                }
            }
        }
        Ok(())
    }
}

impl Frame<'_> {
    /// Returns the argument for a variable. On first use, a persistable variable is looked up in
    /// the scope.
    fn arg(&mut self, id: VarId) -> Result<Arg> {
        let var = self.program.var(id);
        if !self.values.contains(id) {
            if !var.persistable {
                return Err(Error::invalid(match var.is_data {
                    true => format!("no value was fed for '{}'", var.name),
                    false => format!("'{}' is read before it is written", var.name),
                }));
            }
            self.scope.ensure_layout(&var.name, Layout::RowMajor)?;
            let held = self.scope.own(&var.name)?;
            let meta = Meta::dense(held.dtype(), *held.shape());
            let value = Value { meta, data: None, address: held.as_ptr(), rows: None };
            self.values.insert(id, value);
        }
        let value = &self.values[id];
        let address = value.data.as_ref().map_or(value.address, Buffer::as_ptr);
        let rows = value.rows.as_ref();
        let rows = rows.map(|(rows, count)| (count.as_ptr().cast(), rows.as_ptr().cast()));
        let mut arg = value.meta.arg(Layout::RowMajor);
        // The buffers were allocated for this meta, and fed tensors were compared with theirs. For
        // a scope tensor, the meta comes from the tensor itself. All of them outlive the frame.
        arg.bind(address, rows);
        Ok(arg)
    }

    /// Allocates fresh memory for an output; a persistable variable uses the scope's tensor.
    fn make(&mut self, id: VarId) -> Result<()> {
        let (var, meta) = (self.program.var(id), self.shapes.of(id));
        if var.persistable {
            if !self.scope.contains(&var.name) {
                self.scope.set(&var.name, Tensor::zeros(meta.dtype, meta.shape)?);
            }
            return Ok(());
        }
        let rows = match meta.kind {
            VarKind::SparseRows => Some((Buffer::zeroed(meta.rows * 8)?, Buffer::zeroed(8)?)),
            _ => None,
        };
        let data = Some(Buffer::zeroed(meta.bytes())?);
        self.values.insert(id, Value { meta, data, address: std::ptr::null_mut(), rows });
        Ok(())
    }
}

/// Returns an error if the program reads a variable that is not in the scope and that no op writes
/// first. An executor finds such a variable when it binds the plan.
fn check_scope(program: &Program, flat: &[Flat], fetches: &[VarId], scope: &Scope) -> Result<()> {
    let mut written: HashSet<VarId> = HashSet::new();
    let check = |id: VarId, written: &HashSet<VarId>| -> Result<()> {
        let var = program.var(id);
        if var.persistable && !written.contains(&id) {
            scope.raw(&var.name)?;
        }
        Ok(())
    };
    let mut read_last = fetches.to_vec();
    for step in flat {
        match step {
            Flat::Op(id, _) => {
                let op = program.op(*id);
                op.all_inputs().try_for_each(|var| check(var, &written))?;
                written.extend(op.all_outputs());
            }
            Flat::Jump { condition, .. } => read_last.push(*condition),
        }
    }
    read_last.into_iter().try_for_each(|var| check(var, &written))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ExecOptions, Executor};

    /// A run that fails before its first op leaves the step unchanged. A run that fails later
    /// counts.
    #[test]
    fn a_failed_run_counts_once_its_ops_run() {
        let x = Tensor::from_slice(&[0.0f32], [1]).unwrap();
        let check = |body: &str, fetch: &str, steps: u64| {
            let text = format!("fleet program 1 block0 {{ %x: f32[1] data %y: f32[1] {body} }}");
            let program = Program::parse(&text, Registry::standard()).unwrap();
            let (mut slow, mut fast) = (Scope::new(), Scope::new());
            let interpreter = Interpreter { check_nan_inf: true, ..Interpreter::new() };
            let plain = interpreter.run(&program, &mut slow, &[("x", &x)], &[fetch]).err();
            let options = ExecOptions { check_nan_inf: true, ..ExecOptions::threads(1) };
            let planned = Executor::new(options).run(&program, &mut fast, &[("x", &x)], &[fetch]);
            let kinds = (plain.map(|error| error.kind()), planned.err().map(|error| error.kind()));
            assert!(kinds.0.is_some() && kinds.0 == kinds.1, "{body}: {kinds:?}");
            assert_eq!((slow.step(), fast.step()), (steps, steps), "{body}");
        };
        check("(Out: %y) = log(X: %x)", "y", 1);
        let tanh = "(Out: %y) = tanh(X: %x)";
        check(tanh, "z", 0);
        check(&format!("%z: f32[1] {tanh}"), "z", 0);
        check(&format!("%w: f32[1] persistable {tanh}"), "w", 0);
        let add = "(Out: %z) = elementwise_add(X: %y, Y: %w)";
        check(&format!("%w: f32[1] persistable %z: f32[1] {tanh} {add}"), "z", 0);
        let sum = "(Out: %z) = c_allreduce_sum(X: %y) {nranks: 2}";
        check(&format!("%z: f32[1] {tanh} {sum}"), "z", 0);
    }
}
