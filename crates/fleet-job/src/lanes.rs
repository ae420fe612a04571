//! Runs a program on rows so that a row has the same result in any batch, bit for bit.
//!
//! Kernels choose the order of their sums by the shapes of a run. So programs run on pieces of at
//! most [`PIECE_ROWS`] rows, which are one block of rows to a product, so that all of them split
//! their sums in the same way. A single row would be a product of a matrix and a vector, which sums
//! in another order. Ragged inputs get a width that is a power of two: sums over the zeros of the
//! padding then add whole halves that are zero.
//!
//! Lanes are threads, each with an executor of its own. They share the parameters.

use fleet::ir::Program;
use fleet::ops::Services;
use fleet::{ExecOptions, Executor, Scope, Shape, Tensor};
use fleet_base::{Error, Result};
use fleet_data::Batch;
use std::ops::Range;

/// Limit on the rows of a piece: products have blocks of 72 rows.
const PIECE_ROWS: usize = 72;
/// Pieces have a multiple of this number of rows, so that there are few plans.
const STEP_ROWS: usize = 8;
/// Width of ragged inputs with fewer values.
const WIDTH_MIN: usize = 8;
/// Runs without use after which a plan is dropped. There is one for each number of
/// rows and combination of widths.
const PLAN_RUNS: usize = 1000;

/// Threads that run programs on rows.
pub struct Lanes {
    lanes: Vec<Lane>,
    services: Services,
    options: ExecOptions,
    values: Vec<f32>,
}

/// A thread's executor and memory.
struct Lane {
    executor: Executor,
    scope: Scope,
    inputs: Vec<Tensor>,
    out: Vec<Tensor>,
    values: Vec<f32>,
}

impl Lanes {
    /// Makes a lane for each thread of the options, over the same parameters.
    pub fn new(scope: Scope, services: Services, options: &ExecOptions) -> Lanes {
        let threads = match options.num_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        };
        let options = ExecOptions {
            num_threads: 1,
            num_iteration_per_drop_scope: PLAN_RUNS,
            ..options.clone()
        };
        let mut lanes = Lanes { lanes: Vec::new(), services, options, values: Vec::new() };
        lanes.add(scope);
        for _ in 1..threads {
            lanes.add_sharing();
        }
        lanes
    }

    /// Returns the number of threads.
    pub fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Returns one lane more over the same parameters, for another thread.
    pub fn share(&mut self) -> Lanes {
        let (services, options) = (self.services.clone(), self.options.clone());
        let scope = self.lanes[0].scope.share();
        let mut lanes = Lanes { lanes: Vec::new(), services, options, values: Vec::new() };
        lanes.add(scope);
        lanes
    }

    fn add(&mut self, scope: Scope) {
        let executor = Executor::new(self.options.clone()).services(self.services.clone());
        let (inputs, out, values) = (Vec::new(), Vec::new(), Vec::new());
        self.lanes.push(Lane { executor, scope, inputs, out, values });
    }

    fn add_sharing(&mut self) {
        let scope = self.lanes[0].scope.share();
        self.add(scope);
    }

    /// Returns the values of a variable for the rows of a batch, row after row. Inputs that the
    /// program does not have are left out.
    pub fn run(&mut self, program: &Program, target: &str, batch: &Batch) -> Result<&[f32]> {
        let feeds = batch.feeds().into_iter().filter_map(|(name, tensor)| {
            let var = program.var(program.find_var(name).filter(|id| program.var(*id).is_data)?);
            Some(Feed { name, tensor, is_ragged: var.shape.dims().get(1) == Some(&-1) })
        });
        let feeds: Vec<Feed<'_>> = feeds.collect();
        let task = Task { program, target, feeds: &feeds, rows: batch.len() };
        let pieces = batch.len().div_ceil(PIECE_ROWS);
        let count = self.lanes.len().min(pieces).max(1);
        let part = pieces.div_ceil(count) * PIECE_ROWS;
        let range =
            |index: usize| (index * part).min(task.rows)..((index + 1) * part).min(task.rows);
        self.values.clear();
        if count == 1 {
            let lane = &mut self.lanes[0];
            lane.run(&task, range(0))?;
            return Ok(&lane.values);
        }
        let lanes = &mut self.lanes[..count];
        std::thread::scope(|threads| -> Result<()> {
            let running: Vec<_> = lanes
                .iter_mut()
                .enumerate()
                .map(|(index, lane)| {
                    let task = &task;
                    threads.spawn(move || lane.run(task, range(index)))
                })
                .collect();
            running.into_iter().try_for_each(|thread| {
                thread.join().unwrap_or_else(|_| Err(Error::internal("a lane has panicked")))
            })
        })?;
        lanes.iter().for_each(|lane| self.values.extend_from_slice(&lane.values));
        Ok(&self.values)
    }
}

/// A program to be run on rows.
struct Task<'t> {
    program: &'t Program,
    target: &'t str,
    feeds: &'t [Feed<'t>],
    rows: usize,
}

/// An input with the values of all rows.
struct Feed<'t> {
    name: &'t str,
    tensor: &'t Tensor,
    is_ragged: bool,
}

impl Lane {
    fn run(&mut self, task: &Task<'_>, rows: Range<usize>) -> Result<()> {
        self.values.clear();
        let mut from = rows.start;
        while from < rows.end {
            let count = (rows.end - from).min(PIECE_ROWS);
            self.piece(task, from..from + count, count.next_multiple_of(STEP_ROWS))?;
            from += count;
        }
        Ok(())
    }

    /// Runs a piece of `size` rows, whose first ones are these.
    fn piece(&mut self, task: &Task<'_>, rows: Range<usize>, size: usize) -> Result<()> {
        self.inputs.resize_with(task.feeds.len(), Tensor::empty);
        for (feed, input) in task.feeds.iter().zip(&mut self.inputs) {
            feed.fill(rows.clone(), task.rows, size, input)?;
        }
        let names = task.feeds.iter().map(|feed| feed.name);
        let feeds: Vec<(&str, &Tensor)> = names.zip(&self.inputs).collect();
        let fetch = [task.target];
        let Lane { executor, scope, out, .. } = self;
        executor.run_into(task.program, scope, &feeds, &fetch, out)?;
        let scores = out.first().ok_or_else(|| Error::internal("no scores"))?.as_slice::<f32>()?;
        let width = scores.len() / size;
        self.values.extend_from_slice(&scores[..rows.len() * width]);
        Ok(())
    }
}

impl Feed<'_> {
    /// Copies some of the rows into a tensor of `size` rows. The others are zeros.
    fn fill(&self, rows: Range<usize>, all: usize, size: usize, input: &mut Tensor) -> Result<()> {
        let shape = self.tensor.shape();
        let mut dims = shape.dims().to_vec();
        dims[0] = size as i64;
        if self.is_ragged && dims.len() > 1 {
            dims[1] = (shape.at(1).next_power_of_two().max(WIDTH_MIN)) as i64;
        }
        let shape = Shape::new(&dims)?;
        if input.dtype() != self.tensor.dtype() || *input.shape() != shape {
            *input = Tensor::zeros(self.tensor.dtype(), shape)?;
        }
        let (from, to) = (self.tensor.as_bytes(), input.as_bytes_mut());
        let (pitch, wide) = (from.len() / all.max(1), to.len() / size);
        let from = &from[rows.start * pitch..rows.end * pitch];
        if pitch == wide {
            let (own, rest) = to.split_at_mut(from.len());
            own.copy_from_slice(from);
            rest.fill(0);
            return Ok(());
        }
        to.fill(0);
        if pitch == 0 {
            return Ok(());
        }
        for (from, to) in from.chunks_exact(pitch).zip(to.chunks_exact_mut(wide)) {
            to[..pitch].copy_from_slice(from);
        }
        Ok(())
    }
}
