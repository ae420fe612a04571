//! `train_from_dataset` and `infer_from_dataset` in one process.

use crate::{Folder, line, loaded, parameters, session, text_files};
use fleet::DatasetRun;
use fleet::data::{
    Batch, BatchSource, DatasetOptions, OnError, QueueDataset, Schema, Slot, TextFiles,
};
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
    for mut reader in dataset.readers(1).unwrap() {
        while reader.next_batch(&mut batch).unwrap() {
            by_hand.run(&batch.feeds(), &[]).unwrap();
        }
    }
    for threads in [0, 1, 2, 5] {
        let (mut session, _) = session();
        let run = DatasetRun::new().threads(threads).ahead(threads + 1);
        let report = session.train_from_dataset(&dataset, run).unwrap();
        assert_eq!((report.batches, report.records), (14, 105));
        assert!(report.last.is_empty() && report.starved_seconds <= report.seconds);
        assert_eq!(parameters(&session), parameters(&by_hand), "{threads} threads");
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

    // A handler that is due late sees the last batch; its error ends the pass.
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
    assert!(error.contains("nothing for input 'y'"), "{error}");
    let none = loaded(text_files(&session, 8), &[folder.file("empty", b"")]);
    assert_eq!(session.train_from_dataset(&none, DatasetRun::new()).unwrap().batches, 0);
    assert!(session.train_from_dataset(&none, DatasetRun::new().ahead(0)).is_err());
}

/// The sum of the rows of a record's words, each row being (its number, 1).
fn pooled(width: i64, lines: &str) -> Result<Vec<f32>> {
    let net = Net::new();
    let words = net.data("words", [-1, width], DType::I64);
    let rows = words.embedding(Embedding::new(12, 2).padding_idx(9).weight("table"));
    let sums = rows.reduce_sum([1], false).name();
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
    let run = DatasetRun::new().fetch("sums", &sums).print_period(0);
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
    assert_eq!(pooled(4, lines).unwrap(), sums);
    assert_eq!(pooled(-1, lines).unwrap(), sums);
    let long = pooled(2, lines).unwrap_err().to_string();
    assert!(long.contains("slot 'words' has too many values: expected at most 2, got 3"), "{long}");
}
