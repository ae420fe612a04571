//! Tests of the list of environment variables.

use fleet_topology::{Env, VARIABLES, names};
use std::collections::HashSet;

#[test]
fn every_name_stands_once_with_a_meaning_and_a_reader() {
    let mut seen = HashSet::new();
    for variable in VARIABLES {
        assert!(seen.insert(variable.name), "{} is listed twice", variable.name);
        assert!(!variable.meaning.is_empty() && !variable.readers.is_empty(), "{}", variable.name);
    }
}

#[test]
fn secrets_are_masked_and_an_environment_shows_no_values() {
    assert_eq!(names::shown(names::FLEET_TOKEN, "a secret of the job"), "***");
    assert_eq!(names::shown("HOME", "/root"), "/root");
    let env = Env::from([(names::FLEET_TOKEN, "a-secret-of-the-job")]);
    assert_eq!(format!("{env:?}"), "{\"FLEET_TOKEN\"}");
}
