//! Parts shared by optimizer ops: slots, attributes, the shape rule, and the kernel. Kernels differ
//! only in their rule.

use super::sparse::Sparse;
use crate::comm;
use crate::prelude::*;
use fleet_base::sync::lock;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::optim::{Regularizer, Rule, Segment, Segments, Step, Tensors};
use std::collections::HashMap;
use std::sync::Mutex;

// The first slots of every optimizer op. The slots of its state follow.
const PARAM: usize = 0;
pub(super) const GRAD: usize = 1;
const LEARNING_RATE: usize = 2;
const GRAD_SCALE: usize = 3;
const STATE: usize = 4;

/// Attributes of every optimizer op, after its own.
pub(super) const ATTRS: &[AttrSpec] = &[
    attr("regularization_method", Str("")),
    attr("regularization_coeff", Float(0.0)),
    attr("lr_scale", Float(1.0)),
];

/// State variables, as (input slot, output slot).
pub(super) struct Slots {
    /// State with the shape of the parameter, in the order of the rule. These are the first slots
    /// of the state.
    pub full: &'static [(&'static str, &'static str)],
    /// State with one number each: the powers of the betas.
    pub single: &'static [(&'static str, &'static str)],
    /// Number of the last `full` slots that may be empty.
    pub optional: usize,
    /// Whether gradients may be sparse rows.
    pub sparse: bool,
}

impl Slots {
    /// State with the shape of the parameter only. Gradients are dense.
    pub(super) const fn full(full: &'static [(&'static str, &'static str)]) -> Slots {
        Slots { full, single: &[], optional: 0, sparse: false }
    }
}

/// Shape rule: checks all inputs against their parameters. Each output has the type and shape of
/// its input.
pub(super) fn infer(i: &mut InferCtx<'_>, slots: &Slots) -> Result<()> {
    regularizer(i.op)?;
    check_numbers(i.op)?;
    check_overlap(i, slots)?;
    let count = i.inputs("Param").len();
    for slot in ["LearningRate", "GradScale"] {
        if i.optional(slot).is_some() {
            check_single(i, slot)?;
        }
    }
    i.check_dtype("Param", &[DType::F32])?;
    i.check_dtype("Grad", &[DType::F32])?;
    let params = i.inputs("Param").to_vec();
    check_count(i, "Grad", count)?;
    for (index, param) in params.iter().enumerate() {
        let grad = i.inputs("Grad")[index];
        if !grad.shape.agrees(&param.shape) {
            return Err(i
                .error("Grad", "has the wrong shape")
                .expected(param.shape)
                .got(grad.shape));
        }
        if grad.kind == VarKind::SparseRows && !slots.sparse {
            return Err(Error::unsupported(format!("{} cannot apply sparse rows", i.op.name()))
                .help("use sgd, momentum, adam, adamw or adagrad, or a dense embedding gradient"));
        }
        i.push("ParamOut", *param);
        if i.op.spec.output_index("GradOut").is_some() {
            i.push("GradOut", grad);
        }
    }
    for (at, (slot, out)) in slots.full.iter().enumerate() {
        let is_optional = at + slots.optional >= slots.full.len();
        if is_optional && i.optional(slot).is_none() {
            continue;
        }
        check_count(i, slot, count)?;
        i.check_dtype(slot, &[DType::F32])?;
        for (index, param) in params.iter().enumerate() {
            let state = i.inputs(slot)[index];
            if !state.shape.agrees(&param.shape) {
                return Err(i
                    .error(slot, "has the wrong shape")
                    .expected(param.shape)
                    .got(state.shape));
            }
            i.push(out, state);
        }
    }
    if i.optional("SkipUpdate").is_some() {
        i.check_dtype("SkipUpdate", &[DType::Bool])?;
        i.check_shape("SkipUpdate", [1])?;
    }
    for (slot, out) in slots.single {
        check_count(i, slot, count)?;
        check_single(i, slot)?;
        for state in i.inputs(slot).to_vec() {
            i.push(out, state);
        }
    }
    Ok(())
}

/// Rejects an output that is also an input, except the one that it updates: the kernel reads the
/// others while it writes.
fn check_overlap(i: &InferCtx<'_>, slots: &Slots) -> Result<()> {
    let mut read: HashMap<VarId, Vec<&str>> = HashMap::new();
    for (slot, vars) in i.op.spec.inputs.iter().zip(&i.op.inputs) {
        vars.iter().for_each(|var| read.entry(*var).or_default().push(slot.name));
    }
    let pairs = || slots.full.iter().chain(slots.single);
    for (out, vars) in i.op.spec.outputs.iter().zip(&i.op.outputs) {
        let updates = |input: &str| match out.name {
            "ParamOut" => input == "Param",
            "GradOut" => input == "Grad",
            name => pairs().any(|pair| *pair == (input, name)),
        };
        let read = vars.iter().filter_map(|var| read.get(var)).flatten();
        if let Some(slot) = read.copied().find(|slot| !updates(slot)) {
            return Err(Error::invalid(format!(
                "output '{}' of {} is the same variable as input '{slot}'",
                out.name,
                i.op.name()
            ))
            .expected("a separate variable"));
        }
    }
    Ok(())
}

fn check_count(i: &InferCtx<'_>, slot: &str, count: usize) -> Result<()> {
    let found = i.inputs(slot).len();
    if found == count {
        return Ok(());
    }
    Err(i.error(slot, "does not have one variable for each parameter").expected(count).got(found))
}

fn check_single(i: &InferCtx<'_>, slot: &str) -> Result<()> {
    i.check_dtype(slot, &[DType::F32])?;
    for meta in i.inputs(slot) {
        if meta.shape.numel().is_some_and(|numel| numel != 1) {
            return Err(i.error(slot, "is not one number").expected("[1]").got(meta.shape));
        }
    }
    Ok(())
}

/// Rejects numbers that make updates invalid. With a beta of 1, for example, the first step divides
/// by zero.
fn check_numbers(op: &Op) -> Result<()> {
    for attr in op.spec.attrs.iter().filter(|attr| attr.kind == AttrKind::Float) {
        let value = op.attr_float(attr.name);
        let (expected, is_right) = match attr.name {
            "beta1" | "beta2" | "rho" | "decay" => {
                ("0 or more and below 1", (0.0..1.0).contains(&value))
            }
            "epsilon" => ("0 or more", value >= 0.0 && value.is_finite()),
            _ => ("a finite number", value.is_finite()),
        };
        if !is_right {
            return Err(Error::invalid(format!("'{}' of {} is wrong", attr.name, op.name()))
                .expected(expected)
                .got(value));
        }
    }
    Ok(())
}

fn regularizer(op: &Op) -> Result<Regularizer> {
    let coeff = op.attr_float("regularization_coeff") as f32;
    match op.attr_str("regularization_method") {
        "" => Ok(Regularizer::None),
        "l1_decay" | "l2_decay" if coeff == 0.0 => Ok(Regularizer::None),
        "l1_decay" => Ok(Regularizer::L1(coeff)),
        "l2_decay" => Ok(Regularizer::L2(coeff)),
        other => Err(Error::invalid(format!("unknown regularization_method of {}", op.name()))
            .expected("l1_decay or l2_decay")
            .got(other)),
    }
}

/// Prepared update of an optimizer op.
pub(super) struct Plan {
    pub rule: Rule,
    lr_scale: f32,
    /// Output slots of the state, in the order of the rule.
    pub states: Vec<usize>,
    /// Triples (output slot, input slot, factor) of the powers of the betas.
    powers: Vec<(usize, usize, f32)>,
    skip: Option<usize>,
    /// Indices of the parameters with dense gradients, in the order of the segments.
    pub dense: Vec<usize>,
    /// Segments of these parameters. Each run sets their addresses. The lock is needed for the type
    /// system only, because no kernel is run by two threads at once.
    pub segments: Mutex<Segments>,
    sparse: Vec<Sparse>,
}

/// Rule of an op, with its options.
#[derive(Clone, Copy)]
pub(super) struct Update {
    pub rule: Rule,
    pub weight_decay: f64,
    /// Whether an update also changes rows that a sparse gradient does not contain.
    pub moves_all_rows: bool,
}

impl From<Rule> for Update {
    fn from(rule: Rule) -> Update {
        Update { rule, weight_decay: 0.0, moves_all_rows: false }
    }
}

/// Makes the kernel of an optimizer op.
pub(super) fn cpu(p: &PrepareCtx<'_>, slots: &Slots, update: Update) -> Result<Kernel> {
    let plan = Plan::new(p, slots, update)?;
    let words = plan.scratch_words();
    Ok(Kernel::new(move |k| plan.run(k)).scratch::<u64>(words))
}

impl Plan {
    pub(super) fn new(p: &PrepareCtx<'_>, slots: &Slots, update: Update) -> Result<Plan> {
        let (spec, rule) = (p.op.spec, update.rule);
        let out = |slot: &str| spec.output_index(slot);
        let betas: [f64; 2] = match rule {
            Rule::Adam { .. } | Rule::AdamW { .. } | Rule::Lamb { .. } => {
                [p.op.attr_float("beta1"), p.op.attr_float("beta2")]
            }
            Rule::Adamax { .. } => [p.op.attr_float("beta1"), 0.0],
            _ => [0.0; 2],
        };
        let powers = slots.single.iter().zip(betas).filter_map(|((slot, made), beta)| {
            Some((out(made)?, spec.input_index(slot)?, beta as f32))
        });
        let params = &p.inputs[PARAM];
        let is_sparse = |index: &usize| p.inputs[GRAD][*index].kind == VarKind::SparseRows;
        let dense: Vec<usize> = (0..params.len()).filter(|index| !is_sparse(index)).collect();
        let regularizer = regularizer(p.op)?;
        let weight_decay = update.weight_decay as f32;
        let segment = |len: usize| Segment::new(len, regularizer, weight_decay);
        let segments = dense.iter().map(|index| {
            segment(p.input_layouts[PARAM][*index].physical_len(&params[*index].shape))
        });
        let sparse = (0..params.len()).filter(is_sparse).map(|index| {
            let all = segment(params[index].shape.len());
            let rows_max = p.inputs[GRAD][index].rows;
            Sparse::new(index, &params[index], rows_max, all, update.moves_all_rows)
        });
        let states = slots.full.iter().filter(|(slot, _)| p.optional(slot).is_some());
        let found = states.clone().count();
        if found < rule.state_count() {
            return Err(Error::invalid(format!("missing state input of {}", p.op.name()))
                .expected(format!("{} state inputs", rule.state_count()))
                .got(found));
        }
        // State inputs are updated, so each needs an output.
        for (slot, made) in states.clone() {
            let (given, wanted) = (out(made).map_or(0, |at| p.outputs[at].len()), params.len());
            if given != wanted {
                return Err(Error::invalid(format!(
                    "missing output '{made}' of {} for input '{slot}'",
                    p.op.name()
                ))
                .expected(wanted)
                .got(given));
            }
        }
        Ok(Plan {
            rule,
            lr_scale: p.op.attr_float("lr_scale") as f32,
            states: states.filter_map(|(_, made)| out(made)).collect(),
            powers: powers.collect(),
            skip: spec.input_index("SkipUpdate"),
            segments: Mutex::new(Segments::new(segments.collect())),
            sparse: sparse.collect(),
            dense,
        })
    }

    /// Size of scratch in 64-bit words: the norms of LARS and LAMB, or buffers to merge sparse
    /// gradients.
    pub(super) fn scratch_words(&self) -> usize {
        let segments = lock(&self.segments);
        let norms = match self.rule {
            Rule::Lars { .. } | Rule::Lamb { .. } => segments.scratch_len(),
            _ => 0,
        };
        self.sparse.iter().map(Sparse::scratch_words).fold(norms, usize::max)
    }

    pub(super) fn skips_update(&self, k: &KernelCtx<'_>) -> bool {
        self.skip.and_then(|slot| k.optional::<u8>(slot)).is_some_and(|skip| skip[0] != 0)
    }

    pub(super) fn step(&self, k: &KernelCtx<'_>) -> Step {
        Step {
            lr: k.input::<f32>(LEARNING_RATE)[0] * self.lr_scale,
            grad_scale: k.optional::<f32>(GRAD_SCALE).map_or(1.0, |scale| scale[0]),
            ..Step::default()
        }
    }

    /// Updates one parameter, of which other ranks have other parts. `sum` adds two squared norms
    /// over ranks.
    pub(super) fn run_part(
        &self,
        k: &KernelCtx<'_>,
        sum: impl FnOnce(&mut [f64; 2]) -> Result<()>,
    ) -> Result<()> {
        if self.skips_update(k) {
            self.copy(k);
            return Ok(());
        }
        let (step, mut segments) = (self.step(k), lock(&self.segments));
        let grad = |index: usize| Some(k.arg_at(GRAD, index).slice());
        let mut bound = segments.bind(|segment| {
            let index = self.dense[segment];
            Tensors { grad: grad(index), ..self.tensors(k, index) }
        });
        bound.update_part_of(k.pool, self.rule, step, view_as_mut(k.scratch::<u64>()), sum)
    }

    fn run(&self, k: &KernelCtx<'_>) -> Result<()> {
        if self.skips_update(k) {
            self.copy(k);
            return Ok(());
        }
        let (step, scratch) = (self.step(k), k.scratch::<u64>());
        if !self.dense.is_empty() {
            let mut segments = lock(&self.segments);
            let grad = |index: usize| Some(k.arg_at(GRAD, index).slice());
            let tensors = |segment: usize| {
                let index = self.dense[segment];
                Tensors { grad: grad(index), ..self.tensors(k, index) }
            };
            segments.bind(tensors).update(k.pool, self.rule, step, view_as_mut(scratch));
        }
        for sparse in &self.sparse {
            let tensors = self.tensors(k, sparse.index);
            let [beta1_pow, beta2_pow] = tensors.powers.unwrap_or_default();
            let step = Step { beta1_pow, beta2_pow, ..step };
            let grad = k.arg_at(GRAD, sparse.index);
            sparse.update(k.pool, self.rule, step, grad, tensors, scratch)?;
        }
        Ok(())
    }

    /// Hands out parameter `index` and its state. Multiplies the powers of the betas for the next
    /// step.
    pub(super) fn tensors<'a>(&self, k: &KernelCtx<'a>, index: usize) -> Tensors<'a> {
        let state = |which: usize| {
            let slot = self.states.get(which)?;
            Some(k.updated_at(*slot, STATE + which, index))
        };
        let mut powers = self.powers.iter().map(|(out, input, beta)| {
            let power = &mut k.updated_at::<f32>(*out, *input, index)[0];
            std::mem::replace(power, *power * beta)
        });
        Tensors {
            param: k.updated_at(0, PARAM, index),
            grad: None,
            state: std::array::from_fn(state),
            powers: powers.next().map(|first| [first, powers.next().unwrap_or(0.0)]),
        }
    }

    /// Copies inputs to the outputs that update them, unless they are the same variable.
    pub(super) fn copy(&self, k: &KernelCtx<'_>) {
        let full = self.states.iter().enumerate().map(|(index, out)| (*out, STATE + index));
        let powers = self.powers.iter().map(|(out, input, _)| (*out, *input));
        for (out, input) in full.chain(powers).chain([(0, PARAM)]) {
            comm::copy(k, input, out);
        }
    }
}

/// Cost of reading and writing the parameter and its state, and of a few flops per element.
fn cost(c: &CostCtx<'_>) -> Cost {
    let params: usize = c.outputs[0].iter().map(Meta::numel).sum();
    Cost { flops: 8.0 * params as f64, bytes: c.bytes() }
}

pub(super) const TRAITS: OpTraits = OpTraits {
    sparse: &["Grad"],
    elementwise: true,
    cost,
    spread: Spread::Mean,
    ..OpTraits::plain()
};
