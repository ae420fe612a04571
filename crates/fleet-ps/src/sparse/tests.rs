//! Guarantees of a sparse table.

use super::*;
use crate::rule::{self, Rule};
use crate::{Accessor, CtrAccessor};
use crate::{Entry, Initializer, NonFinite};
use fleet_base::ErrorKind;
use fleet_base::rng::Sequence;
use std::collections::HashMap;
use std::convert::Infallible;

fn ones(dim: usize) -> SparseConfig {
    SparseConfig {
        initializer: Initializer::Constant(1.0),
        rule: Rule::Sgd(rule::Sgd { lr: 1.0 }),
        shard_count: 8,
        ..SparseConfig::plain(3, dim)
    }
}

fn pull(table: &SparseTable, ids: &[u64], mode: PullMode) -> Vec<f32> {
    let mut out = vec![f32::NAN; ids.len() * table.pull_width()];
    table.pull(ids, &mut out, mode).unwrap();
    out
}

/// Returns all rows of a snapshot by id.
fn snapshot(table: &SparseTable, mode: SaveMode) -> HashMap<u64, (u8, Vec<f32>)> {
    let mut snapshot = table.snapshot(mode);
    let mut rows = HashMap::new();
    read(&mut snapshot, &mut rows);
    snapshot.end();
    rows
}

fn read(snapshot: &mut Snapshot<'_>, rows: &mut HashMap<u64, (u8, Vec<f32>)>) {
    let mut visit = |record: Record<'_>| {
        if let Record::Row { id, unseen_days, values, .. } = record {
            assert!(rows.insert(id, (unseen_days, values.to_vec())).is_none(), "id {id} twice");
        }
        Ok::<(), Error>(())
    };
    while snapshot.next_shard(&mut visit).unwrap() {}
}

#[test]
fn agrees_with_a_map_of_rows() {
    for dim in [1, 5, 16, 33] {
        let table = SparseTable::new(ones(dim)).unwrap();
        let mut known: HashMap<u64, Vec<f32>> = HashMap::new();
        let mut rng = Sequence::new(7, dim as u64);
        for round in 0..60 {
            let ids: Vec<u64> = (0..rng.below(700))
                .map(|_| if round % 2 == 0 { rng.below(5000) } else { rng.below(9) << 60 })
                .collect();
            let grads: Vec<f32> = (0..ids.len() * dim).map(|_| rng.below(9) as f32).collect();
            table.push(Push::new(&ids, &grads)).unwrap();
            for (id, grad) in ids.iter().zip(grads.chunks(dim)) {
                let row = known.entry(*id).or_insert_with(|| vec![1.0; dim]);
                row.iter_mut().zip(grad).for_each(|(w, g)| *w -= g);
            }
            let rows = pull(&table, &ids, PullMode::Train);
            for (id, row) in ids.iter().zip(rows.chunks(dim)) {
                assert_eq!(known[id], row);
            }
        }
        assert_eq!(table.stats().row_count, known.len() as u64);
        let saved = snapshot(&table, SaveMode::All);
        assert_eq!(saved.len(), known.len());
        assert!(saved.iter().all(|(id, (_, row))| known[id] == *row));
    }
}

#[test]
fn rows_are_the_same_on_any_number_of_shards() {
    let config = |shard_count| SparseConfig {
        initializer: Initializer::Gaussian { mean: 0.0, std: 1.0 },
        rule: Rule::Adam(rule::Adam::default()),
        shard_count,
        ..SparseConfig::plain(1, 9)
    };
    let ids: Vec<u64> = (0..500).map(|i| i * 977).collect();
    let grads: Vec<f32> = (0..500 * 9).map(|i| (i % 17) as f32 - 8.0).collect();
    let rows: Vec<Vec<f32>> = [1, 7, 256]
        .map(|shards| {
            let table = SparseTable::new(config(shards)).unwrap();
            (0..3).for_each(|_| table.push(Push::new(&ids, &grads)).unwrap());
            pull(&table, &ids, PullMode::Train)
        })
        .to_vec();
    assert!(rows[0] == rows[1] && rows[1] == rows[2]);
}

/// The key of the hashes changes neither the rows nor their order in a save.
#[test]
fn saves_do_not_depend_on_the_key() {
    let config = || SparseConfig { entry: Entry::CountFilter(2), shard_count: 3, ..ones(2) };
    let saved = [(1, 3), (u64::MAX / 3, 0x9E37_79B9_7F4A_7C15)].map(|(mask, multiplier)| {
        let table = SparseTable::with_key(config(), HashKey::new(mask, multiplier)).unwrap();
        let ids: Vec<u64> = (0..90_000).map(|at| at * at).collect();
        pull(&table, &ids, PullMode::Train);
        pull(&table, &ids[..80_000], PullMode::Train);
        table.push(Push::new(&ids, &vec![0.5; 180_000])).unwrap();
        let mut snapshot = table.snapshot(SaveMode::All);
        let mut saved = Vec::new();
        let mut visit = |record: Record<'_>| {
            saved.push(format!("{record:?}"));
            Ok::<(), Infallible>(())
        };
        while snapshot.next_shard(&mut visit).unwrap() {}
        saved
    });
    assert_eq!(saved[0].len(), 90_000);
    assert!(saved[0] == saved[1], "rows come in another order");
}

#[test]
fn inference_makes_no_rows() {
    let table = SparseTable::new(ones(2)).unwrap();
    assert_eq!(pull(&table, &[4, 5], PullMode::Infer), [0.0; 4]);
    assert_eq!(table.stats().row_count, 0);
    assert_eq!(pull(&table, &[4], PullMode::Train), [1.0; 2]);
    assert_eq!(pull(&table, &[4, 5], PullMode::Infer), [1.0, 1.0, 0.0, 0.0]);
}

#[test]
fn count_filter_admits_at_the_count_and_keeps_no_row_before() {
    let config = SparseConfig { entry: Entry::CountFilter(3), ..ones(1) };
    let table = SparseTable::new(config).unwrap();
    for want in [0.0, 0.0, 1.0] {
        assert_eq!(pull(&table, &[7], PullMode::Train), [want]);
        if want == 0.0 {
            table.push(Push::new(&[7, 8], &[0.5, 0.5])).unwrap();
            assert_eq!((table.stats().row_count, table.stats().pending_count), (0, 1));
        }
    }
    table.push(Push::new(&[7], &[0.5])).unwrap();
    assert_eq!(pull(&table, &[7], PullMode::Train), [0.5]);
    let stats = table.stats();
    assert_eq!((stats.row_count, stats.pending_count, stats.dropped), (1, 0, 4));
}

#[test]
fn probability_admits_its_share_and_always_the_same_ids() {
    let config = || SparseConfig { entry: Entry::Probability(0.25), ..ones(1) };
    let ids: Vec<u64> = (0..20_000).collect();
    let rows = pull(&SparseTable::new(config()).unwrap(), &ids, PullMode::Train);
    assert_eq!(rows, pull(&SparseTable::new(config()).unwrap(), &ids, PullMode::Train));
    let share = rows.iter().sum::<f32>() / 20_000.0;
    assert!((share - 0.75).abs() < 0.02, "{share}");
}

#[test]
fn a_click_row_gets_its_embedding_when_seen_enough() {
    let ctr = CtrAccessor {
        pull_show_click: true,
        embed_rule: Rule::Sgd(rule::Sgd { lr: 1.0 }),
        embedx_threshold: 2.0,
        ..CtrAccessor::default()
    };
    let table = SparseTable::new(SparseConfig {
        accessor: Accessor::Ctr(ctr),
        rule: Rule::Sgd(rule::Sgd { lr: 1.0 }),
        initializer: Initializer::Constant(0.5),
        ..SparseConfig::ctr(0, 2)
    })
    .unwrap();
    assert_eq!((table.pull_width(), table.push_width()), (5, 3));
    let push = |shows: f32, clicks: f32| {
        let (shows, clicks, slots) = ([shows], [clicks], [12]);
        let push = Push {
            shows: Some(&shows),
            clicks: Some(&clicks),
            slots: Some(&slots),
            ..Push::new(&[9], &[0.125, 0.25, 0.375])
        };
        table.push(push).unwrap();
        pull(&table, &[9], PullMode::Infer)
    };
    // Score 10 * 0.1 = 1: no embedding yet.
    assert_eq!(push(10.0, 0.0), [10.0, 0.0, -0.125, 0.0, 0.0]);
    // Score 1 + 1: the push that makes the embedding trains it.
    assert_eq!(push(1.0, 1.0), [11.0, 1.0, -0.25, 0.25, 0.125]);
    let saved = snapshot(&table, SaveMode::All);
    let row = &saved[&9].1;
    assert!((row[layout::DELTA] - 2.0).abs() < 1e-6);
    assert_eq!(layout::slot_number(row[layout::SLOT]), 12);
}

#[test]
fn merged_click_pushes_count_every_show() {
    let table = SparseTable::new(SparseConfig::ctr(0, 4)).unwrap();
    table.push(Push::new(&[1, 1, 1, 2], &[0.0; 20])).unwrap();
    let saved = snapshot(&table, SaveMode::All);
    assert_eq!((saved[&1].1[layout::SHOW], saved[&2].1[layout::SHOW]), (3.0, 1.0));
}

#[test]
fn saves_choose_their_rows() {
    let table = SparseTable::new(SparseConfig::ctr(0, 2)).unwrap();
    let show = |id: u64, shows: f32| {
        let (ids, shows) = ([id], [shows]);
        let push = Push { shows: Some(&shows), ..Push::new(&ids, &[0.0; 3]) };
        table.push(push).unwrap();
    };
    let ids = |mode| {
        let mut ids: Vec<u64> = snapshot(&table, mode).into_keys().collect();
        ids.sort_unstable();
        ids
    };
    show(1, 100.0);
    show(2, 1.0);
    show(3, 100.0);
    assert_eq!(ids(SaveMode::All), [1, 2, 3]);
    // Score of 2 is 0.1 < base_threshold.
    assert_eq!(ids(SaveMode::Base), [1, 3]);
    assert_eq!(ids(SaveMode::Delta), [0; 0]);
    show(3, 3.0);
    assert_eq!(ids(SaveMode::Delta), [3]);
    assert_eq!(ids(SaveMode::Delta), [0; 0]);
    for _ in 0..17 {
        assert_eq!(ids(SaveMode::AllAndAge), [1, 2, 3]);
    }
    assert_eq!(ids(SaveMode::Base), [0; 0], "unseen for 17 days");
    show(1, 1.0);
    assert_eq!(ids(SaveMode::Base), [1]);
}

/// The threshold for embeddings holds at a shrink, too.
#[test]
fn a_row_that_is_seen_too_rarely_loses_its_embedding() {
    let ctr = CtrAccessor {
        embedx_threshold: 4.0,
        nonclk_coeff: 1.0,
        show_click_decay_rate: 0.5,
        delete_threshold: 1.0,
        ..CtrAccessor::default()
    };
    let rule = Rule::StdAdagrad(rule::StdAdagrad::default());
    let initializer = Initializer::Constant(0.5);
    let accessor = Accessor::Ctr(ctr);
    let config = SparseConfig { accessor, rule, initializer, ..SparseConfig::ctr(0, 2) };
    let table = SparseTable::new(config).unwrap();
    let push = |id: u64, shows: f32| {
        let (ids, shows, slots) = ([id], [shows], [7]);
        let push = Push::new(&ids, &[0.25, 1.0, -1.0]);
        table.push(Push { shows: Some(&shows), slots: Some(&slots), ..push }).unwrap();
    };
    push(1, 16.0);
    push(2, 6.0);
    let [kept, lost] = [1, 2].map(|id| pull(&table, &[id], PullMode::Infer));
    assert!(kept[1] != 0.0 && lost[1] != 0.0, "both have an embedding");
    assert_eq!(table.shrink(None).unwrap(), 0);
    assert_eq!(pull(&table, &[1], PullMode::Infer), kept, "its score is 8");
    assert_eq!(pull(&table, &[2], PullMode::Infer), [lost[0], 0.0, 0.0], "its score is 3");
    let saved = snapshot(&table, SaveMode::All);
    let embedx = table.embedx_at();
    let row = &saved[&2].1;
    let slot = (layout::slot_number(row[layout::SLOT]), layout::has_embedx(row[layout::SLOT]));
    assert_eq!(slot, (7, false));
    assert!(row[embedx..].iter().all(|value| *value == 0.0), "its state is reset");
    assert!(layout::has_embedx(saved[&1].1[layout::SLOT]));
    // The embedding starts anew, as that of a new row.
    push(2, 16.0);
    push(3, 16.0);
    assert_eq!(pull(&table, &[2], PullMode::Infer)[1..], pull(&table, &[3], PullMode::Infer)[1..]);
}

#[test]
fn plain_deltas_hold_what_was_pushed_since() {
    let table = SparseTable::new(ones(2)).unwrap();
    let ids: Vec<u64> = (0..1000).collect();
    pull(&table, &ids, PullMode::Train);
    assert_eq!(snapshot(&table, SaveMode::Base).len(), 1000);
    table.push(Push::new(&[5, 900], &[0.0; 4])).unwrap();
    assert_eq!(snapshot(&table, SaveMode::All).len(), 1000);
    let delta = snapshot(&table, SaveMode::Delta);
    assert!(delta.len() == 2 && delta.contains_key(&5) && delta.contains_key(&900));
    assert!(snapshot(&table, SaveMode::Delta).is_empty());
}

#[test]
fn a_snapshot_is_of_one_moment_however_much_is_pushed_meanwhile() {
    let table = SparseTable::new(ones(3)).unwrap();
    let ids: Vec<u64> = (0..30_000).collect();
    pull(&table, &ids, PullMode::Train);
    let mut rng = Sequence::new(4, 4);
    for round in 1..4 {
        let mut snap = table.snapshot(SaveMode::All);
        let mut rows = HashMap::new();
        let mut push = || {
            // Existing rows and new ones.
            let some: Vec<u64> = (0..3000).map(|_| rng.below(60_000 * round)).collect();
            table.push(Push::new(&some, &vec![1.0; 9000])).unwrap();
        };
        let before = snapshot_free(&table, &ids);
        let count = table.stats().row_count;
        push();
        loop {
            let mut visit = |record: Record<'_>| {
                let Record::Row { id, values, .. } = record else { return Ok(()) };
                assert!(rows.insert(id, values.to_vec()).is_none());
                Ok::<(), Error>(())
            };
            if !snap.next_shard(&mut visit).unwrap() {
                break;
            }
            push();
        }
        assert_eq!(rows.len() as u64, count);
        for (id, row) in ids.iter().zip(before.chunks(3)) {
            assert_eq!(rows[id], row);
        }
    }
}

/// Returns the rows of ids without changing anything.
fn snapshot_free(table: &SparseTable, ids: &[u64]) -> Vec<f32> {
    pull(table, ids, PullMode::Infer)
}

#[test]
fn a_snapshot_given_up_does_not_harm_the_next() {
    let table = SparseTable::new(ones(1)).unwrap();
    let ids: Vec<u64> = (0..5000).collect();
    pull(&table, &ids, PullMode::Train);
    let mut snap = table.snapshot(SaveMode::All);
    assert!(snap.next_shard(|_| Err("disk full")).is_err());
    drop(snap);
    assert_eq!(snapshot(&table, SaveMode::All).len(), 5000);
}

/// Changes that a failed delta had taken are in the next one, in plain and in click tables.
#[test]
fn a_delta_that_fails_drops_nothing() {
    let click = SparseConfig { shard_count: 8, ..SparseConfig::ctr(0, 1) };
    for config in [ones(1), click] {
        let table = SparseTable::new(config).unwrap();
        let ids: Vec<u64> = (0..5000).collect();
        let grads = vec![0.0; ids.len() * table.push_width()];
        let shows = vec![100.0; ids.len()];
        table.push(Push { shows: Some(&shows), ..Push::new(&ids, &grads) }).unwrap();
        assert_eq!(snapshot(&table, SaveMode::Base).len(), 5000);
        let some = Push {
            shows: Some(&shows[..50]),
            ..Push::new(&ids[..50], &grads[..50 * table.push_width()])
        };
        table.push(some).unwrap();
        for fails_at in [0, 20] {
            let mut snap = table.snapshot(SaveMode::Delta);
            let mut left = fails_at;
            let mut visit = |_: Record<'_>| {
                left -= 1;
                if left < 0 { Err("disk full") } else { Ok(()) }
            };
            while let Ok(true) = snap.next_shard(&mut visit) {}
        }
        let delta = snapshot(&table, SaveMode::Delta);
        assert!(delta.len() == 50 && (0..50).all(|id| delta.contains_key(&id)), "{}", delta.len());
        assert!(snapshot(&table, SaveMode::Delta).is_empty());
    }
}

#[test]
fn threads_push_every_gradient_once() {
    let table = SparseTable::new(SparseConfig { shard_count: 4, ..ones(2) }).unwrap();
    let saved = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let table = &table;
                scope.spawn(move || {
                    let mut rng = Sequence::new(thread, 0);
                    for _ in 0..50 {
                        let ids: Vec<u64> = (0..400).map(|_| rng.below(2000)).collect();
                        table.push(Push::new(&ids, &[1.0; 800])).unwrap();
                        pull(table, &ids, PullMode::Train);
                    }
                })
            })
            .collect();
        let saved = snapshot(&table, SaveMode::All);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        saved
    });
    let sum = |rows: &HashMap<u64, (u8, Vec<f32>)>| -> f32 {
        rows.values().map(|(_, row)| 1.0 - row[0]).sum()
    };
    assert_eq!(sum(&snapshot(&table, SaveMode::All)), 4.0 * 50.0 * 400.0);
    // A push is in a snapshot whole or not at all.
    assert_eq!(sum(&saved) % 400.0, 0.0);
}

#[test]
fn shrink_deletes_what_is_old_and_uses_the_room_again() {
    let table = SparseTable::new(ones(4)).unwrap();
    let ids: Vec<u64> = (0..40_000).collect();
    pull(&table, &ids, PullMode::Train);
    for _ in 0..3 {
        snapshot(&table, SaveMode::AllAndAge);
    }
    table.push(Push::new(&ids[..10_000], &vec![0.0; 40_000])).unwrap();
    assert_eq!(table.shrink(Some(3)).unwrap(), 0);
    assert_eq!(table.shrink(Some(2)).unwrap(), 30_000);
    assert_eq!(table.stats().row_count, 10_000);
    let held = table.stats().held_bytes;
    pull(&table, &ids, PullMode::Train);
    assert!(table.stats().held_bytes <= held + held / 50, "rows were used again");
    assert_eq!(table.stats().deleted, 30_000);
}

#[test]
fn shrink_decays_and_deletes_click_rows() {
    let table = SparseTable::new(SparseConfig::ctr(0, 2)).unwrap();
    let push = Push { shows: Some(&[9.0, 7.0]), ..Push::new(&[1, 2], &[0.0; 6]) };
    table.push(push).unwrap();
    // Scores 0.9 and 0.7, delete_threshold 0.8.
    assert_eq!(table.shrink(None).unwrap(), 1);
    let saved = snapshot(&table, SaveMode::All);
    assert!((saved[&1].1[layout::SHOW] - 9.0 * 0.98).abs() < 1e-5);
    for _ in 0..3 {
        table.shrink(None).unwrap();
    }
    assert_eq!(table.stats().row_count, 1);
    (0..3).for_each(|_| drop(table.shrink(None)));
    assert_eq!(table.stats().row_count, 0, "0.9 * 0.98^7 < 0.8");
}

#[test]
fn snapshots_restore_to_any_number_of_shards() {
    let config = |shard_count| SparseConfig {
        shard_count,
        entry: Entry::CountFilter(2),
        rule: Rule::Adam(rule::Adam::default()),
        ..ones(3)
    };
    let table = SparseTable::new(config(8)).unwrap();
    let ids: Vec<u64> = (0..3000).map(|i| i << 33).collect();
    (0..2).for_each(|_| drop(pull(&table, &ids, PullMode::Train)));
    pull(&table, &[1, 2, 3], PullMode::Train);
    table.push(Push::new(&ids, &vec![0.5; 9000])).unwrap();
    let copy = SparseTable::new(config(3)).unwrap();
    let mut snap = table.snapshot(SaveMode::All);
    while snap.next_shard(|record| copy.restore(record)).unwrap() {}
    drop(snap);
    let (a, b) = (table.stats(), copy.stats());
    assert_eq!((a.row_count, a.pending_count), (b.row_count, b.pending_count));
    assert_eq!(snapshot(&table, SaveMode::All), snapshot(&copy, SaveMode::All));
    let error = copy
        .restore(Record::Row { id: 1, unseen_days: 0, changed: false, values: &[1.0] })
        .unwrap_err();
    assert!(error.to_string().contains("does not fit the table"), "{error}");
}

#[test]
fn memory_held_is_at_most_a_quarter_over_the_payload() {
    // The leanest row within the budget: 64 bytes, no state.
    let table = SparseTable::new(SparseConfig { shard_count: 16, ..ones(16) }).unwrap();
    let mut out = vec![0.0; 16 * 10_000];
    for batch in 0..60u64 {
        let ids: Vec<u64> = (batch * 10_000..(batch + 1) * 10_000).collect();
        table.pull(&ids, &mut out, PullMode::Train).unwrap();
        let stats = table.stats();
        let ratio = stats.held_bytes as f64 / stats.payload_bytes as f64;
        let slack = 4.0 * (2u64 << 20) as f64 / stats.payload_bytes as f64;
        assert!(ratio < 1.25 + slack, "{ratio} at {} rows", stats.row_count);
    }
}

#[test]
fn bad_pushes_and_pulls_are_refused_and_change_nothing() {
    let table = SparseTable::new(ones(2)).unwrap();
    let check = |push: Push<'_>, kind: ErrorKind, words: &str| {
        let error = table.push(push).unwrap_err();
        assert_eq!(error.kind(), kind);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(table.stats().row_count, 0);
    };
    let ids = [5, 6];
    check(Push::new(&ids, &[0.0; 3]), ErrorKind::Invalid, "expected 4 (2 ids x 2), got 3");
    let nan = Push::new(&ids, &[0.0, 0.0, 0.0, f32::NAN]);
    check(nan, ErrorKind::Numeric, "got NaN for id 6, column 1 (1 such values)");
    let good = Push::new(&ids, &[0.0; 4]);
    check(Push { shows: Some(&[1.0]), ..good }, ErrorKind::Invalid, "shows has the wrong length");
    let negative = Push { clicks: Some(&[1.0, -1.0]), ..good };
    check(negative, ErrorKind::Invalid, "invalid clicks in a push");
    let slots = [1, u32::MAX];
    check(Push { slots: Some(&slots), ..good }, ErrorKind::Invalid, "slot in a push is too large");
    assert_eq!(table.stats().non_finite, 1);
    let error = table.pull(&ids, &mut [0.0; 5], PullMode::Train).unwrap_err();
    assert!(error.to_string().contains("sparse table 3"), "{error}");
    assert!(table.set_rate_scale(f32::NAN).is_err());
}

#[test]
fn a_full_table_serves_what_it_has() {
    let table = SparseTable::new(SparseConfig { row_count_max: 2, ..ones(1) }).unwrap();
    let error = table.push(Push::new(&[1, 2, 3], &[1.0; 3])).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.to_string().contains("1 ids were not applied"), "{error}");
    assert_eq!(table.stats().row_count, 2);
    assert_eq!(pull(&table, &[1, 2, 3], PullMode::Infer).iter().sum::<f32>(), 0.0);
}

#[test]
fn policies_on_numbers_that_are_none() {
    let bad = |non_finite| {
        let table = SparseTable::new(SparseConfig { non_finite, ..ones(1) }).unwrap();
        table.push(Push::new(&[1, 2], &[f32::INFINITY, 1.0])).unwrap();
        assert_eq!(table.stats().non_finite, 1);
        pull(&table, &[1, 2], PullMode::Infer)
    };
    assert_eq!(bad(NonFinite::Count), [f32::NEG_INFINITY, 0.0]);
    assert_eq!(bad(NonFinite::Clip(3.0)), [-2.0, 0.0]);
}

#[test]
fn senseless_tables_are_refused() {
    let wrong = |config: SparseConfig, words: &str| {
        let error = SparseTable::new(config).err().unwrap().to_string();
        assert!(error.contains(words), "{error}");
    };
    wrong(SparseConfig::plain(0, 0), "dim of sparse table 0");
    wrong(SparseConfig { shard_count: 0, ..ones(1) }, "shard_count");
    wrong(SparseConfig { weight_bounds: Some([1.0, 1.0]), ..ones(1) }, "weight_bounds");
    let ctr = CtrAccessor { delta_keep_days: 63, ..CtrAccessor::default() };
    let accessor = Accessor::Ctr(ctr);
    wrong(SparseConfig { accessor, ..ones(1) }, "delta_keep_days");
}

#[test]
fn rates_scale() {
    let table = SparseTable::new(ones(1)).unwrap();
    table.set_rate_scale(0.5).unwrap();
    table.push(Push::new(&[1], &[1.0])).unwrap();
    assert_eq!(pull(&table, &[1], PullMode::Infer), [0.5]);
}
