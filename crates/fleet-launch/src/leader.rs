//! The leader of a job on several machines: it decides which machines take part, and when all start
//! and stop.
//!
//! The launcher that hosts the store leads; with etcd, the one that holds the key `leader`. It
//! reads the values of the other launchers and writes one value, the plan. Every other launcher
//! follows the plan and writes only about itself:
//!
//! | key | written by | value |
//! | --- | --- | --- |
//! | `plan` | the leader | the current plan (below) |
//! | `node/ID` | that machine | its host, requested number, processes with their ports |
//! | `beat/ID` | that machine, every second | a counter |
//! | `result/GENERATION/ID` | that machine | how its processes ended |
//! | `state/GENERATION/ID` | that machine | whether workers joined; whether its servers finished |
//! | `ended/GENERATION/RANK` | that worker's machine, immediately | its process, and how it ended |
//! | `left/ID`, `bye/ID` | that machine | it leaves; it has read that the job is over |
//! | `gone/ARRIVED` | the host of the store | the connection of that launcher broke for good |
//!
//! A plan has a generation and a state: `run` (start these processes), `stop` (stop them, another
//! generation follows), `over` (the job is done or has failed: exit with this code).

use crate::beats::Beats;
use crate::blame::{self, Cause, Fate};
use crate::child::HANG_CODE;
use crate::job::USAGE_CODE;
use crate::link::MachineState;
use crate::options::ElasticLevel;
use crate::{terms, words};
use fleet_base::Result;
use fleet_net::{Limits, Store};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// Settings of the leader.
#[derive(Clone, Debug)]
pub struct LeaderRules {
    pub min: usize,
    pub max: usize,
    pub level: ElasticLevel,
    pub max_restart: u32,
    pub join_timeout: Duration,
    /// Time for which an elastic job waits for more machines than it needs.
    pub elastic_timeout: Duration,
    /// Time without a heartbeat after which a machine is lost.
    pub silence: Duration,
    pub stop_timeout: Duration,
    /// The same for processes; their store applies it.
    pub process_silence: Duration,
    pub sort_ip: bool,
    /// Hosts of the job by number, if a list gives them.
    pub hosts: Vec<String>,
    /// Another machine can become the leader.
    pub hands_over: bool,
}

/// The leader and its view of the job.
pub struct Leader<'a> {
    store: &'a dyn Store,
    rules: &'a LeaderRules,
    own: &'a str,
    /// Creates a store for the processes of a generation and returns its address.
    new_store: &'a mut dyn FnMut() -> Result<String>,
    say: &'a dyn Fn(String),
    /// Notifies the workers of a generation that one of them has ended. Arguments: generation,
    /// rank, and the report of that worker's machine.
    ended: &'a dyn Fn(u64, usize, &Value),
    ended_told: BTreeSet<String>,
    /// Failed workers of this generation, in the order in which the leader learnt of them.
    deaths: Vec<(usize, Value)>,
    /// Time at which the leader first found that processes of a machine had failed.
    failed_since: Option<Instant>,
    generation: u64,
    failures: u32,
    members: Vec<String>,
    nodes: BTreeMap<String, Value>,
    beats: Beats,
    results: HashMap<String, Value>,
    states: HashMap<String, MachineState>,
    /// Plan of the running generation.
    run_plan: Value,
    left: Vec<String>,
    /// Launchers whose connection broke for good, by their order of arrival.
    gone: Vec<String>,
    /// The previous leader, which is lost.
    lost: Option<String>,
    stage: Stage,
}

/// Stage in which [`Leader::lead`] continues.
#[derive(Clone, Copy)]
enum Stage {
    Form,
    Watch,
    Stop,
    Over,
}

/// Decision about the running generation.
enum Verdict {
    Over {
        code: u8,
        reason: String,
        culprit: String,
    },
    Again {
        reason: String,
    },
    /// This machine leaves, and another one leads.
    HandOver,
}

impl<'a> Leader<'a> {
    pub fn new(
        store: &'a dyn Store,
        rules: &'a LeaderRules,
        own: &'a str,
        new_store: &'a mut dyn FnMut() -> Result<String>,
        say: &'a dyn Fn(String),
        ended: &'a dyn Fn(u64, usize, &Value),
    ) -> Leader<'a> {
        Leader {
            store,
            rules,
            own,
            new_store,
            say,
            ended,
            ended_told: BTreeSet::new(),
            deaths: Vec::new(),
            failed_since: None,
            generation: 0,
            failures: 0,
            members: Vec::new(),
            nodes: BTreeMap::new(),
            beats: Beats::new(Instant::now()),
            results: HashMap::new(),
            states: HashMap::new(),
            run_plan: Value::Null,
            left: Vec::new(),
            gone: Vec::new(),
            lost: None,
            stage: Stage::Form,
        }
    }

    /// Continues from the plan of a lost leader.
    pub fn adopt(&mut self, plan: &Value) {
        let ids = |list: &Value, name: &str| -> Vec<String> {
            let all = list.as_array().into_iter().flatten();
            all.filter_map(|it| if name.is_empty() { it.as_str() } else { it[name].as_str() })
                .map(str::to_string)
                .collect()
        };
        self.generation = plan["generation"].as_u64().unwrap_or(0);
        self.failures =
            plan["failures"].as_u64().and_then(|it| u32::try_from(it).ok()).unwrap_or(0);
        self.lost = plan["leader"].as_str().map(str::to_string);
        (self.stage, self.members) = match plan["state"].as_str() {
            Some("run") => {
                self.run_plan = plan.clone();
                (Stage::Watch, ids(&plan["nodes"], "id"))
            }
            Some("stop") => (Stage::Stop, ids(&plan["members"], "")),
            Some("over") => (Stage::Over, Vec::new()),
            _ => (Stage::Form, Vec::new()),
        };
    }

    /// Leads until the job is over and all machines know it. Returns false if another machine is to
    /// lead.
    pub fn lead(&mut self) -> Result<bool> {
        loop {
            let verdict = match std::mem::replace(&mut self.stage, Stage::Form) {
                Stage::Form => match self.form()? {
                    Some(verdict) => verdict,
                    None => self.watch()?,
                },
                Stage::Watch => self.watch()?,
                Stage::Stop => {
                    self.await_stopped()?;
                    self.generation += 1;
                    (self.deaths, self.failed_since) = (Vec::new(), None);
                    continue;
                }
                Stage::Over => {
                    self.await_farewells()?;
                    return Ok(true);
                }
            };
            match verdict {
                Verdict::HandOver => return Ok(false),
                Verdict::Over { code, reason, culprit } => {
                    let plan = json!({ "state": "over", "generation": self.generation,
                        "code": code, "reason": reason, "culprit": culprit, "leader": self.own });
                    self.publish(&plan)?;
                    self.stage = Stage::Over;
                }
                Verdict::Again { reason } => {
                    let plan = json!({ "state": "stop", "generation": self.generation,
                        "reason": reason, "members": self.members, "failures": self.failures,
                        "leader": self.own });
                    self.publish(&plan)?;
                    self.stage = Stage::Stop;
                }
            }
        }
    }

    /// Waits for machines and publishes the plan to run. Returns a verdict if too few join.
    fn form(&mut self) -> Result<Option<Verdict>> {
        let begun = Instant::now();
        let first = self.generation == 0;
        let needed = match self.rules.level {
            ElasticLevel::Same if !first => self.members.len(),
            _ => self.rules.min,
        };
        let most =
            if self.rules.level == ElasticLevel::Same && !first { needed } else { self.rules.max };
        let quiet = if first { self.rules.elastic_timeout } else { REFORM_QUIET };
        let survivors = self.alive(self.members.clone());
        let (mut count_before, mut changed, mut said) = (0, Instant::now(), None::<Instant>);
        loop {
            self.refresh()?;
            if self.left.iter().any(|id| id == self.own) {
                return Ok(Some(self.leader_left()));
            }
            if first && let Some(verdict) = self.differing() {
                return Ok(Some(verdict));
            }
            let candidates = self.candidates(&survivors);
            if candidates.len() != count_before {
                (count_before, changed) = (candidates.len(), Instant::now());
            }
            let enough = candidates.len() >= needed && changed.elapsed() >= quiet;
            if candidates.len() >= most || enough {
                return self.start(candidates, most);
            }
            if begun.elapsed() >= self.rules.join_timeout && candidates.len() < needed {
                return Ok(Some(self.too_few(&candidates, needed)));
            }
            // Skipped before the first machine, this one, has joined.
            let is_due = said.map_or(!candidates.is_empty(), |said| said.elapsed() >= SAY_PERIOD);
            if is_due {
                said = Some(Instant::now());
                (self.say)(format!(
                    "waiting for machines: {} of {} are here{}, {} left",
                    candidates.len(),
                    if needed == most { needed.to_string() } else { format!("{needed} to {most}") },
                    self.missing(&candidates),
                    words::seconds(self.rules.join_timeout.saturating_sub(begun.elapsed()))
                ));
            }
            std::thread::sleep(TICK);
        }
    }

    /// Ends the job if its machines were started with conflicting flags.
    fn differing(&self) -> Option<Verdict> {
        let difference =
            |id: &String| terms::difference(self.with_terms(self.own), self.with_terms(id));
        let alive = self.alive(self.nodes.keys().cloned().collect());
        if !alive.iter().any(|id| id == self.own) {
            // This machine joins in a moment.
            return None;
        }
        let reason = alive.iter().find_map(difference)?.to_string();
        Some(Verdict::Over { code: USAGE_CODE, reason, culprit: String::new() })
    }

    /// Whether a machine was started with the same flags as the leader. A machine with other flags
    /// that joins a running job detects this itself and leaves.
    fn fits(&self, id: &str) -> bool {
        let own = self.nodes.contains_key(self.own).then(|| self.with_terms(self.own));
        own.is_none_or(|own| terms::difference(own, self.with_terms(id)).is_none())
    }

    fn with_terms(&self, id: &str) -> (&str, &Value) {
        (self.host(id), self.nodes.get(id).map_or(&Value::Null, |node| &node["terms"]))
    }

    /// Returns survivors in their order, then newcomers in order of arrival or, with `sort_ip`, of
    /// address. Machines that request a number come first, by number.
    fn candidates(&self, survivors: &[String]) -> Vec<String> {
        let survivors = self.alive(survivors.to_vec());
        let known = |id: &String| survivors.contains(id);
        let mut fresh = self.alive(self.nodes.keys().filter(|id| !known(id)).cloned().collect());
        fresh.retain(|id| self.fits(id));
        fresh.sort_by_key(|id| self.nodes[id]["arrived"].as_i64());
        if self.rules.sort_ip {
            fresh.sort_by_key(|id| words::address_key(self.host(id)));
        }
        let mut all = [survivors, fresh].concat();
        all.sort_by_key(|id| self.nodes[id]["rank"].as_u64().unwrap_or(u64::MAX));
        all
    }

    fn start(&mut self, mut members: Vec<String>, most: usize) -> Result<Option<Verdict>> {
        members.truncate(most);
        let mut numbers = std::collections::HashSet::new();
        for id in &members {
            if let Some(number) = self.nodes[id]["rank"].as_u64()
                && (!numbers.insert(number) || number >= self.rules.max as u64)
            {
                let reason = format!(
                    "{} says that it is machine {number}, which another one is or which is not below {}: \
                     --rank and the lists of hosts must fit on all machines",
                    self.host(id),
                    self.rules.max
                );
                let culprit = id.clone();
                return Ok(Some(Verdict::Over { code: USAGE_CODE, reason, culprit }));
            }
        }
        let nodes: Vec<Value> = members
            .iter()
            .map(|id| {
                let mut node = self.nodes[id].clone();
                node["id"] = json!(id);
                node
            })
            .collect();
        self.members = members;
        let store = (self.new_store)()?;
        self.run_plan = json!({ "state": "run", "generation": self.generation, "nodes": nodes,
            "store": store, "failures": self.failures, "leader": self.own,
            "progress": MachineState::default().to_value() });
        self.publish(&self.run_plan)?;
        Ok(None)
    }

    /// Watches a generation until a decision is due.
    fn watch(&mut self) -> Result<Verdict> {
        loop {
            self.refresh()?;
            if let Some(verdict) = self.judge() {
                return Ok(verdict);
            }
            self.publish_progress()?;
            std::thread::sleep(TICK);
        }
    }

    /// Publishes the plan again when the state of the job changes. A machine by itself knows only
    /// whether its own processes have joined and its own servers have finished.
    fn publish_progress(&mut self) -> Result<()> {
        let progress = self.progress().to_value();
        if self.run_plan["progress"] != progress {
            self.run_plan["progress"] = progress;
            self.publish(&self.run_plan)?;
        }
        Ok(())
    }

    fn progress(&self) -> MachineState {
        let is_done = |id: &&String| self.states.get(*id).is_some_and(|state| state.is_done);
        let nodes = self.run_plan["nodes"].as_array();
        let has_servers = |id: &&String| {
            let node = nodes.and_then(|all| all.iter().find(|node| node["id"] == **id));
            node.is_some_and(|node| node["servers"].as_array().is_some_and(|it| !it.is_empty()))
        };
        let mut serving = self.members.iter().filter(has_servers).peekable();
        MachineState {
            has_joined: self.states.values().any(|state| state.has_joined),
            is_done: match serving.peek() {
                Some(_) => serving.all(|id| is_done(&id)),
                None => self.members.iter().any(|id| is_done(&id)),
            },
        }
    }

    fn judge(&mut self) -> Option<Verdict> {
        let ended = |id: &String| self.results.get(id).and_then(|it| it["end"].as_str());
        let failed = || self.members.iter().filter(|id| ended(id) == Some("failed"));
        // A lost server or an unresponsive process makes workers fail, not the other way round.
        let is_cause = |id: &&String| {
            self.results[*id]["is_server"] == true || self.results[*id]["code"] == HANG_CODE
        };
        if let Some(id) = failed().find(is_cause).cloned() {
            let result = self.results[&id].clone();
            return Some(self.failure(&id, &result));
        }
        let follows = |id: &&String| !self.results[*id]["follows"].is_null();
        if let Some(id) = failed().find(|id| !follows(id)).or(failed().next()).cloned() {
            return self.failed(id);
        }
        let works =
            |id: &&String| self.nodes[*id]["workers"].as_array().is_some_and(|it| !it.is_empty());
        if self.members.iter().filter(works).all(|id| ended(id) == Some("finished")) {
            return Some(self.finished());
        }
        if self.left.iter().any(|id| id == self.own) {
            return Some(self.leader_left());
        }
        let gone =
            self.members.iter().find(|id| !self.is_alive(id) && ended(id) != Some("finished"));
        if let Some(id) = gone.cloned() {
            return Some(self.gone(&id));
        }
        // No machine joins near the end: a new generation would repeat finished work.
        let none_ended = self.members.iter().all(|id| ended(id).is_none());
        if self.rules.level == ElasticLevel::Range
            && self.members.len() < self.rules.max
            && none_ended
        {
            let is_fresh = |id: &&String| !self.members.contains(id) && self.fits(id);
            let fresh = self.nodes.keys().filter(is_fresh).cloned().collect();
            if let Some(id) = self.alive(fresh).first() {
                return Some(Verdict::Again {
                    reason: format!("machine {} has come", self.host(id)),
                });
            }
        }
        None
    }

    /// Returns the verdict when all machines are done; some may have lost workers that the others
    /// could do without.
    fn finished(&self) -> Verdict {
        let code = |id: &&String| -> Option<u8> {
            u8::try_from(self.results.get(*id)?["code"].as_u64()?).ok()
        };
        let Some(id) = self.members.iter().find(|id| code(id).is_some()) else {
            return Verdict::Over { code: 0, reason: String::new(), culprit: String::new() };
        };
        let reason = self.results[id]["report"].as_str().unwrap_or_default();
        let reason = format!("the job is done without a worker: {reason}");
        Verdict::Over { code: code(&id).unwrap_or(1), reason, culprit: id.clone() }
    }

    /// Returns the verdict about a failed machine, or `None` to wait for more reports. Workers on
    /// other machines often fail before the first failure is known, so this waits a moment. A lost
    /// machine is the cause of failures of workers that waited for its workers. Otherwise a killed
    /// worker is the cause, or else the first one that names no other worker.
    fn failed(&mut self, mut id: String) -> Option<Verdict> {
        let killed = |it: &&(usize, Value)| it.1["code"].as_u64().is_some_and(|code| code > 128);
        let caused = |it: &&(usize, Value)| it.1["follows"].is_null();
        let deaths = || self.deaths.iter();
        let culprit = deaths().find(killed).or(deaths().find(caused)).or(self.deaths.first());
        let culprit = culprit.cloned();
        let since = *self.failed_since.get_or_insert_with(Instant::now);
        let is_killed = culprit.as_ref().is_some_and(|it| killed(&it));
        // A failure that names another worker is not the first. The launcher of the named worker
        // may still be waiting for it.
        let open = self.open_cause(&id).filter(|_| !is_killed);
        if let Some(machine) = open.and_then(|rank| self.machine_of(rank)) {
            if !self.is_alive(&machine) {
                return Some(self.gone(&machine));
            }
            // The machine may be lost: its next heartbeat would show that it is not.
            if !self.has_beaten_since(&machine, since) {
                return None;
            }
        }
        let settle = if open.is_some() { CAUSE_TIME } else { SETTLE };
        if self.members.len() > 1 && !is_killed && since.elapsed() < settle {
            return None;
        }
        let mut result = self.results[&id].clone();
        if let Some((rank, death)) = culprit
            && let Some(other) = death["id"].as_str().filter(|other| *other != id)
        {
            // That machine reports more once it has stopped its processes.
            let pid = &death["pid"];
            let how = death["how"].as_str().unwrap_or("ended");
            let was = if how.starts_with("killed") { "was " } else { "" };
            let host = self.host(other);
            let report = format!("worker {rank} on {host} (pid {pid}) {was}{how}");
            let short = json!({ "report": report, "code": death["code"] });
            result = self
                .results
                .get(other)
                .filter(|it| it["end"] == "failed")
                .cloned()
                .unwrap_or(short);
            id = other.to_string();
        }
        Some(self.failure(&id, &result))
    }

    /// Follows the reports of failed workers to a worker whose end is not known, if they lead to
    /// one. Starts from the first failed worker or, if none is known, from the failure of machine
    /// `id`.
    fn open_cause(&self, id: &str) -> Option<usize> {
        let rank_of = |value: &Value| value.as_u64().and_then(|rank| usize::try_from(rank).ok());
        let is_worker = |it: &&Value| it["end"] == "failed" && it["is_server"] != true;
        let of_results = self.results.values().filter(is_worker);
        let known: BTreeMap<usize, Option<usize>> = of_results
            .filter_map(|it| Some((rank_of(&it["rank"])?, rank_of(&it["follows"]))))
            .chain(self.deaths.iter().map(|(rank, it)| (*rank, rank_of(&it["follows"]))))
            .collect();
        let first = self.deaths.first().map(|(rank, _)| *rank);
        let first = first.or_else(|| rank_of(&self.results.get(id)?["rank"]))?;
        let fate = |rank: usize| match known.get(&rank) {
            Some(culprit) => Fate::Failed { culprit: *culprit },
            None => Fate::Elsewhere,
        };
        match blame::cause(first, fate) {
            Cause::Open(rank) => Some(rank),
            Cause::Ended(_) => None,
        }
    }

    /// Returns the machine of a worker. Machines from a list publish their ranks; otherwise ranks
    /// count up through the machines in the order of the plan.
    fn machine_of(&self, rank: usize) -> Option<String> {
        let mut first = 0;
        for node in self.run_plan["nodes"].as_array()? {
            let count = node["workers"].as_array()?.len();
            let is_its = match node["ranks"].as_array() {
                Some(ranks) => ranks.iter().any(|it| it.as_u64() == Some(rank as u64)),
                None => (first..first + count).contains(&rank),
            };
            if is_its {
                return node["id"].as_str().map(str::to_string);
            }
            first += count;
        }
        None
    }

    fn failure(&mut self, id: &str, result: &Value) -> Verdict {
        let reason = result["report"].as_str().unwrap_or("a process failed").to_string();
        if self.failures < self.rules.max_restart {
            self.failures += 1;
            let first = reason.lines().next().unwrap_or_default();
            return Verdict::Again {
                reason: format!("{first}; restart {} of {}", self.failures, self.rules.max_restart),
            };
        }
        let code = result["code"].as_u64().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
        Verdict::Over { code, reason, culprit: id.to_string() }
    }

    fn gone(&self, id: &str) -> Verdict {
        let host = self.host(id).to_string();
        let said = self.left.iter().any(|left| left == id);
        let led = if self.lost.as_deref() == Some(id) { ", which led the job," } else { "" };
        let silence = words::seconds(self.rules.silence);
        let reason = match said {
            true => format!("machine {host} was stopped by its user"),
            false if self.is_cut_off(id) => format!(
                "machine {host}{led} is lost: the connection to its launcher broke (the launcher \
                 was killed, or the machine went down)"
            ),
            false => format!(
                "machine {host}{led} is lost: its launcher has given no sign of life for {silence}"
            ),
        };
        match self.rules.level {
            ElasticLevel::Off => Verdict::Over { code: 1, reason, culprit: id.to_string() },
            _ => Verdict::Again { reason },
        }
    }

    fn leader_left(&self) -> Verdict {
        if self.rules.hands_over && self.rules.level > ElasticLevel::Off {
            return Verdict::HandOver;
        }
        Verdict::Over {
            code: 1,
            reason: format!(
                "machine {}, which leads the job, was stopped by its user",
                self.host(self.own)
            ),
            culprit: self.own.to_string(),
        }
    }

    fn too_few(&self, candidates: &[String], needed: usize) -> Verdict {
        let hosts: Vec<&str> = candidates.iter().map(|id| self.host(id)).collect();
        Verdict::Over {
            code: 1,
            reason: format!(
                "only {} of {needed} machines came within {}: {}{}",
                hosts.len(),
                words::seconds(self.rules.join_timeout),
                hosts.join(", "),
                self.missing(candidates)
            ),
            culprit: String::new(),
        }
    }

    /// Waits until every member has stopped its processes or is lost.
    fn await_stopped(&mut self) -> Result<()> {
        let until = Instant::now() + self.rules.stop_timeout + STOP_SLACK;
        loop {
            self.refresh()?;
            let waits = |id: &&String| self.is_alive(id) && !self.results.contains_key(*id);
            if !self.members.iter().any(|id| waits(&id)) || Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
    }

    /// Waits until all machines have read the final plan, since the store ends with the leader.
    fn await_farewells(&mut self) -> Result<()> {
        let until = Instant::now() + self.rules.stop_timeout + STOP_SLACK;
        loop {
            self.refresh()?;
            let said: Vec<String> = self.ids("bye/")?;
            let waits = |id: &&String| self.is_alive(id) && !said.contains(id);
            if !self.nodes.keys().any(|id| waits(&id)) || Instant::now() >= until {
                return Ok(());
            }
            std::thread::sleep(TICK);
        }
    }

    fn refresh(&mut self) -> Result<()> {
        let limits = Limits::within(CALL_TIME);
        // The gap tells nothing with etcd, which may take that long to answer.
        let now = Instant::now();
        if let Some(gap) = self.beats.look(now).filter(|_| !self.rules.hands_over) {
            (self.say)(format!(
                "this launcher did not run for {}: it was stopped, or the machine slept; others \
                 take a machine for lost after {}",
                words::seconds(gap),
                words::seconds(self.rules.silence)
            ));
        }
        for (key, value) in self.store.list("node/", &limits)? {
            // A value that cannot be parsed is not from a machine of this job.
            if let Ok(node) = serde_json::from_slice(&value) {
                self.nodes.insert(key["node/".len()..].to_string(), node);
            }
        }
        for (key, value) in self.store.list("beat/", &limits)? {
            let id = key["beat/".len()..].to_string();
            // Keys may be left from machines that were lost long ago. After a change of leader, an
            // unknown machine counts as alive only after its second heartbeat.
            let counts = self.lost.is_none() || id == self.own || self.members.contains(&id);
            self.beats.hear(id, value, counts, now);
        }
        self.left = self.ids("left/")?;
        self.gone = self.ids("gone/")?;
        self.pass_on_ends(&limits)?;
        self.states.clear();
        let prefix = format!("state/{}/", self.generation);
        for (key, value) in self.store.list(&prefix, &limits)? {
            if let Ok(value) = serde_json::from_slice(&value) {
                let id = key[prefix.len()..].to_string();
                self.states.insert(id, MachineState::parse(&value));
            }
        }
        self.results.clear();
        let prefix = format!("result/{}/", self.generation);
        for (key, value) in self.store.list(&prefix, &limits)? {
            if let Ok(result) = serde_json::from_slice(&value) {
                self.results.insert(key[prefix.len()..].to_string(), result);
            }
        }
        Ok(())
    }

    fn pass_on_ends(&mut self, limits: &Limits) -> Result<()> {
        let prefix = format!("ended/{}/", self.generation);
        for (key, value) in self.store.list(&prefix, limits)? {
            let rank = key[prefix.len()..].parse();
            if let (Ok(rank), Ok(value)) = (rank, serde_json::from_slice(&value))
                && self.ended_told.insert(key)
            {
                (self.ended)(self.generation, rank, &value);
                self.deaths.push((rank, value));
            }
        }
        Ok(())
    }

    /// Returns `, without 10.0.0.2` for hosts of the list that have not joined.
    fn missing(&self, candidates: &[String]) -> String {
        let came = |number: &usize| {
            candidates.iter().any(|id| self.nodes[id]["rank"].as_u64() == Some(*number as u64))
        };
        let numbered = self.rules.hosts.iter().enumerate();
        let missing: Vec<&str> =
            numbered.filter(|(number, _)| !came(number)).map(|(_, host)| host.as_str()).collect();
        match missing.is_empty() {
            true => String::new(),
            false => format!(", without {}", words::some_of(&missing)),
        }
    }

    fn ids(&self, prefix: &str) -> Result<Vec<String>> {
        let found = self.store.list(prefix, &Limits::within(CALL_TIME))?;
        Ok(found.into_iter().map(|(key, _)| key[prefix.len()..].to_string()).collect())
    }

    fn is_alive(&self, id: &str) -> bool {
        let beat = self.beats.heard(id).is_some_and(|at| at.elapsed() < self.rules.silence);
        let is_lost = self.lost.as_deref() == Some(id) || self.is_cut_off(id);
        beat && !is_lost && !self.left.iter().any(|left| left == id)
    }

    /// Whether the connection to its launcher broke for good.
    fn is_cut_off(&self, id: &str) -> bool {
        let arrived = self.nodes.get(id).and_then(|node| node["arrived"].as_i64());
        arrived.is_some_and(|arrived| self.gone.contains(&arrived.to_string()))
    }

    fn has_beaten_since(&self, id: &str, since: Instant) -> bool {
        self.beats.heard(id).is_some_and(|at| at > since)
    }

    fn alive(&self, ids: Vec<String>) -> Vec<String> {
        ids.into_iter().filter(|id| self.nodes.contains_key(id) && self.is_alive(id)).collect()
    }

    fn host(&self, id: &str) -> &str {
        self.nodes.get(id).and_then(|node| node["host"].as_str()).unwrap_or("unknown")
    }

    fn publish(&self, plan: &Value) -> Result<()> {
        self.store.set("plan", plan.to_string().as_bytes(), &Limits::within(CALL_TIME))
    }
}

const TICK: Duration = Duration::from_millis(50);
/// Wait for reports of an earlier failure after a failure that may follow from it.
const SETTLE: Duration = Duration::from_millis(500);
/// The same if all known failures follow from one that is not yet known.
const CAUSE_TIME: Duration = Duration::from_secs(2);
const SAY_PERIOD: Duration = Duration::from_secs(5);
/// After a loss, the remaining machines restart when no machine has joined for this long.
const REFORM_QUIET: Duration = Duration::from_secs(2);
/// Limit on a call to this machine's own store, which fails only if the machine is overloaded.
const CALL_TIME: Duration = Duration::from_secs(20);
/// Slack in addition to the time that processes get to stop.
const STOP_SLACK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Mode, Nodes};
    use fleet_net::MemoryStore;

    fn rules(min: usize, max: usize) -> LeaderRules {
        LeaderRules {
            min,
            max,
            level: ElasticLevel::Off,
            max_restart: 0,
            join_timeout: Duration::from_secs(60),
            elastic_timeout: Duration::ZERO,
            silence: Duration::from_secs(60),
            stop_timeout: Duration::ZERO,
            process_silence: Duration::from_secs(30),
            sort_ip: false,
            hosts: Vec::new(),
            hands_over: false,
        }
    }

    /// Adds a machine that has joined and that is recorded as having read the final plan.
    fn come(store: &MemoryStore, id: &str, rank: Option<usize>, arrived: i64, workers: usize) {
        let node = json!({ "host": id, "rank": rank, "arrived": arrived,
            "workers": vec![json!({ "port": 1 }); workers], "servers": [] });
        let limits = Limits::within(CALL_TIME);
        for (kind, value) in [("beat", "0"), ("bye", "1"), ("node", &*node.to_string())] {
            store.set(&format!("{kind}/{id}"), value.as_bytes(), &limits).unwrap();
        }
    }

    /// The same for a machine started in a given mode.
    fn come_with(store: &MemoryStore, id: &str, mode: Mode) {
        come(store, id, None, 1, 1);
        let nodes = Nodes { min: 2, max: 2 };
        let terms = terms::terms(mode, nodes, ElasticLevel::Off, "default");
        let node = json!({ "host": id, "arrived": 1, "workers": [{}], "servers": [],
            "terms": terms });
        say(store, &format!("node/{id}"), &node.to_string());
    }

    fn say(store: &MemoryStore, key: &str, value: &str) {
        store.set(key, value.as_bytes(), &Limits::within(CALL_TIME)).unwrap();
    }

    fn lead(store: &MemoryStore, rules: LeaderRules) -> std::thread::JoinHandle<Result<bool>> {
        lead_on(store, rules, "10.0.0.1", None)
    }

    fn lead_on(
        store: &MemoryStore,
        rules: LeaderRules,
        own: &'static str,
        plan: Option<Value>,
    ) -> std::thread::JoinHandle<Result<bool>> {
        let store = store.clone();
        std::thread::spawn(move || {
            let mut new_store = || Ok("10.0.0.1:1".to_string());
            let mut leader =
                Leader::new(&store, &rules, own, &mut new_store, &|_| (), &|_, _, _| ());
            if let Some(plan) = &plan {
                leader.adopt(plan);
            }
            leader.lead()
        })
    }

    /// Waits until the plan has this generation and state, and returns it.
    fn plan(store: &MemoryStore, generation: u64, state: &str) -> Value {
        let begun = Instant::now();
        loop {
            let bytes = store.get("plan", &Limits::within(CALL_TIME)).unwrap().unwrap_or_default();
            let plan: Value = serde_json::from_slice(&bytes).unwrap_or_default();
            if plan["state"] == state && plan["generation"] == generation {
                return plan;
            }
            assert!(begun.elapsed() < Duration::from_secs(60), "{state} {generation}: {plan}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn hosts(plan: &Value) -> Vec<&str> {
        plan["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| node["host"].as_str().unwrap())
            .collect()
    }

    #[test]
    fn machines_are_numbered_by_arrival_by_wish_or_by_address() {
        for (wish, sort_ip, want) in [
            (None, false, ["10.0.0.10", "10.0.0.9", "10.0.0.1"]),
            (None, true, ["10.0.0.1", "10.0.0.9", "10.0.0.10"]),
            (Some(0), false, ["10.0.0.1", "10.0.0.10", "10.0.0.9"]),
        ] {
            let store = MemoryStore::new();
            come(&store, "10.0.0.1", wish, 3, 1);
            come(&store, "10.0.0.9", None, 2, 1);
            come(&store, "10.0.0.10", None, 1, 1);
            let leader = lead(&store, LeaderRules { sort_ip, ..rules(3, 3) });
            assert_eq!(hosts(&plan(&store, 0, "run")), want);
            for id in want {
                say(&store, &format!("result/0/{id}"), r#"{"end":"finished"}"#);
            }
            assert_eq!(plan(&store, 0, "over")["code"], 0);
            leader.join().unwrap().unwrap();
        }
    }

    #[test]
    fn two_machines_of_one_number_are_refused() {
        let store = MemoryStore::new();
        come(&store, "10.0.0.1", Some(1), 1, 1);
        come(&store, "10.0.0.2", Some(1), 2, 1);
        let leader = lead(&store, rules(2, 2));
        let over = plan(&store, 0, "over");
        assert_eq!(over["code"], 2);
        assert!(
            over["reason"].as_str().unwrap().contains("10.0.0.2 says that it is machine 1"),
            "{over}"
        );
        leader.join().unwrap().unwrap();
    }

    #[test]
    fn machines_of_servers_are_not_waited_for() {
        let store = MemoryStore::new();
        come(&store, "10.0.0.1", None, 1, 2);
        come(&store, "10.0.0.2", None, 2, 0);
        let leader = lead(&store, rules(2, 2));
        plan(&store, 0, "run");
        say(&store, "result/0/10.0.0.1", r#"{"end":"finished"}"#);
        assert_eq!(plan(&store, 0, "over")["code"], 0);
        leader.join().unwrap().unwrap();
    }

    #[test]
    fn the_plan_says_how_far_all_machines_are() {
        let store = MemoryStore::new();
        for (id, arrived) in [("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)] {
            come(&store, id, None, arrived, 1);
        }
        let serving = json!({ "host": "h", "arrived": 1, "workers": [{}], "servers": [{}] });
        say(&store, "node/10.0.0.1", &serving.to_string());
        say(&store, "node/10.0.0.2", &serving.to_string());
        let leader = lead(&store, rules(3, 3));
        assert_eq!(plan(&store, 0, "run")["progress"], json!({ "joined": false, "done": false }));
        let await_progress = |joined: bool, done: bool| {
            let begun = Instant::now();
            let wanted = json!({ "joined": joined, "done": done });
            while plan(&store, 0, "run")["progress"] != wanted {
                assert!(begun.elapsed() < Duration::from_secs(60), "{wanted} is not published");
                std::thread::sleep(Duration::from_millis(5));
            }
        };
        say(&store, "state/0/10.0.0.3", r#"{"joined":true,"done":false}"#);
        await_progress(true, false);
        // First one of the two machines with servers is done, then both are.
        say(&store, "state/0/10.0.0.1", r#"{"joined":false,"done":true}"#);
        say(&store, "state/0/10.0.0.3", r#"{"joined":false,"done":false}"#);
        await_progress(false, false);
        say(&store, "state/0/10.0.0.2", r#"{"joined":true,"done":true}"#);
        await_progress(true, true);
        say(&store, "left/10.0.0.1", "1");
        leader.join().unwrap().unwrap();
    }

    #[test]
    fn survivors_keep_their_order_and_newcomers_follow() {
        let store = MemoryStore::new();
        for (id, arrived) in [("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)] {
            come(&store, id, None, arrived, 1);
        }
        let elastic = LeaderRules { level: ElasticLevel::Range, ..rules(2, 3) };
        let leader = lead(&store, elastic);
        assert_eq!(hosts(&plan(&store, 0, "run")).len(), 3);
        come(&store, "10.0.0.0", None, 4, 1);
        say(&store, "left/10.0.0.2", "1");
        let stop = plan(&store, 0, "stop");
        assert_eq!(stop["reason"], "machine 10.0.0.2 was stopped by its user");
        for id in ["10.0.0.1", "10.0.0.3"] {
            say(&store, &format!("result/0/{id}"), r#"{"end":"stopped"}"#);
        }
        assert_eq!(hosts(&plan(&store, 1, "run")), ["10.0.0.1", "10.0.0.3", "10.0.0.0"]);
        say(&store, "result/1/10.0.0.3", r#"{"end":"failed","code":9,"report":"it broke"}"#);
        let over = plan(&store, 1, "over");
        assert_eq!((over["code"].as_u64(), over["reason"].as_str()), (Some(9), Some("it broke")));
        leader.join().unwrap().unwrap();
    }

    #[test]
    fn who_was_killed_explains_who_then_failed() {
        let store = MemoryStore::new();
        come(&store, "10.0.0.1", None, 1, 1);
        come(&store, "10.0.0.2", None, 2, 1);
        let leader = lead(&store, rules(2, 2));
        plan(&store, 0, "run");
        // The failure of a worker on the first machine is reported first, but its cause is the
        // killed worker on the second.
        say(
            &store,
            "ended/0/0",
            r#"{"pid":7,"how":"exited with code 1","code":1,"id":"10.0.0.1"}"#,
        );
        say(&store, "result/0/10.0.0.1", r#"{"end":"failed","code":1,"report":"rank 1 died"}"#);
        let death = r#"{"pid":8,"how":"killed by SIGKILL (9)","code":137,"id":"10.0.0.2"}"#;
        say(&store, "ended/0/1", death);
        let over = plan(&store, 0, "over");
        assert_eq!(
            (over["code"].as_u64(), over["culprit"].as_str()),
            (Some(137), Some("10.0.0.2"))
        );
        assert_eq!(over["reason"], "worker 1 on 10.0.0.2 (pid 8) was killed by SIGKILL (9)");
        leader.join().unwrap().unwrap();
    }

    #[test]
    fn machines_that_do_not_fit_together_are_refused_where_they_meet() {
        let store = MemoryStore::new();
        for (id, mode) in [("10.0.0.1", Mode::Collective), ("10.0.0.2", Mode::Ps)] {
            come_with(&store, id, mode);
        }
        let leader = lead(&store, rules(3, 3));
        let over = plan(&store, 0, "over");
        assert_eq!((over["code"].as_u64(), over["culprit"].as_str()), (Some(2), Some("")));
        let reason = over["reason"].as_str().unwrap();
        assert!(reason.contains("collective on 10.0.0.1 and ps on 10.0.0.2\n  help: "), "{reason}");
        leader.join().unwrap().unwrap();
    }

    #[test]
    fn a_job_that_runs_takes_only_machines_that_fit() {
        let store = MemoryStore::new();
        come_with(&store, "10.0.0.1", Mode::Collective);
        let leader = lead(&store, LeaderRules { level: ElasticLevel::Range, ..rules(1, 2) });
        plan(&store, 0, "run");
        come_with(&store, "10.0.0.0", Mode::Ps);
        come_with(&store, "10.0.0.2", Mode::Collective);
        assert_eq!(plan(&store, 0, "stop")["reason"], "machine 10.0.0.2 has come");
        say(&store, "result/0/10.0.0.1", r#"{"end":"stopped"}"#);
        assert_eq!(hosts(&plan(&store, 1, "run")), ["10.0.0.1", "10.0.0.2"]);
        for id in ["10.0.0.1", "10.0.0.2"] {
            say(&store, &format!("result/1/{id}"), r#"{"end":"finished"}"#);
        }
        leader.join().unwrap().unwrap();
    }

    #[test]
    fn a_machine_whose_connection_broke_is_lost_at_once() {
        let store = MemoryStore::new();
        come(&store, "10.0.0.1", None, 1, 1);
        come(&store, "10.0.0.2", None, 2, 1);
        let leader = lead(&store, rules(2, 2));
        plan(&store, 0, "run");
        // A worker of the other machine has noticed it earlier.
        let result = r#"{"end":"failed","code":1,"report":"rank 1 died","rank":0,"follows":1}"#;
        say(&store, "result/0/10.0.0.1", result);
        say(&store, "gone/2", "1");
        let over = plan(&store, 0, "over");
        assert_eq!((over["code"].as_u64(), over["culprit"].as_str()), (Some(1), Some("10.0.0.2")));
        let reason = over["reason"].as_str().unwrap();
        assert!(reason.starts_with("machine 10.0.0.2 is lost: the connection to its"), "{reason}");
        leader.join().unwrap().unwrap();
    }

    /// Runs `check` with the leader of two machines with one worker each, which have joined.
    fn with_leader(ranks: [Value; 2], check: impl FnOnce(&mut Leader<'_>)) {
        let (store, rules) = (MemoryStore::new(), rules(2, 2));
        let mut new_store = || Ok("10.0.0.1:1".to_string());
        let mut leader =
            Leader::new(&store, &rules, "10.0.0.1", &mut new_store, &|_| (), &|_, _, _| ());
        let nodes = ["10.0.0.1", "10.0.0.2"].iter().zip(ranks).map(|(id, ranks)| {
            json!({ "id": id, "host": id, "workers": [{}], "servers": [], "ranks": ranks })
        });
        let nodes: Vec<Value> = nodes.collect();
        for node in &nodes {
            let id = node["id"].as_str().unwrap().to_string();
            leader.beats.hear(id.clone(), b"1".to_vec(), true, Instant::now());
            leader.nodes.insert(id.clone(), node.clone());
            leader.members.push(id);
        }
        leader.run_plan = json!({ "nodes": nodes });
        check(&mut leader);
    }

    #[test]
    fn a_machine_that_may_be_lost_is_waited_for() {
        with_leader([Value::Null, Value::Null], |leader| {
            let result = json!({ "end": "failed", "code": 1, "report": "worker 0 failed",
                "rank": 0, "follows": 1 });
            leader.results.insert("10.0.0.1".into(), result);
            assert!(leader.judge().is_none());
            // Time has passed, but the other machine has sent no heartbeat since.
            let before = Instant::now().checked_sub(CAUSE_TIME).unwrap();
            let (own, other) = ("10.0.0.1".to_string(), "10.0.0.2".to_string());
            leader.beats = Beats::new(before);
            leader.beats.hear(own, b"1".to_vec(), true, Instant::now());
            leader.beats.hear(other.clone(), b"1".to_vec(), true, before);
            leader.failed_since = Some(before);
            assert!(leader.judge().is_none());
            // After its heartbeat the other machine is not the cause.
            leader.beats.hear(other, b"2".to_vec(), true, Instant::now());
            let Some(Verdict::Over { culprit, reason, .. }) = leader.judge() else {
                panic!("no verdict")
            };
            assert_eq!((&*culprit, &*reason), ("10.0.0.1", "worker 0 failed"));
        });
    }

    #[test]
    fn ranks_lead_to_machines() {
        with_leader([Value::Null, Value::Null], |leader| {
            assert_eq!(leader.machine_of(1).as_deref(), Some("10.0.0.2"));
            assert_eq!(leader.machine_of(2), None);
        });
        // In a list, the ranks of a machine need not be consecutive.
        with_leader([json!([1]), json!([0])], |leader| {
            assert_eq!(leader.machine_of(0).as_deref(), Some("10.0.0.2"));
            assert_eq!(leader.machine_of(1).as_deref(), Some("10.0.0.1"));
        });
    }

    #[test]
    fn reports_of_several_machines_lead_to_the_cause() {
        with_leader([Value::Null, Value::Null], |leader| {
            let follows = |other: usize| json!({ "follows": other });
            leader.deaths = vec![(0, follows(1)), (1, follows(2))];
            assert_eq!(leader.open_cause("10.0.0.1"), Some(2));
            leader.deaths.push((2, json!({ "follows": null })));
            assert_eq!(leader.open_cause("10.0.0.1"), None);
        });
    }

    #[test]
    fn another_leader_goes_on_from_the_plan() {
        let elastic =
            || LeaderRules { level: ElasticLevel::Range, hands_over: true, ..rules(1, 2) };
        let store = MemoryStore::new();
        come(&store, "10.0.0.1", None, 1, 1);
        come(&store, "10.0.0.2", None, 2, 1);
        let first = lead(&store, elastic());
        let run = plan(&store, 0, "run");
        say(&store, "left/10.0.0.1", "1");
        assert!(!first.join().unwrap().unwrap(), "it goes, and the job does not end");
        let second = lead_on(&store, elastic(), "10.0.0.2", Some(run));
        let stop = plan(&store, 0, "stop");
        assert_eq!(stop["reason"], "machine 10.0.0.1 was stopped by its user");
        // The second machine is lost while stopping, and a third continues from there. Keys left by
        // a machine that was lost long ago do not count as a machine.
        come(&store, "10.0.0.9", None, 0, 1);
        say(&store, "left/10.0.0.2", "1");
        come(&store, "10.0.0.3", None, 3, 1);
        say(&store, "result/0/10.0.0.2", r#"{"end":"stopped"}"#);
        second.join().unwrap().unwrap();
        let third = lead_on(&store, elastic(), "10.0.0.3", Some(stop));
        assert_eq!(hosts(&plan(&store, 1, "run")), ["10.0.0.3"]);
        say(&store, "result/1/10.0.0.3", r#"{"end":"finished"}"#);
        assert_eq!(plan(&store, 1, "over")["code"], 0);
        assert!(third.join().unwrap().unwrap());
        // With elastic level 0 the loss of the leader ends the job.
        let store = MemoryStore::new();
        come(&store, "10.0.0.1", None, 1, 1);
        come(&store, "10.0.0.2", None, 2, 1);
        let run = json!({ "state": "run", "generation": 0, "leader": "10.0.0.1",
            "nodes": [{ "id": "10.0.0.1" }, { "id": "10.0.0.2" }] });
        let off = LeaderRules { hands_over: true, ..rules(2, 2) };
        let second = lead_on(&store, off, "10.0.0.2", Some(run));
        let over = plan(&store, 0, "over");
        assert_eq!(over["code"], 1);
        assert_eq!(
            over["reason"],
            "machine 10.0.0.1, which led the job, is lost: its launcher has given no sign of life \
             for 60 s"
        );
        second.join().unwrap().unwrap();
    }
}
