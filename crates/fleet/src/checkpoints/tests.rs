//! Checkpoints on a simulated disk: damage at every byte, faults at every call, and power cuts
//! under seeds. A load returns the bits of one save and reports the newer ones that it passed over,
//! or fails.

use super::*;
use fleet_base::disk::{Call, Fault, SimDisk};
use fleet_base::rng::Sequence;
use fleet_ops::Registry;
use fleet_strategy::Spread;

/// Number of seeds that `power_cuts_keep_what_was_saved` runs (CI: the default).
const SEEDS: &str = "FLEET_DISK_SEEDS";
/// The single seed to run, to reproduce a failure.
const SEED: &str = "FLEET_DISK_SEED";
const SEEDS_DEFAULT: u64 = 200;
const FOLDER: &str = "kept";

/// A job of some ranks that share one disk.
struct Job {
    disk: SimDisk,
    ranks: usize,
    keep_last: usize,
    /// Number of the job's start: two starts save different values at the same step.
    run: u64,
    program: Program,
}

/// The state from which a job resumes.
#[derive(Debug, PartialEq)]
struct Found {
    step: u64,
    run: u64,
    skipped: Vec<String>,
}

impl Job {
    fn new(disk: SimDisk, ranks: usize, keep_last: usize) -> Job {
        let text = "fleet program 1\nblock0 {\n  %common: f32[3] persistable\n  \
                    %own: i64[2] persistable\n}";
        let program = Program::parse(text, Registry::standard()).unwrap();
        Job { disk, ranks, keep_last, run: 1, program }
    }

    fn open(&self, rank: usize) -> Result<Checkpoints> {
        let policy = CheckpointPolicy { keep_last: self.keep_last, ..Default::default() };
        let member = Member { rank, ranks: self.ranks, group: None, run: self.run.to_string() };
        let opened = Checkpoints::open_at(self.disk.handle(), Path::new(FOLDER), policy, member);
        let mut checkpoints = opened?;
        let own = LocalVar { name: "own".into(), spread: Spread::First };
        let local = if self.ranks > 1 { vec![own] } else { Vec::new() };
        checkpoints.local = Some((self.program.fingerprint(), local));
        Ok(checkpoints)
    }

    /// Saves a step on all ranks, in alternating order.
    fn save(&self, step: u64) -> Result<()> {
        let mut outcome = Ok(());
        for at in 0..self.ranks {
            let rank = if step.is_multiple_of(2) { at } else { self.ranks - 1 - at };
            // A rank does not learn of another one's failure.
            outcome = outcome.and(self.save_on(rank, step));
        }
        outcome
    }

    fn save_on(&self, rank: usize, step: u64) -> Result<()> {
        let mut checkpoints = self.open(rank)?;
        let entries = [("run".to_string(), self.run.to_string())].into();
        let scope = scope(step, self.run, rank);
        checkpoints.save(step, &self.program, &scope, entries)?;
        checkpoints.finish()
    }

    /// Returns the state from which this rank alone would resume; checks every bit.
    fn resume_on(&self, rank: usize) -> Result<Option<Found>> {
        let mut loaded = Scope::new();
        let resumed = match self.open(rank)?.load_newest(&self.program, &mut loaded)? {
            Newest::Loaded(resumed) => resumed,
            Newest::Unfinished(_) => return Ok(None),
        };
        let run = resumed.entries["run"].parse().unwrap();
        let saved = scope(resumed.step, run, rank);
        for name in ["common", "own"] {
            let (saved, loaded) = (saved.tensor(name).unwrap(), loaded.tensor(name).unwrap());
            assert_eq!(saved.as_bytes(), loaded.as_bytes(), "{name} of step {}", resumed.step);
        }
        assert_eq!(loaded.step(), resumed.step * 3);
        let of_all = &resumed.entries_of_ranks;
        assert!(of_all.len() == self.ranks && of_all.iter().all(|it| *it == resumed.entries));
        Ok(Some(Found { step: resumed.step, run, skipped: resumed.skipped }))
    }

    /// Returns the state from which all ranks can resume: the oldest, if they differ.
    fn resume(&self) -> Result<Option<Found>> {
        let mut oldest: Option<Found> = None;
        for rank in 0..self.ranks {
            let Some(found) = self.resume_on(rank)? else { return Ok(None) };
            if oldest.as_ref().is_none_or(|oldest| found.step < oldest.step) {
                oldest = Some(found);
            }
        }
        Ok(oldest)
    }

    fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        let mut folders = vec![PathBuf::from(FOLDER)];
        while let Some(folder) = folders.pop() {
            let names = self.disk.list(&folder).unwrap();
            for name in names.into_iter().filter(|name| name != "lock") {
                let path = folder.join(name);
                match self.disk.list(&path) {
                    Ok(_) => folders.push(path),
                    Err(_) => files.push(path),
                }
            }
        }
        files.sort();
        files
    }
}

fn scope(step: u64, run: u64, rank: usize) -> Scope {
    let mut scope = Scope::new();
    let common = [step as f32, run as f32, (step as f32).sqrt()];
    let own = [(step << 20 | run) as i64, rank as i64];
    // A job of one rank saves all variables as common ones.
    scope.set("common", Tensor::from_slice(&common, [3]).unwrap());
    scope.set("own", Tensor::from_slice(&own, [2]).unwrap());
    scope.set_step(step * 3);
    scope
}

/// Returns a job that has saved these steps, with all data on disk.
fn saved(ranks: usize, steps: std::ops::RangeInclusive<u64>) -> Job {
    let job = Job::new(SimDisk::new(1), ranks, 2);
    steps.for_each(|step| job.save(step).unwrap());
    job.disk.kill();
    job
}

/// Checks that damage to a file of the newest checkpoint, step 2, is found. The ranks resume from
/// the one before and report the damage, or fail.
fn check_damage(job: &Job, file: &Path, has_older: bool, what: &str) {
    let name = file.file_name().unwrap().to_str().unwrap();
    let what = format!("{what} of {}", file.display());
    let tells = |text: &str| {
        assert!(text.contains("step-000000000002"), "{what}: {text}");
        assert!(text.contains(name) && text.contains("help: "), "{what}: {text}");
    };
    match job.resume() {
        Ok(Some(found)) => {
            assert!(has_older && found.step == 1, "{what}: {found:?}");
            assert_eq!(found.skipped.len(), 1, "{what}: {found:?}");
            tells(&found.skipped[0]);
        }
        Ok(None) => panic!("{what}: the job starts from the beginning"),
        Err(error) => {
            assert!(!has_older, "{what}: {error}");
            tells(&error.to_string());
        }
    }
}

#[test]
fn every_damaged_file_is_found() {
    for (ranks, first) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
        let job = saved(ranks, first..=2);
        assert_eq!(job.resume().unwrap().unwrap().step, 2);
        let files = job.files();
        let newest = files.iter().filter(|path| path.starts_with("kept/step-000000000002"));
        let newest: Vec<&PathBuf> = newest.collect();
        assert_eq!(newest.len(), if ranks == 1 { 2 } else { 6 }, "{newest:?}");
        let mut disk = 0;
        for file in newest {
            let mut changed = |what: &str, change: &dyn Fn(&SimDisk)| {
                disk += 1;
                let job = Job::new(job.disk.copy(disk), ranks, 2);
                change(&job.disk);
                check_damage(&job, file, first == 1, what);
            };
            let len = fleet_base::disk::read_file(&job.disk, file, 1 << 20).unwrap().unwrap().len();
            for at in 0..len {
                changed(&format!("bit {} of byte {at}", at % 8), &|disk| {
                    disk.edit(file, |bytes| bytes[at] ^= 1 << (at % 8)).unwrap();
                });
                changed(&format!("a cut at byte {at}"), &|disk| {
                    disk.edit(file, |bytes| bytes.truncate(at)).unwrap();
                });
            }
            changed("a deletion", &|disk| disk.remove(file).unwrap());
        }
    }
}

fn denied(call: Call, first: u64) -> [Fault; 1] {
    [Fault { call, first, count: 1, errno: libc::EACCES }]
}

#[test]
fn a_checkpoint_without_permission_is_not_skipped() {
    for (call, first) in [(Call::List, 1), (Call::Open, 0)] {
        let job = saved(1, 1..=2);
        job.disk.set_faults(denied(call, first));
        let error = job.resume().unwrap_err().to_string();
        assert!(error.contains("step-000000000002"), "{error}");
        assert!(error.contains("Permission denied"), "{error}");
        assert!(error.contains("help: give the user of the job permission to read it"), "{error}");
        assert_eq!(job.resume().unwrap().unwrap().step, 2);
    }
}

#[test]
fn a_folder_without_permission_is_refused_at_the_first_step() {
    let job = Job::new(SimDisk::new(1), 1, 2);
    // An evaluation may read a folder in which it cannot write.
    let mut checkpoints = job.open(0).unwrap();
    job.disk.set_faults(denied(Call::Create, 0));
    let scope = scope(1, 1, 0);
    let error = checkpoints.after_step(1, &job.program, &scope, BTreeMap::new).unwrap_err();
    let error = error.to_string();
    assert!(error.contains("cannot write in the checkpoint folder kept"), "{error}");
    assert!(error.contains("help: give the user of the job permission to create"), "{error}");
}

#[test]
fn two_jobs_do_not_share_a_folder() {
    let job = Job::new(SimDisk::new(1), 1, 2);
    let save = |checkpoints: &mut Checkpoints| {
        checkpoints.save(1, &job.program, &scope(1, 1, 0), BTreeMap::new())?;
        checkpoints.finish()
    };
    let mut first = job.open(0).unwrap();
    save(&mut first).unwrap();
    // Another process may read meanwhile, as an evaluation does.
    let mut second = job.open(0).unwrap();
    assert_eq!(second.list().unwrap().len(), 1);
    let error = save(&mut second).unwrap_err().to_string();
    assert!(error.contains("another job is saving checkpoints to this folder"), "{error}");
    assert!(error.contains(FOLDER), "{error}");
    drop(first);
    save(&mut second).unwrap();
}

#[test]
fn a_checkpoint_under_the_name_of_another_step_is_passed_over() {
    for ranks in [1, 2] {
        let job = saved(ranks, 1..=2);
        let folder = Path::new(FOLDER);
        let (old, new) = (folder.join("step-000000000002"), folder.join("step-000000000030"));
        for file in job.files().iter().filter(|file| file.starts_with(&old)) {
            let moved = new.join(file.strip_prefix(&old).unwrap());
            job.disk.create_folder(moved.parent().unwrap()).unwrap();
            job.disk.rename(file, &moved).unwrap();
        }
        let found = job.resume().unwrap().unwrap();
        assert_eq!(found.step, 1);
        let why = found.skipped.join("\n");
        assert!(why.contains("does not match its folder's name"), "{why}");
        assert!(why.contains("expected step 30, got step 2"), "{why}");
    }
}

/// A damaged checkpoint that was passed over must not count towards `keep_last`.
#[test]
fn a_damaged_checkpoint_of_a_later_step_replaces_no_good_one() {
    for ranks in [1, 2] {
        let disk = saved(ranks, 7..=8).disk;
        let mut job = Job { run: 2, ..Job::new(disk, ranks, 1) };
        let data = job.files().into_iter().rfind(|path| {
            path.starts_with("kept/step-000000000008") && path.extension() != Some("json".as_ref())
        });
        // The header is intact, but one number is wrong.
        job.disk.edit(&data.unwrap(), |bytes| *bytes.last_mut().unwrap() ^= 1).unwrap();
        assert_eq!(job.resume().unwrap().unwrap().step, 7);
        // The job now saves twice as often as before.
        for step in [7, 8] {
            job.run += 1;
            job.save(step).unwrap();
            let found = job.resume().unwrap().unwrap();
            assert_eq!((found.step, found.run), (step, job.run));
        }
    }
}

/// Fails the n-th call of every kind, for every n, once and permanently. Afterwards the newest
/// saved checkpoint must load.
#[test]
fn every_call_that_fails_loses_no_checkpoint() {
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
    ];
    let mut met_count = 0;
    for (ranks, call) in [1, 2].iter().flat_map(|ranks| calls.map(|call| (*ranks, call))) {
        for first in 0.. {
            let mut met = 0;
            for (count, errno) in [(1, 5), (u64::MAX, 28)] {
                for cut in [false, true] {
                    met += fails_at(Fault { call, first, count, errno }, ranks, cut);
                }
            }
            if met == 0 {
                break;
            }
            met_count += met;
        }
    }
    assert!(met_count > 1000, "{met_count}");
}

/// Runs a small job with a fault; returns 1 if the fault occurred, else 0.
fn fails_at(fault: Fault, ranks: usize, cut: bool) -> u64 {
    let what = format!("{fault:?} with {ranks} ranks");
    let mut job = Job::new(SimDisk::new(fault.first), ranks, 1);
    let mut newest = None;
    job.disk.set_faults(Some(fault));
    for start in 0..2 {
        // A checkpoint that cannot be read now may be readable later.
        let _ = job.resume();
        for step in start * 3 + 1..=start * 3 + 3 {
            if job.save(step).is_ok() {
                newest = Some(step);
            }
        }
        if cut {
            job.disk.power_cut()
        } else {
            job.disk.kill()
        };
        job.run += 1;
    }
    let met = u64::from(job.disk.calls(fault.call) > fault.first);
    job.disk.set_faults(None);
    check_newest(&job, newest, &what);
    // The next save removes the leftovers of failed saves.
    job.save(9).unwrap();
    let left = job.files();
    assert!(left.iter().all(|path| path.starts_with("kept/step-000000000009")), "{what}: {left:?}");
    assert_eq!(left.len(), if ranks == 1 { 2 } else { 6 }, "{what}: {left:?}");
    met
}

/// Checks that the loaded checkpoint is the newest saved one, or a later one whose save failed.
fn check_newest(job: &Job, newest: Option<u64>, what: &str) -> Option<Found> {
    let found = job.resume().unwrap_or_else(|error| panic!("{what}: {error}"));
    let step = found.as_ref().map(|found| found.step);
    assert!(step >= newest, "{what}: step {newest:?} is lost, and {step:?} is left");
    found
}

/// Prints how to reproduce a failure.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "seed {0} failed: {SEED}={0} cargo test -p fleet --lib power_cuts_keep",
                self.0
            );
        }
    }
}

#[test]
fn power_cuts_keep_what_was_saved() {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let seeds = match number(SEED) {
        Some(seed) => seed..seed + 1,
        None => 0..number(SEEDS).unwrap_or(SEEDS_DEFAULT),
    };
    let mut unsaved = 0;
    for seed in seeds {
        let _replay = Replay(seed);
        unsaved += run(seed);
    }
    // Some saves must have been cut off, or else nothing was tested.
    assert!(unsaved > 0 || number(SEED).is_some());
}

/// Returns how many saves were cut off or failed.
fn run(seed: u64) -> u64 {
    let mut rng = Sequence::new(seed, 9);
    let (ranks, keep_last) = (1 + rng.below(2) as usize, 1 + rng.below(2) as usize);
    let mut job = Job::new(SimDisk::new(seed), ranks, keep_last);
    let (mut newest, mut unsaved) = (None, 0);
    for _ in 0..2 + rng.below(4) {
        let found = check_newest(&job, newest, &format!("seed {seed}"));
        if rng.below(2) == 0 {
            job.disk.halt_after(rng.below(80));
        }
        if rng.below(3) == 0 {
            let kinds = [Call::Write, Call::Sync, Call::Rename, Call::Remove, Call::SyncFolder];
            let call = kinds[rng.below(kinds.len() as u64) as usize];
            let count = if rng.below(2) == 0 { 1 } else { u64::MAX };
            job.disk.set_faults(Some(Fault { call, first: rng.below(20), count, errno: 28 }));
        }
        // A checkpoint whose save failed may be whole; a later power cut may remove it again.
        let first = found.map_or(0, |found| found.step) + 1;
        for step in first..first + rng.below(4) {
            match job.save(step) {
                Ok(()) => newest = Some(step),
                Err(_) => unsaved += 1,
            }
        }
        job.disk.set_faults(None);
        if rng.below(2) == 0 {
            job.disk.power_cut()
        } else {
            job.disk.kill()
        };
        job.run += 1;
    }
    check_newest(&job, newest, &format!("seed {seed}"));
    unsaved
}
