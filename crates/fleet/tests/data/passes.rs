//! `train_from_dataset` and `infer_from_dataset` in one process.

use crate::{Folder, line, loaded, parameters, session, text_files};
use fleet::data::{Batch, OnError};
use fleet::prelude::*;
use std::path::PathBuf;
use std::time::Duration;

fn files(folder: &Folder, count: usize, lines: usize) -> Vec<PathBuf> {
    let text = |file: usize| (file * lines..(file + 1) * lines).map(line).collect::<String>();
    (0..count).map(|file| folder.file(&format!("part-{file}"), text(file).as_bytes())).collect()
}

#[test]
fn a_pass_gives_the_bits_of_a_loop_by_hand_on_any_number_of_threads() {
    let folder = Folder::new("pass");
    let files = files(&folder, 3, 35);
    let (mut by_hand, _) = session();
    let mut dataset = loaded(text_files(&by_hand, 8), &files);
    dataset.local_shuffle();
    let mut batch = Batch::new(dataset.layout());
    for mut reader in dataset.sources(1).unwrap() {
        while reader.next_batch(&mut batch).unwrap() {
            by_hand.run(&batch.feeds(), &[]).unwrap();
        }
    }
    for threads in [0, 1, 2, 5] {
        let (mut session, _) = session();
        let run = DatasetRun::new().threads(threads).ahead(threads + 1);
        let report = session.train_from_dataset(&dataset, run).unwrap();
        assert_eq!((report.batches, report.records), (14, 105));
        assert!(report.last.is_empty() && report.data_wait_seconds <= report.seconds);
        assert_eq!(parameters(&session), parameters(&by_hand), "{threads} threads");
    }
}

#[test]
fn a_pass_that_goes_on_computes_the_bits_of_one_that_never_stopped() {
    let folder = Folder::new("behind");
    let files = files(&folder, 3, 35);
    let (mut whole, _) = session();
    let mut dataset = loaded(text_files(&whole, 8), &files);
    dataset.local_shuffle();
    let mut queue = QueueDataset::new(text_files(&whole, 8)).unwrap();
    queue.set_filelist(&files).unwrap();
    for dataset in [&dataset as &dyn fleet::data::Dataset, &queue] {
        (whole, _) = session();
        whole.train_from_dataset(dataset, DatasetRun::new().threads(2)).unwrap();
        let (mut stopped, _) = session();
        let stop = DatasetRun::new().threads(2).handler(Duration::ZERO, |fetched| {
            if fetched.batches == 5 { Err(Error::unavailable("killed")) } else { Ok(()) }
        });
        assert_eq!(stopped.train_from_dataset(dataset, stop).unwrap_err().message(), "killed");
        assert_ne!(parameters(&stopped), parameters(&whole));
        let mut last = 0;
        let on = DatasetRun::new().threads(2).resume_at(5).handler(Duration::MAX, |fetched| {
            last = fetched.batches;
            Ok(())
        });
        let report = stopped.train_from_dataset(dataset, on).unwrap();
        assert_eq!(last, 5 + report.batches);
        assert_eq!(parameters(&stopped), parameters(&whole));
        let far = DatasetRun::new().threads(2).resume_at(100);
        let error = stopped.train_from_dataset(dataset, far).unwrap_err().to_string();
        assert!(error.contains("past the dataset's last batch"), "{error}");
    }
}

#[test]
fn the_last_batch_is_kept_or_dropped_and_streams_train_too() {
    let folder = Folder::new("stream");
    let files = files(&folder, 3, 20);
    for (drop_last, batches, records) in [(false, 9, 60), (true, 6, 48)] {
        let (mut session, loss) = session();
        let options = DatasetOptions { drop_last, threads: 3, ..text_files(&session, 8) };
        let mut dataset = QueueDataset::new(options).unwrap();
        dataset.set_filelist(&files).unwrap();
        let run = || DatasetRun::new().fetch("loss", &loss).print_period(0);
        let first = session.train_from_dataset(&dataset, run()).unwrap();
        assert_eq!((first.batches, first.records), (batches, records));
        for _ in 0..30 {
            session.train_from_dataset(&dataset, run()).unwrap();
        }
        let before = parameters(&session);
        let report = session.infer_from_dataset(&dataset, run()).unwrap();
        assert_eq!((report.batches, report.records), (batches, records));
        assert!(report.last[0].1.item::<f32>().unwrap() < 1e-3);
        assert_eq!(parameters(&session), before, "inference updates nothing");
    }
}

#[test]
fn what_is_fetched_is_printed_and_handed_over() {
    let folder = Folder::new("fetch");
    let files = files(&folder, 1, 70);
    let (mut session, loss) = session();
    let dataset = loaded(text_files(&session, 10), &files);
    let (mut lines, mut handled) = (Vec::new(), Vec::new());
    let run = DatasetRun::new()
        .fetch("the loss", &loss)
        .fetch("input", "x")
        .print_period(3)
        .debug(true)
        .print(|line| lines.push(line.to_string()))
        .handler(Duration::ZERO, |fetched| {
            let loss = fetched.values[0].1.item::<f32>()?;
            handled.push((fetched.batches, fetched.records, loss));
            Ok(())
        });
    let report = session.train_from_dataset(&dataset, run).unwrap();
    assert_eq!(lines.len(), 3, "{lines:?}");
    assert!(lines[0].starts_with("batch 3, the loss: 0.") && lines[1].starts_with("batch 6, "));
    assert!(lines[0].contains(", input: [") && lines[0].ends_with(" ..]"), "{}", lines[0]);
    assert!(lines[2].starts_with("7 batches, 70 records in "), "{}", lines[2]);
    assert_eq!(handled.len(), 7);
    assert_eq!((handled[6].0, handled[6].1), (7, 70));
    assert_eq!(report.last[0].1.item::<f32>().unwrap(), handled[6].2);

    // A handler with a long period sees only the last batch. A handler's error ends the pass.
    let mut calls = 0;
    let late = DatasetRun::new().handler(Duration::MAX, |fetched| {
        calls += 1;
        assert_eq!(fetched.batches, 7);
        Ok(())
    });
    session.train_from_dataset(&dataset, late).unwrap();
    assert_eq!(calls, 1);
    let stop =
        DatasetRun::new().handler(Duration::ZERO, |_| Err(Error::invalid("the loss has exploded")));
    let error = session.train_from_dataset(&dataset, stop).unwrap_err();
    assert_eq!(error.message(), "the loss has exploded");
}

#[test]
fn bad_lines_and_missing_inputs_are_named() {
    let folder = Folder::new("bad");
    let good: String = (0..20).map(line).collect();
    let bad = folder.file("bad", format!("{good}2 1 oops 1 1\n{good}").as_bytes());
    let (mut session, _) = session();
    let mut dataset = QueueDataset::new(text_files(&session, 8)).unwrap();
    dataset.set_filelist([&bad]).unwrap();
    let error = session.train_from_dataset(&dataset, DatasetRun::new()).unwrap_err().to_string();
    assert!(error.contains("bad:21:5, at 'oops"), "{error}");

    let schema = fleet::slots_of(&session.programs.main, &["x", "y"]).unwrap();
    let skipping = TextFiles::multi_slot(&schema).on_error(OnError::Skip { lines_max: 5 });
    let mut dataset = QueueDataset::new(DatasetOptions::new(skipping).unwrap()).unwrap();
    dataset.set_filelist([&bad]).unwrap();
    let report = session.train_from_dataset(&dataset, DatasetRun::new()).unwrap();
    assert_eq!((report.records, report.skipped.lines), (40, 1));

    let schema =
        Schema::new([Slot::dense_floats("x", [2]), Slot::dense_floats("yy", [1])]).unwrap();
    let options = DatasetOptions::new(TextFiles::multi_slot(&schema)).unwrap();
    let mut dataset = QueueDataset::new(options).unwrap();
    dataset.set_filelist([&bad]).unwrap();
    let error = session.train_from_dataset(&dataset, DatasetRun::new()).unwrap_err().to_string();
    assert!(error.contains("has no input 'y'"), "{error}");
    let none = loaded(text_files(&session, 8), &[folder.file("empty", b"")]);
    assert_eq!(session.train_from_dataset(&none, DatasetRun::new()).unwrap().batches, 0);
    assert!(session.train_from_dataset(&none, DatasetRun::new().ahead(0)).is_err());
}

/// Returns the sum of the embedding rows of each record's words; row i of the table is (i, 1).
fn pooled(width: i64, padding: Option<i64>, lines: &str) -> Result<Vec<f32>> {
    let net = Net::new();
    let words = net.data("words", [-1, width], DType::I64);
    let table = Embedding::new(12, 2).weight("table");
    let table = padding.map_or(table.clone(), |row| table.padding_idx(row));
    let sums = words.embedding(table).reduce_sum([1], false).name();
    looked_up(&net, &sums, lines)
}

/// Returns the values that a program fetches for lines of words, in batches of two.
fn looked_up(net: &Net, fetch: &str, lines: &str) -> Result<Vec<f32>> {
    let mut session = Session::new(net.build()?, ExecOptions::default())?;
    let table: Vec<f32> = (0..12).flat_map(|row| [row as f32, 1.0]).collect();
    session.scope.set("table", Tensor::from_slice(&table, [12, 2])?);
    let schema = Schema::new([Slot::ragged_ids("words")])?;
    let layout = fleet::feed_layout(&session.programs.main, &schema)?;
    let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    let folder = Folder::new("pooled");
    let mut dataset = QueueDataset::new(DatasetOptions { layout, batch_size: 2, ..options })?;
    dataset.set_filelist([folder.file("words", lines.as_bytes())])?;
    let mut all = Vec::new();
    let run = DatasetRun::new().fetch("fetched", fetch).print_period(0);
    let collect = run.handler(Duration::ZERO, |fetched| {
        all.extend(fetched.values[0].1.to_vec::<f32>()?);
        Ok(())
    });
    session.infer_from_dataset(&dataset, collect)?;
    Ok(all)
}

#[test]
fn ragged_slots_are_padded_as_the_program_wants() {
    let lines = "2 3 4\n1 5\n3 1 2 3\n";
    let sums = [7.0, 2.0, 5.0, 1.0, 6.0, 3.0];
    assert_eq!(pooled(4, Some(9), lines).unwrap(), sums);
    assert_eq!(pooled(-1, Some(9), lines).unwrap(), sums);
    let long = pooled(2, Some(9), lines).unwrap_err().to_string();
    assert!(long.contains("slot 'words' has too many values: expected at most 2, got 3"), "{long}");
    // Without a zero row, no id can pad short records.
    assert_eq!(pooled(2, None, "2 3 4\n2 5 1\n").unwrap(), [7.0, 2.0, 6.0, 2.0]);
    let short = pooled(4, None, lines).unwrap_err().to_string();
    assert!(short.contains("expected exactly 4 in every record, got 2"), "{short}");
    let longest = pooled(-1, None, lines).unwrap_err().to_string();
    assert!(longest.contains("input 'words'") && longest.contains("padding_idx"), "{longest}");
}

/// As the documented wide & deep: inputs of lod level 1, with one word per record.
#[test]
fn inputs_of_ragged_rows_take_one_id_a_record_beside_dense_ones() {
    let run = |lines: &str| {
        let net = Net::new();
        let words = net.data_lod("words", [-1, 1], DType::I64, 1);
        let rows = words.embedding(Embedding::new(12, 2).weight("table")).reshape([-1, 2]);
        // There are as many rows as words: one per record.
        let all = net.concat(&[rows, words.cast(DType::F32)], 1).name();
        looked_up(&net, &all, lines)
    };
    let rows = |words: &[f32]| words.iter().flat_map(|it| [*it, 1.0, *it]).collect::<Vec<f32>>();
    assert_eq!(run("1 3\n1 5\n1 4\n").unwrap(), rows(&[3.0, 5.0, 4.0]));
    assert_eq!(run("2 3 4\n1 5\n").unwrap(), rows(&[3.0, 4.0, 5.0]), "values, one a row");
}
