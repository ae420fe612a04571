//! Definition of an op, the context of its gradient rule, and the registry of definitions.
//!
//! These types refer to each other: an op has a gradient rule, a rule emits ops into a program, and
//! ops are found by name among all definitions. The files of this folder have their methods.

mod emit;
mod grad;
mod gradient_check;
mod registry;
mod shapes;

pub use emit::OpEmitter;

use crate::{InferCtx, Kernel, OpTraits, PrepareCtx};
use fleet_base::Result;
use fleet_ir::{BlockId, Op, OpId, OpRole, OpSpec, Program, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// An op: its signature ([`OpSpec`]), shape rule, gradient rule, kernel and traits. Each op is a
/// `static` in a file of its own.
pub struct OpDef {
    /// Name, slots and attributes.
    pub spec: OpSpec,
    /// Shape rule: computes types and shapes of the outputs from those of the inputs. Dimensions
    /// may be -1 while a program is built; all are known when the program is planned.
    pub infer: fn(&mut InferCtx<'_>) -> Result<()>,
    /// Gradient rule.
    pub grad: Grad,
    /// Makes the kernel for known shapes. Called once per plan.
    pub cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
    /// Facts for passes, the planner and strategies.
    pub traits: OpTraits,
}

impl OpDef {
    /// Returns the input slots of which the kernel uses only the shapes.
    pub fn shape_only_slots(&self) -> impl Iterator<Item = usize> {
        self.traits.shape_only.iter().filter_map(|slot| self.spec.input_index(slot))
    }

    /// Returns whether `op` is an op of this kind.
    pub fn is(&self, op: &Op) -> bool {
        op.name() == self.spec.name
    }
}

/// Gradient rule of an op.
#[derive(Clone, Copy)]
pub enum Grad {
    /// The op is constant with respect to its inputs, or ends the chain: gradients stop here.
    None,
    /// Emits the gradient op as its spec says: see [`GradCtx::by_name`].
    Op(&'static OpDef),
    /// Emits the gradient op by a rule, which may emit others too.
    OpRule(&'static OpDef, fn(&mut GradCtx<'_, '_>, &'static OpDef) -> Result<()>),
    /// Emits ops that are not specific to this op.
    Rule(fn(&mut GradCtx<'_, '_>) -> Result<()>),
}

/// Context of the gradient rule of one forward op.
///
/// A rule checks which gradients are wanted ([`GradCtx::dx`]) and which are available
/// ([`GradCtx::dy`]). It emits the ops that compute the former from the latter. The pass that calls
/// the rule sums several contributions to one gradient and names the results.
pub struct GradCtx<'g, 'p> {
    /// The emitter of the ops of the backward pass.
    pub emit: &'g mut Emit<'p>,
    /// The forward op.
    pub op: Op,
    /// The id of the forward op in the program.
    pub op_id: OpId,
    /// Complete gradient of each variable that has one.
    output_grads: &'g HashMap<VarId, VarId>,
    wanted: &'g dyn Fn(VarId) -> bool,
    /// Pairs (forward variable, its partial gradient), in order.
    made: Vec<(VarId, VarId)>,
}

/// A place in a program where ops are emitted, with the role and labels that they get.
///
/// Emitted ops are collected in [`Emit::ops`]. They belong to no block until [`Emit::append`] or
/// the calling pass adds them to one.
pub struct Emit<'p> {
    /// The program that gets the ops.
    pub program: &'p mut Program,
    /// Where ops are looked up by name.
    pub registry: &'p Registry,
    /// The block that gets the ops, and new variables.
    pub block: BlockId,
    /// The part of a training step that the ops belong to.
    pub role: OpRole,
    /// Device label of the ops: see [`Op::device`].
    pub device: Option<Arc<str>>,
    /// See [`Op::fp16_guard`].
    pub fp16_guard: bool,
    /// Source location of the ops, for errors: see [`Op::source`].
    pub source: Option<Arc<str>>,
    /// Name of the layer, which begins the names of results that have no stem of their own.
    pub layer: Option<Arc<str>>,
    /// The ops emitted so far.
    pub ops: Vec<OpId>,
}

/// Ops, in order and by name.
pub struct Registry {
    defs: Vec<&'static OpDef>,
    /// Index in `defs` by name.
    places: HashMap<&'static str, usize>,
    /// Forward ops by the name of their gradient op.
    forwards: HashMap<&'static str, &'static OpDef>,
}
