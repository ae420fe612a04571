//! A worker's heartbeats, sent by a thread with a connection of its own to each server. They
//! distinguish a step that computes for minutes from a stopped process. The same thread detects a
//! stopped server, for whose answers other threads would simply wait.

use super::connections::{Connector, ServerConnections};
use crate::request::{Message, Read, Stamp};
use crate::thread::Thread;
use fleet_base::{Error, Result};
use fleet_net::calls::CallClient;
use fleet_net::{Abort, Deadline, Limits, Log, Time};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Ends with the client whose heartbeats it sends.
pub(super) struct Heartbeats {
    stop: Abort,
    _thread: Thread,
}

/// Time limit for reaching one server, during which the others wait.
const REACH_SPAN: Duration = Duration::from_millis(500);
/// Silence of a server after which it is logged; shorter pauses occur on a busy machine.
const SILENCE_LOG_AFTER: Duration = Duration::from_secs(5);

impl Heartbeats {
    /// Starts to send heartbeats with the number of steps made to all servers, at this interval.
    pub fn start(
        connector: Arc<Connector>,
        servers: Arc<Vec<ServerConnections>>,
        log: Log,
        every: Duration,
        (steps, complete): (Arc<AtomicU64>, Arc<AtomicU64>),
    ) -> Result<Heartbeats> {
        let stop = Abort::new();
        let stopped = stop.clone();
        let run = move || {
            let last_answer = Time::now();
            let mut heartbeats: Vec<ServerHeartbeat> =
                servers.iter().map(|_| ServerHeartbeat { connection: None, last_answer }).collect();
            while stopped.sleep(every).is_ok() {
                let stamp = Stamp { complete: complete.load(Relaxed), ..Stamp::default() };
                let request = Read::Heartbeat { steps: steps.load(Relaxed) }.into();
                for (server, heartbeat) in heartbeats.iter_mut().enumerate() {
                    let message = Message::new(server, stamp, &request);
                    heartbeat.beat(&connector, &servers[server], &message, &log, &stopped);
                }
            }
        };
        Ok(Heartbeats { stop, _thread: Thread::start("ps-heartbeat", run)? })
    }
}

/// The heartbeats to one server.
struct ServerHeartbeat {
    connection: Option<(CallClient, SocketAddr)>,
    /// When the server last answered.
    last_answer: Time,
}

impl ServerHeartbeat {
    fn beat(
        &mut self,
        connector: &Connector,
        connections: &ServerConnections,
        message: &Message<'_>,
        log: &Log,
        stop: &Abort,
    ) {
        // A server that is not reached now is tried again next time.
        let server = message.server;
        match self.send(connector, connections, message, stop) {
            Ok((connection, address)) => {
                self.last_answer = Time::now();
                connections.mark_up(log, connector, server, address);
                self.connection = Some((connection, address));
            }
            Err(error) => {
                let silent = Time::now().since(self.last_answer);
                let is_ended = stop.check().is_err();
                if !is_ended
                    && silent >= SILENCE_LOG_AFTER
                    && connections.mark_down(self.last_answer)
                {
                    let (caller, name) = (connector.caller, connector.name(server));
                    log.line(format!(
                        "{caller} waits for {name}: no answer to heartbeats for {:.1} s ({})",
                        silent.as_secs_f64(),
                        error.message()
                    ));
                }
            }
        }
    }

    fn send(
        &mut self,
        connector: &Connector,
        connections: &ServerConnections,
        message: &Message<'_>,
        stop: &Abort,
    ) -> Result<(CallClient, SocketAddr)> {
        let limits = Limits::new(Deadline::within(REACH_SPAN), stop);
        let (mut connection, address) = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let (connection, life, address) =
                    connector.connect((message.server, connections), &limits, REACH_SPAN)?;
                if !connections.is_same_life(life) {
                    return Err(Error::unavailable("server restarted and lost its tables"));
                }
                (connection, address)
            }
        };
        connection.call(message.method as u8, &message.parts(), &limits)?;
        Ok((connection, address))
    }
}

impl Drop for Heartbeats {
    fn drop(&mut self) {
        self.stop.fire(Error::unavailable("client is closing"));
    }
}
