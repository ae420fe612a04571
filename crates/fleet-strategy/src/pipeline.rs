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
    /// Variables that other stages have, with one of these stages.
    pub elsewhere: HashMap<String, usize>,
}

impl StageInfo {
    /// Returns the share of a step in which a stage waits, if all parts take the same time:
    /// `(S - 1) / (v M + S - 1)`.
    pub fn bubble(&self) -> f64 {
        let (stages, parts) = (self.count.max(1), self.count * self.virtual_stages);
        Size { stages, parts, micros: self.micro_batches }.bubble()
    }
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

    /// Returns the share of a step in which a stage waits, if all parts take the same time.
    pub fn bubble(&self) -> f64 {
        let waits = (self.stages - 1) as f64;
        waits / ((self.virtual_stages() * self.micros) as f64 + waits).max(1.0)
    }
}

/// A ring between two stages that share parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair {
    pub first: usize,
    pub other: usize,
    pub ring: i64,
}
