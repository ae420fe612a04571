//! The guide of jobs has the tables of all fields (`FLEET_BLESS=1` writes them), and the example
//! job files are right.

use std::fs;
use std::path::{Path, PathBuf};

const START: &str = "<!-- fields: written by the test `docs` of fleet-job -->\n";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

#[test]
fn the_guide_lists_all_fields() {
    let path = root().join("docs/jobs.md");
    let guide = fs::read_to_string(&path).unwrap();
    let (text, _) = guide.split_once(START).expect("the guide has the mark of the fields");
    let expected = format!("{text}{START}\n{}", fleet_job::schema::markdown());
    if std::env::var_os("FLEET_BLESS").is_some() {
        fs::write(&path, expected).unwrap();
        return;
    }
    assert!(guide == expected, "docs/jobs.md does not list the fields of a job: FLEET_BLESS=1");
}

#[test]
fn examples_have_no_problems() {
    let folder = root().join("examples/jobs");
    let files = fs::read_dir(folder).unwrap().map(|it| it.unwrap().path());
    let files: Vec<PathBuf> =
        files.filter(|file| file.extension().is_some_and(|ending| ending == "toml")).collect();
    assert!(files.len() >= 2);
    for file in files {
        let problems = fleet_job::problems_of(&file, &fs::read_to_string(&file).unwrap());
        assert!(problems.is_empty(), "{}", problems[0]);
    }
}
