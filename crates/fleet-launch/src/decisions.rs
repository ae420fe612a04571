//! The decisions of the leader of a job on several machines: which machines take part, and when
//! all start and stop.
//!
//! This module reads no clock and no store: [`Leader::step`] takes an event with its time and
//! returns the actions to perform. `leader.rs` reads the store and performs them.

use crate::beats::Beats;
use crate::blame::{self, Cause, Fate};
use crate::child::{HANG_CODE, USAGE_CODE};
use crate::options::{ElasticLevel, Timeouts};
use crate::protocol::{
    Arrival, Failure, MachineEnd, MachineState, OverPlan, Plan, PlanNode, Reading, RunPlan,
    StopPlan, WorkerEnd,
};
use crate::{display, terms};
use fleet_base::{Error, Result};
use fleet_net::Time;
use fleet_topology::Endpoint;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

/// Settings of the leader.
#[derive(Clone, Debug)]
pub struct LeaderRules {
    pub min: usize,
    pub max: usize,
    pub level: ElasticLevel,
    pub max_restart: u32,
    /// Time without a heartbeat after which a machine is lost.
    pub silence: Duration,
    pub timeouts: Timeouts,
    pub sort_ip: bool,
    /// Hosts of the job by number, if a list gives them.
    pub hosts: Vec<String>,
    /// Another machine can become the leader.
    pub hands_over: bool,
}

/// Event that the leader reacts to.
#[derive(Debug)]
pub(crate) enum Event {
    /// The current values of the store, for the leader's generation.
    Read(Reading),
    /// The store that [`Action::StartStore`] demanded.
    StoreStarted(Result<Endpoint>),
}

/// Effect that the leader demands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Show a line to the user.
    Log(String),
    Publish(Plan),
    /// Start a store for the processes of the next generation.
    StartStore,
    /// Notify the workers of a generation that one of them has ended.
    NotifyEnded {
        generation: u64,
        rank: usize,
        end: WorkerEnd,
    },
    /// Stop leading. The job is over and all machines know it, or another machine is to lead.
    Exit {
        is_over: bool,
    },
}

/// The leader and its view of the job.
pub(crate) struct Leader {
    rules: LeaderRules,
    /// Id of this machine.
    own: String,
    /// Time of the current step.
    now: Time,
    stage: Stage,
    forming: Forming,
    current: Generation,
    /// Restarts because of failures so far.
    failures: u32,
    /// The previous leader, which is lost.
    lost: Option<String>,
    machines: Machines,
    beats: Beats,
    /// Actions of the current step.
    actions: Vec<Action>,
}

/// One start of the job on all of its machines.
#[derive(Default)]
struct Generation {
    number: u64,
    members: Vec<String>,
    /// Plan of the running generation.
    plan: Option<RunPlan>,
    /// Failed workers, in the order in which the leader learnt of them.
    deaths: Vec<(usize, WorkerEnd)>,
    /// Time at which the leader first found that processes of a machine had failed.
    failed_since: Option<Time>,
}

/// Entries of the store that machines have written about themselves.
#[derive(Default)]
struct Machines {
    nodes: BTreeMap<String, Arrival>,
    ends: HashMap<String, MachineEnd>,
    states: HashMap<String, MachineState>,
    left: Vec<String>,
    /// Launchers whose connection broke for good, by their order of arrival.
    disconnected: Vec<String>,
    farewells: Vec<String>,
}

/// Stage of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for machines.
    Form,
    /// Waits for the store of the processes.
    StartStore,
    /// Watches the processes until a decision is due.
    Watch,
    /// Waits until every member has stopped its processes or is lost.
    Stop { until: Time },
    /// Waits until all machines have read the final plan, since the store ends with the leader.
    Over { until: Time },
}

/// Progress of waiting for machines.
struct Forming {
    begun: Time,
    /// Machines of the previous generation, in their order.
    survivors: Vec<String>,
    candidate_count: usize,
    /// Time of the last change of that count.
    changed: Time,
    /// Time of the last line for the user.
    logged: Option<Time>,
}

impl Forming {
    fn new(survivors: Vec<String>, now: Time) -> Forming {
        Forming { begun: now, survivors, candidate_count: 0, changed: now, logged: None }
    }
}

/// Decision about the running generation.
enum Verdict {
    Over {
        code: u8,
        reason: String,
        culprit: Option<String>,
    },
    Again {
        reason: String,
    },
    /// This machine leaves, and another one leads.
    HandOver,
}

impl Leader {
    pub(crate) fn new(rules: LeaderRules, own: String, now: Time) -> Leader {
        Leader {
            rules,
            own,
            now,
            stage: Stage::Form,
            forming: Forming::new(Vec::new(), now),
            current: Generation::default(),
            failures: 0,
            lost: None,
            machines: Machines::default(),
            beats: Beats::new(now),
            actions: Vec::new(),
        }
    }

    /// Continues from the plan of a lost leader.
    pub(crate) fn adopt(&mut self, plan: Plan) {
        let until = self.stop_deadline();
        let leader;
        (self.stage, self.current.number, leader) = match plan {
            Plan::Run(plan) => {
                self.failures = plan.failures;
                self.current.members = plan.nodes.iter().map(|node| node.id.clone()).collect();
                let at = (Stage::Watch, plan.generation, plan.leader.clone());
                self.current.plan = Some(plan);
                at
            }
            Plan::Stop(plan) => {
                (self.failures, self.current.members) = (plan.failures, plan.members);
                (Stage::Stop { until }, plan.generation, plan.leader)
            }
            Plan::Over(plan) => (Stage::Over { until }, plan.generation, plan.leader),
        };
        self.lost = Some(leader);
    }

    /// Returns the generation whose values the leader needs.
    pub(crate) fn generation(&self) -> u64 {
        self.current.number
    }

    /// Reacts to an event and returns the actions to perform, in order.
    pub(crate) fn step(&mut self, event: Event, now: Time) -> Vec<Action> {
        self.now = now;
        let verdict = match event {
            Event::Read(reading) => self.take(reading).or_else(|| self.advance()),
            Event::StoreStarted(Ok(store)) => {
                self.run(store);
                None
            }
            Event::StoreStarted(Err(error)) => Some(broken(&error)),
        };
        if let Some(verdict) = verdict {
            self.decide(verdict);
        }
        std::mem::take(&mut self.actions)
    }

    /// Records the values of the store. A malformed one ends the job.
    fn take(&mut self, reading: Reading) -> Option<Verdict> {
        // The gap tells nothing with etcd, which may take that long to answer.
        if let Some(gap) = self.beats.look(self.now).filter(|_| !self.rules.hands_over) {
            self.actions.push(Action::Log(format!(
                "this launcher did not run for {}: it was stopped, or the machine slept; others \
                 take a machine for lost after {}",
                display::seconds(gap),
                display::seconds(self.rules.silence)
            )));
        }
        self.machines.nodes.extend(reading.nodes);
        for (id, number) in reading.beats {
            // Keys may be left from machines that were lost long ago. After a change of leader, an
            // unknown machine counts as alive only after its second heartbeat.
            let counts =
                self.lost.is_none() || id == self.own || self.current.members.contains(&id);
            self.beats.hear(id, number, counts, self.now);
        }
        (self.machines.left, self.machines.disconnected) = (reading.left, reading.disconnected);
        self.machines.farewells = reading.farewells;
        self.machines.states = reading.states.into_iter().collect();
        self.machines.ends = reading.machine_ends.into_iter().collect();
        for (rank, end) in reading.worker_ends {
            if !self.current.deaths.iter().any(|(known, _)| *known == rank) {
                let generation = self.current.number;
                self.actions.push(Action::NotifyEnded { generation, rank, end: end.clone() });
                self.current.deaths.push((rank, end));
            }
        }
        let is_over = matches!(self.stage, Stage::Over { .. });
        reading.malformed.filter(|_| !is_over).map(|error| broken(&error))
    }

    /// Makes the progress that the recorded values allow.
    fn advance(&mut self) -> Option<Verdict> {
        match self.stage {
            Stage::Form => self.form(),
            Stage::StartStore => None,
            Stage::Watch => {
                let verdict = self.judge();
                if verdict.is_none() {
                    self.publish_progress();
                }
                verdict
            }
            Stage::Stop { until } => {
                let waits = |id: &String| self.is_alive(id) && !self.machines.ends.contains_key(id);
                if !self.current.members.iter().any(waits) || self.now >= until {
                    self.current.number += 1;
                    (self.current.deaths, self.current.failed_since) = (Vec::new(), None);
                    self.forming = Forming::new(self.alive(&self.current.members), self.now);
                    self.stage = Stage::Form;
                }
                None
            }
            Stage::Over { until } => {
                let waits =
                    |id: &String| self.is_alive(id) && !self.machines.farewells.contains(id);
                if !self.machines.nodes.keys().any(waits) || self.now >= until {
                    self.actions.push(Action::Exit { is_over: true });
                }
                None
            }
        }
    }

    fn decide(&mut self, verdict: Verdict) {
        let (generation, leader) = (self.current.number, self.own.clone());
        let until = self.stop_deadline();
        match verdict {
            Verdict::HandOver => self.actions.push(Action::Exit { is_over: false }),
            Verdict::Over { code, reason, culprit } => {
                let plan = OverPlan { generation, leader, code, reason, culprit };
                self.actions.push(Action::Publish(Plan::Over(plan)));
                self.stage = Stage::Over { until };
            }
            Verdict::Again { reason } => {
                let (failures, members) = (self.failures, self.current.members.clone());
                let plan = StopPlan { generation, leader, failures, reason, members };
                self.actions.push(Action::Publish(Plan::Stop(plan)));
                self.stage = Stage::Stop { until };
            }
        }
    }

    fn stop_deadline(&self) -> Time {
        self.now.plus(self.rules.timeouts.stop + STOP_SLACK)
    }

    /// Starts a generation when enough machines have joined. Returns a verdict if too few do in
    /// time.
    fn form(&mut self) -> Option<Verdict> {
        if self.machines.left.contains(&self.own) {
            return Some(self.leader_left());
        }
        let is_first = self.current.number == 0;
        if is_first && let Some(verdict) = self.differing() {
            return Some(verdict);
        }
        let is_same = self.rules.level == ElasticLevel::Same && !is_first;
        let (needed, most) = match is_same {
            true => (self.current.members.len(), self.current.members.len()),
            false => (self.rules.min, self.rules.max),
        };
        let quiet = if is_first { self.rules.timeouts.elastic } else { REFORM_QUIET };
        let candidates = self.candidates(&self.forming.survivors);
        if candidates.len() != self.forming.candidate_count {
            (self.forming.candidate_count, self.forming.changed) = (candidates.len(), self.now);
        }
        let is_quiet = self.now.since(self.forming.changed) >= quiet;
        if candidates.len() >= most || (candidates.len() >= needed && is_quiet) {
            return self.start(candidates, most);
        }
        let waited = self.now.since(self.forming.begun);
        if waited >= self.rules.timeouts.join && candidates.len() < needed {
            return Some(self.too_few(&candidates, needed));
        }
        // Skipped before the first machine, this one, has joined.
        let logged = self.forming.logged;
        if logged.map_or(!candidates.is_empty(), |logged| self.now.since(logged) >= LOG_PERIOD) {
            self.forming.logged = Some(self.now);
            let range = match needed == most {
                true => needed.to_string(),
                false => format!("{needed} to {most}"),
            };
            self.actions.push(Action::Log(format!(
                "waiting for machines: {} of {range} have joined{}, {} left",
                candidates.len(),
                self.missing(&candidates),
                display::seconds(self.rules.timeouts.join.saturating_sub(waited))
            )));
        }
        None
    }

    /// Ends the job if its machines were started with conflicting flags.
    fn differing(&self) -> Option<Verdict> {
        // This machine joins in a moment.
        let own = &self.machines.nodes.get(&self.own).filter(|_| self.is_alive(&self.own))?.node;
        let alive = self.alive(self.machines.nodes.keys());
        let difference = |id: &String| terms::difference(own, &self.machines.nodes[id].node);
        let reason = alive.iter().find_map(difference)?.to_string();
        Some(Verdict::Over { code: USAGE_CODE, reason, culprit: None })
    }

    /// Whether a machine was started with the same flags as the leader. A machine with other flags
    /// that joins a running job detects this itself and leaves.
    fn fits(&self, id: &str) -> bool {
        let (Some(own), Some(other)) =
            (self.machines.nodes.get(&self.own), self.machines.nodes.get(id))
        else {
            return true;
        };
        terms::difference(&own.node, &other.node).is_none()
    }

    /// Returns survivors in their order, then newcomers in order of arrival or, with `sort_ip`, of
    /// address. Machines that request a number come first, by number.
    fn candidates(&self, survivors: &[String]) -> Vec<String> {
        let survivors = self.alive(survivors);
        let newcomers = self.machines.nodes.keys().filter(|id| !survivors.contains(*id));
        let mut fresh = self.alive(newcomers);
        fresh.retain(|id| self.fits(id));
        fresh.sort_by_key(|id| self.machines.nodes[id].arrived);
        if self.rules.sort_ip {
            fresh.sort_by_key(|id| display::address_key(self.host(id)));
        }
        let mut all = [survivors, fresh].concat();
        all.sort_by_key(|id| self.machines.nodes[id].node.rank.unwrap_or(usize::MAX));
        all
    }

    fn start(&mut self, mut members: Vec<String>, most: usize) -> Option<Verdict> {
        members.truncate(most);
        let mut numbers = HashSet::new();
        for id in &members {
            if let Some(number) = self.machines.nodes[id].node.rank
                && (!numbers.insert(number) || number >= self.rules.max)
            {
                let reason = format!(
                    "{} requests machine number {number}, which is taken or not below {}: --rank \
                     and the lists of hosts must agree on all machines",
                    self.host(id),
                    self.rules.max
                );
                let culprit = Some(id.clone());
                return Some(Verdict::Over { code: USAGE_CODE, reason, culprit });
            }
        }
        self.current.members = members;
        self.actions.push(Action::StartStore);
        self.stage = Stage::StartStore;
        None
    }

    /// Publishes the plan to run the members with a store for their processes.
    fn run(&mut self, store: Endpoint) {
        let node =
            |id: &String| PlanNode { id: id.clone(), node: self.machines.nodes[id].node.clone() };
        let plan = RunPlan {
            generation: self.current.number,
            leader: self.own.clone(),
            failures: self.failures,
            nodes: self.current.members.iter().map(node).collect(),
            store,
            progress: MachineState::default(),
        };
        self.actions.push(Action::Publish(Plan::Run(plan.clone())));
        self.current.plan = Some(plan);
        self.stage = Stage::Watch;
    }

    /// Publishes the plan again when the state of the job changes. A machine by itself knows only
    /// whether its own processes have joined and its own servers have finished.
    fn publish_progress(&mut self) {
        let progress = self.progress();
        if let Some(plan) = self.current.plan.as_mut().filter(|plan| plan.progress != progress) {
            plan.progress = progress;
            self.actions.push(Action::Publish(Plan::Run(plan.clone())));
        }
    }

    /// Returns the machines of the running generation.
    fn running(&self) -> &[PlanNode] {
        self.current.plan.as_ref().map_or(&[], |plan| &plan.nodes)
    }

    fn progress(&self) -> MachineState {
        let is_done = |id: &str| self.machines.states.get(id).is_some_and(|state| state.is_done);
        let serving = self.running().iter().filter(|it| !it.node.servers.is_empty());
        let mut serving = serving.peekable();
        MachineState {
            has_joined: self.machines.states.values().any(|state| state.has_joined),
            is_done: match serving.peek() {
                Some(_) => serving.all(|it| is_done(&it.id)),
                None => self.current.members.iter().any(|id| is_done(id)),
            },
        }
    }

    fn judge(&mut self) -> Option<Verdict> {
        let failures: Vec<(&String, &Failure)> =
            self.current.members.iter().filter_map(|id| Some((id, self.failure_of(id)?))).collect();
        // A lost server or an unresponsive process makes workers fail, not the other way round.
        let is_cause = |it: &&(&String, &Failure)| it.1.is_server || it.1.code == HANG_CODE;
        if let Some((id, failure)) = failures.iter().find(is_cause) {
            let (id, failure) = (id.to_string(), (*failure).clone());
            return Some(self.failure(&id, failure.code, failure.report));
        }
        let first = failures.iter().find(|(_, it)| it.follows.is_none()).or(failures.first());
        if let Some((id, failure)) = first {
            let (id, failure) = (id.to_string(), (*failure).clone());
            return self.failed(id, failure);
        }
        let has_finished =
            |id: &str| matches!(self.machines.ends.get(id), Some(MachineEnd::Finished { .. }));
        let mut working = self.running().iter().filter(|it| !it.node.workers.is_empty());
        if working.all(|it| has_finished(&it.id)) {
            return Some(self.finished());
        }
        if self.machines.left.contains(&self.own) {
            return Some(self.leader_left());
        }
        let gone = self.current.members.iter().find(|id| !self.is_alive(id) && !has_finished(id));
        if let Some(id) = gone.cloned() {
            return Some(self.gone(&id));
        }
        // No machine joins near the end: a new generation would repeat finished work.
        let none_ended = !self.current.members.iter().any(|id| self.machines.ends.contains_key(id));
        if self.rules.level == ElasticLevel::Range
            && self.current.members.len() < self.rules.max
            && none_ended
        {
            let is_fresh = |id: &&String| !self.current.members.contains(id) && self.fits(id);
            if let Some(id) = self.alive(self.machines.nodes.keys().filter(is_fresh)).first() {
                let reason = format!("machine {} joined", self.host(id));
                return Some(Verdict::Again { reason });
            }
        }
        None
    }

    /// Returns the verdict when all machines are done; some may have lost workers that the others
    /// could do without.
    fn finished(&self) -> Verdict {
        let lost = self.current.members.iter().find_map(|id| match self.machines.ends.get(id)? {
            MachineEnd::Finished { lost } => Some((id, lost.as_ref()?)),
            _ => None,
        });
        match lost {
            None => Verdict::Over { code: 0, reason: String::new(), culprit: None },
            Some((id, lost)) => {
                let reason = format!("the job is done without a worker: {}", lost.report);
                Verdict::Over { code: lost.code, reason, culprit: Some(id.clone()) }
            }
        }
    }

    fn failure_of(&self, id: &str) -> Option<&Failure> {
        match self.machines.ends.get(id)? {
            MachineEnd::Failed(failure) => Some(failure),
            _ => None,
        }
    }

    /// Returns the verdict about a failed machine, or `None` to wait for more reports. Workers on
    /// other machines often fail before the first failure is known, so this waits a moment. A lost
    /// machine is the cause of failures of workers that waited for its workers. Otherwise a killed
    /// worker is the cause, or else the first one that names no other worker.
    fn failed(&mut self, id: String, failure: Failure) -> Option<Verdict> {
        let killed = |it: &&(usize, WorkerEnd)| it.1.code > 128;
        let caused = |it: &&(usize, WorkerEnd)| it.1.follows.is_none();
        let deaths = || self.current.deaths.iter();
        let culprit =
            deaths().find(killed).or(deaths().find(caused)).or(self.current.deaths.first());
        let culprit = culprit.cloned();
        let since = *self.current.failed_since.get_or_insert(self.now);
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
        if self.current.members.len() > 1 && !is_killed && self.now.since(since) < settle {
            return None;
        }
        let Some((rank, end)) = culprit.filter(|(_, end)| end.id != id) else {
            return Some(self.failure(&id, failure.code, failure.report));
        };
        // That machine reports more once it has stopped its processes.
        let (code, report) = match self.failure_of(&end.id) {
            Some(failure) => (failure.code, failure.report.clone()),
            None => {
                let was = if end.how.starts_with("killed") { "was " } else { "" };
                let (host, pid, how) = (self.host(&end.id), end.pid, &end.how);
                (end.code, format!("worker {rank} on {host} (pid {pid}) {was}{how}"))
            }
        };
        Some(self.failure(&end.id, code, report))
    }

    /// Follows the reports of failed workers to a worker whose end is not known, if they lead to
    /// one. Starts from the first failed worker or, if none is known, from the failure of machine
    /// `id`.
    fn open_cause(&self, id: &str) -> Option<usize> {
        let failures = self.machines.ends.keys().filter_map(|id| self.failure_of(id));
        let known: BTreeMap<usize, Option<usize>> = failures
            .filter(|it| !it.is_server)
            .map(|it| (it.rank, it.follows))
            .chain(self.current.deaths.iter().map(|(rank, it)| (*rank, it.follows)))
            .collect();
        let first = self.current.deaths.first().map(|(rank, _)| *rank);
        let first = first.or_else(|| Some(self.failure_of(id)?.rank))?;
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
        for PlanNode { id, node } in self.running() {
            let ranks = first..first + node.workers.len();
            first = ranks.end;
            let is_its = match &node.listed {
                Some(listed) => listed.ranks.contains(&rank),
                None => ranks.contains(&rank),
            };
            if is_its {
                return Some(id.clone());
            }
        }
        None
    }

    fn failure(&mut self, id: &str, code: u8, reason: String) -> Verdict {
        if self.failures < self.rules.max_restart {
            self.failures += 1;
            let first = reason.lines().next().unwrap_or_default();
            return Verdict::Again {
                reason: format!("{first}; restart {} of {}", self.failures, self.rules.max_restart),
            };
        }
        Verdict::Over { code, reason, culprit: Some(id.to_string()) }
    }

    fn gone(&self, id: &str) -> Verdict {
        let host = self.host(id).to_string();
        let said = self.machines.left.iter().any(|left| left == id);
        let led = if self.lost.as_deref() == Some(id) { ", which led the job," } else { "" };
        let silence = display::seconds(self.rules.silence);
        let reason = match said {
            true => format!("machine {host} was stopped by its user"),
            false if self.is_cut_off(id) => format!(
                "machine {host}{led} is lost: the connection to its launcher broke (the launcher \
                 was killed, or the machine went down)"
            ),
            false => format!(
                "machine {host}{led} is lost: its launcher has sent no heartbeat for {silence}"
            ),
        };
        match self.rules.level {
            ElasticLevel::Off => Verdict::Over { code: 1, reason, culprit: Some(id.to_string()) },
            _ => Verdict::Again { reason },
        }
    }

    fn leader_left(&self) -> Verdict {
        if self.rules.hands_over && self.rules.level > ElasticLevel::Off {
            return Verdict::HandOver;
        }
        let host = self.host(&self.own);
        let reason = format!("machine {host}, which leads the job, was stopped by its user");
        Verdict::Over { code: 1, reason, culprit: Some(self.own.clone()) }
    }

    fn too_few(&self, candidates: &[String], needed: usize) -> Verdict {
        let hosts: Vec<&str> = candidates.iter().map(|id| self.host(id)).collect();
        let reason = format!(
            "only {} of {needed} machines joined within {}: {}{}",
            hosts.len(),
            display::seconds(self.rules.timeouts.join),
            hosts.join(", "),
            self.missing(candidates)
        );
        Verdict::Over { code: 1, reason, culprit: None }
    }

    /// Returns `, without 10.0.0.2` for hosts of the list that have not joined.
    fn missing(&self, candidates: &[String]) -> String {
        let came = |number: &usize| {
            candidates.iter().any(|id| self.machines.nodes[id].node.rank == Some(*number))
        };
        let numbered = self.rules.hosts.iter().enumerate();
        let missing: Vec<&str> =
            numbered.filter(|(number, _)| !came(number)).map(|(_, host)| host.as_str()).collect();
        match missing.is_empty() {
            true => String::new(),
            false => format!(", without {}", display::some_of(&missing)),
        }
    }

    fn is_alive(&self, id: &str) -> bool {
        let beat = self.beats.heard(id).is_some_and(|at| self.now.since(at) < self.rules.silence);
        let is_lost = self.lost.as_deref() == Some(id) || self.is_cut_off(id);
        beat && !is_lost && !self.machines.left.iter().any(|left| left == id)
    }

    /// Whether the connection to its launcher broke for good.
    fn is_cut_off(&self, id: &str) -> bool {
        let arrived = self.machines.nodes.get(id).map(|node| node.arrived.to_string());
        arrived.is_some_and(|arrived| self.machines.disconnected.contains(&arrived))
    }

    fn has_beaten_since(&self, id: &str, since: Time) -> bool {
        self.beats.heard(id).is_some_and(|at| at > since)
    }

    fn alive<'a>(&self, ids: impl IntoIterator<Item = &'a String>) -> Vec<String> {
        let is_there = |id: &&String| self.machines.nodes.contains_key(*id) && self.is_alive(id);
        ids.into_iter().filter(is_there).cloned().collect()
    }

    fn host(&self, id: &str) -> &str {
        self.machines.nodes.get(id).map_or("unknown", |node| &node.node.host)
    }
}

/// Returns the verdict when the leader itself cannot continue.
fn broken(error: &Error) -> Verdict {
    Verdict::Over { code: 1, reason: error.to_string(), culprit: None }
}

/// Wait for reports of an earlier failure after a failure that may follow from it.
const SETTLE: Duration = Duration::from_millis(500);
/// The same if all known failures follow from one that is not yet known.
const CAUSE_TIME: Duration = Duration::from_secs(2);
/// Interval between lines about missing machines.
const LOG_PERIOD: Duration = Duration::from_secs(5);
/// After a loss, the remaining machines restart when no machine has joined for this long.
const REFORM_QUIET: Duration = Duration::from_secs(2);
/// Slack in addition to the time that processes get to stop.
const STOP_SLACK: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
