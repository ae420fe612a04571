//! A worker's signs of life: a thread and a connection to each server of its own, so that a step which
//! computes for minutes is told from a process that is stopped.

use super::remote::Door;
use crate::message::{Head, Method};
use fleet_base::{Error, Result};
use fleet_net::calls::CallClient;
use fleet_net::{Abort, Deadline, Limits};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Ends with the client that it speaks for.
pub(super) struct Alive {
    stop: Abort,
    thread: Option<JoinHandle<()>>,
}

/// What reaching one server may take: the others wait meanwhile.
const REACH_SPAN: Duration = Duration::from_millis(500);

impl Alive {
    /// Speaks to all servers, every so often.
    pub fn start(door: Arc<Door>, server_count: usize, every: Duration) -> Result<Alive> {
        let stop = Abort::new();
        let stopped = stop.clone();
        let speak = move || {
            let mut connections: Vec<Option<CallClient>> =
                (0..server_count).map(|_| None).collect();
            while stopped.sleep(every).is_ok() {
                for (server, connection) in connections.iter_mut().enumerate() {
                    // A server that is not reached now is tried again next time.
                    *connection = say(&door, server, connection.take(), &stopped).ok();
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

fn say(
    door: &Door,
    server: usize,
    connection: Option<CallClient>,
    stop: &Abort,
) -> Result<CallClient> {
    let limits = Limits::new(Deadline::within(REACH_SPAN), stop);
    let mut connection = match connection {
        Some(connection) => connection,
        None => door.connect(server, &limits, REACH_SPAN)?.0,
    };
    connection.call(Method::Alive as u8, &[&Head::default().encode()], &limits)?;
    Ok(connection)
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
