//! The owner map of sharding: which rank of a group has the state of each parameter.

use crate::effective::Effective;
use crate::grid::{Axis, Grid};
use fleet_ir::{OpId, OpRole, VarId};
use std::collections::HashMap;

/// Divides parameters among `shards` owners: returns the owner of each, for their numbers of
/// elements in the order of definition.
///
/// Owners get consecutive parameters. One is full once it and those before it have more than their
/// share of all elements, so it has at most one parameter more than its share.
///
/// ```
/// use fleet_strategy::owners;
/// let elements = [32 * 64, 64, 64 * 64, 64, 64 * 2, 2];
/// assert_eq!(owners(&elements, 2), [0, 0, 0, 1, 1, 1]);
/// assert_eq!(owners(&elements, 4), [0, 1, 1, 2, 3, 3]);
/// ```
pub fn owners(elements: &[u64], shards: usize) -> Vec<usize> {
    let total: u128 = elements.iter().map(|count| u128::from(*count)).sum();
    let shards = shards.max(1);
    let (mut owner, mut before) = (0, 0u128);
    let mut next = |count: &u64| {
        if before * shards as u128 > total * (owner as u128 + 1) && owner + 1 < shards {
            owner += 1;
        }
        before += u128::from(*count);
        owner
    };
    elements.iter().map(&mut next).collect()
}

/// The division of a job's parameters among the ranks of this rank's sharding group.
#[derive(Clone, Debug)]
pub struct Shards {
    /// Ring of the group.
    pub ring: i64,
    /// Ring of the ranks that own the same parameters in all groups, if there are several groups.
    pub copies: Option<i64>,
    /// Rings that together connect the ranks of all groups, with their sizes.
    pub world: Vec<(i64, usize)>,
    /// Ring of the ranks that together own all parameters, and its size. In a pipeline, these are
    /// the groups of all stages.
    pub owners: (i64, usize),
    pub grid: Grid,
    /// This rank's number in its group.
    pub rank: usize,
    /// Gradient merge at the owners, if there is any.
    pub merge: Option<Merge>,
    /// The trained parameters in the order of definition.
    pub params: Vec<VarId>,
    pub owner: HashMap<VarId, usize>,
    /// By owner: the number of elements of its parameters.
    pub elements: Vec<u64>,
    /// Names and owners of the parameters.
    pub names: Vec<(String, usize)>,
    /// Whether parameters are divided, too: other ranks have them only while they use them.
    pub divides_params: bool,
    /// The segments for which owners broadcast parameters, if they are divided.
    pub segments: Vec<Segment>,
}

/// Consecutive ops of one pass, for which owners broadcast parameters.
#[derive(Clone, Debug)]
pub struct Segment {
    pub ops: Vec<OpId>,
    /// The divided parameters that the ops read, in the order of definition.
    pub params: Vec<VarId>,
    /// The role of the pass.
    pub role: OpRole,
}

/// Gradient merge at the owners: they accumulate the sums over ranks.
#[derive(Clone, Copy, Debug)]
pub struct Merge {
    pub k: i32,
    pub avg: bool,
}

impl Merge {
    /// Returns how owners merge gradients, if they do.
    pub fn of(strategy: &Effective<'_>) -> Option<Merge> {
        let configs = strategy.sharding_configs();
        let own = configs.gradient_merge_acc_step();
        if own > 1 {
            return Some(Merge { k: own, avg: true });
        }
        let merge = strategy.gradient_merge_configs();
        let is_on = strategy.gradient_merge() && merge.k_steps() > 1;
        let at_owners = is_on && configs.stage != Some(1);
        at_owners.then(|| Merge { k: merge.k_steps(), avg: merge.avg() })
    }
}

impl Shards {
    /// Divides parameters: those of `together`, which have one owner, and the others. `elements`
    /// are their numbers of elements, first that of all of `together`, if there are any.
    pub fn divide(&mut self, together: Vec<VarId>, others: Vec<VarId>, elements: &[u64]) {
        let owners = owners(elements, self.count());
        self.elements = vec![0; self.count()];
        for (owner, count) in owners.iter().zip(elements) {
            self.elements[*owner] += count;
        }
        let of_others = owners[elements.len() - others.len()..].iter().copied();
        self.owner = others.iter().copied().zip(of_others).collect();
        self.owner.extend(together.iter().map(|param| (*param, 0)));
        self.params = together.into_iter().chain(others).collect();
        self.params.sort();
    }

    /// Returns the number of ranks of the group.
    pub fn count(&self) -> usize {
        self.grid.degree(Axis::Sharding)
    }

    /// Returns the owner of a parameter, as a rank of the group.
    pub fn owner(&self, param: VarId) -> usize {
        self.owner.get(&param).copied().unwrap_or_default()
    }

    pub fn is_own(&self, param: VarId) -> bool {
        self.owner(param) == self.rank
    }
}
