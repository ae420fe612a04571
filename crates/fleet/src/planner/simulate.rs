//! A simulator of steps: ranks run the steps of their lanes in order, wait for each other where
//! they communicate, and take the given times.
//!
//! A call on a ring takes place when all simulated members have arrived, and ends for all of them
//! at once. Ranks that are not simulated arrive when the simulated ones do.

use fleet_base::{Error, Result};

/// A step of a rank.
#[derive(Clone, Debug)]
pub struct TimedStep {
    /// The lane that runs the step; lane 0 computes.
    pub lane: usize,
    /// Other lanes to wait for, each with the number of its steps that must finish first.
    pub waits: Vec<(usize, usize)>,
    /// Duration, from the time when all members of the ring have arrived.
    pub seconds: f64,
    /// The ring on which the step communicates, as a position in [`Simulation::rings`].
    pub ring: Option<usize>,
    /// Whether the step sends a message to a single rank, or receives one.
    pub is_message: bool,
}

/// The steps of a rank, in the order of its program.
#[derive(Clone, Debug, Default)]
pub struct TimedRank {
    pub lane_count: usize,
    pub steps: Vec<TimedStep>,
}

/// Ranks that communicate with each other.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    pub ranks: Vec<TimedRank>,
    /// By ring: its members among `ranks`, as positions.
    pub rings: Vec<Vec<usize>>,
}

/// The times of a rank in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankTimes {
    /// End of the last step.
    pub end: f64,
    /// End of the last step of the compute lane.
    pub compute_end: f64,
    /// Time that the compute lane spends in steps that do not communicate.
    pub computes: f64,
    /// Time that the rank spends in calls, on all lanes.
    pub communicates: f64,
    /// Time that the compute lane waits for messages.
    pub waits: f64,
}

/// A lane during a simulation.
#[derive(Clone, Default)]
struct Lane {
    /// Its steps, as positions among those of the rank.
    steps: Vec<usize>,
    /// End of each finished step.
    ends: Vec<f64>,
    passes_messages: bool,
    has_arrived: bool,
}

/// The calls on a ring during a simulation.
#[derive(Clone, Default)]
struct Calls {
    /// By member: the arrivals, as (lane, time, seconds).
    arrivals: Vec<Vec<(usize, f64, f64)>>,
    done: usize,
}

impl Simulation {
    /// Returns the times of each rank. Fails if ranks wait for each other forever.
    pub fn run(&self) -> Result<Vec<RankTimes>> {
        let mut run = Run::new(self);
        while !run.is_done() {
            let mut has_changed = false;
            for rank in 0..self.ranks.len() {
                for lane in 0..run.lanes[rank].len() {
                    while run.advance(rank, lane) {
                        has_changed = true;
                    }
                }
            }
            for ring in 0..self.rings.len() {
                while run.meet(ring) {
                    has_changed = true;
                }
            }
            if !has_changed {
                return Err(Error::internal("the ranks of a predicted step wait for each other"));
            }
        }
        Ok(run.times)
    }
}

struct Run<'a> {
    simulation: &'a Simulation,
    lanes: Vec<Vec<Lane>>,
    calls: Vec<Calls>,
    times: Vec<RankTimes>,
}

impl<'a> Run<'a> {
    fn new(simulation: &'a Simulation) -> Run<'a> {
        let lanes = simulation.ranks.iter().map(|rank| {
            let mut lanes = vec![Lane::default(); rank.lane_count.max(1)];
            for (at, step) in rank.steps.iter().enumerate() {
                lanes[step.lane].steps.push(at);
                lanes[step.lane].passes_messages |= step.is_message;
            }
            lanes
        });
        let calls = simulation
            .rings
            .iter()
            .map(|members| Calls { arrivals: vec![Vec::new(); members.len()], done: 0 });
        Run {
            simulation,
            lanes: lanes.collect(),
            calls: calls.collect(),
            times: vec![RankTimes::default(); simulation.ranks.len()],
        }
    }

    fn is_done(&self) -> bool {
        self.lanes.iter().flatten().all(|lane| lane.ends.len() == lane.steps.len())
    }

    /// Makes the next step of a lane, or arrives at its call. Returns whether it could.
    fn advance(&mut self, rank: usize, lane: usize) -> bool {
        let own = &self.lanes[rank][lane];
        let Some(at) = own.steps.get(own.ends.len()).filter(|_| !own.has_arrived) else {
            return false;
        };
        let step = &self.simulation.ranks[rank].steps[*at];
        let free = own.ends.last().copied().unwrap_or(0.0);
        let (mut ready, mut message) = (free, free);
        for (other, count) in &step.waits {
            let other = &self.lanes[rank][*other];
            if other.ends.len() < *count {
                return false;
            }
            let end = count.checked_sub(1).map_or(0.0, |last| other.ends[last]);
            ready = ready.max(end);
            if other.passes_messages {
                message = message.max(end);
            }
        }
        if lane == 0 {
            self.times[rank].waits += message - free;
        }
        match step.ring {
            Some(ring) => {
                let members = &self.simulation.rings[ring];
                let Some(member) = members.iter().position(|it| *it == rank) else { return false };
                self.calls[ring].arrivals[member].push((lane, ready, step.seconds));
                self.lanes[rank][lane].has_arrived = true;
            }
            None => {
                if lane == 0 {
                    self.times[rank].computes += step.seconds;
                }
                self.finish(rank, lane, ready + step.seconds);
            }
        }
        true
    }

    /// Makes the next call on a ring, if all members have arrived.
    fn meet(&mut self, ring: usize) -> bool {
        let calls = &self.calls[ring];
        let next = calls.done;
        let arrived: Option<Vec<(usize, f64, f64)>> =
            calls.arrivals.iter().map(|arrivals| arrivals.get(next).copied()).collect();
        let Some(arrived) = arrived.filter(|arrived| !arrived.is_empty()) else { return false };
        let begin = arrived.iter().map(|(_, time, _)| *time).fold(0.0, f64::max);
        let took = arrived.iter().map(|(.., seconds)| *seconds).fold(0.0, f64::max);
        self.calls[ring].done += 1;
        for (member, (lane, ..)) in arrived.into_iter().enumerate() {
            let rank = self.simulation.rings[ring][member];
            self.times[rank].communicates += took;
            self.lanes[rank][lane].has_arrived = false;
            self.finish(rank, lane, begin + took);
        }
        true
    }

    fn finish(&mut self, rank: usize, lane: usize, end: f64) {
        self.lanes[rank][lane].ends.push(end);
        let times = &mut self.times[rank];
        times.end = times.end.max(end);
        if lane == 0 {
            times.compute_end = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(lane: usize, seconds: f64, waits: &[(usize, usize)], ring: Option<usize>) -> TimedStep {
        TimedStep { lane, seconds, waits: waits.to_vec(), ring, is_message: ring.is_some() }
    }

    fn rank(steps: Vec<TimedStep>) -> TimedRank {
        TimedRank { lane_count: 2, steps }
    }

    #[test]
    fn communication_overlaps_compute() {
        let steps = vec![
            step(0, 1.0, &[], None),
            step(1, 3.0, &[(0, 1)], Some(0)),
            step(0, 2.0, &[], None),
            step(0, 1.0, &[(1, 1)], None),
        ];
        let times = Simulation { ranks: vec![rank(steps)], rings: vec![vec![0]] }.run().unwrap();
        let expected =
            RankTimes { end: 5.0, compute_end: 5.0, computes: 4.0, communicates: 3.0, waits: 1.0 };
        assert_eq!(times, [expected]);
    }

    #[test]
    fn a_call_waits_for_all_members() {
        let early = vec![step(1, 2.0, &[], Some(0)), step(0, 1.0, &[(1, 1)], None)];
        let late = vec![step(0, 5.0, &[], None), step(1, 2.0, &[(0, 1)], Some(0))];
        let simulation =
            Simulation { ranks: vec![rank(early), rank(late)], rings: vec![vec![0, 1]] };
        let times = simulation.run().unwrap();
        assert_eq!(times.iter().map(|it| it.end).collect::<Vec<_>>(), [8.0, 7.0]);
        assert_eq!((times[0].waits, times[1].waits), (7.0, 0.0));
    }

    #[test]
    fn ranks_that_wait_for_each_other_are_an_error() {
        let crossed = |first, second| {
            rank(vec![step(0, 1.0, &[], Some(first)), step(0, 1.0, &[], Some(second))])
        };
        let rings = vec![vec![0, 1], vec![0, 1]];
        let simulation = Simulation { ranks: vec![crossed(0, 1), crossed(1, 0)], rings };
        assert!(simulation.run().is_err());
    }
}
