//! Strategies: the contribution of each to a minimisation, one file each.
//!
//! A minimisation has fixed phases. In each phase, the compiler calls every strategy that applies.
//! A strategy implements only the phases to which it contributes:
//!
//! | phase | result | strategies |
//! | --- | --- | --- |
//! | `optimizer` | the optimizer's rule | LARS, LAMB: another rule; others: rings |
//! | `forward` | the forward pass | AMP, synchronous batch norm; divided layers and classes |
//! | (the backward pass is appended) | | |
//! | `backward` | gradients, `job.grads` | recompute; data parallel scales the loss |
//! | `merge` | gradients of this rank and step | gradient merge: continues in conditional blocks |
//! | `encode` | gradients to be sent | AMP and fp16_allreduce: half precision |
//! | `communicate` | sums over ranks | data parallel, DGC; sharding: sums at owners |
//! | `decode` | sums in single precision | AMP, fp16_allreduce |
//! | `unscale` | unscaled gradients | AMP: loss scaling; gradient merge: sparse rows |
//! | (clips, regularisers, updates are appended) | | |
//! | `finish` | updated parameters | LocalSGD: averages; DGC: updates; gradient merge: clears |
//! | `startup` | initial parameters | data parallel: broadcasts; LocalSGD: snapshots |
//!
//! Sharding takes the place of data parallel. In `finish`, it broadcasts the updated parameters.
//!
//! Pipeline labels forward ops with their parts (`forward`) and cuts and repeats the passes
//! (`backward`). The phases after that see the merged gradients of this stage's parameters.
//!
//! Phases call [`STRATEGIES`] from the last (innermost) to the first (outermost), but `startup`
//! from the first to the last.

pub(crate) mod adaptive_local_sgd;
pub(crate) mod amp;
mod class_parallel;
pub(crate) mod data_parallel;
pub(crate) mod dgc;
pub(crate) mod fp16_allreduce;
pub(crate) mod gradient_merge;
pub(crate) mod lamb;
pub(crate) mod lars;
pub(crate) mod local_sgd;
mod offload;
pub(crate) mod pipeline;
pub(crate) mod recompute;
pub(crate) mod segments;
pub(crate) mod sharding;
pub(crate) mod sync_batch_norm;
mod tensor_layout;
pub(crate) mod tensor_parallel;
mod weight_decay;

use crate::effective::Effective;
use crate::grid::Grid;
use crate::job::Job;
use crate::ranks::Ranks;
use crate::rates::{ChosenLayout, Rates};
use fleet_base::Result;
use fleet_config::Problem;
use fleet_ir::Program;
use fleet_nn::optimizer::OptimizerDesc;
use std::fmt;

macro_rules! strategies {
    ($(
        $Id:ident = $name:literal $(($switch:ident))?, $Kind:ident: $module:ident::$Strategy:ident;
    )*) => {
        /// The identity of a strategy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum StrategyId {
            $(
                #[doc = concat!("The strategy `", $name, "` of the documents.")]
                $Id,
            )*
            /// The choice of settings by the program's costs ([`auto`](crate::auto)).
            Auto,
            /// The updates by servers ([`servers`](crate::servers)).
            ParameterServer,
        }

        impl StrategyId {
            /// Returns the name that documents use in a chain: `AMP`, `RawProgram`.
            pub fn name(self) -> &'static str {
                match self {
                    $(StrategyId::$Id => $name,)*
                    StrategyId::Auto => "Auto",
                    StrategyId::ParameterServer => "ParameterServer",
                }
            }

            /// Returns the strategy to which a field of the strategy's message belongs.
            pub(crate) fn of_field(name: &str) -> Option<StrategyId> {
                match name {
                    "auto" => return Some(StrategyId::Auto),
                    "fp16_allreduce_dtype" => return Some(StrategyId::Fp16AllReduce),
                    "gradient_scale_configs" => return Some(StrategyId::RawProgram),
                    _ => {}
                }
                let switch = name.strip_suffix("_configs").unwrap_or(name);
                let own = STRATEGIES.iter().find(|it| it.switch() == switch);
                own.map(|it| it.id())
            }
        }

        $(impl Named for $module::$Strategy {
            fn id(&self) -> StrategyId {
                StrategyId::$Id
            }

            fn switch(&self) -> &'static str {
                concat!($(stringify!($switch))?)
            }

            fn kind(&self) -> Kind {
                Kind::$Kind
            }
        })*

        /// All strategies in the order of [`StrategyId`], outermost first.
        pub static STRATEGIES: &[&dyn Strategy] = &[$(&$module::$Strategy),*];
    };
}

// Each with its name in documents, the field that switches it on (if any), and its kind.
// Outermost first: the order in which the chain is printed. It matters for these pairs.
// Pipeline is outside of all that change the passes, since it cuts and repeats them.
// fp16_allreduce is inside data parallel and sharding, so that casts precede sums. Gradient merge
// is inside all of them, so that the merged gradient is sent. AMP is outside of recompute, and its
// `forward` precedes recompute's `backward`, so that the rewritten forward pass is recomputed.
// Tensor parallelism is innermost: its ring has the first number, and AMP casts the parts. So do
// divided classes, before AMP scales the loss.
strategies! {
    RawProgram = "RawProgram", Keeps: data_parallel::DataParallel;
    Sharding = "Sharding" (sharding), Keeps: sharding::Sharding;
    Pipeline = "Pipeline" (pipeline), Keeps: pipeline::PipelineParallel;
    Fp16AllReduce = "FP16AllReduce" (fp16_allreduce), Changes: fp16_allreduce::Fp16AllReduce;
    GradientMerge = "GradientMerge" (gradient_merge), Changes: gradient_merge::GradientMerge;
    LocalSgd = "LocalSGD" (localsgd), Changes: local_sgd::LocalSgd;
    AdaptiveLocalSgd = "AdaptiveLocalSGD" (adaptive_localsgd), Changes:
        adaptive_local_sgd::AdaptiveLocalSgd;
    Amp = "AMP" (amp), Changes: amp::Amp;
    Recompute = "Recompute" (recompute), Keeps: recompute::Recompute;
    Dgc = "DGC" (dgc), Changes: dgc::Dgc;
    Lars = "Lars" (lars), Changes: lars::Lars;
    Lamb = "Lamb" (lamb), Changes: lamb::Lamb;
    SyncBatchNorm = "SyncBatchNorm" (sync_batch_norm), Changes: sync_batch_norm::SyncBatchNorm;
    ClassParallel = "ClassParallel" (split_classes), Keeps: class_parallel::ClassParallel;
    TensorParallel = "TensorParallel" (tensor_parallel), Keeps: tensor_parallel::TensorParallel;
}

impl fmt::Display for StrategyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The facts about an implementation that the list above states.
pub trait Named {
    /// Returns the strategy's identity.
    fn id(&self) -> StrategyId;
    /// Returns the field that switches the strategy on; empty if it is always on.
    fn switch(&self) -> &'static str;
    /// Returns whether it changes the mathematics of training.
    fn kind(&self) -> Kind;
}

/// Whether a strategy changes the mathematics of training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Keeps the mathematics; tested by equality with the program before the rewrite.
    Keeps,
    /// Changes the mathematics; tested against its closed form.
    Changes,
}

/// A strategy that the given one cannot be combined with, and the reason.
pub type Conflict = (StrategyId, &'static str);

/// Declares methods for phases, which do nothing by default.
macro_rules! phases {
    ($($phase:ident),*) => {
        $(#[doc = concat!("Makes the changes of the phase `", stringify!($phase), "`, if any.")]
        fn $phase(&self, _: &mut Job<'_>) -> Result<()> {
            Ok(())
        })*
    };
}

/// A strategy.
pub trait Strategy: Named + Sync {
    /// Returns whether the user requested it.
    fn wanted(&self, strategy: &Effective<'_>) -> bool {
        strategy.is_on(self.switch())
    }
    /// Returns the field that requests it.
    fn field(&self, _: &Effective<'_>) -> String {
        self.switch().to_string()
    }
    /// Returns the strategies that conflict with this one. Of two strategies, one declares it.
    fn conflicts(&self) -> &'static [Conflict] {
        &[]
    }
    /// Returns whether the strategy is omitted where it does not fit the optimizer or the ranks, so
    /// that its conflicts count only where it applies.
    fn gives_way(&self) -> bool {
        false
    }
    /// Returns whether every rank trains alone with it and sends no gradients.
    fn trains_alone(&self) -> bool {
        false
    }
    /// Returns whether it can be used with parameter servers. By default, a strategy that keeps the
    /// mathematics can; a strategy that changes them says why not.
    fn with_servers(&self) -> WithServers {
        match self.kind() {
            Kind::Keeps => WithServers::Applies,
            Kind::Changes => WithServers::Refused("servers make the updates"),
        }
    }
    /// Returns why its settings have no effect in any program, if that is so.
    fn idle(&self, _: &Effective<'_>) -> Option<Problem> {
        None
    }
    /// Reports settings of this strategy that contradict each other or are missing. Called whether
    /// the strategy is wanted or not.
    fn check(&self, _: &Effective<'_>, _: &mut Vec<Problem>) {}
    /// Reports names in its settings that match nothing in the program. Called if it is wanted.
    fn unmatched(&self, _: &Effective<'_>, _: &Program, _: &mut Vec<Problem>) {}
    /// Returns whether it applies here, and why or why not.
    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies;

    phases! {
        optimizer, forward, backward, merge, encode, communicate,
        decode, unscale, finish, startup
    }
}

/// The answer of a strategy in a job with parameter servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WithServers {
    /// It applies as in a job without servers.
    Applies,
    /// It is refused, because omitting it would train a different model than the user expects; the
    /// reason.
    Refused(&'static str),
}

/// The facts on which a strategy decides whether it applies.
pub struct Facts<'a> {
    /// The optimizer of the network.
    pub optimizer: &'a OptimizerDesc,
    /// The ranks of the job.
    pub ranks: &'a Ranks,
    /// The speeds of the machines.
    pub rates: &'a Rates,
    /// The layout for `auto`.
    pub layout: Option<&'a ChosenLayout>,
    /// The main program before the rewrite.
    pub program: &'a Program,
    /// Set in jobs with parameter servers; `ranks` are then the workers.
    pub servers: Option<ServerFacts<'a>>,
}

impl Facts<'_> {
    /// Returns the number of ranks that train the same part of the model with other samples.
    pub(crate) fn copies(&self, strategy: &Effective<'_>) -> usize {
        let Ranks { rank, count, .. } = *self.ranks;
        self.grid(strategy).map_or(count, |grid| grid.copy(rank).1)
    }

    /// Returns the grid of the ranks. An error is the field at fault, and the reason.
    pub(crate) fn grid(&self, strategy: &Effective<'_>) -> Result<Grid, (String, String)> {
        pipeline::stages::grid(strategy, self.program, self.ranks.count)
    }
}

/// The facts about a job with parameter servers.
#[derive(Clone, Copy)]
pub struct ServerFacts<'a> {
    /// The optimizer of sparse tables, if it is not that of the layers.
    pub rows: Option<&'a OptimizerDesc>,
}

/// A strategy's decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Applies {
    /// Applies; with a description of its effect.
    Yes(String),
    /// Nothing to do here, which is not an error.
    Idle(String),
    /// Not applicable although requested; omitted with a warning, as documented.
    No(String),
    /// Not applicable, and omitting it would train a different model than the user expects: the
    /// field that requests it, and the reason.
    Refused(String, String),
}

/// Returns the strategies that are requested.
pub fn wanted<'s>(strategy: &'s Effective<'_>) -> impl Iterator<Item = &'static dyn Strategy> + 's {
    STRATEGIES.iter().copied().filter(|it| it.wanted(strategy))
}

/// Returns whether ranks train alone, if all requested strategies apply. Dropped strategies are
/// switched off before others decide by it ([`decide`](crate::decide)).
pub(crate) fn trains_alone(strategy: &Effective<'_>) -> bool {
    wanted(strategy).any(|it| it.trains_alone())
}

/// A pair of requested strategies that conflict.
pub struct Pair {
    /// The strategy that declares the conflict.
    pub one: &'static dyn Strategy,
    /// The strategy that it conflicts with.
    pub other: &'static dyn Strategy,
    /// Why the two conflict.
    pub why: &'static str,
}

impl Pair {
    /// Returns the one of the two that may be omitted, which ends the conflict.
    pub fn gives_way(&self) -> Option<&'static dyn Strategy> {
        [self.one, self.other].into_iter().find(|it| it.gives_way())
    }
}

/// Returns the requested strategies that conflict with each other.
pub fn conflicts(strategy: &Effective<'_>) -> Vec<Pair> {
    let effective: Vec<&'static dyn Strategy> =
        wanted(strategy).filter(|it| it.idle(strategy).is_none()).collect();
    let mut pairs = Vec::new();
    for &one in &effective {
        for (id, why) in one.conflicts() {
            let others = effective.iter().filter(|it| it.id() == *id);
            pairs.extend(others.map(|&other| Pair { one, other, why }));
        }
    }
    pairs
}
