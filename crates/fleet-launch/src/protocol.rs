//! The keys and values that the launchers of a job exchange through the store where they meet.
//!
//! One launcher leads and writes the plan. Every other launcher follows the plan and writes only
//! about itself:
//!
//! | key | written by | value |
//! | --- | --- | --- |
//! | `plan` | the leader | [`Plan`] |
//! | `node/ID` | that machine | [`Arrival`] |
//! | `beat/ID` | that machine, every second | a counter |
//! | `result/GENERATION/ID` | that machine | [`MachineEnd`] |
//! | `state/GENERATION/ID` | that machine | [`MachineState`] |
//! | `ended/GENERATION/RANK` | that worker's machine, immediately | [`WorkerEnd`] |
//! | `left/ID`, `bye/ID` | that machine | it leaves; it has read the final plan |
//! | `gone/ARRIVED` | the host of the store | the connection of that launcher broke for good |
//!
//! A value that cannot be parsed is an error that names its key.

use fleet_base::{Error, Result};
use fleet_net::{Limits, Store};
use fleet_topology::Endpoint;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Display;
use std::marker::PhantomData;
use std::num::ParseIntError;

/// Version of these keys and values. Changes when launchers of two versions cannot work together.
pub(crate) const PROTOCOL: u32 = 2;

/// Lease of the current run in etcd.
pub(crate) const RUN: &str = "run";
/// Id of the machine that leads, in etcd.
pub(crate) const LEADER: &str = "leader";
/// Counter from which each machine draws its number in the order of arrival.
pub(crate) const ARRIVALS: &str = "arrivals";
/// Key of the plan.
pub(crate) const PLAN: Key<Plan> = Key::new("plan", "a plan of the leader");
/// Entries of machines by id.
pub(crate) const NODES: Folder<Arrival> = Folder::new("node/", "the entry of a machine");
/// Heartbeat counters of machines by id.
pub(crate) const BEATS: Folder<u64> = Folder::new("beat/", "a number of heartbeats");
/// Machines that leave, by id.
pub(crate) const LEFT: Folder<()> = Folder::new("left/", "null");
/// Machines that have read the final plan, by id.
pub(crate) const FAREWELLS: Folder<()> = Folder::new("bye/", "null");
/// Launchers whose connection broke for good, by number of arrival.
pub(crate) const DISCONNECTED: Folder<()> = Folder::new("gone/", "null");

/// How the processes of machines ended, by id.
pub(crate) fn machine_ends(generation: u64) -> Folder<MachineEnd> {
    Folder::of_generation("result", generation, "the end of a machine's processes")
}

/// States of the processes of machines, by id.
pub(crate) fn states(generation: u64) -> Folder<MachineState> {
    Folder::of_generation("state", generation, "the state of a machine's processes")
}

/// How workers ended, by rank.
pub(crate) fn worker_ends(generation: u64) -> Folder<WorkerEnd> {
    Folder::of_generation("ended", generation, "the end of a worker")
}

/// A decision of the leader, which all machines follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub(crate) enum Plan {
    /// The machines run these processes.
    Run(RunPlan),
    /// The machines stop the processes of this generation. Another generation follows.
    Stop(StopPlan),
    /// The job is done or has failed: all launchers exit.
    Over(OverPlan),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunPlan {
    pub generation: u64,
    /// Id of the machine that leads.
    pub leader: String,
    /// Restarts because of failures so far.
    pub failures: u32,
    /// The machines in the order of their numbers.
    pub nodes: Vec<PlanNode>,
    /// Store of this generation's processes.
    #[serde(with = "as_text")]
    pub store: Endpoint,
    /// Combined state of the processes of all machines.
    pub progress: MachineState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StopPlan {
    pub generation: u64,
    pub leader: String,
    pub failures: u32,
    pub reason: String,
    /// Ids of the machines of this generation.
    pub members: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct OverPlan {
    pub generation: u64,
    pub leader: String,
    /// Exit code of all launchers.
    pub code: u8,
    pub reason: String,
    /// Id of the machine that caused the failure, if one did.
    pub culprit: Option<String>,
}

/// A machine in a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PlanNode {
    pub id: String,
    #[serde(flatten)]
    pub node: Node,
}

/// A machine that has joined.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Arrival {
    /// Its number in the order of arrival.
    pub arrived: i64,
    #[serde(flatten)]
    pub node: Node,
}

/// A machine with its processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    /// Address by which the other machines reach it.
    pub host: String,
    /// Number that the machine requests.
    pub rank: Option<usize>,
    /// Port of gloo's HTTP store if this machine becomes the first one; 0 without gloo.
    pub gloo: u16,
    pub workers: Vec<NodeProcess>,
    pub servers: Vec<NodeProcess>,
    /// Set if a list of hosts describes the job.
    pub listed: Option<Listed>,
    pub terms: Terms,
}

/// A process of a machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct NodeProcess {
    pub port: u16,
    pub devices: Vec<String>,
}

/// Data that a machine adds to a list of hosts, which describes everything else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Listed {
    /// Ports of its processes, in the order of `Cluster::places`.
    pub ports: Vec<u16>,
    /// Ranks of its workers, which need not be consecutive.
    pub ranks: Vec<usize>,
}

/// The flags that all launchers of a job must have in common. They are compared and shown, never
/// interpreted, and are therefore texts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Terms {
    pub protocol: String,
    pub mode: String,
    pub nnodes: String,
    pub elastic_level: String,
    pub job_id: String,
}

/// How the processes of a machine ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "end", rename_all = "lowercase")]
pub(crate) enum MachineEnd {
    /// All required processes have finished.
    Finished {
        /// First worker that failed while the others continued.
        lost: Option<LostWorker>,
    },
    Failed(Failure),
    /// Stopped as the plan demanded.
    Stopped,
    /// Stopped by a signal to the launcher.
    Interrupted,
}

/// A failed worker that the others could do without.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LostWorker {
    pub code: u8,
    pub report: String,
}

/// A failed process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub code: u8,
    /// The failure, with the last lines of the process's log.
    pub report: String,
    pub is_server: bool,
    pub rank: usize,
    /// Worker on another machine that the process reports as the cause of its failure.
    pub follows: Option<usize>,
}

/// State of the processes of a machine; in a plan, that of all machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MachineState {
    /// Workers have joined and wait for all others.
    pub has_joined: bool,
    /// The servers of the machine have finished or, in a collective job, some worker has.
    pub is_done: bool,
}

/// A failed worker, as announced to the workers that wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WorkerEnd {
    /// Id of its machine.
    pub id: String,
    pub host: String,
    pub host_id: String,
    pub pid: u32,
    /// Description of its end, such as `killed by SIGKILL (9)`.
    pub how: String,
    /// Exit code as a shell reports it: 128 + n for signal n.
    pub code: u8,
    /// Other worker that this one reports as the cause of its failure.
    pub follows: Option<usize>,
}

/// The values of the store that the leader of a generation needs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reading {
    pub nodes: Vec<(String, Arrival)>,
    pub beats: Vec<(String, u64)>,
    pub left: Vec<String>,
    pub disconnected: Vec<String>,
    pub farewells: Vec<String>,
    pub worker_ends: Vec<(usize, WorkerEnd)>,
    pub states: Vec<(String, MachineState)>,
    pub machine_ends: Vec<(String, MachineEnd)>,
    /// First value that cannot be parsed; the other fields lack it.
    pub malformed: Option<Error>,
}

impl Reading {
    pub(crate) fn of(store: &dyn Store, generation: u64, limits: &Limits) -> Result<Reading> {
        let mut malformed = None;
        Ok(Reading {
            nodes: valid(NODES.list(store, limits)?, &mut malformed),
            beats: valid(BEATS.list(store, limits)?, &mut malformed),
            left: LEFT.names(store, limits)?,
            disconnected: DISCONNECTED.names(store, limits)?,
            farewells: FAREWELLS.names(store, limits)?,
            worker_ends: valid(worker_ends(generation).list(store, limits)?, &mut malformed)
                .into_iter()
                .filter_map(|(rank, end)| Some((parsed_rank(&rank, &mut malformed)?, end)))
                .collect(),
            states: valid(states(generation).list(store, limits)?, &mut malformed),
            machine_ends: valid(machine_ends(generation).list(store, limits)?, &mut malformed),
            malformed,
        })
    }
}

/// Returns the valid ones of the listed values, and notes the first error.
fn valid<T>(list: Vec<(String, Result<T>)>, malformed: &mut Option<Error>) -> Vec<(String, T)> {
    let value = |(name, value): (String, Result<T>)| match value {
        Ok(value) => Some((name, value)),
        Err(error) => {
            malformed.get_or_insert(error);
            None
        }
    };
    list.into_iter().filter_map(value).collect()
}

fn parsed_rank(name: &str, malformed: &mut Option<Error>) -> Option<usize> {
    let wrong = |why: ParseIntError| {
        Error::unavailable(format!("the end of a worker has a malformed key ({why})"))
            .expected("a rank")
            .got(format!("'{name}'"))
            .help(SAME_VERSION)
    };
    match name.parse() {
        Ok(rank) => Some(rank),
        Err(why) => {
            malformed.get_or_insert(wrong(why));
            None
        }
    }
}

/// A key of the store, with the type of its value.
#[derive(Clone, Debug)]
pub(crate) struct Key<T> {
    text: std::borrow::Cow<'static, str>,
    /// Description of the value, for errors.
    what: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> Key<T> {
    const fn new(text: &'static str, what: &'static str) -> Key<T> {
        Key { text: std::borrow::Cow::Borrowed(text), what, value: PhantomData }
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }
}

impl<T: Serialize + DeserializeOwned> Key<T> {
    pub(crate) fn set(&self, store: &dyn Store, value: &T, limits: &Limits) -> Result<()> {
        let bytes = serde_json::to_vec(value)
            .map_err(|error| Error::internal(format!("cannot write {}: {error}", self.text)))?;
        store.set(&self.text, &bytes, limits)
    }

    pub(crate) fn get(&self, store: &dyn Store, limits: &Limits) -> Result<Option<T>> {
        store.get(&self.text, limits)?.map(|bytes| self.parse(&bytes)).transpose()
    }

    pub(crate) fn parse(&self, bytes: &[u8]) -> Result<T> {
        parse(&self.text, self.what, bytes)
    }
}

/// The keys with a common prefix, and the type of their values.
#[derive(Clone, Debug)]
pub(crate) struct Folder<T> {
    prefix: std::borrow::Cow<'static, str>,
    what: &'static str,
    value: PhantomData<fn() -> T>,
}

impl<T> Folder<T> {
    const fn new(prefix: &'static str, what: &'static str) -> Folder<T> {
        Folder { prefix: std::borrow::Cow::Borrowed(prefix), what, value: PhantomData }
    }

    fn of_generation(name: &str, generation: u64, what: &'static str) -> Folder<T> {
        Folder { prefix: format!("{name}/{generation}/").into(), what, value: PhantomData }
    }

    pub(crate) fn key(&self, name: impl Display) -> Key<T> {
        let text = format!("{}{name}", self.prefix).into();
        Key { text, what: self.what, value: PhantomData }
    }

    /// Returns the names of the existing keys, without the prefix.
    pub(crate) fn names(&self, store: &dyn Store, limits: &Limits) -> Result<Vec<String>> {
        let found = store.list(&self.prefix, limits)?;
        Ok(found.into_iter().map(|(key, _)| self.name(&key)).collect())
    }

    fn name(&self, key: &str) -> String {
        key.strip_prefix(&*self.prefix).unwrap_or(key).to_string()
    }
}

impl<T: Serialize + DeserializeOwned> Folder<T> {
    /// Returns the existing values by name, and an error in place of a malformed one.
    pub(crate) fn list(
        &self,
        store: &dyn Store,
        limits: &Limits,
    ) -> Result<Vec<(String, Result<T>)>> {
        let parsed =
            |(key, bytes): (String, Vec<u8>)| (self.name(&key), parse(&key, self.what, &bytes));
        Ok(store.list(&self.prefix, limits)?.into_iter().map(parsed).collect())
    }
}

fn parse<T: DeserializeOwned>(key: &str, what: &str, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|error| malformed(key, bytes, &error).expected(what))
}

/// Returns the error of a key whose value no launcher of this version writes.
fn malformed(key: &str, bytes: &[u8], why: &dyn Display) -> Error {
    let mut got = String::from_utf8_lossy(bytes).into_owned();
    if let Some((end, _)) = got.char_indices().nth(GOT_CHARS_MAX) {
        got.truncate(end);
        got += "...";
    }
    Error::unavailable(format!("malformed value of the key '{key}' ({why})"))
        .got(format!("'{got}'"))
        .help(SAME_VERSION)
}

/// Endpoints as texts of the form `host:port`.
mod as_text {
    use fleet_topology::Endpoint;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(at: &Endpoint, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(at)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Endpoint, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

const SAME_VERSION: &str = "run the same version of fleetrun on every machine";
/// Limit on characters of a malformed value in an error message.
const GOT_CHARS_MAX: usize = 120;

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_net::MemoryStore;
    use std::time::Duration;

    fn check_refused<T: DeserializeOwned + Serialize + std::fmt::Debug>(
        key: &Key<T>,
        value: &str,
        wanted: &[&str],
    ) {
        let error = key.parse(value.as_bytes()).unwrap_err().to_string();
        for part in wanted.iter().chain(&[key.as_str(), "same version of fleetrun"]) {
            assert!(error.contains(part), "'{part}' is not in:\n{error}");
        }
    }

    #[test]
    fn plans_survive_the_store() {
        let (store, limits) = (MemoryStore::new(), Limits::within(Duration::from_secs(20)));
        let terms = Terms {
            protocol: "2".into(),
            mode: "ps".into(),
            nnodes: "1:2".into(),
            elastic_level: "2".into(),
            job_id: "ads".into(),
        };
        let process = |port| NodeProcess { port, devices: vec!["0".into(), "1".into()] };
        let node = |listed| Node {
            host: "::1".into(),
            rank: Some(1),
            gloo: 6171,
            workers: vec![process(6172)],
            servers: Vec::new(),
            listed,
            terms: terms.clone(),
        };
        let listed = Listed { ports: vec![6172], ranks: vec![3] };
        let plan = Plan::Run(RunPlan {
            generation: 7,
            leader: "a".into(),
            failures: 1,
            nodes: vec![
                PlanNode { id: "a".into(), node: node(None) },
                PlanNode { id: "b".into(), node: node(Some(listed)) },
            ],
            store: Endpoint::new("::1", 6170),
            progress: MachineState { has_joined: true, is_done: false },
        });
        PLAN.set(&store, &plan, &limits).unwrap();
        assert_eq!(PLAN.get(&store, &limits).unwrap(), Some(plan));
        let arrival = Arrival { arrived: 2, node: node(None) };
        NODES.key("b").set(&store, &arrival, &limits).unwrap();
        let reading = Reading::of(&store, 3, &limits).unwrap();
        assert_eq!(reading.nodes, [("b".to_string(), arrival)]);
        LEFT.key("b").set(&store, &(), &limits).unwrap();
        let end = MachineEnd::Finished { lost: None };
        machine_ends(3).key("b").set(&store, &end, &limits).unwrap();
        let reading = Reading::of(&store, 3, &limits).unwrap();
        assert_eq!(reading.machine_ends, [("b".to_string(), end)]);
        assert_eq!(reading.left, ["b"]);
        assert!(reading.malformed.is_none());
        assert!(Reading::of(&store, 30, &limits).unwrap().machine_ends.is_empty());
    }

    #[test]
    fn a_reading_keeps_valid_values_and_the_first_error() {
        let (store, limits) = (MemoryStore::new(), Limits::within(Duration::from_secs(20)));
        let end = WorkerEnd {
            id: "a".into(),
            host: "h".into(),
            host_id: "i".into(),
            pid: 7,
            how: "exited with code 1".into(),
            code: 1,
            follows: None,
        };
        worker_ends(0).key("x").set(&store, &end, &limits).unwrap();
        worker_ends(0).key(3).set(&store, &end, &limits).unwrap();
        let reading = Reading::of(&store, 0, &limits).unwrap();
        assert_eq!(reading.worker_ends, [(3, end)]);
        let error = reading.malformed.unwrap().to_string();
        assert!(error.contains("malformed key") && error.contains("got 'x'"), "{error}");
        store.set("beat/a", b"1", &limits).unwrap();
        store.set("beat/b", b"one", &limits).unwrap();
        let reading = Reading::of(&store, 0, &limits).unwrap();
        assert_eq!(reading.beats, [("a".to_string(), 1)]);
        let error = reading.malformed.unwrap().to_string();
        assert!(error.contains("'beat/b'"), "{error}");
    }

    #[test]
    fn malformed_values_name_their_key() {
        check_refused(&PLAN, "", &["expected a plan of the leader, got ''"]);
        check_refused(&PLAN, "\u{0}[[[", &["malformed value of the key 'plan'"]);
        check_refused(&PLAN, r#"{"state":"run"}"#, &["missing field `generation`"]);
        check_refused(&PLAN, r#"{"state":"walk"}"#, &["unknown variant `walk`", "`run`, `stop`"]);
        let over = r#"{"state":"over","generation":0,"leader":"a","code":300,"reason":""}"#;
        check_refused(&PLAN, over, &["300", "expected u8"]);
        let key = machine_ends(2).key("a");
        check_refused(&key, r#"{"end":"failed"}"#, &["'result/2/a'", "missing field `code`"]);
        check_refused(&BEATS.key("a"), "-1", &["'beat/a'", "expected a number of heartbeats"]);
        check_refused(&NODES.key("a"), &"é".repeat(1000), &["ééé...'"]);
        assert!(PLAN.parse(&[0xff, 0xfe]).is_err());
        assert!(PLAN.parse("[".repeat(100_000).as_bytes()).is_err());
    }
}
