//! The loop of the launcher that leads a job on several machines: reads the store for the leader's
//! decisions (`decisions.rs`) and performs them.
//!
//! The launcher that hosts the store leads; with etcd, the one that holds the key `leader`.

use crate::decisions::{Action, Event, Leader, LeaderRules};
use crate::protocol::{PLAN, Plan, Reading, WorkerEnd};
use fleet_base::Result;
use fleet_net::{Limits, Store, Time};
use fleet_topology::Endpoint;
use std::collections::VecDeque;
use std::time::Duration;

/// Effects of the leader apart from the plan.
pub(crate) struct Effects<'a> {
    /// Creates a store for the processes of a generation and returns its address.
    pub start_store: &'a mut dyn FnMut() -> Result<Endpoint>,
    /// Shows a line to the user.
    pub log: &'a dyn Fn(String),
    /// Notifies the workers of a generation that one of them has ended. Arguments: generation,
    /// rank, and the report of that worker's machine.
    pub notify_ended: &'a dyn Fn(u64, usize, &WorkerEnd),
}

/// Leads as machine `own`, on from the plan of a lost leader if there is one. Returns when the job
/// is over and all machines know it, or false if another machine is to lead.
pub(crate) fn lead(
    (own, rules): (String, LeaderRules),
    adopted: Option<Plan>,
    store: &dyn Store,
    effects: Effects<'_>,
) -> Result<bool> {
    let mut leader = Leader::new(rules, own, Time::now());
    if let Some(plan) = adopted {
        leader.adopt(plan);
    }
    loop {
        let reading = Reading::of(store, leader.generation(), &Limits::within(CALL_TIME))?;
        let mut actions = VecDeque::from(leader.step(Event::Read(reading), Time::now()));
        if actions.is_empty() {
            std::thread::sleep(TICK);
        }
        while let Some(action) = actions.pop_front() {
            match action {
                Action::Log(line) => (effects.log)(line),
                Action::Publish(plan) => PLAN.set(store, &plan, &Limits::within(CALL_TIME))?,
                Action::StartStore => {
                    let started = Event::StoreStarted((effects.start_store)());
                    actions.extend(leader.step(started, Time::now()));
                }
                Action::NotifyEnded { generation, rank, end } => {
                    (effects.notify_ended)(generation, rank, &end);
                }
                Action::Exit { is_over } => return Ok(is_over),
            }
        }
    }
}

/// Interval between readings of the store.
const TICK: Duration = Duration::from_millis(50);
/// Limit on a call to this machine's own store, which fails only if the machine is overloaded.
const CALL_TIME: Duration = Duration::from_secs(20);
