//! Generated rows, categories whose values are rows of a table, and the demo that is a job file.

use super::{Place, SHORT};
use std::fs;
use std::path::Path;

/// The job of the demo.
const EXAMPLE: &str = include_str!("../../../../examples/jobs/wide_deep.toml");

/// A folder with the example, whose model folder is `model`.
fn example(name: &str) -> Place {
    let place = Place::new(name, "[columns]", "");
    let job = EXAMPLE.replace("wide_deep-model", "model");
    fs::write(place.0.join("job.toml"), job).unwrap();
    place
}

#[test]
fn generated_rows_are_trained_measured_and_scored() {
    let place = example("made");
    // More steps.
    let job = place.read("job.toml").replace("batch = 1024", "batch = 128");
    fs::write(place.0.join("job.toml"), job).unwrap();
    let said = place.run("fleet job check job.toml --rows 5000");
    assert!(said.contains("job.toml: no problems, the first 5 k rows of 23 files"), "{said}");
    for line in [
        "fleet job train job.toml --samples 20480 --threads 2",
        "fleetrun --nproc_per_node 2 job:job.toml --samples 20480",
        "fleetrun --server_num 1 --worker_num 2 job:job.toml --samples 20480",
    ] {
        let said = place.run(line);
        for part in ["20.48 k rows to train on", "wide_deep with", "best AUC", "saved"] {
            assert!(said.contains(part), "{line}: '{part}' is not in:\n{said}");
        }
        let (auc, best) = (place.measure("auc"), place.measure("best_auc"));
        assert!(auc > 0.6 && auc < best && best > 0.79 && best < 0.81, "{line}: {auc}, {best}");
        assert_eq!(place.measure("rows"), 20_480.0);
        // The job of the model has the rows that it was trained on.
        assert!(place.read("model/job.toml").contains("made:ctr/0..20480"));
    }
    assert_eq!(place.predict("made:ctr/2_000_000..2_000_100").len(), 100);
    let said = place.run("fleet job report model --data made:ctr/3000000..3005000");
    assert!(said.contains("data        5 k rows") && said.contains("best AUC"), "{said}");
    let said =
        place.fail("fleet predict model --data made:ctr/0..10 --keep label --out scores.csv");
    assert!(said.contains("--keep is not supported with generated rows"), "{said}");
    let said = place.fail("fleet job init --data made:ctr/0..10 --out new.toml");
    assert!(said.contains("fleet job init looks at files"), "{said}");
}

/// Files with their bytes, in the order of their names.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap())
        .map(|it| (it.file_name().into_string().unwrap(), fs::read(it.path()).unwrap()))
        .collect();
    files.sort();
    assert!(!files.is_empty());
    files
}

#[test]
fn the_demo_trains_the_example() {
    let place = example("made_demo");
    let said = place.run("fleet demo wide_deep --samples 4096 --threads 2 --output demo");
    assert!(said.contains("demo:wide_deep: 4.1 k rows to train on"), "{said}");
    place.run("fleet job train job.toml --samples 4096 --threads 2");
    let of = |model: &str| files(&place.0.join(model).join("program"));
    assert!(of("demo") == of("model"), "the models differ");
    let said = place.run("fleet demo wide_deep --samples 1024 --threads 1");
    assert!(!said.contains("saved  ") && said.contains("best AUC"), "{said}");
}

#[test]
fn flags_that_do_not_apply_are_refused() {
    let place = Place::new(
        "made_flags",
        "[columns]\ny = { role = \"label\", positive = \"yes\" }\
        \nage = { kind = \"number\" }",
        SHORT,
    );
    for (line, part) in [
        ("fleet job train job.toml --samples 10", "--samples applies only to jobs"),
        ("fleet job train job.toml --durable kept", "--durable needs parameter servers"),
        ("fleet job train job.toml --strategy none.prototxt", "none.prototxt"),
        ("fleet job train job.toml --trace job.toml/t", "job.toml is not a folder"),
    ] {
        let said = place.fail(line);
        assert!(said.contains(part), "{line}: {said}");
    }
    place.run("fleet job train job.toml --checkpoint kept --checkpoint-every 50 --trace traces");
    assert!(place.0.join("traces/rank-0.json").is_file());
    assert!(fs::read_dir(place.0.join("kept")).unwrap().count() > 0);
}

#[test]
fn integers_are_rows_of_a_table() {
    let head = "[columns]\ny = { role = \"label\" }\nuser = { kind = \"category\", rows = 50 }\n\
        item = { kind = \"category\", rows = 3 }\n[crosses]\npair = [\"user\", \"item\"]";
    let place = Place::new("rows", head, SHORT);
    let write = |name: &str, rows: usize| {
        let row = |at: usize| {
            let (user, item) = (at * 7 % 50, at % 4);
            let item = if item == 3 { String::new() } else { item.to_string() };
            format!("{user},{item},{}\n", u8::from(user % 3 == at % 4))
        };
        let text: String = (0..rows).map(row).collect();
        fs::write(place.0.join(name), format!("user,item,y\n{text}")).unwrap();
    };
    write("train.csv", 2000);
    write("test.csv", 400);
    place.run("fleet job check job.toml");
    place.run("fleet job train job.toml --threads 2");
    assert!(place.measure("auc") > 0.95, "{}", place.measure("auc"));
    let scores = place.predict("test.csv");
    assert_eq!(scores.len(), 400);
    place.run("fleetrun --server_num 1 --worker_num 2 job:job.toml");
    assert!(place.measure("auc") > 0.9, "{}", place.measure("auc"));
    fs::write(place.0.join("bad.csv"), "user,item\n49,2\n7,3\n").unwrap();
    let said = place.fail("fleet predict model --data bad.csv --out scores.csv");
    let what = "column 'item' is not the number of a row: expected an integer from 0 to 2, got 3";
    assert!(said.contains(what) && said.contains("bad.csv:3:3"), "{said}");
}
