//! Decisions of the leader on a clock and a store of the test.

use super::*;
use crate::options::{Mode, Nodes};
use crate::protocol::{Listed, LostWorker, Node, NodeProcess};
use std::collections::BTreeSet;

mod simulation;

fn rules(min: usize, max: usize) -> LeaderRules {
    LeaderRules {
        min,
        max,
        level: ElasticLevel::Off,
        max_restart: 0,
        silence: Duration::from_secs(60),
        timeouts: Timeouts {
            join: Duration::from_secs(60),
            elastic: Duration::ZERO,
            start: None,
            stop: Duration::ZERO,
            silence: Duration::from_secs(30),
            leave: Duration::from_secs(30),
        },
        sort_ip: false,
        hosts: Vec::new(),
        hands_over: false,
    }
}

fn node(host: &str, worker_count: usize, server_count: usize) -> Node {
    let processes = |count| vec![NodeProcess { port: 1, devices: Vec::new() }; count];
    Node {
        host: host.to_string(),
        rank: None,
        gloo: 0,
        workers: processes(worker_count),
        servers: processes(server_count),
        listed: None,
        terms: terms::terms(Mode::Ps, Nodes { min: 2, max: 2 }, ElasticLevel::Off, "default"),
    }
}

fn failure(code: u8, report: &str, rank: usize, follows: Option<usize>) -> MachineEnd {
    let report = report.to_string();
    MachineEnd::Failed(Failure { code, report, is_server: false, rank, follows })
}

const FINISHED: MachineEnd = MachineEnd::Finished { lost: None };

/// A leader with the store that it reads and the effects that it had.
struct Job {
    leader: Leader,
    now: Time,
    reading: Reading,
    /// Machines that send no heartbeats.
    silent: BTreeSet<String>,
    plans: Vec<Plan>,
    logs: Vec<String>,
    told: Vec<(u64, usize)>,
    exit: Option<bool>,
}

impl Job {
    /// The machine `10.0.0.1` leads.
    fn new(rules: LeaderRules) -> Job {
        Job::led_by("10.0.0.1", rules, Time::default())
    }

    fn led_by(own: &str, rules: LeaderRules, now: Time) -> Job {
        Job {
            leader: Leader::new(rules, own.to_string(), now),
            now,
            reading: Reading::default(),
            silent: BTreeSet::new(),
            plans: Vec::new(),
            logs: Vec::new(),
            told: Vec::new(),
            exit: None,
        }
    }

    /// Starts two machines with one worker each.
    fn of_two(rules: LeaderRules) -> Job {
        let mut job = Job::new(rules);
        job.join(1, node("10.0.0.1", 1, 0));
        job.join(2, node("10.0.0.2", 1, 0));
        assert_eq!(job.run_hosts(0), ["10.0.0.1", "10.0.0.2"]);
        job
    }

    /// Another machine leads on from the plan.
    fn handed_to(&self, own: &str, plan: Plan) -> Job {
        let mut job = Job::led_by(own, self.leader.rules.clone(), self.now);
        job.leader.adopt(plan);
        (job.reading, job.silent) = (self.reading.clone(), self.silent.clone());
        job
    }

    /// Adds a machine whose id is its host.
    fn join(&mut self, arrived: i64, node: Node) {
        let id = node.host.clone();
        self.reading.beats.push((id.clone(), 0));
        self.reading.nodes.push((id, Arrival { arrived, node }));
    }

    fn leave(&mut self, id: &str) {
        self.reading.left.push(id.to_string());
    }

    fn end(&mut self, id: &str, end: MachineEnd) {
        self.reading.machine_ends.retain(|(known, _)| known != id);
        self.reading.machine_ends.push((id.to_string(), end));
    }

    fn end_worker(&mut self, rank: usize, id: &str, how: &str, code: u8) {
        let (id, host, host_id) = (id.to_string(), id.to_string(), String::new());
        let (pid, how) = (rank as u32 + 7, how.to_string());
        let end = WorkerEnd { id, host, host_id, pid, how, code, follows: None };
        self.reading.worker_ends.push((rank, end));
    }

    fn set_state(&mut self, id: &str, has_joined: bool, is_done: bool) {
        self.reading.states.retain(|(known, _)| known != id);
        self.reading.states.push((id.to_string(), MachineState { has_joined, is_done }));
    }

    /// Lets the leader read the store for a while, at least once.
    fn wait(&mut self, time: Duration) {
        let until = self.now.plus(time);
        loop {
            for (id, number) in &mut self.reading.beats {
                *number += u64::from(!self.silent.contains(id));
            }
            self.step(Event::Read(self.reading.clone()));
            if self.now >= until || self.exit.is_some() {
                return;
            }
            self.now = self.now.plus(TICK);
        }
    }

    fn step(&mut self, event: Event) {
        let generation = self.leader.generation();
        for action in self.leader.step(event, self.now) {
            match action {
                Action::Log(line) => self.logs.push(line),
                Action::Publish(plan) => self.plans.push(plan),
                Action::StartStore => {
                    self.step(Event::StoreStarted(Ok(Endpoint::new("10.0.0.1", 1))));
                }
                Action::NotifyEnded { generation, rank, .. } => self.told.push((generation, rank)),
                Action::Exit { is_over } => self.exit = Some(is_over),
            }
        }
        if self.leader.generation() != generation {
            self.reading.machine_ends.clear();
            self.reading.states.clear();
            self.reading.worker_ends.clear();
        }
    }

    /// Waits until a plan is published and returns it.
    fn next_plan(&mut self) -> Plan {
        let count = self.plans.len();
        for _ in 0..STEPS_MAX {
            self.wait(Duration::ZERO);
            if self.plans.len() > count {
                return self.plans[count].clone();
            }
            self.now = self.now.plus(TICK);
        }
        panic!("no plan follows {:?}", self.plans.last());
    }

    /// Returns the hosts of the next plan, which must start this generation.
    fn run_hosts(&mut self, generation: u64) -> Vec<String> {
        match self.next_plan() {
            Plan::Run(plan) if plan.generation == generation => {
                plan.nodes.into_iter().map(|it| it.node.host).collect()
            }
            plan => panic!("{plan:?}"),
        }
    }

    fn stop_reason(&mut self) -> String {
        match self.next_plan() {
            Plan::Stop(plan) => plan.reason,
            plan => panic!("{plan:?}"),
        }
    }

    fn over(&mut self) -> (u8, String, Option<String>) {
        match self.next_plan() {
            Plan::Over(plan) => (plan.code, plan.reason, plan.culprit),
            plan => panic!("{plan:?}"),
        }
    }
}

/// Interval between readings.
const TICK: Duration = Duration::from_millis(50);
/// Limit on readings until a plan: two minutes.
const STEPS_MAX: usize = 2400;

#[test]
fn machines_are_numbered_by_arrival_by_request_or_by_address() {
    for (rank, sort_ip, wanted) in [
        (None, false, ["10.0.0.10", "10.0.0.9", "10.0.0.1"]),
        (None, true, ["10.0.0.1", "10.0.0.9", "10.0.0.10"]),
        (Some(0), false, ["10.0.0.1", "10.0.0.10", "10.0.0.9"]),
    ] {
        let mut job = Job::new(LeaderRules { sort_ip, ..rules(3, 3) });
        job.join(3, Node { rank, ..node("10.0.0.1", 1, 0) });
        job.join(2, node("10.0.0.9", 1, 0));
        job.join(1, node("10.0.0.10", 1, 0));
        assert_eq!(job.run_hosts(0), wanted);
        wanted.iter().for_each(|id| job.end(id, FINISHED));
        assert_eq!(job.over(), (0, String::new(), None));
        job.reading.farewells = wanted.map(str::to_string).to_vec();
        job.wait(TICK);
        assert_eq!(job.exit, Some(true));
    }
}

#[test]
fn two_machines_of_one_number_are_refused() {
    let mut job = Job::new(rules(2, 2));
    for (arrived, host) in [(1, "10.0.0.1"), (2, "10.0.0.2")] {
        job.join(arrived, Node { rank: Some(1), ..node(host, 1, 0) });
    }
    let (code, reason, culprit) = job.over();
    assert_eq!((code, culprit.as_deref()), (2, Some("10.0.0.2")));
    assert!(reason.starts_with("10.0.0.2 requests machine number 1, which is taken"), "{reason}");
}

#[test]
fn too_few_machines_end_the_job_in_time() {
    let hosts = ["10.0.0.1", "10.0.0.2"].map(str::to_string).to_vec();
    let mut job = Job::new(LeaderRules { hosts, ..rules(2, 2) });
    job.join(1, Node { rank: Some(0), ..node("10.0.0.1", 1, 0) });
    job.wait(Duration::from_secs(59));
    assert!(job.plans.is_empty());
    let first = "waiting for machines: 1 of 2 have joined, without 10.0.0.2, 60 s left";
    assert_eq!((job.logs.len(), job.logs[0].as_str()), (12, first));
    let (code, reason, _) = job.over();
    let wanted = "only 1 of 2 machines joined within 60 s: 10.0.0.1, without 10.0.0.2";
    assert_eq!((code, reason.as_str()), (1, wanted));
}

#[test]
fn machines_of_servers_are_not_awaited() {
    let mut job = Job::new(rules(2, 2));
    job.join(1, node("10.0.0.1", 2, 0));
    job.join(2, node("10.0.0.2", 0, 1));
    job.next_plan();
    job.end("10.0.0.1", FINISHED);
    assert_eq!(job.over().0, 0);
}

#[test]
fn a_job_without_a_worker_ends_with_its_code() {
    let mut job = Job::of_two(rules(2, 2));
    let lost = Some(LostWorker { code: 9, report: "worker 1 died".into() });
    job.end("10.0.0.1", FINISHED);
    job.end("10.0.0.2", MachineEnd::Finished { lost });
    let (code, reason, culprit) = job.over();
    assert_eq!((code, culprit.as_deref()), (9, Some("10.0.0.2")));
    assert_eq!(reason, "the job is done without a worker: worker 1 died");
}

#[test]
fn the_plan_states_the_progress_of_all_machines() {
    let mut job = Job::new(rules(3, 3));
    job.join(1, node("10.0.0.1", 1, 1));
    job.join(2, node("10.0.0.2", 1, 1));
    job.join(3, node("10.0.0.3", 1, 0));
    job.next_plan();
    let check = |job: &mut Job, has_joined: bool, is_done: bool| match job.next_plan() {
        Plan::Run(plan) => assert_eq!(plan.progress, MachineState { has_joined, is_done }),
        plan => panic!("{plan:?}"),
    };
    job.set_state("10.0.0.3", true, false);
    check(&mut job, true, false);
    // First one of the two machines with servers is done, then both are.
    job.set_state("10.0.0.1", false, true);
    job.set_state("10.0.0.3", false, false);
    check(&mut job, false, false);
    job.set_state("10.0.0.2", true, true);
    check(&mut job, true, true);
    let count = job.plans.len();
    job.wait(Duration::from_secs(1));
    assert_eq!(job.plans.len(), count, "no change is no plan");
}

#[test]
fn survivors_keep_their_order_and_newcomers_follow() {
    let mut job = Job::new(LeaderRules { level: ElasticLevel::Range, ..rules(2, 3) });
    for (arrived, host) in [(1, "10.0.0.1"), (2, "10.0.0.2"), (3, "10.0.0.3")] {
        job.join(arrived, node(host, 1, 0));
    }
    assert_eq!(job.run_hosts(0).len(), 3);
    job.join(4, node("10.0.0.0", 1, 0));
    job.leave("10.0.0.2");
    assert_eq!(job.stop_reason(), "machine 10.0.0.2 was stopped by its user");
    job.end("10.0.0.1", MachineEnd::Stopped);
    job.end("10.0.0.3", MachineEnd::Stopped);
    assert_eq!(job.run_hosts(1), ["10.0.0.1", "10.0.0.3", "10.0.0.0"]);
    job.end("10.0.0.3", failure(9, "it broke", 1, None));
    assert_eq!(job.over(), (9, "it broke".into(), Some("10.0.0.3".into())));
}

#[test]
fn failures_restart_a_job_a_limited_number_of_times() {
    let level = ElasticLevel::Same;
    let mut job = Job::of_two(LeaderRules { max_restart: 1, level, ..rules(2, 2) });
    job.end("10.0.0.2", failure(3, "it broke\n  its log", 1, None));
    assert_eq!(job.stop_reason(), "it broke; restart 1 of 1");
    // Without the end of the first machine the leader waits until the deadline.
    job.wait(STOP_SLACK / 2);
    assert_eq!((job.plans.len(), job.leader.generation()), (2, 0));
    assert_eq!(job.run_hosts(1), ["10.0.0.1", "10.0.0.2"]);
    job.end("10.0.0.2", failure(3, "it broke", 1, None));
    assert_eq!(job.over(), (3, "it broke".into(), Some("10.0.0.2".into())));
}

#[test]
fn a_killed_worker_explains_another_failure() {
    let mut job = Job::of_two(rules(2, 2));
    // The failure of a worker on the first machine is reported first, but its cause is the killed
    // worker on the second.
    job.end_worker(0, "10.0.0.1", "exited with code 1", 1);
    job.end("10.0.0.1", failure(1, "rank 1 died", 0, None));
    job.wait(TICK);
    job.end_worker(1, "10.0.0.2", "killed by SIGKILL (9)", 137);
    let reason = "worker 1 on 10.0.0.2 (pid 8) was killed by SIGKILL (9)";
    assert_eq!(job.over(), (137, reason.into(), Some("10.0.0.2".into())));
    assert_eq!(job.told, [(0, 0), (0, 1)], "each end is announced once");
}

#[test]
fn machines_with_different_flags_are_refused() {
    let mut job = Job::new(rules(3, 3));
    job.join(1, node("10.0.0.1", 1, 0));
    let mut other = node("10.0.0.2", 1, 0);
    other.terms.mode = "collective".to_string();
    job.join(2, other.clone());
    let (code, reason, culprit) = job.over();
    assert_eq!((code, culprit), (2, None));
    assert!(reason.contains("ps on 10.0.0.1 and collective on 10.0.0.2\n  help: "), "{reason}");

    // A running job takes only machines that fit.
    let mut job = Job::new(LeaderRules { level: ElasticLevel::Range, ..rules(1, 2) });
    job.join(1, node("10.0.0.1", 1, 0));
    job.next_plan();
    job.join(2, other);
    job.join(3, node("10.0.0.3", 1, 0));
    assert_eq!(job.stop_reason(), "machine 10.0.0.3 joined");
    job.end("10.0.0.1", MachineEnd::Stopped);
    assert_eq!(job.run_hosts(1), ["10.0.0.1", "10.0.0.3"]);
}

#[test]
fn a_machine_whose_connection_broke_is_lost_at_once() {
    let mut job = Job::of_two(rules(2, 2));
    // A worker of the other machine has noticed it earlier.
    job.end("10.0.0.1", failure(1, "rank 1 died", 0, Some(1)));
    job.reading.disconnected.push("2".to_string());
    let (code, reason, culprit) = job.over();
    assert_eq!((code, culprit.as_deref()), (1, Some("10.0.0.2")));
    assert!(reason.starts_with("machine 10.0.0.2 is lost: the connection to its"), "{reason}");
}

#[test]
fn a_machine_that_may_be_lost_is_awaited() {
    let mut job = Job::of_two(rules(2, 2));
    job.silent.insert("10.0.0.2".to_string());
    job.end("10.0.0.1", failure(1, "worker 0 failed", 0, Some(1)));
    // Time has passed, but the other machine has sent no heartbeat since.
    job.wait(CAUSE_TIME * 2);
    assert_eq!(job.plans.len(), 1);
    // After its heartbeat the other machine is not the cause.
    job.silent.clear();
    assert_eq!(job.over(), (1, "worker 0 failed".into(), Some("10.0.0.1".into())));
}

#[test]
fn ranks_lead_to_machines() {
    let job = Job::of_two(rules(2, 2));
    assert_eq!(job.leader.machine_of(1).as_deref(), Some("10.0.0.2"));
    assert_eq!(job.leader.machine_of(2), None);
    // In a list, the ranks of a machine need not be consecutive.
    let mut job = Job::new(rules(2, 2));
    for (arrived, host, rank) in [(1, "10.0.0.1", 1), (2, "10.0.0.2", 0)] {
        let listed = Some(Listed { ports: vec![1], ranks: vec![rank] });
        job.join(arrived, Node { listed, ..node(host, 1, 0) });
    }
    job.next_plan();
    assert_eq!(job.leader.machine_of(0).as_deref(), Some("10.0.0.2"));
    assert_eq!(job.leader.machine_of(1).as_deref(), Some("10.0.0.1"));
}

#[test]
fn reports_of_several_machines_lead_to_the_cause() {
    let mut job = Job::of_two(rules(2, 2));
    for (rank, follows) in [(0, Some(1)), (1, Some(2)), (2, None)] {
        job.end_worker(rank, "10.0.0.1", "exited with code 1", 1);
        job.reading.worker_ends[rank].1.follows = follows;
        job.wait(Duration::ZERO);
        assert_eq!(job.leader.open_cause("10.0.0.1"), follows);
    }
}

#[test]
fn a_malformed_value_ends_the_job() {
    let mut job = Job::of_two(rules(2, 2));
    job.reading.malformed = Some(Error::unavailable("malformed value of the key 'node/a'"));
    let wanted = "malformed value of the key 'node/a'";
    assert_eq!(job.over(), (1, wanted.to_string(), None));
    job.reading.farewells = vec!["10.0.0.1".into(), "10.0.0.2".into()];
    job.wait(TICK);
    assert_eq!((job.exit, job.plans.len()), (Some(true), 2));
}

#[test]
fn a_store_that_does_not_start_ends_the_job() {
    let mut leader = Leader::new(rules(1, 1), "a".into(), Time::default());
    let mut reading = Reading::default();
    reading.beats.push(("a".into(), 0));
    reading.nodes.push(("a".into(), Arrival { arrived: 1, node: node("a", 1, 0) }));
    let now = leader.now;
    assert_eq!(leader.step(Event::Read(reading), now), [Action::StartStore]);
    let failed = Event::StoreStarted(Err(Error::unavailable("no port")));
    let actions = leader.step(failed, now);
    let [Action::Publish(Plan::Over(plan))] = &actions[..] else { panic!("{actions:?}") };
    assert_eq!((plan.code, plan.reason.as_str()), (1, "no port"));
}

#[test]
fn another_leader_resumes_from_the_plan() {
    let level = ElasticLevel::Range;
    let mut first = Job::of_two(LeaderRules { level, hands_over: true, ..rules(1, 2) });
    let run = first.plans[0].clone();
    first.leave("10.0.0.1");
    first.wait(TICK);
    assert_eq!(first.exit, Some(false), "it leaves, and the job does not end");
    let mut second = first.handed_to("10.0.0.2", run);
    let stop = second.next_plan();
    let Plan::Stop(plan) = &stop else { panic!("{stop:?}") };
    assert_eq!(plan.reason, "machine 10.0.0.1 was stopped by its user");
    // The second machine is lost while stopping, and a third continues from there. Keys left by a
    // machine that was lost long ago do not count as a machine.
    second.join(0, node("10.0.0.9", 1, 0));
    second.silent.insert("10.0.0.9".to_string());
    second.leave("10.0.0.2");
    second.join(3, node("10.0.0.3", 1, 0));
    second.end("10.0.0.2", MachineEnd::Stopped);
    let mut third = second.handed_to("10.0.0.3", stop);
    assert_eq!(third.run_hosts(1), ["10.0.0.3"]);
    third.end("10.0.0.3", FINISHED);
    assert_eq!(third.over().0, 0);
    third.reading.farewells.push("10.0.0.3".to_string());
    third.wait(TICK);
    assert_eq!(third.exit, Some(true));
    // With elastic level 0 the loss of the leader ends the job.
    let first = Job::of_two(LeaderRules { hands_over: true, ..rules(2, 2) });
    let mut second = first.handed_to("10.0.0.2", first.plans[0].clone());
    let reason = "machine 10.0.0.1, which led the job, is lost: its launcher has sent no heartbeat \
                  for 60 s";
    assert_eq!(second.over(), (1, reason.into(), Some("10.0.0.1".into())));
}
