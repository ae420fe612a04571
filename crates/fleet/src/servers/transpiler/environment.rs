//! The call of `transpile`, compared with the environment of the process.

use super::Part;
use fleet_base::{Error, Result};
use fleet_topology::{Endpoint, Env, Role, names};
use std::fmt::Display;

/// The job that a call of `transpile` describes, and the part of this process in it.
pub(super) struct Call<'a> {
    pub part: Part<'a>,
    pub trainer_id: usize,
    pub trainers: usize,
    /// Modes nccl2 and collective.
    pub trainer_endpoints: Vec<Endpoint>,
    /// Mode pserver.
    pub servers: Vec<Endpoint>,
}

impl Call<'_> {
    /// Returns an error if the environment describes another job, or another process of it.
    pub fn check(&self, env: &Env) -> Result<()> {
        let role = match self.part {
            Part::Trainer => Role::Worker,
            Part::Pserver(_) => Role::Server,
        };
        same(names::TRAINING_ROLE, role.env_name(), env.text(names::TRAINING_ROLE))?;
        same(names::PADDLE_TRAINERS_NUM, self.trainers, env.number(names::PADDLE_TRAINERS_NUM)?)?;
        same_list(names::PADDLE_PSERVERS_IP_PORT_LIST, &self.servers, env)?;
        let workers = workers(env)?.len();
        match self.trainer_endpoints.is_empty() {
            false => same_list(names::PADDLE_TRAINER_ENDPOINTS, &self.trainer_endpoints, env)?,
            true if workers > 0 => same(
                names::PADDLE_TRAINER_ENDPOINTS,
                format!("{} trainers", self.trainers),
                Some(format!("{workers} trainers")),
            )?,
            true => {}
        }
        match self.part {
            Part::Trainer => {
                let id = env.number(names::PADDLE_TRAINER_ID)?;
                same(names::PADDLE_TRAINER_ID, self.trainer_id, id)?;
                let own = env.text(names::PADDLE_CURRENT_ENDPOINT);
                match self.trainer_endpoints.get(self.trainer_id) {
                    Some(endpoint) => {
                        same(names::PADDLE_CURRENT_ENDPOINT, &endpoint.to_string()[..], own)
                    }
                    None => Ok(()),
                }
            }
            Part::Pserver(endpoint) => {
                let (host, port) = (env.text(names::POD_IP), env.number(names::PADDLE_PORT)?);
                let Endpoint { host: own, port: own_port } = endpoint.parse()?;
                same(names::POD_IP, &own[..], host)?;
                same(names::PADDLE_PORT, own_port, port)
            }
        }
    }
}

/// Returns the endpoints of workers in the environment.
pub(super) fn workers(env: &Env) -> Result<Vec<Endpoint>> {
    let name = names::PADDLE_TRAINER_ENDPOINTS;
    Endpoint::list(name, env.text(name).unwrap_or_default())
}

fn same_list(name: &str, call: &[Endpoint], env: &Env) -> Result<()> {
    let found = Endpoint::list(name, env.text(name).unwrap_or_default())?;
    match found.is_empty() {
        true => Ok(()),
        false => same(name, Endpoint::join(call), Some(Endpoint::join(&found))),
    }
}

/// Compares the value of the call with that of a variable, if it is set.
fn same<T: PartialEq + Display>(name: &str, call: T, environment: Option<T>) -> Result<()> {
    match environment {
        Some(other) if call != other => {
            let call = call.to_string();
            Err(Error::invalid(format!("{name} differs from the call of transpile"))
                .expected(if call.is_empty() { "none".into() } else { call })
                .got(other)
                .help(format!("give transpile the job of the environment, or unset {name}")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVERS: &str = "10.0.0.1:6174,10.0.0.2:6174";
    const TRAINERS: &str = "10.0.0.3:6170,10.0.0.4:6170";

    fn refused(call: &Call<'_>, env: Env, words: &str) {
        let error = call.check(&env).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }

    #[test]
    fn an_environment_of_another_job_is_refused_with_both_values() {
        let trainer = |part| Call {
            part,
            trainer_id: 1,
            trainers: 2,
            trainer_endpoints: Vec::new(),
            servers: Endpoint::list("", SERVERS).unwrap(),
        };
        let call = trainer(Part::Trainer);
        call.check(&Env::new()).unwrap();
        let full = Env::from([
            ("TRAINING_ROLE", "TRAINER"),
            ("PADDLE_TRAINER_ID", "1"),
            ("PADDLE_TRAINERS_NUM", "2"),
            ("PADDLE_TRAINER_ENDPOINTS", TRAINERS),
            ("PADDLE_CURRENT_ENDPOINT", "10.0.0.4:6170"),
            ("PADDLE_PSERVERS_IP_PORT_LIST", SERVERS),
            ("POD_IP", "10.0.0.4"),
            ("PADDLE_PORT", "6170"),
        ]);
        call.check(&full).unwrap();
        let other = |name: &str, value: &str| {
            let mut env = full.clone();
            env.set(name, value);
            env
        };
        let words = "PADDLE_TRAINER_ID differs from the call of transpile: expected 1, got 0";
        refused(&call, other("PADDLE_TRAINER_ID", "0"), words);
        refused(&call, other("PADDLE_TRAINERS_NUM", "3"), "expected 2, got 3");
        refused(&call, other("TRAINING_ROLE", "PSERVER"), "expected TRAINER, got PSERVER");
        let words = "expected 10.0.0.1:6174,10.0.0.2:6174, got 10.0.0.1:6174";
        refused(&call, other("PADDLE_PSERVERS_IP_PORT_LIST", "10.0.0.1:6174"), words);
        let words = "expected 2 trainers, got 1 trainers";
        refused(&call, other("PADDLE_TRAINER_ENDPOINTS", "10.0.0.3:6170"), words);

        let server = trainer(Part::Pserver("10.0.0.2:6174"));
        let pod = |host: &str, port: &str| Env::from([("POD_IP", host), ("PADDLE_PORT", port)]);
        server.check(&pod("10.0.0.2", "6174")).unwrap();
        refused(&server, pod("10.0.0.1", "6174"), "POD_IP differs");
        refused(&server, pod("10.0.0.2", "6175"), "expected 6174, got 6175");
    }

    #[test]
    fn trainers_without_servers_compare_their_endpoints() {
        let call = Call {
            part: Part::Trainer,
            trainer_id: 0,
            trainers: 2,
            trainer_endpoints: Endpoint::list("", TRAINERS).unwrap(),
            servers: Vec::new(),
        };
        call.check(&Env::from([("PADDLE_TRAINER_ENDPOINTS", TRAINERS)])).unwrap();
        let env = Env::from([("PADDLE_TRAINER_ENDPOINTS", "10.0.0.3:6170,10.0.0.5:6170")]);
        refused(&call, env, "expected 10.0.0.3:6170,10.0.0.4:6170, got 10.0.0.3:6170,10.0.0.5");
        let env = Env::from([("PADDLE_CURRENT_ENDPOINT", "10.0.0.4:6170")]);
        refused(&call, env, "expected 10.0.0.3:6170, got 10.0.0.4:6170");
        let env = Env::from([("PADDLE_PSERVERS_IP_PORT_LIST", SERVERS)]);
        refused(&call, env, "expected none, got 10.0.0.1:6174");
    }
}
