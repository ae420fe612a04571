//! The order in which a stage runs its parts of the program for the micro-batches of a step.
//!
//! * F-then-B: the forward passes of all micro-batches, then their backward passes.
//! * 1F1B: as many forward passes as there are later stages, then one forward and one backward pass
//!   in turn, then the remaining backward passes. A stage holds the activations of as many
//!   micro-batches as there are stages from it to the last one, whatever their number.
//! * ZBH1: 1F1B in which stage `s` computes the gradients of its weights `s` micro-batches later,
//!   so that earlier stages wait less for its other gradients. Every stage then holds activations
//!   of as many micro-batches as there are stages.
//! * With virtual stages (interleaved): stage `s` of `S` runs the parts `s`, `S + s`, `2 S + s` ...
//!   Micro-batches take their turns in groups of `S`, which pass through all parts of a stage.
//!
//! Values between two stages are sent in the order of the sender's passes, and received in the
//! order of the receiver's. Both are the same, because all stages take micro-batches and parts in
//! the same order in each direction.

use crate::pipeline::Size;

/// A direction through the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Pass {
    Forward,
    /// The backward pass, up to the gradients that other parts need.
    Backward,
    /// The rest of a backward pass: the gradients of weights.
    Weights,
}

/// One pass of one part of the program for one micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Unit {
    pub pass: Pass,
    pub part: usize,
    pub micro: usize,
}

/// An order of the passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    OneForwardOneBackward,
    ForwardThenBackward,
    ZeroBubble,
}

impl Schedule {
    /// Returns the passes of a stage in the order in which it runs them.
    pub fn units(self, size: Size, stage: usize) -> Vec<Unit> {
        let forward = passes(size, stage, Pass::Forward);
        let backward = passes(size, stage, Pass::Backward);
        let first = match self {
            Schedule::ForwardThenBackward => forward.len(),
            Schedule::OneForwardOneBackward | Schedule::ZeroBubble => {
                first_forwards(size, stage).min(forward.len())
            }
        };
        // The number of micro-batches whose gradients of weights wait.
        let waiting_max = if self == Schedule::ZeroBubble { stage } else { 0 };
        let mut units = forward[..first].to_vec();
        let mut weights = backward.iter().map(|unit| Unit { pass: Pass::Weights, ..*unit });
        for (at, unit) in backward.iter().enumerate() {
            units.extend(forward.get(first + at));
            units.push(*unit);
            if at >= waiting_max {
                units.extend(weights.next());
            }
        }
        units.extend(weights);
        units
    }
}

/// Returns the passes of a stage in one direction: micro-batches in groups of as many as there are
/// stages, and each group through all parts.
fn passes(size: Size, stage: usize, pass: Pass) -> Vec<Unit> {
    let mut parts: Vec<usize> = size.parts_of(stage).collect();
    if pass == Pass::Backward {
        parts.reverse();
    }
    // A single part takes all micro-batches in order.
    let group = if parts.len() == 1 { size.micros } else { size.stages };
    let mut units = Vec::with_capacity(parts.len() * size.micros);
    for first in (0..size.micros).step_by(group.max(1)) {
        for part in &parts {
            let micros = first..(first + group).min(size.micros);
            units.extend(micros.map(|micro| Unit { pass, part: *part, micro }));
        }
    }
    units
}

/// Returns the number of forward passes before the first backward pass of 1F1B.
fn first_forwards(size: Size, stage: usize) -> usize {
    let later = size.stages - 1 - stage;
    match size.virtual_stages() {
        1 => later,
        // The first micro-batches reach the last part after they have passed all others, and a
        // gradient needs as many passes to return.
        several => 2 * later + (several - 1) * size.stages,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    const SCHEDULES: [Schedule; 3] =
        [Schedule::OneForwardOneBackward, Schedule::ForwardThenBackward, Schedule::ZeroBubble];

    /// Returns the units in order. `B` is a backward pass with gradients of weights at once.
    fn text(units: &[Unit]) -> String {
        let mut text = String::new();
        for unit in units {
            let Unit { pass, part, micro } = unit;
            let pass = match pass {
                Pass::Forward => 'F',
                Pass::Backward => 'I',
                Pass::Weights => 'W',
            };
            text += &format!("{pass}{part}.{micro} ");
            let whole = [format!("I{part}.{micro} W{part}.{micro} "), format!("B{part}.{micro} ")];
            text = text.replace(&whole[0], &whole[1]);
        }
        text.trim_end().to_string()
    }

    #[test]
    fn documented_orders() {
        let size = Size { stages: 3, parts: 3, micros: 4 };
        let check = |schedule: Schedule, size: Size, stage: usize, expected: &str| {
            assert_eq!(text(&schedule.units(size, stage)), expected);
        };
        use Schedule::*;
        check(OneForwardOneBackward, size, 0, "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3");
        check(OneForwardOneBackward, size, 1, "F1.0 F1.1 B1.0 F1.2 B1.1 F1.3 B1.2 B1.3");
        check(OneForwardOneBackward, size, 2, "F2.0 B2.0 F2.1 B2.1 F2.2 B2.2 F2.3 B2.3");
        check(ForwardThenBackward, size, 1, "F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3");
        check(ZeroBubble, size, 0, "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 B0.2 B0.3");
        let later = "F2.0 I2.0 F2.1 I2.1 F2.2 I2.2 W2.0 F2.3 I2.3 W2.1 W2.2 W2.3";
        check(ZeroBubble, size, 2, later);
        let one = Size { micros: 1, ..size };
        check(OneForwardOneBackward, one, 0, "F0.0 B0.0");
        let two = Size { stages: 2, parts: 4, micros: 2 };
        check(OneForwardOneBackward, two, 0, "F0.0 F0.1 F2.0 F2.1 B2.0 B2.1 B0.0 B0.1");
        check(OneForwardOneBackward, two, 1, "F1.0 F1.1 F3.0 B3.0 F3.1 B3.1 B1.0 B1.1");
    }

    /// A stage of 1F1B holds the activations of as many micro-batches as there are stages from it
    /// on, and with ZBH1 of as many as there are stages.
    #[test]
    fn activations_are_bounded_by_the_number_of_stages() {
        use Schedule::{OneForwardOneBackward, ZeroBubble};
        for stages in 1..6 {
            for micros in [1, 2, 7, 64] {
                let size = Size { stages, parts: stages, micros };
                for stage in 0..stages {
                    let bounds = [(OneForwardOneBackward, stages - stage), (ZeroBubble, stages)];
                    for (schedule, bound) in bounds {
                        let (mut held, mut most) = (0usize, 0);
                        for unit in schedule.units(size, stage) {
                            match unit.pass {
                                Pass::Forward => held += 1,
                                Pass::Backward => {}
                                Pass::Weights => held -= 1,
                            }
                            most = most.max(held);
                        }
                        assert_eq!(most, bound.min(micros), "{schedule:?}, stage {stage}");
                    }
                }
            }
        }
    }

    /// A message between two ranks: a unit's values go to the next part, or gradients to the one
    /// before.
    fn message(size: Size, unit: Unit) -> Option<(Pass, usize, usize)> {
        let from = size.stage_of(unit.part);
        match unit.pass {
            Pass::Forward if unit.part + 1 < size.parts => {
                Some((unit.pass, from, size.stage_of(unit.part + 1)))
            }
            Pass::Backward if unit.part > 0 => {
                Some((unit.pass, from, size.stage_of(unit.part - 1)))
            }
            _ => None,
        }
    }

    /// Returns the unit whose values a unit receives.
    fn source(size: Size, unit: Unit) -> Option<Unit> {
        match unit.pass {
            Pass::Forward => unit.part.checked_sub(1).map(|part| Unit { part, ..unit }),
            Pass::Backward if unit.part + 1 < size.parts => {
                Some(Unit { part: unit.part + 1, ..unit })
            }
            Pass::Backward | Pass::Weights => None,
        }
    }

    /// One rank of the simulation.
    struct Rank {
        units: Vec<Unit>,
        /// Number of units that have run.
        done: usize,
    }

    /// A ring: the units whose values are sent and received over it, in order, with their positions
    /// among the units of their rank, and the number of messages that have arrived.
    #[derive(Default)]
    struct Ring {
        sent: Vec<(Unit, usize)>,
        received: Vec<(Unit, usize)>,
        arrived: usize,
    }

    /// Runs all ranks as slowly as the executor may make them. A message passes only while both
    /// ranks take part. A value is received at most one pass ahead of its use, and when all units
    /// before that have run. Before a unit starts or a value is received, all messages but the last
    /// one on each ring have passed, because their memory is used again.
    fn check_that_it_ends(schedule: Schedule, size: Size) {
        let what = format!("{schedule:?}, {size:?}");
        let mut ranks: Vec<Rank> = (0..size.stages)
            .map(|stage| Rank { units: schedule.units(size, stage), done: 0 })
            .collect();
        let mut rings: HashMap<(Pass, usize, usize), Ring> = HashMap::new();
        // The units from which on values are received.
        let mut begins: HashMap<(usize, Unit), usize> = HashMap::new();
        for (rank, its) in ranks.iter().enumerate() {
            let all: HashSet<Unit> = its.units.iter().copied().collect();
            assert_eq!(all.len(), 3 * size.micros * size.virtual_stages(), "{what}");
            let before = |at: usize| {
                let earlier = its.units[..at].iter().rposition(|unit| unit.pass != Pass::Weights);
                earlier.unwrap_or(at)
            };
            for (at, unit) in its.units.iter().enumerate() {
                if let Some(key) = message(size, *unit).filter(|(_, from, to)| from != to) {
                    rings.entry(key).or_default().sent.push((*unit, at));
                }
                let source = source(size, *unit).filter(|it| size.stage_of(it.part) != rank);
                if let Some(source) = source {
                    let key = (source.pass, size.stage_of(source.part), rank);
                    rings.entry(key).or_default().received.push((source, at));
                    begins.insert((rank, source), before(at));
                }
            }
        }
        for (key, ring) in &rings {
            let units = |list: &[(Unit, usize)]| list.iter().map(|it| it.0).collect::<Vec<_>>();
            assert_eq!(units(&ring.sent), units(&ring.received), "{what}: {key:?}");
        }
        loop {
            let mut has_changed = false;
            for rank in 0..size.stages {
                let at = ranks[rank].done;
                let is_free = |rings: &HashMap<(Pass, usize, usize), Ring>, rank: usize| {
                    let done = ranks[rank].done;
                    rings.iter().filter(|((_, from, _), _)| *from == rank).all(|(_, ring)| {
                        let begun = ring.sent.partition_point(|(_, at)| *at < done);
                        ring.arrived + 1 >= begun
                    })
                };
                let keys: Vec<_> = rings.keys().filter(|key| key.2 == rank).copied().collect();
                for key in keys {
                    let free = is_free(&rings, rank);
                    let ring = &rings[&key];
                    let next = ring.arrived;
                    let Some((source, _)) = ring.received.get(next) else { continue };
                    let is_sent = ring.sent[next].1 < ranks[key.1].done;
                    if free && is_sent && at >= begins[&(rank, *source)] {
                        rings.entry(key).or_default().arrived += 1;
                        has_changed = true;
                    }
                }
                let has_arrived = rings.iter().filter(|(key, _)| key.2 == rank).all(|(_, ring)| {
                    let due = ring.received.partition_point(|(_, used)| *used <= at);
                    ring.arrived >= due
                });
                if at < ranks[rank].units.len() && has_arrived && is_free(&rings, rank) {
                    ranks[rank].done += 1;
                    has_changed = true;
                }
            }
            if ranks.iter().all(|rank| rank.done == rank.units.len()) {
                return;
            }
            assert!(has_changed, "{what}: ranks wait for each other");
        }
    }

    #[test]
    fn no_schedule_deadlocks() {
        for schedule in SCHEDULES {
            for stages in 1..7 {
                for virtual_stages in 1..5 {
                    for micros in 1..14 {
                        // Micro-batches come in whole groups.
                        if virtual_stages > 1 && micros % stages != 0 {
                            continue;
                        }
                        let parts = stages * virtual_stages;
                        check_that_it_ends(schedule, Size { stages, parts, micros });
                    }
                }
            }
        }
    }
}
