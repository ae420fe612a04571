//! Tests of the list of environment variables.

use fleet_topology::{COMMUNICATOR, Env, Reader, VARIABLES, names};
use std::collections::HashSet;

#[test]
fn every_name_stands_once_with_a_meaning_and_a_reader() {
    let mut seen = HashSet::new();
    for variable in VARIABLES {
        assert!(seen.insert(variable.name), "{} is listed twice", variable.name);
        assert!(!variable.meaning.is_empty() && !variable.readers.is_empty(), "{}", variable.name);
    }
}

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/environment.md");
const MARK: &str = "<!-- variables: made from the list of variables, checked by a test -->\n";

/// The table of the guide (`FLEET_BLESS=1` writes it).
#[test]
fn the_guide_is_the_list() {
    let guide = std::fs::read_to_string(GUIDE).unwrap();
    let (before, _) = guide.split_once(MARK).expect("the mark in the guide");
    let mut expected = format!("{before}{MARK}\n| variable | default | read by | meaning |\n");
    expected += "| --- | --- | --- | --- |\n";
    for variable in VARIABLES {
        let readers: Vec<&str> =
            variable.readers.iter().map(|reader| reader_name(*reader)).collect();
        let why = variable.no_effect.map(|why| format!(". **No effect: {why}.**"));
        let meaning = variable.meaning.replace('|', "\\|") + &why.unwrap_or_default();
        let (name, default) = (variable.name, variable.default);
        expected += &format!("| `{name}` | {default} | {} | {meaning} |\n", readers.join(", "));
    }
    let expected = expected.replace("|  |", "| |");
    if std::env::var_os("FLEET_BLESS").is_some() {
        std::fs::write(GUIDE, expected).unwrap();
        return;
    }
    assert!(guide == expected, "docs/environment.md is not the list of variables: FLEET_BLESS=1");
}

fn reader_name(reader: Reader) -> &'static str {
    match reader {
        Reader::RoleMaker => "workers and servers",
        Reader::Launcher => "`fleetrun`",
        Reader::Worker => "workers",
        Reader::Server => "servers",
        Reader::Script => "scripts",
        Reader::Unused => "-",
    }
}

/// A variable without effect has the reason, and one with a reason has no reader.
#[test]
fn unused_variables_have_a_reason() {
    for variable in VARIABLES {
        let is_unused = variable.readers == [Reader::Unused];
        assert_eq!(is_unused, variable.no_effect.is_some(), "{}", variable.name);
    }
}

/// The settings of the communicator are variables with a default that is a number.
#[test]
fn settings_have_defaults() {
    for setting in COMMUNICATOR {
        let default = setting.default();
        let number = default.strip_prefix("CPU_NUM, else ").unwrap_or(default);
        assert!(number.parse::<usize>().is_ok(), "{}: '{default}'", setting.variable);
        assert_eq!(setting.value(&Env::new()).unwrap().to_string(), number);
        assert!(setting.alternative.is_none_or(|name| names::find(name).is_some()));
    }
}

#[test]
fn secrets_are_masked_and_an_environment_shows_no_values() {
    assert_eq!(names::shown(names::FLEET_TOKEN, "a secret of the job"), "***");
    assert_eq!(names::shown("HOME", "/root"), "/root");
    let env = Env::from([(names::FLEET_TOKEN, "a-secret-of-the-job")]);
    assert_eq!(format!("{env:?}"), "{\"FLEET_TOKEN\"}");
}
