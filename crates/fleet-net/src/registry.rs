//! Who is alive, as the host of the store sees it: a table and a clock, no sockets.
//!
//! A process is **lost** when its connection breaks, and dead when it does not come back within the
//! grace, or when the launcher says how it ended. It is **silent** when the connection stands and
//! nothing has come for too long. Who has said goodbye is missed by nobody.

use crate::wire::{Reader, Writer};
use crate::{Member, Time};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// The bounds within which a failure is noticed; the host of the store sets them for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vigilance {
    /// A sign of life this often.
    pub beat: Duration,
    /// Nothing for this long is a failure: a stopped process, a host that cannot be reached.
    pub silence: Duration,
    /// A broken connection may be made again within this; after it the process is dead.
    pub grace: Duration,
}

impl Default for Vigilance {
    /// A death is known within 1 s and a moment, silence within 30 s.
    fn default() -> Vigilance {
        Vigilance {
            beat: Duration::from_secs(1),
            silence: Duration::from_secs(30),
            grace: Duration::from_secs(1),
        }
    }
}

/// Why a member is no longer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The process is gone.
    Died,
    /// The process is there, or was, and says nothing.
    Silent,
    /// The host of the store is gone or silent, and with it the news of all others.
    StoreLost,
}

/// What everybody is told when a member fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notice {
    pub member: Member,
    pub cause: Cause,
    /// The exit code or signal, when the launcher has told; of a silent process, that it is
    /// stopped, on the machine where that can be seen.
    pub how: Option<String>,
    /// How long before the notice its last sign of life was.
    pub last_heartbeat: Duration,
}

impl Notice {
    /// The notice as an error: what an [`crate::Abort`] is fired with.
    pub fn error(&self) -> Error {
        match self.cause {
            Cause::StoreLost => self.described(),
            Cause::Died | Cause::Silent => self.described().caused_by(self.member.rank),
        }
    }

    fn described(&self) -> Error {
        let ago = self.last_heartbeat.as_secs_f64();
        match self.cause {
            Cause::Died => {
                let how = self.how.as_deref().unwrap_or("how is not known: its connection closed");
                let error = Error::unavailable(format!(
                    "{} died: {how}; last heartbeat {ago:.1} s before",
                    self.member
                ));
                match self.how {
                    Some(_) => error,
                    None => error.help("the last lines of its log say more"),
                }
            }
            Cause::Silent => {
                let silent = format!("{} has been silent for {ago:.1} s", self.member);
                match self.how.as_deref() {
                    Some(how) => Error::unavailable(format!("{silent}: {how}"))
                        .help(format!("kill -CONT {} if it was meant to go on", self.member.pid)),
                    None => Error::unavailable(format!(
                        "{silent}: the process is stopped or its host cannot be reached"
                    )),
                }
            }
            Cause::StoreLost => Error::unavailable(format!(
                "the host of the store is lost: {}; last heartbeat {ago:.1} s before",
                self.how.as_deref().unwrap_or("no answer")
            )),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let writer = Writer::new()
            .u8(match self.cause {
                Cause::Died => 1,
                Cause::Silent => 2,
                Cause::StoreLost => 3,
            })
            .option(self.how.as_deref().map(str::as_bytes))
            .u64(self.last_heartbeat.as_millis() as u64);
        put_member(writer, &self.member).0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Notice> {
        let mut reader = Reader::new(bytes);
        let cause = match reader.u8()? {
            1 => Cause::Died,
            2 => Cause::Silent,
            3 => Cause::StoreLost,
            other => return Err(Error::unavailable("a notice of an unknown kind").got(other)),
        };
        let how = reader.option()?.map(|how| String::from_utf8_lossy(how).into_owned());
        let last_heartbeat = Duration::from_millis(reader.u64()?);
        let member = take_member(&mut reader)?;
        reader.end()?;
        Ok(Notice { member, cause, how, last_heartbeat })
    }
}

pub(crate) fn put_member(writer: Writer, member: &Member) -> Writer {
    writer.u64(member.rank as u64).u32(member.pid).text(&member.host).text(&member.host_id)
}

pub(crate) fn take_member(reader: &mut Reader<'_>) -> Result<Member> {
    let (rank, pid) = (reader.u64()?, reader.u32()?);
    let rank = usize::try_from(rank)
        .map_err(|_| Error::unavailable("a rank that no job has").got(rank))?;
    let (host, host_id) = (reader.text()?.to_string(), reader.text()?.to_string());
    Ok(Member { rank, host, host_id, pid })
}

/// A rank of a group of processes that stand or fall together (one attempt of one job).
pub(crate) type Seat = (String, usize);

pub(crate) struct Registry {
    vigilance: Vigilance,
    seats: BTreeMap<Seat, Entry>,
    /// The last look at the clock.
    ticked: Option<Time>,
}

struct Entry {
    member: Member,
    /// Drawn by the process: tells a comeback from a newcomer.
    session: u64,
    heard: Time,
    state: State,
}

#[derive(Clone, PartialEq, Eq)]
enum State {
    Alive,
    Lost { since: Time },
    Left,
    Dead(Notice),
}

/// More seats than any job has.
const SEATS_MAX: usize = 1 << 20;

impl Registry {
    pub(crate) fn new(vigilance: Vigilance) -> Registry {
        Registry { vigilance, seats: BTreeMap::new(), ticked: None }
    }

    /// Takes a seat, or takes it again; gives the notice of the process that had it before and
    /// whose end is thereby known.
    pub(crate) fn join(
        &mut self,
        seat: Seat,
        member: Member,
        session: u64,
        now: Time,
    ) -> Result<Option<Notice>> {
        let mut before = None;
        if let Some(entry) = self.seats.get_mut(&seat) {
            match &entry.state {
                State::Dead(notice) if entry.session == session => {
                    return Err(notice
                        .error()
                        .at("the host of the store: this process was given up"));
                }
                State::Alive if entry.session != session => {
                    return Err(Error::unavailable(format!("{} has this seat", entry.member))
                        .at(format!("{member} joining group '{}'", seat.0)));
                }
                State::Lost { .. } if entry.session != session => {
                    before = Some(entry.die(Cause::Died, None, now));
                }
                _ => {}
            }
        } else if self.seats.len() >= SEATS_MAX {
            return Err(Error::exhausted(format!("more than {SEATS_MAX} members")));
        }
        self.seats.insert(seat, Entry { member, session, heard: now, state: State::Alive });
        Ok(before)
    }

    pub(crate) fn heard(&mut self, seat: &Seat, session: u64, now: Time) {
        if let Some(entry) = self.entry(seat, session) {
            entry.heard = now;
        }
    }

    /// Its connection broke.
    pub(crate) fn lost(&mut self, seat: &Seat, session: u64, now: Time) {
        if let Some(entry) = self.entry(seat, session)
            && entry.state == State::Alive
        {
            entry.state = State::Lost { since: now };
        }
    }

    pub(crate) fn leave(&mut self, seat: &Seat, session: u64) {
        if let Some(entry) = self.entry(seat, session)
            && !matches!(entry.state, State::Dead(_))
        {
            entry.state = State::Left;
        }
    }

    /// The launcher tells how a process ended.
    pub(crate) fn ended(
        &mut self,
        group: &str,
        member: Member,
        how: String,
        now: Time,
    ) -> Option<Notice> {
        let seat = (group.to_string(), member.rank);
        let entry = self.seats.entry(seat).or_insert_with(|| Entry {
            member: member.clone(),
            session: 0,
            heard: now,
            state: State::Alive,
        });
        match entry.state {
            State::Alive | State::Lost { .. } if entry.member.pid == member.pid => {
                Some(entry.die(Cause::Died, Some(how), now))
            }
            _ => None,
        }
    }

    /// Who has failed by now, with the groups to tell; and when to look again.
    pub(crate) fn tick(&mut self, now: Time) -> (Vec<(String, Notice)>, Option<Time>) {
        let ticked = self.ticked.replace(now).unwrap_or(now);
        for entry in self.seats.values_mut() {
            let silence = self.vigilance.silence;
            entry.heard = heard_while_running(entry.heard, ticked, now, silence);
            if let State::Lost { since } = &mut entry.state {
                *since = heard_while_running(*since, ticked, now, silence);
            }
        }
        let mut notices = Vec::new();
        let mut next: Option<Time> = None;
        for ((group, _), entry) in &mut self.seats {
            let (cause, due) = match entry.state {
                State::Alive => (Cause::Silent, entry.heard.plus(self.vigilance.silence)),
                State::Lost { since } => (Cause::Died, since.plus(self.vigilance.grace)),
                State::Left | State::Dead(_) => continue,
            };
            if due <= now {
                notices.push((group.clone(), entry.die(cause, None, now)));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        (notices, next)
    }

    /// Failures that a newcomer of the group has missed.
    pub(crate) fn notices(&self, group: &str) -> Vec<Notice> {
        let entries = self.seats.range((group.to_string(), 0)..);
        entries
            .take_while(|((other, _), _)| other == group)
            .filter_map(|(_, entry)| match &entry.state {
                State::Dead(notice) => Some(notice.clone()),
                _ => None,
            })
            .collect()
    }

    fn entry(&mut self, seat: &Seat, session: u64) -> Option<&mut Entry> {
        self.seats.get_mut(seat).filter(|entry| entry.session == session)
    }
}

/// The time of the last sign of life, without the time in which this process itself did not run: it
/// was stopped, and what the others sent meanwhile is still to be read. A process that runs looks
/// at its clock once a beat; `looked` is its last look.
pub(crate) fn heard_while_running(heard: Time, looked: Time, now: Time, silence: Duration) -> Time {
    let gap = now.since(looked);
    // A shorter one is no silence, also where it is load that makes looks late.
    match gap >= silence / 2 {
        true => heard.plus(gap).min(now),
        false => heard,
    }
}

impl Entry {
    fn die(&mut self, cause: Cause, how: Option<String>, now: Time) -> Notice {
        let last_heartbeat = now.since(self.heard);
        let notice = Notice { member: self.member.clone(), cause, how, last_heartbeat };
        self.state = State::Dead(notice.clone());
        notice
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(rank: usize, pid: u32) -> Member {
        Member { rank, host: "a".into(), host_id: "a".into(), pid }
    }

    fn at(ms: u64) -> Time {
        Time::from_nanos(ms * 1_000_000)
    }

    fn seat(rank: usize) -> Seat {
        ("g".to_string(), rank)
    }

    fn registry() -> Registry {
        let mut registry = Registry::new(Vigilance::default());
        for rank in 0..2 {
            registry.join(seat(rank), member(rank, 10), 7, at(0)).unwrap();
        }
        registry
    }

    #[test]
    fn a_lost_connection_is_a_death_after_the_grace() {
        let mut registry = registry();
        registry.heard(&seat(0), 7, at(400));
        registry.lost(&seat(0), 7, at(500));
        let (notices, next) = registry.tick(at(600));
        assert_eq!((notices.len(), next), (0, Some(at(1500))));
        let (notices, _) = registry.tick(at(1500));
        assert_eq!(notices[0].1.cause, Cause::Died);
        assert_eq!(notices[0].1.last_heartbeat, Duration::from_millis(1100));
        assert!(registry.tick(at(1600)).0.is_empty(), "told once");
        assert_eq!(registry.notices("g").len(), 1);
        assert!(registry.notices("h").is_empty());
        assert!(registry.join(seat(0), member(0, 10), 7, at(1700)).is_err(), "no comeback");
        assert_eq!(registry.join(seat(0), member(0, 11), 8, at(1700)).unwrap(), None);
    }

    #[test]
    fn a_comeback_is_no_death() {
        let mut registry = registry();
        registry.lost(&seat(0), 7, at(500));
        assert_eq!(registry.join(seat(0), member(0, 10), 7, at(900)).unwrap(), None);
        assert!(registry.tick(at(3000)).0.is_empty());
    }

    #[test]
    fn silence() {
        let mut registry = registry();
        registry.heard(&seat(0), 7, at(20_000));
        let (notices, next) = registry.tick(at(30_000));
        assert_eq!((notices.len(), next), (1, Some(at(50_000))));
        let (_, notice) = &notices[0];
        assert_eq!((notice.member.rank, notice.cause), (1, Cause::Silent));
        assert_eq!(Notice::decode(&notice.encode()).unwrap(), *notice);
    }

    #[test]
    fn time_in_which_the_host_is_stopped_is_no_silence() {
        let mut registry = registry();
        registry.tick(at(500));
        // Its members were stopped with it, or what they sent is still to be read.
        let (notices, next) = registry.tick(at(60_000));
        assert_eq!((notices.len(), next), (0, Some(at(89_500))));
        registry.heard(&seat(0), 7, at(61_000));
        for second in 61..89 {
            assert!(registry.tick(at(second * 1000)).0.is_empty(), "after {second} s");
        }
        let (notices, _) = registry.tick(at(89_500));
        assert_eq!(notices.len(), 1, "one that does not run on is silent");
        assert_eq!(notices[0].1.member.rank, 1);
        // Nor is it a death where the connection broke in that time.
        registry.lost(&seat(0), 7, at(89_600));
        assert!(registry.tick(at(160_000)).0.is_empty());
        assert_eq!(registry.tick(at(161_000)).0[0].1.cause, Cause::Died);
    }

    #[test]
    fn the_launcher_knows_how() {
        let mut registry = registry();
        let how = || "killed by signal 9".to_string();
        assert!(registry.ended("g", member(0, 99), how(), at(5)).is_none(), "another process");
        let notice = registry.ended("g", member(0, 10), how(), at(5)).unwrap();
        assert!(notice.error().to_string().contains("rank 0 (host a, pid 10) died: killed by"));
        registry.leave(&seat(1), 7);
        assert!(registry.ended("g", member(1, 10), how(), at(5)).is_none(), "it had left");
        assert!(registry.ended("g", member(5, 10), how(), at(5)).is_some(), "it never came");
        assert!(registry.tick(at(100_000)).0.is_empty());
    }

    #[test]
    fn a_seat_is_for_one() {
        let mut registry = registry();
        let error = registry.join(seat(0), member(0, 12), 8, at(1)).unwrap_err();
        assert!(error.message().contains("rank 0 (host a, pid 10) has this seat"));
        registry.lost(&seat(0), 7, at(2));
        let before = registry.join(seat(0), member(0, 12), 8, at(3)).unwrap().unwrap();
        assert_eq!(before.member.pid, 10);
        registry.lost(&seat(0), 7, at(4));
        assert!(registry.tick(at(5000)).0.is_empty(), "news of the old one change nothing");
    }
}
