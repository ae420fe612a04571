//! A communicator as the tables that ops use.

use fleet_base::output::note;
use fleet_base::{Error, Result};
use fleet_ops::{LookUp, Lookup, PushRows, Tables};
use fleet_ps::{Communicator, GeoCommunicator, PullMode, Push, Servers};
use fleet_strategy::servers::{LookupSpec, ServerPlan};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Values that inference reads for an id without a row. No row is created in either case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnknownIds {
    /// Zeros.
    #[default]
    Zeros,
    /// The initial values of a new row.
    InitialValues,
}

/// Adapter from a worker's communication to the ops' `Tables`.
pub(super) struct TableAdapter {
    pub sender: Sender,
    reads_initial: AtomicBool,
    tables: Vec<CheckedTable>,
    lookups: Vec<LookupSpec>,
}

/// A table whose ids are checked.
struct CheckedTable {
    table_id: u32,
    name: String,
    /// Number of declared rows.
    rows: u64,
    warned: AtomicBool,
}

/// Sender of gradients, by mode.
pub(super) enum Sender {
    Pushes(Communicator),
    Geo(GeoCommunicator),
    /// Inference, which sends no gradients.
    ReadOnly(Servers),
}

impl TableAdapter {
    pub fn new(sender: Sender, plan: &ServerPlan) -> TableAdapter {
        let checked = plan.tables.sparse.iter().filter(|table| !table.any_id);
        let tables = checked.map(|table| CheckedTable {
            table_id: table.table_id(),
            name: table.name.clone(),
            rows: table.rows,
            warned: AtomicBool::new(false),
        });
        TableAdapter {
            sender,
            reads_initial: AtomicBool::new(false),
            tables: tables.collect(),
            lookups: plan.lookups.clone(),
        }
    }

    /// Rejects negative ids, and warns once about an id above the declared rows, unless any number
    /// is an id of the table.
    pub fn check_ids<'a>(
        &self,
        table: u32,
        parts: impl ExactSizeIterator<Item = &'a [i64]>,
    ) -> Result<()> {
        let Some(table) = self.tables.iter().find(|it| it.table_id == table) else {
            return Ok(());
        };
        let (mut most, count) = (-1, parts.len());
        for (part, ids) in parts.enumerate() {
            let (mut least, mut largest) = (0, -1);
            for id in ids {
                (least, largest) = (least.min(*id), largest.max(*id));
            }
            if least < 0 {
                return Err(self.negative_id(table, (part, count), ids));
            }
            most = most.max(largest);
        }
        if let Some(warning) = table.warning(most) {
            note(warning);
        }
        Ok(())
    }

    fn negative_id(
        &self,
        table: &CheckedTable,
        (part, parts): (usize, usize),
        ids: &[i64],
    ) -> Error {
        let position = ids.iter().position(|id| *id < 0).unwrap_or_default();
        let mut specs = self.lookups.iter().filter(|spec| spec.table_id == table.table_id);
        let variable = match specs.find(|spec| spec.ids.len() == parts) {
            Some(spec) => format!("variable '{}'", spec.ids[part]),
            None => format!("Ids[{part}]"),
        };
        Error::invalid(format!("negative id in a lookup of table '{}'", table.name))
            .expected("an id >= 0")
            .got(ids[position])
            .at(format!("{variable}, position {position}"))
            .help(
                "if ids are hashes of 64 bits, set any_id(true) on the sparse_embedding: then \
                 every number is an id",
            )
    }

    pub fn servers(&self) -> &Servers {
        match &self.sender {
            Sender::Pushes(communicator) => communicator.servers(),
            Sender::Geo(geo) => geo.servers(),
            Sender::ReadOnly(servers) => servers,
        }
    }

    pub fn set_unknown(&self, unknown: UnknownIds) {
        self.reads_initial.store(unknown == UnknownIds::InitialValues, Relaxed);
    }

    fn read(&self, table: u32, ids: &[u64], rows: &mut [f32], is_training: bool) -> Result<()> {
        let mode = match (is_training, self.reads_initial.load(Relaxed)) {
            (true, _) => PullMode::Train,
            (false, true) => PullMode::InferInitial,
            (false, false) => PullMode::Infer,
        };
        match &self.sender {
            Sender::Pushes(communicator) => communicator.look_up(table, ids, rows, mode),
            Sender::ReadOnly(servers) if !is_training => {
                servers.tables.pull_sparse(table, ids.into(), rows, mode)
            }
            Sender::ReadOnly(_) => Err(mode_mismatch("inference", "training")),
            Sender::Geo(_) => Err(mode_mismatch("GEO", "another mode")),
        }
    }

    fn pushes(&self) -> Result<&Communicator> {
        match &self.sender {
            Sender::Pushes(communicator) => Ok(communicator),
            Sender::Geo(_) => Err(mode_mismatch("GEO", "another mode")),
            Sender::ReadOnly(_) => Err(mode_mismatch("inference", "training")),
        }
    }

    fn geo(&self) -> Result<&GeoCommunicator> {
        match &self.sender {
            Sender::Geo(geo) => Ok(geo),
            Sender::Pushes(_) => Err(mode_mismatch("sync, half-async or async mode", "GEO")),
            Sender::ReadOnly(_) => Err(mode_mismatch("inference", "training")),
        }
    }
}

impl CheckedTable {
    /// Returns a warning the first time that an id is above the declared rows.
    fn warning(&self, id: i64) -> Option<String> {
        let is_above = u64::try_from(id).is_ok_and(|id| id >= self.rows);
        (is_above && !self.warned.swap(true, Relaxed)).then(|| {
            format!(
                "table '{}' was declared with {} rows, but id {id} is looked up: servers create a \
                 row for every id (any_id(true) on the sparse_embedding allows this silently)",
                self.name, self.rows
            )
        })
    }
}

fn mode_mismatch(expected: &str, got: &str) -> Error {
    Error::invalid("the program was rewritten for another parameter-server mode")
        .expected(format!("a program for {expected}"))
        .got(format!("one for {got}"))
}

/// Returns the ids in the form of the tables, without the padding id.
pub(super) fn table_ids<'a>(
    parts: impl Iterator<Item = &'a [i64]>,
    padding: Option<i64>,
) -> Vec<u64> {
    let mut ids = Vec::new();
    for part in parts {
        match padding {
            None => ids.extend(part.iter().map(|id| *id as u64)),
            Some(padding) => {
                ids.extend(part.iter().filter(|id| **id != padding).map(|id| *id as u64));
            }
        }
    }
    ids
}

impl Tables for TableAdapter {
    fn lookup(&self, table: u32, lookups: &mut [Lookup<'_>], how: LookUp) -> Result<()> {
        self.check_ids(table, lookups.iter().map(|it| it.ids))?;
        if let [only] = lookups
            && !how.padding.is_some_and(|padding| only.ids.contains(&padding))
        {
            let ids = bytemuck::cast_slice(only.ids);
            return self.read(table, ids, only.rows, how.is_training);
        }
        let ids = table_ids(lookups.iter().map(|it| it.ids), how.padding);
        let mut rows = vec![0.0; ids.len() * how.width];
        self.read(table, &ids, &mut rows, how.is_training)?;
        let mut found = rows.chunks_exact(how.width);
        for lookup in lookups {
            for (id, row) in lookup.ids.iter().zip(lookup.rows.chunks_exact_mut(how.width)) {
                match Some(*id) == how.padding {
                    true => row.fill(0.0),
                    false => row.copy_from_slice(found.next().unwrap_or_default()),
                }
            }
        }
        Ok(())
    }

    fn push_sparse(&self, table: u32, pushes: &[PushRows<'_>], width: usize) -> Result<()> {
        let is_bare = |push: &PushRows<'_>| {
            let has_counters = push.shows.is_some() || push.clicks.is_some() || push.slot.is_some();
            push.padding.is_none() && !has_counters
        };
        if let [only] = pushes
            && is_bare(only)
        {
            let push = Push::new(bytemuck::cast_slice(only.ids), only.grads);
            return self.pushes()?.push_sparse(table, push);
        }
        let (mut ids, mut grads) = (Vec::new(), Vec::new());
        let (mut all_shows, mut all_clicks, mut all_slots) = (Vec::new(), Vec::new(), Vec::new());
        for push in pushes {
            let per_id = |values: &[f32], at: usize| match values.len() {
                0 => 0.0,
                len => values[at * len / push.ids.len().max(1)],
            };
            if is_bare(push) {
                ids.extend(push.ids.iter().map(|id| *id as u64));
                grads.extend_from_slice(push.grads);
                continue;
            }
            for (at, (id, grad)) in push.ids.iter().zip(push.grads.chunks_exact(width)).enumerate()
            {
                if Some(*id) == push.padding {
                    continue;
                }
                ids.push(*id as u64);
                grads.extend_from_slice(grad);
                all_shows.extend(push.shows.map(|shows| per_id(shows, at)));
                all_clicks.extend(push.clicks.map(|clicks| per_id(clicks, at)));
                all_slots.extend(push.slot);
            }
        }
        let push = Push {
            shows: (!all_shows.is_empty()).then_some(&all_shows),
            clicks: (!all_clicks.is_empty()).then_some(&all_clicks),
            slots: (!all_slots.is_empty()).then_some(&all_slots),
            ..Push::new(&ids, &grads)
        };
        self.pushes()?.push_sparse(table, push)
    }

    fn send_dense(&self, table: u32, parts: &[&[f32]]) -> Result<()> {
        self.pushes()?.push_dense(table, parts)
    }

    fn skip(&self, _table: u32) -> Result<()> {
        match &self.sender {
            Sender::Pushes(communicator) => communicator.skip(),
            // The worker's copies did not change.
            Sender::Geo(_) => {}
            Sender::ReadOnly(_) => return Err(mode_mismatch("inference", "training")),
        }
        Ok(())
    }

    fn recv_dense(&self, table: u32, parts: &mut [&mut [f32]]) -> Result<()> {
        self.pushes()?.dense(table, parts)
    }

    fn send_barrier(&self) -> Result<()> {
        self.pushes()?.sent()
    }

    fn fetch_barrier(&self) -> Result<()> {
        self.pushes()?.received()
    }

    fn touch(&self, table: u32, ids: &[i64]) -> Result<()> {
        self.geo()?.touch(table, ids)
    }

    fn exchange(&self, table: u32, parts: &mut [&mut [f32]], width: Option<usize>) -> Result<()> {
        self.geo()?.step(table, parts, width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_above_the_rows_is_warned_about_once() {
        let (name, warned) = ("words".to_string(), AtomicBool::new(false));
        let table = CheckedTable { table_id: 0, name, rows: 1000, warned };
        assert_eq!(table.warning(999), None);
        assert_eq!(table.warning(-1), None);
        let warning = table.warning(1 << 50).unwrap();
        let start =
            "table 'words' was declared with 1000 rows, but id 1125899906842624 is looked up";
        assert!(warning.starts_with(start), "{warning}");
        assert_eq!(table.warning(1000), None, "once");
    }
}
