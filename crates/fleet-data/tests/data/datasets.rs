//! Loading, shuffling, streaming: no record is lost or duplicated.

use fleet_base::{Error, ErrorKind, Result};
use fleet_data::{
    Batch, BatchSource, Block, Dataset, DatasetOptions, Exchange, InMemoryDataset,
    InProcessExchange, OnError, Prefetch, QueueDataset, Schema, Slot, TextFiles, Values, sum_over,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that is deleted at the end of the test.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new(name: &str) -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path =
            std::env::temp_dir().join(format!("fleet-{name}-{}-{count}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder { path }
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

pub fn schema() -> Arc<Schema> {
    Schema::new([Slot::dense_ids("id", [1])]).unwrap()
}

pub fn ids_of(block: &Block) -> Vec<i64> {
    match block.column(0).values() {
        Values::Ids(ids) => ids.clone(),
        Values::Floats(_) => panic!("the slot holds ids"),
    }
}

fn options(batch_size: usize, threads: usize) -> DatasetOptions {
    let basic = DatasetOptions::new(TextFiles::multi_slot(&schema())).unwrap();
    DatasetOptions { batch_size, threads, ..basic }
}

/// Writes files of consecutive ids, `count` in each.
fn files(folder: &Folder, file_count: usize, count: usize) -> Vec<PathBuf> {
    let text = |file: usize| -> String {
        (file * count..(file + 1) * count).map(|id| format!("1 {id}\n")).collect()
    };
    (0..file_count).map(|it| folder.file(&format!("part-{it}"), text(it).as_bytes())).collect()
}

/// Returns all ids of a source, and the sizes of its batches.
fn drain(source: &mut dyn BatchSource, batch: &mut Batch) -> Result<(Vec<i64>, Vec<usize>)> {
    let (mut ids, mut sizes) = (Vec::new(), Vec::new());
    while source.next_batch(batch)? {
        ids.extend(batch.tensor("id")?.as_slice::<i64>()?);
        sizes.push(batch.len());
    }
    Ok((ids, sizes))
}

/// Returns all ids of the batches of some sources, taken in turn.
fn all_of(dataset: &InMemoryDataset, sources: usize) -> Vec<i64> {
    let sources = dataset.sources(sources).unwrap();
    let mut batches = Prefetch::start(sources, dataset.layout(), 1).unwrap();
    drain(&mut batches, &mut Batch::new(dataset.layout())).unwrap().0
}

fn sorted(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    ids
}

#[test]
fn loading_keeps_the_order_of_files_on_any_number_of_threads() {
    let folder = Folder::new("load");
    let files = files(&folder, 5, 9000);
    for threads in [1, 2, 3, 8] {
        let mut dataset = InMemoryDataset::new(options(7, threads)).unwrap();
        dataset.set_filelist(files.clone()).unwrap();
        dataset.load_into_memory().unwrap();
        assert_eq!(dataset.memory_data_size(), 45_000);
        assert!(all_of(&dataset, 2).into_iter().eq(0..45_000));
    }
}

#[test]
fn local_shuffles_follow_from_the_seed() {
    let folder = Folder::new("shuffle");
    let files = files(&folder, 2, 500);
    let shuffled = |seed: u64, times: usize| {
        let mut dataset = InMemoryDataset::new(DatasetOptions { seed, ..options(64, 1) }).unwrap();
        dataset.set_filelist(files.clone()).unwrap();
        dataset.load_into_memory().unwrap();
        (0..times).for_each(|_| dataset.local_shuffle());
        all_of(&dataset, 1)
    };
    assert_eq!(shuffled(1, 1), shuffled(1, 1));
    assert_ne!(shuffled(1, 1), shuffled(1, 2));
    assert_ne!(shuffled(1, 1), shuffled(2, 1));
    assert!(sorted(shuffled(1, 3)).into_iter().eq(0..1000));
}

#[test]
fn the_last_batch_is_kept_or_dropped() {
    let folder = Folder::new("last");
    let files = files(&folder, 1, 10);
    for (drop_last, expected) in [(false, vec![4, 4, 2]), (true, vec![4, 4])] {
        let options = DatasetOptions { drop_last, ..options(4, 1) };
        let mut queue = QueueDataset::new(options.clone()).unwrap();
        queue.set_filelist(files.clone()).unwrap();
        let mut batch = Batch::new(queue.layout());
        let mut reader = queue.sources(0).unwrap().remove(0);
        assert_eq!(drain(&mut *reader, &mut batch).unwrap().1, expected);
        let mut memory = InMemoryDataset::new(options).unwrap();
        memory.set_filelist(files.clone()).unwrap();
        memory.load_into_memory().unwrap();
        let mut reader = memory.sources(1).unwrap().remove(0);
        assert_eq!(drain(&mut *reader, &mut batch).unwrap().1, expected);
    }
}

#[test]
fn streaming_gives_every_record_once() {
    let folder = Folder::new("queue");
    let files = files(&folder, 7, 131);
    for threads in [1, 2, 3, 20] {
        let mut dataset = QueueDataset::new(options(32, threads)).unwrap();
        dataset.set_filelist(files.clone()).unwrap();
        let mut batch = Batch::new(dataset.layout());
        let readers = dataset.sources(0).unwrap();
        assert_eq!(readers.len(), threads.min(7));
        let mut ids = Vec::new();
        for mut reader in readers {
            let (some, sizes) = drain(&mut *reader, &mut batch).unwrap();
            // Batches continue from one file to the next.
            assert!(sizes[..sizes.len() - 1].iter().all(|size| *size == 32));
            ids.extend(some);
        }
        assert!(sorted(ids).into_iter().eq(0..7 * 131));
    }
    // Dropping a reader in the middle stops its thread.
    let mut dataset = QueueDataset::new(options(1, 1)).unwrap();
    dataset.set_filelist(files).unwrap();
    let mut reader = dataset.sources(0).unwrap().remove(0);
    assert!(reader.next_batch(&mut Batch::new(dataset.layout())).unwrap());
}

#[test]
fn bad_files_are_errors_of_the_first_file() {
    let folder = Folder::new("bad");
    let mut list = files(&folder, 3, 10);
    list.push(folder.file("broken", b"1 5\n1 x\n"));
    let mut memory = InMemoryDataset::new(options(4, 2)).unwrap();
    memory.set_filelist(list.clone()).unwrap();
    let error = memory.load_into_memory().unwrap_err().to_string();
    assert!(error.contains("broken:2:3, at 'x'"), "{error}");
    let mut queue = QueueDataset::new(options(4, 1)).unwrap();
    queue.set_filelist(list.clone()).unwrap();
    let mut reader = queue.sources(0).unwrap().remove(0);
    let error = drain(&mut *reader, &mut Batch::new(queue.layout())).unwrap_err().to_string();
    assert!(error.contains("broken:2:3"), "{error}");
    assert!(!reader.next_batch(&mut Batch::new(queue.layout())).unwrap());

    let skipping = TextFiles::multi_slot(&schema()).on_error(OnError::Skip { lines_max: 5 });
    let mut memory = InMemoryDataset::new(DatasetOptions::new(skipping).unwrap()).unwrap();
    memory.set_filelist(list).unwrap();
    memory.load_into_memory().unwrap();
    assert_eq!((memory.memory_data_size(), memory.skipped().lines), (31, 1));

    assert!(memory.set_filelist([folder.path.join("none")]).is_err());
    let limited = DatasetOptions { memory_bytes_max: 100, ..options(4, 2) };
    let mut memory = InMemoryDataset::new(limited).unwrap();
    assert!(memory.load_into_memory().unwrap_err().to_string().contains("no files"));
    assert!(memory.wait_preload_done().is_err() && memory.sources(1).is_err());
    memory.set_filelist(files(&folder, 3, 10)).unwrap();
    assert_eq!(memory.load_into_memory().unwrap_err().kind(), ErrorKind::Exhausted);
    memory.update_settings(|settings| settings.memory_bytes_max = usize::MAX).unwrap();
    memory.load_into_memory().unwrap();
    let other = TextFiles::multi_slot(&Schema::new([Slot::dense_ids("id", [2])]).unwrap());
    let error = memory.update_settings(|it| *it = DatasetOptions::new(other).unwrap()).unwrap_err();
    assert!(error.to_string().contains("slots of a dataset are fixed"), "{error}");
    assert_eq!(memory.memory_data_size(), 30);
    memory.set_filelist([""; 0]).unwrap();
    memory.load_into_memory().unwrap();
    assert_eq!(all_of(&memory, 2), [0; 0]);
}

#[test]
fn preloading_leaves_what_is_in_use() {
    let folder = Folder::new("preload");
    let list = files(&folder, 2, 50);
    let mut dataset = InMemoryDataset::new(options(8, 1)).unwrap();
    dataset.set_filelist([&list[0]]).unwrap();
    dataset.load_into_memory().unwrap();
    dataset.set_filelist([&list[1]]).unwrap();
    dataset.preload_into_memory().unwrap();
    assert!(dataset.preload_into_memory().is_err());
    assert!(all_of(&dataset, 1).into_iter().eq(0..50));
    dataset.wait_preload_done().unwrap();
    assert!(all_of(&dataset, 1).into_iter().eq(50..100));
    dataset.release_memory();
    assert_eq!(dataset.memory_data_size(), 0);
    assert!(dataset.sources(1).is_err());
}

/// Runs one worker per thread on its share of the files.
fn workers<T: Send>(
    world: usize,
    files: &[PathBuf],
    schema: &Arc<Schema>,
    work: impl Fn(InMemoryDataset, InProcessExchange) -> T + Sync,
) -> Vec<T> {
    let ends = InProcessExchange::group(world);
    std::thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .map(|end| {
                let work = &work;
                scope.spawn(move || {
                    let basic = DatasetOptions::new(TextFiles::multi_slot(schema)).unwrap();
                    let options = DatasetOptions { batch_size: 16, seed: 3, ..basic };
                    let mut dataset = InMemoryDataset::new(options).unwrap();
                    let mine = fleet_data::file_shard(files, end.rank(), world).unwrap();
                    dataset.set_filelist(mine).unwrap();
                    dataset.load_into_memory().unwrap();
                    work(dataset, end)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn global_shuffles_lose_and_double_nothing() {
    let folder = Folder::new("global");
    // Workers with different numbers of records need different numbers of rounds. With six workers,
    // one has no file.
    let files = files(&folder, 5, 1500);
    for world in [1, 2, 3, 4, 6] {
        let parts = workers(world, &files, &schema(), |mut dataset, mut end| {
            dataset.global_shuffle(&mut end).unwrap();
            let first = all_of(&dataset, 1);
            dataset.global_shuffle(&mut end).unwrap();
            let total = sum_over(&mut end, dataset.shuffle_data_size() as u64).unwrap();
            assert_eq!(total, 7500);
            (first, all_of(&dataset, 1))
        });
        for round in [0, 1] {
            let part =
                |it: &(Vec<i64>, Vec<i64>)| if round == 0 { it.0.clone() } else { it.1.clone() };
            let all: Vec<i64> = parts.iter().flat_map(part).collect();
            assert!(!all.is_sorted());
            assert!(sorted(all).into_iter().eq(0..7500), "world {world}, round {round}");
            let fair = 7500 / world;
            assert!(parts.iter().all(|it| part(it).len().abs_diff(fair) < 200));
        }
        assert_ne!(parts[0].0, parts[0].1);
    }
}

#[test]
fn equal_record_ids_meet_on_one_worker() {
    let folder = Folder::new("record-ids");
    let text: String = (0..4000).map(|it| format!("1 user-{} 1 {}\n", it % 50, it % 50)).collect();
    let files: Vec<PathBuf> =
        (0..3).map(|it| folder.file(&format!("p{it}"), text.as_bytes())).collect();
    let schema = Schema::with_record_ids([Slot::dense_ids("id", [1])]).unwrap();
    let parts = workers(3, &files, &schema, |mut dataset, mut end| {
        dataset.global_shuffle(&mut end).unwrap();
        all_of(&dataset, 1)
    });
    for user in 0..50 {
        let counts = parts.iter().map(|part| part.iter().filter(|id| **id == user).count());
        assert_eq!(counts.filter(|count| *count > 0).collect::<Vec<_>>(), [240], "user {user}");
    }
}

/// Fails after `rounds` exchanges.
struct Dying {
    inner: InProcessExchange,
    rounds: usize,
}

impl Exchange for Dying {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world_size(&self) -> usize {
        self.inner.world_size()
    }

    fn all_to_all(&mut self, outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if self.rounds == 0 {
            return Err(Error::unavailable("killed"));
        }
        self.rounds -= 1;
        self.inner.all_to_all(outgoing)
    }
}

#[test]
fn a_worker_that_dies_is_an_error_and_no_loss() {
    let folder = Folder::new("dying");
    let files = files(&folder, 4, 3000);
    for world in 2..=4 {
        for rounds in 0..4 {
            let parts = workers(world, &files, &schema(), |mut dataset, end| {
                let before = all_of(&dataset, 1);
                let dies = end.rank() == 1;
                let outcome = if dies {
                    dataset.global_shuffle(&mut Dying { inner: end, rounds })
                } else {
                    let mut end = end;
                    dataset.global_shuffle(&mut end)
                };
                assert_eq!(all_of(&dataset, 1), before);
                outcome.unwrap_err().to_string()
            });
            assert!(parts[1].contains("killed"));
            assert!(parts[0].contains("is lost"), "{}", parts[0]);
        }
    }
}

#[test]
fn shuffled_slots_keep_their_values_and_leave_their_records() {
    let folder = Folder::new("slots");
    let text: String = (0..20_000).map(|it| format!("1 {it} 2 {it} {it} 1 {it}\n")).collect();
    let file = folder.file("part", text.as_bytes());
    let schema = Schema::new([
        Slot::dense_ids("a", [1]),
        Slot::ragged_ids("b"),
        Slot::dense_floats("c", [1]),
    ])
    .unwrap();
    let basic = DatasetOptions::new(TextFiles::multi_slot(&schema)).unwrap();
    let mut dataset = InMemoryDataset::new(DatasetOptions { batch_size: 20_000, ..basic }).unwrap();
    dataset.set_filelist([file]).unwrap();
    dataset.load_into_memory().unwrap();
    dataset.slots_shuffle(&["b"]).unwrap();
    assert!(dataset.slots_shuffle(&["x"]).is_err());
    let mut batch = Batch::new(dataset.layout());
    assert!(dataset.sources(1).unwrap()[0].next_batch(&mut batch).unwrap());
    let ids = |name: &str| batch.tensor(name).unwrap().to_vec::<i64>().unwrap();
    assert!(ids("a").into_iter().eq(0..20_000));
    let b: Vec<i64> =
        ids("b").chunks(2).map(|pair| if pair[0] == pair[1] { pair[0] } else { -1 }).collect();
    assert!(b.iter().zip(0..).filter(|(b, a)| **b == *a).count() < 20);
    assert!(sorted(b).into_iter().eq(0..20_000));
}
