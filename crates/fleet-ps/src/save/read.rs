//! Reads from a save without a server: its tables, and the values of dense parameters.

use super::index::TableIndex;
use super::{dense, job, load, manifest};
use fleet_base::Result;
use fleet_base::disk::RealDisk;
use std::collections::HashMap;
use std::path::Path;

impl TableIndex {
    /// Reads the index of the latest complete save in `dir`.
    pub fn read(dir: &Path) -> Result<TableIndex> {
        Ok(job::latest_complete(&RealDisk, dir)?.0)
    }

    /// Returns whether a folder has a save of servers with an index.
    pub fn is_at(dir: &Path) -> bool {
        dir.join(manifest::TABLES).is_file()
    }

    /// Reads the values of dense parameters, in the order of `names`.
    pub fn dense(&self, names: &[&str]) -> Result<Vec<Vec<f32>>> {
        let (disk, places) = (RealDisk::handle(), self.places());
        let mut tables: HashMap<usize, Vec<f32>> = HashMap::new();
        let mut all = Vec::new();
        for name in names {
            let (at, range) = places.get(name).ok_or_else(|| self.lacks_param(name))?;
            if !tables.contains_key(at) {
                let table = &self.tables[*at];
                let layout = dense::layout_name(&table.rule, table.width);
                let checked = load::check(&disk, &self.dir, table.id, self.save_id, &layout)?;
                tables.insert(*at, dense::values(&checked, table.width)?);
            }
            all.push(tables[at][range.clone()].to_vec());
        }
        Ok(all)
    }
}
