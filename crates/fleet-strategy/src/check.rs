//! The check of a strategy without program and cluster: problems of fields, and those that each
//! strategy declares.

use crate::auto;
use crate::effective::Effective;
use crate::meta::{self, STRATEGIES};
use crate::servers::exchange;
use fleet_base::Result;
use fleet_config::DistributedStrategy;
use fleet_config::Written;
use fleet_config::{Inspection, StrategyForm};
use fleet_config::{Problem, all_in_one};
use fleet_ir::Program;

/// Returns all errors and all settings without effect, errors first. A strategy with errors is
/// refused for every program and every cluster.
///
/// ```
/// use fleet_strategy::{DistributedStrategy, check};
/// let problems = check(&DistributedStrategy::new().with_lars(true).with_lamb(true));
/// assert_eq!(problems[0].path, "lamb");
/// assert_eq!(problems[0].message, "conflicts with lars");
/// ```
pub fn check(strategy: &DistributedStrategy) -> Vec<Problem> {
    let mut problems = strategy.check_fields();
    // `auto` chooses only where nothing is assigned, and there is nothing to check.
    let effective = Effective::as_written(strategy);
    for one in STRATEGIES {
        one.check(&effective, &mut problems);
    }
    problems.extend(meta::wanted(&effective).filter_map(|one| one.idle(&effective)));
    problems.extend(meta::conflicts(&effective).iter().map(conflict));
    problems.extend(exchange::contradiction(&effective));
    problems.extend(auto::without_effect(strategy));
    problems.sort_by_key(|problem| problem.severity);
    problems
}

/// Returns the warnings of [`check`], or all its errors as one, each with its position.
///
/// ```
/// use fleet_strategy::{DistributedStrategy, validate};
/// let error = validate(&DistributedStrategy::new().with_nccl_comm_num(0)).unwrap_err();
/// assert!(error.message().starts_with("nccl_comm_num: expected at least 1, got 0"));
/// ```
pub fn validate<'s>(strategy: impl Into<Written<'s>>) -> Result<Vec<Problem>> {
    let written: Written<'_> = strategy.into();
    let problems = check(written.strategy).into_iter();
    all_in_one(problems.map(|problem| written.placed(problem)).collect())
}

/// Returns all problems of a file, and the readable part of its strategy. An error means that the
/// file cannot be parsed at all.
pub fn inspect(bytes: &[u8], form: StrategyForm) -> Result<Inspection> {
    let mut found = Inspection::read(bytes, form)?;
    found.add(check(&found.strategy));
    Ok(found)
}

/// Returns a warning for each name that matches nothing in the program: op kinds for mixed
/// precision, variables, and parameters excluded from weight decay. These are not errors, because a
/// strategy may be written for several models, but a warning reveals typos.
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::{AmpConfig, DistributedStrategy, Effective, unmatched};
/// let net = Net::new();
/// net.data("x", [-1, 2], DType::F32).fc(1).mean();
/// let amp = AmpConfig::default().with_custom_black_list(["maen"]);
/// let strategy = DistributedStrategy::new().use_amp(amp);
/// let warnings = unmatched(&Effective::as_written(&strategy), &net.build()?.main);
/// assert_eq!(warnings[0].message, "the program has no op of kind 'maen'; did you mean 'mean'?");
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn unmatched(strategy: &Effective<'_>, program: &Program) -> Vec<Problem> {
    let mut problems = Vec::new();
    for one in meta::wanted(strategy) {
        one.unmatched(strategy, program, &mut problems);
    }
    problems
}

/// Returns the switches of a strategy whose effect depends on the program, its optimizer or the
/// ranks, so that [`check`] alone cannot tell whether they apply.
pub fn undecided(strategy: &DistributedStrategy) -> Vec<&'static str> {
    let effective = Effective::as_written(strategy);
    let wanted = meta::wanted(&effective).filter(|one| one.idle(&effective).is_none());
    wanted.map(|one| one.switch()).filter(|switch| !switch.is_empty()).collect()
}

/// Returns the problem of a conflict. It is a warning if one of the two may be omitted.
fn conflict(pair: &meta::Pair) -> Problem {
    let (one, other) = (pair.one.switch(), pair.other.switch());
    let problem = match pair.gives_way() {
        Some(first) => {
            let message = format!("conflicts with {other} where {} applies", first.switch());
            Problem::warning(one, message)
        }
        None => Problem::error(one, format!("conflicts with {other}")),
    };
    problem.why(pair.why).help(format!("choose {other} or {one}"))
}
