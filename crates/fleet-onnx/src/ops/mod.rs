//! Translations of ops, by kind: one function an op, in the tables of these files.

mod activation;
mod attention;
mod elementwise;
mod fill;
mod image;
mod index;
mod loss;
mod matmul;
mod norm;
mod reduce;
mod refused;
mod shape;
mod table;

use crate::context::Context;
use fleet_base::Result;

/// Writes the nodes of an op.
type Translate = fn(&mut Context<'_, '_>) -> Result<()>;

/// Treatment of an op.
pub(crate) enum Rule {
    /// It becomes nodes.
    Nodes(Translate),
    /// It has no translation, for this reason.
    Refused(&'static str),
}

const TRANSLATIONS: &[&[(&str, Translate)]] = &[
    activation::RULES,
    attention::RULES,
    elementwise::RULES,
    fill::RULES,
    image::RULES,
    index::RULES,
    loss::RULES,
    matmul::RULES,
    norm::RULES,
    reduce::RULES,
    shape::RULES,
    table::RULES,
];

/// Returns the treatment of an op; `None` for one that this crate does not know.
pub(crate) fn rule(name: &str) -> Option<Rule> {
    let found = TRANSLATIONS.iter().copied().flatten().find(|(known, _)| *known == name);
    match found {
        Some((_, translate)) => Some(Rule::Nodes(*translate)),
        None => refused::reason(name).map(Rule::Refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_ops::Registry;
    use std::collections::HashSet;

    #[test]
    fn every_op_is_translated_or_has_a_reason() {
        let known: HashSet<&str> =
            Registry::with(&[]).defs().iter().map(|def| def.spec.name).collect();
        let without: Vec<&&str> = known.iter().filter(|name| rule(name).is_none()).collect();
        assert!(without.is_empty(), "{without:?}");
        let mut seen = HashSet::new();
        for (name, _) in TRANSLATIONS.iter().copied().flatten() {
            assert!(known.contains(name), "'{name}' is not an op");
            assert!(seen.insert(*name), "'{name}' has two translations");
            assert!(refused::reason(name).is_none(), "'{name}' has a translation and a reason");
        }
        for name in refused::names() {
            assert!(known.contains(name), "'{name}' is not an op");
        }
    }
}
