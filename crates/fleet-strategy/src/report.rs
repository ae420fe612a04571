//! The report on a strategy: the outcome of each assigned field in a job.
//!
//! [`decide`] is the only function that decides. Jobs, `fleet strategy check --program` and
//! `fleet strategy explain` print its result.

use crate::auto;
use crate::check::{check, unmatched};
use crate::decision::{Decision, Outcome, Verdict};
use crate::effective::Effective;
use crate::meta::{self, Applies, Facts, STRATEGIES, Strategy, StrategyId, WithServers};
use crate::servers::exchange;
use fleet_base::{Error, Result};
use fleet_config::{DistributedStrategy, JobKind, Problem, Written, all_in_one};
use std::fmt;

/// The outcome of a strategy in a job: what applies, what does not, and why.
#[derive(Clone, Debug)]
pub struct Report<'a> {
    written: Written<'a>,
    /// The strategy in effect: without dropped strategies, and as `auto` chose it.
    pub strategy: Effective<'a>,
    /// The outcome for each requested strategy, outermost first.
    pub decisions: Vec<Decision>,
    /// The outcome for each assigned field that differs from its default.
    pub outcomes: Vec<Outcome>,
    /// Problems of fields, errors first.
    pub problems: Vec<Problem>,
}

/// Decides which parts of a strategy apply, and why. Does not fail: [`Report::refuse`] does.
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::meta::Facts;
/// use fleet_strategy::{DistributedStrategy, Ranks, Rates, Verdict, decide};
/// let net = Net::new();
/// net.data("x", [-1, 2], DType::F32).fc(1).mean();
/// let (program, optimizer) = (net.build()?.main, Adam::new(0.1).into());
/// let (ranks, rates) = (Ranks::new(0, 8), Rates::default());
/// let (optimizer, program) = (&optimizer, &program);
/// let (ranks, rates, servers, layout) = (&ranks, &rates, None, None);
/// let facts = Facts { optimizer, ranks, rates, program, servers, layout };
/// let strategy = DistributedStrategy::new().with_localsgd(true).with_nccl_comm_num(2);
/// let report = decide(&strategy, &facts);
/// let localsgd = report.outcomes.iter().find(|it| it.path == "localsgd").unwrap();
/// assert_eq!(localsgd.verdict, Verdict::Dropped);
/// assert!(report.refuse().is_ok() && report.warnings().len() == 1);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn decide<'a>(strategy: impl Into<Written<'a>>, facts: &Facts<'_>) -> Report<'a> {
    let written: Written<'a> = strategy.into();
    let (mut strategy, auto) = auto::effective(written.strategy, facts);
    let mut problems = check(written.strategy);
    problems.extend(problems_of_job(written.strategy, kind_of(facts)));
    let mut decisions = Vec::from_iter(auto);
    decisions.extend(decide_all(&mut strategy, facts));
    if facts.servers.is_none() && facts.ranks.count > 1 && meta::trains_alone(&strategy) {
        problems.extend(unused_alone(&strategy));
    }
    problems.extend(unmatched(&strategy, facts.program));
    problems.sort_by_key(|problem| problem.severity);
    let problems = problems.into_iter().map(|problem| written.placed(problem)).collect();
    let mut report = Report { written, strategy, decisions, outcomes: Vec::new(), problems };
    let changed = written.strategy.changed_fields().into_iter();
    report.outcomes =
        changed.map(|(path, value)| report.outcome(path, value, kind_of(facts))).collect();
    report
}

fn kind_of(facts: &Facts<'_>) -> JobKind {
    if facts.servers.is_some() { JobKind::Servers } else { JobKind::Collective }
}

/// Returns the problems that depend on the kind of job only.
fn problems_of_job(strategy: &DistributedStrategy, kind: JobKind) -> Vec<Problem> {
    let mut problems = strategy.check_for(kind);
    if kind == JobKind::Servers {
        problems.extend(exchange::scaled_sum(strategy));
    }
    problems
}

/// Reports settings of the gradients' sum where ranks train alone, so that there is no such sum.
fn unused_alone(strategy: &DistributedStrategy) -> impl Iterator<Item = Problem> {
    let sums = strategy.gradient_scale_configs().scale_strategy() != "avg";
    let fields = [
        ("sync_nccl_allreduce", strategy.sync_nccl_allreduce == Some(true)),
        ("use_hierarchical_allreduce", strategy.use_hierarchical_allreduce()),
        ("gradient_scale_configs.scale_strategy", sums),
    ];
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(path, _)| {
        Problem::warning(path, "has no effect where ranks train alone")
            .why("they send no gradients")
            .help("remove it")
    })
}

/// Decides about each requested strategy. A dropped strategy is switched off, and the others are
/// decided again, because strategies depend on each other: ranks that train alone send no
/// gradients.
fn decide_all(strategy: &mut Effective<'_>, facts: &Facts<'_>) -> Vec<Decision> {
    let mut decisions = Vec::new();
    // Each round but the last switches a strategy off.
    for _ in 0..=STRATEGIES.len() {
        let own: Vec<Decision> =
            meta::wanted(strategy).map(|it| decide_one(it, strategy, facts)).collect();
        let (off, kept): (Vec<_>, Vec<_>) =
            own.into_iter().partition(|it| it.verdict == Verdict::Dropped);
        if off.is_empty() {
            decisions.extend(refuse_conflicts(strategy, kept));
            break;
        }
        off.iter().for_each(|decision| strategy.switch_off(&decision.field));
        decisions.extend(off);
    }
    let place = |id| STRATEGIES.iter().position(|it| it.id() == id);
    decisions.sort_by_key(|decision| place(decision.strategy));
    decisions.retain(|decision| {
        // Gradients go to servers, not to other workers.
        let is_sent = decision.strategy != StrategyId::RawProgram || facts.servers.is_none();
        is_sent || decision.verdict == Verdict::Refused
    });
    decisions
}

/// Refuses strategies that conflict with another.
fn refuse_conflicts(strategy: &Effective<'_>, own: Vec<Decision>) -> Vec<Decision> {
    let applies = |one: &dyn Strategy| {
        own.iter().any(|it| it.strategy == one.id() && it.verdict == Verdict::Applied)
    };
    let mut conflicts = meta::conflicts(strategy);
    conflicts.retain(|pair| pair.gives_way().is_none_or(applies));
    let decided = own.iter().map(|decision| {
        match conflicts.iter().find(|pair| pair.one.id() == decision.strategy) {
            Some(pair) => {
                let (one, other) = (pair.one.switch(), pair.other.switch());
                let reason = format!("{one} conflicts with {other}: {}", pair.why);
                Decision { verdict: Verdict::Refused, reason, ..decision.clone() }
            }
            None => decision.clone(),
        }
    });
    decided.collect()
}

/// Decides about a strategy, apart from its conflicts with others.
fn decide_one(one: &dyn Strategy, strategy: &Effective<'_>, facts: &Facts<'_>) -> Decision {
    let mut problems = Vec::new();
    one.check(strategy, &mut problems);
    let switch = one.field(strategy);
    let error = problems.into_iter().find(Problem::is_error);
    let answer = facts.servers.map_or(WithServers::Applies, |_| one.with_servers());
    let (field, verdict, reason) = match (error, one.idle(strategy), answer) {
        (Some(error), ..) => {
            let reason = format!("{}: {}", error.path, error.message);
            (error.path, Verdict::Refused, reason)
        }
        (None, Some(idle), _) => (switch, Verdict::Idle, format!("{}: {}", idle.message, idle.why)),
        (None, None, WithServers::Refused(why)) => {
            let reason = format!("{} conflicts with parameter servers: {why}", one.id());
            (switch, Verdict::Refused, reason)
        }
        (None, None, WithServers::Applies) => match one.applies(strategy, facts) {
            Applies::Yes(reason) => (switch, Verdict::Applied, reason),
            Applies::Idle(reason) => (switch, Verdict::Idle, reason),
            Applies::No(reason) => (switch, Verdict::Dropped, reason),
            Applies::Refused(field, reason) => (field, Verdict::Refused, reason),
        },
    };
    Decision { strategy: one.id(), field, verdict, reason }
}

/// Returns whether a problem's path names this field, a message around it, or an item in it.
fn covers(path: &str, field: &str) -> bool {
    let starts = |long: &str, short: &str| {
        long.strip_prefix(short).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    !path.is_empty() && (starts(field, path) || starts(path, field))
}

impl Report<'_> {
    /// Returns an error if any part of the strategy is refused. It has the reasons, the fields and
    /// values that request the parts, and their positions in files.
    pub fn refuse(&self) -> Result<()> {
        all_in_one(self.problems.clone())?;
        let mut refused: Vec<&Decision> = Vec::new();
        for it in self.decisions.iter().filter(|it| it.verdict == Verdict::Refused) {
            // Several strategies may report the same fault of the degrees.
            if !refused.iter().any(|one| (&one.field, &one.reason) == (&it.field, &it.reason)) {
                refused.push(it);
            }
        }
        if refused.is_empty() {
            return Ok(());
        }
        let reasons: Vec<&str> = refused.iter().map(|it| it.reason.as_str()).collect();
        let fields: Vec<&str> = refused.iter().map(|it| it.field.as_str()).collect();
        let error = Error::unsupported(format!("invalid strategy: {}", reasons.join("; ")));
        let error =
            fields.iter().fold(error, |error, field| error.at(self.written.place_of(field)));
        Err(error.help(format!(
            "change or remove {}; `fleet strategy explain` shows the effect of each switch",
            fields.join(" and ")
        )))
    }

    /// Returns the number of errors and refused strategies.
    pub fn error_count(&self) -> usize {
        let errors = self.problems.iter().filter(|it| it.is_error()).count();
        errors + self.decisions.iter().filter(|it| it.verdict == Verdict::Refused).count()
    }

    /// Returns the warnings, each once: those of fields, and one for each dropped strategy.
    pub fn warnings(&self) -> Vec<Problem> {
        let mut warnings: Vec<Problem> = Vec::new();
        let of_fields = self.problems.iter().filter(|it| !it.is_error()).cloned();
        let dropped = self.decisions.iter().filter(|it| it.verdict == Verdict::Dropped);
        let dropped = dropped.map(|it| {
            let problem = Problem::warning(&*it.field, format!("is not applied: {}", it.reason));
            self.written.placed(problem)
        });
        for warning in of_fields.chain(dropped) {
            if !warnings.contains(&warning) {
                warnings.push(warning);
            }
        }
        warnings
    }

    /// Returns the applied strategies, outermost first.
    pub(crate) fn applied(&self) -> Vec<&'static dyn Strategy> {
        let is_applied = |id: StrategyId| {
            self.decisions.iter().any(|it| it.strategy == id && it.verdict == Verdict::Applied)
        };
        STRATEGIES.iter().copied().filter(|it| is_applied(it.id())).collect()
    }

    /// Returns the names of the applied strategies, outermost first.
    pub(crate) fn chain(&self) -> Vec<&'static str> {
        self.applied().iter().map(|it| it.id().name()).collect()
    }

    /// Returns the outcome for a field: its problem, or the decision about its strategy.
    fn outcome(&self, path: String, value: String, kind: JobKind) -> Outcome {
        let top = path.split(['.', '[']).next().unwrap_or_default();
        let only = DistributedStrategy::describe().field(top).and_then(|field| field.only);
        let elsewhere = only.filter(|(only, _)| *only != kind);
        // The settings of the gradients' sum belong to the strategy that sends gradients.
        let is_of_sum = matches!(only, Some((JobKind::Collective, _)));
        let shards = self.applied().iter().any(|it| it.id() == StrategyId::Sharding);
        let sums = if shards { StrategyId::Sharding } else { StrategyId::RawProgram };
        let owner = match &*path {
            "hybrid_configs.split_classes" => Some(StrategyId::ClassParallel),
            "hybrid_configs.pp_degree" | "sharding_configs.pp_degree" => Some(StrategyId::Pipeline),
            "hybrid_configs.sharding_degree" => Some(StrategyId::Sharding),
            _ => StrategyId::of_field(top).or_else(|| is_of_sum.then_some(sums)),
        };
        let problem = |is_error| {
            self.problems.iter().find(|it| it.is_error() == is_error && covers(&it.path, &path))
        };
        let refused = self
            .decisions
            .iter()
            .find(|it| it.verdict == Verdict::Refused && covers(&it.field, &path));
        let decision =
            owner.and_then(|owner| self.decisions.iter().find(|it| it.strategy == owner));
        let (verdict, reason) = if let Some(error) = problem(true) {
            (Verdict::Refused, error.message.as_str())
        } else if let Some(decision) = refused {
            (Verdict::Refused, decision.reason.as_str())
        } else if let Some(warning) = problem(false) {
            (Verdict::Warned, warning.message.as_str())
        } else if let Some((_, why)) = elsewhere {
            (Verdict::Warned, why)
        } else if let Some(decision) = decision {
            (decision.verdict, decision.reason.as_str())
        } else {
            (Verdict::Applied, "")
        };
        let reason = reason.to_string();
        Outcome { path, value, owner, verdict, reason }
    }
}

/// Lists the problems, the strategies, and the fields that belong to no strategy.
impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.problems {
            writeln!(f, "{problem}")?;
        }
        // Strategies with errors are not applied at all.
        if self.problems.iter().any(Problem::is_error) {
            return Ok(());
        }
        for decision in &self.decisions {
            writeln!(f, "{decision}")?;
            if matches!(decision.verdict, Verdict::Refused | Verdict::Dropped) {
                writeln!(f, "  at {}", self.written.place_of(&decision.field))?;
            }
        }
        let mut apart = self.outcomes.iter().filter(|it| it.is_apart());
        apart.try_for_each(|outcome| writeln!(f, "{outcome}"))
    }
}
