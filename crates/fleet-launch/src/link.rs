//! The part of every machine in a job on several machines: joins, sends heartbeats, follows the
//! plan.

use crate::beats::StoppedClock;
use crate::cluster::{Cluster, Place};
use crate::decisions::LeaderRules;
use crate::display;
use crate::etcd::{EtcdAccess, EtcdStore, Lead};
use crate::events::{End, Ended, Event};
use crate::leader::{self, Effects};
use crate::options::{ElasticLevel, Mode, Options};
use crate::protocol::{
    self, ARRIVALS, Arrival, BEATS, DISCONNECTED, FAREWELLS, Failure, Key, LEFT, LostWorker,
    MachineEnd, MachineState, NODES, Node, NodeProcess, OverPlan, PLAN, Plan, PlanNode, WorkerEnd,
};
use fleet_base::{Error, ErrorCode, ErrorKind, Result, sync};
use fleet_net::{
    Deadline, FailureCause, FailureNotice, Limits, Log, Member, Membership, Store, StoreClient,
    StoreServer, Time, Token, Vigilance,
};
use fleet_topology::{Endpoint, Role};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::cell::RefCell;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

/// Parameters of joining a job.
pub struct Join {
    pub master: Endpoint,
    /// Whether this machine hosts the store at the master's address: always, if the port is free,
    /// or never.
    pub hosting: Hosting,
    /// Etcd in which the machines meet instead.
    pub etcd: Option<EtcdAccess>,
    pub id: String,
    /// Name of the job, as its processes know it.
    pub job_id: String,
    pub node: Node,
    pub token: Token,
    pub rules: LeaderRules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosting {
    Always,
    IfFirst,
    Never,
}

/// The connection to the job's other machines.
pub struct Link {
    shared: Arc<Shared>,
    /// Endpoint at which machines meet.
    master: Endpoint,
    id: String,
    agent: Option<JoinHandle<()>>,
    /// Another machine becomes the leader when this one leaves.
    hands_over: bool,
    /// The store, on the machine that hosts it.
    _server: Option<StoreServer>,
}

/// State that the threads of the link share.
struct Shared {
    state: Mutex<State>,
    quit: AtomicBool,
    events: Sender<Event>,
}

#[derive(Default)]
struct State {
    store: Option<Arc<dyn Store>>,
    leader: Option<JoinHandle<()>>,
    /// The lease by which this machine leads, with etcd.
    lead: Option<(EtcdStore, i64)>,
    plan: Option<Plan>,
    /// The stored plan belongs to a run that was over before this machine joined.
    is_stale: bool,
    /// Messages for the user that have not been shown.
    messages: Vec<String>,
    /// Error that ended this machine's part of the job.
    broken: Option<Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        sync::lock(&self.state)
    }

    /// Wakes the supervisor.
    fn notify(&self) {
        // A launcher that is exiting reads no more events.
        let _ = self.events.send(Event::News);
    }

    /// Shows a line to the user.
    fn log(&self, line: impl Into<String>) {
        self.lock().messages.push(line.into());
        self.notify();
    }

    /// Ends this machine's part of the job, unless an earlier error has.
    fn fail(&self, error: Error) {
        self.lock().broken.get_or_insert(error);
        self.notify();
    }

    fn quits(&self) -> bool {
        self.quit.load(Ordering::SeqCst)
    }
}

impl Link {
    /// Hosts the store if that is this machine's role, and starts to join in the background. Every
    /// change is announced as [`Event::News`].
    pub fn join(mut join: Join, events: Sender<Event>) -> Result<Link> {
        let (state, quit) = (Mutex::default(), AtomicBool::new(false));
        let shared = Arc::new(Shared { state, quit, events });
        let server = host(&join, &console_log(&shared))?;
        if let Some(server) = &server {
            join.master.port = server.address().port();
            let leader = lead(&join, LeaderStore::Own(server.address()), &shared)?;
            shared.lock().leader = Some(leader);
        }
        let hands_over = join.rules.hands_over && join.rules.level > ElasticLevel::Off;
        let (master, id) = (join.master.clone(), join.id.clone());
        let agent = Agent { join, hosts_store: server.is_some(), shared: shared.clone() };
        let agent = spawn("agent", move || agent.run())?;
        Ok(Link { shared, master, id, agent: Some(agent), hands_over, _server: server })
    }

    /// Returns the endpoint at which machines meet; port 0 is replaced by the port that the system
    /// chose.
    pub fn master(&self) -> &Endpoint {
        &self.master
    }

    pub fn plan(&self) -> Option<Plan> {
        self.shared.lock().plan.clone()
    }

    /// Returns the reason to stop the processes of a generation, if there is one.
    pub fn stop_reason(&self, generation: u64) -> Option<String> {
        let state = self.shared.lock();
        if let Some(error) = &state.broken {
            return Some(error.to_string());
        }
        match state.plan.as_ref()? {
            Plan::Run(plan) => (plan.generation > generation).then(|| "a new start".into()),
            Plan::Stop(plan) => (plan.generation >= generation).then(|| plan.reason.clone()),
            Plan::Over(OverPlan { code: 0, .. }) => Some("the job is done".into()),
            Plan::Over(plan) => Some(plan.reason.clone()),
        }
    }

    /// Returns the combined state of the processes of a generation on all machines.
    pub fn state_of_job(&self, generation: u64) -> MachineState {
        match &self.shared.lock().plan {
            Some(Plan::Run(plan)) if plan.generation == generation => plan.progress,
            _ => MachineState::default(),
        }
    }

    /// Reports the state of the processes of this machine to the leader.
    pub fn report_state(&self, generation: u64, state: MachineState) {
        self.write(&protocol::states(generation).key(&self.id), &state);
    }

    /// Whether the workers of all machines have done their work.
    pub fn is_done(&self) -> bool {
        matches!(self.plan(), Some(Plan::Over(OverPlan { code: 0, .. })))
    }

    pub fn broken(&self) -> Option<Error> {
        self.shared.lock().broken.clone()
    }

    pub fn take_messages(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().messages)
    }

    /// Reports to the leader how the processes of this machine ended.
    pub fn report(&self, generation: u64, end: &End) {
        let end = match end {
            End::Finished(lost) => MachineEnd::Finished {
                lost: lost
                    .first()
                    .map(|death| LostWorker { code: death.code, report: death.line().to_string() }),
            },
            End::Ordered(_) => MachineEnd::Stopped,
            End::Interrupted(_) => MachineEnd::Interrupted,
            End::Failed(death) => MachineEnd::Failed(Failure {
                code: death.code,
                report: death.elsewhere.clone(),
                is_server: death.role == Role::Server,
                rank: death.rank,
                follows: death.follows,
            }),
        };
        self.write(&protocol::machine_ends(generation).key(&self.id), &end);
    }

    /// Notifies all workers of a generation, through the leader, that one of them has ended.
    pub fn notify_ended(&self, generation: u64, ended: &Ended) {
        let member = member(ended);
        let end = WorkerEnd {
            id: self.id.clone(),
            host: member.host,
            host_id: member.host_id,
            pid: member.pid,
            how: ended.how.clone(),
            code: ended.code,
            follows: ended.follows,
        };
        self.write(&protocol::worker_ends(generation).key(ended.rank), &end);
    }

    /// Leaves the job: after reading that it is over, or before that.
    pub fn leave(mut self, is_over: bool) {
        let folder = if is_over { FAREWELLS } else { LEFT };
        self.write(&folder.key(&self.id), &());
        let leader = self.shared.lock().leader.take();
        if let Some(leader) = leader {
            // The leader waits, for a bounded time, until the others have read the final plan.
            if !is_over && !self.hands_over {
                self.await_over();
                self.write(&FAREWELLS.key(&self.id), &());
            }
            let _ = leader.join();
        }
        let lead = self.shared.lock().lead.take();
        if let Some((store, lease)) = lead {
            store.resign(lease);
        }
        self.shared.quit.store(true, Ordering::SeqCst);
        if let Some(agent) = self.agent.take() {
            let _ = agent.join();
        }
    }

    fn await_over(&self) {
        let deadline = Deadline::within(CALL_TIME);
        while !matches!(self.plan(), Some(Plan::Over(_))) && !deadline.is_past(Time::now()) {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn write<T: Serialize + DeserializeOwned>(&self, key: &Key<T>, value: &T) {
        let deadline = Deadline::within(CALL_TIME);
        let Some(store) = self.shared.lock().store.clone() else { return };
        // If the store is lost, the agent detects it and sets `broken`.
        while self.broken().is_none() && !deadline.is_past(Time::now()) {
            if key.set(&*store, value, &Limits::within(WRITE_TIME)).is_ok() {
                return;
            }
        }
    }
}

/// Returns the name of an attempt, by which its processes meet at the store; they derive the same
/// name.
pub(crate) fn attempt(job_id: &str, generation: u64) -> String {
    let restarts = u32::try_from(generation).unwrap_or(u32::MAX);
    fleet_topology::Job { id: Some(job_id.to_string()), restarts, ..Default::default() }.attempt()
}

/// Returns the identity of a process of this machine as the others of its job know it.
pub(crate) fn member(ended: &Ended) -> Member {
    Member { pid: ended.pid, ..fleet_net::host::own_member(ended.rank) }
}

/// Returns the error of a first machine that cannot listen at the address that the others will use.
pub(crate) fn cannot_listen(master: &Endpoint, error: &std::io::Error) -> Error {
    let help = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another job may meet there: choose another port with --master HOST:PORT on every \
             machine; with port 0 the system chooses one, and the first machine logs it"
        }
        _ => {
            "the first machine of the job must be able to listen there; --master HOST:PORT on \
             every machine sets another address"
        }
    };
    Error::unavailable(format!("cannot answer at {master}: {error}")).help(help)
}

/// Starts the store of the job if this machine hosts it.
fn host(join: &Join, log: &Log) -> Result<Option<StoreServer>> {
    if join.hosting == Hosting::Never {
        return Ok(None);
    }
    let listener = match (listen(&join.master, log), join.hosting) {
        (Ok(listener), _) => listener,
        // Another launcher already listens at this address.
        (Err(error), Hosting::IfFirst) if error.kind() == std::io::ErrorKind::AddrInUse => {
            return Ok(None);
        }
        (Err(error), _) => return Err(cannot_listen(&join.master, &error)),
    };
    // The members of this store are the launchers.
    let silence = join.rules.silence;
    let vigilance = Vigilance { grace: MACHINE_GRACE.min(silence / 2), ..vigilance(silence) };
    serve(listener, &join.token, vigilance, log.clone()).map(Some)
}

/// Listens at an endpoint. If its address is not one of this machine's (address translation,
/// containers), listens on all addresses and logs this: more networks than intended may reach them.
pub(crate) fn listen(at: &Endpoint, log: &Log) -> std::io::Result<TcpListener> {
    match TcpListener::bind((at.host.as_str(), at.port)) {
        Err(error) if error.kind() == std::io::ErrorKind::AddrNotAvailable => {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, at.port))?;
            log.line(format!(
                "{} is not an address of this machine: listening on all of its addresses, port {}",
                at.host,
                listener.local_addr()?.port()
            ));
            Ok(listener)
        }
        done => done,
    }
}

/// Returns settings by which a member is lost after `silence` without a heartbeat.
pub(crate) fn vigilance(silence: Duration) -> Vigilance {
    let usual = Vigilance::default();
    Vigilance { silence, beat: usual.beat.min(silence / BEATS_IN_SILENCE), ..usual }
}

/// Starts a store. It logs connections that it refuses. It does not log lost members, which the
/// launcher itself reports.
pub(crate) fn serve(
    listener: TcpListener,
    token: &Token,
    vigilance: Vigilance,
    log: Log,
) -> Result<StoreServer> {
    StoreServer::start_logging(listener, token, vigilance, (log, Log::silent()))
}

/// Creates a log whose lines the console shows.
fn console_log(shared: &Arc<Shared>) -> Log {
    let shared = shared.clone();
    Log::new(move |line| shared.log(line))
}

/// Heartbeats within the time after which a process is lost, so that several may be late.
const BEATS_IN_SILENCE: u32 = 5;

/// Starts the leader in its own thread.
fn lead(join: &Join, at: LeaderStore, shared: &Arc<Shared>) -> Result<JoinHandle<()>> {
    let (rules, own, host) = (join.rules.clone(), join.id.clone(), join.node.host.clone());
    let (job_id, token, shared) = (join.job_id.clone(), join.token.clone(), shared.clone());
    let log = console_log(&shared);
    let silence = rules.timeouts.silence;
    spawn("leader", move || {
        // Each generation gets a new store, without keys of the previous one.
        let job_store = RefCell::new(None::<StoreServer>);
        let notify_ended = |generation: u64, rank: usize, end: &WorkerEnd| {
            if let Some(store) = &*job_store.borrow() {
                let (host, host_id) = (end.host.clone(), end.host_id.clone());
                let member = Member { rank, host, host_id, pid: end.pid };
                store.report_end(&attempt(&job_id, generation), &member, &end.how);
            }
        };
        let mut start_store = || {
            drop(job_store.take());
            let any = Endpoint::new(&host, 0);
            let listener = listen(&any, &log).map_err(|error| cannot_listen(&any, &error))?;
            let server = serve(listener, &token, vigilance(silence), log.clone())?;
            let endpoint = Endpoint::new(host.clone(), server.address().port());
            job_store.replace(Some(server));
            Ok(endpoint)
        };
        let log_line = |line: String| shared.log(line);
        let effects =
            Effects { start_store: &mut start_store, log: &log_line, notify_ended: &notify_ended };
        let led = || -> Result<()> {
            match at {
                LeaderStore::Own(address) => {
                    let limits = Limits::within(CALL_TIME);
                    let store = StoreClient::connect(address, &token, &limits)?;
                    leader::lead((own, rules), None, &store, effects)?;
                }
                LeaderStore::Etcd(store) => {
                    let adopted = PLAN.get(&store, &Limits::within(CALL_TIME))?;
                    if adopted.is_some() {
                        shared.log("the previous leader is lost; this machine leads now");
                    }
                    if leader::lead((own, rules), adopted, &store, effects)? {
                        store.end_run();
                    }
                }
            }
            Ok(())
        };
        if let Err(error) = led() {
            shared.fail(error.at("the leader of the job"));
        }
    })
}

/// Store in which the leader publishes the plan.
enum LeaderStore {
    /// The one that this machine hosts, at this address.
    Own(SocketAddr),
    Etcd(EtcdStore),
}

/// Joins, then sends heartbeats and follows the plan until it has to quit.
struct Agent {
    join: Join,
    /// This process hosts the store and the leader.
    hosts_store: bool,
    shared: Arc<Shared>,
}

impl Agent {
    fn run(self) {
        let followed = match &self.join.etcd {
            None => self.at_master(),
            Some(server) => self.in_etcd(server),
        };
        match followed {
            Ok(()) => self.shared.notify(),
            Err(error) => self.shared.fail(error),
        }
    }

    fn at_master(&self) -> Result<()> {
        let store = self.connect()?;
        let arrived = self.arrive(&*store)?;
        if self.hosts_store {
            // Only now: a machine that the user starts on reading this line arrives second.
            self.shared.log(format!("machines meet at {}, which this one hosts", self.join.master));
        }
        // Dropping it announces an orderly end; a launcher that is killed sends no such message.
        let _member = self.join_launchers(&store, arrived)?;
        self.publish(&*store, arrived)?;
        self.shared.lock().store = Some(store.clone());
        self.follow(&*store, &mut || Ok(true)).map(drop)
    }

    /// Makes this launcher a member of the store, so that a connection which breaks for good is
    /// detected. The member's rank is its order of arrival.
    fn join_launchers(&self, store: &Arc<StoreClient>, arrived: i64) -> Result<Membership> {
        let rank = usize::try_from(arrived).map_err(|_| {
            Error::unavailable("the number of this machine's arrival is invalid").got(arrived)
        })?;
        let (shared, own_store) = (self.shared.clone(), store.clone());
        let (master, hosts_store) = (self.join.master.clone(), self.hosts_store);
        let on_notice = move |notice: &FailureNotice| match notice.cause {
            FailureCause::StoreLost if !hosts_store => {
                let why = notice.detail.as_deref().unwrap_or("no answer");
                shared.fail(leader_lost(&master, why));
            }
            FailureCause::Died if hosts_store => {
                // If this fails, the machine is lost after its heartbeats time out.
                let key = DISCONNECTED.key(notice.member.rank);
                let _ = key.set(&*own_store, &(), &Limits::within(WRITE_TIME));
            }
            // The leader detects missing heartbeats of machines itself.
            _ => {}
        };
        let member = fleet_net::host::own_member(rank);
        let limits = Limits::within(CALL_TIME);
        Membership::join(store.address(), &self.join.token, LAUNCHERS, member, &limits, on_notice)
    }

    fn connect(&self) -> Result<Arc<StoreClient>> {
        let master = &self.join.master;
        let timed_out = |error: Error| {
            let time = display::seconds(self.join.rules.timeouts.join);
            Error::unavailable(format!("no answer at {master}"))
                .expected(format!("the first machine within {time}"))
                .got(error.message())
                .help("is fleetrun running there, with the same flags and the same secret?")
        };
        let peer = format!("the first machine at {master}");
        let store = self.retry(&peer, || self.try_connect(), timed_out)?;
        store.map(Arc::new).ok_or_else(|| Error::unavailable("the launcher exits"))
    }

    /// Opens a store, retrying within `--join_timeout`. Returns `None` if it has to quit.
    fn retry<T>(
        &self,
        peer: &str,
        open: impl Fn() -> Result<T>,
        timed_out: impl FnOnce(Error) -> Error,
    ) -> Result<Option<T>> {
        let deadline = Deadline::within(self.join.rules.timeouts.join);
        let mut logged = None::<Time>;
        while !self.shared.quits() {
            let error = match open() {
                Ok(store) => return Ok(Some(store)),
                // A retry cannot correct a wrong secret, password or certificate.
                Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
                Err(error) => error,
            };
            let now = Time::now();
            let left = deadline.remaining(now).unwrap_or_default();
            if logged.is_none_or(|logged| now.since(logged) >= LOG_PERIOD) {
                logged = Some(now);
                let (why, left) = (error.message(), display::seconds(left));
                self.shared.log(format!("waiting for {peer}: {why}; {left} left"));
            }
            if left.is_zero() {
                return Err(timed_out(error));
            }
            std::thread::sleep(RETRY_DELAY);
        }
        Ok(None)
    }

    fn try_connect(&self) -> Result<StoreClient> {
        let master = &self.join.master;
        let mut addresses = (master.host.as_str(), master.port)
            .to_socket_addrs()
            .map_err(|error| Error::unavailable(format!("cannot find the host: {error}")))?;
        let address =
            addresses.next().ok_or_else(|| Error::unavailable("the host has no address"))?;
        let limits = Limits::within(CONNECT_TIME);
        StoreClient::try_connect(address, &self.join.token, &limits).map_err(|error| {
            match (error.kind(), error.code()) {
                (ErrorKind::Unavailable, code) if code != Some(ErrorCode::NotConnected) => {
                    Error::unavailable(format!(
                        "a program other than fleetrun listens there ({})",
                        error.message()
                    ))
                }
                _ => error,
            }
        })
    }

    /// Returns this machine's number in the order of arrival.
    fn arrive(&self, store: &dyn Store) -> Result<i64> {
        store.add(ARRIVALS, 1, &Limits::within(CALL_TIME))
    }

    fn publish(&self, store: &dyn Store, arrived: i64) -> Result<()> {
        let limits = Limits::within(CALL_TIME);
        let arrival = Arrival { arrived, node: self.join.node.clone() };
        BEATS.key(&self.join.id).set(store, &0, &limits)?;
        NODES.key(&self.join.id).set(store, &arrival, &limits)
    }

    /// Sends heartbeats and follows the plan until it has to quit. `keep_alive` runs at each
    /// heartbeat; if it returns false, so does this function, since there is nothing left to
    /// follow.
    fn follow(
        &self,
        store: &dyn Store,
        keep_alive: &mut dyn FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let (mut revision, mut beats, mut beaten) = (0, 0u64, None::<Time>);
        let mut heard = Time::now();
        let (mut clock, mut known) = (StoppedClock::new(heard), Vec::new());
        while !self.shared.quits() && self.shared.lock().broken.is_none() {
            let now = Time::now();
            if beaten.is_none_or(|at| now.since(at) >= BEAT) {
                beats += 1;
                beaten = Some(now);
                if !keep_alive()? {
                    return Ok(false);
                }
                // If the beat fails, the watch below detects the cause.
                let _ = BEATS.key(&self.join.id).set(store, &beats, &Limits::within(BEAT));
            }
            let watched = store.watch(PLAN.as_str(), revision, &Limits::within(WATCH));
            let now = Time::now();
            // After a stop of this machine the leader gets the full time again, since it may have
            // been stopped too. An etcd gets no such grace.
            if clock.look(now).is_some() && self.join.etcd.is_none() {
                heard = now;
            }
            match watched {
                Ok(changes) => {
                    heard = now;
                    revision = changes.revision;
                    for value in changes.changes.into_iter().filter_map(|it| it.value) {
                        if value != known {
                            self.take(PLAN.parse(&value)?);
                            known = value;
                        }
                    }
                }
                Err(error) if now.since(heard) >= self.join.rules.silence => {
                    let silence = display::seconds(self.join.rules.silence);
                    return Err(match &self.join.etcd {
                        None => leader_lost(&self.join.master, error.message()),
                        Some(server) => Error::unavailable(format!(
                            "etcd at {server} has not answered for {silence}"
                        ))
                        .got(error.message()),
                    });
                }
                Err(_) => std::thread::sleep(RETRY_DELAY),
            }
        }
        Ok(true)
    }

    /// Joins the run in etcd. If that run ends without this machine, joins the next one.
    fn in_etcd(&self, server: &EtcdAccess) -> Result<()> {
        self.shared.log(format!("machines meet in etcd at {server}, job '{}'", self.join.job_id));
        loop {
            let Some(store) = self.enter(server)? else { return Ok(()) };
            let mut member = EtcdMember { agent: self, store: &store, is_in: false };
            if self.follow(&store, &mut || member.keep_alive())? {
                return Ok(());
            }
            let mut state = self.shared.lock();
            (state.plan, state.is_stale) = (None, false);
        }
    }

    /// Joins the run of the job and returns its store, or `None` if it has to quit.
    fn enter(&self, server: &EtcdAccess) -> Result<Option<EtcdStore>> {
        let ttl = self.join.rules.silence * RUN_SILENCES;
        let open = || -> Result<EtcdStore> {
            let store = EtcdStore::open(server, &self.join.job_id, &self.join.id, ttl)?;
            self.publish(&store, self.arrive(&store)?)?;
            Ok(store)
        };
        let help = "is etcd running there? --elastic_server sets its address";
        let store = self.retry("etcd", open, |error| error.help(help))?;
        if let Some(store) = &store {
            self.shared.lock().store = Some(Arc::new(store.clone()));
        }
        Ok(store)
    }

    fn take(&self, plan: Plan) {
        let mut state = self.shared.lock();
        if self.join.etcd.is_some() && state.plan.is_none() && matches!(plan, Plan::Over(_)) {
            state.is_stale = true;
            return;
        }
        state.plan = Some(plan);
        drop(state);
        self.shared.notify();
    }
}

/// Keeps the run in etcd alive at each heartbeat, and competes for the lead.
struct EtcdMember<'a> {
    agent: &'a Agent,
    store: &'a EtcdStore,
    /// The last plan includes this machine.
    is_in: bool,
}

impl EtcdMember<'_> {
    /// Keeps run and lead alive. Returns false when the run has ended without this machine. If etcd
    /// does not respond, the caller's watch detects that.
    fn keep_alive(&mut self) -> Result<bool> {
        let is_candidate = {
            let state = self.agent.shared.lock();
            if let Some(Plan::Run(plan)) = &state.plan {
                self.is_in = plan.nodes.iter().any(|node| node.id == self.agent.join.id);
            }
            (state.plan.is_none() && !state.is_stale) || self.is_in
        };
        let there = if is_candidate { self.store.keep_run() } else { self.store.is_running() };
        match there {
            Ok(true) => {}
            Ok(false) if self.is_in => {
                return Err(Error::unavailable("the job's run has ended in etcd")
                    .help("no machine kept it alive in time, or its keys were removed"));
            }
            Ok(false) => return Ok(false),
            Err(_) => return Ok(true),
        }
        let lead = self.agent.shared.lock().lead.as_ref().map(|(_, lease)| *lease);
        match lead {
            Some(lease) => match self.store.keep_lead(lease) {
                Ok(false) => Err(Error::unavailable(
                    "this machine has lost the lead: etcd received no keep-alive in time",
                )),
                _ => Ok(true),
            },
            None if is_candidate && !self.agent.shared.quits() => self.campaign().map(|()| true),
            None => Ok(true),
        }
    }

    fn campaign(&self) -> Result<()> {
        let agent = self.agent;
        let Ok(Lead::Won(lease)) = self.store.campaign(agent.join.rules.silence) else {
            return Ok(());
        };
        let store = self.store.clone();
        agent.shared.lock().lead = Some((store.clone(), lease));
        let leader = lead(&agent.join, LeaderStore::Etcd(store), &agent.shared)?;
        agent.shared.lock().leader = Some(leader);
        Ok(())
    }
}

/// Returns the error of a job whose leader is lost.
fn leader_lost(master: &Endpoint, why: &str) -> Error {
    Error::unavailable(format!("the machine that leads the job, at {master}, is lost")).got(why)
}

/// Returns the cluster of a plan, as seen from machine `id`.
pub fn cluster(nodes: &[PlanNode], id: &str, options: &Options) -> Result<Cluster> {
    let absent = || Error::internal("this machine is not in the plan");
    let own = nodes.iter().position(|node| node.id == id).ok_or_else(absent)?;
    let mut cluster = Cluster::empty(options, own, nodes.len());
    for (index, PlanNode { node, .. }) in nodes.iter().enumerate() {
        let place = |process: &NodeProcess| Place {
            endpoint: Endpoint::new(&node.host, process.port),
            node: index,
            devices: process.devices.clone(),
        };
        cluster.workers.extend(node.workers.iter().map(place));
        cluster.servers.extend(node.servers.iter().map(place));
        if index == 0 && (options.mode != Mode::Collective || options.with_gloo != "0") {
            cluster.gloo_http = Some(Endpoint::new(&node.host, node.gloo));
        }
    }
    Ok(cluster)
}

/// Completes a listed cluster with the ports that its machines have published.
pub fn with_ports(mut cluster: Cluster, nodes: &[PlanNode]) -> Result<Cluster> {
    for (index, PlanNode { node, .. }) in nodes.iter().enumerate() {
        let places: Vec<&mut Place> =
            cluster.places_mut().filter(|place| place.node == index).collect();
        let ports = node.listed.as_ref().map_or(&[][..], |listed| &listed.ports);
        if places.len() != ports.len() {
            return Err(Error::invalid(format!("{} was started with different flags", node.host))
                .expected(format!("{} processes there", places.len()))
                .got(ports.len())
                .help("the flags of a listed job must be the same on every machine"));
        }
        for (place, port) in places.into_iter().zip(ports) {
            place.endpoint.port = *port;
        }
        if let Some(gloo) = cluster.gloo_http.as_mut().filter(|_| index == 0) {
            gloo.port = node.gloo;
        }
    }
    Ok(cluster)
}

pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(run)
        .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))
}

/// Interval between heartbeats.
const BEAT: Duration = Duration::from_secs(1);
/// Time for which one read of the plan waits for a change; shorter than a heartbeat interval.
const WATCH: Duration = Duration::from_millis(400);
/// Lifetime of a run in etcd without heartbeats, as a multiple of the time after which a machine is
/// lost. Another machine can become the leader in between.
const RUN_SILENCES: u32 = 3;
/// Group of the launchers at the store where machines meet.
const LAUNCHERS: &str = "launchers";
/// Grace period for a launcher to reconnect; after it, its machine is lost.
const MACHINE_GRACE: Duration = Duration::from_secs(2);
const RETRY_DELAY: Duration = Duration::from_millis(200);
const LOG_PERIOD: Duration = Duration::from_secs(5);
const CONNECT_TIME: Duration = Duration::from_secs(2);
const CALL_TIME: Duration = Duration::from_secs(20);
/// Limit on one write to the store; between writes the state of the job is checked.
const WRITE_TIME: Duration = Duration::from_secs(2);
