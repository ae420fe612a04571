//! Files read through commands.
#![cfg(unix)]

use super::datasets::{Folder, ids_of, schema};
use fleet_base::rng::Sequence;
use fleet_data::{
    Batch, Block, Dataset, DatasetOptions, MultiSlotWriter, QueueDataset, RecordFormat, TextFiles,
    open_piped,
};
use std::io::Read;

#[test]
fn every_layout_survives_writing_piping_and_parsing() {
    let folder = Folder::new("pipe-layouts");
    for seed in 0..12 {
        let block = super::multislot::random_records(&mut Sequence::new(seed, 2), 30);
        let mut text = Vec::new();
        MultiSlotWriter::new(block.schema()).write(&block, &mut text).unwrap();
        let path = folder.file(&format!("part-{seed}"), &text);
        for command in ["", "cat", "sed 's/ /  /g' | tr -s ' '"] {
            let files = TextFiles::multi_slot(block.schema()).pipe_command(command);
            let mut reader = files.open(&path).unwrap();
            let mut read = Block::new(block.schema());
            while reader.read(7, &mut read).unwrap() > 0 {}
            assert_eq!(read, block, "seed {seed}, command '{command}'");
        }
    }
}

#[test]
fn a_failing_program_says_why() {
    let folder = Folder::new("pipe-failing");
    let path = folder.file("part-0", b"1 1\n1 2\n");
    let read = |command: &str| {
        let files = TextFiles::multi_slot(&schema()).pipe_command(command);
        let mut block = Block::new(&schema());
        let mut reader = files.open(&path).unwrap();
        while reader.read(1, &mut block).map_err(|error| error.to_string())? > 0 {}
        Ok::<Vec<i64>, String>(ids_of(&block))
    };
    assert_eq!(read("head -n 1").unwrap(), [1]);
    let error = read("cat; echo the dictionary is missing >&2; exit 3").unwrap_err();
    for part in ["exit 3' failed on", "exit status: 3", "the dictionary is missing", "part-0"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let error = read("no-such-program-here").unwrap_err();
    assert!(error.contains("exit status: 127") && error.contains("no-such-program"), "{error}");
    let error = read("kill -9 $$").unwrap_err();
    assert!(error.contains("signal: 9"), "{error}");
    // An error locates other output of a program than records.
    let error = read("echo hello; cat").unwrap_err();
    assert!(error.contains("part-0 (through 'echo hello; cat'):1:1, at 'hello'"), "{error}");
}

#[test]
fn a_program_that_is_not_wanted_any_more_is_ended() {
    let folder = Folder::new("pipe-endless");
    let path = folder.file("part-0", b"");
    let mut from = open_piped(&path, "echo $$; while :; do echo 1 1; sleep 0.01; done").unwrap();
    let mut text = String::new();
    let mut byte = [0];
    while from.read(&mut byte).unwrap() == 1 && byte != *b"\n" {
        text.push(char::from(byte[0]));
    }
    drop(from);
    // Signal 0 tests whether the process exists.
    let alive = std::process::Command::new("kill").args(["-0", &text]).output().unwrap();
    assert!(!alive.status.success());
}

#[test]
fn compressed_files_are_read_and_torn_ones_are_errors() {
    let folder = Folder::new("pipe-gzip");
    let path = folder.file("part-0", &b"1 123456\n1 7\n".repeat(5000));
    let zipped = std::process::Command::new("gzip").arg("-c").arg(&path).output().unwrap().stdout;
    let read = |bytes: &[u8], command: &str| {
        let path = folder.file("part-0.gz", bytes);
        let files = TextFiles::multi_slot(&schema()).pipe_command(command);
        let mut block = Block::new(&schema());
        let mut reader = files.open(&path).map_err(|error| error.to_string())?;
        while reader.read(100, &mut block).map_err(|error| error.to_string())? > 0 {}
        Ok::<usize, String>(block.len())
    };
    assert_eq!(read(&zipped, "gzip -dc").unwrap(), 10_000);
    assert_eq!(read(&zipped, "").unwrap(), 10_000);
    let error = read(&zipped[..zipped.len() / 2], "").unwrap_err();
    assert!(error.contains("cannot read") && error.contains("part-0.gz:"), "{error}");
    let error = read(&zipped[..zipped.len() / 2], "gzip -dc").unwrap_err();
    assert!(error.contains("gzip -dc' failed on") && error.contains("part-0.gz"), "{error}");
}

#[test]
fn files_from_elsewhere_come_through_a_command() {
    let folder = Folder::new("pipe-download");
    // A store whose object names contain shell syntax.
    let name = "day 1/it's $(id); part";
    std::fs::create_dir_all(folder.path.join("day 1")).unwrap();
    folder.file(name, b"1 1\n1 2\n1 3\n");
    let get = format!("get() {{ cat {}/\"$1\"; }}; get", folder.path.display());
    let read = |download: &str, pipe: &str, name: &str| {
        let files = TextFiles::multi_slot(&schema()).download_command(download).pipe_command(pipe);
        let mut dataset = QueueDataset::new(DatasetOptions::new(files).unwrap()).unwrap();
        dataset.set_filelist([name]).unwrap();
        let (mut batch, mut all) = (Batch::new(dataset.layout()), Vec::new());
        for mut reader in dataset.sources(0).unwrap() {
            while reader.next_batch(&mut batch).map_err(|error| error.to_string())? {
                all.extend(batch.tensor("id").unwrap().to_vec::<i64>().unwrap());
            }
        }
        Ok::<Vec<i64>, String>(all)
    };
    assert_eq!(read(&get, "", name).unwrap(), [1, 2, 3]);
    assert_eq!(read(&get, "tr 2 7", name).unwrap(), [1, 7, 3]);
    for pipe in ["", "cat -u"] {
        let error = read(&get, pipe, "day 2").unwrap_err();
        assert!(error.contains("download command") && error.contains("day 2"), "{error}");
    }
    // A pipe command that stops early is not an error of the download command.
    assert_eq!(read("yes '1 1' #", "head -n 2", name).unwrap(), [1, 1]);
    // If both commands fail, the error is that of the first.
    let error = read(&get, "cat; exit 1", "day 2").unwrap_err();
    assert!(error.contains("failed on day 2"), "{error}");
}

#[test]
fn a_line_without_end_is_an_error_and_its_program_is_ended() {
    let folder = Folder::new("pipe-long");
    let path = folder.file("part-0", b"");
    let files = TextFiles::multi_slot(&schema())
        .pipe_command("printf '1 1\\n'; head -c 1000000000 /dev/zero | tr '\\0' 7");
    let mut reader = files.open(&path).unwrap();
    let mut block = Block::new(&schema());
    assert_eq!(reader.read(1, &mut block).unwrap(), 1);
    let error = reader.read(1, &mut block).unwrap_err().to_string();
    assert!(error.contains("line is too long") && error.contains("'):2"), "{error}");
}

#[test]
fn folders_and_missing_files_are_named() {
    let folder = Folder::new("pipe-missing");
    let error = |path: &std::path::Path| open_piped(path, "").err().unwrap().to_string();
    assert!(error(&folder.path.join("nothing")).contains("nothing"));
    assert!(error(&folder.path).contains("expected a file of records, got a folder"));
}

#[test]
fn names_of_objects_are_no_files() {
    let name = "s3://clicks/part-0";
    let files = TextFiles::multi_slot(&schema());
    let open = files.open(name.as_ref()).map(drop).unwrap_err();
    let mut dataset = QueueDataset::new(DatasetOptions::new(files).unwrap()).unwrap();
    let listed = dataset.set_filelist([name]).unwrap_err();
    let globbed = fleet_data::glob("s3://clicks/part-*").unwrap_err();
    for error in [open, listed, globbed] {
        let error = error.to_string();
        assert!(error.starts_with("file is in an object store"), "{error}");
        assert!(error.contains("download_command") && error.contains("s3://clicks/"), "{error}");
    }
}
