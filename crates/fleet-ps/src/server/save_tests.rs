//! Saves of a job on a simulated disk: damage at every byte, faults at every call, and power cuts
//! under seeds. A load gives the bits of one save, or is refused.

use super::{Caller, ServerTables};
use crate::client::tests::{DENSE, SPARSE};
use crate::save::job;
use crate::{
    Entry, JobTables, LocalServers, NonFinite, PullMode, Push, Rule, SaveFormat, SaveMode,
    SparseConfig, TableAccess, TableConfig, rule,
};
use fleet_base::disk::{Call, Disk, Fault, SimDisk, read_file};
use fleet_base::rng::Sequence;
use fleet_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many seeds `power_cuts_keep_saves` runs (CI: the default).
const SEEDS: &str = "FLEET_DISK_SEEDS";
/// The one seed that it runs, to see a failure again.
const SEED: &str = "FLEET_DISK_SEED";
const SEEDS_DEFAULT: u64 = 200;
const BY: Caller = Caller { worker: 0, client: 1 };
const SERVERS: usize = 2;
const IDS: [u64; 6] = [1, 2, 3, 40, 50, 61];

fn tables() -> JobTables {
    let rule = Rule::Adam(rule::Adam::default());
    let (non_finite, options) = (NonFinite::Refuse, Default::default());
    let sparse =
        SparseConfig { shard_count: 2, rule, entry: Entry::None, ..SparseConfig::plain(SPARSE, 2) };
    let params = vec![("weight".to_string(), 5)];
    let dense = TableConfig::Dense { table_id: DENSE, params, rule, non_finite, options };
    let tables = vec![dense, TableConfig::Sparse(sparse)];
    JobTables { server_count: SERVERS, worker_count: 1, sync: false, tables }
}

fn servers(disk: &SimDisk) -> Vec<Arc<ServerTables>> {
    let server = |server| {
        let mut tables = ServerTables::new(&tables(), server).unwrap();
        tables.disk = disk.handle();
        Arc::new(tables)
    };
    (0..SERVERS).map(server).collect()
}

/// Servers that have been trained for `steps`.
fn trained(disk: &SimDisk, steps: u64) -> Vec<Arc<ServerTables>> {
    let servers = servers(disk);
    let worker = LocalServers::new(&servers, 0).unwrap();
    for step in 1..=steps {
        worker.push_dense(DENSE, None, &[step as f32, -1.0, 0.5, 2.0, 1.0 / step as f32]).unwrap();
        let grads: Vec<f32> = (0..12).map(|at| (step * 7 + at) as f32 * 0.1).collect();
        worker.push_sparse(SPARSE, None, Push::new(&IDS, &grads)).unwrap();
    }
    servers
}

/// The bits of all weights, which tell any two numbers of steps apart.
fn bits(servers: &[Arc<ServerTables>]) -> Vec<u32> {
    let worker = LocalServers::new(servers, 0).unwrap();
    let (mut dense, mut rows) = (vec![0.0; 5], vec![0.0; IDS.len() * 2]);
    worker.pull_dense(DENSE, &mut dense).unwrap();
    worker.pull_sparse(SPARSE, (&IDS).into(), &mut rows, PullMode::Infer).unwrap();
    dense.iter().chain(&rows).map(|value| value.to_bits()).collect()
}

/// The two phases, as `Servers::save` has them.
fn save(disk: &SimDisk, dir: &Path, steps: u64, format: SaveFormat) -> Result<()> {
    let servers = trained(disk, steps);
    let save_id = job::last_id(disk, dir)? + 1;
    let save = |server: &Arc<ServerTables>| {
        server.save(BY, (dir, None), save_id, SaveMode::All, format).map(drop)
    };
    let outcomes: Vec<Result<()>> = servers.iter().map(save).collect();
    let outcome: Result<()> = outcomes.into_iter().collect();
    for server in &servers {
        server.end_save(BY, save_id, outcome.is_ok())?;
    }
    outcome
}

/// For how many steps the tables of the newest save were trained; every bit is checked.
fn load(disk: &SimDisk, dir: &Path, known: &[Vec<u32>]) -> Result<u64> {
    let servers = servers(disk);
    for server in &servers {
        // As `ServerTables::load`, which logs what it passes over.
        server.load_save(&job::latest_complete(disk, dir)?.0, None)?;
    }
    let bits = bits(&servers);
    let steps = known.iter().position(|it| *it == bits);
    Ok(steps.expect("the tables are those of one save") as u64)
}

/// The tables after each number of steps.
fn known(steps: u64) -> Vec<Vec<u32>> {
    (0..=steps).map(|steps| bits(&trained(&SimDisk::new(0), steps))).collect()
}

fn files(disk: &SimDisk, folder: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for name in disk.list(folder).unwrap_or_default() {
        let path = folder.join(name);
        match disk.list(&path) {
            Ok(_) => all.extend(files(disk, &path)),
            Err(_) => all.push(path),
        }
    }
    all
}

/// One save of the job is all that a folder has: damage is refused, with the file and what to do.
#[test]
fn every_damaged_file_of_a_save_is_refused() {
    let (dir, known) = (Path::new("save"), known(3));
    for format in [SaveFormat::Binary, SaveFormat::Text] {
        let disk = SimDisk::new(1);
        save(&disk, dir, 3, format).unwrap();
        assert_eq!(load(&disk, dir, &known).unwrap(), 3);
        let all = files(&disk, dir);
        // The list for people, and of two servers: a mark, two manifests and two parts each.
        assert_eq!(all.len(), 11, "{all:?}");
        let mut seed = 0;
        for file in all.iter().filter(|file| !file.ends_with("tables.txt")) {
            let mut check = |what: &str, change: &dyn Fn(&SimDisk)| {
                seed += 1;
                let copy = disk.copy(seed);
                change(&copy);
                let what = format!("{what} of {}", file.display());
                let error = load(&copy, dir, &known).map(drop).expect_err(&what).to_string();
                let name = file.file_name().unwrap().to_str().unwrap();
                let is_named = error.contains(name) || error.contains("save 1");
                assert!(is_named && error.contains("help: "), "{what}: {error}");
            };
            let len = read_file(&disk, file, 1 << 20).unwrap().unwrap().len();
            for at in 0..len {
                check(&format!("bit {} of byte {at}", at % 8), &|disk| {
                    disk.edit(file, |bytes| bytes[at] ^= 1 << (at % 8)).unwrap();
                });
                check(&format!("a cut at byte {at}"), &|disk| {
                    disk.edit(file, |bytes| bytes.truncate(at)).unwrap();
                });
            }
            check("a deletion", &|disk| disk.remove(file).unwrap());
        }
    }
}

/// Fails the n-th call of every kind, for every n, once and for good; afterwards the last save that
/// was not refused is there.
#[test]
fn every_call_that_fails_loses_no_save() {
    let calls = [
        Call::Create,
        Call::Open,
        Call::Read,
        Call::Write,
        Call::Sync,
        Call::Rename,
        Call::Remove,
        Call::List,
        Call::SyncFolder,
    ];
    let (known, mut met_count) = (known(4), 0);
    for call in calls {
        for first in 0.. {
            let mut met = 0;
            for (count, errno) in [(1, 5), (u64::MAX, 28)] {
                for cut in [false, true] {
                    met += fails_at(Fault { call, first, count, errno }, cut, &known);
                }
            }
            if met == 0 {
                break;
            }
            met_count += met;
        }
    }
    assert!(met_count > 300, "{met_count}");
}

fn fails_at(fault: Fault, cut: bool, known: &[Vec<u32>]) -> u64 {
    let (disk, dir) = (SimDisk::new(fault.first), Path::new("save"));
    let mut newest = 0;
    save(&disk, dir, 1, SaveFormat::Binary).unwrap();
    disk.set_faults(Some(fault));
    for steps in 2..=3 {
        if save(&disk, dir, steps, SaveFormat::Binary).is_ok() {
            newest = steps;
        }
    }
    let met = u64::from(disk.calls(fault.call) > fault.first);
    if cut {
        disk.power_cut()
    } else {
        disk.kill()
    };
    disk.set_faults(None);
    check_newest(&disk, dir, newest.max(1), known, &format!("{fault:?}, cut {cut}"));
    // The next save removes what failed ones have left.
    save(&disk, dir, 4, SaveFormat::Binary).unwrap();
    assert_eq!(load(&disk, dir, known).unwrap(), 4, "{fault:?}");
    let left = files(&disk, dir);
    assert_eq!(left.len(), 11, "{fault:?}, cut {cut}: {left:?}");
    met
}

/// The last good save, or a later one that was reported as failed and is whole all the same.
fn check_newest(disk: &SimDisk, dir: &Path, newest: u64, known: &[Vec<u32>], what: &str) -> u64 {
    let found: Result<u64, Error> = load(disk, dir, known);
    let found = found.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(found >= newest, "{what}: save {newest} is lost, {found} is left");
    found
}

/// Says how to see a failure again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let test = "cargo test -p fleet-ps --lib power_cuts_keep_saves";
            eprintln!("seed {0} failed: {SEED}={0} {test}", self.0);
        }
    }
}

#[test]
fn power_cuts_keep_saves() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number(SEED) {
        Some(seed) => seed..seed + 1,
        None => 0..number(SEEDS).unwrap_or(SEEDS_DEFAULT),
    };
    let (known, mut unsaved) = (known(20), 0);
    for seed in seeds {
        let _replay = Replay(seed);
        unsaved += run(seed, &known);
    }
    // Saves were cut off: else nothing was tested.
    assert!(unsaved > 0 || number(SEED).is_some());
}

/// Returns how many saves were cut off or failed.
fn run(seed: u64, known: &[Vec<u32>]) -> u64 {
    let (disk, dir) = (SimDisk::new(seed), Path::new("save"));
    let mut rng = Sequence::new(seed, 11);
    let (mut newest, mut found, mut unsaved) = (1, 1, 0);
    save(&disk, dir, 1, SaveFormat::Binary).unwrap();
    for _ in 0..2 + rng.below(3) {
        if rng.below(2) == 0 {
            disk.halt_after(rng.below(90));
        }
        if rng.below(3) == 0 {
            let kinds = [Call::Write, Call::Sync, Call::Rename, Call::Remove, Call::SyncFolder];
            let call = kinds[rng.below(kinds.len() as u64) as usize];
            let count = if rng.below(2) == 0 { 1 } else { u64::MAX };
            disk.set_faults(Some(Fault { call, first: rng.below(30), count, errno: 28 }));
        }
        // One whose save failed may be whole; a later power cut may take it back.
        let first = found + 1;
        for steps in first..=first + rng.below(3) {
            match save(&disk, dir, steps, SaveFormat::Binary) {
                Ok(()) => newest = steps,
                Err(_) => unsaved += 1,
            }
        }
        disk.set_faults(None);
        if rng.below(2) == 0 {
            disk.power_cut()
        } else {
            disk.kill()
        };
        found = check_newest(&disk, dir, newest, known, &format!("seed {seed}"));
    }
    unsaved
}
