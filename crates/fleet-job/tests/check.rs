//! Bad job files, and the problems that a check finds in each: `bad/NAME.toml` and `bad/NAME.out`
//! (`FLEET_BLESS=1` writes the latter).

use std::fs;
use std::path::Path;

#[test]
fn every_problem_is_named_with_its_place() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bad");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|it| it.unwrap().path()).collect();
    files.retain(|file| file.extension().is_some_and(|ending| ending == "toml"));
    files.sort();
    assert!(files.len() > 10);
    let mut wrong = Vec::new();
    for file in files {
        let name = file.file_name().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let problems = fleet_job::problems_of(name.as_ref(), &text);
        assert!(problems.iter().any(|problem| problem.is_error()), "{name:?} has no errors");
        let found: String = problems.iter().map(|problem| format!("{problem}\n")).collect();
        let expected = file.with_extension("out");
        if std::env::var_os("FLEET_BLESS").is_some() {
            fs::write(&expected, &found).unwrap();
        } else if fs::read_to_string(&expected).unwrap_or_default() != found {
            wrong.push(format!("{}:\n{found}", name.display()));
        }
    }
    assert!(wrong.is_empty(), "{}(FLEET_BLESS=1 writes the files)", wrong.join("\n"));
}

/// The schema is JSON, and names every table.
#[test]
fn the_schema_names_all_tables() {
    let schema = fleet_job::schema::json_schema();
    for table in ["data", "columns", "crosses", "task", "model", "train", "evaluation", "output"] {
        assert!(schema["properties"][table].is_object(), "{table}");
        let markdown = fleet_job::schema::markdown();
        assert!(markdown.contains(&format!("| `{table}` |")), "{table}");
    }
    assert_eq!(schema["required"], serde_json::json!(["version", "data", "columns"]));
}
