//! Communicators with servers in this process.

use super::*;
use crate::TableConfig;
use crate::rule::Sgd;
use crate::{Initializer, JobTables, LocalServers, NonFinite, Rule, ServerTables, SparseConfig};

pub(super) const DENSE: u32 = 1;
pub(super) const SPARSE: u32 = 0;

pub(super) fn job(workers: usize, geo: bool) -> JobTables {
    let config = SparseConfig {
        rule: Rule::Sgd(Sgd { lr: 1.0 }),
        initializer: Initializer::Constant(0.0),
        ..SparseConfig::plain(SPARSE, 1)
    };
    let rows = if geo { TableConfig::Geo(config) } else { TableConfig::Sparse(config) };
    let dense = TableConfig::Dense {
        table_id: DENSE,
        params: vec![("weight".into(), 3)],
        rule: Rule::Sgd(Sgd { lr: 1.0 }),
        non_finite: NonFinite::Refuse,
        options: Default::default(),
    };
    JobTables { server_count: 2, worker_count: workers, sync: false, tables: vec![rows, dense] }
}

pub(super) fn workers(job: &JobTables) -> Vec<Servers> {
    let servers = ServerTables::all(job).unwrap();
    let worker = |worker| Arc::new(LocalServers::new(&servers, worker).unwrap()).into();
    (0..job.worker_count).map(worker).collect()
}

fn asynchronous(options: CommunicatorOptions) -> Communicator {
    let servers = workers(&job(1, false)).remove(0);
    Communicator::start(servers, PushMode::Async, options, Rates::constant()).unwrap()
}

#[test]
fn merged_gradients_are_summed_or_averaged() {
    for (averages, want) in [(false, [-6.0, -4.0]), (true, [-2.0, -4.0 / 3.0])] {
        let options = CommunicatorOptions {
            merge_count_max: 3,
            // Long enough for all three to be queued on any machine; the flush ends the wait.
            wait_count_max: 10_000,
            averages,
            ..CommunicatorOptions::default()
        };
        let communicator = asynchronous(options);
        for grad in [1.0, 2.0, 3.0] {
            let grads = if grad == 2.0 { vec![2.0, 2.0] } else { vec![grad, 0.0] };
            let grads = if grad == 3.0 { vec![3.0, 2.0] } else { grads };
            communicator.push_sparse(SPARSE, Push::new(&[5, 6], &grads)).unwrap();
        }
        communicator.flush().unwrap();
        let mut rows = [0.0; 2];
        communicator.look_up(SPARSE, &[5, 6], &mut rows, PullMode::Train).unwrap();
        assert!((rows[0] - want[0]).abs() < 1e-6 && (rows[1] - want[1]).abs() < 1e-6, "{rows:?}");
        let stats = communicator.stats();
        assert_eq!(stats.gradient_count, 3);
        assert!((1..=3).contains(&stats.push_count));
    }
}

/// Queued dense gradients are summed into one push, up to the limit, and all of them arrive.
#[test]
fn dense_gradients_that_wait_become_one_push() {
    let options = CommunicatorOptions {
        merge_count_max: 4,
        wait_count_max: 10_000,
        ..CommunicatorOptions::default()
    };
    let communicator = asynchronous(options);
    (0..10).for_each(|_| communicator.push_dense(DENSE, &[&[1.0, 2.0], &[3.0]]).unwrap());
    communicator.flush().unwrap();
    let mut values = [0.0; 3];
    communicator.dense(DENSE, &mut [&mut values]).unwrap();
    assert_eq!(values, [-10.0, -20.0, -30.0]);
    let stats = communicator.stats();
    assert_eq!(stats.gradient_count, 10);
    assert!((3..=10).contains(&stats.push_count), "{}", stats.push_count);
    let error = communicator.push_dense(DENSE, &[&[1.0; 2]]).and_then(|()| communicator.flush());
    assert!(error.is_err(), "a gradient of another length");
}

/// The worker sums gradients of equal ids. The table is as if the servers had done so, including
/// the counts of shows.
#[test]
fn equal_ids_are_one_before_they_are_sent() {
    let config = SparseConfig {
        rule: Rule::StdAdagrad(crate::rule::StdAdagrad::default()),
        initializer: Initializer::Uniform { low: -1.0, high: 1.0 },
        ..SparseConfig::ctr(SPARSE, 3)
    };
    let job = JobTables { tables: vec![TableConfig::Sparse(config.clone())], ..job(1, false) };
    let (through, direct) = (workers(&job).remove(0), workers(&job).remove(0));
    let options = CommunicatorOptions::default();
    let (mode, rates) = (PushMode::HalfAsync, Rates::constant());
    let communicator = Communicator::start(through, mode, options, rates).unwrap();
    let (pulled, pushed) = (config.pull_width(), config.push_width());
    for step in 0..12u64 {
        let ids: Vec<u64> = (0..20).map(|at| (at * at + step) % 13).collect();
        let grads: Vec<f32> = (0..20 * pushed).map(|at| (at % 7) as f32 * 0.1 - 0.2).collect();
        let mut rows = [vec![0.0; 20 * pulled], vec![0.0; 20 * pulled]];
        communicator.look_up(SPARSE, &ids, &mut rows[0], PullMode::Train).unwrap();
        direct.tables.pull_sparse(SPARSE, (&ids).into(), &mut rows[1], PullMode::Train).unwrap();
        assert_eq!(rows[0], rows[1], "step {step}");
        let clicks = vec![step as f32 / 12.0; 20];
        let push = Push { clicks: Some(&clicks), ..Push::new(&ids, &grads) };
        communicator.push_sparse(SPARSE, push).unwrap();
        communicator.sent().unwrap();
        direct.tables.push_sparse(SPARSE, None, push).unwrap();
    }
}

/// Trains tables of all kinds; returns the bits of what they have learned. `steps` has, for each
/// worker, whether it sends or skips each step.
fn learned(mode: PushMode, steps: &[&[bool]]) -> Vec<u32> {
    let adam = Rule::Adam(crate::rule::Adam::default());
    let (initializer, ids) = (Initializer::Constant(0.25), [3u64, 8]);
    let plain = SparseConfig { rule: adam, initializer, ..SparseConfig::plain(0, 2) };
    let click = SparseConfig { initializer, ..SparseConfig::ctr(1, 2) };
    let (options, non_finite) = (Default::default(), NonFinite::Refuse);
    let params = vec![("dense".to_string(), 3)];
    let dense = TableConfig::Dense { table_id: 2, params, rule: adam, non_finite, options };
    let configs = [plain, click];
    let tables = configs.iter().cloned().map(TableConfig::Sparse).chain([dense]).collect();
    let sync = mode == PushMode::Sync;
    let job = JobTables { server_count: 2, worker_count: steps.len(), sync, tables };
    let all = workers(&job);
    std::thread::scope(|scope| {
        for (servers, steps) in all.iter().zip(steps) {
            let (configs, options) = (&configs, CommunicatorOptions::default());
            scope.spawn(move || {
                let rates = Rates::constant();
                let worker = Communicator::start(servers.clone(), mode, options, rates).unwrap();
                for (step, is_sent) in steps.iter().enumerate() {
                    for config in configs {
                        let grads = vec![0.5 - step as f32; ids.len() * config.push_width()];
                        let push = || worker.push_sparse(config.table_id, Push::new(&ids, &grads));
                        is_sent.then(push).transpose().unwrap();
                    }
                    match is_sent {
                        true => worker.push_dense(2, &[&[1.0, -2.0, step as f32]]).unwrap(),
                        false => worker.skip(),
                    }
                    worker.sent().unwrap();
                    worker.received().unwrap();
                }
                worker.flush().unwrap();
                assert_eq!(worker.stats().step_count, steps.len() as u64);
            });
        }
    });
    let mut found = vec![0.0; 3];
    all[0].tables.pull_dense(2, &mut found).unwrap();
    for config in &configs {
        let mut rows = vec![0.0; ids.len() * config.pull_width()];
        let ids = (&ids).into();
        all[0].tables.pull_sparse(config.table_id, ids, &mut rows, PullMode::Infer).unwrap();
        found.extend(rows);
    }
    found.iter().map(|value| value.to_bits()).collect()
}

/// A step that a worker skips changes no table and no state of a rule, whatever the mode is.
#[test]
fn a_skipped_step_changes_no_table() {
    const SENT: bool = true;
    const SKIPPED: bool = false;
    for mode in [PushMode::Sync, PushMode::HalfAsync, PushMode::Async] {
        let (none, some) = (learned(mode, &[&[]]), learned(mode, &[&[SENT]]));
        assert_ne!(some, none, "{mode:?}");
        assert_eq!(learned(mode, &[&[SKIPPED; 3]]), none, "{mode:?}");
        assert_eq!(learned(mode, &[&[SENT, SKIPPED, SKIPPED]]), some, "{mode:?}");
    }
    // The mean of a step is that of the workers that made it.
    let alone = learned(PushMode::Sync, &[&[SENT, SKIPPED, SENT]]);
    let beside = learned(PushMode::Sync, &[&[SENT, SKIPPED, SENT], &[SKIPPED; 3]]);
    assert_eq!(beside, alone);
    let both = learned(PushMode::Sync, &[&[SENT; 3], &[SKIPPED, SENT, SKIPPED]]);
    assert_ne!(both, alone);
}

#[test]
fn parameters_come_after_so_many_gradients_and_say_what_they_lack() {
    let options = CommunicatorOptions { sends_before_receive: 4, ..CommunicatorOptions::default() };
    let communicator = asynchronous(options);
    let mut values = [9.0; 3];
    for step in 1..=4 {
        communicator.push_dense(DENSE, &[&[1.0], &[1.0; 2]]).unwrap();
        communicator.flush().unwrap();
        communicator.dense(DENSE, &mut [&mut values]).unwrap();
        assert_eq!(values, if step < 4 { [0.0; 3] } else { [-4.0; 3] });
    }
    let stats = communicator.stats();
    assert_eq!((stats.read_count, stats.staleness_sum, stats.staleness_max), (4, 6, 3));
    assert_eq!(stats.staleness_mean(), 1.5);
}

#[test]
fn what_went_wrong_is_said_by_a_later_call() {
    let communicator = asynchronous(CommunicatorOptions::default());
    communicator.push_dense(DENSE, &[&[f32::NAN; 3]]).unwrap();
    let error = communicator.flush().unwrap_err().to_string();
    assert!(error.contains("dense table 1"), "{error}");
    assert!(communicator.push_dense(DENSE, &[&[1.0; 3]]).is_err());
}

#[test]
fn rows_that_were_asked_for_are_found_and_others_are_pulled() {
    let communicator = asynchronous(CommunicatorOptions::default());
    communicator.look_ahead(SPARSE, vec![1, 2], 1);
    let mut rows = [1.0; 2];
    communicator.look_up(SPARSE, &[2, 1], &mut rows, PullMode::Train).unwrap();
    assert_eq!((rows, communicator.stats().looked_ahead), ([0.0; 2], 0));
    communicator.look_ahead(SPARSE, vec![1, 2], 2);
    for _ in 0..3 {
        communicator.look_up(SPARSE, &[9, 8], &mut rows, PullMode::Infer).unwrap();
    }
}

#[test]
fn senseless_knobs_are_refused() {
    let servers = workers(&job(1, false)).remove(0);
    for (options, name) in [
        (CommunicatorOptions { queue_len_max: 0, ..Default::default() }, "send_queue_size"),
        (CommunicatorOptions { merge_count_max: 0, ..Default::default() }, "max_merge_var_num"),
        (CommunicatorOptions { thread_count: 1000, ..Default::default() }, "thread_pool_size"),
        (
            CommunicatorOptions { receive_thread_count: 0, ..Default::default() },
            "rpc_get_thread_num",
        ),
        (
            CommunicatorOptions { look_ahead_thread_count: 65, ..Default::default() },
            "rpc_prefetch_thread_num",
        ),
    ] {
        let started =
            Communicator::start(servers.clone(), PushMode::Async, options, Rates::constant());
        let Err(error) = started else { panic!("{name} is taken") };
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(GeoCommunicator::start(servers, 0).is_err());
}

/// Two workers, one after the other, against the formulas: delta = (latest - old) / 2, old +=
/// delta; latest += new - old, old = new.
#[test]
fn geo_follows_its_formulas() {
    let job = job(2, true);
    let all = workers(&job);
    let geo: Vec<GeoCommunicator> =
        all.iter().map(|it| GeoCommunicator::start(it.clone(), 2).unwrap()).collect();
    for _ in 0..2 {
        // Worker 0 may be restarted in the middle.
        geo[0].fill(SPARSE, &[10.0, 20.0, 30.0], Some(1)).unwrap();
        geo[0].fill(DENSE, &[1.0, 2.0, 3.0], None).unwrap();
    }
    let mut rows = [vec![0.5; 3], vec![0.5; 3]];
    let mut dense = [vec![0.5; 3], vec![0.5; 3]];
    for worker in 0..2 {
        geo[worker].begin(SPARSE, &mut rows[worker], Some(1)).unwrap();
        geo[worker].begin(DENSE, &mut dense[worker], None).unwrap();
    }
    assert_eq!((&*rows[0], &*dense[0]), (&[10.0, 20.0, 30.0][..], &[1.0, 2.0, 3.0][..]));
    assert_eq!((&rows[1], &dense[1]), (&rows[0], &dense[0]));

    let mut step = |worker: usize, id: usize, by: f32| {
        geo[worker].touch(SPARSE, &[id as i64]).unwrap();
        rows[worker][id] += by;
        dense[worker][2] += by;
        geo[worker].step(SPARSE, &mut [&mut rows[worker]], Some(1)).unwrap();
        geo[worker].step(DENSE, &mut [&mut dense[worker]], None).unwrap();
        geo[worker].flush().unwrap();
        (rows[worker].clone(), dense[worker][2])
    };
    // The first step sends nothing; the second sends half of both.
    assert_eq!(step(0, 1, 4.0), (vec![10.0, 24.0, 30.0], 7.0));
    assert_eq!(step(0, 1, 4.0), (vec![10.0, 28.0, 30.0], 11.0));
    // Servers: row 1 is 24, the number is 7. Worker 1 sends (8 - 0) / 2 of row 1 in turn.
    step(1, 1, 8.0);
    step(1, 0, 0.0);
    // Server: row 1 is 28; worker 1 had 28 with old 24, and takes in 28 - 24; the number is 7 + 4.
    assert_eq!(step(1, 0, 0.0), (vec![10.0, 32.0, 30.0], 15.0));
    // Worker 0 has sent 4 of its 8, and pulls again at its next exchange.
    step(0, 2, 0.0);
    let (now, number) = step(0, 2, 0.0);
    assert_eq!((now, number), (vec![10.0, 28.0, 30.0], 11.0));
    let (now, number) = step(0, 2, 0.0);
    assert_eq!((now, number), (vec![10.0, 32.0, 30.0], 15.0));

    // Worker 1 is restarted: it reads the servers' values, and its next exchange starts from these.
    let again = GeoCommunicator::start(all[1].clone(), 1).unwrap();
    let (mut rows, mut dense) = (vec![0.5; 3], vec![0.5; 3]);
    again.begin(SPARSE, &mut rows, Some(1)).unwrap();
    again.begin(DENSE, &mut dense, None).unwrap();
    assert_eq!((&*rows, &*dense), (&[10.0, 28.0, 30.0][..], &[1.0, 2.0, 13.0][..]));
    again.touch(SPARSE, &[2]).unwrap();
    rows[2] += 2.0;
    again.step(SPARSE, &mut [&mut rows], Some(1)).unwrap();
    again.flush().unwrap();
    again.step(SPARSE, &mut [&mut rows], Some(1)).unwrap();
    assert_eq!(rows, [10.0, 28.0, 32.0]);
    let mut there = [0.0; 3];
    all[0].tables.pull_sparse(SPARSE, (&[0, 1, 2]).into(), &mut there, PullMode::Infer).unwrap();
    assert_eq!(there, [10.0, 28.0, 31.0], "half of what it changed, once");
}
