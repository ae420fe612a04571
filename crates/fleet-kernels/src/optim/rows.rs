//! Updates only those rows of a table that have a gradient.

use super::rules::*;
use super::{PIECE, Regularizer, Rule, Step};
use crate::pool::Pool;
use crate::simd::{SharedPtr, prefetch};
use crate::{for_registers, kernel};
use std::ops::Range;

/// A table and its state, for updates of rows.
#[derive(Debug)]
pub struct Table<'a> {
    /// Parameters, `[rows, width]`.
    pub param: &'a mut [f32],
    /// State tables of the same shape; [`Rule::state_count`] of them are present.
    pub state: [Option<&'a mut [f32]>; 3],
    /// Numbers per row.
    pub width: usize,
    /// Penalty that is added to the gradients.
    pub regularizer: Regularizer,
    /// See [`Segment::weight_decay`](super::Segment::weight_decay). LARS and LAMB do not support
    /// rows.
    pub weight_decay: f32,
}

/// Number of rows to prefetch ahead: about the memory latency divided by the time per row.
const ROWS_AHEAD: usize = 8;

/// Updates the rows `rows[i]` of a table with the gradients `grads[i * width..]`. The other rows
/// and their state do not change (lazy Adam). If a row is outside the table, nothing changes, and
/// the first such row is returned as the error.
///
/// # Panics
/// Panics if `rows` is not in ascending order without duplicates.
pub fn update_rows(
    pool: &Pool,
    rule: Rule,
    step: Step,
    table: Table<'_>,
    rows: &[i64],
    grads: &[f32],
) -> Result<(), i64> {
    let width = table.width;
    assert!(width > 0 && table.param.len().is_multiple_of(width), "not a whole number of rows");
    assert_eq!(grads.len(), rows.len() * width, "expected one gradient row per row");
    assert!(!rule.needs_norms(), "this rule requires whole tensors");
    let count = (table.param.len() / width) as i64;
    let given = table.state.iter().take_while(|slice| slice.is_some()).count();
    assert!(given >= rule.state_count(), "a state table is missing");
    if let Some(wrong) = rows.iter().find(|row| !(0..count).contains(*row)) {
        return Err(*wrong);
    }
    assert!(rows.is_sorted_by(|row, next| row < next), "rows are not in ascending order");
    let len = table.param.len();
    let param = SharedPtr::new_mut(table.param.as_mut_ptr());
    let state = table.state.map(|slice| {
        SharedPtr::new_mut(slice.map_or(std::ptr::null_mut(), |slice| {
            assert_eq!(slice.len(), len, "table and state differ in shape");
            slice.as_mut_ptr()
        }))
    });
    let gradient = Gradient { scale: step.grad_scale, regularizer: table.regularizer };
    let (rows_raw, grads) = (SharedPtr::new(rows.as_ptr()), SharedPtr::new(grads.as_ptr()));
    let grain = (PIECE / 4 / width).max(1);
    with_rule!(rule, step, step.lr, table.weight_decay, op => {
        pool.run_ranges(rows.len(), grain, |range| {
            // SAFETY: rows are unique and inside the table, so tasks write different rows.
            unsafe { rows_kernel(op, gradient, param, grads, state, rows_raw, range, width) };
        });
    });
    Ok(())
}

kernel! {
    unsafe fn rows_kernel<S, O: UpdateOp>(
        s: S, op: O, gradient: Gradient, param: SharedPtr<f32>, grads: SharedPtr<f32>,
        state: [SharedPtr<f32>; 3],
        rows: SharedPtr<i64>, range: Range<usize>, width: usize,
    ) {
        for i in range.clone() {
            let ahead = (i + ROWS_AHEAD).min(range.end - 1);
            let next = *rows.at(ahead) as usize * width;
            prefetch(param.at(next));
            for k in 0..O::STATES {
                prefetch(state[k].at(next));
            }
            let row = *rows.at(i) as usize * width;
            let (w, g) = (param.at(row), grads.at(i * width));
            for_registers!(S, width, |c, n| {
                let mut values = [s.zero(); 3];
                for k in 0..O::STATES {
                    values[k] = s.load_n(state[k].at(row + c), n);
                }
                let old = s.load_n(w.add(c), n);
                let grad = gradient.at(s, s.load_n(g.add(c), n), old);
                let new = op.update(s, old, grad, &mut values);
                s.store_n(w.add(c), new, n);
                for k in 0..O::STATES {
                    s.store_n(state[k].at(row + c), values[k], n);
                }
            });
        }
    }
}
