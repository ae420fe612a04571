//! A job whose numbers are exact. It is part of the library's own tests and of those of real
//! servers, which bring the crate's names.

use super::{Initializer, JobTables, NonFinite, Rule, Sgd, SparseConfig, TableConfig};

pub const SPARSE: u32 = 0;
pub const DENSE: u32 = 1;
pub const GEO: u32 = 2;
pub const STEPS: u32 = 3;

/// Rows of two numbers, which start at 1 and decrease by half of each gradient.
pub fn sparse() -> SparseConfig {
    SparseConfig {
        rule: Rule::Sgd(Sgd { lr: 0.5 }),
        initializer: Initializer::Constant(1.0),
        shard_count: 4,
        ..SparseConfig::plain(SPARSE, 2)
    }
}

pub fn job(server_count: usize, worker_count: usize, sync: bool) -> JobTables {
    let tables = vec![
        TableConfig::Sparse(sparse()),
        TableConfig::Dense {
            table_id: DENSE,
            params: vec![("weight".into(), 4), ("bias".into(), 1)],
            rule: Rule::Sgd(Sgd { lr: 0.5 }),
            non_finite: NonFinite::Refuse,
            options: Default::default(),
        },
        TableConfig::Geo(SparseConfig { table_id: GEO, ..sparse() }),
        TableConfig::GlobalStep { table_id: STEPS },
    ];
    JobTables { server_count, worker_count, sync, tables }
}
