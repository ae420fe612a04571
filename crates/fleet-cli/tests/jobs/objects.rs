//! Jobs whose data is in an object store.

use super::*;
use fleet_testhost::s3::{KEY_ID, ObjectServer};

/// Files of a job, and the same as objects.
fn parts() -> [(&'static str, Vec<u8>); 4] {
    let file = |seed| rows(seed, 1000).into_bytes();
    [
        ("days/part-1.csv", file(1)),
        ("days/part-2.csv", file(2)),
        ("days/notes.txt", b"not a part".to_vec()),
        ("new/test.csv", file(3)),
    ]
}

/// A job over objects, or over the same files.
fn job(name: &str, root: &str, rest: &str) -> Place {
    let place = binary_job(name, rest);
    let text = place.read("job.toml");
    let text = text.replace("\"train.csv\"", &format!("[\"{root}days/part-*.csv\"]"));
    let text = text.replace("\"test.csv\"", &format!("\"{root}new/test.csv\""));
    fs::write(place.0.join("job.toml"), text).unwrap();
    place
}

/// The files of a model that follow from the job's rows alone.
fn model(place: &Place) -> Vec<(String, Vec<u8>)> {
    let read = |name: String| {
        let bytes = fs::read(place.0.join("model").join(&name)).unwrap();
        (name, bytes)
    };
    let mut names: Vec<String> = fs::read_dir(place.0.join("model/program"))
        .unwrap()
        .map(|entry| format!("program/{}", entry.unwrap().file_name().to_str().unwrap()))
        .collect();
    names.push("features.json".to_string());
    names.sort();
    names.into_iter().map(read).collect()
}

/// Rows have the same parts, and the model the same bits, wherever the files are.
#[test]
fn objects_train_the_same_model_as_files() {
    let server = ObjectServer::start(parts());
    let settings = server.settings(KEY_ID);
    for (name, line) in [
        ("memory", "fleet job train job.toml --threads 2"),
        ("ranks", "fleetrun --nproc_per_node 2 job:job.toml"),
        ("streams", "fleet job train job.toml --threads 2"),
    ] {
        // Rows are streamed if they do not fit into memory.
        let streams = |place: Place| {
            let memory = if name == "streams" { "memory = \"1KB\"\nmissing" } else { "missing" };
            let text = place.read("job.toml").replace("missing", memory);
            fs::write(place.0.join("job.toml"), text).unwrap();
            place
        };
        let local = streams(job(&format!("objects-{name}-files"), "", SHORT));
        for (key, bytes) in parts() {
            let path = local.0.join(key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        }
        let remote = job(&format!("objects-{name}"), "s3://clicks/", SHORT);
        let remote = streams(remote).with(&settings);
        if name == "memory" {
            let said = remote.run("fleet job check job.toml");
            assert!(said.contains("no problems, 2 k rows of 2 files"), "{said}");
        }
        local.run(line);
        remote.run(line);
        assert!(remote.measure("auc") > 0.85, "{}", remote.measure("auc"));
        assert_eq!(local.measure("auc"), remote.measure("auc"), "{name}");
        let (local, remote) = (model(&local), model(&remote));
        assert!(local == remote, "{name}: the models differ");
    }
}

#[test]
fn a_killed_job_resumes_with_its_objects() {
    let server = ObjectServer::start(parts());
    let place = |name: &str| {
        let place = job(name, "s3://clicks/", resume::LONG).with(&server.settings(KEY_ID));
        let memory = "memory = \"1KB\"\nwindow = 500\nmissing";
        fs::write(place.0.join("job.toml"), place.read("job.toml").replace("missing", memory))
            .unwrap();
        place
    };
    let (whole, killed) = (place("objects-whole"), place("objects-killed"));
    let line = "fleet job train job.toml --threads 1";
    whole.run(line);
    resume::kill_after_checkpoint(&killed, line, &["checkpoint.json"]);
    let said = killed.run(line);
    assert!(said.contains("resumed after step"), "{said}");
    assert!(model(&whole) == model(&killed));
    assert_eq!(resume::report(&killed), resume::report(&whole));
}

#[test]
fn objects_are_predicted_measured_and_described() {
    let server = ObjectServer::start(parts());
    let place = job("objects-predicted", "s3://clicks/", SHORT).with(&server.settings(KEY_ID));
    place.run("fleet job train job.toml --threads 2");
    let by_bucket = place.predict("s3://clicks/new/*.csv");
    assert_eq!(by_bucket.len(), 1000);
    // A plain name is not listed, so that web servers will do.
    let lists = server.lists();
    let web = server.url("new/test.csv");
    assert_eq!(place.predict(&web), by_bucket);
    assert_eq!(server.lists(), lists);
    fs::write(place.0.join("test.csv"), &parts()[3].1).unwrap();
    assert_eq!(place.predict("test.csv"), by_bucket);
    let said = place.run("fleet job report model --data s3://clicks/new/test.csv");
    assert!(said.contains(&format!("AUC         {:.4}", place.measure("auc"))), "{said}");
    let said = place.run("fleet job init --data s3://clicks/days/part-*.csv --out init.toml");
    assert!(said.contains("the label is 'y'"), "{said}");
    assert!(place.read("init.toml").contains("train = [\"s3://clicks/days/part-*.csv\"]"));
    place.run("fleet job check init.toml");
}

/// Parquet files are read in parts: footers and columns.
#[test]
fn parquet_objects_are_read() {
    let classes = "[columns]\nkind = { role = \"label\", kind = \"category\", \
        classes = [\"a\", \"b\", \"c\"] }\ncity = { kind = \"category\" }\n[task]\n\
        kind = \"multi_class\"\n";
    let place = Place::new("objects-classes", classes, SHORT);
    place.run("fleet job train job.toml --threads 2");
    place.run("fleet predict model --data train.csv --out scores.parquet");
    let bytes = fs::read(place.0.join("scores.parquet")).unwrap();
    let server = ObjectServer::start([("scores.parquet", bytes)]);
    let head = "[columns]\nscore_a = { role = \"label\" }\nscore_b = { kind = \"number\" }\n\
        score_c = { kind = \"number\" }\n[task]\nkind = \"regression\"\n";
    let place = Place::new("objects-parquet", head, SHORT).with(&server.settings(KEY_ID));
    let text = place.read("job.toml").replace("\"train.csv\"", "\"s3://clicks/*.parquet\"");
    let text = text.replace("test = { files = [\"test.csv\"] }", "test = { share = 0.2 }");
    fs::write(place.0.join("job.toml"), text).unwrap();
    place.run("fleet job train job.toml --threads 2");
    // The scores of a row add up to 1.
    assert!(place.measure("r2") > 0.95, "{}", place.measure("r2"));
    assert_eq!(place.predict("s3://clicks/scores.parquet").len(), 3000);
}

#[test]
fn faults_of_objects_are_named() {
    let server = ObjectServer::start(parts());
    let place = job("objects-faults", "s3://clicks/", SHORT).with(&server.settings(KEY_ID));
    let text = place.read("job.toml");
    let change = |from: &str, to: &str| {
        assert!(text.contains(from));
        fs::write(place.0.join("job.toml"), text.replace(from, to)).unwrap();
    };
    let web = server.url("days");
    for (from, to, expected) in [
        ("days/part-*", "years/part-*", "no object matches the pattern"),
        // A missing test is found before the training.
        ("new/test.csv", "new/none.csv", "s3://clicks/new/none.csv"),
        ("s3://clicks/days", &web, "give the name of each file"),
    ] {
        change(from, to);
        let said = place.fail("fleet job train job.toml");
        assert!(said.contains(expected) && !said.contains("epoch"), "{said}");
        let mut places: Vec<&str> = said.lines().filter(|it| it.starts_with("  at ")).collect();
        let count = places.len();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), count, "a place is named twice: {said}");
    }
    change("missing", "missing");
    for line in [
        "fleet job train job.toml --output s3://clicks/model",
        "fleet job check s3://clicks/job.toml",
        "fleet predict s3://clicks/model --data x.csv --out scores.csv",
    ] {
        let said = place.fail(line);
        assert!(said.contains("cannot be in an object store"), "{said}");
    }
}
