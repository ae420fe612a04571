//! The environment as a value.

use crate::names;
use fleet_base::{Error, Result, units};
use std::collections::BTreeMap;
use std::str::FromStr;

/// Environment variables, passed as an argument. Code sees only the variables that it was given.
///
/// ```
/// use fleet_topology::Env;
/// let mut env = Env::from([("CPU_NUM", "4")]);
/// env.set("TRAINING_ROLE", "PSERVER");
/// assert_eq!(env.get("TRAINING_ROLE"), Some("PSERVER"));
/// assert_eq!(env.number::<usize>("CPU_NUM")?, Some(4));
/// env.set("CPU_NUM", "four");
/// assert!(env.number::<usize>("CPU_NUM").unwrap_err().to_string().contains("'four'"));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Env(BTreeMap<String, String>);

impl Env {
    /// Returns an empty environment.
    pub fn new() -> Self {
        Env::default()
    }

    /// The environment of this process. Only `main` functions call this, and the constructors of a
    /// job for programs that pass no environment. Skips variables that are not Unicode; no variable
    /// of Fleet needs such a value.
    pub fn process() -> Self {
        let pairs = std::env::vars_os();
        Env(pairs
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
            .collect())
    }

    /// Returns the value of a variable, which may be empty.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// The value, unless it is absent or empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name).map(str::trim).filter(|value| !value.is_empty())
    }

    /// Sets a variable.
    pub fn set(&mut self, name: impl Into<String>, value: impl Into<String>) {
        self.0.insert(name.into(), value.into());
    }

    /// Removes a variable, and returns its value.
    pub fn remove(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    /// Iterates over the variables in alphabetical order, with their values.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Returns the number of variables.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether there are no variables.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value parsed as a number; `None` if the variable is absent or empty.
    pub fn number<T: FromStr>(&self, name: &str) -> Result<Option<T>> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let parsed = value.parse().map_err(|_| wrong(name, "a number in range", value))?;
        Ok(Some(parsed))
    }

    /// The value parsed as a size in bytes, such as `2GiB`; `None` if the variable is absent or
    /// empty.
    pub fn size(&self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match units::size(value) {
            Ok(size) => Ok(Some(size as u64)),
            Err(_) => Err(wrong(name, "a size with a unit, such as 2GiB", value)),
        }
    }

    /// The value parsed as a switch (0, 1, true, false, on, off, yes, no); `None` if the variable
    /// is absent or empty.
    pub fn switch(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.text(name) else { return Ok(None) };
        match value.to_ascii_lowercase().as_str() {
            "1" | "true" | "on" | "yes" => Ok(Some(true)),
            "0" | "false" | "off" | "no" => Ok(Some(false)),
            _ => Err(wrong(name, "0 or 1", value)),
        }
    }
}

fn wrong(name: &str, expected: &str, value: &str) -> Error {
    let value: String = value.chars().take(80).collect();
    Error::invalid(format!("invalid value of environment variable {name}"))
        .expected(expected)
        .got(format!("'{value}'"))
}

impl<K: Into<String>, V: Into<String>, const N: usize> From<[(K, V); N]> for Env {
    fn from(pairs: [(K, V); N]) -> Self {
        pairs.into_iter().collect()
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Env {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Env(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Prints names only, because an environment may hold secrets of other programs.
impl std::fmt::Debug for Env {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// Returns the error for a rank that the job does not have.
pub(crate) fn check_rank(rank: usize, worker_num: usize) -> Result<()> {
    if rank < worker_num {
        return Ok(());
    }
    Err(Error::invalid("worker rank out of range")
        .expected(format!("0 to {}", worker_num.saturating_sub(1)))
        .got(rank)
        .at(names::PADDLE_TRAINER_ID))
}

/// Returns the error for a missing variable.
pub(crate) fn not_found(name: &str) -> Error {
    Error::invalid(format!("missing environment variable {name}"))
        .help("start the script with fleetrun, or set the variables of the role by hand")
}
