//! Click tables described by a program: counters, weight and embedding follow their formulas, in
//! every mode and on any number of servers.

use fleet::ErrorKind;
use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, SaveFormat, SaveMode, ServerTables};
use fleet::rng::Sequence;
use fleet::servers::{Place, ServerJob, Worker};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Samples per batch, and ids per sample.
const BATCH: usize = 4;
const IDS: usize = 2;
const START: f64 = 0.5;

const ACCESSOR: &str = r#"
    embedx_threshold: 3
    embed_sgd_param { name: "SparseAdaGradSGDRule" adagrad { learning_rate: 0.1 initial_g2sum: 1 } }
    embedx_sgd_param {
      name: "StdAdaGradSGDRule"
      adagrad { learning_rate: 0.2 initial_g2sum: 2 weight_bounds: [-1, 0.505] }
    }
    ctr_accessor_param {
      nonclk_coeff: 0.25
      click_coeff: 1
      base_threshold: 2
      delta_threshold: 1
      show_click_decay_rate: 0.5
      delete_threshold: 1.5
      delete_after_unseen_days: 2
    }
"#;

fn strategy(mode: &str, class: &str, accessor: &str) -> DistributedStrategy {
    let text = format!(
        "{mode} downpour_table_param {{ table_name: \"t\" shard_num: 7 \
         accessor {{ accessor_class: \"{class}\" {accessor} }} }}"
    );
    DistributedStrategy::parse(&text).unwrap()
}

/// Builds the mean of looked-up numbers times given ones: gradients do not depend on the table's
/// values.
fn network(width: usize, entry: Option<Entry>) -> (Net, String) {
    let net = Net::new();
    let ids = net.data("ids", [-1, IDS as i64], DType::I64);
    let factors = net.data("factors", [-1, (IDS * width) as i64], DType::F32);
    net.data("show", [-1, 1], DType::I64);
    net.data("click", [-1, 1], DType::I64);
    let init = ParamAttr::from("t").init(Init::Constant(START));
    let mut table = SparseEmbedding::new(1u64 << 40, width).weight(init);
    if let Some(entry) = entry {
        table = table.entry(entry);
    }
    let loss = (ids.sparse_embedding(table).flatten(1) * factors).mean();
    let name = loss.name();
    (net, name)
}

fn job(
    net: &Net,
    loss: &str,
    strategy: &DistributedStrategy,
    place: Place,
) -> fleet::Result<ServerJob> {
    let optimizer: OptimizerDesc = Sgd::new(0.25).into();
    ServerJob::minimize(net, net.var(loss), &optimizer, None, strategy, place)
}

struct Samples {
    ids: Vec<i64>,
    factors: Vec<f32>,
    show: Vec<i64>,
    click: Vec<i64>,
}

fn samples(worker: usize, step: u64, width: usize) -> Samples {
    let mut rng = Sequence::new(worker as u64, step);
    let ids = (0..BATCH * IDS).map(|_| rng.below(9) as i64 * 1_000_003).collect();
    let factors = (0..BATCH * IDS * width).map(|_| rng.below(2001) as f32 / 500.0 - 2.0).collect();
    let show: Vec<i64> = (0..BATCH).map(|_| 1 + rng.below(2) as i64).collect();
    let click = show.iter().map(|show| rng.below(*show as u64 + 1) as i64).collect();
    Samples { ids, factors, show, click }
}

fn step(worker: &mut Worker, samples: &Samples) {
    let shape = |len: usize| [BATCH as i64, (len / BATCH) as i64];
    let ids = Tensor::from_slice(&samples.ids, shape(samples.ids.len())).unwrap();
    let factors = Tensor::from_slice(&samples.factors, shape(samples.factors.len())).unwrap();
    let show = Tensor::from_slice(&samples.show, shape(BATCH)).unwrap();
    let click = Tensor::from_slice(&samples.click, shape(BATCH)).unwrap();
    let feed = [("ids", &ids), ("factors", &factors), ("show", &show), ("click", &click)];
    worker.run(&feed, &[]).unwrap();
}

/// A row computed by the formulas.
#[derive(Clone, Default)]
struct Row {
    show: f64,
    click: f64,
    gained: f64,
    weight: f64,
    weight_squares: f64,
    embedding: Option<Vec<(f64, f64)>>,
}

impl Row {
    fn score(show: f64, click: f64) -> f64 {
        (show - click) * 0.25 + click
    }

    /// Applies one push; `grads` are sums over samples, of weight and embedding.
    fn push(&mut self, show: f64, click: f64, grads: &[f64]) {
        (self.show, self.click) = (self.show + show, self.click + click);
        self.gained += Row::score(show, click);
        let mean = grads[0] / show;
        self.weight -= 0.1 * mean * (1.0 / (1.0 + self.weight_squares)).sqrt();
        self.weight_squares += mean * mean;
        if self.embedding.is_none() && Row::score(self.show, self.click) >= 3.0 {
            self.embedding = Some(vec![(START, 0.0); grads.len() - 1]);
        }
        for ((value, squares), grad) in self.embedding.iter_mut().flatten().zip(&grads[1..]) {
            let mean = grad / show;
            *value -= 0.2 * mean * (2.0 / (2.0 + *squares)).sqrt();
            *value = value.clamp(-1.0, 0.505);
            *squares += mean * mean;
        }
    }

    fn shown(&self, counters: bool, width: usize) -> Vec<f64> {
        let mut row = if counters { vec![self.show, self.click] } else { Vec::new() };
        row.push(self.weight);
        row.extend(self.embedding.iter().flatten().map(|(value, _)| value));
        row.resize(width, 0.0);
        row
    }
}

/// Applies all pushes of one step to all rows. The gradients of a mean loss are sums when they are
/// pushed.
fn apply(rows: &mut BTreeMap<i64, Row>, batch: &[Samples], counters: bool, width: usize) {
    let skipped = if counters { 2 } else { 0 };
    let mut sums: BTreeMap<i64, (f64, f64, Vec<f64>)> = BTreeMap::new();
    for samples in batch {
        for (at, id) in samples.ids.iter().enumerate() {
            let zero = || (0.0, 0.0, vec![0.0; width - skipped]);
            let (show, click, grads) = sums.entry(*id).or_insert_with(zero);
            *show += samples.show[at / IDS] as f64;
            *click += samples.click[at / IDS] as f64;
            let own = &samples.factors[at * width..][skipped..width];
            for (sum, factor) in grads.iter_mut().zip(own) {
                *sum += f64::from(*factor) / (IDS * width) as f64;
            }
        }
    }
    for (id, (show, click, grads)) in sums {
        rows.entry(id).or_default().push(show, click, &grads);
    }
}

#[track_caller]
fn check_rows(worker: &Worker, rows: &BTreeMap<i64, Row>, counters: bool, width: usize) {
    let ids: Vec<i64> = rows.keys().copied().collect();
    let got = worker.read_rows("t", &ids).unwrap();
    for ((id, row), got) in rows.iter().zip(got.chunks(width)) {
        for (got, want) in got.iter().zip(row.shown(counters, width)) {
            assert!((f64::from(*got) - want).abs() < 2e-5, "id {id}: {got} and {want}");
        }
    }
}

fn train(mode: &str, counters: bool, servers: usize, workers: usize, half_async: bool) {
    let (class, width) = if counters { ("CtrCommonAccessor", 5) } else { ("SparseAccessor", 3) };
    let entry = Entry::ShowClick { show: "show".into(), click: "click".into() };
    let (net, loss) = network(width, Some(entry));
    let strategy = strategy(mode, class, ACCESSOR);
    let place = |worker| Place { worker, worker_count: workers, server_count: servers, half_async };
    let plan = job(&net, &loss, &strategy, place(0)).unwrap();
    let tables = ServerTables::all(&plan.tables).unwrap();
    let programs = net.build().unwrap();
    let mut rows = BTreeMap::new();
    for at in 0..12 {
        let all: Vec<Samples> = (0..workers).map(|worker| samples(worker, at, width)).collect();
        apply(&mut rows, &all, counters, width);
    }
    let made = rows.values().filter(|row| row.embedding.is_some()).count();
    assert!(made > 0, "some rows have their embedding");
    std::thread::scope(|scope| {
        for own in 0..workers {
            let (tables, programs, rows) = (&tables, programs.clone(), &rows);
            let job = ServerJob { place: place(own), ..plan.clone() };
            scope.spawn(move || {
                let client = Arc::new(LocalServers::new(tables, own).unwrap());
                let options = CommunicatorOptions::default();
                let exec = ExecOptions::threads(1);
                let mut worker = Worker::start(client, programs, &job, exec, options).unwrap();
                (0..12).for_each(|at| step(&mut worker, &samples(own, at, width)));
                worker.flush().unwrap();
                worker.barrier().unwrap();
                check_rows(&worker, rows, counters, width);
                worker.stop().unwrap();
            });
        }
    });
}

#[test]
fn rows_follow_their_formulas_in_every_mode() {
    for counters in [true, false] {
        for (servers, workers) in [(1, 1), (3, 1), (2, 2)] {
            train("a_sync: false", counters, servers, workers, false);
        }
        train("a_sync: false", counters, 2, 1, true);
        train("a_sync: true", counters, 2, 1, false);
    }
}

/// Starts two servers and one worker, in this thread.
fn alone(net: &Net, loss: &str, strategy: &DistributedStrategy) -> Worker {
    let place = Place { worker: 0, worker_count: 1, server_count: 2, half_async: false };
    let job = job(net, loss, strategy, place).unwrap();
    let tables = ServerTables::all(&job.tables).unwrap();
    let client = Arc::new(LocalServers::new(&tables, 0).unwrap());
    let options = CommunicatorOptions::default();
    let programs = net.build().unwrap();
    Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap()
}

#[test]
fn the_end_of_a_day_saves_decays_and_deletes() {
    let entry = Entry::ShowClick { show: "show".into(), click: "click".into() };
    let (net, loss) = network(5, Some(entry));
    let strategy = strategy("a_sync: false", "CtrCommonAccessor", ACCESSOR);
    let mut worker = alone(&net, &loss, &strategy);
    let folder = std::env::temp_dir().join(format!("fleet-click-days-{}", std::process::id()));
    let mut rows = BTreeMap::new();
    let day = |worker: &mut Worker, rows: &mut BTreeMap<i64, Row>, steps: std::ops::Range<u64>| {
        for at in steps {
            let batch = samples(0, at, 5);
            step(worker, &batch);
            apply(rows, &[batch], true, 5);
        }
    };
    let count = |rows: &BTreeMap<i64, Row>, which: &dyn Fn(&Row) -> bool| {
        rows.values().filter(|row| which(row)).count() as u64
    };
    let in_base = |row: &Row| Row::score(row.show, row.click) >= 2.0;

    day(&mut worker, &mut rows, 0..4);
    let saved = worker.save_persistables(folder.join("base"), SaveMode::Base, SaveFormat::Text);
    let based = count(&rows, &in_base);
    assert_eq!(saved.unwrap().row_count, based);
    assert!(0 < based && based < rows.len() as u64, "{based} of {}", rows.len());
    rows.values_mut().filter(|row| in_base(row)).for_each(|row| row.gained = 0.0);

    day(&mut worker, &mut rows, 4..6);
    let in_delta = |row: &Row| in_base(row) && row.gained >= 1.0;
    let saved = worker.save_persistables(folder.join("delta"), SaveMode::Delta, SaveFormat::Text);
    let changed = count(&rows, &in_delta);
    assert_eq!(saved.unwrap().row_count, changed);
    assert!(0 < changed && changed < count(&rows, &in_base), "{changed}");

    rows.values_mut().for_each(|row| (row.show, row.click) = (row.show / 2.0, row.click / 2.0));
    let gone = rows.len() as u64;
    rows.retain(|_, row| Row::score(row.show, row.click) >= 1.5);
    assert_eq!(worker.shrink(None).unwrap(), gone - rows.len() as u64);
    assert_eq!(worker.table_stats("t").unwrap().row_count, rows.len() as u64);
    // Rows below the threshold for embeddings lose theirs, which a save omits.
    let mut lost = Vec::new();
    for (id, row) in &mut rows {
        if Row::score(row.show, row.click) < 3.0 && row.embedding.take().is_some() {
            lost.push(id.to_string());
        }
    }
    assert!(!lost.is_empty());
    check_rows(&worker, &rows, true, 5);
    worker.save_persistables(folder.join("all"), SaveMode::All, SaveFormat::Text).unwrap();
    let parts = std::fs::read_dir(folder.join("all/000")).unwrap().flatten();
    let parts = parts.filter(|part| part.file_name().to_string_lossy().starts_with("part-"));
    let text: String = parts.map(|part| std::fs::read_to_string(part.path()).unwrap()).collect();
    let lines = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let short = lines.filter(|line| lost.iter().any(|id| id == line[0]) && line.len() == 8);
    assert_eq!(short.count(), lost.len(), "id, slot, days, 3 counters, weight and its state");
    day(&mut worker, &mut rows, 6..8);
    check_rows(&worker, &rows, true, 5);

    worker.stop().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
}

/// The strategy's setting for a table decides the format on disk, and the save loads again.
#[test]
fn saves_are_compressed_where_the_description_says_so() {
    let (net, loss) = network(3, None);
    let text = "a_sync: true
        downpour_table_param { table_name: \"t\" shard_num: 3 compress_in_save: true }";
    let mut worker = alone(&net, &loss, &DistributedStrategy::parse(text).unwrap());
    let folder = std::env::temp_dir().join(format!("fleet-click-gzip-{}", std::process::id()));
    step(&mut worker, &samples(0, 0, 3));
    let saved = worker.save_persistables(&folder, SaveMode::All, SaveFormat::Text).unwrap();
    let parts = |end: &str| {
        let files = std::fs::read_dir(folder.join("000")).unwrap().flatten();
        let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with("part-") && name.ends_with(end)).count()
    };
    assert_eq!((parts(".gz"), parts("")), (2, 2), "of two servers, all of them");
    let rows = worker.table_stats("t").unwrap().row_count;
    assert_eq!((worker.clear("t").unwrap(), saved.row_count > 0), (rows, true));
    assert_eq!(worker.load_table("t", &folder).unwrap(), rows);
    worker.stop().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
}

#[test]
fn unseen_rows_age_and_go() {
    let (net, loss) = network(3, None);
    let lasting = ACCESSOR.replace("decay_rate: 0.5", "decay_rate: 1");
    let lasting = lasting.replace("delete_threshold: 1.5", "delete_threshold: 0");
    let mut worker = alone(&net, &loss, &strategy("a_sync: true", "SparseAccessor", &lasting));
    let folder = std::env::temp_dir().join(format!("fleet-click-ages-{}", std::process::id()));
    let seen = |id: i64| Samples { ids: vec![id; BATCH * IDS], ..samples(0, 0, 3) };
    step(&mut worker, &seen(1));
    // Rows may be unseen for two days (`delete_after_unseen_days`); id 2 occurs every day.
    for day in 1..=3 {
        step(&mut worker, &seen(2));
        worker.save_persistables(&folder, SaveMode::AllAndAge, SaveFormat::Binary).unwrap();
        assert_eq!(worker.shrink(None).unwrap(), u64::from(day == 3), "day {day}");
    }
    assert_eq!(worker.table_stats("t").unwrap().row_count, 1);
    assert_eq!(worker.shrink(Some(0)).unwrap(), 1, "id 2 is unseen today");
    worker.stop().unwrap();
    let _ = std::fs::remove_dir_all(&folder);
}

/// Several features share a table, and their lookups are side by side. A text save names each row's
/// feature, and an id that is only read has no row.
#[test]
fn rows_keep_their_feature() {
    for mode in ["a_sync: false", "a_sync: true"] {
        let net = Net::new();
        let table = || SparseEmbedding::new(1u64 << 40, 3).weight(ParamAttr::from("t"));
        let looked = |name: &str, with: SparseEmbedding| {
            net.data(name, [-1, 1], DType::I64).sparse_embedding(with.padding_idx(5))
        };
        let [a, b, c] = [("a", table().slot(7)), ("b", table().slot(9)), ("c", table())]
            .map(|(name, with)| looked(name, with));
        let read = looked("read", table().is_test(true));
        let loss = net.concat(&[a, b, c, read], 1).mean().name();
        let mut worker = alone(&net, &loss, &strategy(mode, "SparseAccessor", ACCESSOR));
        let column = |ids: [i64; 2]| Tensor::from_slice(&ids, [2, 1]).unwrap();
        let (a, b, c, read) = (column([1, 2]), column([5, 3]), column([4, 4]), column([100, 1]));
        for _ in 0..3 {
            worker.run(&[("a", &a), ("b", &b), ("c", &c), ("read", &read)], &[]).unwrap();
        }
        worker.flush().unwrap();
        let name = format!("fleet-click-slots-{}-{}", mode.len(), std::process::id());
        let folder = std::env::temp_dir().join(name);
        worker.save_persistables(&folder, SaveMode::All, SaveFormat::Text).unwrap();
        let mut kept = BTreeMap::new();
        for part in std::fs::read_dir(folder.join("000")).unwrap() {
            let part = part.unwrap();
            // The folder also holds a description of the table.
            if !part.file_name().to_string_lossy().starts_with("part-") {
                continue;
            }
            for line in std::fs::read_to_string(part.path()).unwrap().lines() {
                let mut words = line.split(' ').map(|word| word.parse::<f64>().unwrap());
                let (id, slot) = (words.next().unwrap(), words.next().unwrap());
                kept.insert(id as u64, slot as u32);
            }
        }
        worker.stop().unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(kept, BTreeMap::from([(1, 7), (2, 7), (3, 9), (4, 0)]), "{mode}");
    }
}

/// Entry rules of plain tables, set by a program: a row is created by the third pull.
#[test]
fn ids_that_are_rare_get_no_row() {
    let (net, loss) = network(2, Some(Entry::Count(3)));
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let mut worker = alone(&net, &loss, &strategy);
    let batch = Samples {
        ids: vec![7; BATCH * IDS],
        factors: vec![1.0; BATCH * IDS * 2],
        show: vec![1; BATCH],
        click: vec![0; BATCH],
    };
    for seen in 1..=4 {
        step(&mut worker, &batch);
        worker.flush().unwrap();
        // The mean's gradient is 1/4 times 1/2 for each occurrence of an id.
        let want = if seen < 3 { 0.0 } else { 0.5 - 0.25 * 0.5 * f32::from(seen - 2u8) };
        assert_eq!(worker.read_rows("t", &[7]).unwrap(), [want; 2], "seen {seen} times");
    }
    worker.stop().unwrap();

    let (net, loss) = network(2, Some(Entry::Probability(0.5)));
    let mut worker = alone(&net, &loss, &strategy);
    for start in 0..50 {
        let ids = (0..BATCH * IDS).map(|at| (start * BATCH * IDS + at) as i64).collect();
        step(&mut worker, &Samples { ids, factors: batch.factors.clone(), ..samples(0, 0, 2) });
    }
    worker.flush().unwrap();
    let rows = worker.table_stats("t").unwrap().row_count;
    assert!((150..250).contains(&rows), "{rows} of 400");
    worker.stop().unwrap();
}

#[test]
fn descriptions_that_do_not_fit_are_refused() {
    let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
    let check = |text: &str, kind: ErrorKind, words: &str| {
        let (net, loss) = network(4, None);
        let strategy = DistributedStrategy::parse(text).unwrap();
        let error = job(&net, &loss, &strategy, place).unwrap_err();
        assert!(error.to_string().contains(words), "{text}: {error}");
        assert_eq!(error.kind(), kind, "{error}");
    };
    let table = |inside: &str| format!("downpour_table_param {{ table_name: \"t\" {inside} }}");
    let accessor = |inside: &str| table(&format!("accessor {{ {inside} }}"));
    let (invalid, unsupported) = (ErrorKind::Invalid, ErrorKind::Unsupported);
    let common = "accessor_class: \"CtrCommonAccessor\"";
    check("downpour_table_param { table_name: \"u\" }", invalid, "a table_name of [\"t\"]");
    check("downpour_table_param { table_id: 3 }", invalid, "got number 3");
    check(&table("type: PS_DENSE_TABLE"), unsupported, "dense tables cannot be described");
    check(
        &accessor(&format!("{common} fea_dim: 7")),
        invalid,
        "fea_dim does not match the embedding: expected 4 (sparse_embedding_dim), got 7",
    );
    check(
        &accessor(&format!("{common} embedx_dim: 4")),
        invalid,
        "expected 1 (sparse_embedding_dim - 3)",
    );
    check(&accessor("fea_dim: 4"), invalid, "expected 6 (sparse_embedding_dim + 2), got 4");
    check(&accessor("accessor_class: \"CtrDymfAccessor\""), unsupported, "CtrCommonAccessor");
    check(&accessor("embed_sgd_param { name: \"x\" }"), unsupported, "SparseNaiveSGDRule");
    check(&accessor("embed_sgd_param { }"), invalid, "ambiguous update rule");
    check(
        &accessor("ctr_accessor_param { delta_keep_days: 70 }"),
        invalid,
        "a whole number from 0 to 62",
    );
    let geo = format!("{} a_sync_configs {{ k_steps: 4 }}", accessor(common));
    check(&geo, unsupported, "GEO does not support click tables");
}
