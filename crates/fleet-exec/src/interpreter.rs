//! The interpreter: one op at a time on one thread, each output in fresh memory, without rewrites.
//!
//! It is simple enough to be obviously correct, and tests compare the executor with it.

use crate::Scope;
use crate::bind::{check_fed, copy_out};
use crate::executor::{check_no_double, feedable};
use crate::flat::{self, CONDITIONAL, LaneChoice};
use crate::lanes::first_non_finite;
use crate::shapes::{Known, Shapes};
use crate::spill::FileSpill;
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpId, Program, VarId, VarKind};
use fleet_kernels::pool::Pool;
use fleet_ops::{Arg, KernelCtx, Meta, PrepareCtx, Registry, Services};
use fleet_tensor::{Buffer, Layout, Tensor};
use std::collections::HashMap;
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
    values: HashMap<VarId, Value>,
    step: u64,
}

impl Interpreter {
    pub fn new() -> Interpreter {
        Self::with_registry(Registry::standard())
    }

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

    /// Like [`Executor::run`](crate::Executor::run).
    pub fn run(
        &self,
        program: &Program,
        scope: &mut Scope,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>> {
        let metas: Vec<_> = feed.iter().map(|(name, t)| (*name, t.dtype(), *t.shape())).collect();
        check_no_double(&metas)?;
        let feeds = metas.iter().map(|fed| feedable(program, fed)).collect::<Result<Vec<_>>>()?;
        let lanes = LaneChoice::of(program, self.registry, true)?;
        let flat = flat::flatten(program, self.registry, &lanes)?;
        let known = Known { feeds: &feeds, scope_meta: &|name| scope.meta(name) };
        let shapes = Shapes::infer(program, &flat, &known)?;
        let step = scope.step();
        let mut frame = Frame { program, shapes, scope, values: HashMap::new(), step };
        for ((id, meta), (name, tensor)) in feeds.iter().zip(feed) {
            check_fed(name, *meta, tensor)?;
            let value = Value { meta: *meta, data: None, address: tensor.as_ptr(), rows: None };
            frame.values.insert(*id, value);
        }
        self.run_block(&mut frame, Program::ROOT)?;
        let out = fetch.iter().map(|name| frame.fetch(name)).collect();
        scope.set_step(step + 1);
        out
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
            if frame.arg(*condition)?.slice::<u8>().first() == Some(&1) {
                self.run_block(frame, inner)?;
            }
        }
        Ok(())
    }

    fn run_op(&self, frame: &mut Frame<'_>, id: OpId) -> Result<()> {
        let op = frame.program.op(id);
        let def = self.registry.get(op.name())?;
        let arg_slots = |frame: &mut Frame<'_>, slots: &[Vec<VarId>]| -> Result<Vec<Vec<Arg>>> {
            slots.iter().map(|vars| vars.iter().map(|var| frame.arg(*var)).collect()).collect()
        };
        let inputs = arg_slots(frame, &op.inputs)?;
        for var in op.all_outputs() {
            // A variable that the op both reads and writes is updated in place.
            let is_held = frame.values.contains_key(&var);
            if !is_held || !op.all_inputs().any(|input| input == var) {
                frame.make(var)?;
            }
        }
        let outputs = arg_slots(frame, &op.outputs)?;
        let layouts = |slots: &[Vec<VarId>]| -> Vec<Vec<Layout>> {
            slots.iter().map(|vars| vec![Layout::RowMajor; vars.len()]).collect()
        };
        let kernel = (def.cpu)(&PrepareCtx {
            op,
            inputs: &frame.shapes.of_slots(&op.inputs),
            outputs: &frame.shapes.of_slots(&op.outputs),
            input_layouts: &layouts(&op.inputs),
            output_layouts: &layouts(&op.outputs),
            threads: 1,
            seed: frame.program.seed(),
            services: &self.services,
        })?;
        let scratch = Buffer::zeroed(kernel.scratch_bytes)?;
        let input_slots: Vec<&[Arg]> = inputs.iter().map(Vec::as_slice).collect();
        let output_slots: Vec<&[Arg]> = outputs.iter().map(Vec::as_slice).collect();
        (kernel.run)(&KernelCtx {
            inputs: &input_slots,
            outputs: &output_slots,
            scratch: scratch.as_ptr(),
            scratch_bytes: kernel.scratch_bytes,
            pool: &self.pool,
            step: frame.step,
            seed: frame.program.seed(),
            talked: None,
        })?;
        if self.check_nan_inf {
            for (arg, var) in outputs.iter().flatten().zip(op.all_outputs()) {
                if let Some((position, value)) = first_non_finite(arg) {
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
        if !self.values.contains_key(&id) {
            if !var.persistable {
                let what = if var.is_data { "no value was fed for" } else { "no op has written" };
                return Err(Error::invalid(format!("{what} '{}'", var.name)));
            }
            self.scope.ensure_layout(&var.name, Layout::RowMajor)?;
            let held = self.scope.raw(&var.name)?;
            let meta = Meta::dense(held.dtype(), *held.shape());
            let value = Value { meta, data: None, address: held.as_ptr(), rows: None };
            self.values.insert(id, value);
        }
        let value = &self.values[&id];
        let address = value.data.as_ref().map_or(value.address, Buffer::as_ptr);
        let rows = value.rows.as_ref();
        let rows = rows.map(|(rows, count)| (count.as_ptr().cast(), rows.as_ptr().cast()));
        let mut arg = Arg::unbound(value.meta, Layout::RowMajor);
        // SAFETY: the buffers were allocated for this meta, and fed tensors were compared with
        // theirs. For a scope tensor, the meta comes from the tensor itself. All of them outlive
        // the frame.
        unsafe { arg.bind(address, rows) };
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

    fn fetch(&mut self, name: &str) -> Result<Tensor> {
        let id = self.program.var_named(name)?;
        copy_out(&self.arg(id)?, None)
    }
}
