//! Fourth phase: a place for each group of variables. Temporaries are packed in the arena by their
//! lifetimes; other variables live in the scope or are fed.

use super::infer::Inferred;
use super::lifetimes::Lifetimes;
use super::sharing::Groups;
use super::{FeedSlot, Place, ROWS_HEADER_BYTES, ScopeVar};
use crate::memory::{self, Block};
use crate::options::Memory;
use fleet_base::{Error, Result, SecondaryMap, text};
use fleet_ir::{VarId, VarKind};
use fleet_tensor::Arg;

/// Limit on the total size of all variables of a plan, in bytes: the 48-bit address space of
/// current processors.
const PLANNED_BYTES_MAX: usize = 1 << 48;

/// The memory of a plan's variables.
#[derive(Default)]
pub(super) struct Places {
    pub list: Vec<Place>,
    /// Size of each place.
    pub bytes: Vec<usize>,
    /// By variable: the place of its values, and the place of its row numbers.
    by_var: SecondaryMap<VarId, (usize, Option<usize>)>,
    pub scope_vars: Vec<ScopeVar>,
    pub feeds: Vec<FeedSlot>,
    /// Size of each allocation of [`Memory::Separate`].
    pub separate_bytes: Vec<usize>,
    pub arena: ArenaSize,
}

/// Sizes of temporaries, in bytes.
#[derive(Default)]
pub(super) struct ArenaSize {
    /// After packing.
    pub bytes: usize,
    /// Maximum that is live at once.
    pub bytes_live: usize,
    /// Without any sharing.
    pub bytes_unshared: usize,
}

/// Returns an error if the total size is too large. The code that follows adds and multiplies sizes
/// without overflow checks.
pub(super) fn check_size(inferred: &Inferred<'_>, lifetimes: &Lifetimes) -> Result<()> {
    let mut total = 0usize;
    for (var, _) in lifetimes.iter() {
        let meta = inferred.meta(var);
        let dims = meta.shape.iter().map(|dim| dim.unsigned_abs().max(1) as usize);
        let bytes = dims.fold(meta.dtype.size(), usize::saturating_mul);
        total = total.saturating_add(bytes);
        if total > PLANNED_BYTES_MAX {
            let name = inferred.program.var_name(var);
            return Err(Error::exhausted("the variables of the program are too large to plan")
                .expected(format!("at most {}", text::bytes(PLANNED_BYTES_MAX as u64)))
                .got(format!("more, starting with '{name}' {}{}", meta.dtype, meta.shape)));
        }
    }
    Ok(())
}

impl Places {
    pub fn assign(
        inferred: &Inferred<'_>,
        lifetimes: &Lifetimes,
        groups: &Groups,
        memory: Memory,
    ) -> Result<Places> {
        let mut places = Places::default();
        // The blocks of the arena, and the place of each.
        let mut blocks: Vec<(Block, usize)> = Vec::new();
        let mut rows: SecondaryMap<VarId, usize> = SecondaryMap::new();
        let mut by_root: SecondaryMap<VarId, usize> = SecondaryMap::new();
        for (var, life) in lifetimes.iter() {
            let group = groups.of(var);
            if inferred.meta(var).kind == VarKind::SparseRows {
                let bytes = ROWS_HEADER_BYTES + inferred.meta(var).rows * size_of::<i64>();
                let place = places.add(Place::Arena { offset: 0 }, bytes);
                blocks.push((Block { bytes, start: life.first, end: group.last }, place));
                rows.insert(var, place);
            }
            if groups.root(var) != var {
                continue;
            }
            let bytes = inferred.bytes(var);
            let at = places.outside_arena(inferred, lifetimes, var)?;
            let place = places.add(at.unwrap_or(Place::Arena { offset: 0 }), bytes);
            by_root.insert(var, place);
            if at.is_none() {
                blocks.push((Block { bytes, start: group.first, end: group.last }, place));
            }
        }
        let place_of = |(var, _)| (var, (by_root[groups.root(var)], rows.get(var).copied()));
        places.by_var = lifetimes.iter().map(place_of).collect();
        places.pack(&blocks, memory);
        let vars = lifetimes.iter().map(|(var, _)| var);
        let temporaries = vars.filter(|var| {
            let var = inferred.program.var(*var);
            !var.persistable && !var.is_data
        });
        places.arena.bytes_unshared = temporaries.map(|var| inferred.bytes(var)).sum();
        Ok(places)
    }

    /// Returns the place of a variable's values and the place of its row numbers.
    pub fn of(&self, var: VarId) -> (usize, Option<usize>) {
        self.by_var[var]
    }

    /// Returns an error if an argument does not fit its places. Kernels access all of an argument.
    pub fn check(&self, arg: &Arg, (values, rows): (usize, Option<usize>)) -> Result<()> {
        let wanted = arg.bytes_len();
        let wanted_rows =
            arg.rows.map(|rows| ROWS_HEADER_BYTES + rows.capacity() * size_of::<i64>());
        if wanted <= self.bytes[values] && wanted_rows <= rows.map(|rows| self.bytes[rows]) {
            return Ok(());
        }
        Err(Error::internal("an argument is larger than its memory")
            .expected(text::bytes(self.bytes[values] as u64))
            .got(text::bytes(wanted as u64)))
    }

    fn add(&mut self, place: Place, bytes: usize) -> usize {
        self.list.push(place);
        self.bytes.push(bytes);
        self.list.len() - 1
    }

    /// Lists a variable that the scope holds or that is fed, and returns its place. A temporary has
    /// none outside the arena.
    fn outside_arena(
        &mut self,
        inferred: &Inferred<'_>,
        lifetimes: &Lifetimes,
        id: VarId,
    ) -> Result<Option<Place>> {
        let (var, meta) = (inferred.program.var(id), inferred.meta(id));
        if var.persistable {
            inferred.shapes.check_known(id)?;
            self.scope_vars.push(ScopeVar {
                name: var.name.clone(),
                dtype: meta.dtype,
                shape: meta.shape,
                layout: var.layout,
                created: lifetimes.of(id).written_before_read(),
                written: lifetimes.of(id).is_written(),
            });
            return Ok(Some(Place::Scope { index: self.scope_vars.len() - 1 }));
        }
        if var.is_data {
            self.feeds.push(FeedSlot { name: var.name.clone(), meta });
            return Ok(Some(Place::Feed { index: self.feeds.len() - 1 }));
        }
        Ok(None)
    }

    /// Sets the places of the arena's blocks.
    fn pack(&mut self, blocks: &[(Block, usize)], memory: Memory) {
        let plain: Vec<Block> = blocks.iter().map(|(block, _)| *block).collect();
        let (offsets, bytes) = memory::pack(&plain);
        self.arena.bytes = bytes;
        self.arena.bytes_live = memory::max_live_bytes(&plain);
        for ((block, place), offset) in blocks.iter().zip(offsets) {
            self.list[*place] = match memory {
                Memory::Packed => Place::Arena { offset },
                Memory::Separate => {
                    self.separate_bytes.push(block.bytes);
                    Place::Separate { index: self.separate_bytes.len() - 1 }
                }
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Planned;
    use super::*;

    const CHAIN: &str = "fleet program 1
        block0 {
          %x: f32[100] data
          %w: f32[100] persistable
          %a: f32[100]
          %b: f32[100]
          %c: f32[100]
          (Out: %a) = elementwise_add(X: %x, Y: %w)
          (Out: %b) = elementwise_add(X: %a, Y: %a)
          (Out: %c) = elementwise_add(X: %b, Y: %b)
        }";

    fn places(memory: Memory) -> (Places, [usize; 5]) {
        let planned = Planned::new(CHAIN);
        planned.with(|inferred| {
            let lifetimes = Lifetimes::find(inferred, &[]);
            let groups = Groups::join(inferred, &lifetimes);
            let places = Places::assign(inferred, &lifetimes, &groups, memory).unwrap();
            let of = ["x", "w", "a", "b", "c"].map(|name| places.of(planned.var(name)).0);
            (places, of)
        })
    }

    #[test]
    fn variables_that_live_at_different_times_share_the_arena() {
        let (places, of) = places(Memory::Packed);
        let [x, w, a, b, c] = of.map(|place| places.list[place]);
        assert_eq!((x, w), (Place::Feed { index: 0 }, Place::Scope { index: 0 }));
        assert!(a == c && a != b, "{a:?} {b:?} {c:?}");
        let ArenaSize { bytes, bytes_live, bytes_unshared } = places.arena;
        // The offset of the second block is a multiple of 64.
        assert_eq!((bytes, bytes_live, bytes_unshared), (896, 800, 1200));
        assert!(places.separate_bytes.is_empty() && !places.scope_vars[0].created);
    }

    #[test]
    fn separate_allocations_share_nothing() {
        let (places, of) = places(Memory::Separate);
        let temporaries = of[2..].iter().map(|place| places.list[*place]);
        assert!(temporaries.eq((0..3).map(|index| Place::Separate { index })));
        assert_eq!(places.separate_bytes, [400; 3]);
    }

    #[test]
    fn an_argument_must_fit_its_place() {
        let planned = Planned::new(CHAIN);
        let (mut places, _) = places(Memory::Packed);
        let (arg, a) = planned.with(|inferred| {
            let a = planned.var("a");
            (inferred.arg(a), places.of(a))
        });
        places.check(&arg, a).unwrap();
        places.bytes[a.0] -= 4;
        assert!(places.check(&arg, a).is_err());
    }
}
