//! Membership of a process in its job. The process sends heartbeats to the host of the store and is
//! notified within seconds when another process fails.
//!
//! The connection is separate from data and has its own thread, so a rank sends heartbeats even
//! during a long computation.
//!
//! ```
//! use fleet_net::{Abort, Limits, Log, Member, Membership, StoreServer, Token, Vigilance};
//! use std::time::Duration;
//! let token = Token::generate()?;
//! let server = StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::stderr())?;
//! let limits = Limits::within(Duration::from_secs(60));
//! let abort = Abort::new();
//! let member = |rank, pid| Member { rank, host: "here".into(), host_id: "here".into(), pid };
//! let own = Membership::join(server.address(), &token, "job/0", member(0, 10), &limits, {
//!     let abort = abort.clone();
//!     move |notice| {
//!         abort.fire(notice.error());
//!     }
//! })?;
//! server.report_end("job/0", &member(1, 11), "killed by signal 9 (SIGKILL)");
//! let error = abort.sleep(Duration::from_secs(60)).unwrap_err();
//! assert!(error.message().starts_with("rank 1 (host here, pid 11) died: killed by signal 9"));
//! own.leave();
//! # Ok::<(), fleet_base::Error>(())
//! ```

use crate::frame::{FrameHeader, FrameReader};
use crate::handshake::{Hello, Purpose, connect_and_handshake};
use crate::host;
use crate::registry::{
    FailureCause, FailureNotice, Vigilance, heard_while_running, put_member, take_member,
};
use crate::socket::{self, Waker, poll, retry};
use crate::stream::Stream;
use crate::token::random;
use crate::wire::{Reader, Writer};
use crate::{Abort, Deadline, Limits, Member, Time, Token};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

// Kinds of frames, in both directions.
pub(crate) const HEARTBEAT: u8 = 1;
pub(crate) const LEAVE: u8 = 2;
pub(crate) const NOTICE: u8 = 3;
pub(crate) const EXITED: u8 = 4;
/// Size limit of a notice or a report: names and a sentence.
pub(crate) const MEMBER_BYTES_MAX: usize = 16 << 10;
/// Size limit of a group name, as for keys.
const GROUP_BYTES_MAX: usize = 512;
/// Size limit of the reason of an end. Enough for "killed by signal 9 (SIGKILL), likely out of
/// memory" and a line of a log.
const REASON_BYTES_MAX: usize = 4 << 10;

pub(crate) struct MemberHello {
    pub(crate) group: String,
    pub(crate) member: Member,
    pub(crate) session: u64,
}

impl MemberHello {
    fn encode(&self) -> Vec<u8> {
        put_member(Writer::new().text(&self.group).u64(self.session), &self.member).0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<MemberHello> {
        let mut reader = Reader::new(bytes);
        let (group, session) = (reader.text()?.to_string(), reader.u64()?);
        let member = take_member(&mut reader)?;
        reader.end()?;
        Ok(MemberHello { group, member, session })
    }
}

pub(crate) fn encode_vigilance(vigilance: &Vigilance, incarnation: u64) -> Vec<u8> {
    [vigilance.beat, vigilance.silence, vigilance.grace]
        .iter()
        .fold(Writer::new().u64(incarnation), |writer, span| writer.u64(span.as_millis() as u64))
        .0
}

fn decode_vigilance(bytes: &[u8]) -> Result<(Vigilance, u64)> {
    let mut reader = Reader::new(bytes);
    let incarnation = reader.u64()?;
    let mut span = || reader.u64().map(|ms| Duration::from_millis(ms.max(1)));
    let vigilance = Vigilance { beat: span()?, silence: span()?, grace: span()? };
    Ok((vigilance, incarnation))
}

fn encode_exit(member: &Member, how: &str) -> Vec<u8> {
    put_member(Writer::new().text(how), member).0
}

pub(crate) fn decode_exit(bytes: &[u8]) -> Result<(Member, String)> {
    let mut reader = Reader::new(bytes);
    let how = reader.text()?.to_string();
    let member = take_member(&mut reader)?;
    reader.end()?;
    Ok((member, how))
}

/// Membership in a group. Dropping it leaves the group without a failure, except in a panic.
pub struct Membership {
    shared: Arc<Shared>,
    vigilance: Vigilance,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    waker: Waker,
    /// Requests to the thread.
    requests: Mutex<Requests>,
    notices: Mutex<Vec<FailureNotice>>,
    stop: Abort,
}

#[derive(Default)]
struct Requests {
    /// Kept and sent again on every new connection; a duplicate report has no effect.
    reports: Vec<Vec<u8>>,
    exit: Option<Exit>,
}

#[derive(Clone, Copy)]
enum Exit {
    Leave,
    /// Disconnect without leaving, as a process that dies in a panic does.
    Disconnect,
}

/// Maximum number of reports kept. No launcher has more children that fail.
const REPORTS_MAX: usize = 1 << 12;

impl Membership {
    /// Joins `group` as `member.rank`. A group is one attempt of a job, and the failure of a member
    /// affects all others. `on_notice` runs on the heartbeat thread, for every failure of another
    /// member and of the host of the store.
    pub fn join(
        address: SocketAddr,
        token: &Token,
        group: &str,
        member: Member,
        limits: &Limits,
        on_notice: impl Fn(&FailureNotice) + Send + 'static,
    ) -> Result<Membership> {
        if group.is_empty() || group.len() > GROUP_BYTES_MAX {
            return Err(Error::invalid("invalid length of a group name")
                .expected(format!("1 to {GROUP_BYTES_MAX} bytes"))
                .got(group.len()));
        }
        let session = u64::from_le_bytes(random()?);
        let hello = MemberHello { group: group.to_string(), member: member.clone(), session };
        let hello = Hello { purpose: Purpose::Member, body: hello.encode() };
        let (stream, answer) =
            retry(limits, |limits| connect_and_handshake(address, token, &hello, limits)).map_err(
                |error| error.at(format!("{member} joining group '{group}' at {address}")),
            )?;
        let (vigilance, incarnation) = decode_vigilance(&answer)?;
        let shared = Arc::new(Shared {
            waker: Waker::new()?,
            requests: Mutex::default(),
            notices: Mutex::default(),
            stop: Abort::new(),
        });
        let heartbeats = HeartbeatThread {
            shared: shared.clone(),
            address,
            token: token.clone(),
            hello,
            incarnation,
            vigilance,
            own: member,
            on_notice: Box::new(on_notice),
        };
        let thread = std::thread::Builder::new()
            .name("fleet-heartbeat".to_string())
            .spawn(move || heartbeats.run(stream))
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(Membership { shared, vigilance, thread: Some(thread) })
    }

    /// The timeouts that the host of the store has set.
    pub fn vigilance(&self) -> Vigilance {
        self.vigilance
    }

    /// All failures reported to this process so far.
    pub fn notices(&self) -> Vec<FailureNotice> {
        lock(&self.shared.notices).clone()
    }

    /// Reports to the group how another member ended (see [`crate::StoreServer::report_end`]).
    pub fn report_end(&self, member: &Member, how: &str) {
        let mut end = how.len().min(REASON_BYTES_MAX);
        while !how.is_char_boundary(end) {
            end -= 1;
        }
        let report = encode_exit(member, &how[..end]);
        self.request(|requests| {
            if requests.reports.len() < REPORTS_MAX {
                requests.reports.push(report);
            }
        });
    }

    /// Leaves the group. Other members do not see this as a failure.
    pub fn leave(self) {
        drop(self);
    }

    fn request(&self, change: impl FnOnce(&mut Requests)) {
        change(&mut lock(&self.shared.requests));
        self.shared.waker.wake();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let exit = if std::thread::panicking() { Exit::Disconnect } else { Exit::Leave };
        self.request(|requests| requests.exit = Some(exit));
        self.shared.stop.fire(Error::unavailable("the membership ended"));
        if let Some(thread) = self.thread.take() {
            // The thread panics only if `on_notice` does, whose message has been printed.
            let _ = thread.join();
        }
    }
}

/// State of the heartbeat thread.
struct HeartbeatThread {
    shared: Arc<Shared>,
    address: SocketAddr,
    token: Token,
    hello: Hello,
    incarnation: u64,
    vigilance: Vigilance,
    own: Member,
    on_notice: Box<dyn Fn(&FailureNotice) + Send>,
}

impl HeartbeatThread {
    fn run(self, mut stream: Stream) {
        let mut last_heard = Time::now();
        loop {
            let Err(error) = self.heartbeat(&stream, &mut last_heard) else { return };
            let silent = Time::now().since(last_heard) >= self.vigilance.silence;
            let again = if silent { Err(error) } else { self.reconnect(&error) };
            match again {
                Ok(fresh) => stream = fresh,
                Err(_) if self.shared.stop.is_fired() => return,
                Err(error) => {
                    let notice = FailureNotice {
                        // The failed process is the host of the store, which has no rank.
                        member: Member { host: self.address.to_string(), ..self.own.clone() },
                        cause: FailureCause::StoreLost,
                        detail: Some(format!("{} ({})", self.address, error.message())),
                        last_heartbeat: Time::now().since(last_heard),
                    };
                    self.notify(notice);
                    return;
                }
            }
        }
    }

    /// Sends heartbeats until the membership ends (`Ok`) or the connection fails.
    fn heartbeat(&self, stream: &Stream, last_heard: &mut Time) -> Result<()> {
        let mut reader = FrameReader::new(MEMBER_BYTES_MAX);
        let mut beat_next = Time::now();
        let mut checked = beat_next;
        let mut reported = 0;
        loop {
            let (reports, exit) = {
                let requests = lock(&self.shared.requests);
                (requests.reports.iter().skip(reported).cloned().collect::<Vec<_>>(), requests.exit)
            };
            reported += reports.len();
            for report in &reports {
                self.send(stream, EXITED, report)?;
            }
            match exit {
                Some(Exit::Leave) => return self.send(stream, LEAVE, &[]),
                Some(Exit::Disconnect) => return Ok(()),
                None => {}
            }
            let now = Time::now();
            *last_heard = heard_while_running(*last_heard, checked, now, self.vigilance.silence);
            checked = now;
            if now >= beat_next {
                self.send(stream, HEARTBEAT, &[])?;
                beat_next = now.plus(self.vigilance.beat);
            }
            while let Some((header, payload)) = reader.read(stream)? {
                *last_heard = Time::now();
                if header.kind == NOTICE {
                    self.notify(FailureNotice::decode(&payload)?);
                }
            }
            let silence = last_heard.plus(self.vigilance.silence);
            if silence <= now {
                return Err(Error::unavailable("no heartbeat on an open connection"));
            }
            let mut fds = [
                PollFd::new(&self.shared.waker, PollFlags::IN),
                PollFd::new(stream, PollFlags::IN),
            ];
            poll(&mut fds, Some(beat_next.min(silence).since(Time::now())))?;
            self.shared.waker.clear();
        }
    }

    fn send(&self, stream: &Stream, kind: u8, payload: &[u8]) -> Result<()> {
        let header = FrameHeader::of(kind, 0, &[payload], true).encode();
        // If the host is stopped, the small frames queue up; the silence timeout detects it.
        let limits = socket::with_deadline(Deadline::within(self.vigilance.silence));
        socket::write_parts(stream, &[&header, payload], &limits)
    }

    /// Reconnects as the same member within the grace period of the host.
    fn reconnect(&self, lost: &Error) -> Result<Stream> {
        let limits = Limits::new(Deadline::within(self.vigilance.grace), &self.shared.stop);
        let (stream, answer) = retry(&limits, |limits| {
            connect_and_handshake(self.address, &self.token, &self.hello, limits)
        })
        .map_err(|error| Error::unavailable(format!("{}; {}", lost.message(), error.message())))?;
        let (_, incarnation) = decode_vigilance(&answer)?;
        if incarnation != self.incarnation {
            return Err(Error::unavailable("it was restarted and has lost the state of this job"));
        }
        Ok(stream)
    }

    fn notify(&self, mut notice: FailureNotice) {
        if notice.cause == FailureCause::Unresponsive && host::is_stopped(&notice.member) {
            notice.detail = Some("the process is stopped (SIGSTOP or a debugger)".into());
        }
        let known = |other: &FailureNotice| other.member == notice.member;
        let mut notices = lock(&self.shared.notices);
        if notices.iter().any(known) {
            return;
        }
        notices.push(notice.clone());
        drop(notices);
        (self.on_notice)(&notice);
    }
}
