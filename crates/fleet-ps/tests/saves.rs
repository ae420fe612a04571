//! Saves of whole jobs, loaded by other numbers of servers.

use crate::common::{DENSE, GEO, SPARSE, STEPS, job};
use fleet_ps::{
    CtrAccessor, JobTables, LocalServers, PullMode, Push, Rule, SaveFormat, SaveMode, ServerTables,
    SparseConfig, TableAccess, TableAdmin, TableConfig, TableIndex, Tables, rule,
};
use std::path::PathBuf;

pub const CLICK: u32 = 4;

/// A folder that is deleted at the end of the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("fleet-ps-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Rules with state: Adam for the dense table, Adagrad for rows; and click rows.
pub fn tables(server_count: usize) -> JobTables {
    let mut job = job(server_count, 1, false);
    for table in &mut job.tables {
        match table {
            TableConfig::Dense { rule, params, .. } => {
                *rule = Rule::Adam(rule::Adam::default());
                *params = vec![("bias".into(), 3), ("weight".into(), 8)];
            }
            TableConfig::Sparse(config) => config.rule = Rule::Adagrad(rule::Adagrad::default()),
            TableConfig::Geo(_) | TableConfig::GlobalStep { .. } => {}
        }
    }
    let ctr = CtrAccessor { embedx_threshold: 2.0, base_threshold: 0.0, ..CtrAccessor::default() };
    let accessor = fleet_ps::Accessor::Ctr(ctr);
    let click = SparseConfig { accessor, shard_count: 3, ..SparseConfig::ctr(CLICK, 2) };
    job.tables.push(TableConfig::Sparse(click));
    job
}

fn start(server_count: usize) -> LocalServers {
    LocalServers::new(&ServerTables::all(&tables(server_count)).unwrap(), 0).unwrap()
}

pub fn train(servers: &LocalServers, step: u64) {
    let ids: Vec<u64> = (0..60).map(|at| at * 3 + step).collect();
    let grads: Vec<f32> = (0..180).map(|at| (at % 7) as f32 - 3.0).collect();
    servers.push_sparse(SPARSE, None, Push::new(&ids, &grads[..120])).unwrap();
    servers.push_geo(GEO, None, (&ids).into(), &grads[..120]).unwrap();
    servers.push_sparse(CLICK, None, Push::new(&ids, &grads)).unwrap();
    servers.push_dense(DENSE, None, &grads[..11]).unwrap();
    servers.push_steps(STEPS, None, 1).unwrap();
}

/// Returns everything that a worker can see of all tables.
pub fn look(servers: &LocalServers) -> (Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>, u64) {
    let ids: Vec<u64> = (0..250).collect();
    let rows = |table: u32, width: usize| {
        let mut rows = vec![0.0; ids.len() * width];
        servers.pull_sparse(table, (&ids).into(), &mut rows, PullMode::Infer).unwrap();
        rows
    };
    let mut dense = vec![0.0; 11];
    servers.pull_dense(DENSE, &mut dense).unwrap();
    let steps = servers.push_steps(STEPS, None, 0).unwrap();
    (rows(SPARSE, 2), rows(GEO, 2), rows(CLICK, 3), dense, steps)
}

/// One table of several: saved alone, or loaded alone from a save of all, by any number of servers.
#[test]
fn one_table_is_saved_and_loaded_alone() {
    let (all, one) = (Folder::new("of_all"), Folder::new("of_one"));
    let old = start(2);
    (0..3).for_each(|step| train(&old, step));
    old.save(Tables::All, &all.0, SaveMode::All, SaveFormat::Binary).unwrap();
    for (table, at) in [(SPARSE, 0), (GEO, 1), (CLICK, 2)] {
        let dir = one.0.join(table.to_string());
        let count = old.stats(table).unwrap().row_count;
        let saved = old.save(Tables::One(table), &dir, SaveMode::All, SaveFormat::Text).unwrap();
        assert_eq!(saved.row_count, count);
        for (server_count, dir) in [(2, &dir), (3, &dir), (3, &all.0)] {
            let new = start(server_count);
            assert_eq!(new.load(Tables::One(table), dir).unwrap(), count);
            let (sparse, geo, click, dense, steps) = look(&new);
            let (want, rows) = (look(&old), [sparse, geo, click]);
            let wants = [want.0, want.1, want.2];
            for (other, (rows, want)) in rows.iter().zip(&wants).enumerate() {
                assert_eq!(rows == want, other == at, "table {table}, {server_count} servers");
            }
            assert_eq!((dense, steps), (vec![0.0; 11], 0));
        }
    }
    assert_eq!(start(1).load(Tables::One(DENSE), &all.0).unwrap(), 11);
    // A save that would end the save of all tables is refused, and that save stays.
    let error = old.save(Tables::One(SPARSE), &all.0, SaveMode::All, SaveFormat::Text).unwrap_err();
    assert!(error.to_string().contains("the folder has saves of other tables"), "{error}");
    assert!(start(2).load(Tables::All, &all.0).is_ok());
    let error =
        start(2).load(Tables::All, &one.0.join(SPARSE.to_string())).unwrap_err().to_string();
    assert!(error.contains("the save has no dense parameter 'bias'"), "{error}");
    let error = old.save(Tables::One(9), &one.0, SaveMode::All, SaveFormat::Text).unwrap_err();
    assert!(error.to_string().contains("no such table"), "{error}");
}

#[test]
fn a_job_goes_on_from_its_save_on_any_number_of_servers() {
    for format in [SaveFormat::Text, SaveFormat::Binary] {
        let folder = Folder::new("job");
        let old = start(2);
        (0..5).for_each(|step| train(&old, step));
        let saved = old.save(Tables::All, &folder.0, SaveMode::All, format).unwrap();
        let rows: u64 = [SPARSE, GEO, CLICK].map(|t| old.stats(t).unwrap().row_count).iter().sum();
        assert_eq!(saved.row_count, rows + 11);
        train(&old, 5);
        for server_count in [1, 2, 3, 13] {
            let new = start(server_count);
            assert_eq!(new.load(Tables::All, &folder.0).unwrap(), rows + 11);
            train(&new, 5);
            assert!(
                look(&new) == look(&old),
                "{server_count} servers, {format:?}: optimizers resume too"
            );
        }
    }
}

#[test]
fn a_server_loads_the_tables_it_is_told() {
    let folder = Folder::new("some");
    let old = start(1);
    train(&old, 0);
    old.save(Tables::All, &folder.0, SaveMode::All, SaveFormat::Text).unwrap();
    let server = ServerTables::new(&tables(2), 1).unwrap();
    assert_eq!(server.load(&folder.0, Some(&[SPARSE])).unwrap(), 30, "half of 60 rows");
    let error = server.load(&folder.0, Some(&[77])).unwrap_err().to_string();
    assert!(error.contains("no such table"), "{error}");
}

#[test]
fn a_save_that_one_server_cannot_write_is_none() {
    let folder = Folder::new("half");
    let old = start(2);
    train(&old, 0);
    old.save(Tables::All, &folder.0, SaveMode::Base, SaveFormat::Binary).unwrap();
    let before = look(&old);
    train(&old, 1);
    // Server 1 cannot write its last manifest, because a folder has its name.
    let obstacle = folder.0.join("004/manifest-001.2");
    std::fs::create_dir(&obstacle).unwrap();
    let error = old
        .save(Tables::All, &folder.0, SaveMode::Delta, SaveFormat::Binary)
        .unwrap_err()
        .to_string();
    assert!(error.contains("004/manifest-001.2") && error.contains("server 1"), "{error}");
    std::fs::remove_dir(&obstacle).unwrap();
    let files = std::fs::read_dir(folder.0.join("004")).unwrap().count();
    assert_eq!(files, 2 * (1 + 1), "its files are deleted");
    let new = start(3);
    new.load(Tables::All, &folder.0).unwrap();
    assert!(look(&new) == before, "the previous save is intact");
    // Changes that the failed delta had taken are in the next one.
    let delta = Folder::new("delta");
    let saved = old.save(Tables::All, &delta.0, SaveMode::Delta, SaveFormat::Binary).unwrap();
    // Sixty rows, as many of the geo table, and the dense table; click rows have not gained enough
    // score.
    assert_eq!(saved.row_count, 60 + 60 + 11);
    new.load(Tables::All, &delta.0).unwrap();
    assert!(look(&new).0 == look(&old).0);
}

#[test]
fn saves_that_lack_something_are_refused_and_load_nothing() {
    let folder = Folder::new("lack");
    let new = start(1);
    let check = |words: &str| {
        let error = new.load(Tables::All, &folder.0).unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("server 0"), "{error}");
        assert_eq!(look(&new), look(&start(1)), "{words}");
    };
    check("no save in ");
    let old = start(2);
    train(&old, 0);
    old.save(Tables::All, &folder.0, SaveMode::All, SaveFormat::Binary).unwrap();
    let hide = |name: &str, words: &str| {
        let (path, away) = (folder.0.join(name), folder.0.join("away"));
        std::fs::rename(&path, &away).unwrap();
        check(words);
        std::fs::rename(&away, &path).unwrap();
    };
    hide("saved-001.1", "expected the parts of 2 servers in save 1, got no parts of servers [1]");
    hide("004/part-001-00000", "004/part-001-00000");
    hide("001/manifest-000.1", "001/manifest-000.1 is missing");
    let part = folder.0.join("001/part-001");
    let bytes = std::fs::read(&part).unwrap();
    std::fs::write(&part, &bytes[1..]).unwrap();
    check("001/part-001 has the wrong size");
    std::fs::write(&part, &bytes).unwrap();
    assert!(new.load(Tables::All, &folder.0).is_ok());
    // The next save deletes the files that a killed server has left, and no others.
    let temporary =
        ["001/.part-001.7-0.tmp", "004/.manifest-000.3.7-0.tmp", ".saved-000.2.7-0.tmp"];
    let others = ["001/.part-002.7-0.tmp", "001/.part-0011.7-0.tmp", "001/part-001.tmp"];
    temporary.iter().chain(&others).for_each(|it| std::fs::write(folder.0.join(it), "x").unwrap());
    old.save(Tables::All, &folder.0, SaveMode::All, SaveFormat::Binary).unwrap();
    assert!(temporary.iter().all(|it| !folder.0.join(it).exists()));
    others.iter().for_each(|it| std::fs::remove_file(folder.0.join(it)).unwrap());
    // A save over an older one leaves one save.
    for _ in 1..4 {
        old.save(Tables::All, &folder.0, SaveMode::All, SaveFormat::Binary).unwrap();
    }
    let files = std::fs::read_dir(&folder.0).unwrap().count();
    assert_eq!(files, 5 + 2 + 1, "five tables, two marks, a list");
    let files = std::fs::read_dir(folder.0.join("001")).unwrap().count();
    assert_eq!(files, 4, "two parts, two manifests");
}

/// The files of a small save, except its marks, with every byte flipped, at every length, and
/// deleted. A load that succeeds restores what was saved. One that fails names the file, has a help
/// text, and leaves the tables as they were.
#[test]
fn a_save_with_any_byte_changed_is_refused_by_name() {
    for format in [SaveFormat::Text, SaveFormat::Binary] {
        let folder = Folder::new("bytes");
        let plain = || {
            let servers = ServerTables::all(&job(1, 1, false)).unwrap();
            LocalServers::new(&servers, 0).unwrap()
        };
        let old = plain();
        old.push_sparse(SPARSE, None, Push::new(&[1, 2], &[0.5; 4])).unwrap();
        old.push_dense(DENSE, None, &[0.5; 5]).unwrap();
        old.push_steps(STEPS, None, 3).unwrap();
        old.save(Tables::All, &folder.0, SaveMode::All, format).unwrap();
        let see = |servers: &LocalServers| {
            let (mut rows, mut dense) = ([0.0; 4], [0.0; 5]);
            servers.pull_sparse(SPARSE, (&[1, 2]).into(), &mut rows, PullMode::Infer).unwrap();
            servers.pull_dense(DENSE, &mut dense).unwrap();
            (rows, dense, servers.push_steps(STEPS, None, 0).unwrap())
        };
        let (new, saved, empty) = (plain(), see(&old), see(&plain()));
        let mut refused = 0;
        let mut check = |path: &PathBuf, what: &str| match new.load(Tables::All, &folder.0) {
            Ok(_) => {
                assert_eq!(see(&new), saved, "{what}");
                (0..4).for_each(|table| _ = new.clear(table).unwrap());
            }
            Err(error) => {
                let text = error.to_string();
                let name = path.file_name().unwrap().to_str().unwrap();
                assert!(text.contains(name) && text.contains("help: "), "{what}: {text}");
                assert_eq!(see(&new), empty, "{what}");
                refused += 1;
            }
        };
        let mut files = Vec::new();
        for table in 0..4 {
            let entries = std::fs::read_dir(folder.0.join(format!("{table:03}"))).unwrap();
            files.extend(entries.map(|entry| entry.unwrap().path()));
        }
        let mut count = 0;
        for path in &files {
            let bytes = std::fs::read(path).unwrap();
            for at in 0..bytes.len() {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << (at % 8);
                std::fs::write(path, flipped).unwrap();
                check(path, &format!("{}, byte {at}", path.display()));
                std::fs::write(path, &bytes[..at]).unwrap();
                check(path, &format!("{} cut to {at}", path.display()));
                count += 2;
            }
            std::fs::remove_file(path).unwrap();
            check(path, &format!("{} deleted", path.display()));
            std::fs::write(path, &bytes).unwrap();
            count += 1;
        }
        assert!(refused > count * 9 / 10, "{refused} of {count}");
        new.load(Tables::All, &folder.0).unwrap();
    }
}

/// Adam, so that the state of every number and of the table matters.
fn dense(table_id: u32, params: &[(&str, usize)]) -> TableConfig {
    TableConfig::Dense {
        table_id,
        params: params.iter().map(|(name, len)| (name.to_string(), *len)).collect(),
        rule: Rule::Adam(rule::Adam::default()),
        non_finite: fleet_ps::NonFinite::Refuse,
        options: Default::default(),
    }
}

fn rows(table_id: u32, name: &str) -> TableConfig {
    TableConfig::Sparse(SparseConfig { name: name.into(), ..SparseConfig::plain(table_id, 2) })
}

fn servers(server_count: usize, tables: Vec<TableConfig>) -> LocalServers {
    let job = JobTables { server_count, worker_count: 1, sync: false, tables };
    LocalServers::new(&ServerTables::all(&job).unwrap(), 0).unwrap()
}

/// Gradients of the parameters by name: the same whatever table they are in.
fn push_by_name(servers: &LocalServers, step: usize) {
    for table in &servers.job().tables.clone() {
        let TableConfig::Dense { table_id, params, .. } = table else { continue };
        let grad = |(name, len): &(String, usize)| -> Vec<f32> {
            (0..*len).map(|at| (name.len() * 7 + at * 3 + step) as f32 * 0.1 - 1.0).collect()
        };
        let grads: Vec<f32> = params.iter().flat_map(grad).collect();
        servers.push_dense(*table_id, None, &grads).unwrap();
    }
}

fn values_by_name(servers: &LocalServers) -> Vec<(String, Vec<f32>)> {
    let mut all = Vec::new();
    for table in &servers.job().tables {
        let TableConfig::Dense { table_id, params, .. } = table else { continue };
        let mut values = vec![0.0; table.dense_len()];
        servers.pull_dense(*table_id, &mut values).unwrap();
        let mut rest = &values[..];
        for (name, len) in params {
            let (own, others) = rest.split_at(*len);
            all.push((name.clone(), own.to_vec()));
            rest = others;
        }
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// A save is loaded by a job that numbers its tables otherwise and divides its dense parameters
/// into other tables, on other numbers of servers.
#[test]
fn tables_and_parameters_are_found_by_name() {
    let row = |servers: &LocalServers, table: u32| {
        let mut row = [0.0; 2];
        servers.pull_sparse(table, (&[7]).into(), &mut row, PullMode::Infer).unwrap();
        row
    };
    for format in [SaveFormat::Text, SaveFormat::Binary] {
        let folder = Folder::new("names");
        let params = [("b", 3), ("weight", 11), ("other.w", 6)];
        let tables = vec![rows(0, "users"), rows(1, "items"), dense(2, &params)];
        let old = servers(2, tables);
        (0..3).for_each(|step| push_by_name(&old, step));
        old.push_sparse(0, None, Push::new(&[7], &[1.0, 2.0])).unwrap();
        old.push_sparse(1, None, Push::new(&[7], &[-3.0, 4.0])).unwrap();
        old.save(Tables::All, &folder.0, SaveMode::All, format).unwrap();
        let list = std::fs::read_to_string(folder.0.join("tables.txt")).unwrap();
        assert_eq!(
            list,
            "000\tusers\tsparse\t2\tsgd\n001\titems\tsparse\t2\tsgd\n\
             002\tMergedDense\tdense\t20\tadam\n\tb\t0..3\n\tweight\t3..14\n\
             \tother.w\t14..20\n"
        );
        let index = TableIndex::read(&folder.0).unwrap();
        let want = values_by_name(&old);
        let names: Vec<&str> = want.iter().map(|(name, _)| &name[..]).collect();
        let read = index.dense(&names).unwrap();
        assert!(read.iter().eq(want.iter().map(|(_, values)| values)));
        push_by_name(&old, 3);
        for server_count in [1, 2, 3] {
            let tables = vec![
                dense(0, &[("weight", 11)]),
                dense(4, &[("other.w", 6), ("b", 3)]),
                rows(5, "items"),
                rows(9, "users"),
            ];
            let new = servers(server_count, tables);
            assert_eq!(new.load(Tables::All, &folder.0).unwrap(), 20 + 2);
            assert_eq!(values_by_name(&new), want, "{server_count} servers");
            assert_eq!([row(&new, 9), row(&new, 5)], [row(&old, 0), row(&old, 1)]);
            push_by_name(&new, 3);
            assert_eq!(values_by_name(&new), values_by_name(&old), "with the state of Adam");
        }
    }
}

#[test]
fn what_a_save_lacks_is_named() {
    let folder = Folder::new("lacks");
    let old = servers(1, vec![rows(0, "users"), dense(1, &[("weight", 4)])]);
    old.save(Tables::All, &folder.0, SaveMode::All, SaveFormat::Binary).unwrap();
    let check = |table: TableConfig, words: &[&str]| {
        let error = servers(1, vec![table]).load(Tables::All, &folder.0).unwrap_err().to_string();
        words.iter().for_each(|words| assert!(error.contains(words), "{error}"));
        assert!(error.contains("help: "), "{error}");
    };
    check(rows(0, "user"), &["the save has no table 'user'", "'users'"]);
    check(dense(1, &[("weights", 4)]), &["the save has no dense parameter 'weights'", "'weight'"]);
    check(dense(1, &[("weight", 5)]), &["'weight' has another size in the save"]);
    let wide = SparseConfig { name: "users".into(), ..SparseConfig::plain(0, 3) };
    check(TableConfig::Sparse(wide), &["save has another table: expected", "dim=3", "dim=2"]);
    // A server takes only the tables that the save has by name, if that is asked for.
    let tables = vec![rows(0, "items"), rows(1, "users")];
    let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
    let server = ServerTables::new(&job, 0).unwrap();
    assert_eq!(server.load_present(&folder.0, &[0, 1]).unwrap(), ["items"]);
    let twins = vec![rows(0, "items"), rows(1, "items")];
    let error = ServerTables::new(&JobTables { tables: twins, ..job }, 0).map(drop).unwrap_err();
    assert!(error.to_string().contains("duplicate name"), "{error}");
}

/// Saves of earlier versions have no names: their tables are found by number.
#[test]
fn saves_without_names_are_loaded_by_number() {
    let folder = Folder::new("unnamed");
    let old = servers(2, vec![rows(0, "users"), dense(1, &[("weight", 4), ("b", 2)])]);
    push_by_name(&old, 0);
    old.push_sparse(0, None, Push::new(&[7], &[1.0, 2.0])).unwrap();
    old.save(Tables::All, &folder.0, SaveMode::All, SaveFormat::Binary).unwrap();
    for server in 0..2 {
        let mark = folder.0.join(format!("saved-{server:03}.1"));
        std::fs::write(mark, "server_count 2\n").unwrap();
    }
    let tables = vec![rows(0, "people"), dense(1, &[("w", 4), ("b", 2)])];
    let new = servers(3, tables.clone());
    assert_eq!(new.load(Tables::All, &folder.0).unwrap(), 1 + 6);
    let bits = |servers: &LocalServers| {
        let mut values = [0.0; 6];
        servers.pull_dense(1, &mut values).unwrap();
        values
    };
    assert_eq!(bits(&new), bits(&old));
    assert!(TableIndex::read(&folder.0).unwrap().tables.is_empty());
    let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
    let error = ServerTables::new(&job, 0).unwrap().load_present(&folder.0, &[0]).unwrap_err();
    assert!(error.to_string().contains("the save does not name its tables"), "{error}");
}
