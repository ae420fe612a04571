//! The part of every machine in a job on several machines: joins, sends heartbeats, follows the
//! plan.

use crate::beats::StoppedClock;
use crate::cluster::{Cluster, Place};
use crate::etcd::{EtcdStore, Lead};
use crate::leader::{Leader, LeaderRules};
use crate::options::{ElasticLevel, Mode, Options};
use crate::supervisor::{End, Ended, Event};
use crate::words;
use fleet_base::{Error, ErrorCode, ErrorKind, Result};
use fleet_net::{
    FailureCause, FailureNotice, Limits, Log, Member, Membership, Store, StoreClient, StoreServer,
    Token, Vigilance,
};
use fleet_topology::{Endpoint, Role};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::net::{Ipv4Addr, TcpListener, ToSocketAddrs};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Parameters of joining a job.
pub struct Join {
    pub master: Endpoint,
    /// Whether this machine hosts the store at the master's address: always, if the port is free,
    /// or never.
    pub hosting: Hosting,
    /// Etcd in which the machines meet instead.
    pub etcd: Option<Endpoint>,
    pub id: String,
    /// Name of the job, as its processes know it.
    pub job_id: String,
    /// The value of `node/ID`, without the order of arrival.
    pub node: Value,
    pub host: String,
    pub token: Token,
    pub rules: LeaderRules,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosting {
    Always,
    IfFirst,
    Never,
}

/// The leader's current plan.
#[derive(Clone, Debug)]
pub enum Plan {
    Run { generation: u64, nodes: Vec<Value>, store: Endpoint, state: MachineState },
    Stop { generation: u64, reason: String },
    Over { code: u8, reason: String, culprit: String },
}

/// State of the processes of a machine; in a plan, that of all machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MachineState {
    /// Workers have joined and wait for all others.
    pub has_joined: bool,
    /// The servers of the machine have finished or, in a collective job, some worker has.
    pub is_done: bool,
}

impl MachineState {
    pub(crate) fn parse(value: &Value) -> MachineState {
        let flag = |name: &str| value[name].as_bool().unwrap_or(false);
        MachineState { has_joined: flag("joined"), is_done: flag("done") }
    }

    pub(crate) fn to_value(self) -> Value {
        json!({ "joined": self.has_joined, "done": self.is_done })
    }
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

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    quit: AtomicBool,
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
    said: Vec<String>,
    /// Error that ended this machine's part of the job.
    broken: Option<Error>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Link {
    /// Hosts the store if that is this machine's role, and starts to join in the background. Every
    /// change is announced as [`Event::News`].
    pub fn join(join: Join, events: Sender<Event>) -> Result<Link> {
        let token = join.token.clone();
        let shared = Arc::new(Shared::default());
        let log = said_log(&shared, &events);
        let server = host(&join, &token, &log)?;
        let mut master = join.master.clone();
        if let Some(server) = &server {
            master.port = server.address().port();
            let line = format!("machines meet at {master}, which this one hosts");
            shared.lock().said.push(line);
            let (address, its) = (server.address(), token.clone());
            let board = move || -> Result<Board> {
                Ok(Board::Own(StoreClient::connect(address, &its, &Limits::within(CALL_TIME))?))
            };
            let leader = lead(&join, board, &token, &shared, &events)?;
            shared.lock().leader = Some(leader);
        }
        let hands_over = join.rules.hands_over && join.rules.level > ElasticLevel::Off;
        let id = join.id.clone();
        let agent = Agent {
            join,
            master: master.clone(),
            token,
            hosts_store: server.is_some(),
            shared: shared.clone(),
            events,
        };
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
            Plan::Run { generation: now, .. } if *now > generation => Some("a new start".into()),
            Plan::Stop { generation: now, reason } if *now >= generation => Some(reason.clone()),
            Plan::Run { .. } | Plan::Stop { .. } => None,
            Plan::Over { code: 0, .. } => Some("the job is done".into()),
            Plan::Over { reason, .. } => Some(reason.clone()),
        }
    }

    /// Returns the combined state of the processes of a generation on all machines.
    pub fn state_of_job(&self, generation: u64) -> MachineState {
        match &self.shared.lock().plan {
            Some(Plan::Run { generation: now, state, .. }) if *now == generation => *state,
            _ => MachineState::default(),
        }
    }

    /// Reports the state of the processes of this machine to the leader.
    pub fn tell_state(&self, generation: u64, state: MachineState) {
        let key = format!("state/{generation}/{}", self.id);
        self.tell(&key, &state.to_value().to_string());
    }

    /// Whether the workers of all machines have done their work.
    pub fn is_done(&self) -> bool {
        matches!(self.plan(), Some(Plan::Over { code: 0, .. }))
    }

    pub fn broken(&self) -> Option<Error> {
        self.shared.lock().broken.clone()
    }

    pub fn take_said(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.lock().said)
    }

    /// Reports to the leader how the processes of this machine ended.
    pub fn report(&self, generation: u64, end: &End) {
        let value = match end {
            End::Finished(lost) => match lost.first() {
                None => json!({ "end": "finished" }),
                Some(death) => {
                    json!({ "end": "finished", "code": death.code, "report": death.line() })
                }
            },
            End::Ordered(_) => json!({ "end": "stopped" }),
            End::Interrupted(_) => json!({ "end": "interrupted" }),
            End::Failed(death) => {
                let is_server = death.role == Role::Server;
                json!({ "end": "failed", "code": death.code, "report": death.elsewhere,
                    "is_server": is_server, "rank": death.rank, "follows": death.follows })
            }
        };
        self.tell(&format!("result/{generation}/{}", self.id), &value.to_string());
    }

    /// Notifies all workers of a generation, through the leader, that one of them has ended.
    pub fn tell_ended(&self, generation: u64, ended: &Ended) {
        let member = member(ended);
        let value = json!({ "host": member.host, "host_id": member.host_id, "pid": member.pid,
            "how": ended.how, "code": ended.code, "follows": ended.follows, "id": self.id });
        self.tell(&format!("ended/{generation}/{}", ended.rank), &value.to_string());
    }

    /// Leaves the job: after reading that it is over, or before that.
    pub fn leave(mut self, is_over: bool) {
        let key = if is_over { "bye" } else { "left" };
        self.tell(&format!("{key}/{}", self.id), "1");
        let leader = self.shared.lock().leader.take();
        if let Some(leader) = leader {
            // The leader waits, for a bounded time, until the others have read the final plan.
            if !is_over && !self.hands_over {
                self.await_over();
                self.tell(&format!("bye/{}", self.id), "1");
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
        let until = Instant::now() + CALL_TIME;
        while !matches!(self.plan(), Some(Plan::Over { .. })) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn tell(&self, key: &str, value: &str) {
        let until = Instant::now() + CALL_TIME;
        let Some(store) = self.shared.lock().store.clone() else { return };
        // If the store is lost, the agent detects it and sets `broken`.
        while self.broken().is_none() && Instant::now() < until {
            if store.set(key, value.as_bytes(), &Limits::within(TELL_TIME)).is_ok() {
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
pub(crate) fn no_answer(master: &Endpoint, error: &std::io::Error) -> Error {
    let help = match error.kind() {
        std::io::ErrorKind::AddrInUse => {
            "another job may meet there: choose another port with --master HOST:PORT on every \
             machine; with port 0 the system does, and the first machine says which"
        }
        _ => {
            "the first machine of the job must be able to listen there; --master HOST:PORT on every \
             machine says where else"
        }
    };
    Error::unavailable(format!("cannot answer at {master}: {error}")).help(help)
}

/// Starts the store of the job if this machine hosts it.
fn host(join: &Join, token: &Token, log: &Log) -> Result<Option<StoreServer>> {
    if join.hosting == Hosting::Never {
        return Ok(None);
    }
    let listener = match (listen(&join.master, log), join.hosting) {
        (Ok(listener), _) => listener,
        // Another launcher already listens at this address.
        (Err(error), Hosting::IfFirst) if error.kind() == std::io::ErrorKind::AddrInUse => {
            return Ok(None);
        }
        (Err(error), _) => return Err(no_answer(&join.master, &error)),
    };
    // The members of this store are the launchers.
    let silence = join.rules.silence;
    let vigilance = Vigilance { grace: MACHINE_GRACE.min(silence / 2), ..vigilance(silence) };
    serve(listener, token, vigilance, log.clone()).map(Some)
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
fn said_log(shared: &Arc<Shared>, events: &Sender<Event>) -> Log {
    let (shared, events) = (shared.clone(), Mutex::new(events.clone()));
    Log::new(move |line| {
        shared.lock().said.push(line.to_string());
        // A launcher that is exiting reads no more events.
        let _ = events.lock().unwrap_or_else(PoisonError::into_inner).send(Event::News);
    })
}

/// Heartbeats within the time after which a process is lost, so that several may be late.
const BEATS_IN_SILENCE: u32 = 5;

/// Starts the leader in its own thread.
fn lead(
    join: &Join,
    board: impl FnOnce() -> Result<Board> + Send + 'static,
    token: &Token,
    shared: &Arc<Shared>,
    events: &Sender<Event>,
) -> Result<JoinHandle<()>> {
    let (rules, own, host) = (join.rules.clone(), join.id.clone(), join.host.clone());
    let job_id = join.job_id.clone();
    let (token, shared, events) = (token.clone(), shared.clone(), events.clone());
    let log = said_log(&shared, &events);
    let silence = rules.process_silence;
    spawn("leader", move || {
        let said = |line: String| {
            shared.lock().said.push(line);
            let _ = events.send(Event::News);
        };
        // Each generation gets a new store, without keys of the previous one.
        let job_store = RefCell::new(None::<StoreServer>);
        let ended = |generation: u64, rank: usize, value: &Value| {
            let text = |name: &str| value[name].as_str().unwrap_or_default().to_string();
            let pid = value["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
            if let (Some(store), Some(pid)) = (&*job_store.borrow(), pid) {
                let member = Member { rank, host: text("host"), host_id: text("host_id"), pid };
                store.report_end(&attempt(&job_id, generation), &member, &text("how"));
            }
        };
        let mut new_store = || {
            drop(job_store.take());
            let any = Endpoint::new(&host, 0);
            let listener = listen(&any, &log).map_err(|error| no_answer(&any, &error))?;
            let server = serve(listener, &token, vigilance(silence), log.clone())?;
            let endpoint = Endpoint::new(host.clone(), server.address().port());
            job_store.replace(Some(server));
            Ok(endpoint.to_string())
        };
        let led = board().and_then(|board| {
            let store = board.store();
            let mut leader = Leader::new(store, &rules, &own, &mut new_store, &said, &ended);
            if let Board::Etcd(store) = &board
                && let Some(plan) = store.get("plan", &Limits::within(CALL_TIME))?
            {
                said("the machine that led the job is gone; this one leads now".into());
                leader.adopt(&serde_json::from_slice(&plan).unwrap_or_default());
            }
            let is_over = leader.lead()?;
            if let (Board::Etcd(store), true) = (&board, is_over) {
                store.end_run();
            }
            Ok(())
        });
        if let Err(error) = led {
            shared.lock().broken.get_or_insert(error.at("the leader of the job"));
            let _ = events.send(Event::News);
        }
    })
}

/// Store in which the leader publishes the plan.
enum Board {
    Own(StoreClient),
    Etcd(EtcdStore),
}

impl Board {
    fn store(&self) -> &dyn Store {
        match self {
            Board::Own(store) => store,
            Board::Etcd(store) => store,
        }
    }
}

/// Joins, then sends heartbeats and follows the plan until told to quit.
struct Agent {
    join: Join,
    master: Endpoint,
    token: Token,
    /// This process hosts the store and the leader.
    hosts_store: bool,
    shared: Arc<Shared>,
    events: Sender<Event>,
}

impl Agent {
    fn run(self) {
        let followed = match &self.join.etcd {
            None => self.at_master(),
            Some(server) => self.in_etcd(server),
        };
        if let Err(error) = followed {
            self.shared.lock().broken.get_or_insert(error);
        }
        let _ = self.events.send(Event::News);
    }

    fn at_master(&self) -> Result<()> {
        let store = self.connect()?;
        let arrived = self.arrive(&*store)?;
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
        let (shared, events) = (self.shared.clone(), Mutex::new(self.events.clone()));
        let (master, hosts_store, board) = (self.master.clone(), self.hosts_store, store.clone());
        let on_notice = move |notice: &FailureNotice| match notice.cause {
            FailureCause::StoreLost if !hosts_store => {
                let error = leader_gone(&master, notice.detail.as_deref().unwrap_or("no answer"));
                shared.lock().broken.get_or_insert(error);
                // A launcher that is exiting reads no more events.
                let _ = events.lock().unwrap_or_else(PoisonError::into_inner).send(Event::News);
            }
            FailureCause::Died if hosts_store => {
                // If this fails, the machine is lost after its heartbeats time out.
                let key = format!("gone/{}", notice.member.rank);
                let _ = board.set(&key, b"1", &Limits::within(TELL_TIME));
            }
            // The leader detects missing heartbeats of machines itself.
            _ => {}
        };
        let member = fleet_net::host::own_member(rank);
        let limits = Limits::within(CALL_TIME);
        Membership::join(store.address(), &self.token, LAUNCHERS, member, &limits, on_notice)
    }

    fn connect(&self) -> Result<Arc<StoreClient>> {
        let begun = Instant::now();
        let mut said = None::<Instant>;
        loop {
            if self.quits() {
                return Err(Error::unavailable("the launcher ends"));
            }
            let error = match self.dial() {
                Ok(store) => return Ok(Arc::new(store)),
                // A retry cannot correct a wrong secret.
                Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
                Err(error) => error,
            };
            let left = self.join.rules.join_timeout.saturating_sub(begun.elapsed());
            if said.is_none_or(|said| said.elapsed() >= SAY_PERIOD) {
                said = Some(Instant::now());
                self.say(format!(
                    "waiting for the first machine at {}: {}; {} left",
                    self.master,
                    error.message(),
                    words::seconds(left)
                ));
            }
            if left.is_zero() {
                let time = words::seconds(self.join.rules.join_timeout);
                return Err(Error::unavailable(format!("nobody answers at {}", self.master))
                    .expected(format!("the first machine within {time}"))
                    .got(error.message())
                    .help("is fleetrun running there, with the same flags and the same secret?"));
            }
            std::thread::sleep(RETRY_DELAY);
        }
    }

    fn dial(&self) -> Result<StoreClient> {
        let mut addresses = (self.master.host.as_str(), self.master.port)
            .to_socket_addrs()
            .map_err(|error| Error::unavailable(format!("cannot find the host: {error}")))?;
        let address =
            addresses.next().ok_or_else(|| Error::unavailable("the host has no address"))?;
        let limits = Limits::within(DIAL_TIME);
        StoreClient::try_connect(address, &self.token, &limits).map_err(|error| {
            match (error.kind(), error.code()) {
                (ErrorKind::Unavailable, code) if code != Some(ErrorCode::NotConnected) => {
                    Error::unavailable(format!(
                        "something listens there that does not answer as fleetrun does ({})",
                        error.message()
                    ))
                }
                _ => error,
            }
        })
    }

    /// Returns this machine's number in the order of arrival.
    fn arrive(&self, store: &dyn Store) -> Result<i64> {
        store.add("arrivals", 1, &Limits::within(CALL_TIME))
    }

    fn publish(&self, store: &dyn Store, arrived: i64) -> Result<()> {
        let limits = Limits::within(CALL_TIME);
        let mut node = self.join.node.clone();
        node["arrived"] = json!(arrived);
        store.set(&format!("beat/{}", self.join.id), b"0", &limits)?;
        store.set(&format!("node/{}", self.join.id), node.to_string().as_bytes(), &limits)
    }

    /// Sends heartbeats and follows the plan until told to quit. `tend` runs at each heartbeat; if
    /// it returns false, so does this function, since there is nothing left to follow.
    fn follow(&self, store: &dyn Store, tend: &mut dyn FnMut() -> Result<bool>) -> Result<bool> {
        let (mut revision, mut beats, mut beaten) = (0, 0u64, None::<Instant>);
        let mut heard = Instant::now();
        let (mut clock, mut known) = (StoppedClock::new(heard), Vec::new());
        while !self.quits() && self.shared.lock().broken.is_none() {
            if beaten.is_none_or(|at| at.elapsed() >= BEAT) {
                beats += 1;
                beaten = Some(Instant::now());
                if !tend()? {
                    return Ok(false);
                }
                let key = format!("beat/{}", self.join.id);
                // If the beat fails, the watch below detects the cause.
                let _ = store.set(&key, beats.to_string().as_bytes(), &Limits::within(BEAT));
            }
            let watched = store.watch("plan", revision, &Limits::within(WATCH));
            let now = Instant::now();
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
                            self.take(&value)?;
                            known = value;
                        }
                    }
                }
                Err(error) if heard.elapsed() >= self.join.rules.silence => {
                    let silence = words::seconds(self.join.rules.silence);
                    return Err(match &self.join.etcd {
                        None => leader_gone(&self.master, error.message()),
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
    fn in_etcd(&self, server: &Endpoint) -> Result<()> {
        self.say(format!("machines meet in etcd at {server}, job '{}'", self.join.job_id));
        loop {
            let Some(store) = self.enter(server)? else { return Ok(()) };
            let mut member = Tender { agent: self, store: &store, is_in: false };
            if self.follow(&store, &mut || member.tend())? {
                return Ok(());
            }
            let mut state = self.shared.lock();
            (state.plan, state.is_stale) = (None, false);
        }
    }

    /// Joins the run of the job and returns its store, or `None` when told to quit.
    fn enter(&self, server: &Endpoint) -> Result<Option<EtcdStore>> {
        let (begun, rules) = (Instant::now(), &self.join.rules);
        let ttl = rules.silence * RUN_SILENCES;
        let mut said = None::<Instant>;
        while !self.quits() {
            let entered =
                EtcdStore::open(server, &self.join.job_id, &self.join.id, ttl).and_then(|store| {
                    self.publish(&store, self.arrive(&store)?)?;
                    Ok(store)
                });
            let error = match entered {
                Ok(store) => {
                    self.shared.lock().store = Some(Arc::new(store.clone()));
                    return Ok(Some(store));
                }
                Err(error) => error,
            };
            if begun.elapsed() >= rules.join_timeout {
                return Err(error.help("is etcd running there? --elastic_server says where it is"));
            }
            if said.is_none_or(|said| said.elapsed() >= SAY_PERIOD) {
                said = Some(Instant::now());
                let left = words::seconds(rules.join_timeout.saturating_sub(begun.elapsed()));
                self.say(format!("waiting for etcd: {}; {left} left", error.message()));
            }
            std::thread::sleep(RETRY_DELAY);
        }
        Ok(None)
    }

    fn take(&self, bytes: &[u8]) -> Result<()> {
        let plan = parse(bytes).ok_or_else(|| {
            Error::unavailable("the leader's plan cannot be read")
                .help("the machines of a job need the same version of fleetrun")
        })?;
        let mut state = self.shared.lock();
        if self.join.etcd.is_some() && state.plan.is_none() && matches!(plan, Plan::Over { .. }) {
            state.is_stale = true;
            return Ok(());
        }
        state.plan = Some(plan);
        drop(state);
        let _ = self.events.send(Event::News);
        Ok(())
    }

    fn say(&self, line: String) {
        self.shared.lock().said.push(line);
        let _ = self.events.send(Event::News);
    }

    fn quits(&self) -> bool {
        self.shared.quit.load(Ordering::SeqCst)
    }
}

/// Keeps the run in etcd alive at each heartbeat, and competes for the lead.
struct Tender<'a> {
    agent: &'a Agent,
    store: &'a EtcdStore,
    /// The last plan includes this machine.
    is_in: bool,
}

impl Tender<'_> {
    /// Keeps run and lead alive. Returns false when the run has ended without this machine. If etcd
    /// does not respond, the caller's watch detects that.
    fn tend(&mut self) -> Result<bool> {
        let is_candidate = {
            let state = self.agent.shared.lock();
            if let Some(Plan::Run { nodes, .. }) = &state.plan {
                self.is_in = nodes.iter().any(|node| node["id"] == *self.agent.join.id);
            }
            (state.plan.is_none() && !state.is_stale) || self.is_in
        };
        let there = if is_candidate { self.store.keep_run() } else { self.store.is_running() };
        match there {
            Ok(true) => {}
            Ok(false) if self.is_in => {
                return Err(Error::unavailable("the job's run has ended in etcd")
                    .help("no machine could keep it alive in time, or somebody removed its keys"));
            }
            Ok(false) => return Ok(false),
            Err(_) => return Ok(true),
        }
        let lead = self.agent.shared.lock().lead.as_ref().map(|(_, lease)| *lease);
        match lead {
            Some(lease) => match self.store.keep_lead(lease) {
                Ok(false) => Err(Error::unavailable(
                    "this machine has lost the lead: etcd has not heard of it in time",
                )),
                _ => Ok(true),
            },
            None if is_candidate && !self.agent.quits() => self.campaign().map(|()| true),
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
        let board = move || Ok(Board::Etcd(store));
        let leader = lead(&agent.join, board, &agent.token, &agent.shared, &agent.events)?;
        agent.shared.lock().leader = Some(leader);
        Ok(())
    }
}

/// Returns the error of a job whose leader is lost.
fn leader_gone(master: &Endpoint, why: &str) -> Error {
    Error::unavailable(format!("the machine that leads the job, at {master}, is gone")).got(why)
}

fn parse(bytes: &[u8]) -> Option<Plan> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let generation = value["generation"].as_u64()?;
    let text = |name: &str| Some(value[name].as_str()?.to_string());
    Some(match value["state"].as_str()? {
        "run" => Plan::Run {
            generation,
            nodes: value["nodes"].as_array()?.clone(),
            store: value["store"].as_str()?.parse().ok()?,
            state: MachineState::parse(&value["progress"]),
        },
        "stop" => Plan::Stop { generation, reason: text("reason")? },
        "over" => Plan::Over {
            code: u8::try_from(value["code"].as_u64()?).ok()?,
            reason: text("reason")?,
            culprit: text("culprit")?,
        },
        _ => return None,
    })
}

/// Returns the value of `node/ID`: a machine's processes by role.
pub fn describe(
    host: &str,
    rank: Option<usize>,
    workers: &[Place],
    servers: &[Place],
    gloo: u16,
) -> Value {
    let list = |places: &[Place]| -> Vec<Value> {
        places
            .iter()
            .map(|place| json!({ "port": place.endpoint.port, "devices": place.devices }))
            .collect()
    };
    json!({ "host": host, "rank": rank, "gloo": gloo, "workers": list(workers), "servers": list(servers) })
}

/// Returns the cluster of a plan, as seen from machine `id`.
pub fn cluster(nodes: &[Value], id: &str, options: &Options) -> Result<Cluster> {
    let unreadable = || Error::unavailable("the leader's plan cannot be read");
    let mut cluster = Cluster {
        mode: options.mode,
        workers: Vec::new(),
        servers: Vec::new(),
        coordinators: Vec::new(),
        heter: Vec::new(),
        heter_devices: Vec::new(),
        node: nodes.iter().position(|node| node["id"] == id).ok_or_else(unreadable)?,
        node_count: nodes.len(),
        gloo_http: None,
        has_fixed_ports: false,
        with_gloo: options.with_gloo.clone(),
        backend: options.backend.clone(),
    };
    for (index, node) in nodes.iter().enumerate() {
        let host = node["host"].as_str().ok_or_else(unreadable)?;
        cluster.workers.extend(places(&node["workers"], host, index).ok_or_else(unreadable)?);
        cluster.servers.extend(places(&node["servers"], host, index).ok_or_else(unreadable)?);
        if index == 0 && (options.mode != Mode::Collective || options.with_gloo != "0") {
            let port = port(&node["gloo"]).ok_or_else(unreadable)?;
            cluster.gloo_http = Some(Endpoint::new(host, port));
        }
    }
    Ok(cluster)
}

/// Completes a listed cluster with the ports that its machines have published.
pub fn with_ports(mut cluster: Cluster, nodes: &[Value]) -> Result<Cluster> {
    for (index, node) in nodes.iter().enumerate() {
        let published: Option<Vec<u16>> =
            node["ports"].as_array().and_then(|all| all.iter().map(port).collect());
        let published =
            published.ok_or_else(|| Error::unavailable("the leader's plan cannot be read"))?;
        let places: Vec<&mut Place> =
            cluster.places_mut().filter(|place| place.node == index).collect();
        if places.len() != published.len() {
            let host = node["host"].as_str().unwrap_or("a machine");
            return Err(Error::invalid(format!("{host} was started otherwise than this machine"))
                .expected(format!("{} processes there", places.len()))
                .got(published.len())
                .help("the flags of a listed job must be the same on every machine"));
        }
        for (place, port) in places.into_iter().zip(published) {
            place.endpoint.port = port;
        }
        if let Some(gloo) = cluster.gloo_http.as_mut().filter(|_| index == 0) {
            gloo.port = port(&node["gloo"]).unwrap_or(gloo.port);
        }
    }
    Ok(cluster)
}

fn port(value: &Value) -> Option<u16> {
    u16::try_from(value.as_u64()?).ok()
}

fn places(list: &Value, host: &str, node: usize) -> Option<Vec<Place>> {
    let place = |value: &Value| {
        let port = port(&value["port"])?;
        let devices = value["devices"].as_array()?.iter();
        let devices = devices.map(|id| Some(id.as_str()?.to_string())).collect::<Option<_>>()?;
        Some(Place { endpoint: Endpoint::new(host, port), node, devices })
    };
    list.as_array()?.iter().map(place).collect()
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
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
const SAY_PERIOD: Duration = Duration::from_secs(5);
const DIAL_TIME: Duration = Duration::from_secs(2);
const CALL_TIME: Duration = Duration::from_secs(20);
/// Limit on one write to the store; between writes the state of the job is checked.
const TELL_TIME: Duration = Duration::from_secs(2);
