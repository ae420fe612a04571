//! `cond`: a choice between two branches of a network, made in each step.
//!
//! Each branch becomes a block of a `conditional_block` op. Only the chosen branch runs, forward
//! and backward. Both branches end by writing their results to the same variables. A parameter that
//! only the other branch uses has a zero gradient in that step.

use crate::build::Build;
use crate::{Net, Var};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, VarId};
use fleet_tensor::DType;
use std::panic::Location;

/// The two conditions and their blocks.
struct Branches {
    /// Copies of the condition, which are never overwritten, so that the backward pass takes the
    /// same branch.
    conditions: [VarId; 2],
    blocks: [BlockId; 2],
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
        let at = Location::caller();
        let Some(branches) = self.try_emit(at, |b| branches(b, condition)) else {
            return Vec::new();
        };
        let made =
            [self.in_block(branches.blocks[0], then), self.in_block(branches.blocks[1], otherwise)];
        let Some(outputs) = self.try_emit(at, |b| result_vars(b, &made)) else {
            return Vec::new();
        };
        for (block, results) in branches.blocks.into_iter().zip(&made) {
            self.in_block(block, || self.try_emit(at, |b| end_branch(b, results, &outputs)));
        }
        let ids = self.try_emit(at, |b| emit_merge(b, &branches, &outputs)).unwrap_or_default();
        ids.into_iter().map(|id| self.handle(id)).collect()
    }
}

/// Checks the condition, and makes a block for each of its two values.
fn branches(b: &mut Build<'_>, condition: Var<'_>) -> Result<Branches> {
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
    Ok(Branches { conditions: [yes, no], blocks })
}

/// Adds the variables that both branches write, with the types and shapes of the branches' results.
fn result_vars(b: &mut Build<'_>, made: &[Vec<Var<'_>>; 2]) -> Result<Vec<VarId>> {
    let [then, otherwise] = [b.ids(&made[0])?, b.ids(&made[1])?];
    if then.len() != otherwise.len() {
        return Err(Error::invalid("the branches of cond have different numbers of results")
            .expected(format!("{} from both branches", then.len()))
            .got(otherwise.len()));
    }
    let mut outputs = Vec::with_capacity(then.len());
    for (place, (one, other)) in then.into_iter().zip(otherwise).enumerate() {
        let (a, c) = (b.meta(one), b.meta(other));
        if a.dtype != c.dtype || a.shape != c.shape || a.kind != c.kind {
            return Err(Error::invalid(format!("result {place} of cond differs between branches"))
                .expected(format!("{}{} from both branches", a.dtype, a.shape))
                .got(format!("{}{}", c.dtype, c.shape)));
        }
        let name = b.main.program.unique_name("cond.result");
        let var = fleet_ir::Var { kind: a.kind, ..fleet_ir::Var::new(name, a.dtype, a.shape) };
        outputs.push(b.main.program.add_var(fleet_ir::Program::ROOT, var)?);
    }
    Ok(outputs)
}

fn end_branch(b: &mut Build<'_>, results: &[Var<'_>], outputs: &[VarId]) -> Result<()> {
    for (result, output) in results.iter().zip(outputs) {
        let result = b.id(*result)?;
        b.op("assign")?.input("X", result).output("Out", *output).done()?;
    }
    Ok(())
}

/// Emits both conditional blocks, and copies the results to variables that ops of this block write.
fn emit_merge(b: &mut Build<'_>, branches: &Branches, outputs: &[VarId]) -> Result<Vec<VarId>> {
    for (condition, block) in branches.conditions.into_iter().zip(branches.blocks) {
        let call = b.op("conditional_block")?.input("Cond", condition);
        call.attr("sub_block", block).done()?;
    }
    outputs.iter().map(|output| b.op("assign")?.input("X", *output).one("Out")).collect()
}
