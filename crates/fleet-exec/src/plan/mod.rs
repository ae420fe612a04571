//! Plans: a program for known shapes, as a list of prepared kernels on planned memory.
//!
//! Planning is a sequence of phases. Each is a function of the program and of earlier results:
//! 1. `infer` lists the steps in order, and infers every shape from the fed ones;
//! 2. `lifetimes` finds the steps that use each variable;
//! 3. `sharing` groups the variables that may share memory (views, in-place pairs);
//! 4. `arena` gives each group a *place*, and packs the arena by lifetimes;
//! 5. `steps` prepares the kernels and distributes the steps among lanes;
//! 6. `waits` derives the waits between lanes from the places that steps read and write.
//!
//! A plan guarantees to kernels that no two lanes access the same bytes at once unless both only
//! read. An output shares memory with an input only if the op's definition allows it.

mod arena;
mod infer;
mod lifetimes;
mod outline;
mod sharing;
mod steps;
#[cfg(test)]
mod testing;
mod waits;

use crate::options::ExecOptions;
use arena::Places;
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};
use fleet_ops::{Cost, KernelFn, Meta, Registry, Services, Traffic};
use fleet_tensor::{Arg, ArgList, DType, Layout, Shape};
use infer::Inferred;
use lifetimes::Lifetimes;
pub use outline::{Outline, OutlineCall, OutlineStep};
use sharing::Groups;
use steps::Steps;

/// Size of the header that holds the row count of sparse rows, in bytes. It has a cache line of its
/// own, followed by the row numbers.
pub(crate) const ROWS_HEADER_BYTES: usize = 64;

/// Statistics of a plan, for reports and tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanSummary {
    /// Number of ops that a run executes, after fusions.
    pub op_count: usize,
    /// Size of temporaries after packing.
    pub arena_bytes: usize,
    /// Maximum size of temporaries that are live at once, a lower bound for `arena_bytes`.
    pub arena_bytes_live: usize,
    /// Size of temporaries without any sharing.
    pub arena_bytes_unshared: usize,
    /// Size of the memory that kernels need while they run.
    pub scratch_bytes: usize,
    /// Bytes that a run moves from the arena to the offload file.
    pub offload_bytes: usize,
    /// Size of the variables in the scope.
    pub persistable_bytes: usize,
    /// Size of the fed tensors.
    pub feed_bytes: usize,
    /// Floating-point operations of a run.
    pub flops: f64,
    /// Bytes that the ops read and write.
    pub bytes_moved: f64,
}

/// A program planned for known shapes.
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    pub places: Vec<Place>,
    pub feeds: Vec<FeedSlot>,
    pub scope_vars: Vec<ScopeVar>,
    pub fetches: Vec<Fetch>,
    pub lanes: Vec<LanePlan>,
    /// Size of the block that holds temporaries and scratch memory.
    pub block_bytes: usize,
    /// Size of each allocation of [`Memory::Separate`].
    pub separate_bytes: Vec<usize>,
    pub summary: PlanSummary,
    pub program: Program,
    /// Whether the plan communicates, so that other processes may wait for it.
    pub communicates: bool,
}

/// One entry of a plan: a kernel call or a jump.
pub(crate) struct Step {
    pub kind: StepKind,
    pub op: OpId,
    pub lane: usize,
    /// Whether the step only communicates with other ranks.
    pub only_communicates: bool,
    /// The work of the op, as its definition estimates it.
    pub cost: Cost,
    /// Messages that this rank sends, if the op communicates. A receiver sends none.
    pub traffic: Option<Traffic>,
    /// Other lanes to wait for, each with the number of its steps that must finish first.
    pub waits: Vec<(usize, usize)>,
}

pub(crate) enum StepKind {
    Run(Instr),
    /// Jumps to another position if the condition (a byte) is 0.
    JumpUnless {
        condition: usize,
        to: usize,
    },
}

/// A kernel and its arguments.
pub(crate) struct Instr {
    pub run: KernelFn,
    pub scratch_bytes: usize,
    pub scratch_place: Place,
    /// Address of the scratch memory, filled in by binding.
    pub scratch: usize,
    pub args: ArgList,
    /// By argument: the place of its values, and the place of its row numbers.
    pub arg_places: Vec<(usize, Option<usize>)>,
}

/// The location of a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Arena {
        offset: usize,
    },
    /// A separate allocation, an index into [`Plan::separate_bytes`].
    Separate {
        index: usize,
    },
    Scope {
        index: usize,
    },
    Feed {
        index: usize,
    },
}

pub(crate) struct FeedSlot {
    pub name: String,
    pub meta: Meta,
}

pub(crate) struct ScopeVar {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub layout: Layout,
    /// Whether the program writes it before reading it. Such a variable is created if it is
    /// missing.
    pub created: bool,
    /// Whether the program writes it. Scopes then do not share it.
    pub written: bool,
}

impl ScopeVar {
    pub fn bytes(&self) -> usize {
        self.layout.physical_len(&self.shape) * self.dtype.size()
    }
}

pub(crate) struct Fetch {
    pub name: String,
    pub arg: Arg,
    pub places: (usize, Option<usize>),
}

/// The steps of one lane in order, as positions in [`Plan::steps`].
pub(crate) struct LanePlan {
    pub steps: Vec<usize>,
    /// Whether the lane sends messages to single ranks, or receives them.
    pub passes_messages: bool,
}

/// The input of planning.
pub(crate) struct PlanRequest<'a> {
    pub program: Program,
    pub registry: &'a Registry,
    pub feeds: &'a [(VarId, Meta)],
    pub fetches: &'a [VarId],
    pub scope_meta: &'a dyn Fn(&str) -> Option<(DType, Shape)>,
    pub options: &'a ExecOptions,
    pub services: &'a Services,
    /// Whether the null device computes the scratch memory of kernels, for which it prepares them.
    pub counts_scratch: bool,
}

impl Plan {
    pub fn build(request: PlanRequest<'_>) -> Result<Plan> {
        let inferred = Inferred::new(&request)?;
        inferred.check_fetches(request.fetches)?;
        let lifetimes = Lifetimes::find(&inferred, request.fetches);
        arena::check_size(&inferred, &lifetimes)?;
        let groups = match request.options.build.enable_inplace {
            true => Groups::join(&inferred, &lifetimes),
            false => Groups::apart(&lifetimes),
        };
        let places = Places::assign(&inferred, &lifetimes, &groups, request.options.memory)?;
        let Steps { mut steps, lanes, scratch, costs } = steps::make(&request, &inferred, &places)?;
        let waits = waits::find(&steps, lanes.len(), &places);
        for (step, waits) in steps.iter_mut().zip(waits) {
            step.waits = waits;
        }
        let fetches = request.fetches.iter().map(|var| fetch(&inferred, &places, *var));
        let fetches = fetches.collect::<Result<_>>()?;
        let summary = PlanSummary {
            op_count: steps.len(),
            arena_bytes: places.arena.bytes,
            arena_bytes_live: places.arena.bytes_live,
            arena_bytes_unshared: places.arena.bytes_unshared,
            scratch_bytes: scratch.bytes,
            offload_bytes: costs.offload_bytes,
            persistable_bytes: places.scope_vars.iter().map(ScopeVar::bytes).sum(),
            feed_bytes: places.feeds.iter().map(|feed| feed.meta.bytes()).sum(),
            flops: costs.flops,
            bytes_moved: costs.bytes_moved,
        };
        Ok(Plan {
            steps,
            lanes,
            fetches,
            summary,
            communicates: inferred.communicates,
            block_bytes: scratch.block_bytes,
            separate_bytes: [places.separate_bytes, scratch.separate_bytes].concat(),
            places: places.list,
            feeds: places.feeds,
            scope_vars: places.scope_vars,
            program: request.program,
        })
    }
}

fn fetch(inferred: &Inferred<'_>, places: &Places, var: VarId) -> Result<Fetch> {
    let name = inferred.program.var(var).name.clone();
    let (arg, at) = (inferred.arg(var), places.of(var));
    places.check(&arg, at).map_err(|error| error.at(format!("fetching '{name}'")))?;
    Ok(Fetch { name, arg, places: at })
}
