//! Checks that the values of variables are ones that their readers accept.

use crate::names::{self, Form, Variable};
use crate::{Endpoint, Env};
use fleet_base::{Error, Result, units};

impl Variable {
    /// Checks that the variable is absent or has a value that its readers accept.
    ///
    /// ```
    /// use fleet_topology::{Env, names};
    /// let id = names::find(names::PADDLE_TRAINER_ID).unwrap();
    /// assert!(id.check(&Env::from([("PADDLE_TRAINER_ID", "0")])).is_ok());
    /// let error = id.check(&Env::from([("PADDLE_TRAINER_ID", "first")])).unwrap_err();
    /// assert!(error.to_string().ends_with("expected a whole number, at least 0, got 'first'"));
    /// ```
    pub fn check(&self, env: &Env) -> Result<()> {
        let Some(value) = env.text(self.name) else { return Ok(()) };
        let whole = |min: i64, max: i64| {
            value.parse::<i64>().is_ok_and(|value| (min..=max).contains(&value))
        };
        let (fits, expected) = match self.form {
            Form::Anything => return Ok(()),
            Form::Switch => return env.switch(self.name).map(|_| ()),
            Form::Integer(min) => (whole(min, i64::MAX), format!("a whole number, at least {min}")),
            Form::Port => (whole(0, u16::MAX.into()), "a port, 0 to 65535".into()),
            Form::Fraction => {
                let share = value.parse::<f64>().is_ok_and(|value| (0.0..=1.0).contains(&value));
                (share, "a number from 0 to 1".into())
            }
            Form::Endpoint => (value.parse::<Endpoint>().is_ok(), "HOST:PORT".into()),
            Form::Endpoints => (
                Endpoint::list(self.name, value).is_ok(),
                "a list of HOST:PORT, separated by commas".into(),
            ),
            Form::Size => (units::size(value).is_ok(), "a size with a unit, such as 2GiB".into()),
            Form::NodeRange => (nodes(value), "N or MIN:MAX".into()),
            Form::OneOf(known) => (known.contains(&value), format!("one of {}", known.join(", "))),
        };
        if fits {
            return Ok(());
        }
        let value = names::shown(self.name, value);
        Err(Error::invalid(format!("invalid value of environment variable {}", self.name))
            .expected(expected)
            .got(format!("'{value}'")))
    }
}

fn nodes(value: &str) -> bool {
    let count = |text: &str| text.trim().parse::<u32>().ok().filter(|count| *count > 0);
    match value.split_once(':') {
        None => count(value).is_some(),
        Some((min, max)) => count(min).zip(count(max)).is_some_and(|(min, max)| min <= max),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VARIABLES;

    fn fits(name: &str, value: &str) -> bool {
        let variable = names::find(name).expect("a known name");
        variable.check(&Env::from([(name, value)])).is_ok()
    }

    #[test]
    fn values_are_held_to_their_forms() {
        let check = |name: &str, right: &[&str], wrong: &[&str]| {
            right.iter().for_each(|value| assert!(fits(name, value), "{name}={value}"));
            wrong.iter().for_each(|value| assert!(!fits(name, value), "{name}={value}"));
        };
        check(names::PADDLE_TRAINERS_NUM, &["1", " 8 ", ""], &["0", "-1", "two", "1.5"]);
        check(names::PADDLE_PORT, &["0", "65535"], &["65536", "-1", "http"]);
        check(names::FLAGS_LAUNCH_BARRIER, &["1", "true", "OFF"], &["2", "maybe"]);
        check(names::FLAGS_FRACTION_OF_GPU_MEMORY_TO_USE, &["0", "0.9", "1"], &["1.1", "nan"]);
        check(names::FLEET_STORE, &["localhost:80"], &["localhost", "a:b:c", "a:99999"]);
        check(names::PADDLE_TRAINER_ENDPOINTS, &["a:1,b:2"], &["a", "a:1,,b:2"]);
        check(names::PADDLE_NNODES, &["2", "1:4"], &["0", "4:1", "1:", "x"]);
        check(names::TRAINING_ROLE, &["TRAINER", "PSERVER"], &["trainer", "BOSS"]);
        check(names::FLEET_MEMORY, &["512MiB", "2 GB"], &["512", "-1GiB", "0B"]);
        check(names::POD_NAME, &["anything at all"], &[]);
    }

    /// Every default that is a single value is one that its readers accept.
    #[test]
    fn defaults_fit() {
        for variable in VARIABLES.iter().filter(|variable| !variable.default.contains("CPU_NUM")) {
            assert!(fits(variable.name, variable.default), "{}", variable.name);
        }
    }
}
