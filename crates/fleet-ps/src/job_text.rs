//! Jobs as text: one fact a line. Workers and servers compare it, and servers keep it beside their
//! logs: renaming a fact makes these unreadable.

use crate::{
    Accessor, CtrAccessor, DenseCut, DenseOptions, JobTables, NonFinite, SparseConfig, TableConfig,
};
use fleet_base::{Error, Result};
use std::fmt::Display;

/// Changes whenever workers of one version cannot talk to servers of another.
const MESSAGES_VERSION: &str = "messages of version 8";

/// The first fact in which two jobs differ.
#[derive(Debug, PartialEq, Eq)]
struct Difference<'a> {
    /// The table of the fact; empty for facts of the whole job.
    place: String,
    expected: &'a str,
    got: &'a str,
}

/// Start of the first line of a table. Its facts follow, indented.
const TABLE: &str = "table_id: ";
const INDENT: &str = "    ";
const END: &str = "end of the description";

/// Returns a job as text.
pub(crate) fn text(job: &JobTables) -> String {
    let JobTables { server_count, worker_count, sync, tables } = job;
    let mut text = format!(
        "{MESSAGES_VERSION}\nserver_count: {server_count}\nworker_count: {worker_count}\n\
         sync: {sync}\n"
    );
    tables.iter().for_each(|table| add_table(&mut text, table));
    text
}

/// Adds a fact of a table.
fn fact(text: &mut String, name: &str, value: impl Display) {
    *text += &format!("{INDENT}{name}: {value}\n");
}

/// Adds a fact whose type has no form for users.
fn debug(text: &mut String, name: &str, value: impl std::fmt::Debug) {
    fact(text, name, format_args!("{value:?}"));
}

fn add_table(text: &mut String, table: &TableConfig) {
    *text += &format!("{TABLE}{}\n", table.table_id());
    fact(text, "kind", table.kind());
    match table {
        TableConfig::Dense { table_id: _, params, rule, non_finite, options } => {
            let DenseOptions { cut, corrects_delay } = options;
            for (name, len) in params {
                fact(text, "parameter", format_args!("{name:?}, numbers {len}"));
            }
            fact(text, "rule", rule);
            add_non_finite(text, non_finite);
            fact(text, "corrects_delay", corrects_delay);
            if let DenseCut::Blocks(blocks) = cut {
                for block in blocks {
                    fact(text, "block", format_args!("{} on server {}", block.len, block.server));
                }
            }
        }
        TableConfig::Sparse(config) | TableConfig::Geo(config) => add_rows(text, config),
        TableConfig::GlobalStep { table_id: _ } => {}
    }
}

fn add_rows(text: &mut String, config: &SparseConfig) {
    let SparseConfig {
        table_id: _,
        name,
        dim,
        rule,
        initializer,
        accessor,
        entry,
        shard_count,
        seed,
        weight_bounds,
        non_finite,
        row_count_max,
        compress_in_save,
    } = config;
    debug(text, "name", name);
    fact(text, "dim", dim);
    fact(text, "rule", rule);
    debug(text, "initializer", initializer);
    fact(text, "entry", entry);
    fact(text, "shard_count", shard_count);
    fact(text, "seed", seed);
    debug(text, "weight_bounds", weight_bounds);
    add_non_finite(text, non_finite);
    fact(text, "row_count_max", row_count_max);
    fact(text, "compress_in_save", compress_in_save);
    match accessor {
        Accessor::Plain => fact(text, "accessor", "plain"),
        Accessor::Ctr(ctr) => {
            fact(text, "accessor", "click");
            add_click(text, ctr);
        }
    }
}

fn add_click(text: &mut String, ctr: &CtrAccessor) {
    let CtrAccessor {
        pull_show_click,
        embed_rule,
        embed_initializer,
        embed_bounds,
        show_scale,
        nonclk_coeff,
        click_coeff,
        embedx_threshold,
        base_threshold,
        delta_threshold,
        delta_keep_days,
        show_click_decay_rate,
        delete_threshold,
        delete_after_unseen_days,
    } = ctr;
    fact(text, "pull_show_click", pull_show_click);
    fact(text, "embed_rule", embed_rule);
    debug(text, "embed_initializer", embed_initializer);
    debug(text, "embed_bounds", embed_bounds);
    fact(text, "show_scale", show_scale);
    fact(text, "nonclk_coeff", nonclk_coeff);
    fact(text, "click_coeff", click_coeff);
    fact(text, "embedx_threshold", embedx_threshold);
    fact(text, "base_threshold", base_threshold);
    fact(text, "delta_threshold", delta_threshold);
    fact(text, "delta_keep_days", delta_keep_days);
    fact(text, "show_click_decay_rate", show_click_decay_rate);
    fact(text, "delete_threshold", delete_threshold);
    fact(text, "delete_after_unseen_days", delete_after_unseen_days);
}

fn add_non_finite(text: &mut String, non_finite: &NonFinite) {
    match non_finite {
        NonFinite::Refuse => fact(text, "non_finite", "refuse"),
        NonFinite::Count => fact(text, "non_finite", "count"),
        NonFinite::Clip(limit) => fact(text, "non_finite", format_args!("clip to {limit}")),
    }
}

/// Returns the first difference between two texts, if any.
fn difference<'a>(expected: &'a str, got: &'a str) -> Option<Difference<'a>> {
    let ours: Vec<&str> = expected.lines().collect();
    let theirs: Vec<&str> = got.lines().collect();
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    // One of the texts may have ended: the place is taken from the longer one.
    let longer = if at < ours.len() { &ours } else { &theirs };
    let fact = |lines: &[&'a str]| lines.get(at).map_or(END, |line| line.trim());
    Some(Difference { place: place(longer, at), expected: fact(&ours), got: fact(&theirs) })
}

/// Rejects a text that differs from the expected one, and names the first difference.
pub(crate) fn check(expected: &str, got: &str, message: &str) -> Result<()> {
    let Some(difference) = difference(expected, got) else { return Ok(()) };
    let error = Error::invalid(message).expected(difference.expected).got(difference.got);
    Err(match difference.place.is_empty() {
        true => error,
        false => error.at(difference.place),
    })
}

/// Returns the context of a line: `table 3`, or nothing for facts of the whole job.
fn place(lines: &[&str], at: usize) -> String {
    let id = lines[..=at].iter().rev().find_map(|line| line.strip_prefix(TABLE));
    id.map_or(String::new(), |id| format!("table {id}"))
}

/// Returns the number of servers that a text states.
pub(crate) fn server_count(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("server_count: "))?;
    line.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::tests::job;
    use crate::{Rule, rule::Adagrad};

    #[test]
    fn differences_name_the_table_and_the_field() {
        let ours = job(1, 2, false);
        assert_eq!(server_count(&text(&ours)), Some(1));
        let check = |change: &dyn Fn(&mut JobTables), place: &str, [expected, got]: [&str; 2]| {
            let mut theirs = ours.clone();
            change(&mut theirs);
            let (ours, theirs) = (text(&ours), text(&theirs));
            let found = difference(&ours, &theirs).unwrap();
            assert_eq!((&found.place[..], found.expected, found.got), (place, expected, got));
        };
        assert_eq!(difference(&text(&ours), &text(&ours)), None);
        check(&|job| job.sync = true, "", ["sync: false", "sync: true"]);
        let first = ours.tables[0].table_id();
        let of = |id| format!("table {id}");
        let number = |at: usize| format!("table_id: {}", ours.tables[at].table_id());
        let swapped = [&number(0)[..], &number(1)];
        check(&|job| job.tables.swap(0, 1), &of(first), swapped);
        let len = |job: &mut JobTables| {
            job.tables.iter_mut().for_each(|table| {
                if let TableConfig::Dense { params, .. } = table {
                    params[1].1 = 7;
                }
            })
        };
        let dense = ours.tables.iter().find(|table| table.kind() == "dense").unwrap().table_id();
        let lens = ["parameter: \"bias\", numbers 1", "parameter: \"bias\", numbers 7"];
        check(&len, &of(dense), lens);
        let rows = |job: &mut JobTables, change: &dyn Fn(&mut SparseConfig)| {
            let TableConfig::Sparse(config) = &mut job.tables[0] else { return };
            change(config);
        };
        let entry = |config: &mut SparseConfig| config.entry = crate::Entry::CountFilter(3);
        let entries = ["entry: none", "entry: count_filter_entry:3"];
        check(&|job| rows(job, &entry), &of(first), entries);
        let name = |config: &mut SparseConfig| config.name = "rows\n".into();
        check(&|job| rows(job, &name), &of(first), ["name: \"\"", "name: \"rows\\n\""]);
        // A rule of another kind differs in one line, too.
        let rule = |config: &mut SparseConfig| config.rule = Rule::Adagrad(Adagrad::default());
        let adagrad = "rule: adagrad(lr 0.05, epsilon 0.000001, initial_accumulator 0)";
        check(&|job| rows(job, &rule), &of(first), ["rule: sgd(lr 0.5)", adagrad]);
        assert_eq!(
            difference("a\nb", "a").unwrap(),
            Difference { place: String::new(), expected: "b", got: END }
        );
    }
}
