//! Work on whole tables.

use super::{Client, KINDS, Transport};
use crate::message::Body;
use crate::request::{Change, Read};
use crate::{SaveFormat, SaveMode, Saved, TableAdmin, TableStats, Tables};
use fleet_base::{Error, Result};
use std::path::Path;

impl<T: Transport> TableAdmin for Client<T> {
    fn shrink(&self, table: u32, unseen_days: Option<u8>) -> Result<u64> {
        self.placed(|| {
            self.job.table(table, &["sparse", "geo"])?;
            self.ask_sum(Change::Shrink { table, unseen_days })
        })
    }

    fn clear(&self, table: u32) -> Result<u64> {
        self.placed(|| {
            self.job.table(table, &KINDS)?;
            self.ask_sum(Change::Clear { table })
        })
    }

    /// Saves in two phases: all servers write, and then all keep the save or none does.
    fn save(&self, what: Tables, dir: &Path, mode: SaveMode, format: SaveFormat) -> Result<Saved> {
        self.placed(|| {
            let (table, dir) = (self.known(what)?, text(dir)?);
            let last = self.ask_numbers(Read::LastSave { dir })?;
            let id = last.into_iter().max().unwrap_or(0) + 1;
            let saved = self.ask_all(Change::Save { id, table, dir, mode, format });
            let ended = self.ask_all(Change::EndSave { id, keep: saved.is_ok() });
            let mut sum = Saved::default();
            for answer in saved? {
                let mut body = Body(&answer);
                sum.row_count += body.u64()?;
                sum.bytes += body.u64()?;
            }
            ended.map(|_| sum)
        })
    }

    fn load(&self, what: Tables, dir: &Path) -> Result<u64> {
        self.placed(|| {
            let (table, dir) = (self.known(what)?, text(dir)?);
            self.ask_sum(Change::Load { table, dir })
        })
    }

    fn stats(&self, table: u32) -> Result<TableStats> {
        self.placed(|| {
            let mut sum = TableStats::default();
            for answer in self.ask_all(Read::Stats { table })? {
                let numbers = Body(&answer).numbers::<u64>(TableStats::COUNT as u64)?;
                sum.add(&TableStats::from_numbers(&numbers));
            }
            Ok(sum)
        })
    }
}

impl<T: Transport> Client<T> {
    /// Returns the one table of a save or load, which must be of the job.
    fn known(&self, what: Tables) -> Result<Option<u32>> {
        match what {
            Tables::All => Ok(None),
            Tables::One(table) => self.job.table(table, &KINDS).map(|_| Some(table)),
        }
    }
}

/// Returns a folder's name as text, which messages contain.
fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .ok_or_else(|| Error::invalid(format!("the name of {} is not UTF-8", path.display())))
}
