//! Saves of whole jobs, loaded by other numbers of servers.

use crate::common::{DENSE, GEO, SPARSE, STEPS, job};
use fleet_ps::{
    CtrAccessor, JobTables, LocalServers, PullMode, Push, Rule, SaveFormat, SaveMode, ServerTables,
    SparseConfig, TableAccess, TableAdmin, TableConfig, Tables, rule,
};
use std::path::PathBuf;

const CLICK: u32 = 4;

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
fn tables(server_count: usize) -> JobTables {
    let mut job = job(server_count, 1, false);
    for table in &mut job.tables {
        match table {
            TableConfig::Dense { rule, len, .. } => {
                (*rule, *len) = (Rule::Adam(rule::Adam::default()), 11);
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

fn train(servers: &LocalServers, step: u64) {
    let ids: Vec<u64> = (0..60).map(|at| at * 3 + step).collect();
    let grads: Vec<f32> = (0..180).map(|at| (at % 7) as f32 - 3.0).collect();
    servers.push_sparse(SPARSE, None, Push::new(&ids, &grads[..120])).unwrap();
    servers.push_geo(GEO, None, (&ids).into(), &grads[..120]).unwrap();
    servers.push_sparse(CLICK, None, Push::new(&ids, &grads)).unwrap();
    servers.push_dense(DENSE, None, &grads[..11]).unwrap();
    servers.push_steps(STEPS, None, 1).unwrap();
}

/// Returns everything that a worker can see of all tables.
fn look(servers: &LocalServers) -> (Vec<f32>, Vec<f32>, Vec<f32>, Vec<f32>, u64) {
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
    assert!(error.contains("001"), "{error}");
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
    assert_eq!(files, 2 * (3 + 1), "its files are deleted");
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
    hide("004/part-001-00002", "004/part-001-00002");
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
    assert_eq!(files, 5 + 2, "five tables, two marks");
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
