//! One collective as backends see it: a signature, which all ranks compare, and its memory.

use fleet_base::{Error, ReduceOp};
use fleet_kernels::fold::FoldOp;
use fleet_tensor::DType;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

/// The operations on elements that make up a reduction.
pub(crate) trait Fold {
    /// The operation for a complete reduction over `ranks`.
    fn fold(self, ranks: usize) -> FoldOp;
    /// The operation for a partial reduction. Averages are divided at the end.
    fn partial(self) -> FoldOp;
}

impl Fold for ReduceOp {
    fn fold(self, ranks: usize) -> FoldOp {
        match self {
            ReduceOp::Avg => FoldOp::Mean(ranks as u32),
            other => other.partial(),
        }
    }

    fn partial(self) -> FoldOp {
        match self {
            ReduceOp::Sum | ReduceOp::Avg => FoldOp::Sum,
            ReduceOp::Max => FoldOp::Max,
            ReduceOp::Min => FoldOp::Min,
            ReduceOp::Prod => FoldOp::Prod,
        }
    }
}

/// The kind of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Combines the values of all ranks, for all ranks.
    AllReduce = 1,
    /// Combines the values of all ranks, for one rank.
    Reduce,
    /// Combines the values of all ranks, and gives each rank a piece.
    ReduceScatter,
    /// Gives all ranks the values of every rank.
    AllGather,
    /// Gives all ranks the values of one.
    Broadcast,
    /// Gives each rank a piece of one rank's values.
    Scatter,
    /// Gives one rank the values of all.
    Gather,
    /// Sends a piece from each rank to each.
    AllToAll,
    /// Waits for all ranks.
    Barrier,
    /// Sends a message to one rank.
    Send,
    /// Receives a message from one rank.
    Recv,
}

impl Kind {
    /// Every kind with its name, in the order of their numbers.
    const ALL: [(Kind, &str); 11] = [
        (Kind::AllReduce, "all_reduce"),
        (Kind::Reduce, "reduce"),
        (Kind::ReduceScatter, "reduce_scatter"),
        (Kind::AllGather, "all_gather"),
        (Kind::Broadcast, "broadcast"),
        (Kind::Scatter, "scatter"),
        (Kind::Gather, "gather"),
        (Kind::AllToAll, "all_to_all"),
        (Kind::Barrier, "barrier"),
        (Kind::Send, "send"),
        (Kind::Recv, "recv"),
    ];

    /// Returns the name in messages: `all_reduce`.
    pub const fn name(self) -> &'static str {
        Kind::ALL[self as usize - 1].1
    }

    /// The kind with this number on the wire.
    pub(crate) fn from_number(number: u8) -> Option<Kind> {
        Kind::ALL.get((number as usize).checked_sub(1)?).map(|(kind, _)| *kind)
    }

    /// Whether one rank is the root.
    pub(crate) const fn is_rooted(self) -> bool {
        matches!(self, Kind::Reduce | Kind::Broadcast | Kind::Scatter | Kind::Gather)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The properties of a call that must be equal on every rank, in a fixed size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signature {
    /// Index among the group's collectives; for sends and receives, among those of the pair.
    pub sequence: u64,
    pub kind: Kind,
    pub dtype: DType,
    pub op: Option<ReduceOp>,
    pub root: u32,
    /// Number of elements in the whole call, or in one rank's block if blocks are equal.
    pub elements: u64,
    /// Digest of other properties that must agree, such as counts by rank.
    pub digest: u64,
    pub label: Label,
}

/// Size of a signature on the wire and in shared memory: two cache lines.
pub const SIGNATURE_BYTES: usize = 128;

impl Signature {
    pub(crate) fn encode(&self) -> [u8; SIGNATURE_BYTES] {
        let mut bytes = [0; SIGNATURE_BYTES];
        bytes[0..8].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[8] = self.kind as u8;
        bytes[9] = 1 + self.dtype as u8;
        bytes[10] = self.op.map_or(0, |op| op as u8);
        bytes[11] = self.label.len;
        bytes[12..16].copy_from_slice(&self.root.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.elements.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.digest.to_le_bytes());
        bytes[32..].copy_from_slice(&self.label.text);
        bytes
    }

    /// Decodes a signature; `None` if no rank of this version can have written it.
    pub(crate) fn decode(bytes: &[u8; SIGNATURE_BYTES]) -> Option<Signature> {
        let word = |at: usize| {
            let mut part = [0; 8];
            part.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(part)
        };
        let mut label = Label { len: bytes[11], text: [0; LABEL_BYTES_MAX] };
        label.text.copy_from_slice(&bytes[32..]);
        let op = match bytes[10] {
            0 => None,
            number => Some(*ReduceOp::ALL.get(number as usize - 1)?),
        };
        (label.len as usize <= LABEL_BYTES_MAX).then_some(Signature {
            sequence: word(0),
            kind: Kind::from_number(bytes[8])?,
            dtype: *DType::ALL.get((bytes[9] as usize).checked_sub(1)?)?,
            op,
            root: (word(8) >> 32) as u32,
            elements: word(16),
            digest: word(24),
            label,
        })
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{} '{}'", self.kind, self.sequence, self.label)?;
        if self.kind == Kind::Barrier {
            return Ok(());
        }
        write!(f, " (")?;
        if let Some(op) = self.op {
            write!(f, "{op} ")?;
        }
        write!(f, "{} x {}", self.dtype, self.elements)?;
        match self.kind {
            kind if kind.is_rooted() => write!(f, ", root {}", self.root)?,
            Kind::Send | Kind::Recv => write!(f, ", peer {}", self.root)?,
            _ => {}
        }
        if self.digest != 0 {
            write!(f, ", counts {:08x}", self.digest as u32)?;
        }
        write!(f, ")")
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// Name of the data of a call, truncated to a fixed size.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Label {
    len: u8,
    text: [u8; LABEL_BYTES_MAX],
}

/// Size of a label in bytes: what a signature has left. Longer names are cut.
pub const LABEL_BYTES_MAX: usize = 96;

impl Label {
    /// Makes a label. A long name keeps its end, which distinguishes layers.
    pub fn new(name: &str) -> Label {
        let mut start = name.len().saturating_sub(LABEL_BYTES_MAX);
        while !name.is_char_boundary(start) {
            start += 1;
        }
        let kept = &name.as_bytes()[start..];
        let mut text = [0; LABEL_BYTES_MAX];
        text[..kept.len()].copy_from_slice(kept);
        Label { len: kept.len() as u8, text }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&String::from_utf8_lossy(&self.text[..self.len as usize]))
    }
}

/// A range of the caller's memory, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    pub(crate) start: *mut u8,
    pub(crate) bytes: usize,
}

// SAFETY: a piece is made from a borrowed slice of plain elements and used within the borrow.
unsafe impl Send for Piece {}

impl Piece {
    pub(crate) fn of<T>(slice: &mut [T]) -> Piece {
        Piece { start: slice.as_mut_ptr().cast(), bytes: size_of_val(slice) }
    }

    /// A piece that is only read.
    pub(crate) fn of_const<T>(slice: &[T]) -> Piece {
        Piece { start: slice.as_ptr().cast_mut().cast(), bytes: size_of_val(slice) }
    }

    /// The block at `index`, in consecutive blocks of `bytes`.
    pub(crate) fn nth(self, bytes: usize, index: usize) -> Piece {
        self.part(index * bytes..(index + 1) * bytes)
    }

    /// The block of a rank, in consecutive blocks of these sizes.
    pub(crate) fn block(self, counts: &[usize], rank: usize) -> Piece {
        self.part(block_range(counts, rank))
    }

    fn part(self, range: Range<usize>) -> Piece {
        assert!(range.end <= self.bytes, "a block of {range:?} exceeds {} bytes", self.bytes);
        Piece { start: self.start.wrapping_add(range.start), bytes: range.len() }
    }

    /// Copies the data to a piece of the same length. The two may overlap.
    pub(crate) fn copy_to(self, to: Piece) {
        assert_eq!(self.bytes, to.bytes, "a copy to a piece of another length");
        // SAFETY: pieces are ranges of the caller's memory, borrowed for the call.
        unsafe { std::ptr::copy(self.start, to.start, self.bytes) };
    }
}

/// The range of a rank's block, in consecutive blocks of these sizes.
pub(crate) fn block_range(counts: &[usize], rank: usize) -> Range<usize> {
    let start = counts[..rank].iter().sum::<usize>();
    start..start + counts[rank]
}

/// A sequence of pieces, treated as one range of `bytes`. A fused call has several.
#[derive(Clone, Copy)]
pub struct Pieces<'a> {
    pub(crate) list: &'a [Piece],
    pub(crate) bytes: usize,
    borrow: PhantomData<&'a mut [u8]>,
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(list: &'a [Piece]) -> Pieces<'a> {
        let bytes = list.iter().map(|piece| piece.bytes).sum();
        Pieces { list, bytes, borrow: PhantomData }
    }

    /// Digest of the piece lengths, for the signature. Ranks with different lengths are in
    /// different calls.
    pub(crate) fn digest(&self) -> u64 {
        match self.list.len() {
            0 | 1 => 0,
            _ => digest(self.list.iter().map(|piece| piece.bytes)),
        }
    }

    /// Calls `visit(pointer, offset, bytes)` for the part of every piece within `start..start +
    /// bytes`; offsets are relative to `start`. The walk continues at `cursor`, so `start` must not
    /// decrease between calls.
    pub(crate) fn visit(
        &self,
        cursor: &mut Cursor,
        start: usize,
        bytes: usize,
        mut visit: impl FnMut(*mut u8, usize, usize),
    ) {
        let mut done = 0;
        while done < bytes {
            let Some(piece) = self.list.get(cursor.index) else { return };
            let inside = start + done - cursor.base;
            if inside >= piece.bytes {
                cursor.base += piece.bytes;
                cursor.index += 1;
                continue;
            }
            let part = (piece.bytes - inside).min(bytes - done);
            // SAFETY: `inside` is within the piece.
            visit(unsafe { piece.start.add(inside) }, done, part);
            done += part;
        }
    }

    /// Splits a buffer at `to` at the same offsets as `start..start + bytes`. A message has one
    /// part for each piece of its range, so a separate buffer for it must be split like the data.
    pub(crate) fn split_like(&self, start: usize, bytes: usize, to: *mut u8) -> Vec<Piece> {
        let mut list = Vec::new();
        self.visit(&mut Cursor::default(), start, bytes, |_, offset, len| {
            list.push(Piece { start: to.wrapping_add(offset), bytes: len });
        });
        list
    }

    /// Calls `visit(piece, start in the piece, values)` for every part of `values`, which begin at
    /// `start` of the whole range.
    pub(crate) fn visit_values<'v>(
        &self,
        start: usize,
        values: &'v [u8],
        visit: &mut dyn FnMut(usize, usize, &'v [u8]),
    ) {
        let mut base = 0;
        for (index, piece) in self.list.iter().enumerate() {
            let from = start.max(base);
            let to = (start + values.len()).min(base + piece.bytes);
            if from < to {
                visit(index, from - base, &values[from - start..to - start]);
            }
            base += piece.bytes;
        }
    }

    /// Calls `visit` for every piece with its current content.
    ///
    /// # Safety
    /// No other code accesses the pieces while `visit` runs.
    pub(crate) unsafe fn visit_pieces(&self, visit: &mut dyn FnMut(usize, usize, &[u8])) {
        for (index, piece) in self.list.iter().enumerate() {
            // SAFETY: the piece is borrowed for this call; the caller guarantees exclusive access.
            visit(index, 0, unsafe { std::slice::from_raw_parts(piece.start, piece.bytes) });
        }
    }

    /// # Safety
    /// `to` is writable for `bytes`.
    pub(crate) unsafe fn read(&self, cursor: &mut Cursor, start: usize, bytes: usize, to: *mut u8) {
        // SAFETY: the pieces are borrowed for this call; the caller guarantees `to`.
        self.visit(cursor, start, bytes, |piece, offset, len| unsafe {
            fleet_kernels::copy::copy(piece, to.add(offset), len);
        });
    }

    /// # Safety
    /// `from` is readable for `bytes`.
    pub(crate) unsafe fn write(
        &self,
        cursor: &mut Cursor,
        start: usize,
        bytes: usize,
        from: *const u8,
    ) {
        // SAFETY: as in `read`.
        self.visit(cursor, start, bytes, |piece, offset, len| unsafe {
            fleet_kernels::copy::copy(from.add(offset), piece, len);
        });
    }
}

/// Position of a walk over pieces.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    index: usize,
    base: usize,
}

/// Callback with (start, values) of a finished range.
pub(crate) type Done<'a> = &'a mut dyn FnMut(usize, &[u8]);

/// The operation and memory of a call. Data of a missing optional input is already in the output.
pub(crate) enum Work<'a> {
    AllReduce {
        data: Pieces<'a>,
        /// Callback for finished ranges, in any order. A backend either takes it or leaves it. If
        /// it takes it, it must report all data, and need not write the results back.
        done: Option<Done<'a>>,
    },
    Reduce {
        data: Pieces<'a>,
        /// As in an all-reduce, at the root.
        done: Option<Done<'a>>,
    },
    /// `output` may begin where this rank's block of `input` begins.
    ReduceScatter {
        input: Piece,
        output: Piece,
    },
    /// `counts` in bytes, by rank.
    AllGather {
        input: Option<Piece>,
        output: Piece,
        counts: &'a [usize],
    },
    Broadcast {
        data: Pieces<'a>,
    },
    /// Only the root has `input`.
    Scatter {
        input: Option<Piece>,
        output: Piece,
    },
    Gather {
        input: Piece,
        output: Option<Piece>,
    },
    /// Counts in bytes.
    AllToAll {
        input: Piece,
        output: Piece,
        sends: &'a [usize],
        receives: &'a [usize],
    },
    Barrier,
    Send {
        to: usize,
        data: Piece,
    },
    Recv {
        from: usize,
        into: Piece,
    },
}

/// One collective.
pub(crate) struct Call<'a> {
    pub signature: Signature,
    pub work: Work<'a>,
}

/// The error that both sides of a mismatch get.
pub(crate) fn mismatch(group: &str, a: (&str, &Signature), b: (&str, &Signature)) -> Error {
    Error::invalid(format!(
        "ranks of group '{group}' call different collectives: {} calls {}, {} calls {}",
        a.0, a.1, b.0, b.1
    ))
    .help("every rank must call the same collectives with the same arguments in the same order")
}

/// Evaluates `$body` with `$T` as the Rust type of a dtype that can be reduced.
macro_rules! with_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            fleet_tensor::DType::F32 => {
                type $T = f32;
                $body
            }
            fleet_tensor::DType::F64 => {
                type $T = f64;
                $body
            }
            fleet_tensor::DType::F16 => {
                type $T = fleet_tensor::f16;
                $body
            }
            fleet_tensor::DType::BF16 => {
                type $T = fleet_tensor::bf16;
                $body
            }
            fleet_tensor::DType::I32 => {
                type $T = i32;
                $body
            }
            fleet_tensor::DType::I64 => {
                type $T = i64;
                $body
            }
            // Bool is reduced as bytes. Other types were rejected before.
            _ => {
                type $T = u8;
                $body
            }
        }
    };
}

/// [`fleet_kernels::fold::fold_raw`] for a dtype known at run time. Each buffer has `bytes` bytes.
///
/// # Safety
/// As for that function. Pointers are aligned for the dtype.
pub(crate) unsafe fn fold_bytes(
    dtype: DType,
    op: FoldOp,
    inputs: &[*const u8],
    out: *mut u8,
    copy: Option<*mut u8>,
    bytes: usize,
) {
    // SAFETY: guaranteed by the caller. Byte pointers may be read as element pointers.
    with_type!(dtype, T => unsafe {
        let inputs = std::slice::from_raw_parts(inputs.as_ptr().cast::<*const T>(), inputs.len());
        let copy = copy.map(|copy| copy.cast::<T>());
        fleet_kernels::fold::fold_raw(op, inputs, out.cast::<T>(), copy, bytes / size_of::<T>());
    });
}

/// A digest of counts, by which ranks detect that theirs differ. Never 0.
pub(crate) fn digest(counts: impl Iterator<Item = usize>) -> u64 {
    let mix = |hash: u64, count: usize| (hash ^ count as u64).wrapping_mul(0x100_0000_01b3);
    counts.fold(0xcbf2_9ce4_8422_2325, mix) | 1
}

/// Bounds of part `index` when `elements` are split into `parts`, in elements. Inner bounds are
/// multiples of `grain`.
pub(crate) fn part(elements: usize, parts: usize, index: usize, grain: usize) -> (usize, usize) {
    let bound = |i: usize| {
        if i == parts {
            elements
        } else {
            (elements * i / parts).next_multiple_of(grain).min(elements)
        }
    };
    (bound(index), bound(index + 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signatures_survive_the_wire() {
        let signature = Signature {
            sequence: 7,
            kind: Kind::Reduce,
            dtype: DType::BF16,
            op: Some(ReduceOp::Avg),
            root: 3,
            elements: 1 << 40,
            digest: 99,
            label: Label::new(&format!("ü{}.w_0@GRAD", "layer.".repeat(30))),
        };
        let bytes = signature.encode();
        assert_eq!(Signature::decode(&bytes), Some(signature));
        let text = signature.to_string();
        assert!(
            text.starts_with("reduce #7 '") && text.contains("w_0@GRAD' (avg bf16 x"),
            "{text}"
        );
        for at in 8..12 {
            let mut garbage = bytes;
            garbage[at] = 0xee;
            assert_eq!(Signature::decode(&garbage), None, "byte {at}");
        }
    }

    #[test]
    fn parts_cover_everything_once() {
        for elements in [0, 1, 15, 16, 17, 1000, 4096] {
            for parts in 1..10 {
                let mut end = 0;
                for index in 0..parts {
                    let (from, to) = part(elements, parts, index, 16);
                    assert!(from == end && to >= from);
                    end = to;
                }
                assert_eq!(end, elements);
            }
        }
    }

    #[test]
    fn pieces_read_as_one_stretch() {
        let (mut a, mut b, mut c) = ([1u8, 2, 3], [0u8; 0], [4u8, 5]);
        let list = [Piece::of(&mut a), Piece::of(&mut b), Piece::of(&mut c)];
        let pieces = Pieces::new(&list);
        let (mut out, mut cursor) = ([0u8; 3], Cursor::default());
        // SAFETY: `out` has room for three bytes.
        unsafe { pieces.read(&mut cursor, 1, 3, out.as_mut_ptr()) };
        assert_eq!(out, [2, 3, 4]);
        // SAFETY: reads one byte; the cursor continues from the last call.
        unsafe { pieces.write(&mut cursor, 4, 1, [9u8].as_ptr()) };
        assert_eq!(c, [4, 9]);
    }
}
