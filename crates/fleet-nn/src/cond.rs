//! `cond`: a choice between two branches of a network, made in each step.
//!
//! Each branch becomes a block of a `conditional_block` op. Only the chosen branch runs, forward
//! and backward. Both branches end by writing their results to the same variables. A parameter that
//! only the other branch uses has a zero gradient in that step.

use crate::build::Build;
use crate::{Guard, Net, Var};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, Program, VarId};
use fleet_tensor::DType;
use std::panic::Location;

/// A `cond` whose branches are being written: the steps of [`Net::cond_many`], for callers that
/// cannot pass closures, such as bindings for other languages.
///
/// It is a plain value and stays valid if the network's programs move to another [`Net`] between
/// two steps.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 4], DType::F32);
/// let mut open = net.begin_cond(x.mean().greater_than(0.0))?;
/// let then = {
///     let _branch = net.branch_guard(&open);
///     x.fc(2)
/// };
/// net.begin_else(&mut open, &[then])?;
/// let otherwise = {
///     let _branch = net.branch_guard(&open);
///     x.fc(2).relu()
/// };
/// let results = net.end_cond(open, &[otherwise])?;
/// assert_eq!(results[0].shape(), Shape::from([-1, 2]));
/// # Ok::<(), fleet_nn::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct OpenCond {
    /// Copies of the condition and of its opposite, which are never overwritten, so that the
    /// backward pass takes the same branch.
    conditions: [VarId; 2],
    blocks: [BlockId; 2],
    /// Results of the first branch, once the second one has begun.
    then: Option<Vec<VarId>>,
}

impl OpenCond {
    /// Returns the block of the branch that is being written.
    fn block(&self) -> BlockId {
        self.blocks[usize::from(self.then.is_some())]
    }
}

impl Net {
    /// Returns the result of `then` if `condition` (one boolean) holds, and the result of
    /// `otherwise` if not. Branches may use all existing variables and may create parameters. Their
    /// results must have the same type and shape. Gradients flow through the branch that runs.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 16], DType::F32);
    /// let is_hard = x.abs().mean().greater_than(1.0);
    /// let y = net.cond(is_hard, || x.fc(Fc::new(64).act(Act::Relu)).fc(4), || x.fc(4));
    /// assert_eq!(y.shape(), Shape::from([-1, 4]));
    /// net.minimize(y.square().mean(), Sgd::new(0.1))?;
    /// assert_eq!(net.build()?.main.parameters().count(), 6);
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn cond<'n>(
        &'n self,
        condition: Var<'n>,
        then: impl FnOnce() -> Var<'n>,
        otherwise: impl FnOnce() -> Var<'n>,
    ) -> Var<'n> {
        let made = self.cond_many(condition, || vec![then()], || vec![otherwise()]);
        made.first().copied().unwrap_or_else(|| self.invalid_var())
    }

    /// Like [`Net::cond`], for branches with several results. Both must have the same number.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let (a, b) = (net.data("a", [-1, 2], DType::F32), net.data("b", [-1, 2], DType::F32));
    /// let swapped = a.sum().less_than(b.sum());
    /// let sorted = net.cond_many(swapped, || vec![b * 1.0, a * 1.0], || vec![a * 1.0, b * 1.0]);
    /// assert_eq!(sorted.len(), 2);
    /// # net.build()?;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn cond_many<'n>(
        &'n self,
        condition: Var<'n>,
        then: impl FnOnce() -> Vec<Var<'n>>,
        otherwise: impl FnOnce() -> Vec<Var<'n>>,
    ) -> Vec<Var<'n>> {
        // Errors stay in the network.
        let Ok(mut open) = self.begin_cond(condition) else { return Vec::new() };
        let results = self.in_branch(&open, then);
        if self.begin_else(&mut open, &results).is_err() {
            return Vec::new();
        }
        let results = self.in_branch(&open, otherwise);
        self.end_cond(open, &results).unwrap_or_default()
    }

    fn in_branch<T>(&self, open: &OpenCond, write: impl FnOnce() -> T) -> T {
        let _branch = self.branch_guard(open);
        write()
    }

    /// Begins a [`Net::cond_many`]. The first branch is written under a [`Net::branch_guard`].
    #[track_caller]
    pub fn begin_cond(&self, condition: Var<'_>) -> Result<OpenCond> {
        self.emit(Location::caller(), |b| begin(b, condition))
    }

    /// Writes layers to the open branch of a `cond` while the guard is alive.
    pub fn branch_guard(&self, open: &OpenCond) -> Guard<'_> {
        self.block_guard(open.block())
    }

    /// Ends the first branch of a `cond`, which has these results, and begins the second one.
    #[track_caller]
    pub fn begin_else(&self, open: &mut OpenCond, results: &[Var<'_>]) -> Result<()> {
        self.emit(Location::caller(), |b| {
            check_open(b, open, false)?;
            open.then = Some(b.ids(results)?);
            Ok(())
        })
    }

    /// Ends the second branch of a `cond`, which has these results. Returns the results of the
    /// `cond`.
    #[track_caller]
    pub fn end_cond(&self, open: OpenCond, results: &[Var<'_>]) -> Result<Vec<Var<'_>>> {
        let ids = self.emit(Location::caller(), |b| {
            check_open(b, &open, true)?;
            let made = [open.then.clone().unwrap_or_default(), b.ids(results)?];
            let outputs = result_vars(b, &made)?;
            for (block, results) in open.blocks.into_iter().zip(&made) {
                end_branch(b, block, results, &outputs)?;
            }
            emit_merge(b, &open, &outputs)
        })?;
        Ok(ids.into_iter().map(|id| self.handle(id)).collect())
    }
}

/// Checks the condition, and makes a block for each of its two values.
fn begin(b: &mut Build<'_>, condition: Var<'_>) -> Result<OpenCond> {
    let given = b.id(condition)?;
    let meta = b.meta(given);
    if meta.dtype != DType::Bool || meta.shape.numel() != Some(1) {
        return Err(Error::invalid("invalid condition of cond")
            .expected("one boolean, such as x.mean().greater_than(0.0)")
            .got(format!("{}{}", meta.dtype, meta.shape)));
    }
    let layer = b.layer_name("cond", None);
    let yes = b.op("assign")?.named(format!("{layer}.tmp")).input("X", given).one("Out")?;
    let no = b.op("logical_not")?.named(format!("{layer}.tmp")).input("X", yes).one("Out")?;
    let inside = b.block;
    let blocks = [b.main.program.add_block(inside), b.main.program.add_block(inside)];
    Ok(OpenCond { conditions: [yes, no], blocks, then: None })
}

/// Checks that the next step of a `cond` is made in its own program, outside of its branches, and
/// in order.
fn check_open(b: &Build<'_>, open: &OpenCond, is_second: bool) -> Result<()> {
    let program = &b.main.program;
    let is_own = |block: &BlockId| program.has_block(*block);
    if !open.blocks.iter().all(is_own) || !open.conditions.iter().all(|id| program.has_var(*id)) {
        return Err(Error::invalid("the cond belongs to another network"));
    }
    if program.block(open.blocks[0]).parent != Some(b.block) {
        return Err(Error::invalid("a branch of cond is still being written")
            .help("drop its branch guard, and end the cond in its branch first"));
    }
    if open.then.is_some() != is_second {
        return Err(Error::invalid("wrong order of the steps of cond")
            .expected("begin_cond, begin_else, end_cond"));
    }
    Ok(())
}

/// Adds the variables that both branches write, with the types and shapes of the branches' results.
fn result_vars(b: &mut Build<'_>, made: &[Vec<VarId>; 2]) -> Result<Vec<VarId>> {
    let [then, otherwise] = made;
    if then.len() != otherwise.len() {
        return Err(Error::invalid("the branches of cond have different numbers of results")
            .expected(format!("{} from both branches", then.len()))
            .got(otherwise.len()));
    }
    let mut outputs = Vec::with_capacity(then.len());
    for (place, (one, other)) in then.iter().zip(otherwise).enumerate() {
        let (a, c) = (b.meta(*one), b.meta(*other));
        if a.dtype != c.dtype || a.shape != c.shape || a.kind != c.kind {
            return Err(Error::invalid(format!("result {place} of cond differs between branches"))
                .expected(format!("{}{} from both branches", a.dtype, a.shape))
                .got(format!("{}{}", c.dtype, c.shape)));
        }
        let name = b.main.program.unique_name("cond.result");
        let var = fleet_ir::Var { kind: a.kind, ..fleet_ir::Var::new(name, a.dtype, a.shape) };
        outputs.push(b.main.program.add_var(Program::ROOT, var)?);
    }
    Ok(outputs)
}

/// Ends a branch: it writes its results to the variables that both branches write.
fn end_branch(
    b: &mut Build<'_>,
    block: BlockId,
    results: &[VarId],
    outputs: &[VarId],
) -> Result<()> {
    for (result, output) in results.iter().zip(outputs) {
        b.op("assign")?.input("X", *result).output("Out", *output).done()?;
    }
    b.append_to(block);
    Ok(())
}

/// Emits both conditional blocks, and copies the results to variables that ops of this block write.
fn emit_merge(b: &mut Build<'_>, open: &OpenCond, outputs: &[VarId]) -> Result<Vec<VarId>> {
    for (condition, block) in open.conditions.into_iter().zip(open.blocks) {
        let call = b.op("conditional_block")?.input("Cond", condition);
        call.attr("sub_block", block).done()?;
    }
    outputs.iter().map(|output| b.op("assign")?.input("X", *output).one("Out")).collect()
}
