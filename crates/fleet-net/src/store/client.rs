//! The store from another process: reconnects, and asks again without doing a thing twice.

use super::protocol::{ANSWER_BYTES_MAX, Answer, Request, WAIT_KEYS_MAX, decode_answer};
use super::table::missing_error;
use super::{Changes, Store, Swap};
use crate::frame::{FrameHeader, FrameReader};
use crate::handshake::{Hello, Purpose, greet};
use crate::socket::{self, retry};
use crate::stream::Stream;
use crate::token::random;
use crate::wire::{Reader, Writer};
use crate::{Limits, Time, Token};
use fleet_base::{Error, ErrorCode, Result};
use rustix::event::PollFlags;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A handle for any number of threads; each call has a connection of its own while it lasts.
///
/// A connection that breaks is made again, and what was asked on it is asked again, until the
/// deadline of the call: the server knows a change that it has done and gives the same answer.
pub struct StoreClient {
    address: SocketAddr,
    token: Token,
    id: u64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    /// The store that this handle began with.
    incarnation: Option<u64>,
    request_next: u64,
    open: BTreeSet<u64>,
}

struct Connection {
    stream: Stream,
    reader: FrameReader,
}

/// Connections kept for the next call.
const IDLE_MAX: usize = 2;
/// The longest single wait on the server; longer ones are asked again, so that a server that has
/// vanished is found out.
const WAIT_SPAN_MAX: Duration = Duration::from_secs(60);
/// How much later than asked an answer may come before the connection counts as broken.
const ANSWER_SLACK: Duration = Duration::from_secs(2);

impl StoreClient {
    /// Connects, waiting for a server that is not there yet until the deadline.
    pub fn connect(address: SocketAddr, token: &Token, limits: &Limits) -> Result<StoreClient> {
        StoreClient::dialled(address, token, |client| retry(limits, |limits| client.dial(limits)))
    }

    /// Connects in one attempt. Where no connection is made, the error has the code
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
        StoreClient::dialled(address, token, |client| client.dial(limits))
    }

    fn dialled(
        address: SocketAddr,
        token: &Token,
        dial: impl FnOnce(&StoreClient) -> Result<Connection>,
    ) -> Result<StoreClient> {
        let client = StoreClient {
            address,
            token: token.clone(),
            id: u64::from_le_bytes(random()?),
            state: Mutex::default(),
        };
        let connection = dial(&client).map_err(|error| client.place(error))?;
        client.lock().idle.push(connection);
        Ok(client)
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between statements, whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn place(&self, error: Error) -> Error {
        error.at(format!("the store at {}", self.address))
    }

    fn dial(&self, limits: &Limits) -> Result<Connection> {
        let hello = Hello { purpose: Purpose::Store, body: Writer::new().u64(self.id).0 };
        let (stream, answer) = greet(self.address, &self.token, &hello, limits)?;
        let incarnation = Reader::new(&answer).u64()?;
        if *self.lock().incarnation.get_or_insert(incarnation) != incarnation {
            return Err(Error::invalid("the store was started anew and has forgotten this job")
                .help("start the job again"));
        }
        Ok(Connection { stream, reader: FrameReader::new(ANSWER_BYTES_MAX) })
    }

    /// Asks until there is an answer.
    fn ask(&self, request: &Request, limits: &Limits) -> Result<Answer> {
        let id = {
            let mut state = self.lock();
            state.request_next += 1;
            let id = state.request_next;
            state.open.insert(id);
            id
        };
        let result = retry(limits, |limits| self.ask_once(id, request, limits));
        self.lock().open.remove(&id);
        result.map_err(|error| self.place(error))?
    }

    /// The inner result is the store's, which no second try changes.
    fn ask_once(&self, id: u64, request: &Request, limits: &Limits) -> Result<Result<Answer>> {
        let (idle, open) = {
            let mut state = self.lock();
            (state.idle.pop(), state.open.first().copied().unwrap_or(id))
        };
        let mut connection = match idle {
            Some(connection) => connection,
            None => self.dial(limits)?,
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
                    return Err(Error::unavailable("the store answers another request")
                        .expected(id)
                        .got(header.id));
                }
                None => socket::wait(&connection.stream, PollFlags::IN, limits)?,
            }
        }
    }

    /// Asks a request that waits, in rounds; `None` past the deadline.
    fn ask_waiting(
        &self,
        limits: &Limits,
        request: impl Fn(u64) -> Request,
        is_answer: impl Fn(&Result<Answer>) -> bool,
    ) -> Result<Option<Answer>> {
        loop {
            let left = limits.deadline.remaining(Time::now()).unwrap_or(WAIT_SPAN_MAX);
            let span = left.min(WAIT_SPAN_MAX);
            let last = left <= WAIT_SPAN_MAX && limits.deadline.time().is_some();
            let round = Limits::new(crate::Deadline::within(span + ANSWER_SLACK), &limits.abort);
            // Rounded up: a wait must not end before its deadline.
            let span_ms = span.as_nanos().div_ceil(1_000_000) as u64;
            let answer = self.ask(&request(span_ms), &round);
            if is_answer(&answer) {
                return answer.map(Some);
            }
            if last {
                return Ok(None);
            }
        }
    }
}

fn surprise(answer: &Answer) -> Error {
    Error::unavailable("the store gives an answer to another question").got(format!("{answer:?}"))
}

impl Store for StoreClient {
    fn set(&self, key: &str, value: &[u8], limits: &Limits) -> Result<()> {
        super::table::check_entry(key, value)?;
        match self.ask(&Request::Set { key: key.into(), value: value.into() }, limits)? {
            Answer::Done => Ok(()),
            other => Err(surprise(&other)),
        }
    }

    fn get(&self, key: &str, limits: &Limits) -> Result<Option<Vec<u8>>> {
        match self.ask(&Request::Get { key: key.into() }, limits)? {
            Answer::Value(value) => Ok(value),
            other => Err(surprise(&other)),
        }
    }

    fn wait(&self, keys: &[&str], limits: &Limits) -> Result<Vec<Vec<u8>>> {
        if keys.len() > WAIT_KEYS_MAX {
            return Err(Error::exhausted("a wait in the store names too many keys")
                .expected(format!("up to {WAIT_KEYS_MAX}"))
                .got(keys.len()));
        }
        let names: Vec<String> = keys.iter().map(|key| key.to_string()).collect();
        let missing = Mutex::new(None);
        let answer = self.ask_waiting(
            limits,
            |span_ms| Request::Wait { keys: names.clone(), span_ms },
            |answer| match answer {
                Err(error) if error.code() == Some(ErrorCode::KeysMissing) => {
                    *missing.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
                    false
                }
                _ => true,
            },
        )?;
        match answer {
            Some(Answer::Values(values)) if values.len() == keys.len() => Ok(values),
            Some(other) => Err(surprise(&other)),
            None => Err(missing
                .into_inner()
                .unwrap_or_else(PoisonError::into_inner)
                .unwrap_or_else(|| missing_error(keys, keys.len()))),
        }
    }

    fn add(&self, key: &str, delta: i64, limits: &Limits) -> Result<i64> {
        match self.ask(&Request::Add { key: key.into(), delta }, limits)? {
            Answer::Count(count) => Ok(count),
            other => Err(surprise(&other)),
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
        match self.ask(&request, limits)? {
            Answer::Swap(swap) => Ok(swap),
            other => Err(surprise(&other)),
        }
    }

    fn delete(&self, key: &str, limits: &Limits) -> Result<bool> {
        match self.ask(&Request::Delete { key: key.into() }, limits)? {
            Answer::Was(was) => Ok(was),
            other => Err(surprise(&other)),
        }
    }

    fn list(&self, prefix: &str, limits: &Limits) -> Result<Vec<(String, Vec<u8>)>> {
        match self.ask(&Request::List { prefix: prefix.into() }, limits)? {
            Answer::Entries(entries) => Ok(entries),
            other => Err(surprise(&other)),
        }
    }

    fn watch(&self, prefix: &str, revision: u64, limits: &Limits) -> Result<Changes> {
        let answer = self.ask_waiting(
            limits,
            |span_ms| Request::Watch { prefix: prefix.into(), revision, span_ms },
            |answer| !matches!(answer, Ok(Answer::Changes(c)) if c.changes.is_empty() && !c.complete),
        )?;
        match answer {
            Some(Answer::Changes(changes)) => Ok(changes),
            Some(other) => Err(surprise(&other)),
            None => Ok(Changes { revision, ..Changes::default() }),
        }
    }
}
