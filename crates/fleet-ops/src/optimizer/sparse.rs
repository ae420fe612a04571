//! Updates from sparse rows: duplicate rows are merged, then only the rows in use are updated. The
//! most common rules merge and update in one pass; others use a buffer of merged rows.

use super::common::{GRAD, Plan, tensor};
use crate::prelude::*;
use fleet_base::sync::lock;
use fleet_kernels::embedding::{self, AdamRows, Grid, Groups, Source};
use fleet_kernels::optim::{Regularizer, Rule, Segment, Segments, Step, Table, update_rows};
use std::sync::Mutex;

/// A parameter whose gradient is sparse rows.
pub(super) struct Sparse {
    /// Index of the parameter in its slot.
    pub index: usize,
    height: usize,
    dim: usize,
    /// Maximum number of rows of the gradient.
    rows_max: usize,
    /// The whole table, for rules that update all rows.
    dense_table: Option<Mutex<Segments>>,
}

impl Sparse {
    pub(super) fn new(index: usize, param: &Meta, rows_max: usize, moves_all_rows: bool) -> Sparse {
        let shape = &param.shape;
        let dense_table = moves_all_rows.then(|| {
            let none = Segment::of(&mut [], &[], [None, None, None]);
            Mutex::new(Segments::new(vec![Segment { len: shape.len(), ..none }]))
        });
        let dim = shape.product(1..shape.rank());
        Sparse { index, height: shape.at(0), dim, rows_max, dense_table }
    }

    /// Size of scratch in 64-bit words: the groups, then merged rows or the dense gradient as f32.
    pub(super) fn scratch_words(&self) -> usize {
        let rows = if self.dense_table.is_some() { self.height } else { self.rows_max };
        embedding::group_scratch_len(self.rows_max) + (rows * self.dim).div_ceil(2)
    }

    pub(super) fn update(&self, k: &KernelCtx<'_>, plan: &Plan, step: Step) -> Result<()> {
        let grad = &k.inputs[GRAD][self.index];
        let words = embedding::group_scratch_len(self.rows_max);
        let rest = &mut k.scratch::<f32>()[2 * words..];
        let words = &mut k.scratch_words()[..words];
        let groups = embedding::group(k.pool, grad.row_ids(), Some(self.height), None, words)?;
        let source = Source::Grid { data: grad.slice(), grid: Grid::packed(self.dim) };
        if let Some(dense_table) = &self.dense_table {
            return self.update_all(k, plan, step, dense_table, (&groups, &source), rest);
        }
        if self.update_merged(k, plan, step, &groups, &source)? {
            return Ok(());
        }
        embedding::merge_rows(k.pool, &groups, &source, self.dim, rest);
        let mut states = plan.states.iter().map(|slot| tensor(&k.outputs[*slot][self.index]));
        let table = Table {
            param: tensor(&k.outputs[0][self.index]),
            state: std::array::from_fn(|_| states.next()),
            width: self.dim,
            regularizer: plan.regularizer,
            weight_decay: plan.weight_decay,
        };
        let ids = groups.ids();
        let merged = &rest[..ids.len() * self.dim];
        // SAFETY: the groups contain each row once.
        let updated = unsafe { update_rows(k.pool, plan.rule, step, table, ids, merged) };
        updated.map_err(|row| Error::internal(format!("row number {row} is out of range")))
    }

    /// Runs the rule's combined kernel for merging and updating. Returns false if the rule has
    /// none.
    fn update_merged(
        &self,
        k: &KernelCtx<'_>,
        plan: &Plan,
        step: Step,
        groups: &Groups<'_>,
        source: &Source<'_>,
    ) -> Result<bool> {
        let plain = plan.regularizer == Regularizer::None;
        let unscaled = plain && step.grad_scale == 1.0;
        let table = tensor(&k.outputs[0][self.index]);
        let state = |which: usize| tensor(&k.outputs[plan.states[which]][self.index]);
        match plan.rule {
            Rule::Sgd if plain => {
                let lr = step.lr * step.grad_scale;
                embedding::sgd_rows(k.pool, groups, source, self.dim, lr, table)?;
            }
            Rule::Adagrad { epsilon } if unscaled => {
                let numbers = (step.lr, epsilon);
                embedding::adagrad_rows(
                    k.pool,
                    groups,
                    source,
                    self.dim,
                    numbers,
                    table,
                    state(0),
                )?;
            }
            Rule::Adam { beta1, beta2, epsilon } if unscaled => {
                let root = (1.0 - step.beta2_pow).sqrt();
                let lr = step.lr * root / (1.0 - step.beta1_pow);
                let numbers = AdamRows { lr, beta1, beta2, epsilon: epsilon * root };
                let (first, second) = (state(0), state(1));
                embedding::adam_rows(
                    k.pool, groups, source, self.dim, numbers, table, first, second,
                )?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Runs the dense update with the gradient in dense form, where rows not in use have gradient
    /// 0.
    fn update_all(
        &self,
        k: &KernelCtx<'_>,
        plan: &Plan,
        step: Step,
        dense_table: &Mutex<Segments>,
        (groups, source): (&Groups<'_>, &Source<'_>),
        dense: &mut [f32],
    ) -> Result<()> {
        let dense = &mut dense[..self.height * self.dim];
        embedding::dense_gradient(k.pool, groups, source, self.dim, dense)?;
        let mut segments = lock(dense_table);
        segments.rebind(|_, segment| {
            plan.bind(k, self.index, segment);
            segment.grad = dense.as_ptr();
            segment.regularizer = plan.regularizer;
            segment.weight_decay = plan.weight_decay;
        });
        // SAFETY: the plan owns the table and its state, each of this length; the gradient is in
        // scratch.
        unsafe { segments.update(k.pool, plan.rule, step, &mut []) };
        Ok(())
    }
}
