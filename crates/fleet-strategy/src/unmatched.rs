//! Names in a strategy that match nothing in the program: op kinds for mixed precision, variables,
//! and parameters excluded from weight decay. They are not errors, because a strategy may be
//! written for several models, but a warning reveals typos.

use crate::meta::Facts;
use crate::problem::Problem;
use fleet_base::text::did_you_mean;
use fleet_ir::Program;
use std::collections::BTreeSet;

/// Returns a warning for each unmatched name in the settings of enabled switches.
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::meta::Facts;
/// use fleet_strategy::{AmpConfig, DistributedStrategy, Ranks, Rates, unmatched};
/// let net = Net::new();
/// net.data("x", [-1, 2], DType::F32).fc(1).mean();
/// let strategy = DistributedStrategy::new();
/// let strategy = strategy.use_amp(AmpConfig::default().with_custom_black_list(["maen"]));
/// let (optimizer, program) = (Sgd::new(0.1).into(), net.build()?.main);
/// let (ranks, rates) = (Ranks::new(0, 1), Rates::default());
/// let facts = Facts {
///     strategy: &strategy, optimizer: &optimizer, ranks: &ranks, rates: &rates, program: &program,
/// };
/// let warnings = unmatched(&facts);
/// assert_eq!(warnings[0].message, "the program has no op of kind 'maen'; did you mean 'mean'?");
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn unmatched(facts: &Facts<'_>) -> Vec<Problem> {
    let strategy = facts.strategy;
    let mut problems = Vec::new();
    if strategy.amp() {
        amp(facts, &mut problems);
    }
    // Running statistics are parameters too, but never have weight decay.
    let trained = facts.program.parameters().filter(|(_, var)| !var.stop_gradient);
    let parameters: BTreeSet<&str> = trained.map(|(_, var)| var.name.as_str()).collect();
    let mut excluded =
        |path: &str, names: &[String], matches: fn(&str, &str) -> bool, how: &str| {
            for (at, name) in names.iter().enumerate() {
                if !parameters.iter().any(|parameter| matches(parameter, name)) {
                    let message = format!("no parameter has a name that {how} '{name}'");
                    let problem = Problem::warning(format!("{path}[{at}]"), message);
                    let names = parameters.iter().take(3).copied().collect::<Vec<_>>().join(", ");
                    problems.push(
                        problem
                            .why("weight decay applies to every parameter")
                            .help(format!("use a part of a name, such as {names}")),
                    );
                }
            }
        };
    if strategy.lars() {
        let names = &strategy.lars_configs().exclude_from_weight_decay;
        let path = "lars_configs.exclude_from_weight_decay";
        excluded(path, names, |parameter, name| parameter.contains(name), "contains");
    }
    if strategy.lamb() {
        let names = &strategy.lamb_configs().exclude_from_weight_decay;
        let path = "lamb_configs.exclude_from_weight_decay";
        excluded(path, names, |parameter, name| parameter.ends_with(name), "ends with");
    }
    problems
}

fn amp(facts: &Facts<'_>, problems: &mut Vec<Problem>) {
    let (program, configs) = (facts.program, facts.strategy.amp_configs());
    let kinds = kinds(program);
    let lists = [
        ("custom_white_list", &configs.custom_white_list),
        ("custom_black_list", &configs.custom_black_list),
    ];
    for (list, names) in lists {
        for (at, name) in names.iter().enumerate().filter(|(_, name)| !kinds.contains(&***name)) {
            let hint = did_you_mean(name, kinds.iter().copied());
            let message = format!("the program has no op of kind '{name}'{hint}");
            let known = kinds.iter().copied().collect::<Vec<_>>().join(", ");
            let problem = Problem::warning(format!("amp_configs.{list}[{at}]"), message);
            problems.push(problem.help(format!("use an op kind of this program: {known}")));
        }
    }
    for (at, name) in configs.custom_black_varnames.iter().enumerate() {
        if program.find_var(name).is_none() {
            let hint = did_you_mean(name, program.vars().map(|(_, var)| var.name.as_str()));
            let path = format!("amp_configs.custom_black_varnames[{at}]");
            problems.push(Problem::warning(
                path,
                format!("the program has no variable '{name}'{hint}"),
            ));
        }
    }
}

/// Returns the kinds of the ops whose precision is chosen.
fn kinds(program: &Program) -> BTreeSet<&'static str> {
    let forward = program.root_ops().filter(|(_, op)| op.role.is_forward());
    forward.map(|(_, op)| op.name()).collect()
}
