//! Heartbeats of machines, on a clock that does not advance while this process is stopped.

use fleet_net::Time;
use std::collections::HashMap;
use std::time::Duration;

/// The last beat of each machine.
pub(crate) struct Beats {
    /// The number and the time of its arrival; the time is `None` until a beat counts.
    last: HashMap<String, (u64, Option<Time>)>,
    clock: StoppedClock,
}

impl Beats {
    pub(crate) fn new(now: Time) -> Beats {
        Beats { last: HashMap::new(), clock: StoppedClock::new(now) }
    }

    /// Checks the clock and returns how long this process was stopped, if it was. No beats could be
    /// received in that time, so it is added to all arrival times.
    pub(crate) fn look(&mut self, now: Time) -> Option<Duration> {
        let gap = self.clock.look(now)?;
        for (_, at) in self.last.values_mut() {
            *at = at.map(|at| at.plus(gap).min(now));
        }
        Some(gap)
    }

    /// Records the beat of a machine. A machine that `counts` is alive from its first beat on, any
    /// other from its second one.
    pub(crate) fn hear(&mut self, id: String, number: u64, counts: bool, now: Time) {
        let fresh = || (number, counts.then_some(now));
        let last = self.last.entry(id).or_insert_with(fresh);
        if last.0 != number {
            *last = (number, Some(now));
        }
    }

    /// Returns the time of a machine's last beat.
    pub(crate) fn heard(&self, id: &str) -> Option<Time> {
        self.last.get(id)?.1
    }
}

/// Detects that this process did not run for a while: it was stopped, or the machine slept.
pub(crate) struct StoppedClock {
    looked: Time,
}

impl StoppedClock {
    pub(crate) fn new(now: Time) -> StoppedClock {
        StoppedClock { looked: now }
    }

    /// Returns the time since the last call if it is longer than a running process can take.
    pub(crate) fn look(&mut self, now: Time) -> Option<Duration> {
        let gap = now.since(std::mem::replace(&mut self.looked, now));
        Some(gap).filter(|gap| *gap >= STOPPED_MIN)
    }
}

/// Shortest gap that means a stop. Loops that check the clock never wait this long, even for a
/// store that does not answer.
const STOPPED_MIN: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_of_this_process_is_no_silence_of_others() {
        let at = |seconds: u64| Time::default().plus(Duration::from_secs(seconds));
        let mut beats = Beats::new(at(0));
        let silent =
            |beats: &Beats, now: u64| beats.heard("a").map(|heard| at(now).since(heard).as_secs());
        beats.hear("a".into(), 1, true, at(1));
        assert_eq!((beats.look(at(3)), silent(&beats, 3)), (None, Some(2)));
        assert_eq!(beats.look(at(53)), Some(Duration::from_secs(50)));
        assert_eq!(silent(&beats, 53), Some(2), "the stop does not count");
        // A beat with the same number does not count, so the silence continues.
        beats.hear("a".into(), 1, true, at(57));
        assert_eq!((beats.look(at(57)), silent(&beats, 57)), (None, Some(6)));
        beats.hear("a".into(), 2, true, at(58));
        assert_eq!(silent(&beats, 58), Some(0));
    }

    #[test]
    fn a_machine_that_does_not_count_is_alive_from_its_second_beat_on() {
        let now = Time::default();
        let mut beats = Beats::new(now);
        beats.hear("a".into(), 1, false, now);
        assert_eq!(beats.heard("a"), None);
        beats.hear("a".into(), 2, false, now);
        assert_eq!(beats.heard("a"), Some(now));
    }
}
