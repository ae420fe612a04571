//! Checks that all ranks of a collective job agree on the strategy, the network and the
//! communication of one step of the rewritten program.
//!
//! Ranks that differ would open groups that other ranks never open, or train an inconsistent model.
//! Ranks compare digests when a session opens. Only if digests differ do they exchange texts, to
//! name the ranks and show the first line that differs.

use fleet_base::{Error, Result};
use fleet_comm::Group;
use fleet_ir::{Program, Var};
use fleet_nn::Programs;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::comm::control;
use fleet_strategy::{DistributedStrategy, RECEIVED, RingSpec};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// The network and its optimizer as text, before the rewrite for a rank.
#[derive(Clone, Debug, Default)]
pub(crate) struct NetworkText(Arc<str>);

impl NetworkText {
    pub(crate) fn new(programs: &Programs, optimizer: &OptimizerDesc) -> NetworkText {
        let mut main = programs.main.clone();
        // Ranks may draw different numbers: the initial values are broadcast.
        main.set_seed(0);
        let ops: Vec<_> = main
            .block_ids()
            .flat_map(|block| main.block_ops(block).map(|(id, _)| id).collect::<Vec<_>>())
            .collect();
        for id in ops {
            if main.op(id).attr("seed").is_some() {
                // An attribute of another type stays as it is.
                let _ = main.op_mut(id).set_attr("seed", 0i64);
            }
        }
        NetworkText(format!("{main}\n{optimizer:#?}").into())
    }
}

/// One part of the session that must be the same on all ranks, as text.
pub(crate) struct Part {
    /// Error text for ranks that differ.
    difference: &'static str,
    /// Name of the text in the error; precedes the line number.
    noun: &'static str,
    help: &'static str,
    text: String,
}

/// Returns the parts that must be equal on all ranks.
pub(crate) fn parts(
    strategy: &DistributedStrategy,
    network: &NetworkText,
    rings: &WholeRings,
    main: &Program,
) -> Vec<Part> {
    let is_divided = |var: &Var| var.division.is_some_and(|division| division.is_part());
    // Otherwise ranks may draw different numbers.
    let seed = main.vars().any(|(_, var)| is_divided(var)).then_some(main.seed());
    vec![
        Part {
            difference: "ranks that share layers have different seeds",
            noun: "seed",
            help: "call set_seed with the same number on every rank, or nowhere",
            text: seed.map_or(String::new(), |seed| format!("seed {seed}")),
        },
        Part {
            difference: "ranks have different strategies",
            noun: "strategy",
            help: "give every rank the same strategy",
            text: strategy_text(strategy),
        },
        Part {
            difference: "ranks train different networks",
            noun: "network and optimizer",
            help: "build the same network with the same optimizer on every rank",
            text: network.0.to_string(),
        },
        Part {
            difference: "the ranks' rewritten programs communicate differently",
            noun: "communication",
            help: "make the same calls in the same order on every rank",
            text: format!("rings {:?}\n{}", rings.0, communication(main, rings)),
        },
    ]
}

/// Returns the strategy without its `execution_strategy` section, in which ranks may differ, and
/// without a password, which the text would reveal.
pub(crate) fn strategy_text(strategy: &DistributedStrategy) -> String {
    let text = strategy.to_prototxt();
    let mut is_inside = false;
    let own = |line: &&str| {
        is_inside |= line.starts_with("execution_strategy {");
        let is_left_out = is_inside;
        is_inside &= *line != "}";
        !is_left_out && !line.trim_start().starts_with("passwd: ")
    };
    text.lines().filter(own).map(|line| format!("{line}\n")).collect()
}

/// The rings of a session that span all ranks. Rings that span only some ranks differ between
/// ranks: a machine's leader has more of them than the other ranks of the machine.
#[derive(Clone, Debug)]
pub(crate) struct WholeRings(Vec<i64>);

impl WholeRings {
    pub(crate) fn new(rings: &[RingSpec], rank_count: usize) -> WholeRings {
        let whole = rings.iter().filter(|ring| ring.nranks == rank_count);
        WholeRings(whole.map(|ring| ring.id).collect())
    }
}

/// Returns the program's communication with all other ranks, one line per op.
pub(crate) fn communication(program: &Program, rings: &WholeRings) -> String {
    let mut text = String::new();
    for block in program.block_ids() {
        for (_, op) in program.block_ops(block) {
            if op.attr("ring_id").is_none() || !rings.0.contains(&op.attr_int("ring_id")) {
                continue;
            }
            // Of two ranks, one sends a message and the other receives it, and a rank may wait for
            // its own messages.
            if op.attr("peer").is_some() || control::SYNC_COMM.is(op) {
                continue;
            }
            let ring = op.attr_int("ring_id");
            // Sharding: a parameter has another name on ranks that receive it.
            let name = |id| program.var_name(id).split(RECEIVED).next().unwrap_or_default();
            let names: Vec<&str> = op.all_inputs().map(name).collect();
            text += &format!("{} on ring {ring}: {}\n", op.name(), names.join(", "));
        }
    }
    text
}

/// Compares all parts over the group of all ranks. A difference is an error on every rank.
pub(crate) fn compare(group: &Group, parts: &[Part]) -> Result<()> {
    let own: Vec<i64> = parts.iter().map(|part| digest(&part.text)).collect();
    let mut all = vec![0i64; own.len() * group.size()];
    group.all_gather("compare sessions", &own, &mut all)?;
    for (at, part) in parts.iter().enumerate() {
        let digests: Vec<i64> = all.chunks(own.len()).map(|of_rank| of_rank[at]).collect();
        if let Some(odd) = Disagreement::of(&digests) {
            return Err(explain(group, part, &odd)?);
        }
    }
    Ok(())
}

pub(crate) fn digest(text: &str) -> i64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish() as i64
}

/// The ranks whose digest differs from the most frequent one.
pub(crate) struct Disagreement {
    /// First rank with the most frequent digest. In a tie, the first rank with one of the tied
    /// digests.
    pub(crate) usual: usize,
    /// Ranks whose digest differs from the one of `usual`.
    pub(crate) ranks: Vec<usize>,
}

impl Disagreement {
    /// Returns `None` if all digests are equal.
    pub(crate) fn of(digests: &[i64]) -> Option<Disagreement> {
        let count = |digest: &i64| digests.iter().filter(|other| *other == digest).count();
        let most = digests.iter().map(count).max()?;
        let usual = digests.iter().position(|digest| count(digest) == most)?;
        let differs = |rank: &usize| digests[*rank] != digests[usual];
        let ranks: Vec<usize> = (0..digests.len()).filter(differs).collect();
        (!ranks.is_empty()).then_some(Disagreement { usual, ranks })
    }
}

/// Builds the error of a difference, the same on all ranks. It shows the first differing line of
/// the first odd rank.
fn explain(group: &Group, part: &Part, odd: &Disagreement) -> Result<Error> {
    let text = match group.rank() == odd.usual {
        true => part.text.clone().into_bytes(),
        false => Vec::new(),
    };
    let mut length = [text.len() as i64];
    group.broadcast("compare sessions: length", &mut length, odd.usual)?;
    let mut usual = text;
    usual.resize(usize::try_from(length[0]).unwrap_or(0), 0);
    group.broadcast("compare sessions: text", &mut usual, odd.usual)?;
    let usual = String::from_utf8_lossy(&usual);
    let mut shown = [0u8; SHOWN_BYTES];
    if group.rank() == odd.ranks[0] {
        let difference = FirstDifference::of(&usual, &part.text).to_string();
        let bytes = difference.as_bytes();
        let length = bytes.len().min(SHOWN_BYTES);
        shown[..length].copy_from_slice(&bytes[..length]);
    }
    group.broadcast("compare sessions: difference", &mut shown, odd.ranks[0])?;
    let shown = String::from_utf8_lossy(&shown);
    let shown = shown.trim_end_matches(['\0', char::REPLACEMENT_CHARACTER]);
    let job_rank = |rank: usize| group.ranks()[rank];
    let odd_ranks: Vec<usize> = odd.ranks.iter().map(|rank| job_rank(*rank)).collect();
    let (usual, odd) = (job_rank(odd.usual), list_ranks(&odd_ranks));
    let error = Error::invalid(format!("{}: {odd} and rank {usual} differ", part.difference));
    let place = format!("{}, {shown}", part.noun);
    Ok(error.at(place).help(part.help).caused_by(odd_ranks[0]))
}

/// Returns `rank 2` or `ranks 1, 2`.
pub(crate) fn list_ranks(ranks: &[usize]) -> String {
    let names: Vec<String> = ranks.iter().take(RANKS_SHOWN).map(usize::to_string).collect();
    let more = if ranks.len() > RANKS_SHOWN { ", .." } else { "" };
    let s = if ranks.len() == 1 { "" } else { "s" };
    format!("rank{s} {}{more}", names.join(", "))
}

/// The first line in which two texts differ.
pub(crate) struct FirstDifference {
    line: usize,
    expected: String,
    got: String,
}

impl FirstDifference {
    pub(crate) fn of(expected: &str, got: &str) -> FirstDifference {
        let (mut a, mut b) = (expected.lines(), got.lines());
        let mut line = 1;
        loop {
            let (expected, got) = (a.next(), b.next());
            if expected != got || expected.is_none() {
                let shown = |text: Option<&str>| match text {
                    Some(text) => format!("'{}'", cut(text.trim())),
                    None => "nothing".to_string(),
                };
                return FirstDifference { line, expected: shown(expected), got: shown(got) };
            }
            line += 1;
        }
    }
}

impl std::fmt::Display for FirstDifference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: expected {}, got {}", self.line, self.expected, self.got)
    }
}

fn cut(line: &str) -> String {
    let mut cut: String = line.chars().take(LINE_CHARS_MAX).collect();
    if cut.len() < line.len() {
        cut += "..";
    }
    cut
}

/// Maximum number of ranks that an error names.
const RANKS_SHOWN: usize = 8;
/// Maximum length of a differing line: enough for an op and its first variables.
const LINE_CHARS_MAX: usize = 200;
/// Room for two such lines in any script and the text around them.
const SHOWN_BYTES: usize = 2048;

#[cfg(test)]
mod tests {
    use super::{Disagreement, FirstDifference, strategy_text};
    use fleet_strategy::{DistributedStrategy, FsClientParameter};

    /// The text goes to the store, and its lines to error messages.
    #[test]
    fn the_text_of_a_strategy_has_no_password() {
        let client = FsClientParameter::default().with_user("me").with_passwd("secret");
        let text = strategy_text(&DistributedStrategy::new().with_fs_client_param(client));
        assert!(text.contains("user: \"me\"") && !text.contains("secret"), "{text}");
    }

    #[test]
    fn the_odd_ones_are_those_that_differ_from_most() {
        let odd = |digests: &[i64]| Disagreement::of(digests).map(|odd| (odd.usual, odd.ranks));
        assert_eq!(odd(&[7, 7, 7]), None);
        assert_eq!(odd(&[7, 8, 8]), Some((1, vec![0])));
        assert_eq!(odd(&[7, 8]), Some((0, vec![1])));
        assert_eq!(odd(&[7, 7, 8, 9]), Some((0, vec![2, 3])));
        assert_eq!(odd(&[]), None);
    }

    #[test]
    fn the_first_different_line_is_shown() {
        let shown = |a: &str, b: &str| FirstDifference::of(a, b).to_string();
        assert_eq!(shown("a\nb\nc", "a\nx\nc"), "line 2: expected 'b', got 'x'");
        assert_eq!(shown("a", "a\nb"), "line 2: expected nothing, got 'b'");
    }
}
