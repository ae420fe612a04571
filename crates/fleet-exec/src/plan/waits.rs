//! Sixth phase: the waits between lanes. A step waits for all earlier steps of another lane that
//! access the same bytes, if either of the two writes. Waiting for the last of them covers the
//! others.
//!
//! The steps are visited in order. For each lane, two trees over the memory hold the last step that
//! reads each byte and the last one that writes it. A step asks and updates a tree once for each of
//! its places, in time logarithmic in the number of places.

use super::arena::Places;
use super::{Place, Step, StepKind};
use crate::tree::Tree;
use std::collections::BTreeSet;
use std::ops::Range;

/// Returns the waits of each step, in the form of [`Step::waits`].
pub(super) fn find(steps: &[Step], lane_count: usize, places: &Places) -> Vec<Vec<(usize, usize)>> {
    if lane_count < 2 {
        return vec![Vec::new(); steps.len()];
    }
    let spans = spans(&places.list, &places.bytes);
    let accesses: Vec<Access> = steps.iter().map(Access::of).collect();
    waits(&accesses, lane_count, &spans)
}

/// The places that a step reads and those that it writes.
struct Access {
    lane: usize,
    reads: Vec<usize>,
    writes: Vec<usize>,
}

impl Access {
    fn of(step: &Step) -> Access {
        let (reads, writes) = match &step.kind {
            StepKind::JumpUnless { condition, .. } => (vec![*condition], Vec::new()),
            StepKind::Run(instr) => {
                // An input of which only the shape is used may have left its memory to others.
                let args = instr.args.args().iter().zip(&instr.arg_places);
                let used = args.map(|(arg, places)| (!arg.is_hidden()).then_some(*places));
                let used: Vec<_> = used.collect();
                let list = |places: &[Option<(usize, Option<usize>)>]| {
                    let used = places.iter().flatten();
                    used.flat_map(|(values, rows)| [Some(*values), *rows]).flatten().collect()
                };
                let (inputs, outputs) = used.split_at(instr.args.input_count());
                (list(inputs), list(outputs))
            }
        };
        Access { lane: step.lane, reads, writes }
    }
}

/// Divides the memory into cells, so that each place covers a range of cells and two places share a
/// cell if and only if they share bytes. Returns the range of each place.
fn spans(places: &[Place], bytes: &[usize]) -> Vec<Range<usize>> {
    let in_arena = |place: &Place, bytes: usize| match place {
        Place::Arena { offset } if bytes > 0 => Some(*offset..*offset + bytes),
        _ => None,
    };
    let ranges: Vec<Option<Range<usize>>> =
        places.iter().zip(bytes).map(|(place, bytes)| in_arena(place, *bytes)).collect();
    let ends: BTreeSet<usize> =
        ranges.iter().flatten().flat_map(|range| [range.start, range.end]).collect();
    let ends: Vec<usize> = ends.into_iter().collect();
    let cell = |end: usize| ends.partition_point(|other| *other < end);
    // A place that is not in the arena, or empty, has a cell of its own.
    let mut next = ends.len();
    let span = |range: Option<Range<usize>>| match range {
        Some(range) => cell(range.start)..cell(range.end),
        None => {
            next += 1;
            next - 1..next
        }
    };
    ranges.into_iter().map(span).collect()
}

fn waits(
    accesses: &[Access],
    lane_count: usize,
    spans: &[Range<usize>],
) -> Vec<Vec<(usize, usize)>> {
    let cells = spans.iter().map(|span| span.end).max().unwrap_or(0);
    let empty = || -> Vec<LastUse> { (0..lane_count).map(|_| LastUse::new(cells)).collect() };
    let (mut last_reads, mut last_writes) = (empty(), empty());
    let mut done = vec![0; lane_count];
    let mut waits = Vec::with_capacity(accesses.len());
    for Access { lane, reads, writes } in accesses {
        let last_clash = |other: usize| {
            let after_writes =
                reads.iter().chain(writes).map(|at| last_writes[other].of(&spans[*at]));
            let after_reads = writes.iter().map(|at| last_reads[other].of(&spans[*at]));
            after_writes.chain(after_reads).max().unwrap_or(0)
        };
        let others = (0..lane_count).filter(|other| other != lane);
        let clashes = others.map(|other| (other, last_clash(other)));
        waits.push(clashes.filter(|(_, count)| *count > 0).collect());
        done[*lane] += 1;
        reads.iter().for_each(|at| last_reads[*lane].set(&spans[*at], done[*lane]));
        writes.iter().for_each(|at| last_writes[*lane].set(&spans[*at], done[*lane]));
    }
    waits
}

/// For each cell of the memory, the last step of a lane that uses it, as the number of steps that
/// the lane has finished then. Steps are added in order, so a new one is the maximum of every range
/// that contains it.
struct LastUse {
    tree: Tree,
    /// By node: the last step that uses any of its cells.
    any: Vec<usize>,
    /// By node: the last step that uses all of its cells.
    all: Vec<usize>,
}

impl LastUse {
    fn new(cells: usize) -> LastUse {
        let tree = Tree::new(cells);
        LastUse { any: vec![0; tree.node_count()], all: vec![0; tree.node_count()], tree }
    }

    /// Sets the last use of some cells to a step that is later than those set before.
    fn set(&mut self, cells: &Range<usize>, step: usize) {
        for node in self.tree.cover(cells) {
            self.any[node] = step;
            self.all[node] = step;
        }
        for node in self.tree.above(cells) {
            self.any[node] = step;
        }
    }

    /// Returns the last use of any of some cells; 0 if there is none.
    fn of(&self, cells: &Range<usize>) -> usize {
        let inside = self.tree.cover(cells).map(|node| self.any[node]);
        let around = self.tree.above(cells).map(|node| self.all[node]);
        inside.chain(around).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    /// The definition: compares each step with all earlier ones.
    fn by_definition(
        accesses: &[Access],
        lanes: usize,
        places: &[Place],
        bytes: &[usize],
    ) -> Vec<Vec<(usize, usize)>> {
        let clash = |a: &usize, b: &usize| match (places[*a], places[*b]) {
            (Place::Arena { offset: x }, Place::Arena { offset: y }) => {
                a == b || x < y + bytes[*b] && y < x + bytes[*a]
            }
            _ => a == b,
        };
        let any = |xs: &[usize], ys: &[usize]| xs.iter().any(|x| ys.iter().any(|y| clash(x, y)));
        let waits = |at: usize, lane: usize| {
            let now = &accesses[at];
            let earlier = accesses[..at].iter().filter(|earlier| earlier.lane == lane);
            let counted = earlier.zip(1..).filter(|(earlier, _)| {
                any(&now.writes, &earlier.writes)
                    || any(&now.writes, &earlier.reads)
                    || any(&now.reads, &earlier.writes)
            });
            counted.last().map(|(_, count)| (lane, count))
        };
        let of = |at: usize| {
            let others = (0..lanes).filter(|lane| *lane != accesses[at].lane);
            others.filter_map(|lane| waits(at, lane)).collect()
        };
        (0..accesses.len()).map(of).collect()
    }

    #[test]
    fn waits_equal_their_definition() {
        let mut rng = Sequence::new(11, 0);
        for _ in 0..300 {
            let count = 1 + rng.below(20) as usize;
            let mut bytes = Vec::new();
            let mut places = Vec::new();
            for index in 0..count {
                let size = rng.below(200) as usize;
                bytes.push(size);
                places.push(match rng.below(4) {
                    0 => Place::Scope { index },
                    // The packer places empty blocks at the start.
                    _ if size == 0 => Place::Arena { offset: 0 },
                    _ => Place::Arena { offset: 64 * rng.below(10) as usize },
                });
            }
            let lanes = 2 + rng.below(3) as usize;
            let mut some = |most: u64| -> Vec<usize> {
                (0..rng.below(most)).map(|_| rng.below(count as u64) as usize).collect()
            };
            let lists: Vec<_> = (0..60).map(|_| (some(4), some(3))).collect();
            let access =
                |(reads, writes)| Access { lane: rng.below(lanes as u64) as usize, reads, writes };
            let accesses: Vec<Access> = lists.into_iter().map(access).collect();
            let found = waits(&accesses, lanes, &spans(&places, &bytes));
            assert_eq!(found, by_definition(&accesses, lanes, &places, &bytes));
        }
    }

    #[test]
    fn places_share_cells_if_they_share_bytes() {
        let arena = |offset| Place::Arena { offset };
        let places =
            [arena(0), arena(64), arena(0), Place::Feed { index: 0 }, arena(0), arena(128)];
        let spans = spans(&places, &[128, 64, 64, 8, 0, 64]);
        let overlap =
            |a: usize, b: usize| spans[a].start < spans[b].end && spans[b].start < spans[a].end;
        assert!(overlap(0, 1) && overlap(0, 2) && !overlap(1, 2) && !overlap(0, 5));
        assert!((0..6).all(|at| at == 3 || !overlap(3, at)) && (0..4).all(|at| !overlap(4, at)));
    }
}
