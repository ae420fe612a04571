//! Binding a plan: computes addresses from places, for a scope, an arena and fed tensors.

use crate::Scope;
use crate::plan::{Fetch, Place, Plan, ROWS_HEADER_BYTES, StepKind};
use fleet_base::{Error, Result};
use fleet_ops::Meta;
use fleet_tensor::{Arg, Buffer, Tensor, View};
use std::sync::Arc;

/// The memory for temporaries and scratch.
pub(crate) struct Block<'a> {
    pub packed: *mut u8,
    pub separate: &'a [Buffer],
}

/// The addresses to which a plan was last bound.
#[derive(Default)]
pub(crate) struct Binding {
    scope: Option<Arc<()>>,
    arena: usize,
    bases: Vec<usize>,
    feeds: Vec<usize>,
    feed_places: Vec<usize>,
    /// By feed: the arguments that point to it, as (step, argument).
    feed_args: Vec<Vec<(usize, usize)>>,
}

impl Binding {
    /// Points every argument of `plan` to its memory. This is cheap if no address changed since the
    /// last run.
    pub fn bind(
        &mut self,
        plan: &mut Plan,
        scope: &mut Scope,
        block: &Block<'_>,
        feeds: &[&Tensor],
    ) -> Result<()> {
        plan.feeds
            .iter()
            .zip(feeds)
            .try_for_each(|(slot, feed)| check_fed(&slot.name, slot.meta, feed))?;
        let same_scope = self.scope.as_ref().is_some_and(|token| Arc::ptr_eq(token, scope.token()));
        if !same_scope || self.arena != block.packed as usize {
            self.bind_all(plan, scope, block, feeds)?;
        }
        for (index, feed) in feeds.iter().enumerate() {
            let address = feed.as_ptr() as usize;
            if self.feeds[index] == address {
                continue;
            }
            self.feeds[index] = address;
            self.bases[self.feed_places[index]] = address;
            for (step, arg) in &self.feed_args[index] {
                if let StepKind::Run(instr) = &mut plan.steps[*step].kind {
                    point_to_feed(&mut instr.args.args_mut()[*arg], feed);
                }
            }
            for fetch in &mut plan.fetches {
                if plan.places[fetch.places.0] == (Place::Feed { index }) {
                    point_to_feed(&mut fetch.arg, feed);
                }
            }
        }
        Ok(())
    }

    fn bind_all(
        &mut self,
        plan: &mut Plan,
        scope: &mut Scope,
        block: &Block<'_>,
        feeds: &[&Tensor],
    ) -> Result<()> {
        self.scope = None;
        let mut addresses = Vec::with_capacity(plan.scope_vars.len());
        // Check all variables before changing any.
        plan.scope_vars.iter().try_for_each(|var| check_scope_var(scope, var))?;
        plan.scope_vars.iter().try_for_each(|var| prepare_scope_var(scope, var))?;
        for var in &plan.scope_vars {
            addresses.push(scope.raw(&var.name)?.as_ptr());
        }
        let base = |place: &Place| match place {
            Place::Arena { offset } => block.packed.wrapping_add(*offset),
            Place::Separate { index } => block.separate[*index].as_ptr(),
            Place::Scope { index } => addresses[*index],
            Place::Feed { index } => feeds[*index].as_ptr(),
        };
        self.bases = plan.places.iter().map(|place| base(place) as usize).collect();
        self.feeds = feeds.iter().map(|feed| feed.as_ptr() as usize).collect();
        self.feed_places = vec![0; feeds.len()];
        for (place, at) in plan.places.iter().enumerate() {
            if let Place::Feed { index } = at {
                self.feed_places[*index] = place;
            }
        }
        self.feed_args = vec![Vec::new(); feeds.len()];
        for (at, step) in plan.steps.iter_mut().enumerate() {
            let StepKind::Run(instr) = &mut step.kind else { continue };
            instr.scratch = base(&instr.scratch_place) as usize;
            let args = instr.args.args_mut().iter_mut().zip(&instr.arg_places);
            for (index, (arg, places)) in args.enumerate() {
                point(arg, &self.bases, *places);
                if let Place::Feed { index: feed } = plan.places[places.0] {
                    self.feed_args[feed].push((at, index));
                }
            }
            // Fed tensors may move without this: no op writes to them.
            instr.args.mark_overlaps();
        }
        for fetch in &mut plan.fetches {
            point(&mut fetch.arg, &self.bases, fetch.places);
        }
        self.arena = block.packed as usize;
        self.scope = Some(Arc::clone(scope.token()));
        Ok(())
    }

    /// Copies the value of a fetched variable, after a run.
    pub fn fetch(&self, fetch: &Fetch, into: Option<Tensor>) -> Result<Tensor> {
        // SAFETY: the argument is bound to memory of its size. The scope, the arena and the fed
        // tensors are borrowed by the caller, and no lane runs.
        copy_out(unsafe { fetch.arg.view() }, into)
    }

    /// Returns the address of a place.
    pub fn base(&self, place: usize) -> *mut u8 {
        self.bases[place] as *mut u8
    }
}

fn point(arg: &mut Arg, bases: &[usize], (values, rows): (usize, Option<usize>)) {
    let rows = rows
        .map(|place| (bases[place] as *mut u64, (bases[place] + ROWS_HEADER_BYTES) as *mut i64));
    // `Places::check` compared the argument with its places when the plan was made. A place in the
    // arena lies within the block of `Plan::block_bytes`, and a separate place has its own size.
    // The scope and the feeds were just compared with the plan. All of it outlives the run.
    arg.bind(bases[values] as *mut u8, rows);
}

fn point_to_feed(arg: &mut Arg, feed: &Tensor) {
    // `check_fed` compared the tensor with the plan, and it is borrowed for the run.
    arg.bind(feed.as_ptr(), None);
}

/// Checks that a fed tensor is row-major and has the planned number of bytes.
pub(crate) fn check_fed(name: &str, planned: Meta, feed: &Tensor) -> Result<()> {
    let row_major = feed.layout() == fleet_tensor::Layout::RowMajor;
    if row_major && feed.as_bytes().len() == planned.bytes() {
        return Ok(());
    }
    Err(Error::invalid(format!("the value fed for '{name}' has the wrong layout or size"))
        .expected(format!("{} {}", planned.describe(), fleet_tensor::Layout::RowMajor))
        .got(format!("{}{} {}", feed.dtype(), feed.shape(), feed.layout())))
}

fn check_scope_var(scope: &Scope, var: &crate::plan::ScopeVar) -> Result<()> {
    match scope.meta(&var.name) {
        None if var.created => Ok(()),
        // Return the error of `raw`, which has a help text.
        None => scope.raw(&var.name).map(|_| ()),
        Some((dtype, shape)) if dtype == var.dtype && shape == var.shape => Ok(()),
        Some((dtype, shape)) => Err(Error::invalid(format!(
            "variable '{}' in the scope has another type or shape than planned",
            var.name
        ))
        .expected(format!("{}{}", var.dtype, var.shape))
        .got(format!("{dtype}{shape}"))),
    }
}

fn prepare_scope_var(scope: &mut Scope, var: &crate::plan::ScopeVar) -> Result<()> {
    if scope.contains(&var.name) {
        scope.ensure_layout(&var.name, var.layout)?;
        return if var.written { scope.own(&var.name).map(|_| ()) } else { Ok(()) };
    }
    scope.set(&var.name, Tensor::zeros_in(var.dtype, var.shape, var.layout)?);
    Ok(())
}

/// Copies the value of an argument into a row-major tensor. Sparse rows become dense.
pub(crate) fn copy_out(arg: View<'_>, into: Option<Tensor>) -> Result<Tensor> {
    let fits = |tensor: &Tensor| {
        tensor.dtype() == arg.dtype && *tensor.shape() == arg.shape && tensor.layout() == arg.layout
    };
    let mut tensor = match into.filter(fits) {
        Some(tensor) => tensor,
        None => Tensor::zeros_in(arg.dtype, arg.shape, arg.layout)?,
    };
    if arg.rows.is_some() {
        densify(arg, &mut tensor)?;
    } else {
        tensor.as_bytes_mut().copy_from_slice(arg.bytes());
    }
    match tensor.layout() {
        fleet_tensor::Layout::RowMajor => Ok(tensor),
        _ => tensor.to_layout(fleet_tensor::Layout::RowMajor),
    }
}

fn densify(arg: View<'_>, tensor: &mut Tensor) -> Result<()> {
    let (height, width) = (arg.shape.at(0), arg.row_len());
    let values: &[f32] = match arg.dtype {
        fleet_tensor::DType::F32 => arg.slice(),
        other => {
            return Err(Error::unsupported("cannot fetch sparse rows of this type").got(other));
        }
    };
    let dense = tensor.as_mut_slice::<f32>()?;
    dense.fill(0.0);
    for (row, id) in arg.row_ids().iter().enumerate() {
        let Some(id) = usize::try_from(*id).ok().filter(|id| *id < height) else {
            return Err(Error::invalid("row index out of range")
                .expected(format!("a row below {height}"))
                .got(id));
        };
        let from = &values[row * width..][..width];
        dense[id * width..][..width].iter_mut().zip(from).for_each(|(to, from)| *to += from);
    }
    Ok(())
}
