//! Runs single ops of a program over values, in the simplest possible way.

use crate::{Value, allocations};
use fleet_base::{Error, Result};
use fleet_ir::{Op, OpId, Program, VarId, VarKind};
use fleet_kernels::pool::Pool;
use fleet_ops::{Kernel, KernelCtx, Meta, OpDef, PrepareCtx, Registry, Services};
use fleet_tensor::{Arg, ArgList, Buffer, Layout, ValueMut};
use std::collections::HashMap;
use std::slice;

/// A program and the values of its variables.
pub struct Machine {
    /// The program.
    pub program: Program,
    /// The ops that it may have.
    pub registry: Registry,
    /// Values of its variables.
    pub values: HashMap<VarId, Value>,
    /// Requested layouts of outputs; row-major if not listed.
    pub layouts: HashMap<VarId, Layout>,
    /// Pairs (output slot, input slot) of the op under test that are one variable.
    pub same: Vec<(String, String)>,
    /// Number of earlier runs, which random ops depend on.
    pub step: u64,
}

/// How to run an op.
pub struct RunOptions<'a> {
    /// The threads that share the work.
    pub pool: &'a Pool,
    /// Byte that fills the outputs and the scratch memory before the kernel runs.
    pub fill_byte: u8,
    /// Pairs of output and input slot that share memory, variable by variable.
    pub share: Vec<(String, String)>,
    /// Index of the variable of the input slot with which a single output shares memory.
    pub shared_index: usize,
}

impl RunOptions<'_> {
    fn shared_index_of(&self, outputs: usize) -> usize {
        if outputs == 1 { self.shared_index } else { 0 }
    }
}

impl Machine {
    /// Returns a machine whose program may have one kind of op.
    pub fn new(def: &'static OpDef, seed: u64) -> Machine {
        let mut program = Program::new();
        program.set_seed(seed);
        Machine {
            program,
            registry: Registry::with(&[def]),
            values: HashMap::new(),
            layouts: HashMap::new(),
            same: Vec::new(),
            step: 0,
        }
    }

    /// Runs the op in all variants that must give the same result, and stores its outputs.
    pub fn run(&mut self, id: OpId) -> Result<()> {
        let op = self.program.op(id).clone();
        let def = self.registry.get(op.name())?;
        let (one, three) = (Pool::new(1), Pool::new(3));
        let share = self.same_of(&op);
        let base = self.execute(
            id,
            &RunOptions { pool: &one, fill_byte: 0xff, share: share.clone(), shared_index: 0 },
        )?;
        let other = self.execute(
            id,
            &RunOptions { pool: &three, fill_byte: 0x55, share: share.clone(), shared_index: 0 },
        )?;
        check_equal(&op, &base, &other, "on 3 threads, or where the kernel wrote nothing")?;
        for (output, input) in def.traits.inplace.iter().chain(&def.traits.view) {
            let count = if op.output(output).len() == 1 { op.input(input).len() } else { 1 };
            for shared_index in 0..count {
                if !self.can_share(&op, output, input, shared_index)
                    || share.iter().any(|pair| pair.0 == *output)
                {
                    continue;
                }
                let mut share = share.clone();
                share.push((output.to_string(), input.to_string()));
                let options = RunOptions { pool: &three, fill_byte: 0x55, share, shared_index };
                let shared = self.execute(id, &options)?;
                check_equal(
                    &op,
                    &base,
                    &shared,
                    &format!("when {output} shares memory with {input}"),
                )?;
            }
        }
        for (vars, values) in op.outputs.iter().zip(base) {
            self.values.extend(vars.iter().copied().zip(values));
        }
        Ok(())
    }

    fn same_of(&self, op: &Op) -> Vec<(String, String)> {
        let known = |pair: &&(String, String)| {
            !op.output(&pair.0).is_empty() && !op.input(&pair.1).is_empty()
        };
        self.same.iter().filter(known).cloned().collect()
    }

    fn can_share(&self, op: &Op, output: &str, input: &str, index: usize) -> bool {
        let (Some(out), Some(arg)) = (op.output(output).first(), op.input(input).get(index)) else {
            return false;
        };
        let (out, arg) = (self.meta(*out), self.meta(*arg));
        out.kind == VarKind::Dense && arg.kind == out.kind && out.bytes() == arg.bytes()
    }

    /// The meta of the value, if there is one, because it includes the capacity of sparse rows.
    pub(crate) fn meta(&self, var: VarId) -> Meta {
        match self.values.get(&var) {
            Some(value) => value.meta(),
            None => fleet_ops::meta(&self.program, var),
        }
    }

    /// Runs the op once and returns its outputs by slot. The machine's values do not change.
    pub fn execute(&self, id: OpId, options: &RunOptions<'_>) -> Result<Vec<Vec<Value>>> {
        let op = self.program.op(id);
        let def = self.registry.get(op.name())?;
        let place = |error: Error| error.at(op.name());
        let metas = def.shapes(op, |var| self.meta(var)).map_err(place)?;
        let mut inputs = self.copy_inputs(op)?;
        for slot in def.shape_only_slots() {
            inputs[slot]
                .iter_mut()
                .for_each(|value| value.tensor_mut().as_bytes_mut().fill(options.fill_byte));
        }
        let mut outputs = self.make_outputs(op, &metas, options.fill_byte)?;
        let kernel = self.prepare(def, op, &inputs, &outputs, options.pool).map_err(place)?;
        let mut scratch = Buffer::zeroed(kernel.scratch_bytes)?;
        scratch.as_mut_slice().fill(options.fill_byte);

        let mut list = ArgList::new(args_of(&inputs), args_of(&outputs));
        def.shape_only_slots().for_each(|slot| list.hide(slot));
        let mut same = Vec::new();
        for (output, input) in &options.share {
            let slots = (op.spec.output_index(output), op.spec.input_index(input));
            let (Some(to), Some(from)) = slots else {
                return Err(Error::invalid(format!("{output} and {input} cannot share memory")));
            };
            let (to, from) = (list.outputs()[to].clone(), list.inputs()[from].clone());
            let first = options.shared_index_of(to.len());
            same.extend(to.zip(from.skip(first)));
        }
        let all = || inputs.iter().chain(&outputs).flatten();
        let mut counts: Vec<u64> = all().filter_map(row_count).collect();
        let mut row_counts = counts.iter_mut();
        let values = inputs.iter_mut().chain(&mut outputs).flatten();
        let values = values.map(|value| memory_of(value, &mut row_counts));
        let ctx = KernelCtx {
            args: list.lend_values(values, &same, &mut scratch),
            pool: options.pool,
            step: self.step,
            seed: self.program.seed(),
            talked: None,
        };
        let before = allocations();
        let outcome = (kernel.run)(&ctx);
        let allocated = allocations() - before;
        outcome.map_err(place)?;
        if allocated > 0 {
            return Err(Error::internal(format!(
                "the kernel of {} allocated memory {allocated} times",
                op.name()
            )));
        }
        take_counts(&mut outputs, inputs.iter().flatten().filter_map(row_count).count(), &counts);
        for (output, input) in &options.share {
            let (to, from) = (op.spec.output_index(output), op.spec.input_index(input));
            if let (Some(to), Some(from)) = (to, from) {
                let args = inputs[from].iter().skip(options.shared_index_of(outputs[to].len()));
                for (out, arg) in outputs[to].iter_mut().zip(args) {
                    out.tensor_mut().as_bytes_mut().copy_from_slice(arg.tensor().as_bytes());
                }
            }
        }
        Ok(outputs)
    }

    fn copy_inputs(&self, op: &Op) -> Result<Vec<Vec<Value>>> {
        let copy = |var: &VarId| match self.values.get(var) {
            Some(value) => value.try_clone(),
            None => Err(Error::internal(format!(
                "{} reads '{}', which has no value",
                op.name(),
                self.program.var_name(*var)
            ))),
        };
        op.inputs.iter().map(|slot| slot.iter().map(copy).collect()).collect()
    }

    fn make_outputs(&self, op: &Op, metas: &[Vec<Meta>], garbage: u8) -> Result<Vec<Vec<Value>>> {
        let make = |(var, meta): (&VarId, &Meta)| {
            let layout = self.layouts.get(var).copied().unwrap_or_default();
            let mut value = Value::zeros(meta, layout)?;
            value.fill_with_garbage(garbage);
            Ok(value)
        };
        let slots = op.outputs.iter().zip(metas);
        slots.map(|(vars, metas)| vars.iter().zip(metas).map(make).collect()).collect()
    }

    fn prepare(
        &self,
        def: &OpDef,
        op: &Op,
        inputs: &[Vec<Value>],
        outputs: &[Vec<Value>],
        pool: &Pool,
    ) -> Result<Kernel> {
        let metas = |slots: &[Vec<Value>]| -> Vec<Vec<Meta>> {
            slots.iter().map(|slot| slot.iter().map(Value::meta).collect()).collect()
        };
        let layouts = |slots: &[Vec<Value>]| -> Vec<Vec<Layout>> {
            slots.iter().map(|slot| slot.iter().map(|v| v.tensor().layout()).collect()).collect()
        };
        (def.cpu)(&PrepareCtx {
            op,
            inputs: &metas(inputs),
            outputs: &metas(outputs),
            input_layouts: &layouts(inputs),
            output_layouts: &layouts(outputs),
            threads: pool.threads(),
            seed: self.program.seed(),
            services: &Services::none(),
        })
    }
}

fn row_count(value: &Value) -> Option<u64> {
    match value {
        Value::Dense(_) => None,
        Value::Rows(rows) => Some(rows.count as u64),
    }
}

fn args_of(slots: &[Vec<Value>]) -> Vec<Vec<Arg>> {
    let arg = |value: &Value| value.meta().arg(value.tensor().layout());
    slots.iter().map(|slot| slot.iter().map(arg).collect()).collect()
}

/// Returns the memory of an argument. The row counts of sparse rows are in `counts`, in order.
fn memory_of<'a>(value: &'a mut Value, counts: &mut slice::IterMut<'a, u64>) -> ValueMut<'a> {
    match value {
        Value::Dense(values) => ValueMut { values, rows: None },
        Value::Rows(rows) => {
            let count = counts.next().expect("a counter for each value with rows");
            ValueMut { values: &mut rows.values, rows: Some((&mut rows.rows, count)) }
        }
    }
}

fn take_counts(outputs: &mut [Vec<Value>], skip: usize, counts: &[u64]) {
    let mut counts = counts[skip..].iter();
    for value in outputs.iter_mut().flatten() {
        if let Value::Rows(rows) = value
            && let Some(count) = counts.next()
        {
            rows.count = *count as usize;
        }
    }
}

fn check_equal(op: &Op, base: &[Vec<Value>], other: &[Vec<Value>], when: &str) -> Result<()> {
    for (slot, (base, other)) in op.spec.outputs.iter().zip(base.iter().zip(other)) {
        for (base, other) in base.iter().zip(other) {
            let ((base_ids, base_bytes), (other_ids, other_bytes)) =
                (base.content(), other.content());
            if base_ids == other_ids && base_bytes == other_bytes {
                continue;
            }
            let size = base.meta().dtype.size();
            let at = base_bytes.iter().zip(other_bytes).position(|(a, b)| a != b).unwrap_or(0);
            return Err(Error::internal(format!(
                "output '{}' of {} differs at element {} {when}",
                slot.name,
                op.name(),
                at / size
            ))
            .expected(show(base, at / size))
            .got(show(other, at / size)));
        }
    }
    Ok(())
}

fn show(value: &Value, at: usize) -> String {
    value.numbers().get(at).map_or_else(|| "nothing".to_string(), f64::to_string)
}
