//! A worker's heartbeats, sent by a thread with a connection of its own to each server. They
//! distinguish a step that computes for minutes from a stopped process. The same thread detects a
//! stopped server, for whose answers other threads would simply wait.

use super::remote::{Door, Lane};
use crate::message::{Head, Method};
use fleet_base::{Error, Result};
use fleet_net::calls::CallClient;
use fleet_net::{Abort, Deadline, Limits, Log, Time};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

/// Ends with the client whose heartbeats it sends.
pub(super) struct Alive {
    stop: Abort,
    thread: Option<JoinHandle<()>>,
}

/// Time limit for reaching one server, during which the others wait.
const REACH_SPAN: Duration = Duration::from_millis(500);
/// Silence of a server after which it is logged; shorter pauses occur on a busy machine.
const SILENCE_SAID_AFTER: Duration = Duration::from_secs(5);

impl Alive {
    /// Starts to send heartbeats with the number of steps made to all servers, at this interval.
    pub fn start(
        door: Arc<Door>,
        lanes: Arc<Vec<Lane>>,
        log: Log,
        every: Duration,
        (steps, complete): (Arc<AtomicU64>, Arc<AtomicU64>),
    ) -> Result<Alive> {
        let stop = Abort::new();
        let stopped = stop.clone();
        let speak = move || {
            let heard = Time::now();
            let mut voices: Vec<Voice> =
                lanes.iter().map(|_| Voice { connection: None, heard }).collect();
            while stopped.sleep(every).is_ok() {
                let (count, complete) = (steps.load(Relaxed), complete.load(Relaxed));
                let head = Head { count, complete, ..Head::default() };
                for (server, voice) in voices.iter_mut().enumerate() {
                    voice.speak(&door, (server, &lanes[server]), head, &log, &stopped);
                }
            }
        };
        let thread = std::thread::Builder::new()
            .name("ps-alive".into())
            .spawn(speak)
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(Alive { stop, thread: Some(thread) })
    }
}

/// The heartbeats to one server.
struct Voice {
    connection: Option<(CallClient, SocketAddr)>,
    /// When the server last answered.
    heard: Time,
}

impl Voice {
    fn speak(
        &mut self,
        door: &Door,
        (server, lane): (usize, &Lane),
        head: Head,
        log: &Log,
        stop: &Abort,
    ) {
        // A server that is not reached now is tried again next time.
        match self.say(door, (server, lane), head, stop) {
            Ok((connection, address)) => {
                self.heard = Time::now();
                lane.is_back(log, door, server, address);
                self.connection = Some((connection, address));
            }
            Err(error) => {
                let silent = Time::now().since(self.heard);
                let is_ended = stop.check().is_err();
                if !is_ended && silent >= SILENCE_SAID_AFTER && lane.goes_down(self.heard) {
                    let (caller, name) = (door.caller, door.name(server));
                    log.line(format!(
                        "{caller} waits for {name}: no sign of life for {:.1} s ({})",
                        silent.as_secs_f64(),
                        error.message()
                    ));
                }
            }
        }
    }

    fn say(
        &mut self,
        door: &Door,
        (server, lane): (usize, &Lane),
        head: Head,
        stop: &Abort,
    ) -> Result<(CallClient, SocketAddr)> {
        let limits = Limits::new(Deadline::within(REACH_SPAN), stop);
        let (mut connection, address) = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let (connection, life, address) =
                    door.connect((server, lane), &limits, REACH_SPAN)?;
                if !lane.knows(life) {
                    return Err(Error::unavailable("it was started again and has lost its tables"));
                }
                (connection, address)
            }
        };
        connection.call(Method::Alive as u8, &[&head.encode()], &limits)?;
        Ok((connection, address))
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.stop.fire(Error::unavailable("the client ends"));
        if let Some(thread) = self.thread.take() {
            // A panic has been reported by its thread.
            let _ = thread.join();
        }
    }
}
