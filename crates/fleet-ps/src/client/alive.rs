//! A worker's signs of life: a thread and a connection to each server of its own, so that a step
//! which computes for minutes is told from a process that is stopped. The same thread notices a
//! server that is stopped: whoever waits for its answer only waits.

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

/// Ends with the client that it speaks for.
pub(super) struct Alive {
    stop: Abort,
    thread: Option<JoinHandle<()>>,
}

/// What reaching one server may take: the others wait meanwhile.
const REACH_SPAN: Duration = Duration::from_millis(500);
/// A server that says nothing for so long is worth a line; shorter pauses are those of a busy
/// machine.
const SILENCE_SAID_AFTER: Duration = Duration::from_secs(5);

impl Alive {
    /// Speaks to all servers, every so often, and says how many steps were made.
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

/// What is said to one server.
struct Voice {
    connection: Option<(CallClient, SocketAddr)>,
    /// When the server answered last.
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
