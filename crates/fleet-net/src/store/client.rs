//! The store accessed from another process. Reconnects and retries without applying a change twice.

use super::protocol::{ANSWER_BYTES_MAX, Answer, Request, WAIT_KEYS_MAX, decode_answer};
use super::table::missing_error;
use super::{Changes, Store, Swap};
use crate::frame::{FrameHeader, FrameReader};
use crate::handshake::{Hello, Purpose, connect_and_handshake};
use crate::socket::{self, retry};
use crate::stream::Stream;
use crate::token::random;
use crate::wire::{Reader, Writer};
use crate::{Limits, Time, Token};
use fleet_base::sync::lock;
use fleet_base::{Error, ErrorCode, Result};
use rustix::event::PollFlags;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

/// A client of the store for any number of threads. Each call uses a connection of its own.
///
/// If a connection breaks, the client reconnects and repeats the request until the deadline of the
/// call. The server recognises a change that it has already applied and repeats its answer.
pub struct StoreClient {
    address: SocketAddr,
    token: Token,
    id: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    /// Incarnation of the store at the first connection.
    incarnation: Option<u64>,
    request_next: u64,
    open: BTreeSet<u64>,
}

struct Connection {
    stream: Stream,
    reader: FrameReader,
}

/// Maximum number of idle connections kept for later calls.
const IDLE_MAX: usize = 2;
/// Longest single wait on the server. Longer waits are repeated, to detect the loss of a server.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// Delay of an answer after the requested time beyond which the connection counts as broken.
const ANSWER_GRACE: Duration = Duration::from_secs(2);

impl StoreClient {
    /// Connects; until the deadline, it retries while the server is not listening yet.
    pub fn connect(address: SocketAddr, token: &Token, limits: &Limits) -> Result<StoreClient> {
        StoreClient::connected(address, token, |client| {
            retry(limits, |limits| client.connect_once(limits))
        })
    }

    /// Connects in one attempt. If no process accepts the connection, the error has the code
    /// [`ErrorCode::NotConnected`].
    ///
    /// ```
    /// use fleet_base::ErrorCode;
    /// use fleet_net::{Limits, StoreClient, Token};
    /// use std::time::Duration;
    /// let (token, limits) = (Token::generate()?, Limits::within(Duration::from_secs(60)));
    /// let error = StoreClient::try_connect("127.0.0.1:1".parse().unwrap(), &token, &limits);
    /// assert_eq!(error.err().and_then(|error| error.code()), Some(ErrorCode::NotConnected));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn try_connect(address: SocketAddr, token: &Token, limits: &Limits) -> Result<StoreClient> {
        StoreClient::connected(address, token, |client| client.connect_once(limits))
    }

    fn connected(
        address: SocketAddr,
        token: &Token,
        connect: impl FnOnce(&StoreClient) -> Result<Connection>,
    ) -> Result<StoreClient> {
        let client = StoreClient {
            address,
            token: token.clone(),
            id: u64::from_le_bytes(random()?),
            state: Mutex::default(),
        };
        let connection = connect(&client).map_err(|error| client.located(error))?;
        client.lock().idle.push(connection);
        Ok(client)
    }

    /// Address of the store's server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement, even if a thread panicked.
        lock(&self.state)
    }

    fn located(&self, error: Error) -> Error {
        error.at(format!("the store at {}", self.address))
    }

    fn connect_once(&self, limits: &Limits) -> Result<Connection> {
        let hello = Hello { purpose: Purpose::Store, body: Writer::new().u64(self.id).0 };
        let (stream, answer) = connect_and_handshake(self.address, &self.token, &hello, limits)?;
        let incarnation = Reader::new(&answer).u64()?;
        if *self.lock().incarnation.get_or_insert(incarnation) != incarnation {
            return Err(Error::invalid(
                "the store was restarted and has lost the state of this job",
            )
            .help("restart the job"));
        }
        Ok(Connection { stream, reader: FrameReader::new(ANSWER_BYTES_MAX) })
    }

    /// Sends a request, with retries, until it is answered.
    fn request(&self, request: &Request, limits: &Limits) -> Result<Answer> {
        let id = {
            let mut state = self.lock();
            state.request_next += 1;
            let id = state.request_next;
            state.open.insert(id);
            id
        };
        let result = retry(limits, |limits| self.request_once(id, request, limits));
        self.lock().open.remove(&id);
        result.map_err(|error| self.located(error))?
    }

    /// Sends a request once. The inner result is the store's own; a retry would not change it.
    fn request_once(&self, id: u64, request: &Request, limits: &Limits) -> Result<Result<Answer>> {
        let (idle, open) = {
            let mut state = self.lock();
            (state.idle.pop(), state.open.first().copied().unwrap_or(id))
        };
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.connect_once(limits)?,
        };
        let (kind, payload) = request.encode(open);
        let header = FrameHeader::of(kind, id, &[&payload], true).encode();
        socket::write_parts(&connection.stream, &[&header, &payload], limits)?;
        loop {
            match connection.reader.read(&connection.stream)? {
                Some((header, payload)) if header.id == id => {
                    let answer = decode_answer(&payload)?;
                    let mut state = self.lock();
                    if state.idle.len() < IDLE_MAX {
                        state.idle.push(connection);
                    }
                    return Ok(answer);
                }
                Some((header, _)) => {
                    return Err(Error::unavailable("answer of the store to another request")
                        .expected(id)
                        .got(header.id));
                }
                None => socket::wait(&connection.stream, PollFlags::IN, limits)?,
            }
        }
    }

    /// Repeats a request that waits on the server; `None` after the deadline.
    fn request_waiting(
        &self,
        limits: &Limits,
        request: impl Fn(u64) -> Request,
        is_answer: impl Fn(&Result<Answer>) -> bool,
    ) -> Result<Option<Answer>> {
        loop {
            let left = limits.deadline.remaining(Time::now()).unwrap_or(WAIT_MAX);
            let span = left.min(WAIT_MAX);
            let last = left <= WAIT_MAX && limits.deadline.time().is_some();
            let round = Limits::new(crate::Deadline::within(span + ANSWER_GRACE), &limits.abort);
            // Rounded up: a wait must not end before its deadline.
            let span_ms = span.as_nanos().div_ceil(1_000_000) as u64;
            let answer = self.request(&request(span_ms), &round);
            if is_answer(&answer) {
                return answer.map(Some);
            }
            if last {
                return Ok(None);
            }
        }
    }
}

fn unexpected_answer(answer: &Answer) -> Error {
    Error::unavailable("unexpected kind of answer from the store").got(format!("{answer:?}"))
}

impl Store for StoreClient {
    fn set(&self, key: &str, value: &[u8], limits: &Limits) -> Result<()> {
        super::table::check_entry(key, value)?;
        match self.request(&Request::Set { key: key.into(), value: value.into() }, limits)? {
            Answer::Done => Ok(()),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn get(&self, key: &str, limits: &Limits) -> Result<Option<Vec<u8>>> {
        match self.request(&Request::Get { key: key.into() }, limits)? {
            Answer::Value(value) => Ok(value),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn wait(&self, keys: &[&str], limits: &Limits) -> Result<Vec<Vec<u8>>> {
        if keys.len() > WAIT_KEYS_MAX {
            return Err(Error::exhausted("too many keys in a wait on the store")
                .expected(format!("up to {WAIT_KEYS_MAX}"))
                .got(keys.len()));
        }
        let names: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
        let missing = Mutex::new(None);
        let answer = self.request_waiting(
            limits,
            |span_ms| Request::Wait { keys: names.clone(), span_ms },
            |answer| match answer {
                Err(error) if error.code() == Some(ErrorCode::KeysMissing) => {
                    *lock(&missing) = Some(error.clone());
                    false
                }
                _ => true,
            },
        )?;
        match answer {
            Some(Answer::Values(values)) if values.len() == keys.len() => Ok(values),
            Some(other) => Err(unexpected_answer(&other)),
            None => Err(lock(&missing).take().unwrap_or_else(|| missing_error(keys, keys.len()))),
        }
    }

    fn add(&self, key: &str, delta: i64, limits: &Limits) -> Result<i64> {
        match self.request(&Request::Add { key: key.into(), delta }, limits)? {
            Answer::Count(count) => Ok(count),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        limits: &Limits,
    ) -> Result<Swap> {
        super::table::check_entry(key, value)?;
        let expected = expected.map(<[u8]>::to_vec);
        let request = Request::Swap { key: key.into(), expected, value: value.into() };
        match self.request(&request, limits)? {
            Answer::Swap(swap) => Ok(swap),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn delete(&self, key: &str, limits: &Limits) -> Result<bool> {
        match self.request(&Request::Delete { key: key.into() }, limits)? {
            Answer::Existed(was) => Ok(was),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn list(&self, prefix: &str, limits: &Limits) -> Result<Vec<(String, Vec<u8>)>> {
        match self.request(&Request::List { prefix: prefix.into() }, limits)? {
            Answer::Entries(entries) => Ok(entries),
            other => Err(unexpected_answer(&other)),
        }
    }

    fn watch(&self, prefix: &str, revision: u64, limits: &Limits) -> Result<Changes> {
        let answer = self.request_waiting(
            limits,
            |span_ms| Request::Watch { prefix: prefix.into(), revision, span_ms },
            |answer| match answer {
                Ok(Answer::Changes(changes)) => !changes.changes.is_empty() || changes.complete,
                _ => true,
            },
        )?;
        match answer {
            Some(Answer::Changes(changes)) => Ok(changes),
            Some(other) => Err(unexpected_answer(&other)),
            None => Ok(Changes { revision, ..Changes::default() }),
        }
    }
}
