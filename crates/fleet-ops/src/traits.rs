//! Facts about an op that passes, planners and strategies use. Each has a default that is safe for
//! any op, so an op states only what differs.

use crate::divide::{self, DivideRule};
use crate::{Meta, Spread, Traffic};
use fleet_ir::{Op, VarKind};

/// Properties of an op that passes and planners use.
#[derive(Clone, Copy)]
pub struct OpTraits {
    /// The list of mixed precision that the op is on.
    pub amp: AmpClass,
    /// Input slots that stay f32 where mixed precision casts the others to 16 bits: statistics and
    /// affine parameters.
    pub wide: &'static [&'static str],
    /// Pairs (output slot, input slot): the output may reuse the input's memory if the input is not
    /// needed afterwards. The kernel then gets the same pointer twice.
    pub inplace: &'static [(&'static str, &'static str)],
    /// Like `inplace`, for outputs that hold sparse rows: their values may reuse the memory of a
    /// dense input.
    pub inplace_rows: &'static [(&'static str, &'static str)],
    /// Pairs (output slot, input slot) of state: the output is the new value of the input, and is
    /// usually the same variable. The planner does not join separate ones.
    pub state: &'static [(&'static str, &'static str)],
    /// Pair (output slot, input slot): the output is the input's bytes under another shape. The
    /// planner shares their memory where possible; otherwise the kernel copies.
    pub view: Option<(&'static str, &'static str)>,
    /// Input slots of which the op needs only type and shape. Their bytes need not be kept for this
    /// op.
    pub shape_only: &'static [&'static str],
    /// Whether two such ops, each with some of the outputs, take no longer than one with all.
    pub separable: bool,
    /// Input slots that may hold sparse rows. All others hold dense tensors.
    pub sparse: &'static [&'static str],
    /// Whether the op draws random numbers. Two equal random ops give different values.
    pub random: bool,
    /// Whether the op has side effects. Such an op is never removed as dead.
    pub effect: bool,
    /// Whether each output element depends only on the input elements at the same position. The
    /// physical layout of the operands is then irrelevant if all have the same one and padding
    /// zeros stay zero.
    pub elementwise: bool,
    /// Whether the op is elementwise if all operands have one shape and no padding. `elementwise`
    /// implies it.
    pub elementwise_unpadded: bool,
    /// Whether the result also depends on norms of whole operands, so that ranks with parts of them
    /// cannot compute it.
    pub norms: bool,
    /// Whether a smaller operand may be repeated along a larger one.
    pub broadcasts: bool,
    /// Whether the result depends neither on the order of the elements nor on padding zeros.
    pub order_independent: bool,
    /// The operands that are images.
    pub images: Option<Images>,
    /// The thread that runs the op.
    pub lane: Lane,
    /// Whether the inputs move to the executor's storage, which frees their memory.
    pub offloads: bool,
    /// Estimates the work of the op, for known sizes.
    pub cost: fn(&CostCtx<'_>) -> Cost,
    /// Whether memory that the op sends, or of which only the root needs the result, is free when
    /// the lane's next calls begin. Other memory that a ring's lane uses last is kept to the end of
    /// the run, so that compute never waits for the lane.
    pub frees_early: bool,
    /// Communication that one rank sends, if any. An op that sends has the attributes
    /// `ring_id` and `nranks`.
    pub traffic: fn(&CostCtx<'_>) -> Option<Traffic>,
    /// Output slots that have the same value on all ranks, even if the inputs differ.
    pub common: &'static [&'static str],
    /// Output slots whose value only one rank of the ring has.
    pub owned: &'static [&'static str],
    /// Whether ranks of the op's ring have parts of a parameter, but samples of their own, which
    /// the op gathers. Other ranks with parts of a parameter have the same samples.
    pub gathers_samples: bool,
    /// Pairs (output slot, input slot): the output does not depend on the input.
    pub independent: &'static [(&'static str, &'static str)],
    /// How persistent outputs pass to another number of ranks if the ranks hold different values.
    pub spread: Spread,
    /// The rule for parts of tensors, where ranks share layers. The default is that of elementwise
    /// ops; other ops then do not support parts.
    pub divide: DivideRule,
    /// Whether an output that is also an input is a running sum, so that its spread is
    /// [`Spread::Share`].
    pub accumulates: bool,
}

/// Operands of an op that are images.
#[derive(Clone, Copy, Debug)]
pub struct Images {
    /// Attribute with the format of all images, `NCHW` or `NHWC`.
    pub format: &'static str,
    /// Slots of the images, inputs and outputs.
    pub slots: &'static [&'static str],
}

/// Mixed-precision class: the default list that the op is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AmpClass {
    /// Runs in half precision.
    White,
    /// Runs in single precision.
    Black,
    /// Follows the precision of its inputs.
    Gray,
    /// On no list; runs in single precision.
    Unlisted,
}

/// Thread that runs an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lane {
    /// The thread that calls the executor, which uses the pool.
    Compute,
    /// A separate thread beside compute, for copies and disk access.
    Side(u8),
    /// The thread of the ring in the op's attribute `ring_id`.
    Ring,
}

/// Estimated work of an op.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// Context of a cost rule.
pub struct CostCtx<'a> {
    /// The op, with its attributes.
    pub op: &'a Op,
    /// Types and shapes of the inputs, by slot.
    pub inputs: &'a [Vec<Meta>],
    /// Types and shapes of the outputs, by slot.
    pub outputs: &'a [Vec<Meta>],
}

impl CostCtx<'_> {
    /// Returns the size of all inputs and outputs in bytes.
    pub fn bytes(&self) -> f64 {
        self.inputs.iter().chain(self.outputs).flatten().map(|meta| meta.bytes() as f64).sum()
    }

    /// Returns the first variable of an input slot, or `None` if the slot is empty.
    pub fn input(&self, slot: &str) -> Option<&Meta> {
        self.inputs(slot).first()
    }

    fn inputs(&self, slot: &str) -> &[Meta] {
        self.op.spec.input_index(slot).map_or(&[], |index| &self.inputs[index])
    }

    /// Returns the bytes of the dense variables of an input slot. The number of sparse rows is
    /// unknown before a step.
    pub(crate) fn input_bytes(&self, slot: &str) -> f64 {
        let dense = self.inputs(slot).iter().filter(|meta| meta.kind != VarKind::SparseRows);
        dense.map(|meta| meta.bytes() as f64).sum()
    }

    /// Returns the number of ranks for which an op was written.
    pub(crate) fn ranks(&self) -> f64 {
        self.op.attr_usize("nranks") as f64
    }

    /// Returns the first variable of an output slot, or `None` if the slot is empty.
    pub fn output(&self, slot: &str) -> Option<&Meta> {
        self.op.spec.output_index(slot).and_then(|index| self.outputs[index].first())
    }
}

impl OpTraits {
    /// Default traits, to be overridden field by field.
    pub const fn plain() -> OpTraits {
        OpTraits {
            amp: AmpClass::Unlisted,
            wide: &[],
            inplace: &[],
            inplace_rows: &[],
            state: &[],
            view: None,
            shape_only: &[],
            separable: false,
            sparse: &[],
            random: false,
            effect: false,
            elementwise: false,
            elementwise_unpadded: false,
            norms: false,
            broadcasts: false,
            order_independent: false,
            images: None,
            lane: Lane::Compute,
            offloads: false,
            frees_early: false,
            cost: elementwise_cost,
            traffic: |_| None,
            common: &[],
            owned: &[],
            gathers_samples: false,
            independent: &[],
            spread: Spread::First,
            divide: divide::elementwise,
            accumulates: false,
        }
    }

    /// Returns the default traits with another class of mixed precision.
    pub const fn amp(amp: AmpClass) -> OpTraits {
        let mut traits = OpTraits::plain();
        traits.amp = amp;
        traits
    }
}

/// Cost of one flop per output element, with every operand moved once.
pub fn elementwise_cost(ctx: &CostCtx<'_>) -> Cost {
    Cost {
        flops: ctx.outputs.iter().flatten().map(|meta| meta.numel() as f64).sum(),
        bytes: ctx.bytes(),
    }
}
