//! Connection of a rank to the other ranks of its job.

use crate::CommWorld;
use crate::agree::WholeRings;
use crate::explain::{FirstFault, StepPeers};
use crate::job_store::JobStore;
use crate::membership::JobMembership;
use crate::report::Reporter;
use crate::rings::GroupRing;
use crate::store_part::StorePart;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_comm::{Group, GroupOptions, World};
use fleet_net::{
    Abort, Deadline, Limits, Member, Membership, Store, Swap, TcpFabric, TcpOptions, Token, host,
};
use fleet_ops::Services;
use fleet_strategy::RingSpec;
use fleet_topology::{Mode, Topology};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Timeout for ranks to meet; a machine may still be loading its program.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Time that a broken connection waits for the notice of which rank died.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) struct Connection {
    world: World,
    /// Options of every group of the job.
    options: GroupOptions,
    everyone: Group,
    /// Groups that sessions communicate over, by name. A name is used once per job.
    opened: Mutex<BTreeMap<String, Group>>,
    /// Number of training steps of each session.
    steps: Mutex<Vec<Arc<AtomicU64>>>,
    membership: JobMembership,
    fault: FirstFault,
    reporter: Reporter,
    finished: AtomicBool,
    /// Reported cause if this process ends while others still need it.
    how_left: &'static str,
}

impl Connection {
    /// Meets the other members of a group of the whole job at the job's store.
    pub(crate) fn connect(
        topology: &Topology,
        store: &JobStore,
        reporter: &Reporter,
        members: CommWorld,
    ) -> Result<Connection> {
        let job = topology.job();
        // Workers of parameter servers restart one by one: each joins the attempt of the first
        // start.
        let is_one_by_one = topology.mode() == Mode::ParameterServer;
        let restarts = if is_one_by_one { 0 } else { job.restarts };
        let mut attempt = fleet_topology::Job { restarts, ..job.clone() }.attempt();
        if members != CommWorld::Worker {
            attempt = format!("{attempt}/world/{}", members.name());
        }
        let (rank, size) = (members.rank(topology)?, members.size(topology));
        let token = job_token(topology)?;
        let abort = Abort::new();
        // Workers of parameter servers do not depend on each other: the mode decides which failures
        // they report.
        let reporter = if is_one_by_one { Reporter::default() } else { reporter.clone() };
        let reports = reporter.clone();
        let reports = abort.on_fire(move |error| reports.failed(error));
        let limits = Limits::new(Deadline::within(JOIN_TIMEOUT), &abort);
        let hosts_it = store.host(topology, &token)?;
        let (store, address) = store.connect(topology, &token, &limits)?;
        let mut store: Arc<dyn Store> = Arc::new(store);
        if members != CommWorld::Worker {
            store = Arc::new(StorePart::new(store, format!("{attempt}/")));
        }
        let own = host::own_member(rank);
        if is_one_by_one {
            join_once(&*store, &attempt, &own, &limits)?;
        }
        let membership = Membership::join(address, &token, &attempt, own, &limits, {
            let abort = abort.clone();
            move |notice| {
                abort.fire(notice.error());
            }
        })?;
        let mut options = TcpOptions::new(&attempt, rank, size).store(address);
        options.notice_wait = NOTICE_TIMEOUT;
        // A firewall may allow only the ports of the job's endpoints. A server listens on its own,
        // and the store may listen on that of worker 0.
        let own = topology.endpoint().filter(|_| members == CommWorld::Worker);
        let is_taken = |port: &u16| hosts_it && *port == address.port();
        options.port = own.map(|own| own.port).filter(|port| !is_taken(port));
        let fabric = Arc::new(TcpFabric::start(&*store, &token, options, &limits)?);
        let mut world = World::new(fabric, store, abort);
        if members == CommWorld::Worker {
            world = crate::nccl::with_nccl(world, topology).inspect_err(|error| {
                // The others would wait for this rank, and leaving the membership reports no error.
                let how = format!("NCCL failed: {}", error.message());
                membership.report_end(&host::own_member(rank), &how);
            })?;
        }
        let membership = JobMembership::Store { membership, _reports: reports };
        let mut connection = Connection::over(world, topology, membership, reporter)?;
        if members != CommWorld::Worker {
            connection.how_left = LEFT_WORLD;
        }
        Ok(connection)
    }

    /// Opens the group of all ranks of `world`.
    pub(crate) fn over(
        world: World,
        topology: &Topology,
        membership: JobMembership,
        reporter: Reporter,
    ) -> Result<Connection> {
        let fault = FirstFault::default();
        let (first, reports) = (fault.clone(), reporter.clone());
        let world = world.on_fault(move |error| {
            let mut first = lock(&first);
            first.get_or_insert_with(|| error.clone());
            reports.failed(error);
        });
        let all: Vec<usize> = (0..world.size()).collect();
        let shared_memory = topology.job().shared_memory.unwrap_or(true);
        let mut options = GroupOptions { shared_memory, ..GroupOptions::default() };
        options.silence = topology.job().silence.unwrap_or(options.silence);
        let everyone = world.group("everyone", &all, &options).inspect_err(|error| {
            let how = format!("failed to join the other ranks: {}", error.message());
            membership.report_end(world.rank(), &how);
        })?;
        Ok(Connection {
            world,
            options,
            everyone,
            opened: Mutex::default(),
            steps: Mutex::default(),
            membership,
            fault,
            reporter,
            finished: AtomicBool::default(),
            how_left: LEFT_EARLY,
        })
    }

    /// The group of all ranks.
    pub(crate) fn everyone(&self) -> &Group {
        &self.everyone
    }

    /// Returns the rings of programs as services for their ops.
    pub(crate) fn services(&self, rings: &[RingSpec]) -> Result<Services> {
        let mut services = Services::none();
        for ring in rings {
            let members: Vec<usize> = ring.members().collect();
            let group = self.group(ring, &members)?;
            services = services.with_ring(ring.id, Arc::new(GroupRing(group)));
        }
        Ok(services)
    }

    /// Adds a session by the counter of its steps. Returns its link to the other ranks' sessions.
    pub(crate) fn add_session(
        &self,
        steps: Arc<AtomicU64>,
        attempt: &str,
        rings: WholeRings,
    ) -> StepPeers {
        let mut sessions = lock(&self.steps);
        let peers = StepPeers {
            world: self.world.clone(),
            prefix: format!("{attempt}/steps/{}", sessions.len()),
            rank: self.everyone.rank(),
            rank_count: self.everyone.size(),
            rings,
            fault: self.fault.clone(),
            reporter: self.reporter.clone(),
        };
        sessions.push(steps);
        peers
    }

    /// Waits until all ranks have finished, with the same number of steps.
    pub(crate) fn finish(&self) -> Result<()> {
        self.finish_rings()?;
        self.compare_steps()?;
        self.finished.store(true, SeqCst);
        Ok(())
    }

    /// Returns whether the link to the other ranks has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.membership.has_ended()
    }

    /// Ends MPI once all ranks have finished.
    pub(crate) fn end(&self) -> Result<()> {
        self.membership.end()
    }

    /// Runs a barrier on every ring that programs use, which fails on a rank that still trains. The
    /// barriers run at once, since such a rank waits in only one of the rings. An error on one ring
    /// ends the waits on all.
    fn finish_rings(&self) -> Result<()> {
        let opened: Vec<Group> = lock(&self.opened).values().cloned().collect();
        let finish = |group: &Group| {
            let outcome = group.barrier("finish");
            if let Err(error) = &outcome {
                opened.iter().for_each(|other| other.abort(error.clone()));
            }
            outcome
        };
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let finish = &finish;
            let start = |group| scope.spawn(move || finish(group));
            let threads: Vec<_> = opened.iter().map(start).collect();
            let died = |_| Err(Error::internal("the thread that finishes a ring panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
        });
        outcomes.into_iter().collect()
    }

    /// Checks that all ranks made the same number of steps. Where ranks communicate in only some
    /// steps, a rank with fewer steps would otherwise go unnoticed.
    fn compare_steps(&self) -> Result<()> {
        let counts = lock(&self.steps);
        let mine: u64 = counts.iter().map(|count| count.load(Relaxed)).sum();
        let mut all = vec![0i64; self.everyone.size()];
        self.everyone.all_gather("finish", &[mine as i64], &mut all)?;
        let Some(other) = all.iter().position(|count| *count != all[0]) else { return Ok(()) };
        Err(Error::invalid("ranks made different numbers of training steps")
            .expected(format!("{} on every rank, as on rank 0", all[0]))
            .got(format!("{} on rank {other}", all[other]))
            .help("give every rank the same number of batches: drop or repeat the last ones"))
    }

    /// Returns why this process ends while others still need it. A failure that another rank has
    /// caused is named: ranks that share no group with that one learn of it from this rank only.
    fn how_left(&self) -> String {
        let is_other = |error: &&Error| error.culprit().is_some_and(|it| it != self.world.rank());
        match lock(&self.fault).as_ref().filter(is_other) {
            Some(error) => format!("{} after an error: {}", self.how_left, error.message()),
            None => self.how_left.to_string(),
        }
    }

    /// Returns the group of a ring. It is opened once and shared by sessions.
    fn group(&self, ring: &RingSpec, members: &[usize]) -> Result<Group> {
        // Sessions may place the ranks of such a ring at other distances.
        let apart = match ring.stride {
            0 | 1 => String::new(),
            distance => format!(", {distance} ranks apart"),
        };
        let name = format!("ring {} ({}{apart})", ring.id, ring.label);
        let mut opened = lock(&self.opened);
        if let Some(group) = opened.get(&name) {
            return Ok(group.clone());
        }
        let options = GroupOptions { in_steps: true, ..self.options.clone() };
        let group = self.world.group(&name, members, &options)?;
        opened.insert(name, group.clone());
        Ok(group)
    }
}

/// Returns the secret that the processes of a job share.
pub(crate) fn job_token(topology: &Topology) -> Result<Token> {
    let token = topology.job().token.as_ref().ok_or_else(|| {
        Error::invalid("the processes of this job have no shared secret")
            .expected("FLEET_TOKEN, the same in every process")
            .help(
                "start the job with fleetrun, which creates one, or set the output of openssl rand \
                 -hex 32; for a job on loopback addresses, FLEET_OPEN=loopback needs none",
            )
    })?;
    Token::from_text(token.reveal())
}

/// Registers a process, which may join the others only once. One that restarts after it had joined
/// would wait for the others in vain.
fn join_once(store: &dyn Store, attempt: &str, own: &Member, limits: &Limits) -> Result<()> {
    let key = format!("{attempt}/joined/{}", own.rank);
    let process = format!("pid {} on {} ({})", own.pid, own.host, own.host_id);
    match store.compare_and_set(&key, None, process.as_bytes(), limits)? {
        Swap::Lost(Some(before)) if before != process.as_bytes() => Err(Error::unavailable(
            "this process was restarted after it had joined the others, and cannot join them again",
        )
        .expected(String::from_utf8_lossy(&before))
        .got(process)
        .help(
            "restart the whole job to use operations of all workers (metrics, global shuffle, \
             barrier_worker); training on the servers continues without this worker",
        )),
        _ => Ok(()),
    }
}

/// Reported cause when a rank ends while others still need it.
const LEFT_EARLY: &str = "left the job before it had finished";
/// The same for a group with servers, which nothing finishes.
const LEFT_WORLD: &str = "ended";

impl Drop for Connection {
    /// Reports a rank that leaves early, so that the others do not wait for it.
    fn drop(&mut self) {
        let finished = self.finished.load(SeqCst);
        if !finished && !self.world.abort().is_fired() {
            let how = self.how_left();
            // Report first: the others' failure follows from this one, not the reverse.
            self.reporter.failed(&Error::unavailable(&how));
            self.membership.report_end(self.world.rank(), &how);
        }
    }
}
