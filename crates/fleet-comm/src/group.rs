//! What users call: a group of ranks and its collectives.

use crate::backend::{Backend, Bounds};
use crate::call::{Call, Kind, Label, Piece, Pieces, ReduceOp, Signature, Work, digest};
use crate::handle::{Handle, Lane};
use crate::recorder::Recorder;
use crate::watch::{Progress, Watch};
use crate::world::{GroupOptions, World};
use fleet_base::{Error, Result};
use fleet_net::{Abort, Member};
use fleet_tensor::{DType, Element};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// A handle to one group of ranks; a clone is the same group.
///
/// Calls of one group follow each other in the order in which they are made, which must be the same
/// on every rank; open one group for each stream of calls that goes on beside others. Each call has
/// a label, the name of what it moves, by which errors and the flight recorder tell calls apart.
///
/// After an error a group is over: every further call gives the error that ended it.
#[derive(Clone)]
pub struct Group(Arc<Shared>);

struct Shared {
    name: Arc<str>,
    rank: usize,
    /// Ranks of the job, by rank of the group.
    ranks: Vec<usize>,
    members: Vec<Member>,
    world: World,
    abort: Abort,
    options: GroupOptions,
    recorder: Recorder,
    core: Mutex<Core>,
    lane: Lane,
    /// Where nobody looks for deadlocks: none.
    progress: Option<Arc<Progress>>,
    /// After the progress: the thread that looks ends with the last group.
    _watch: Option<Arc<Watch>>,
}

struct Core {
    backend: Box<dyn Backend>,
    sequence: u64,
    /// Messages so far, by peer.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Sub-groups that were split off.
    splits: u64,
    fault: Option<Error>,
}

/// What a call is, beside its memory.
struct Head<'a> {
    kind: Kind,
    label: &'a str,
    dtype: DType,
    op: Option<ReduceOp>,
    root: usize,
    elements: usize,
    extra: u64,
}

impl Group {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        world: World,
        name: &str,
        rank: usize,
        ranks: &[usize],
        members: Vec<Member>,
        backend: Box<dyn Backend>,
        abort: Abort,
        options: GroupOptions,
        watch: Option<Arc<Watch>>,
    ) -> Group {
        let size = ranks.len();
        let progress = watch.as_ref().map(|watch| watch.add(name, ranks, &abort, &options));
        Group(Arc::new(Shared {
            name: name.into(),
            rank,
            ranks: ranks.to_vec(),
            members,
            recorder: world.recorder_handle(),
            world,
            abort,
            options,
            core: Mutex::new(Core {
                backend,
                sequence: 0,
                sent: vec![0; size],
                received: vec![0; size],
                splits: 0,
                fault: None,
            }),
            lane: Lane::default(),
            progress,
            _watch: watch,
        }))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// This process in the group.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    pub fn size(&self) -> usize {
        self.0.ranks.len()
    }

    /// The ranks of the job that are in the group, by rank of the group.
    pub fn ranks(&self) -> &[usize] {
        &self.0.ranks
    }

    pub fn member(&self, rank: usize) -> &Member {
        &self.0.members[rank]
    }

    /// What carries the data, for people.
    pub fn backend(&self) -> String {
        self.core().backend.name()
    }

    /// Ends the group: calls that wait, here and on ranks that share memory, give `reason`.
    pub fn abort(&self, reason: Error) {
        self.0.abort.fire(reason);
    }

    /// Every rank's `data` becomes the reduction of all.
    pub fn all_reduce<T: Element>(&self, label: &str, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.all_reduce_fused(label, &mut [data], op)
    }

    /// Several buffers in one operation, without a copy through a buffer for all.
    pub fn all_reduce_fused<T: Element>(
        &self,
        label: &str,
        data: &mut [&mut [T]],
        op: ReduceOp,
    ) -> Result<()> {
        with_pieces(data, |pieces| {
            self.reduce_pieces(Kind::AllReduce, label, T::DTYPE, pieces, op, 0)
        })
    }

    /// The same for memory whose type is known at run time. Buffers hold whole aligned elements.
    pub fn all_reduce_bytes(
        &self,
        label: &str,
        dtype: DType,
        data: &mut [&mut [u8]],
        op: ReduceOp,
    ) -> Result<()> {
        for part in data.iter() {
            self.expect_whole(Kind::AllReduce, label, dtype, part)?;
        }
        with_pieces(data, |pieces| self.reduce_pieces(Kind::AllReduce, label, dtype, pieces, op, 0))
    }

    /// As [`Group::all_reduce_bytes`], for who goes on with the results:
    /// `done(buffer, start, values)` is told of every part of every buffer once it is final.
    /// Between ranks that share memory that is while the rest is under way, in an order of its own,
    /// and the values are in the cache of this core. What the buffers hold afterwards is
    /// unspecified: results that are used on the way are not written back.
    ///
    /// When the call fails, some parts may have been told of.
    ///
    /// ```
    /// # use fleet_comm::{ReduceOp, World};
    /// # let world = World::threads(1).remove(0);
    /// # let group = world.group("all", &[0], &Default::default())?;
    /// let (mut a, mut b, mut seen) = ([1u8; 8], [2u8; 4], 0);
    /// let mut data: [&mut [u8]; 2] = [&mut a, &mut b];
    /// group.all_reduce_bytes_then("sum", fleet_tensor::DType::F32, &mut data, ReduceOp::Sum, &mut |_, _, part| {
    ///     seen += part.len();
    /// })?;
    /// assert_eq!(seen, 12);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn all_reduce_bytes_then(
        &self,
        label: &str,
        dtype: DType,
        data: &mut [&mut [u8]],
        op: ReduceOp,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        for part in data.iter() {
            self.expect_whole(Kind::AllReduce, label, dtype, part)?;
        }
        with_pieces(data, |pieces| {
            let mut told = false;
            let mut tell = |start: usize, values: &[u8]| {
                told = true;
                pieces.each_part(start, values, &mut *done);
            };
            let elements = pieces.bytes / dtype.size();
            let head = Head::new(Kind::AllReduce, label, dtype, elements);
            let head = Head { op: Some(op), extra: pieces.digest(), ..head };
            self.call(head, Work::AllReduce { data: pieces, done: Some(&mut tell) })?;
            if !told {
                // SAFETY: the call is over, and the buffers are borrowed here alone.
                unsafe { pieces.each_whole(done) };
            }
            Ok(())
        })
    }

    /// `data` of rank `root` becomes the reduction of all; the others' is as it was.
    pub fn reduce<T: Element>(
        &self,
        label: &str,
        data: &mut [T],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let pieces = [Piece::of(data)];
        self.reduce_pieces(Kind::Reduce, label, T::DTYPE, Pieces::new(&pieces), op, root)
    }

    /// Several buffers of memory whose type is known at run time.
    pub fn reduce_bytes(
        &self,
        label: &str,
        dtype: DType,
        data: &mut [&mut [u8]],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        for part in data.iter() {
            self.expect_whole(Kind::Reduce, label, dtype, part)?;
        }
        with_pieces(data, |pieces| self.reduce_pieces(Kind::Reduce, label, dtype, pieces, op, root))
    }

    fn reduce_pieces(
        &self,
        kind: Kind,
        label: &str,
        dtype: DType,
        data: Pieces<'_>,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let elements = data.bytes / dtype.size();
        let extra = data.digest();
        let work = match kind {
            Kind::AllReduce => Work::AllReduce { data, done: None },
            _ => Work::Reduce { data },
        };
        self.call(Head { kind, label, dtype, op: Some(op), root, elements, extra }, work)
    }

    /// `input` has one block for each rank; `output` becomes the reduction of all ranks' block for
    /// this rank.
    pub fn reduce_scatter<T: Element>(
        &self,
        label: &str,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let (elements, expected) = (output.len(), output.len() * self.size());
        self.expect_len(Kind::ReduceScatter, label, "input", input.len(), expected)?;
        let work = Work::ReduceScatter { input: Piece::of_const(input), output: Piece::of(output) };
        let head = Head::new(Kind::ReduceScatter, label, T::DTYPE, elements);
        self.call(Head { op: Some(op), ..head }, work)
    }

    /// The same for memory whose type is known at run time.
    pub fn reduce_scatter_bytes(
        &self,
        label: &str,
        dtype: DType,
        input: &[u8],
        output: &mut [u8],
        op: ReduceOp,
    ) -> Result<()> {
        let kind = Kind::ReduceScatter;
        self.expect_whole(kind, label, dtype, input)?;
        self.expect_whole(kind, label, dtype, output)?;
        self.expect_len(kind, label, "input", input.len(), output.len() * self.size())?;
        let elements = output.len() / dtype.size();
        let work = Work::ReduceScatter { input: Piece::of_const(input), output: Piece::of(output) };
        self.call(Head { op: Some(op), ..Head::new(kind, label, dtype, elements) }, work)
    }

    /// The same with the result in this rank's block of `data`; the other blocks are as they were.
    pub fn reduce_scatter_in_place<T: Element>(
        &self,
        label: &str,
        data: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let block = data.len() / self.size();
        self.expect_len(Kind::ReduceScatter, label, "data", data.len(), block * self.size())?;
        let input = Piece::of(data);
        let bytes = block * size_of::<T>();
        // SAFETY: the own block is inside the data.
        let output = Piece { start: unsafe { input.start.add(self.rank() * bytes) }, bytes };
        let head = Head::new(Kind::ReduceScatter, label, T::DTYPE, block);
        self.call(Head { op: Some(op), ..head }, Work::ReduceScatter { input, output })
    }

    /// `output` becomes the blocks of all ranks, in their order.
    pub fn all_gather<T: Element>(&self, label: &str, input: &[T], output: &mut [T]) -> Result<()> {
        let expected = input.len() * self.size();
        self.expect_len(Kind::AllGather, label, "output", output.len(), expected)?;
        self.gather_blocks(label, Some(input), output, input.len())
    }

    /// The same with this rank's block in its place in `data` already.
    pub fn all_gather_in_place<T: Element>(&self, label: &str, data: &mut [T]) -> Result<()> {
        let block = data.len() / self.size();
        self.expect_len(Kind::AllGather, label, "data", data.len(), block * self.size())?;
        self.gather_blocks(label, None, data, block)
    }

    fn gather_blocks<T: Element>(
        &self,
        label: &str,
        input: Option<&[T]>,
        output: &mut [T],
        block: usize,
    ) -> Result<()> {
        with_counts(
            self.size(),
            |_| block * size_of::<T>(),
            |counts| {
                let work = Work::AllGather {
                    input: input.map(Piece::of_const),
                    output: Piece::of(output),
                    counts,
                };
                self.call(Head::new(Kind::AllGather, label, T::DTYPE, block), work)
            },
        )
    }

    /// As [`Group::all_gather`] with blocks of different sizes: `counts` by rank, the same
    /// everywhere.
    pub fn all_gather_v<T: Element>(
        &self,
        label: &str,
        input: &[T],
        output: &mut [T],
        counts: &[usize],
    ) -> Result<()> {
        let kind = Kind::AllGather;
        self.expect_len(kind, label, "counts", counts.len(), self.size())?;
        self.expect_len(kind, label, "input", input.len(), counts[self.rank()])?;
        self.expect_len(kind, label, "output", output.len(), counts.iter().sum())?;
        with_counts(
            self.size(),
            |rank| counts[rank] * size_of::<T>(),
            |bytes| {
                let work = Work::AllGather {
                    input: Some(Piece::of_const(input)),
                    output: Piece::of(output),
                    counts: bytes,
                };
                let head = Head::new(kind, label, T::DTYPE, output.len());
                self.call(Head { extra: digest(bytes.iter().copied()), ..head }, work)
            },
        )
    }

    /// Every rank's `data` becomes that of `root`.
    pub fn broadcast<T: Element>(&self, label: &str, data: &mut [T], root: usize) -> Result<()> {
        self.broadcast_fused(label, &mut [data], root)
    }

    /// Several buffers in one operation.
    pub fn broadcast_fused<T: Element>(
        &self,
        label: &str,
        data: &mut [&mut [T]],
        root: usize,
    ) -> Result<()> {
        with_pieces(data, |data| {
            let elements = data.bytes / size_of::<T>();
            let head = Head::new(Kind::Broadcast, label, T::DTYPE, elements);
            let extra = data.digest();
            self.call(Head { root, extra, ..head }, Work::Broadcast { data })
        })
    }

    /// `input` of `root` has one block for each rank (the others may give an empty one); `output`
    /// becomes the block of this rank.
    pub fn scatter<T: Element>(
        &self,
        label: &str,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<()> {
        let is_root = self.rank() == root;
        if is_root {
            let expected = output.len() * self.size();
            self.expect_len(Kind::Scatter, label, "input", input.len(), expected)?;
        }
        let head = Head::new(Kind::Scatter, label, T::DTYPE, output.len());
        let input = is_root.then(|| Piece::of_const(input));
        self.call(Head { root, ..head }, Work::Scatter { input, output: Piece::of(output) })
    }

    /// `output` of `root` becomes the blocks of all ranks (the others may give an empty one).
    pub fn gather<T: Element>(
        &self,
        label: &str,
        input: &[T],
        output: &mut [T],
        root: usize,
    ) -> Result<()> {
        let is_root = self.rank() == root;
        if is_root {
            let expected = input.len() * self.size();
            self.expect_len(Kind::Gather, label, "output", output.len(), expected)?;
        }
        let head = Head::new(Kind::Gather, label, T::DTYPE, input.len());
        let output = is_root.then(|| Piece::of(output));
        self.call(Head { root, ..head }, Work::Gather { input: Piece::of_const(input), output })
    }

    /// `input` has one block for each rank; `output` becomes the block for this rank from each.
    pub fn all_to_all<T: Element>(&self, label: &str, input: &[T], output: &mut [T]) -> Result<()> {
        let block = input.len() / self.size();
        let kind = Kind::AllToAll;
        self.expect_len(kind, label, "input", input.len(), block * self.size())?;
        self.expect_len(kind, label, "output", output.len(), input.len())?;
        with_counts(
            self.size(),
            |_| block * size_of::<T>(),
            |counts| {
                let work = Work::AllToAll {
                    input: Piece::of_const(input),
                    output: Piece::of(output),
                    sends: counts,
                    receives: counts,
                };
                self.call(Head::new(kind, label, T::DTYPE, block), work)
            },
        )
    }

    /// The same with blocks of different sizes: `sends[p]` elements go to rank p, `receives[p]`
    /// come from it. That they agree between ranks is checked.
    pub fn all_to_all_v<T: Element>(
        &self,
        label: &str,
        input: &[T],
        sends: &[usize],
        output: &mut [T],
        receives: &[usize],
    ) -> Result<()> {
        let kind = Kind::AllToAll;
        self.expect_len(kind, label, "counts to send", sends.len(), self.size())?;
        self.expect_len(kind, label, "counts to receive", receives.len(), self.size())?;
        self.expect_len(kind, label, "input", input.len(), sends.iter().sum())?;
        self.expect_len(kind, label, "output", output.len(), receives.iter().sum())?;
        let size = size_of::<T>();
        with_counts(
            self.size(),
            |rank| sends[rank] * size,
            |sends| {
                with_counts(
                    self.size(),
                    |rank| receives[rank] * size,
                    |receives| {
                        let work = Work::AllToAll {
                            input: Piece::of_const(input),
                            output: Piece::of(output),
                            sends,
                            receives,
                        };
                        // Elements differ between ranks here, so the digest tells it from the even
                        // form.
                        let head = Head::new(kind, label, T::DTYPE, 0);
                        self.call(Head { extra: 1, ..head }, work)
                    },
                )
            },
        )
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self, label: &str) -> Result<()> {
        self.call(Head::new(Kind::Barrier, label, DType::U8, 0), Work::Barrier)
    }

    /// A message to one rank, which receives it with the same label and length.
    pub fn send<T: Element>(&self, label: &str, data: &[T], to: usize) -> Result<()> {
        let head = Head::new(Kind::Send, label, T::DTYPE, data.len());
        self.call(Head { root: to, ..head }, Work::Send { to, data: Piece::of_const(data) })
    }

    pub fn recv<T: Element>(&self, label: &str, into: &mut [T], from: usize) -> Result<()> {
        let head = Head::new(Kind::Recv, label, T::DTYPE, into.len());
        self.call(Head { root: from, ..head }, Work::Recv { from, into: Piece::of(into) })
    }

    /// Runs `work`, which calls collectives of this group, in the background.
    ///
    /// Calls in the background keep their order, and blocking calls wait for those started before.
    pub fn start<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Group) -> Result<R> + Send + 'static,
    ) -> Result<Handle<R>> {
        Lane::start(self, work)
    }

    /// [`Group::all_reduce`] in the background; the handle gives the data back.
    pub fn all_reduce_start<T: Element>(
        &self,
        label: &str,
        mut data: Vec<T>,
        op: ReduceOp,
    ) -> Result<Handle<Vec<T>>> {
        let label = label.to_string();
        self.start(move |group| {
            group.all_reduce(&label, &mut data, op)?;
            Ok(data)
        })
    }

    /// Sub-groups: ranks with the same `color` are together, ordered by `key` and then by rank. All
    /// ranks call it; a rank without a color gets none.
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Group>> {
        let own = [color.map_or(-1, i64::from), i64::from(key)];
        let mut all = vec![0i64; 2 * self.size()];
        self.all_gather("split", &own, &mut all)?;
        let number = {
            let mut core = self.core();
            core.splits += 1;
            core.splits
        };
        let Some(color) = color else { return Ok(None) };
        let mut chosen: Vec<(i64, usize)> = (0..self.size())
            .filter(|rank| all[2 * rank] == i64::from(color))
            .map(|rank| (all[2 * rank + 1], rank))
            .collect();
        chosen.sort_unstable();
        let ranks: Vec<usize> = chosen.iter().map(|(_, rank)| self.0.ranks[*rank]).collect();
        let name = format!("{}/{number}.{color}", self.name());
        self.0.world.group(&name, &ranks, &self.0.options).map(Some)
    }

    pub(crate) fn lane(&self) -> &Lane {
        &self.0.lane
    }

    fn core(&self) -> MutexGuard<'_, Core> {
        // Backends run no code of users; a poisoned lock means that ours is broken, which the fault
        // of the group would say.
        self.0.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn call(&self, head: Head<'_>, work: Work<'_>) -> Result<()> {
        self.0.lane.drain();
        self.check(&head)?;
        let shared = &*self.0;
        let mut core = self.core();
        if let Some(fault) = &core.fault {
            return Err(fault.clone());
        }
        let signature = core.sign(&head);
        let record = shared.recorder.begin(&shared.name, shared.rank, signature);
        let bounds = Bounds { span: shared.options.timeout, abort: shared.abort.clone() };
        if let Some(progress) = &shared.progress {
            progress.begin(signature);
        }
        let mut result = core.backend.run(&mut Call { signature, work }, &bounds);
        if let Some(progress) = &shared.progress {
            progress.end();
            result = result.map_err(|error| progress.judge(error));
        }
        shared.recorder.end(record, result.is_err());
        result.map_err(|error| self.fail(&mut core, error))
    }

    fn check(&self, head: &Head<'_>) -> Result<()> {
        let size = self.size();
        let pair = matches!(head.kind, Kind::Send | Kind::Recv);
        let error = if head.root >= size {
            Error::invalid("no such rank in the group")
                .expected(format!("a rank below {size}"))
                .got(head.root)
        } else if pair && head.root == self.rank() {
            Error::invalid("a message of a rank to itself")
        } else if head.op.is_some() && !can_reduce(head.dtype) {
            Error::unsupported("no reductions of this type")
                .expected("f32, f64, f16, bf16, i32, i64 or u8")
                .got(head.dtype)
        } else {
            return Ok(());
        };
        Err(self.refuse(head.kind, head.label, error))
    }

    fn expect_whole(&self, kind: Kind, label: &str, dtype: DType, bytes: &[u8]) -> Result<()> {
        let size = dtype.size();
        // No elements lie nowhere.
        let is_aligned = bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(size);
        if bytes.len().is_multiple_of(size) && is_aligned {
            return Ok(());
        }
        let error = Error::invalid(format!("a buffer does not hold whole aligned {dtype}"));
        Err(self.refuse(kind, label, error))
    }

    fn expect_len(
        &self,
        kind: Kind,
        label: &str,
        what: &str,
        got: usize,
        expected: usize,
    ) -> Result<()> {
        if got == expected {
            return Ok(());
        }
        let error = Error::invalid(format!("{what} of {kind} has the wrong length"))
            .expected(expected)
            .got(got);
        Err(self.refuse(kind, label, error))
    }

    /// Wrong arguments on one rank would leave the others waiting, so they end the group as well.
    fn refuse(&self, kind: Kind, label: &str, error: Error) -> Error {
        let shared = &*self.0;
        let error = error.at(format!(
            "{kind} '{label}' in group '{}', {}",
            shared.name, shared.members[shared.rank]
        ));
        self.lane().drain();
        let mut core = self.core();
        if core.fault.is_none() {
            let bounds = Bounds { span: shared.options.timeout, abort: shared.abort.clone() };
            core.backend.refuse(&error, &bounds);
        }
        self.fail(&mut core, error)
    }

    /// The group is over.
    fn fail(&self, core: &mut Core, error: Error) -> Error {
        if let Some(fault) = &core.fault {
            return fault.clone();
        }
        let error = match self.0.recorder.dump() {
            None => error,
            Some(Ok(path)) => error.help(format!("the last collectives are in {}", path.display())),
            Some(Err(failed)) => error.at(format!("(no flight recorder: {failed})")),
        };
        core.fault = Some(error.clone());
        self.0.world.tell_fault(&error);
        self.0.abort.fire(error.clone());
        error
    }
}

impl Core {
    fn sign(&mut self, head: &Head<'_>) -> Signature {
        let counter = match head.kind {
            Kind::Send => &mut self.sent[head.root],
            Kind::Recv => &mut self.received[head.root],
            _ => &mut self.sequence,
        };
        let sequence = *counter;
        *counter += 1;
        Signature {
            sequence,
            kind: head.kind,
            dtype: head.dtype,
            op: head.op,
            root: head.root as u32,
            elements: head.elements as u64,
            extra: head.extra,
            label: Label::new(head.label),
        }
    }
}

impl<'a> Head<'a> {
    fn new(kind: Kind, label: &'a str, dtype: DType, elements: usize) -> Head<'a> {
        Head { kind, label, dtype, op: None, root: 0, elements, extra: 0 }
    }
}

fn can_reduce(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, F64, I32, I64, U8};
    matches!(dtype, F32 | F64 | F16 | BF16 | I32 | I64 | U8)
}

/// Pieces and counts up to this number live on the stack.
const FEW: usize = 64;

fn with_pieces<T, R>(data: &mut [&mut [T]], work: impl FnOnce(Pieces<'_>) -> R) -> R {
    let none = Piece { start: std::ptr::null_mut(), bytes: 0 };
    if data.len() <= FEW {
        let mut few = [none; FEW];
        for (piece, part) in few.iter_mut().zip(data.iter_mut()) {
            *piece = Piece::of(part);
        }
        return work(Pieces::new(&few[..data.len()]));
    }
    let many: Vec<Piece> = data.iter_mut().map(|part| Piece::of(part)).collect();
    work(Pieces::new(&many))
}

fn with_counts<R>(
    count: usize,
    value: impl Fn(usize) -> usize,
    work: impl FnOnce(&[usize]) -> R,
) -> R {
    if count <= FEW {
        let few: [usize; FEW] = std::array::from_fn(|i| if i < count { value(i) } else { 0 });
        return work(&few[..count]);
    }
    work(&(0..count).map(value).collect::<Vec<_>>())
}
