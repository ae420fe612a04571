//! Durable servers on a simulated disk: damage at every byte, faults at every call, and power cuts
//! under seeds.

mod places;

use super::accept::accept;
use super::inspect::look;
use super::*;
use crate::client::local::Local;
use crate::client::tests::{DENSE, SPARSE, job};
use crate::{Client, JobTables, LocalServers, PullMode, Push, RunControl, Step, TableAccess};
use fleet_base::disk::{Call, Fault, SimDisk};
use fleet_base::rng::Sequence;

/// How many seeds `power_cuts_lose_what_is_stated` runs (CI: the default).
const SEEDS: &str = "FLEET_DISK_SEEDS";
/// The one seed that it runs, to see a failure again.
const SEED: &str = "FLEET_DISK_SEED";
const SEEDS_DEFAULT: u64 = 200;

fn tables() -> JobTables {
    job(1, 2, false)
}

fn options(flush: Flush) -> Durability {
    // Snapshots are made by the tests alone.
    let snapshot_every = Duration::from_secs(100_000);
    Durability { flush, snapshot_every, ..Durability::in_folder("kept") }
}

fn open(disk: &SimDisk, flush: Flush) -> Result<Arc<ServerTables>> {
    ServerTables::durable_on(disk.handle(), &tables(), 0, options(flush))
}

fn worker(server: &Arc<ServerTables>, client: u64) -> LocalServers {
    let local = Local::new(std::slice::from_ref(server), Caller { worker: 0, client });
    Client::over(&tables(), 0, local).unwrap()
}

/// Step `id` trains row `id` and the dense table.
fn push(worker: &LocalServers, id: u64) -> Result<()> {
    worker.push_sparse(SPARSE, Step::new(id), Push::new(&[id], &[0.5; 2]))
}

/// How often each of these steps is in the tables.
fn pushed(server: &Arc<ServerTables>, ids: &[u64]) -> Vec<u64> {
    let mut rows = vec![0.0; ids.len() * 2];
    worker(server, 999).pull_sparse(SPARSE, ids.into(), &mut rows, PullMode::Infer).unwrap();
    let times = |row: &[f32]| if row[0] == 0.0 { 0 } else { ((1.0 - row[0]) * 4.0) as u64 };
    rows.chunks_exact(2).map(times).collect()
}

fn own(name: &str) -> PathBuf {
    Path::new("kept/server-000").join(name)
}

/// A folder with a file `job`, a snapshot of steps 1 to 4, a log of step 5 and one of steps 6 to 8.
fn kept() -> SimDisk {
    let disk = SimDisk::new(1);
    let steps = |server: &Arc<ServerTables>, client, ids: std::ops::RangeInclusive<u64>| {
        let worker = worker(server, client);
        ids.for_each(|id| push(&worker, id).unwrap());
    };
    let server = open(&disk, Flush::Kernel).unwrap();
    steps(&server, 1, 1..=4);
    worker(&server, 2).push_dense(DENSE, None, &[1.0; 5]).unwrap();
    server.snapshot_now().unwrap();
    steps(&server, 3, 5..=5);
    drop(server);
    disk.kill();
    let server = open(&disk, Flush::Kernel).unwrap();
    steps(&server, 4, 6..=8);
    drop(server);
    disk.kill();
    disk
}

const STEPS: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 8];

fn files(disk: &SimDisk) -> Vec<String> {
    let names = disk.list(Path::new("kept/server-000")).unwrap();
    names.into_iter().filter(|name| name != "lock").collect()
}

fn content(disk: &SimDisk, name: &str) -> Vec<u8> {
    fleet_base::disk::read_file(disk, &own(name), 1 << 30).unwrap().unwrap()
}

/// The acknowledgements that a worker has from the folder's last server: eight steps and a dense
/// push.
fn acknowledged(disk: &SimDisk) -> [u64; 3] {
    let copy = disk.copy(0);
    let server = open(&copy, Flush::Kernel).unwrap();
    let keeper = server.keeper.as_ref().unwrap();
    let before = keeper.epochs.list().iter().rev().nth(1).unwrap().id;
    [keeper.life, before, keeper.log.kept()]
}

/// Whatever one change to a folder does: the server starts with everything, or refuses with the
/// file and what to do, or starts without the last requests and refuses the worker that knows
/// better.
fn check_change(disk: &SimDisk, known: [u64; 3], what: &str, file: &str) -> &'static str {
    let report = look(&disk.handle(), &own("")).unwrap();
    let outcome = start_changed(disk, known, what, file);
    // The inspection sees the same.
    assert_eq!(report.damage.is_some(), outcome == "refused", "{what}: {report:?}");
    if outcome != "whole" {
        accept_change(disk, known, what);
    }
    outcome
}

/// An operator accepts the loss: the server starts with what is left, and the worker goes on with
/// it.
fn accept_change(disk: &SimDisk, known: [u64; 3], what: &str) {
    let before = files(disk);
    let loss = accept(&disk.handle(), &own("")).unwrap().expect("something is lost");
    let report = look(&disk.handle(), &own("")).unwrap();
    assert!(loss.is_everything || report.is_good() && report.accepts_loss, "{what}: {report:?}");
    let aside = disk.list(&own("aside")).unwrap_or_default();
    for name in before {
        let is_kept = files(disk).contains(&name) || aside.contains(&name);
        assert!(is_kept, "{what}: {name} was deleted");
    }
    for _ in 0..2 {
        let server = open(disk, Flush::Kernel).unwrap_or_else(|error| panic!("{what}: {error}"));
        let found = pushed(&server, &STEPS);
        let whole = found.iter().take_while(|times| **times == 1).count();
        assert!(found[whole..].iter().all(|times| *times == 0), "{what}: {found:?}");
        assert!(whole > 0 || loss.is_everything, "{what}: {found:?}");
        server.check_acknowledged(Caller { worker: 0, client: 4 }, known).unwrap();
        assert_eq!(server.life == known[0], !loss.is_everything, "{what}");
        push(&worker(&server, 77), 77).unwrap();
        drop(server);
        disk.kill();
    }
    assert!(accept(&disk.handle(), &own("")).unwrap().is_none(), "{what}: once");
}

fn start_changed(disk: &SimDisk, known: [u64; 3], what: &str, file: &str) -> &'static str {
    let server = match open(disk, Flush::Kernel) {
        Ok(server) => server,
        Err(error) => {
            let text = error.to_string();
            let tells = text.contains(" is damaged at byte ") && text.contains("--accept-loss");
            assert!(tells && text.contains("kept/server-000"), "{what}: {text}");
            assert!(text.contains(file), "{what}: {text}");
            return "refused";
        }
    };
    let found = pushed(&server, &STEPS);
    let whole = found.iter().take_while(|times| **times == 1).count();
    assert!(found[whole..].iter().all(|times| *times == 0), "{what}: {found:?}");
    assert!(whole >= 5, "{what}: only the last log may end early: {found:?}");
    let caller = Caller { worker: 0, client: 4 };
    let accepted = server.check_acknowledged(caller, known);
    if whole == STEPS.len() {
        accepted.unwrap();
        assert_eq!(server.recovered().and_then(|it| it.cut), None, "{what}");
        return "whole";
    }
    let error = accepted.unwrap_err().to_string();
    assert!(error.contains("has lost acknowledged pushes"), "{what}: {error}");
    assert!(push(&worker(&server, 5), 9).is_err(), "{what}: no push is taken any more");
    drop(server);
    disk.kill();
    let error = open(disk, Flush::Kernel).map(drop).unwrap_err().to_string();
    assert!(error.contains("has lost acknowledged pushes"), "{what}: {error}");
    "behind"
}

#[test]
fn every_flipped_byte_is_refused_or_repaired() {
    let disk = kept();
    let known = acknowledged(&disk);
    assert_eq!(files(&disk), ["job", "log-1", "log-2", "snapshot-1"]);
    assert_eq!(check_change(&disk.copy(0), known, "nothing", ""), "whole");
    for file in files(&disk) {
        let mut outcomes = std::collections::BTreeMap::new();
        let len = content(&disk, &file).len();
        for at in 0..len {
            let copy = disk.copy(at as u64);
            copy.edit(&own(&file), |bytes| bytes[at] ^= 1 << (at % 8)).unwrap();
            let what = format!("{file}, byte {at} of {len}");
            let outcome = check_change(&copy, known, &what, &file);
            *outcomes.entry(outcome).or_insert(0) += 1;
        }
        // The last request of the last log, and the end of a log that another one follows.
        let expected: &[&str] = match &file[..] {
            "log-1" => &["refused", "whole"],
            "log-2" => &["behind", "refused"],
            _ => &["refused"],
        };
        assert_eq!(outcomes.keys().copied().collect::<Vec<_>>(), expected, "{file}");
    }
}

#[test]
fn every_truncated_file_is_refused_or_repaired() {
    let disk = kept();
    let known = acknowledged(&disk);
    for file in files(&disk) {
        for len in 0..content(&disk, &file).len() {
            let copy = disk.copy(len as u64);
            copy.edit(&own(&file), |bytes| bytes.truncate(len)).unwrap();
            let outcome = check_change(&copy, known, &format!("{file} cut to {len}"), &file);
            let is_last = file == "log-2";
            assert!(outcome != "behind" || is_last, "{file} cut to {len}");
            assert!(outcome != "whole" || file == "log-1", "{file} cut to {len}");
        }
    }
}

#[test]
fn every_deleted_file_is_refused() {
    let disk = kept();
    let known = acknowledged(&disk);
    for file in files(&disk) {
        let copy = disk.copy(0);
        copy.remove(&own(&file)).unwrap();
        assert_eq!(check_change(&copy, known, &format!("{file} deleted"), &file), "refused");
    }
    // The file `job` alone.
    let copy = disk.copy(0);
    for file in ["log-1", "log-2", "snapshot-1"] {
        copy.remove(&own(file)).unwrap();
    }
    let error = open(&copy, Flush::Kernel).map(drop).unwrap_err().to_string();
    assert!(error.contains("the folder has neither snapshot nor log"), "{error}");
}

#[test]
fn an_older_copy_of_a_folder_is_refused_by_who_knows_more() {
    let disk = SimDisk::new(1);
    let server = open(&disk, Flush::Kernel).unwrap();
    push(&worker(&server, 1), 1).unwrap();
    let older = disk.copy(2);
    push(&worker(&server, 2), 2).unwrap();
    let [epoch, kept] = server.acknowledgement();
    let known = [server.life, epoch, kept];
    drop(server);
    let server = open(&older, Flush::Kernel).unwrap();
    // Others push meanwhile: the numbers are there again, but not what they stood for.
    (3..9).for_each(|id| push(&worker(&server, id), id).unwrap());
    let error = server.check_acknowledged(Caller { worker: 0, client: 2 }, known).unwrap_err();
    assert!(error.to_string().contains("1 of 2 acknowledged requests"), "{error}");
}

#[test]
fn a_folder_of_an_earlier_version_is_refused_with_what_to_do() {
    let disk = SimDisk::new(1);
    drop(open(&disk, Flush::Kernel).unwrap());
    disk.kill();
    let old = b"17\nmessages of version 5\nJobTables {\n}\n";
    disk.edit(&own("job"), |bytes| *bytes = old.to_vec()).unwrap();
    let error = open(&disk, Flush::Kernel).map(drop).unwrap_err().to_string();
    assert!(error.contains("expected version 7, got version 4"), "{error}");
    assert!(error.contains("kept/server-000/job") && error.contains("help: resume"), "{error}");
    // Anything else is no file of an earlier version.
    disk.edit(&own("job"), |bytes| bytes[0] = 0xFF).unwrap();
    let error = open(&disk, Flush::Kernel).map(drop).unwrap_err().to_string();
    assert!(error.contains("job is damaged at byte 0"), "{error}");
    assert_eq!(content(&disk, "job")[0], 0xFF, "it stays as it was");
}

/// The state that a worker keeps survives in the log, and in a snapshot.
#[test]
fn the_next_process_of_a_worker_finds_its_state() {
    let disk = SimDisk::new(1);
    let mut server = open(&disk, Flush::Kernel).unwrap();
    {
        let first = worker(&server, 1);
        first.keep(4, &[1]).unwrap();
        first.keep(5, &[7, 8, 9]).unwrap();
        let error = first.keep(6, &[0; 65]).unwrap_err().to_string();
        assert!(error.contains("expected at most 64 numbers, got 65"), "{error}");
    }
    for client in [2, 3] {
        drop(server);
        disk.kill();
        server = open(&disk, Flush::Kernel).unwrap();
        let progress = worker(&server, client).adopt().unwrap();
        assert_eq!((progress.kept_step, &progress.kept[..]), (5, &[7, 8, 9][..]));
        let error = worker(&server, client + 10).keep(6, &[0]).unwrap_err().to_string();
        assert!(error.contains("another process has replaced this worker"), "{error}");
        server.snapshot_now().unwrap();
    }
}

/// A request that panics is refused, now and when the log is replayed.
#[test]
fn a_request_that_panics_is_refused_and_replayed_once() {
    let error = crate::server::guarded(|| -> Result<()> { panic!("row {}", 7) }).unwrap_err();
    assert_eq!(error.kind(), fleet_base::ErrorKind::Internal);
    assert!(error.to_string().contains("a request panicked: got row 7"), "{error}");

    let disk = SimDisk::new(1);
    let server = open(&disk, Flush::Kernel).unwrap();
    let bad = worker(&server, 1).push_dense(DENSE, None, &[f32::NAN; 5]).unwrap_err();
    assert_eq!(bad.kind(), fleet_base::ErrorKind::Numeric, "{bad}");
    push(&worker(&server, 2), 1).unwrap();
    drop(server);
    disk.kill();
    let server = open(&disk, Flush::Kernel).unwrap();
    let found = server.recovered().unwrap();
    assert_eq!((found.request_count, found.refused_count), (2, 1));
    assert!(found.to_string().contains("(1 of them rejected, as they were originally)"));
    assert_eq!(pushed(&server, &[1]), [1]);
}

/// Fails the n-th call of every kind, for every n, once and for good; afterwards everything that
/// was acknowledged is there, and what was refused is not there twice.
#[test]
fn every_call_that_fails_loses_nothing() {
    let calls = [
        Call::Create,
        Call::Open,
        Call::Read,
        Call::Write,
        Call::SetLen,
        Call::Sync,
        Call::Rename,
        Call::Remove,
        Call::List,
        Call::SyncFolder,
        Call::Lock,
    ];
    for flush in [Flush::Kernel, Flush::Disk] {
        for call in calls {
            for first in 0.. {
                let mut met = 0;
                for (count, errno) in [(1, 5), (u64::MAX, 28)] {
                    met += fails_at(Fault { call, first, count, errno }, flush);
                }
                if met == 0 {
                    break;
                }
            }
        }
    }
}

/// Runs a small job with a fault; returns whether it was met.
fn fails_at(fault: Fault, flush: Flush) -> u64 {
    let disk = SimDisk::new(fault.first);
    let mut acknowledged = Vec::new();
    disk.set_faults(Some(fault));
    for start in 0..2 {
        // One that cannot start says why.
        let Ok(server) = open(&disk, flush) else { continue };
        for id in start * 10 + 1..=start * 10 + 6 {
            let done = push(&worker(&server, id), id);
            if done.is_ok() {
                acknowledged.push(id);
            } else if server.keeper.as_ref().unwrap().check().is_err() {
                assert!(push(&worker(&server, 100), 100).is_err(), "a poisoned log stays so");
                break;
            }
            if id % 10 == 3 {
                // One that fails leaves the snapshot before.
                let _ = server.snapshot_now();
            }
        }
        drop(server);
        disk.kill();
    }
    let met = u64::from(disk.calls(fault.call) > fault.first);
    disk.set_faults(None);
    let server = open(&disk, flush).unwrap_or_else(|error| panic!("{fault:?}: {error}"));
    let ids: Vec<u64> = (1..=20).collect();
    for (id, times) in ids.iter().zip(pushed(&server, &ids)) {
        assert!(times <= 1, "{fault:?}: step {id} came {times} times");
        assert!(times == 1 || !acknowledged.contains(id), "{fault:?}: step {id} is lost");
    }
    assert!(
        disk.list(Path::new("kept/server-000")).unwrap().iter().all(|it| !it.ends_with(".tmp"))
    );
    met
}

/// A failed sync poisons the log: it is not tried again, and the server ends with the reason.
#[test]
fn a_failed_sync_ends_the_server() {
    let disk = SimDisk::new(1);
    let server = open(&disk, Flush::Disk).unwrap();
    push(&worker(&server, 1), 1).unwrap();
    disk.set_faults(Some(Fault { call: Call::Sync, first: 0, count: 1, errno: 5 }));
    let error = push(&worker(&server, 2), 2).unwrap_err().to_string();
    assert!(error.contains("cannot flush the log") && error.contains("log-0"), "{error}");
    assert!(push(&worker(&server, 3), 3).is_err() && server.snapshot_now().is_err());
    assert_eq!(disk.calls(Call::Sync), 1, "never again");
    let error = server.serve().unwrap_err().to_string();
    assert!(error.contains("check the disk"), "{error}");
    drop(server);
    disk.power_cut();
    assert_eq!(pushed(&open(&disk, Flush::Disk).unwrap(), &[1]), [1]);
}

/// Half a record that cannot be cut off poisons the log too.
#[test]
fn a_failed_truncation_ends_the_server() {
    let disk = SimDisk::new(3);
    let server = open(&disk, Flush::Kernel).unwrap();
    push(&worker(&server, 1), 1).unwrap();
    disk.set_faults(Some(Fault { call: Call::Write, first: 0, count: 1, errno: 28 }));
    let error = push(&worker(&server, 2), 2).unwrap_err().to_string();
    assert!(error.contains("free disk space and try again; nothing was changed"), "{error}");
    push(&worker(&server, 3), 3).unwrap();

    let faults = [Call::Write, Call::SetLen];
    disk.set_faults(faults.map(|call| Fault { call, first: 0, count: 1, errno: 28 }));
    let error = push(&worker(&server, 4), 4).unwrap_err().to_string();
    assert!(error.contains("an incomplete record that cannot be truncated"), "{error}");
    // The disk is well again, the log is not: what came behind the half would be lost.
    assert!(push(&worker(&server, 5), 5).unwrap_err().to_string().contains("an incomplete record"));
    assert!(server.serve().unwrap_err().to_string().contains("an incomplete record"));
    drop(server);
    disk.kill();
    assert_eq!(pushed(&open(&disk, Flush::Kernel).unwrap(), &[1, 2, 3, 4, 5]), [1, 0, 1, 0, 0]);
}

/// Logs that no snapshot has replaced count together, whatever was tried meanwhile.
#[test]
fn failed_snapshots_do_not_hide_how_long_logs_are() {
    let disk = SimDisk::new(1);
    let server = open(&disk, Flush::Kernel).unwrap();
    let log = &server.keeper.as_ref().unwrap().log;
    for id in 1..10 {
        push(&worker(&server, id), id).unwrap();
        // Do as a snapshot does that cannot be written.
        log.rotate().unwrap();
        let logs = files(&disk).into_iter().filter(|name| name.starts_with("log-"));
        let bytes: usize = logs.map(|name| content(&disk, &name).len()).sum();
        assert_eq!(log.len(), bytes as u64, "{id} rotations");
    }
    server.snapshot_now().unwrap();
    assert!(log.is_empty());
    assert_eq!(files(&disk).len(), 3, "job, a snapshot, its log");
}

/// Pushes are refused at twice the limit of logs while no snapshot can be written.
#[test]
fn pushes_are_refused_when_logs_are_full() {
    const BYTES_MAX: u64 = 4000;
    let disk = SimDisk::new(1);
    let durability = Durability { log_bytes_max: BYTES_MAX, ..options(Flush::Kernel) };
    let server = ServerTables::durable_on(disk.handle(), &tables(), 0, durability).unwrap();
    disk.set_faults(Some(Fault { call: Call::Create, first: 0, count: u64::MAX, errno: 28 }));
    let mut refused = None;
    for id in 1..200 {
        if let Err(error) = push(&worker(&server, id), id) {
            refused = Some(error.to_string());
            break;
        }
        assert!(server.snapshot_now().is_err());
    }
    let refused = refused.expect("pushes are refused");
    let words = "the log is full and no snapshot can be written";
    assert!(refused.contains(words) && refused.contains("os error 28"), "{refused}");
    let bytes = server.keeper.as_ref().unwrap().log.len();
    assert!((BYTES_MAX..BYTES_MAX * 2 + 1000).contains(&bytes), "{bytes} bytes");
    disk.set_faults(None);
    server.snapshot_now().unwrap();
    push(&worker(&server, 301), 301).unwrap();
}

/// The result of the steps of one seed.
struct Run {
    seed: u64,
    disk: SimDisk,
    flush: Flush,
    rng: Sequence,
    /// Acknowledged steps, with their sequence numbers, in order.
    kept: Vec<(u64, u64)>,
    next_id: u64,
    /// The last answer to the worker.
    told: [u64; 3],
}

/// Says how to see a failure again.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "seed {0} failed: {SEED}={0} cargo test -p fleet-ps --lib power_cuts_lose",
                self.0
            );
        }
    }
}

#[test]
fn power_cuts_lose_what_is_stated() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number(SEED) {
        Some(seed) => seed..seed + 1,
        None => 0..number(SEEDS).unwrap_or(SEEDS_DEFAULT),
    };
    let mut lost = 0;
    for seed in seeds {
        let _replay = Replay(seed);
        lost += Run::of(seed).go();
    }
    // Power cuts do lose what only the kernel had: else nothing was tested.
    assert!(lost > 0 || number(SEED).is_some());
}

impl Run {
    fn of(seed: u64) -> Run {
        Run {
            seed,
            disk: SimDisk::new(seed),
            flush: if seed.is_multiple_of(2) { Flush::Kernel } else { Flush::Disk },
            rng: Sequence::new(seed, 7),
            kept: Vec::new(),
            next_id: 1,
            told: [0; 3],
        }
    }

    /// Returns how many acknowledged steps power cuts have lost.
    fn go(&mut self) -> usize {
        let mut lost = 0;
        for _ in 0..2 + self.rng.below(4) {
            let synced = self.start();
            let is_cut = self.rng.below(2) == 0;
            match is_cut {
                true => self.disk.power_cut(),
                false => self.disk.kill(),
            }
            lost +=
                self.check(if is_cut && self.flush == Flush::Kernel { synced } else { u64::MAX });
        }
        lost
    }

    /// Starts a server, lets it work until something ends it; returns below which number all was
    /// synced.
    fn start(&mut self) -> u64 {
        if self.rng.below(3) == 0 {
            let first = self.rng.below(120);
            self.disk.halt_after(first);
        }
        if self.rng.below(4) == 0 {
            let kinds = [Call::Write, Call::Sync, Call::Rename, Call::SetLen, Call::SyncFolder];
            let call = kinds[self.rng.below(kinds.len() as u64) as usize];
            let count = if self.rng.below(2) == 0 { 1 } else { u64::MAX };
            let fault = Fault { call, first: self.rng.below(20), count, errno: 28 };
            self.disk.set_faults(Some(fault));
        }
        // The start before this one has synced what it found.
        let found = self.kept.last().map_or(0, |(_, sequence)| sequence + 1);
        let Ok(server) = open(&self.disk, self.flush) else {
            self.disk.set_faults(None);
            return found;
        };
        let keeper = server.keeper.clone().unwrap();
        for _ in 0..self.rng.below(40) {
            match self.rng.below(12) {
                0 => _ = server.snapshot_now(),
                1 => _ = keeper.log.sync(),
                // As a snapshot that cannot be written leaves it.
                2 => _ = keeper.log.rotate(),
                _ => self.step(&server),
            }
            if self.disk.is_halted() || keeper.check().is_err() {
                break;
            }
        }
        self.disk.set_faults(None);
        keeper.log.state().synced()
    }

    fn step(&mut self, server: &Arc<ServerTables>) {
        let id = self.next_id;
        self.next_id += 1;
        let keeper = server.keeper.as_ref().unwrap();
        let sequence = keeper.log.state().written();
        if push(&worker(server, id), id).is_ok() {
            self.kept.push((id, sequence));
            let [epoch, kept] = server.acknowledgement();
            self.told = [keeper.life, epoch, kept];
        }
    }

    /// Everything below `synced` is there, once, and what is missing is a suffix; returns its
    /// length.
    fn check(&mut self, synced: u64) -> usize {
        let seed = self.seed;
        let server = open(&self.disk, self.flush).unwrap_or_else(|error| panic!("{seed}: {error}"));
        assert!(files(&self.disk).iter().all(|name| !name.ends_with(".tmp")), "seed {seed}");
        let ids: Vec<u64> = (1..self.next_id).collect();
        let times = pushed(&server, &ids);
        assert!(times.iter().all(|times| *times <= 1), "seed {seed}: {times:?}");
        let is_there = |(id, _): &(u64, u64)| times[*id as usize - 1] == 1;
        let whole = self.kept.iter().take_while(|step| is_there(step)).count();
        let (left, lost) = self.kept.split_at(whole);
        assert!(lost.iter().all(|step| !is_there(step)), "seed {seed}: not a suffix");
        assert!(lost.iter().all(|(_, at)| *at >= synced), "seed {seed}: synced steps are lost");
        // The worker finds out, if and only if it was told more than there is.
        let keeper = server.keeper.as_ref().unwrap();
        let [life, epoch, kept] = self.told;
        let missed = keeper.epochs.lost(epoch, kept, keeper.log.state().written());
        if epoch > 0 {
            assert_eq!(life, keeper.life, "seed {seed}");
            assert_eq!(missed > 0, !lost.is_empty(), "seed {seed}: {missed} {lost:?}");
        }
        let count = lost.len();
        self.kept = left.to_vec();
        if count > 0 {
            self.told = [0; 3];
        }
        drop(server);
        self.disk.kill();
        count
    }
}

/// `--accept-loss` names the loss that it accepts.
#[test]
fn accepted_losses_are_counted() {
    let disk = kept();
    let offset = content(&disk, "log-2").len() / 2;
    disk.edit(&own("log-2"), |bytes| bytes[offset] ^= 1).unwrap();
    let report = look(&disk.handle(), &own("")).unwrap();
    assert_eq!(report.snapshot.unwrap().request_count, 5);
    assert_eq!(report.workers[&0].step, 6, "{report:?}");
    let damage = report.damage.unwrap();
    assert!(damage.what.contains("1 complete ones follow"), "{damage}");
    let loss = accept(&disk.handle(), &own("")).unwrap().unwrap();
    let (had, left) = loss.workers[&0];
    assert_eq!((had.step, left.step), (8, 6));
    assert_eq!((loss.request_count, &loss.moved[..]), (1, &["log-2".to_string()][..]));
    assert_eq!(loss.damages, [damage]);
}

const MODES: [Flush; 2] = [Flush::Kernel, Flush::Disk];

/// Every file that a start needs is missed within one look, in every flush mode.
#[test]
fn every_file_that_vanishes_ends_the_server() {
    let names = ["job", "log-1", "log-2", "log-3", "snapshot-1"];
    for (flush, file) in MODES.iter().flat_map(|flush| names.map(|file| (*flush, file))) {
        let disk = kept();
        let server = open(&disk, flush).unwrap();
        push(&worker(&server, 50), 50).unwrap();
        let keeper = server.keeper.as_ref().unwrap();
        keeper.check_files().unwrap();
        disk.remove(&own(file)).unwrap();
        let error = keeper.check_files().unwrap_err().to_string();
        let since = if file == "snapshot-1" { "the start of the job" } else { "snapshot 1" };
        let told = format!("acknowledged updates since {since} are not on disk");
        assert!(error.contains(&told) && error.contains("got no such file"), "{file}: {error}");
        assert!(error.contains(&format!("kept/server-000/{file}")), "{error}");
        assert!(push(&worker(&server, 51), 51).is_err() && server.snapshot_now().is_err());
        assert_eq!(server.serve().unwrap_err().to_string(), error);
    }
    // The log that is written, removed, and replaced by another one.
    for flush in MODES {
        let disk = kept();
        let server = open(&disk, flush).unwrap();
        disk.rename(&own("log-2"), &own("log-3")).unwrap();
        // The job ends before the next look.
        server.stop();
        let error = server.serve().unwrap_err().to_string();
        assert!(error.contains("log-3, got another file with this name"), "{error}");
    }
}

/// A server that removes what its snapshots have replaced raises no alarm.
#[test]
fn replaced_files_are_not_missed() {
    for flush in MODES {
        let disk = SimDisk::new(1);
        let server = open(&disk, flush).unwrap();
        let keeper = server.keeper.as_ref().unwrap();
        let is_done = AtomicBool::new(false);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                while !is_done.load(Relaxed) {
                    keeper.check_files().unwrap();
                }
            });
            for id in 1..200 {
                push(&worker(&server, id), id).unwrap();
                server.snapshot_now().unwrap();
            }
            is_done.store(true, Relaxed);
        });
    }
}

/// On the system's disk, by the thread that looks.
#[test]
fn a_removed_or_moved_folder_ends_the_server() {
    let changes: [fn(&Path, &Path); 3] = [
        |own, _| std::fs::remove_dir_all(own).unwrap(),
        |own, away| std::fs::rename(own, away).unwrap(),
        |own, _| std::fs::remove_file(own.join("log-0")).unwrap(),
    ];
    std::thread::scope(|threads| {
        for (at, (change, flush)) in
            changes.iter().flat_map(|change| MODES.map(|flush| (change, flush))).enumerate()
        {
            threads.spawn(move || {
                let name = format!("fleet-ps-vanish-{at}-{}", std::process::id());
                let folder = std::env::temp_dir().join(name);
                let durability = Durability { flush, ..Durability::in_folder(&folder) };
                let server = ServerTables::durable(&tables(), 0, durability).unwrap();
                push(&worker(&server, 1), 1).unwrap();
                change(&folder.join("server-000"), &folder.join("away"));
                // Returns because the server is stopped; a worker may still be acknowledged an
                // update before that.
                let error = server.serve().unwrap_err().to_string();
                assert!(error.contains("log-0, got no such file"), "{error}");
                let since = "updates since the start of the job are not on disk";
                assert!(error.contains(since), "{error}");
                assert!(error.contains(&folder.display().to_string()), "{error}");
                assert!(push(&worker(&server, 2), 2).is_err());
                drop(server);
                std::fs::remove_dir_all(&folder).unwrap();
            });
        }
    });
}

/// Set in a process of its own, whose files may be no longer than 64 KiB.
const LIMITED: &str = "FLEET_TEST_LIMITED";

/// A log that reaches the limit of a file's size is an error of the push, and the server lives.
#[cfg(unix)]
#[test]
fn a_log_at_the_limit_of_a_file_refuses_pushes() {
    if let Some(folder) = std::env::var_os(LIMITED) {
        let server =
            ServerTables::durable(&tables(), 0, Durability::in_folder(PathBuf::from(folder)));
        let server = server.unwrap();
        let worker = worker(&server, 1);
        let error = (1..2000).find_map(|id| push(&worker, id).err()).unwrap().to_string();
        assert!(error.contains("log-0: File too large") && error.contains("ulimit -f"), "{error}");
        assert!(error.contains("nothing was changed"), "{error}");
        println!("refused as it should be");
        return;
    }
    let folder = std::env::temp_dir().join(format!("fleet-ps-limit-{}", std::process::id()));
    let name = "server::durable::tests::a_log_at_the_limit_of_a_file_refuses_pushes";
    let child = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 64; exec \"$0\" \"$@\""])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture"])
        .env(LIMITED, &folder)
        .output()
        .unwrap();
    let (out, err) =
        (String::from_utf8_lossy(&child.stdout), String::from_utf8_lossy(&child.stderr));
    assert!(child.status.success(), "{}: {out} {err}", child.status);
    assert!(out.contains("refused as it should be"), "{out} {err}");
    std::fs::remove_dir_all(&folder).unwrap();
}
