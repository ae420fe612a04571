//! Groups over NCCL, in real processes. By default they run on a double of NCCL and the CUDA driver
//! (`fleet_testhost::nccl_double`). If FLEET_NCCL_GPUS gives a number of ranks, they also run on
//! GPUs; FLEET_NCCL_LIBRARY may then name the library.

use crate::processes::{Job, RankContext, WAIT_MAX, run_as_rank, usage, usage_returns_to};
use crate::reference;
use fleet_base::{Error, Result};
use fleet_comm::{Fused, Group, GroupOptions, InPlace, NcclOptions, ReduceOp, Rings, World};
use fleet_net::{Limits, Membership, Vigilance, host};
use fleet_tensor::{bf16, f16};
use fleet_testhost::{nccl_double, process};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Set in ranks that run on the double: its folder.
const DOUBLE: &str = "FLEET_NCCL_DOUBLE";
const FOLDER: &str = "FLEET_NCCL_DOUBLE_FOLDER";
const FAULT: &str = "FLEET_NCCL_DOUBLE_FAULT";
/// Heartbeats of the tests detect a stopped process sooner than the defaults.
const VIGILANCE: Vigilance = Vigilance {
    beat: Duration::from_millis(200),
    silence: Duration::from_secs(2),
    grace: Duration::from_millis(500),
};
/// Time limit for a failure to become an error on all ranks, even on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// The test whose processes are the ranks of all jobs.
const RANKS: &str = "nccl::everything_on_one_to_four_ranks";

fn double() -> &'static Path {
    nccl_double::double(env!("CARGO_TARGET_TMPDIR"))
}

fn work(place: RankContext) -> Result<()> {
    let limits = Limits::within(WAIT_MAX);
    let (rank, size) = (place.world.rank(), place.world.size());
    let abort = place.world.abort().clone();
    let (address, token) = &place.store;
    let own = host::own_member(rank);
    let membership = Membership::join(*address, token, "job", own, &limits, move |notice| {
        abort.fire(notice.error());
    })?;
    let double = std::env::var_os(DOUBLE).map(PathBuf::from);
    let what = place.what.as_str();
    let library = double.clone().or_else(|| std::env::var_os("FLEET_NCCL_LIBRARY").map(Into::into));
    let device = (what == "one-gpu").then_some(rank / 2);
    let options = NcclOptions { library, driver: double.clone(), device };
    let world = place.world.with_nccl(&options).inspect_err(|error| {
        membership.report_end(&host::own_member(rank), error.message());
    })?;
    let all: Vec<usize> = (0..size).collect();
    let options = GroupOptions { timeout: Duration::from_secs(60), ..Default::default() };
    match what {
        "all" => {
            everything(&world, &all, &options)?;
            if let Some(double) = &double {
                assert_eq!(live(double), 0, "leaked device objects");
            }
            // Everything that persists exists by now, so a further group must leave nothing behind.
            let before = usage();
            let group = world.group("again", &all, &options)?;
            group.all_reduce("x", &mut [1.0f32; 3], ReduceOp::Sum)?;
            drop(group);
            world.group("end", &all, &host_only(&options))?.barrier("end")?;
            if double.is_some() {
                assert!(usage_returns_to(before), "{:?}, before: {before:?}", usage());
            }
        }
        "one-gpu" | "open" => drop(world.group("world", &all, &options)?),
        "differ" => {
            let group = world.group("world", &all, &options)?;
            let label = if rank == 1 { "other" } else { "same" };
            return group.all_reduce(label, &mut [0.0f32; 5], ReduceOp::Sum);
        }
        "wrong" => {
            let group = world.group("world", &all, &options)?;
            let mut output = vec![0.0f32; if rank == 1 { 5 } else { 2 * size }];
            return group.all_gather("x", &[0.0; 2], &mut output);
        }
        "leave" => {
            let group = world.group("world", &all, &options)?;
            group.all_reduce("x", &mut [0.0f32; 5], ReduceOp::Sum)?;
            if rank > 0 {
                group.barrier("y")?;
            }
        }
        "late" => {
            let options = GroupOptions { timeout: Duration::from_secs(1), ..options };
            return again(&world.group("world", &all, &options)?);
        }
        "abort" => {
            let group = world.group("world", &all, &options)?;
            if rank == 0 {
                let other = group.clone();
                let double = double.expect("aborts are tested on the double");
                std::thread::spawn(move || {
                    until_stuck(&double);
                    other.abort(Error::unavailable("the user pressed a key"));
                });
            }
            return again(&group);
        }
        _ => {
            let group = world.group("world", &all, &options)?;
            group.all_reduce("first", &mut [1.0f32; 5], ReduceOp::Sum)?;
            // Report readiness inside NCCL if the double is set to get stuck there, otherwise
            // between two calls.
            match double.filter(|_| std::env::var(FAULT).is_ok_and(|fault| !fault.is_empty())) {
                None => println!("\nready"),
                Some(double) => drop(std::thread::spawn(move || {
                    until_stuck(&double);
                    println!("\nready");
                })),
            }
            return again(&group);
        }
    }
    membership.leave();
    Ok(())
}

fn again(group: &Group) -> Result<()> {
    let mut data = vec![1.0f32; 2_000_001];
    loop {
        group.all_reduce("again", &mut data, ReduceOp::Max)?;
    }
}

fn host_only(options: &GroupOptions) -> GroupOptions {
    GroupOptions { native: false, ..options.clone() }
}

fn everything(world: &World, all: &[usize], options: &GroupOptions) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let group = world.group("world", all, options)?;
    match size {
        1 => assert_eq!(group.backend(), "one rank"),
        _ => assert!(group.backend().starts_with("NCCL 2."), "{}", group.backend()),
    }
    reference::all_of(&group)?;
    several_chunks(&group)?;
    let host = world.group("host", all, &host_only(options))?;
    assert!(size == 1 || host.backend() == "shared memory", "{}", host.backend());
    if size > 1 {
        // Calls run concurrently on two communicators.
        let rings = Rings::new(world, options);
        let rings = rings.parallel(0, all, 2)?;
        let start = |i: usize| {
            rings[i % 2].all_reduce_start(&format!("g{i}"), vec![i as i64; 5000], ReduceOp::Sum)
        };
        let handles: Vec<_> = (0..20).map(start).collect::<Result<_>>()?;
        for (i, handle) in handles.into_iter().enumerate() {
            assert_eq!(handle.wait()?, vec![(i * size) as i64; 5000]);
        }
        let part = group.split(Some(rank as u32 % 2), 0)?.expect("every rank has a color");
        let mut sum = [rank as i32];
        part.all_reduce("part", &mut sum, ReduceOp::Sum)?;
        let expected = (0..size).filter(|other| other % 2 == rank % 2).sum::<usize>();
        assert_eq!(sum, [expected as i32]);
    }
    group.barrier("end")
}

/// Data that needs several chunks of the staging buffers, with a partial last chunk.
fn several_chunks(group: &Group) -> Result<()> {
    const LENGTH: usize = 3_333_333;
    let (rank, size) = (group.rank(), group.size());
    let value = |rank: usize, i: usize| ((i * 7 + rank * 3) % 5) as f32 - 1.0;
    let sum = |i: usize| (0..size).map(|rank| value(rank, i)).sum::<f32>();
    let own: Vec<f32> = (0..LENGTH).map(|i| value(rank, i)).collect();
    let check = |what: &str, got: &[f32], expected: &dyn Fn(usize) -> f32| {
        let wrong = (0..got.len()).find(|i| got[*i] != expected(*i));
        assert!(wrong.is_none(), "{what}: element {wrong:?} of {}", got.len());
    };
    let mut data = own.clone();
    group.all_reduce("sum", &mut data, ReduceOp::Avg)?;
    check("avg", &data, &|i| sum(i) / size as f32);
    let mut data: Vec<bf16> = own.iter().map(|x| bf16::from_f32(*x)).collect();
    group.all_reduce("half", &mut data, ReduceOp::Sum)?;
    assert!(data.iter().enumerate().all(|(i, x)| x.to_f32() == sum(i)), "half");
    // The sum exceeds the range of f16, the final average does not.
    let mut data = vec![f16::from_f32(40_000.0); 100];
    group.all_reduce("large", &mut data, ReduceOp::Avg)?;
    assert!(data.iter().all(|x| x.to_f32() == 40_000.0), "{}", data[0]);
    // A bucket whose buffers are split by the chunks.
    let mut parts = own.clone();
    let (a, rest) = parts.split_at_mut(LENGTH / 3);
    let (b, c) = rest.split_at_mut(LENGTH / 2);
    group.all_reduce("bucket", Fused(&mut [a, &mut [], b, c]), ReduceOp::Sum)?;
    check("bucket", &parts, &sum);
    let mut data = own.clone();
    group.broadcast("broadcast", &mut data, size - 1)?;
    check("broadcast", &data, &|i| value(size - 1, i));
    let mut data = own.clone();
    group.reduce("reduce", &mut data, ReduceOp::Sum, 0)?;
    check("reduce", &data, &|i| if rank == 0 { sum(i) } else { value(rank, i) });

    let block = LENGTH / size;
    let mut wide = own[..block * size].to_vec();
    group.reduce_scatter("scatter sums", InPlace, &mut wide, ReduceOp::Sum)?;
    check("reduce_scatter", &wide, &|i| match i / block == rank {
        true => sum(i),
        false => value(rank, i),
    });
    let mut all = vec![0.0; block * size];
    group.all_gather("gather all", &own[..block], &mut all)?;
    check("all_gather", &all, &|i| value(i / block, i % block));
    let mut swapped = vec![0.0; block * size];
    group.all_to_all("swap", &own[..block * size], &mut swapped)?;
    check("all_to_all", &swapped, &|i| value(i / block, rank * block + i % block));
    // Very different lengths.
    let counts: Vec<usize> = (0..size).map(|rank| if rank == 0 { LENGTH } else { rank }).collect();
    let mut all = vec![0.0; counts.iter().sum()];
    group.all_gather_v("gather some", &own[..counts[rank]], &mut all, &counts)?;
    let joined: Vec<f32> =
        (0..size).flat_map(|rank| (0..counts[rank]).map(move |i| value(rank, i))).collect();
    assert!(all == joined, "all_gather_v");
    let mut back = vec![0.0; block];
    group.scatter("scatter", if rank == 0 { &own[..block * size] } else { &[] }, &mut back, 0)?;
    check("scatter", &back, &|i| value(0, rank * block + i));
    let mut all = vec![0.0; if rank == 0 { block * size } else { 0 }];
    group.gather("gather", &own[..block], &mut all, 0)?;
    check("gather", &all, &|i| value(i / block, i % block));
    Ok(())
}

/// Number of live objects of the double.
fn live(double: &Path) -> i32 {
    count(double, b"fleet_double_live")
}

/// Waits until the double is stuck in a call, as configured.
fn until_stuck(double: &Path) {
    let begin = Instant::now();
    while count(double, b"fleet_double_stuck") == 0 {
        assert!(begin.elapsed() < WAIT_MAX, "the double was never stuck");
        std::thread::yield_now();
    }
}

fn count(double: &Path, name: &[u8]) -> i32 {
    // SAFETY: the library is already loaded, and the functions take no arguments.
    unsafe {
        let library = libloading::Library::new(double.join("libnccl.so.2")).expect("the double");
        library.get::<extern "C" fn() -> i32>(name).expect("a function")()
    }
}

/// A job on the double.
struct OnDouble {
    job: Job,
    folder: PathBuf,
}

impl OnDouble {
    fn start(ranks: usize, what: &str, fault: &str) -> OnDouble {
        static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("nccl-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder for the test");
        let text = |path: &Path| path.to_str().expect("a path of text").to_string();
        let (library, own) = (text(double()), text(&folder));
        let environment = [(DOUBLE, library.as_str()), (FOLDER, own.as_str()), (FAULT, fault)];
        let job = Job::launch(RANKS, &environment, VIGILANCE, ranks, what);
        OnDouble { job, folder }
    }

    /// The output of each rank.
    fn end(mut self, ranks: usize) -> Vec<String> {
        (0..ranks).map(|rank| self.job.end(rank)).collect()
    }
}

impl Drop for OnDouble {
    fn drop(&mut self) {
        // The double leaves files of communicators that were never completed.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Checks that every rank of a job ends soon with an error that contains all `parts`.
fn fails(ranks: usize, what: &str, fault: &str, parts: &[&str]) {
    let begin = Instant::now();
    for (rank, text) in OnDouble::start(ranks, what, fault).end(ranks).iter().enumerate() {
        assert!(text.contains("failed: "), "{what}, rank {rank}: {text}");
        for part in parts {
            assert!(
                text.contains(part),
                "{what}: '{part}' is missing in the error of rank {rank}: {text}"
            );
        }
    }
    assert!(begin.elapsed() < SOON, "{what} took {:?}", begin.elapsed());
}

#[test]
fn everything_on_one_to_four_ranks() {
    if let Some(role) = process::role() {
        return run_as_rank(&role, work);
    }
    for ranks in 1..=4 {
        for (rank, text) in OnDouble::start(ranks, "all", "").end(ranks).iter().enumerate() {
            assert!(text.contains("ended well"), "rank {rank} of {ranks}: {text}");
        }
    }
}

#[test]
fn a_library_that_is_not_there() {
    let world = || World::threads(1).remove(0);
    let nowhere = Some(PathBuf::from("/nowhere/libsome.so"));
    let text = |options| world().with_nccl(&options).map(|_| ()).unwrap_err().to_string();
    let said = text(NcclOptions { driver: nowhere.clone(), ..Default::default() });
    for part in ["cannot load the CUDA driver", "/nowhere/libsome.so", "help: install"] {
        assert!(said.contains(part), "{said}");
    }
    let said = text(NcclOptions {
        driver: Some(double().to_path_buf()),
        library: nowhere,
        device: Some(1),
    });
    for part in ["cannot load the NCCL library", "/nowhere/libsome.so", "2.14 or later"] {
        assert!(said.contains(part), "{said}");
    }
    // An existing library, but the wrong one.
    let said = text(NcclOptions { driver: Some("libc.so.6".into()), ..Default::default() });
    assert!(said.contains("the CUDA driver lacks the function cuInit"), "{said}");
}

#[test]
fn machines_that_cannot() {
    fails(1, "open", "no-device", &["no GPU for this rank, number 0", "0 visible to this process"]);
    fails(1, "open", "version:21212", &["NCCL 2.14 or later", "NCCL 2.12.12"]);
    // The other ranks are notified by the heartbeats.
    fails(3, "open", "devices:2", &["no GPU for this rank, number 2 of its host"]);
    fails(2, "one-gpu", "", &["rank 0 (host", "use the same GPU", "0000:10:00.0 for both"]);
    // The third rank, which has a GPU of its own, gets the error from the others.
    fails(3, "one-gpu", "", &["rank 0 (host", "use the same GPU"]);
}

#[test]
fn ranks_that_differ_are_told() {
    fails(3, "differ", "", &["ranks of group 'world' call different", "'other'", "'same'"]);
    fails(3, "wrong", "", &["output of all_gather has the wrong length"]);
}

#[test]
fn a_rank_that_leaves_is_named() {
    let texts = OnDouble::start(3, "leave", "").end(3);
    assert!(texts[0].contains("ended well"), "{}", texts[0]);
    for text in &texts[1..] {
        assert!(text.contains("failed: this rank has left the group"), "{text}");
        assert!(text.contains("rank 0 (host") && text.contains("barrier #1 'y'"), "{text}");
    }
}

#[test]
fn waits_in_nccl_end() {
    let call = "all_reduce #2 'again'";
    fails(
        2,
        "late",
        "stuck:5",
        &["the deadline passed while waiting for other ranks in NCCL", call],
    );
    fails(
        2,
        "again",
        "remote:5",
        &["NCCL failed: remote process exited", "as the double was configured"],
    );
    let texts = OnDouble::start(3, "abort", "stuck:5").end(3);
    assert!(texts[0].contains("failed: the user pressed a key"), "{}", texts[0]);
    for text in &texts[1..] {
        assert!(text.contains("has left the group: it has closed its connection"), "{text}");
    }
}

/// Kills a rank inside NCCL and between two calls.
#[test]
fn a_killed_rank_is_named_soon() {
    for fault in ["", "stuck:4"] {
        let mut started = OnDouble::start(3, "loop", fault);
        started.job.wait_until_ready();
        let begin = Instant::now();
        started.job.signal(1, libc::SIGKILL);
        // A death shows first as a closed or reset connection, or as a missing process.
        let pid = format!("pid {})", started.job.pid(1));
        for rank in [0, 2] {
            let text = started.job.end(rank);
            assert!(text.contains("failed: rank 1 (host") && text.contains(&pid), "{text}");
            assert!(text.contains("all_reduce #") && text.contains("'again'"), "{text}");
        }
        assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
    }
}

#[test]
fn a_stopped_rank_is_named_soon() {
    let mut started = OnDouble::start(3, "loop", "stuck:4");
    started.job.wait_until_ready();
    let begin = Instant::now();
    started.job.signal(2, libc::SIGSTOP);
    for rank in [0, 1] {
        let text = started.job.end(rank);
        assert!(text.contains("failed: rank 2 (host") && text.contains("unresponsive"), "{text}");
    }
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}

/// The same tests on the GPUs of this machine, if FLEET_NCCL_GPUS gives their number.
#[test]
fn real_gpus() {
    let Ok(count) = std::env::var("FLEET_NCCL_GPUS") else {
        println!("skipped: FLEET_NCCL_GPUS is not set");
        return;
    };
    let ranks: usize = count.parse().expect("FLEET_NCCL_GPUS is a number");
    assert!(ranks >= 2, "NCCL needs two ranks with one GPU each");
    let start = |what| Job::launch(RANKS, &[], VIGILANCE, ranks, what);
    for what in ["all", "differ"] {
        let mut job = start(what);
        for rank in 0..ranks {
            let text = job.end(rank);
            let expected = if what == "all" { "ended well" } else { "call different" };
            assert!(text.contains(expected), "{what}, rank {rank}: {text}");
        }
    }
    let mut job = start("loop");
    job.wait_until_ready();
    let begin = Instant::now();
    job.signal(1, libc::SIGKILL);
    for rank in (0..ranks).filter(|rank| *rank != 1) {
        let text = job.end(rank);
        assert!(text.contains("failed: rank 1 (host"), "rank {rank}: {text}");
    }
    assert!(begin.elapsed() < SOON, "{:?}", begin.elapsed());
}
