//! The connections to one server, and how they are made.

use crate::message::Body;
use crate::request::{Message, Read, Stamp};
use crate::server::{Caller, hello};
use fleet_base::sync::{lock, wait_for};
use fleet_base::{Error, Result};
use fleet_net::calls::{CallClient, CallOptions};
use fleet_net::{Limits, Log, Time, Token};
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Everything that a connection needs.
pub(super) struct Connector {
    pub caller: Caller,
    /// The job's text, which servers compare with their own.
    pub job: String,
    pub resolve: Box<Resolve>,
    pub token: Token,
    pub options: CallOptions,
}

/// Returns the current address of a server.
pub(super) type Resolve = dyn Fn(usize) -> Result<SocketAddr> + Send + Sync;

/// The connections to one server.
#[derive(Default)]
pub(super) struct ServerConnections {
    pool: Mutex<Pool>,
    freed: Condvar,
    /// Life of the server's tables at the first connection. A server with another life has lost
    /// them.
    life: OnceLock<u64>,
    /// The latest epoch of the server, and the number below which its requests are kept.
    acknowledged: Mutex<[u64; 2]>,
}

#[derive(Default)]
struct Pool {
    idle: Vec<CallClient>,
    open: usize,
    /// Since when the server cannot be reached.
    down: Option<Time>,
}

impl Connector {
    /// Connects, and checks that the server has the same job. Also returns the life of its tables.
    pub fn connect(
        &self,
        (server, connections): (usize, &ServerConnections),
        limits: &Limits,
        span: Duration,
    ) -> Result<(CallClient, u64, SocketAddr)> {
        let address = (self.resolve)(server)?;
        let soon = limits.at_most(span);
        let (greeting, options) = (hello(self.caller), self.options);
        let mut connection = CallClient::connect(address, &self.token, &greeting, options, &soon)?;
        let [epoch, kept] = connections.last_acknowledged();
        let life = connections.life.get().copied().unwrap_or(0);
        let acknowledged = Some([life, epoch, kept]);
        let compare = Read::Compare { job: &self.job, acknowledged }.into();
        let message = Message::new(server, Stamp::default(), &compare);
        let answer = connection.call(message.method as u8, &message.parts(), limits)?;
        let mut body = Body(&answer);
        let (number, life) = (body.u64()?, body.u64()?);
        if number != server as u64 {
            return Err(Error::invalid(format!("wrong server at {address}"))
                .expected(format!("server {server}"))
                .got(format!("server {number}")));
        }
        Ok((connection, life, address))
    }

    pub fn name(&self, server: usize) -> String {
        match (self.resolve)(server) {
            Ok(address) => format!("server {server} at {address}"),
            Err(_) => format!("server {server}"),
        }
    }
}

impl ServerConnections {
    fn lock(&self) -> MutexGuard<'_, Pool> {
        // A pool is consistent between statements.
        lock(&self.pool)
    }

    /// Takes an idle connection. Returns none where fewer than `connections_max` are open: the
    /// caller opens another one, which counts from now on. Otherwise waits, and checks the abort
    /// token at intervals of `pause`.
    pub fn take(
        &self,
        connections_max: usize,
        limits: &Limits,
        pause: Duration,
    ) -> Result<Option<CallClient>> {
        let mut pool = self.lock();
        loop {
            if let Some(connection) = pool.idle.pop() {
                return Ok(Some(connection));
            }
            if pool.open < connections_max {
                pool.open += 1;
                return Ok(None);
            }
            limits.abort.check()?;
            let left = limits.deadline.remaining(Time::now()).unwrap_or(pause);
            if left.is_zero() {
                return Err(Error::unavailable("no free connection before the deadline"));
            }
            pool = wait_for(&self.freed, pool, left.min(pause)).0;
        }
    }

    pub fn give_back(&self, connection: CallClient) {
        self.lock().idle.push(connection);
        self.freed.notify_one();
    }

    /// Stops counting a connection that failed.
    pub fn forget(&self) {
        self.lock().open -= 1;
        self.freed.notify_one();
    }

    /// Stops counting a connection that failed, and closes the idle ones.
    pub fn forget_all(&self) {
        self.forget();
        let stale = std::mem::take(&mut self.lock().idle);
        stale.iter().for_each(|_| self.forget());
    }

    /// Returns whether tables of this life are those of the first connection.
    pub fn is_same_life(&self, life: u64) -> bool {
        *self.life.get_or_init(|| life) == life
    }

    fn last_acknowledged(&self) -> [u64; 2] {
        *lock(&self.acknowledged)
    }

    /// Remembers the newest acknowledgement: epochs grow, and so do the numbers within one.
    pub fn acknowledge(&self, [epoch, kept]: [u64; 2]) {
        let mut known = lock(&self.acknowledged);
        *known = (*known).max([epoch, kept]);
    }

    /// Records since when the server cannot be reached; returns whether that is news.
    pub fn mark_down(&self, since: Time) -> bool {
        let mut pool = self.lock();
        let is_news = pool.down.is_none();
        pool.down.get_or_insert(since);
        is_news
    }

    /// Records that the server is reached; logs it if it was down.
    pub fn mark_up(&self, log: &Log, connector: &Connector, server: usize, address: SocketAddr) {
        let Some(since) = self.lock().down.take() else { return };
        let (span, caller) = (Time::now().since(since).as_secs_f64(), connector.caller);
        log.line(format!(
            "{caller}: server {server} at {address} is reachable again after {span:.1} s"
        ));
    }
}
