//! Liveness of members, on the host of the store: a table and a clock, without sockets.
//!
//! A process is **lost** when its connection breaks. It is dead when it does not reconnect within
//! the grace period, or when the launcher reports its end. It is **unresponsive** when the
//! connection is open but nothing has arrived for too long. A process that has left is not
//! monitored.

use crate::wire::{Reader, Writer};
use crate::{Member, Time};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time limits of failure detection. The host of the store sets them for all members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vigilance {
    /// Interval between heartbeats.
    pub beat: Duration,
    /// Time without a heartbeat after which a member has failed: stopped, or unreachable.
    pub silence: Duration,
    /// Grace period to reconnect after a connection breaks. After it, the process is dead.
    pub grace: Duration,
}

impl Default for Vigilance {
    /// Detects a death about 1 s after it, and silence after 30 s.
    fn default() -> Vigilance {
        Vigilance {
            beat: Duration::from_secs(1),
            silence: Duration::from_secs(30),
            grace: Duration::from_secs(1),
        }
    }
}

/// Why a member has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureCause {
    /// The process has died.
    Died,
    /// The process sends no heartbeats, but its connection is open.
    Unresponsive,
    /// The host of the store is dead or unresponsive, and cannot report failures of other members.
    StoreLost,
}

/// Notification to all members that one has failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureNotice {
    /// The failed process.
    pub member: Member,
    /// How it failed.
    pub cause: FailureCause,
    /// The exit code or signal, if the launcher reported it. For an unresponsive process: the fact
    /// that it is stopped, if the receiver runs on the same machine.
    pub detail: Option<String>,
    /// Time from the last heartbeat to the notice.
    pub last_heartbeat: Duration,
}

impl FailureNotice {
    /// The notice as an error, to fire an [`crate::Abort`] with.
    pub fn error(&self) -> Error {
        match self.cause {
            FailureCause::StoreLost => self.described(),
            FailureCause::Died | FailureCause::Unresponsive => {
                self.described().caused_by(self.member.rank)
            }
        }
    }

    fn described(&self) -> Error {
        let ago = self.last_heartbeat.as_secs_f64();
        match self.cause {
            FailureCause::Died => {
                let detail =
                    self.detail.as_deref().unwrap_or("cause unknown: its connection closed");
                let error = Error::unavailable(format!(
                    "{} died: {detail}; last heartbeat {ago:.1} s ago",
                    self.member
                ));
                match self.detail {
                    Some(_) => error,
                    None => error.help("see the last lines of its log"),
                }
            }
            FailureCause::Unresponsive => {
                let text = format!("{} has been unresponsive for {ago:.1} s", self.member);
                match self.detail.as_deref() {
                    Some(detail) => Error::unavailable(format!("{text}: {detail}"))
                        .help(format!("resume it with kill -CONT {}", self.member.pid)),
                    None => Error::unavailable(format!(
                        "{text}: the process is stopped or its host is unreachable"
                    )),
                }
            }
            FailureCause::StoreLost => Error::unavailable(format!(
                "the host of the store is lost: {}; last heartbeat {ago:.1} s ago",
                self.detail.as_deref().unwrap_or("no answer")
            )),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let writer = Writer::new()
            .u8(match self.cause {
                FailureCause::Died => 1,
                FailureCause::Unresponsive => 2,
                FailureCause::StoreLost => 3,
            })
            .option(self.detail.as_deref().map(str::as_bytes))
            .u64(self.last_heartbeat.as_millis() as u64);
        put_member(writer, &self.member).0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<FailureNotice> {
        let mut reader = Reader::new(bytes);
        let cause = match reader.u8()? {
            1 => FailureCause::Died,
            2 => FailureCause::Unresponsive,
            3 => FailureCause::StoreLost,
            other => return Err(Error::unavailable("unknown kind of failure notice").got(other)),
        };
        let detail = reader.option()?.map(|detail| String::from_utf8_lossy(detail).into_owned());
        let last_heartbeat = Duration::from_millis(reader.u64()?);
        let member = take_member(&mut reader)?;
        reader.end()?;
        Ok(FailureNotice { member, cause, detail, last_heartbeat })
    }
}

pub(crate) fn put_member(writer: Writer, member: &Member) -> Writer {
    writer.u64(member.rank as u64).u32(member.pid).text(&member.host).text(&member.host_id)
}

pub(crate) fn take_member(reader: &mut Reader<'_>) -> Result<Member> {
    let (rank, pid) = (reader.u64()?, reader.u32()?);
    let rank =
        usize::try_from(rank).map_err(|_| Error::unavailable("rank out of range").got(rank))?;
    let (host, host_id) = (reader.text()?.to_string(), reader.text()?.to_string());
    Ok(Member { rank, host, host_id, pid })
}

/// A rank in a group, which is one attempt of a job. If one member of a group fails, all end.
pub(crate) type MemberId = (String, usize);

pub(crate) struct Registry {
    vigilance: Vigilance,
    members: BTreeMap<MemberId, Entry>,
    /// Time of the last check.
    checked: Option<Time>,
}

struct Entry {
    member: Member,
    /// Random number of the process. It distinguishes a reconnection from a new process.
    session: u64,
    last_heartbeat: Time,
    state: State,
}

#[derive(Clone, PartialEq, Eq)]
enum State {
    Alive,
    Lost { since: Time },
    Left,
    Dead(FailureNotice),
}

/// More than any job has.
const MEMBERS_MAX: usize = 1 << 20;

impl Registry {
    pub(crate) fn new(vigilance: Vigilance) -> Registry {
        Registry { vigilance, members: BTreeMap::new(), checked: None }
    }

    /// Joins as a member, for the first time or again. If another process had this rank and was
    /// lost, its death is now certain, and its notice is returned.
    pub(crate) fn join(
        &mut self,
        id: MemberId,
        member: Member,
        session: u64,
        now: Time,
    ) -> Result<Option<FailureNotice>> {
        let mut before = None;
        if let Some(entry) = self.members.get_mut(&id) {
            match &entry.state {
                State::Dead(notice) if entry.session == session => {
                    return Err(notice
                        .error()
                        .at("the host of the store: this process was declared dead"));
                }
                State::Alive if entry.session != session => {
                    return Err(Error::unavailable(format!(
                        "rank is already in use by {}",
                        entry.member
                    ))
                    .at(format!("{member} joining group '{}'", id.0)));
                }
                State::Lost { .. } if entry.session != session => {
                    before = Some(entry.mark_dead(FailureCause::Died, None, now));
                }
                _ => {}
            }
        } else if self.members.len() > MEMBERS_MAX {
            return Err(Error::exhausted(format!("more than {MEMBERS_MAX} members")));
        }
        self.members
            .insert(id, Entry { member, session, last_heartbeat: now, state: State::Alive });
        Ok(before)
    }

    pub(crate) fn heartbeat(&mut self, id: &MemberId, session: u64, now: Time) {
        if let Some(entry) = self.entry(id, session) {
            entry.last_heartbeat = now;
        }
    }

    /// Records that the member's connection broke.
    pub(crate) fn connection_lost(&mut self, id: &MemberId, session: u64, now: Time) {
        if let Some(entry) = self.entry(id, session)
            && entry.state == State::Alive
        {
            entry.state = State::Lost { since: now };
        }
    }

    pub(crate) fn leave(&mut self, id: &MemberId, session: u64) {
        if let Some(entry) = self.entry(id, session)
            && !matches!(entry.state, State::Dead(_))
        {
            entry.state = State::Left;
        }
    }

    /// Records how a process ended, as reported by the launcher.
    pub(crate) fn exited(
        &mut self,
        group: &str,
        member: Member,
        detail: String,
        now: Time,
    ) -> Option<FailureNotice> {
        let id = (group.to_string(), member.rank);
        let entry = self.members.entry(id).or_insert_with(|| Entry {
            member: member.clone(),
            session: 0,
            last_heartbeat: now,
            state: State::Alive,
        });
        match entry.state {
            State::Alive | State::Lost { .. } if entry.member.pid == member.pid => {
                Some(entry.mark_dead(FailureCause::Died, Some(detail), now))
            }
            _ => None,
        }
    }

    /// Returns members that have failed by now, with their groups, and the time of the next check.
    pub(crate) fn check(&mut self, now: Time) -> (Vec<(String, FailureNotice)>, Option<Time>) {
        let checked = self.checked.replace(now).unwrap_or(now);
        for entry in self.members.values_mut() {
            let silence = self.vigilance.silence;
            entry.last_heartbeat = heard_while_running(entry.last_heartbeat, checked, now, silence);
            if let State::Lost { since } = &mut entry.state {
                *since = heard_while_running(*since, checked, now, silence);
            }
        }
        let mut notices = Vec::new();
        let mut next: Option<Time> = None;
        for ((group, _), entry) in &mut self.members {
            let (cause, due) = match entry.state {
                State::Alive => {
                    (FailureCause::Unresponsive, entry.last_heartbeat.plus(self.vigilance.silence))
                }
                State::Lost { since } => (FailureCause::Died, since.plus(self.vigilance.grace)),
                State::Left | State::Dead(_) => continue,
            };
            if due <= now {
                notices.push((group.clone(), entry.mark_dead(cause, None, now)));
            } else {
                next = Some(next.map_or(due, |next| next.min(due)));
            }
        }
        (notices, next)
    }

    /// Earlier failures in the group, for a member that has just joined.
    pub(crate) fn notices(&self, group: &str) -> Vec<FailureNotice> {
        let entries = self.members.range((group.to_string(), 0)..);
        entries
            .take_while(|((other, _), _)| other == group)
            .filter_map(|(_, entry)| match &entry.state {
                State::Dead(notice) => Some(notice.clone()),
                _ => None,
            })
            .collect()
    }

    fn entry(&mut self, id: &MemberId, session: u64) -> Option<&mut Entry> {
        self.members.get_mut(id).filter(|entry| entry.session == session)
    }
}

/// Returns the time of a member's last heartbeat, moved forward by a gap in which this process
/// itself did not run. After SIGSTOP, heartbeats that arrived meanwhile have not been read yet. A
/// running process checks its clock once per heartbeat interval; `checked` is the last check.
pub(crate) fn heard_while_running(
    heard: Time,
    checked: Time,
    now: Time,
    silence: Duration,
) -> Time {
    let gap = now.since(checked);
    // Shorter gaps are due to load and cannot cause a timeout.
    match gap >= silence / 2 {
        true => heard.plus(gap).min(now),
        false => heard,
    }
}

impl Entry {
    fn mark_dead(
        &mut self,
        cause: FailureCause,
        detail: Option<String>,
        now: Time,
    ) -> FailureNotice {
        let last_heartbeat = now.since(self.last_heartbeat);
        let notice = FailureNotice { member: self.member.clone(), cause, detail, last_heartbeat };
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

    fn id(rank: usize) -> MemberId {
        ("g".to_string(), rank)
    }

    fn registry() -> Registry {
        let mut registry = Registry::new(Vigilance::default());
        for rank in 0..2 {
            registry.join(id(rank), member(rank, 10), 7, at(0)).unwrap();
        }
        registry
    }

    #[test]
    fn a_lost_connection_is_a_death_after_the_grace() {
        let mut registry = registry();
        registry.heartbeat(&id(0), 7, at(400));
        registry.connection_lost(&id(0), 7, at(500));
        let (notices, next) = registry.check(at(600));
        assert_eq!((notices.len(), next), (0, Some(at(1500))));
        let (notices, _) = registry.check(at(1500));
        assert_eq!(notices[0].1.cause, FailureCause::Died);
        assert_eq!(notices[0].1.last_heartbeat, Duration::from_millis(1100));
        assert!(registry.check(at(1600)).0.is_empty(), "reported once");
        assert_eq!(registry.notices("g").len(), 1);
        assert!(registry.notices("h").is_empty());
        assert!(
            registry.join(id(0), member(0, 10), 7, at(1700)).is_err(),
            "a dead member cannot reconnect"
        );
        assert_eq!(registry.join(id(0), member(0, 11), 8, at(1700)).unwrap(), None);
    }

    #[test]
    fn a_comeback_is_no_death() {
        let mut registry = registry();
        registry.connection_lost(&id(0), 7, at(500));
        assert_eq!(registry.join(id(0), member(0, 10), 7, at(900)).unwrap(), None);
        assert!(registry.check(at(3000)).0.is_empty());
    }

    #[test]
    fn silence() {
        let mut registry = registry();
        registry.heartbeat(&id(0), 7, at(20_000));
        let (notices, next) = registry.check(at(30_000));
        assert_eq!((notices.len(), next), (1, Some(at(50_000))));
        let (_, notice) = &notices[0];
        assert_eq!((notice.member.rank, notice.cause), (1, FailureCause::Unresponsive));
        assert_eq!(FailureNotice::decode(&notice.encode()).unwrap(), *notice);
    }

    #[test]
    fn time_in_which_the_host_is_stopped_is_no_silence() {
        let mut registry = registry();
        registry.check(at(500));
        // Its members were stopped, too, or their heartbeats have not been read yet.
        let (notices, next) = registry.check(at(60_000));
        assert_eq!((notices.len(), next), (0, Some(at(89_500))));
        registry.heartbeat(&id(0), 7, at(61_000));
        for second in 61..89 {
            assert!(registry.check(at(second * 1000)).0.is_empty(), "after {second} s");
        }
        let (notices, _) = registry.check(at(89_500));
        assert_eq!(notices.len(), 1, "a member that sends nothing afterwards is silent");
        assert_eq!(notices[0].1.member.rank, 1);
        // A connection that broke during the stop is not a death, either.
        registry.connection_lost(&id(0), 7, at(89_600));
        assert!(registry.check(at(160_000)).0.is_empty());
        assert_eq!(registry.check(at(161_000)).0[0].1.cause, FailureCause::Died);
    }

    #[test]
    fn the_launcher_knows_how() {
        let mut registry = registry();
        let detail = || "killed by signal 9".to_string();
        assert!(registry.exited("g", member(0, 99), detail(), at(5)).is_none(), "another process");
        let notice = registry.exited("g", member(0, 10), detail(), at(5)).unwrap();
        assert!(notice.error().to_string().contains("rank 0 (host a, pid 10) died: killed by"));
        registry.leave(&id(1), 7);
        assert!(registry.exited("g", member(1, 10), detail(), at(5)).is_none(), "it had left");
        assert!(registry.exited("g", member(5, 10), detail(), at(5)).is_some(), "it never joined");
        assert!(registry.check(at(100_000)).0.is_empty());
    }

    #[test]
    fn a_seat_is_for_one() {
        let mut registry = registry();
        let error = registry.join(id(0), member(0, 12), 8, at(1)).unwrap_err();
        assert!(error.message().contains("already in use by rank 0 (host a, pid 10)"));
        registry.connection_lost(&id(0), 7, at(2));
        let before = registry.join(id(0), member(0, 12), 8, at(3)).unwrap().unwrap();
        assert_eq!(before.member.pid, 10);
        registry.connection_lost(&id(0), 7, at(4));
        assert!(registry.check(at(5000)).0.is_empty(), "events of the old process change nothing");
    }
}
