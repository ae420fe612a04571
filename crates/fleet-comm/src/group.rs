//! The public interface: a group of ranks and its collectives.

use crate::backend::{Backend, Bounds};
use crate::call::{Call, Kind, Label, Piece, Pieces, Signature, Work, digest};
use crate::handle::{Handle, Lane};
use crate::options::GroupOptions;
use crate::recorder::Recorder;
use crate::watch::{Progress, Watch};
use crate::world::World;
use fleet_base::sync::lock;
use fleet_base::{Error, ReduceOp, Result};
use fleet_net::{Abort, Member};
use fleet_tensor::{DType, Element};
use std::sync::{Arc, Mutex, MutexGuard};

/// A group of ranks. A clone is the same group.
///
/// Calls of one group run one after another, in the order in which they are made, which must be the
/// same on every rank. Open one group for each sequence of calls that must run concurrently with
/// others. Each call has a label, the name of its data, which identifies it in errors and in the
/// flight recorder.
///
/// After an error the group cannot be used: every later call returns that error.
#[derive(Clone)]
pub struct Group(Arc<Shared>);

struct Shared {
    name: Arc<str>,
    rank: usize,
    /// Ranks in the job, by rank in the group.
    ranks: Vec<usize>,
    members: Vec<Member>,
    world: World,
    abort: Abort,
    options: GroupOptions,
    recorder: Recorder,
    core: Mutex<Core>,
    lane: Arc<Lane>,
    /// `None` without deadlock detection.
    progress: Option<Arc<Progress>>,
    /// Dropped after `progress`: the watch thread ends with the last group.
    _watch: Option<Arc<Watch>>,
}

struct Core {
    backend: Box<dyn Backend>,
    sequence: u64,
    /// Number of messages so far, by peer.
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Number of sub-groups made by `split`.
    splits: u64,
    fault: Option<Error>,
}

/// The description of a call, without its memory.
struct CallInfo<'a> {
    kind: Kind,
    label: &'a str,
    dtype: DType,
    op: Option<ReduceOp>,
    root: usize,
    elements: usize,
    digest: u64,
}

impl Group {
    #[allow(clippy::too_many_arguments, reason = "one call, right after all parts exist")]
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
            lane: Arc::default(),
            progress,
            _watch: watch,
        }))
    }

    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Rank of this process in the group.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    pub fn size(&self) -> usize {
        self.0.ranks.len()
    }

    /// The group's members as ranks in the job, by rank in the group.
    pub fn ranks(&self) -> &[usize] {
        &self.0.ranks
    }

    pub fn member(&self, rank: usize) -> &Member {
        &self.0.members[rank]
    }

    /// Name of the transport, for messages.
    pub fn backend(&self) -> String {
        self.core().backend.name()
    }

    /// Ends the group. Waiting calls, here and on ranks that share memory, return `reason`.
    pub fn abort(&self, reason: Error) {
        self.0.abort.fire(reason);
    }

    /// Reduces `data` over all ranks, in place on every rank.
    pub fn all_reduce<T: Element>(&self, label: &str, data: &mut [T], op: ReduceOp) -> Result<()> {
        self.all_reduce_fused(label, &mut [data], op)
    }

    /// Like [`Group::all_reduce`] for several buffers in one operation, without joining them.
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

    /// Like [`Group::all_reduce_fused`] for a type known at run time. Buffers must hold whole
    /// aligned elements.
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

    /// Like [`Group::all_reduce_bytes`], and calls `done(buffer, start, values)` for every part of
    /// every buffer as soon as it is final. With shared memory this happens during the call, in any
    /// order, and the values are in the cache of this core. The content of the buffers after the
    /// call is unspecified, because results passed to `done` need not be written back.
    ///
    /// If the call fails, `done` may have been called for some parts.
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
            let mut is_reported = false;
            let mut report = |start: usize, values: &[u8]| {
                is_reported = true;
                pieces.visit_values(start, values, &mut *done);
            };
            let elements = pieces.bytes / dtype.size();
            let info = CallInfo::new(Kind::AllReduce, label, dtype, elements);
            let info = CallInfo { op: Some(op), digest: pieces.digest(), ..info };
            self.call(info, Work::AllReduce { data: pieces, done: Some(&mut report) })?;
            if !is_reported {
                // SAFETY: the call has ended, and only this function borrows the buffers.
                unsafe { pieces.visit_pieces(done) };
            }
            Ok(())
        })
    }

    /// Reduces `data` over all ranks into `data` of `root`. The other ranks' data does not change.
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

    /// Like [`Group::reduce`] for several buffers of a type known at run time.
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
        let digest = data.digest();
        let work = match kind {
            Kind::AllReduce => Work::AllReduce { data, done: None },
            _ => Work::Reduce { data },
        };
        self.call(CallInfo { kind, label, dtype, op: Some(op), root, elements, digest }, work)
    }

    /// `input` has one block per rank. `output` becomes the reduction of the blocks for this rank.
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
        let info = CallInfo::new(Kind::ReduceScatter, label, T::DTYPE, elements);
        self.call(CallInfo { op: Some(op), ..info }, work)
    }

    /// Like [`Group::reduce_scatter`] for a type known at run time.
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
        self.call(CallInfo { op: Some(op), ..CallInfo::new(kind, label, dtype, elements) }, work)
    }

    /// Like [`Group::reduce_scatter`], with the result in this rank's block of `data`. The other
    /// blocks do not change.
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
        // SAFETY: this rank's block is inside the data.
        let output = Piece { start: unsafe { input.start.add(self.rank() * bytes) }, bytes };
        let info = CallInfo::new(Kind::ReduceScatter, label, T::DTYPE, block);
        self.call(CallInfo { op: Some(op), ..info }, Work::ReduceScatter { input, output })
    }

    /// Gathers the blocks of all ranks into `output`, in the order of ranks.
    pub fn all_gather<T: Element>(&self, label: &str, input: &[T], output: &mut [T]) -> Result<()> {
        let expected = input.len() * self.size();
        self.expect_len(Kind::AllGather, label, "output", output.len(), expected)?;
        self.gather_blocks(label, Some(input), output, input.len())
    }

    /// Like [`Group::all_gather`], with this rank's block already in its place in `data`.
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
                self.call(CallInfo::new(Kind::AllGather, label, T::DTYPE, block), work)
            },
        )
    }

    /// Like [`Group::all_gather`] with blocks of different sizes. `counts` holds the sizes by rank
    /// and must be the same on every rank.
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
                let info = CallInfo::new(kind, label, T::DTYPE, output.len());
                self.call(CallInfo { digest: digest(bytes.iter().copied()), ..info }, work)
            },
        )
    }

    /// Copies `data` of `root` to every rank.
    pub fn broadcast<T: Element>(&self, label: &str, data: &mut [T], root: usize) -> Result<()> {
        self.broadcast_fused(label, &mut [data], root)
    }

    /// Like [`Group::broadcast`] for several buffers in one operation.
    pub fn broadcast_fused<T: Element>(
        &self,
        label: &str,
        data: &mut [&mut [T]],
        root: usize,
    ) -> Result<()> {
        with_pieces(data, |data| {
            let elements = data.bytes / size_of::<T>();
            let info = CallInfo::new(Kind::Broadcast, label, T::DTYPE, elements);
            let digest = data.digest();
            self.call(CallInfo { root, digest, ..info }, Work::Broadcast { data })
        })
    }

    /// Sends each rank its block of `root`'s `input`. On other ranks `input` may be empty.
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
        let info = CallInfo::new(Kind::Scatter, label, T::DTYPE, output.len());
        let input = is_root.then(|| Piece::of_const(input));
        self.call(CallInfo { root, ..info }, Work::Scatter { input, output: Piece::of(output) })
    }

    /// Gathers the blocks of all ranks into `output` of `root`. Other ranks may pass an empty one.
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
        let info = CallInfo::new(Kind::Gather, label, T::DTYPE, input.len());
        let output = is_root.then(|| Piece::of(output));
        self.call(CallInfo { root, ..info }, Work::Gather { input: Piece::of_const(input), output })
    }

    /// `input` has one block per rank. `output` gets the block of every rank for this rank.
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
                self.call(CallInfo::new(kind, label, T::DTYPE, block), work)
            },
        )
    }

    /// Like [`Group::all_to_all`] with blocks of different sizes: sends `sends[p]` elements to rank
    /// p and receives `receives[p]` elements from it. A mismatch between ranks is an error.
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
                        // Element counts differ between ranks here, so the digest distinguishes it
                        // from the even form.
                        let info = CallInfo::new(kind, label, T::DTYPE, 0);
                        self.call(CallInfo { digest: 1, ..info }, work)
                    },
                )
            },
        )
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self, label: &str) -> Result<()> {
        self.call(CallInfo::new(Kind::Barrier, label, DType::U8, 0), Work::Barrier)
    }

    /// Sends a message to one rank, which must receive it with the same label and length.
    pub fn send<T: Element>(&self, label: &str, data: &[T], to: usize) -> Result<()> {
        let info = CallInfo::new(Kind::Send, label, T::DTYPE, data.len());
        self.call(CallInfo { root: to, ..info }, Work::Send { to, data: Piece::of_const(data) })
    }

    pub fn recv<T: Element>(&self, label: &str, into: &mut [T], from: usize) -> Result<()> {
        let info = CallInfo::new(Kind::Recv, label, T::DTYPE, into.len());
        self.call(CallInfo { root: from, ..info }, Work::Recv { from, into: Piece::of(into) })
    }

    /// Runs `work`, which calls collectives of this group, in the background.
    ///
    /// Background calls keep their order. A blocking call first waits for all earlier ones.
    pub fn start<R: Send + 'static>(
        &self,
        work: impl FnOnce(&Group) -> Result<R> + Send + 'static,
    ) -> Result<Handle<R>> {
        let group = self.clone();
        self.0.lane.start(self.name(), move || work(&group))
    }

    /// Runs [`Group::all_reduce`] in the background; the handle returns the data.
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

    /// Makes sub-groups of the ranks with the same `color`, ordered by `key` and then by rank. All
    /// ranks must call it; a rank without a color gets `None`.
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

    fn core(&self) -> MutexGuard<'_, Core> {
        // Backends run no user code. If one of ours panicked, the fault of the group reports it.
        lock(&self.0.core)
    }

    fn call(&self, info: CallInfo<'_>, work: Work<'_>) -> Result<()> {
        self.0.lane.drain();
        self.check(&info)?;
        let shared = &*self.0;
        let mut core = self.core();
        if let Some(fault) = &core.fault {
            return Err(fault.clone());
        }
        let signature = core.sign(&info);
        let record = shared.recorder.begin(&shared.name, shared.rank, signature);
        let bounds = Bounds { timeout: shared.options.timeout, abort: shared.abort.clone() };
        if let Some(progress) = &shared.progress {
            progress.begin(signature);
        }
        let mut result = core.backend.run(&mut Call { signature, work }, &bounds);
        if let Some(progress) = &shared.progress {
            progress.end();
            result = result.map_err(|error| progress.with_verdict(error));
        }
        shared.recorder.end(record, result.is_err());
        result.map_err(|error| self.record_fault(&mut core, error))
    }

    fn check(&self, info: &CallInfo<'_>) -> Result<()> {
        let size = self.size();
        let pair = matches!(info.kind, Kind::Send | Kind::Recv);
        let error = if info.root >= size {
            Error::invalid("no such rank in the group")
                .expected(format!("a rank below {size}"))
                .got(info.root)
        } else if pair && info.root == self.rank() {
            Error::invalid("send to own rank")
        } else if info.op.is_some() && !can_reduce(info.dtype) {
            Error::unsupported("reduction not supported for this type")
                .expected("f32, f64, f16, bf16, i32, i64 or u8")
                .got(info.dtype)
        } else {
            return Ok(());
        };
        Err(self.reject_call(info.kind, info.label, error))
    }

    fn expect_whole(&self, kind: Kind, label: &str, dtype: DType, bytes: &[u8]) -> Result<()> {
        let size = dtype.size();
        // An empty buffer may have any address.
        let is_aligned = bytes.is_empty() || (bytes.as_ptr() as usize).is_multiple_of(size);
        if bytes.len().is_multiple_of(size) && is_aligned {
            return Ok(());
        }
        let error =
            Error::invalid(format!("buffer is not a whole number of aligned {dtype} elements"));
        Err(self.reject_call(kind, label, error))
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
        Err(self.reject_call(kind, label, error))
    }

    /// Fails the call and the group: other ranks would wait forever for this one.
    fn reject_call(&self, kind: Kind, label: &str, error: Error) -> Error {
        let shared = &*self.0;
        let error = error.at(format!(
            "{kind} '{label}' in group '{}', {}",
            shared.name, shared.members[shared.rank]
        ));
        self.0.lane.drain();
        let mut core = self.core();
        if core.fault.is_none() {
            let bounds = Bounds { timeout: shared.options.timeout, abort: shared.abort.clone() };
            core.backend.reject_call(&error, &bounds);
        }
        self.record_fault(&mut core, error)
    }

    /// Records the error that ends the group, and fires the token.
    fn record_fault(&self, core: &mut Core, error: Error) -> Error {
        if let Some(fault) = &core.fault {
            return fault.clone();
        }
        let error = match self.0.recorder.dump() {
            None => error,
            Some(Ok(path)) => error.help(format!("see the last collectives in {}", path.display())),
            Some(Err(failed)) => error.at(format!("(cannot write the flight recorder: {failed})")),
        };
        core.fault = Some(error.clone());
        self.0.world.report_fault(&error);
        self.0.abort.fire(error.clone());
        error
    }
}

impl Core {
    fn sign(&mut self, info: &CallInfo<'_>) -> Signature {
        let counter = match info.kind {
            Kind::Send => &mut self.sent[info.root],
            Kind::Recv => &mut self.received[info.root],
            _ => &mut self.sequence,
        };
        let sequence = *counter;
        *counter += 1;
        Signature {
            sequence,
            kind: info.kind,
            dtype: info.dtype,
            op: info.op,
            root: info.root as u32,
            elements: info.elements as u64,
            digest: info.digest,
            label: Label::new(info.label),
        }
    }
}

impl<'a> CallInfo<'a> {
    fn new(kind: Kind, label: &'a str, dtype: DType, elements: usize) -> CallInfo<'a> {
        CallInfo { kind, label, dtype, op: None, root: 0, elements, digest: 0 }
    }
}

fn can_reduce(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, F64, I32, I64, U8};
    matches!(dtype, F32 | F64 | F16 | BF16 | I32 | I64 | U8)
}

/// Up to this number, pieces and counts are kept on the stack.
const STACK_ITEMS_MAX: usize = 64;

fn with_pieces<T, R>(data: &mut [&mut [T]], work: impl FnOnce(Pieces<'_>) -> R) -> R {
    let none = Piece { start: std::ptr::null_mut(), bytes: 0 };
    if data.len() <= STACK_ITEMS_MAX {
        let mut on_stack = [none; STACK_ITEMS_MAX];
        for (piece, part) in on_stack.iter_mut().zip(data.iter_mut()) {
            *piece = Piece::of(part);
        }
        return work(Pieces::new(&on_stack[..data.len()]));
    }
    let on_heap: Vec<Piece> = data.iter_mut().map(|part| Piece::of(part)).collect();
    work(Pieces::new(&on_heap))
}

fn with_counts<R>(
    count: usize,
    value: impl Fn(usize) -> usize,
    work: impl FnOnce(&[usize]) -> R,
) -> R {
    if count <= STACK_ITEMS_MAX {
        let on_stack: [usize; STACK_ITEMS_MAX] =
            std::array::from_fn(|i| if i < count { value(i) } else { 0 });
        return work(&on_stack[..count]);
    }
    work(&(0..count).map(value).collect::<Vec<_>>())
}
