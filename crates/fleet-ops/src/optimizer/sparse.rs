//! Updates from sparse rows: duplicate rows are merged, then only the rows in use are updated. The
//! most common rules merge and update in one pass; others use a buffer of merged rows.

use crate::prelude::*;
use fleet_base::sync::lock;
use fleet_kernels::embedding::{self, AdamRows, Grid, Groups, Source};
use fleet_kernels::optim::{
    Regularizer, Rule, Segment, Segments, Step, Table, Tensors, update_rows,
};
use std::sync::Mutex;

/// A parameter whose gradient is sparse rows.
pub(super) struct Sparse {
    /// Index of the parameter in its slot.
    pub index: usize,
    height: usize,
    dim: usize,
    /// Maximum number of rows of the gradient.
    rows_max: usize,
    regularizer: Regularizer,
    weight_decay: f32,
    /// The whole table, for rules that update all rows.
    dense_table: Option<Mutex<Segments>>,
}

impl Sparse {
    /// `all` describes the table as one tensor.
    pub(super) fn new(
        index: usize,
        param: &Meta,
        rows_max: usize,
        all: Segment,
        moves_all_rows: bool,
    ) -> Sparse {
        let (height, dim) = (param.shape.at(0), param.shape.product(1..param.shape.rank()));
        let (regularizer, weight_decay) = (all.regularizer, all.weight_decay);
        let dense_table = moves_all_rows.then(|| Mutex::new(Segments::new(vec![all])));
        Sparse { index, height, dim, rows_max, regularizer, weight_decay, dense_table }
    }

    /// Size of scratch in 64-bit words: the groups, then merged rows or the dense gradient as f32.
    pub(super) fn scratch_words(&self) -> usize {
        let rows = if self.dense_table.is_some() { self.height } else { self.rows_max };
        embedding::group_scratch_len(self.rows_max) + (rows * self.dim).div_ceil(2)
    }

    pub(super) fn update(
        &self,
        pool: &Pool,
        rule: Rule,
        step: Step,
        grad: View<'_>,
        mut tensors: Tensors<'_>,
        scratch: &mut [u64],
    ) -> Result<()> {
        let (words, rest) = scratch.split_at_mut(embedding::group_scratch_len(self.rows_max));
        let rest: &mut [f32] = view_as_mut(rest);
        let groups = embedding::group(pool, grad.row_ids(), Some(self.height), None, words)?;
        let source = Source { data: grad.slice(), grid: Grid::packed(self.dim) };
        if let Some(table) = &self.dense_table {
            // Rows that are not in use have gradient 0.
            let dense = &mut rest[..self.height * self.dim];
            embedding::dense_gradient(pool, &groups, &source, self.dim, dense)?;
            let mut tensors = Some(Tensors { grad: Some(dense), ..tensors });
            let mut table = lock(table);
            let take = |_| tensors.take().expect("the table is one segment");
            table.bind(take).update(pool, rule, step, &mut []);
            return Ok(());
        }
        if self.update_merged(pool, rule, step, &groups, &source, &mut tensors)? {
            return Ok(());
        }
        embedding::merge_rows(pool, &groups, &source, self.dim, rest);
        let table = Table {
            param: tensors.param,
            state: tensors.state,
            width: self.dim,
            regularizer: self.regularizer,
            weight_decay: self.weight_decay,
        };
        let ids = groups.ids();
        let updated = update_rows(pool, rule, step, table, ids, &rest[..ids.len() * self.dim]);
        updated.map_err(|row| Error::internal(format!("row number {row} is out of range")))
    }

    /// Runs the rule's combined kernel for merging and updating. Returns false if the rule has
    /// none.
    fn update_merged(
        &self,
        pool: &Pool,
        rule: Rule,
        step: Step,
        groups: &Groups<'_>,
        source: &Source<'_>,
        tensors: &mut Tensors<'_>,
    ) -> Result<bool> {
        let plain = self.regularizer == Regularizer::None;
        let unscaled = plain && step.grad_scale == 1.0;
        let (dim, table) = (self.dim, &mut *tensors.param);
        match (rule, &mut tensors.state) {
            (Rule::Sgd, _) if plain => {
                let lr = step.lr * step.grad_scale;
                embedding::sgd_rows(pool, groups, source, dim, lr, table)?;
            }
            (Rule::Adagrad { epsilon }, [Some(sum), ..]) if unscaled => {
                let numbers = (step.lr, epsilon);
                embedding::adagrad_rows(pool, groups, source, dim, numbers, table, sum)?;
            }
            (Rule::Adam { beta1, beta2, epsilon }, [Some(first), Some(second), _]) if unscaled => {
                let root = (1.0 - step.beta2_pow).sqrt();
                let lr = step.lr * root / (1.0 - step.beta1_pow);
                let numbers = AdamRows { lr, beta1, beta2, epsilon: epsilon * root };
                embedding::adam_rows(pool, groups, source, dim, numbers, table, first, second)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}
