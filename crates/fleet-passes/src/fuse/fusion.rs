//! Fusions: patterns of ops, and the ops that they become (`pattern.rs` describes the lines).
//!
//! The pattern says which ops compute the same as their replacement. The rest is checked for every
//! fusion: nothing else uses the results that are no longer stored, and no op in between sees that
//! ops move (`replacement.rs`).

use super::graph::{Edit, Graph};
use super::pattern::{Line, Match};
use super::replacement::Replacement;
use fleet_base::Result;
use fleet_ir::{OpId, Program, VarId};
use fleet_ops::Registry;

/// A rewrite of a pattern of ops.
pub(crate) struct Fusion {
    /// Alternatives. The first one that matches at an op is used there.
    pub variants: &'static [Variant],
    /// Checks the rest of a match, such as shapes, and adds to it the attributes of the new ops.
    pub accept: fn(&mut Match<'_>) -> Option<()>,
}

/// A forward part with the alternatives of its backward part. The forward part is replaced alone if
/// the program has no op for the first line of any alternative.
pub(crate) struct Variant {
    pub forward: Rule,
    pub backward: &'static [Rule],
}

/// Lines to find, and the lines that replace them.
pub(crate) struct Rule {
    pub find: &'static [&'static str],
    pub becomes: &'static [&'static str],
}

/// A [`Rule`] with its lines parsed.
struct Parsed {
    find: Vec<Line>,
    becomes: Vec<Line>,
}

impl Parsed {
    fn new(rule: &Rule) -> Result<Parsed> {
        Ok(Parsed { find: Line::parse_all(rule.find)?, becomes: Line::parse_all(rule.becomes)? })
    }
}

impl Fusion {
    /// Replaces all matches in the root block. Returns whether there are any.
    pub fn run(&self, program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
        let mut variants = Vec::new();
        for Variant { forward, backward } in self.variants {
            let backward: Vec<Parsed> = backward.iter().map(Parsed::new).collect::<Result<_>>()?;
            variants.push((Parsed::new(forward)?, backward));
        }
        let graph = Graph::new(program, keep);
        let mut edit = Edit::default();
        let mut replacements = Vec::new();
        for (id, _) in program.root_ops() {
            let start = Match::new(program, &graph);
            let Some((found, new)) = self.find(&variants, &start, id) else { continue };
            let replacement = Replacement::new(&found, &new, registry)?;
            if edit.is_free(&found.op_ids()) && replacement.is_safe(&found) {
                edit.remove(&found.op_ids());
                replacements.push(replacement);
            }
        }
        for replacement in replacements {
            replacement.emit(program, registry, &mut edit)?;
        }
        Ok(edit.apply(program))
    }

    /// Returns the match that starts at an op, and the lines that replace it.
    fn find<'m, 'v>(
        &self,
        variants: &'v [(Parsed, Vec<Parsed>)],
        start: &Match<'m>,
        id: OpId,
    ) -> Option<(Match<'m>, Vec<&'v Line>)> {
        let accepted = |found: &Match<'m>, lines: &[Line]| {
            let mut found = lines.iter().try_fold(found.clone(), |found, line| found.next(line))?;
            (self.accept)(&mut found).map(|()| found)
        };
        let forward = variants.iter().find_map(|(forward, backward)| {
            let (first, rest) = forward.find.split_first()?;
            let found = rest.iter().try_fold(start.fit(first, id)?, |it, line| it.next(line))?;
            Some((accepted(&found, &[])?, found, &forward.becomes, backward))
        });
        let (alone, found, becomes, backward) = forward?;
        let mut whole = backward.iter().filter_map(|it| Some((accepted(&found, &it.find)?, it)));
        if let Some((whole, rule)) = whole.next() {
            return Some((whole, becomes.iter().chain(&rule.becomes).collect()));
        }
        let begins = |rule: &Parsed| rule.find.first().is_some_and(|it| found.next(it).is_some());
        (!backward.iter().any(begins)).then(|| (alone, becomes.iter().collect()))
    }
}
