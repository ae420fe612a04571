//! A job's pipelines: how ranks form them, and the stage of a rank (see `meta/pipeline.rs`).

use crate::grid::Grid;
use fleet_ir::VarId;
use std::collections::{BTreeSet, HashMap};

/// A pipeline, seen from one of its stages.
pub struct Pipeline {
    pub layout: Layout,
    /// Ring of all stages; none if there is one stage.
    pub ring: Option<i64>,
    /// Parameters of several stages, with the stages.
    pub shared: Vec<(String, BTreeSet<usize>)>,
    pub pairs: Vec<Pair>,
    /// State that the program used before it was cut.
    pub state: Vec<VarId>,
    pub info: StageInfo,
}

/// The stage of a rank.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StageInfo {
    /// Number of the stage, from 0.
    pub number: usize,
    /// Number of stages.
    pub count: usize,
    /// Number of this rank's pipeline. Ranks of one pipeline are fed the same batch.
    pub copy: usize,
    /// Number of pipelines.
    pub copies: usize,
    /// The grid of the job's ranks.
    pub grid: Grid,
    /// Number of micro-batches in a batch.
    pub micro_batches: usize,
    /// Number of parts of the program that each stage runs.
    pub virtual_stages: usize,
    /// Whether gradients of weights are computed while a stage would wait (ZBH1).
    pub defers_weights: bool,
    /// Variables that other stages have, with one of these stages.
    pub elsewhere: HashMap<String, usize>,
}

impl StageInfo {
    /// Returns the share of a step in which a stage waits, if all parts take the same time. With
    /// ZBH1, forward passes and both halves of backward passes do.
    pub fn bubble(&self) -> Bubble {
        let (stages, micros) = (self.count.max(1), self.micro_batches);
        let v = self.virtual_stages.max(1);
        let mut sizes = format!("S = {stages}, M = {micros}");
        let (formula, units) = match (self.defers_weights, v) {
            (true, _) => ("(S - 1) / (3 M + S - 1)", 3 * micros),
            (false, 1) => ("(S - 1) / (M + S - 1)", micros),
            (false, v) => {
                sizes += &format!(", v = {v}");
                ("(S - 1) / (v M + S - 1)", v * micros)
            }
        };
        let waits = stages - 1;
        let share = waits as f64 / ((units + waits) as f64).max(1.0);
        Bubble { share, formula: format!("{formula} = {:.1} %", share * 100.0), sizes }
    }
}

/// The share of a step in which a stage waits for others.
#[derive(Clone, Debug, PartialEq)]
pub struct Bubble {
    /// The share.
    pub share: f64,
    /// The formula with its value, in percent.
    pub formula: String,
    /// The values of the letters in the formula.
    pub sizes: String,
}

/// How the ranks of a job form pipelines.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub grid: Grid,
    pub size: Size,
    /// Whether labels name the parts.
    pub is_labelled: bool,
}

impl Layout {
    /// Returns the number of pipelines, each with samples of its own.
    pub fn copies(&self) -> usize {
        self.grid.copy(0).1
    }
}

/// The size of a pipeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    /// Number of stages.
    pub stages: usize,
    /// Number of parts of the program; a multiple of the stages.
    pub parts: usize,
    /// Number of micro-batches in a step.
    pub micros: usize,
}

impl Size {
    /// Returns the stage that runs a part.
    pub fn stage_of(&self, part: usize) -> usize {
        part % self.stages
    }

    /// Returns the parts of a stage, in the order of the program.
    pub fn parts_of(&self, stage: usize) -> impl DoubleEndedIterator<Item = usize> + use<> {
        (stage..self.parts).step_by(self.stages)
    }

    /// Returns the number of parts of each stage.
    pub fn virtual_stages(&self) -> usize {
        self.parts / self.stages
    }
}

/// A ring between two stages that share parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub first: usize,
    pub other: usize,
    pub ring: i64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bubbles_follow_the_formula() {
        let bubble = |count: usize, virtual_stages: usize, micro_batches: usize, zero: bool| {
            let info = StageInfo { count, virtual_stages, micro_batches, ..StageInfo::default() };
            let Bubble { formula, sizes, .. } = StageInfo { defers_weights: zero, ..info }.bubble();
            format!("{formula} ({sizes})")
        };
        assert_eq!(bubble(2, 1, 8, false), "(S - 1) / (M + S - 1) = 11.1 % (S = 2, M = 8)");
        assert_eq!(bubble(4, 1, 4, false), "(S - 1) / (M + S - 1) = 42.9 % (S = 4, M = 4)");
        let parts = "(S - 1) / (v M + S - 1) = 27.3 % (S = 4, M = 4, v = 2)";
        assert_eq!(bubble(4, 2, 4, false), parts);
        assert_eq!(bubble(2, 1, 8, true), "(S - 1) / (3 M + S - 1) = 4.0 % (S = 2, M = 8)");
        assert_eq!(bubble(0, 0, 0, false), "(S - 1) / (M + S - 1) = 0.0 % (S = 1, M = 0)");
    }
}
