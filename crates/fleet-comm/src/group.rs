//! The public interface: a group of ranks and its collectives.

use crate::backend::{Backend, Bounds};
use crate::buffers::{Buffers, Counts, Input};
use crate::call::{Call, Done, Kind, Label, Piece, Pieces, Signature, Work, digest};
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

    /// Name of the group, the same on all ranks.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Rank of this process in the group.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks in the group.
    pub fn size(&self) -> usize {
        self.0.ranks.len()
    }

    /// The group's members as ranks in the job, by rank in the group.
    pub fn ranks(&self) -> &[usize] {
        &self.0.ranks
    }

    /// The process that has a rank of the group.
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
    pub fn all_reduce(&self, label: &str, data: impl Buffers, op: ReduceOp) -> Result<()> {
        self.with_pieces(Kind::AllReduce, label, data, |info, data| {
            self.call(info.op(op), Work::AllReduce { data, done: None })
        })
    }

    /// Like [`Group::all_reduce`], and calls `done(buffer, start, values)` for every part of every
    /// buffer as soon as it is final; `start` is in bytes. With shared memory this happens during
    /// the call, in any order, and the values are in the cache of this core. The content of the
    /// buffers after the call is unspecified, because results passed to `done` need not be written
    /// back.
    ///
    /// If the call fails, `done` may have been called for some parts.
    ///
    /// ```
    /// # use fleet_comm::{Fused, ReduceOp, World};
    /// # let world = World::threads(1).remove(0);
    /// # let group = world.group("all", &[0], &Default::default())?;
    /// let (mut a, mut b, mut seen) = ([1.0f32; 2], [2.0f32; 1], 0);
    /// let data = Fused(&mut [&mut a, &mut b]);
    /// group.all_reduce_then("sum", data, ReduceOp::Sum, &mut |_, _, part| seen += part.len())?;
    /// assert_eq!(seen, 12);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn all_reduce_then(
        &self,
        label: &str,
        data: impl Buffers,
        op: ReduceOp,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        self.with_pieces(Kind::AllReduce, label, data, |info, data| {
            tell(data, done, |told| {
                self.call(info.op(op), Work::AllReduce { data, done: Some(told) })
            })
        })
    }

    /// Reduces `data` over all ranks into `data` of `root`. The other ranks' data does not change.
    pub fn reduce(&self, label: &str, data: impl Buffers, op: ReduceOp, root: usize) -> Result<()> {
        self.with_pieces(Kind::Reduce, label, data, |info, data| {
            self.call(info.op(op).root(root), Work::Reduce { data, done: None })
        })
    }

    /// Like [`Group::reduce`], and calls `done` on `root` as [`Group::all_reduce_then`] does.
    pub fn reduce_then(
        &self,
        label: &str,
        data: impl Buffers,
        op: ReduceOp,
        root: usize,
        done: &mut dyn FnMut(usize, usize, &[u8]),
    ) -> Result<()> {
        if self.rank() != root {
            return self.reduce(label, data, op, root);
        }
        self.with_pieces(Kind::Reduce, label, data, |info, data| {
            tell(data, done, |told| {
                self.call(info.op(op).root(root), Work::Reduce { data, done: Some(told) })
            })
        })
    }

    /// Copies `data` of `root` to every rank.
    pub fn broadcast(&self, label: &str, data: impl Buffers, root: usize) -> Result<()> {
        self.with_pieces(Kind::Broadcast, label, data, |info, data| {
            self.call(info.root(root), Work::Broadcast { data })
        })
    }

    /// `input` has one block per rank. `output` becomes the reduction of the blocks for this rank.
    ///
    /// With [`InPlace`](crate::InPlace), `output` has the blocks, and this rank's block of it
    /// becomes the reduction. The other blocks do not change.
    pub fn reduce_scatter<T: Element>(
        &self,
        label: &str,
        input: impl Input<T>,
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        let (kind, dtype) = (Kind::ReduceScatter, input.dtype());
        let whole = Piece::of(output);
        let (input, output) = match input.piece() {
            Some(input) => (input, whole),
            None => {
                let block = self.block(kind, label, "data", output)?;
                (whole, whole.nth(block * size_of::<T>(), self.rank()))
            }
        };
        self.expect_whole(kind, label, dtype, input)?;
        self.expect_whole(kind, label, dtype, output)?;
        let (got, block) = (input.bytes / size_of::<T>(), output.bytes / size_of::<T>());
        self.expect_len(kind, label, "input", got, block * self.size())?;
        let info = CallInfo::new(kind, label, dtype, output.bytes / dtype.size());
        self.call(info.op(op), Work::ReduceScatter { input, output })
    }

    /// Gathers the blocks of all ranks into `output`, in the order of ranks. With
    /// [`InPlace`](crate::InPlace), this rank's block is already in its place in `output`.
    pub fn all_gather<T: Element>(
        &self,
        label: &str,
        input: impl Input<T>,
        output: &mut [T],
    ) -> Result<()> {
        let (kind, input) = (Kind::AllGather, input.piece());
        let block = match input {
            Some(input) => input.bytes / size_of::<T>(),
            None => self.block(kind, label, "data", output)?,
        };
        self.expect_len(kind, label, "output", output.len(), block * self.size())?;
        let counts = &Counts::new(self.size(), |_| block * size_of::<T>());
        let info = CallInfo::new(kind, label, T::DTYPE, block);
        self.call(info, Work::AllGather { input, output: Piece::of(output), counts })
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
        let counts = &Counts::new(self.size(), |rank| counts[rank] * size_of::<T>());
        let info = CallInfo::new(kind, label, T::DTYPE, output.len());
        let info = CallInfo { digest: digest(counts.iter().copied()), ..info };
        let (input, output) = (Some(Piece::of_const(input)), Piece::of(output));
        self.call(info, Work::AllGather { input, output, counts })
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
        let info = CallInfo::new(Kind::Scatter, label, T::DTYPE, output.len()).root(root);
        let input = is_root.then(|| Piece::of_const(input));
        self.call(info, Work::Scatter { input, output: Piece::of(output) })
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
        let info = CallInfo::new(Kind::Gather, label, T::DTYPE, input.len()).root(root);
        let output = is_root.then(|| Piece::of(output));
        self.call(info, Work::Gather { input: Piece::of_const(input), output })
    }

    /// `input` has one block per rank. `output` gets the block of every rank for this rank.
    pub fn all_to_all<T: Element>(&self, label: &str, input: &[T], output: &mut [T]) -> Result<()> {
        let kind = Kind::AllToAll;
        let block = self.block(kind, label, "input", input)?;
        self.expect_len(kind, label, "output", output.len(), input.len())?;
        let counts = &Counts::new(self.size(), |_| block * size_of::<T>());
        let (input, output) = (Piece::of_const(input), Piece::of(output));
        let work = Work::AllToAll { input, output, sends: counts, receives: counts };
        self.call(CallInfo::new(kind, label, T::DTYPE, block), work)
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
        let sends = &Counts::new(self.size(), |rank| sends[rank] * size_of::<T>());
        let receives = &Counts::new(self.size(), |rank| receives[rank] * size_of::<T>());
        let (input, output) = (Piece::of_const(input), Piece::of(output));
        // Element counts differ between ranks here, so the digest distinguishes it from the even
        // form.
        let info = CallInfo { digest: 1, ..CallInfo::new(kind, label, T::DTYPE, 0) };
        self.call(info, Work::AllToAll { input, output, sends, receives })
    }

    /// Returns when all ranks have called it.
    pub fn barrier(&self, label: &str) -> Result<()> {
        self.call(CallInfo::new(Kind::Barrier, label, DType::U8, 0), Work::Barrier)
    }

    /// Sends a message to one rank, which must receive it with the same label and length.
    pub fn send<T: Element>(&self, label: &str, data: &[T], to: usize) -> Result<()> {
        let info = CallInfo::new(Kind::Send, label, T::DTYPE, data.len()).root(to);
        self.call(info, Work::Send { to, data: Piece::of_const(data) })
    }

    /// Receives a message from one rank, which must send it with the same label and length.
    pub fn recv<T: Element>(&self, label: &str, into: &mut [T], from: usize) -> Result<()> {
        let info = CallInfo::new(Kind::Recv, label, T::DTYPE, into.len()).root(from);
        self.call(info, Work::Recv { from, into: Piece::of(into) })
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

    /// Calls `work` with the description and the memory of a call on whole buffers.
    fn with_pieces(
        &self,
        kind: Kind,
        label: &str,
        data: impl Buffers,
        work: impl FnOnce(CallInfo<'_>, Pieces<'_>) -> Result<()>,
    ) -> Result<()> {
        data.with(|dtype, pieces| {
            let mut each = pieces.list.iter();
            each.try_for_each(|piece| self.expect_whole(kind, label, dtype, *piece))?;
            let info = CallInfo::new(kind, label, dtype, pieces.bytes / dtype.size());
            work(CallInfo { digest: pieces.digest(), ..info }, pieces)
        })
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

    fn expect_whole(&self, kind: Kind, label: &str, dtype: DType, piece: Piece) -> Result<()> {
        let size = dtype.size();
        // An empty buffer may have any address.
        let is_aligned = piece.bytes == 0 || (piece.start as usize).is_multiple_of(size);
        if piece.bytes.is_multiple_of(size) && is_aligned {
            return Ok(());
        }
        let error =
            Error::invalid(format!("buffer is not a whole number of aligned {dtype} elements"));
        Err(self.reject_call(kind, label, error))
    }

    /// The number of elements in each rank's block of `data`.
    fn block<T>(&self, kind: Kind, label: &str, what: &str, data: &[T]) -> Result<usize> {
        let block = data.len() / self.size();
        self.expect_len(kind, label, what, data.len(), block * self.size())?;
        Ok(block)
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

    fn op(self, op: ReduceOp) -> CallInfo<'a> {
        CallInfo { op: Some(op), ..self }
    }

    fn root(self, root: usize) -> CallInfo<'a> {
        CallInfo { root, ..self }
    }
}

/// Makes a call that may report its results, and reports those that it has left in the buffers.
fn tell(
    data: Pieces<'_>,
    done: &mut dyn FnMut(usize, usize, &[u8]),
    call: impl FnOnce(Done<'_>) -> Result<()>,
) -> Result<()> {
    let mut is_reported = false;
    call(&mut |start, values| {
        is_reported = true;
        data.visit_values(start, values, &mut *done);
    })?;
    if !is_reported {
        // SAFETY: the call has ended, and only the caller borrows the buffers.
        unsafe { data.visit_pieces(done) };
    }
    Ok(())
}

fn can_reduce(dtype: DType) -> bool {
    use DType::{BF16, F16, F32, F64, I32, I64, U8};
    matches!(dtype, F32 | F64 | F16 | BF16 | I32 | I64 | U8)
}
