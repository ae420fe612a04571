//! A process's place in its job: it gives signs of life to the host of the store, and learns within
//! seconds when another process has failed.
//!
//! The connection is apart from data, and a thread of its own keeps it, so a rank in the middle of
//! a long computation still beats.
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
use crate::handshake::{Hello, Purpose, greet};
use crate::host;
use crate::registry::{Cause, Notice, Vigilance, heard_while_running, put_member, take_member};
use crate::socket::{self, Bell, poll, retry};
use crate::stream::Stream;
use crate::token::random;
use crate::wire::{Reader, Writer};
use crate::{Abort, Deadline, Limits, Member, Time, Token};
use fleet_base::{Error, Result};
use rustix::event::{PollFd, PollFlags};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

// Kinds of frames, both ways.
pub(crate) const BEAT: u8 = 1;
pub(crate) const LEAVE: u8 = 2;
pub(crate) const NOTICE: u8 = 3;
pub(crate) const ENDED: u8 = 4;
/// A notice or a report: names and a sentence.
pub(crate) const MEMBER_BYTES_MAX: usize = 16 << 10;
/// Groups are named like keys.
const GROUP_BYTES_MAX: usize = 512;
/// Enough for "killed by signal 9 (SIGKILL), likely out of memory" and a line of a log.
const HOW_BYTES_MAX: usize = 4 << 10;

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

fn encode_ended(member: &Member, how: &str) -> Vec<u8> {
    put_member(Writer::new().text(how), member).0
}

pub(crate) fn decode_ended(bytes: &[u8]) -> Result<(Member, String)> {
    let mut reader = Reader::new(bytes);
    let how = reader.text()?.to_string();
    let member = take_member(&mut reader)?;
    reader.end()?;
    Ok((member, how))
}

/// Held as long as the process takes part. Dropping it says goodbye, unless a panic does it.
pub struct Membership {
    shared: Arc<Shared>,
    vigilance: Vigilance,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    bell: Bell,
    /// What the thread is to do.
    orders: Mutex<Orders>,
    notices: Mutex<Vec<Notice>>,
    stop: Abort,
}

#[derive(Default)]
struct Orders {
    /// Kept and sent again on every new connection: to hear of an end twice changes nothing.
    reports: Vec<Vec<u8>>,
    end: Option<End>,
}

#[derive(Clone, Copy)]
enum End {
    Goodbye,
    /// As the process does that dies in a panic.
    Silent,
}

/// Reports kept; a launcher has no more children than this that fail.
const REPORTS_MAX: usize = 1 << 12;

impl Membership {
    /// Takes the seat of `member.rank` in `group`, whose members stand or fall together: the name
    /// of the job and the number of the attempt. `on_notice` runs on the thread of the heartbeats,
    /// for every failure of another member, and of the host of the store itself.
    pub fn join(
        address: SocketAddr,
        token: &Token,
        group: &str,
        member: Member,
        limits: &Limits,
        on_notice: impl Fn(&Notice) + Send + 'static,
    ) -> Result<Membership> {
        if group.is_empty() || group.len() > GROUP_BYTES_MAX {
            return Err(Error::invalid("the name of a group has a bad length")
                .expected(format!("1 to {GROUP_BYTES_MAX} bytes"))
                .got(group.len()));
        }
        let session = u64::from_le_bytes(random()?);
        let hello = MemberHello { group: group.to_string(), member: member.clone(), session };
        let hello = Hello { purpose: Purpose::Member, body: hello.encode() };
        let (stream, answer) = retry(limits, |limits| greet(address, token, &hello, limits))
            .map_err(|error| error.at(format!("{member} joining group '{group}' at {address}")))?;
        let (vigilance, incarnation) = decode_vigilance(&answer)?;
        let shared = Arc::new(Shared {
            bell: Bell::new()?,
            orders: Mutex::default(),
            notices: Mutex::default(),
            stop: Abort::new(),
        });
        let heart = Heart {
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
            .name("fleet-heart".to_string())
            .spawn(move || heart.run(stream))
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(Membership { shared, vigilance, thread: Some(thread) })
    }

    /// The bounds that the host of the store has set.
    pub fn vigilance(&self) -> Vigilance {
        self.vigilance
    }

    /// Every failure that this process has been told of.
    pub fn notices(&self) -> Vec<Notice> {
        self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells the group how another process of it ended (see [`crate::StoreServer::report_end`]).
    pub fn report_end(&self, member: &Member, how: &str) {
        let mut end = how.len().min(HOW_BYTES_MAX);
        while !how.is_char_boundary(end) {
            end -= 1;
        }
        let report = encode_ended(member, &how[..end]);
        self.order(|orders| {
            if orders.reports.len() < REPORTS_MAX {
                orders.reports.push(report);
            }
        });
    }

    /// Says goodbye: nobody is told of a failure.
    pub fn leave(self) {
        drop(self);
    }

    fn order(&self, order: impl FnOnce(&mut Orders)) {
        order(&mut self.shared.orders.lock().unwrap_or_else(PoisonError::into_inner));
        self.shared.bell.ring();
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let end = if std::thread::panicking() { End::Silent } else { End::Goodbye };
        self.order(|orders| orders.end = Some(end));
        self.shared.stop.fire(Error::unavailable("the membership ended"));
        if let Some(thread) = self.thread.take() {
            // It does not panic unless `on_notice` does, which has been printed then.
            let _ = thread.join();
        }
    }
}

/// What the thread holds.
struct Heart {
    shared: Arc<Shared>,
    address: SocketAddr,
    token: Token,
    hello: Hello,
    incarnation: u64,
    vigilance: Vigilance,
    own: Member,
    on_notice: Box<dyn Fn(&Notice) + Send>,
}

impl Heart {
    fn run(self, mut stream: Stream) {
        let mut heard = Time::now();
        loop {
            let Err(error) = self.beat(&stream, &mut heard) else { return };
            let silent = Time::now().since(heard) >= self.vigilance.silence;
            let again = if silent { Err(error) } else { self.come_back(&error) };
            match again {
                Ok(fresh) => stream = fresh,
                Err(_) if self.shared.stop.is_fired() => return,
                Err(error) => {
                    let notice = Notice {
                        // Nobody's rank: the host of the store.
                        member: Member { host: self.address.to_string(), ..self.own.clone() },
                        cause: Cause::StoreLost,
                        how: Some(format!("{} ({})", self.address, error.message())),
                        last_heartbeat: Time::now().since(heard),
                    };
                    self.tell(notice);
                    return;
                }
            }
        }
    }

    /// Beats until the end (`Ok`), or until the connection is no longer one.
    fn beat(&self, stream: &Stream, heard: &mut Time) -> Result<()> {
        let mut reader = FrameReader::new(MEMBER_BYTES_MAX);
        let mut beat_next = Time::now();
        let mut looked = beat_next;
        let mut reported = 0;
        loop {
            let (reports, end) = {
                let orders = self.shared.orders.lock().unwrap_or_else(PoisonError::into_inner);
                (orders.reports.iter().skip(reported).cloned().collect::<Vec<_>>(), orders.end)
            };
            reported += reports.len();
            for report in &reports {
                self.send(stream, ENDED, report)?;
            }
            match end {
                Some(End::Goodbye) => return self.send(stream, LEAVE, &[]),
                Some(End::Silent) => return Ok(()),
                None => {}
            }
            let now = Time::now();
            *heard = heard_while_running(*heard, looked, now, self.vigilance.silence);
            looked = now;
            if now >= beat_next {
                self.send(stream, BEAT, &[])?;
                beat_next = now.plus(self.vigilance.beat);
            }
            while let Some((header, payload)) = reader.read(stream)? {
                *heard = Time::now();
                if header.kind == NOTICE {
                    self.tell(Notice::decode(&payload)?);
                }
            }
            let silence = heard.plus(self.vigilance.silence);
            if silence <= now {
                return Err(Error::unavailable("it is silent, the connection stands"));
            }
            let mut fds =
                [PollFd::new(&self.shared.bell, PollFlags::IN), PollFd::new(stream, PollFlags::IN)];
            poll(&mut fds, Some(beat_next.min(silence).since(Time::now())))?;
            self.shared.bell.hush();
        }
    }

    fn send(&self, stream: &Stream, kind: u8, payload: &[u8]) -> Result<()> {
        let header = FrameHeader::of(kind, 0, &[payload], true).encode();
        // A host that is stopped lets the little that we send pile up; it is found out by silence.
        let limits = socket::until(Deadline::within(self.vigilance.silence));
        socket::write_parts(stream, &[&header, payload], &limits)
    }

    /// A broken connection is made again as the same member, while the other side still waits for
    /// it.
    fn come_back(&self, lost: &Error) -> Result<Stream> {
        let limits = Limits::new(Deadline::within(self.vigilance.grace), &self.shared.stop);
        let (stream, answer) =
            retry(&limits, |limits| greet(self.address, &self.token, &self.hello, limits))
                .map_err(|error| {
                    Error::unavailable(format!("{}; {}", lost.message(), error.message()))
                })?;
        let (_, incarnation) = decode_vigilance(&answer)?;
        if incarnation != self.incarnation {
            return Err(Error::unavailable("it was started anew and has forgotten this job"));
        }
        Ok(stream)
    }

    fn tell(&self, mut notice: Notice) {
        if notice.cause == Cause::Silent && host::is_stopped(&notice.member) {
            notice.how = Some("the process is stopped (SIGSTOP or a debugger)".into());
        }
        let known = |other: &Notice| other.member == notice.member;
        let mut notices = self.shared.notices.lock().unwrap_or_else(PoisonError::into_inner);
        if notices.iter().any(known) {
            return;
        }
        notices.push(notice.clone());
        drop(notices);
        (self.on_notice)(&notice);
    }
}
