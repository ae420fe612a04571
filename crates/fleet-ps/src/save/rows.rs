//! The rows of a saved table, as inference reads them, without a server.

use super::index::TableIndex;
use super::{load, manifest, table_folder};
use crate::{
    Accessor, CtrAccessor, PullMode, Record, Rule, SaveMode, SparseConfig, SparseTable, rule,
};
use fleet_base::disk::RealDisk;
use fleet_base::{Error, Result};
use std::cell::Cell;
use std::convert::Infallible;

/// Rows of a saved table.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedRows {
    /// The ids that have a row, in ascending order.
    pub ids: Vec<u64>,
    /// Numbers per row.
    pub width: usize,
    /// The numbers that a lookup in inference returns for each id.
    pub values: Vec<f32>,
    /// Number of rows of the table. If they are more than the limit, `ids` and `values` are empty.
    pub row_count: u64,
}

impl TableIndex {
    /// Reads the rows of the table that had number `id` in the job that saved it. Only counts them
    /// if there are more than `row_count_max`.
    ///
    /// ```
    /// use fleet_ps::{
    ///     JobTables, LocalServers, Push, SaveFormat, SaveMode, ServerTables, SparseConfig,
    ///     TableAccess, TableAdmin, TableConfig, TableIndex, Tables,
    /// };
    /// # let dir = std::env::temp_dir().join(format!("fleet-ps-rows-{}", std::process::id()));
    /// let tables = vec![TableConfig::Sparse(SparseConfig::plain(0, 2))];
    /// let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
    /// let servers = LocalServers::new(&ServerTables::all(&job)?, 0)?;
    /// servers.push_sparse(0, None, Push::new(&[u64::MAX, 17], &[0.5; 4]))?;
    /// servers.save(Tables::All, &dir, SaveMode::All, SaveFormat::Binary)?;
    /// let rows = TableIndex::read(&dir)?.rows(0, 1000)?;
    /// assert_eq!((&rows.ids[..], rows.width, rows.values.len()), (&[17, u64::MAX][..], 2, 4));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn rows(&self, id: u32, row_count_max: u64) -> Result<SavedRows> {
        let place = |error: Error| error.at(self.dir.display());
        let Some(saved) = self.tables.iter().find(|it| it.id == id && it.is_rows()) else {
            return Err(place(Error::invalid(format!("the save has no table {id} of rows"))));
        };
        let folder = table_folder(&self.dir, id);
        let disk = RealDisk::handle();
        let path = folder.join(manifest::file_name(0, self.save_id));
        let layout = manifest::read(&*disk, &path)?.layout;
        let config = config_of(&layout, id, saved.width).ok_or_else(|| {
            Error::unsupported("the rows of the save have an unknown layout")
                .got(format!("'{layout}'"))
                .at(path.display())
        })?;
        let table = SparseTable::new(config)?;
        let checked = load::check(&disk, &self.dir, id, self.save_id, &layout)?;
        let count = Cell::new(0);
        // Further rows are only counted.
        let is_kept = |_| {
            count.set(count.get() + 1);
            count.get() <= row_count_max
        };
        load::load_checked(&table, &checked, is_kept)?;
        match count.get() <= row_count_max {
            true => read(&table, saved.width),
            false => Ok(SavedRows {
                ids: Vec::new(),
                width: saved.width,
                values: Vec::new(),
                row_count: count.get(),
            }),
        }
    }
}

/// Reads all rows of a table.
fn read(table: &SparseTable, width: usize) -> Result<SavedRows> {
    let mut ids = Vec::new();
    let mut snapshot = table.snapshot(SaveMode::All);
    let mut visit = |record: Record<'_>| {
        if let Record::Row { id, .. } = record {
            ids.push(id);
        }
        Ok::<(), Infallible>(())
    };
    while let Ok(true) = snapshot.next_shard(&mut visit) {}
    snapshot.end();
    ids.sort_unstable();
    let mut values = vec![0.0; ids.len() * width];
    table.pull(&ids, &mut values, PullMode::Infer)?;
    let row_count = ids.len() as u64;
    Ok(SavedRows { ids, width, values, row_count })
}

/// Returns a table whose rows have a layout (`layout_name`) and as many columns; `None` if there is
/// none. Only what decides the layout follows from it: the table is for reading.
fn config_of(layout: &str, table_id: u32, width: usize) -> Option<SparseConfig> {
    let mut words = layout.split(' ');
    let kind = words.next()?;
    let mut value = |key: &str| words.next()?.strip_prefix(key)?.strip_prefix('=');
    let dim: usize = value("dim")?.parse().ok()?;
    let rule = rule_named(value("rule")?)?;
    let plain = SparseConfig { rule, ..SparseConfig::plain(table_id, dim) };
    let config = match kind {
        "plain" => plain,
        "ctr" => {
            let embed_rule = rule_named(value("embed_rule")?)?;
            let pull_show_click = width == dim + 3;
            let ctr = CtrAccessor { embed_rule, pull_show_click, ..CtrAccessor::default() };
            SparseConfig { accessor: Accessor::Ctr(ctr), ..plain }
        }
        _ => return None,
    };
    (config.pull_width() == width).then_some(config)
}

fn rule_named(name: &str) -> Option<Rule> {
    let all = [
        Rule::Sgd(rule::Sgd::default()),
        Rule::Momentum(rule::Momentum::default()),
        Rule::Adagrad(rule::Adagrad::default()),
        Rule::CtrAdagrad(rule::CtrAdagrad::default()),
        Rule::StdAdagrad(rule::StdAdagrad::default()),
        Rule::Adam(rule::Adam::default()),
        Rule::SharedAdam(rule::SharedAdam::default()),
    ];
    all.into_iter().find(|rule| rule.name() == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Push, SaveFormat, SaveOptions, save_sparse};

    /// Rows of every rule and accessor read back as a pull in inference returns them.
    #[test]
    fn saved_rows_equal_pulls() {
        let names = ["sgd", "momentum", "adagrad", "ctr_adagrad", "std_adagrad", "adam"];
        for (at, name) in names.into_iter().chain(["shared_adam"]).enumerate() {
            for show_click in [None, Some(false), Some(true)] {
                let rule = rule_named(name).unwrap();
                let mut config = SparseConfig { rule, ..SparseConfig::plain(at as u32, 3) };
                if let Some(pull_show_click) = show_click {
                    let ctr = CtrAccessor { pull_show_click, ..CtrAccessor::default() };
                    config.accessor = Accessor::Ctr(ctr);
                }
                let table = SparseTable::new(config.clone()).unwrap();
                let ids: Vec<u64> =
                    (0..100).map(|id: u64| id.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
                let shows: Vec<f32> = (0..100).map(|id| id as f32).collect();
                let grads = vec![0.1; ids.len() * config.push_width()];
                let mut push = Push::new(&ids, &grads);
                if show_click.is_some() {
                    (push.shows, push.clicks) = (Some(&shows[..]), Some(&shows[..]));
                }
                table.push(push).unwrap();
                let name = format!("fleet-ps-saved-rows-{}-{name}", std::process::id());
                let dir = std::env::temp_dir().join(name);
                let options = SaveOptions {
                    mode: SaveMode::All,
                    format: SaveFormat::Binary,
                    server: 0,
                    server_count: 1,
                    save_id: 1,
                };
                save_sparse(&table, &dir, &options).unwrap();
                let saved = crate::SavedTable::of(&crate::TableConfig::Sparse(config));
                let index = TableIndex { dir: dir.clone(), save_id: 1, tables: vec![saved] };
                let rows = index.rows(at as u32, 100).unwrap();
                let few = index.rows(at as u32, 99).unwrap();
                assert_eq!((few.ids.len(), few.values.len(), few.row_count), (0, 0, 100));
                std::fs::remove_dir_all(&dir).unwrap();
                let mut expected = vec![0.0; rows.values.len()];
                table.pull(&rows.ids, &mut expected, PullMode::Infer).unwrap();
                assert_eq!(rows.ids.len(), 100);
                assert_eq!(rows.values, expected);
                assert!(rows.values.iter().any(|value| *value != 0.0));
            }
        }
    }
}
