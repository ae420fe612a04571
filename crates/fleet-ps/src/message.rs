//! Requests to a server and its answers, as bytes.
//!
//! ```text
//! 0  u32 table     8  u64 number of the request, counted by the client (changes only)
//! 4  u32 argument  16 u64 the client has the answers to all requests below this one (changes only)
//!                  24 u64 count of ids
//!                  32 u64 newest of the worker's steps whose gradients these are (0: none)
//!                  40 u64 steps of the worker whose gradients all servers have
//! ```
//!
//! The body follows: ids (8 bytes each), then numbers (4 bytes each). Everything is little-endian.
//! All lengths keep the numbers aligned, so that slices of them can be read in place.

use fleet_base::{Error, Result};
use std::borrow::Cow;

pub(crate) const HEAD_BYTES: usize = 48;
/// Length of the head of [`Method::Compare`]. Versions of Fleet with other heads understand this
/// one too, so that a mismatch of versions can be reported.
pub(crate) const COMPARE_HEAD_BYTES: usize = 32;

/// The method of a request. Each method defines its use of `argument`, `count` and the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Method {
    /// First request on a connection. Body: the client's text of the job, which must equal the
    /// server's; then what this server has last acknowledged to the client
    /// (`server/durable/epochs.rs`): life, epoch, sequence number. Answer: the server's number and
    /// life.
    Compare = 1,
    /// argument: [`PullMode`](crate::PullMode); body: ids. Answer: rows.
    PullSparse,
    /// argument: which of [`SHOWS`], [`CLICKS`], [`SLOTS`] are present; body: ids, gradients, and
    /// these.
    PushSparse,
    /// Answer: this server's part.
    PullDense,
    /// count: steps that the worker has made; body: this server's part of the gradient.
    PushDense,
    SetDense,
    /// argument: bits of the scale.
    SetRateScale,
    /// Body: ids, differences.
    PushGeo,
    /// Answer: a count, ids, rows.
    PullGeo,
    /// argument: steps. Answer: u64.
    PushSteps,
    /// argument: [`Arrival`](crate::Arrival); count: steps that the worker has made. Answer: the
    /// round.
    Arrive,
    /// argument: [`Arrival`](crate::Arrival); count: the round; body: u64, longest wait in
    /// milliseconds. Answer: three u32 for each missing worker: its number and its
    /// [`WorkerSign`](crate::server::WorkerSign).
    Wait,
    /// count: steps that the worker has made. Answer: 1 if all workers have finished or are lost.
    Finish,
    Stop,
    /// argument: days, or [`DAYS_DEFAULT`]. Answer: u64, the number of rows deleted.
    Shrink,
    /// Answer: the numbers of [`TableStats`](crate::TableStats), in order.
    Stats,
    /// Body: a folder. Answer: the number of the latest save there.
    LastSave,
    /// argument: the mode, with the flags [`BINARY`] and [`ONE`] (this table alone); count: the
    /// number of the save; body: a folder. Answer: rows, bytes.
    Save,
    /// argument: 1 if all servers have written their parts; count: the number of the save.
    EndSave,
    /// argument: [`ONE`] for this table alone, or 0; body: a folder. Answer: the number of rows and
    /// dense numbers.
    Load,
    /// Heartbeat of a worker; count: steps that it has made.
    Heartbeat,
    /// argument: [`Arrival`](crate::Arrival). Answer: the number of rounds that all workers have
    /// completed there.
    Rounds,
    /// Answer: the number of rows deleted.
    Clear,
    /// Answer: the state of every worker (`seen.rs`).
    Workers,
    /// A run begins; count: steps before it. `Head::complete` says which of the worker's steps are
    /// complete.
    BeginRun,
    /// This process takes over the worker: pushes of its earlier processes are rejected from now
    /// on. Answer: their progress (`progress.rs`).
    Adopt,
    /// The process resumes from that progress: the earlier steps count as its own.
    Resume,
    /// Never sent. A server logs it when all processes of a synchronous job are new.
    NewRun,
    /// count: steps that some server has applied. Brings the server to that step.
    Settle,
}

/// Length of the end of an answer to a changing request: the epoch of the server, and the number
/// below which its requests are kept.
pub(crate) const ACKNOWLEDGEMENT_BYTES: usize = 16;

pub(crate) const SHOWS: u32 = 1;
pub(crate) const CLICKS: u32 = 2;
pub(crate) const SLOTS: u32 = 4;
pub(crate) const DAYS_DEFAULT: u32 = u32::MAX;
pub(crate) const BINARY: u32 = 1 << 8;
pub(crate) const ONE: u32 = 1 << 9;

const METHODS: [Method; 29] = [
    Method::Compare,
    Method::PullSparse,
    Method::PushSparse,
    Method::PullDense,
    Method::PushDense,
    Method::SetDense,
    Method::SetRateScale,
    Method::PushGeo,
    Method::PullGeo,
    Method::PushSteps,
    Method::Arrive,
    Method::Wait,
    Method::Finish,
    Method::Stop,
    Method::Shrink,
    Method::Stats,
    Method::LastSave,
    Method::Save,
    Method::EndSave,
    Method::Load,
    Method::Heartbeat,
    Method::Rounds,
    Method::Clear,
    Method::Workers,
    Method::BeginRun,
    Method::Adopt,
    Method::Resume,
    Method::NewRun,
    Method::Settle,
];

impl Method {
    pub fn parse(byte: u8) -> Result<Method> {
        METHODS
            .iter()
            .find(|method| **method as u8 == byte)
            .copied()
            .ok_or_else(|| Error::unsupported("unknown method in a request").got(byte))
    }

    /// Returns whether a byte is a known method; cheaper than the error of [`Method::parse`].
    pub fn is_known(byte: u8) -> bool {
        METHODS.iter().any(|method| *method as u8 == byte)
    }

    /// Returns whether running it a second time would be wrong.
    pub fn changes(self) -> bool {
        use Method as M;
        let reads = matches!(self, M::Compare | M::PullSparse | M::PullDense | M::Wait | M::Stop);
        !(reads || matches!(self, M::Stats | M::LastSave | M::Heartbeat | M::Rounds | M::Workers))
    }

    /// Returns whether it carries results of a worker's steps.
    pub fn is_push(self) -> bool {
        use Method as M;
        matches!(self, M::PushSparse | M::PushDense | M::PushGeo | M::PushSteps)
    }

    /// Returns whether it concerns whole tables and no worker, so that operators may send it.
    pub fn is_control(self) -> bool {
        use Method as M;
        let saves = matches!(self, M::LastSave | M::Save | M::EndSave | M::Load);
        saves || matches!(self, M::Compare | M::Stats | M::Shrink)
    }

    /// Returns whether the answer is long: rows or parameters.
    pub fn answers_at_length(self) -> bool {
        matches!(self, Method::PullSparse | Method::PullDense)
    }

    /// Returns whether the time that it takes grows with the tables.
    pub fn takes_long(self) -> bool {
        matches!(self, Method::Save | Method::Load | Method::Shrink | Method::Clear)
    }
}

/// The head of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Head {
    pub table: u32,
    pub argument: u32,
    pub seq: u64,
    pub done: u64,
    pub count: u64,
    pub step: u64,
    pub complete: u64,
}

impl Head {
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..4].copy_from_slice(&self.table.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.argument.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.seq.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.done.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.count.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.step.to_le_bytes());
        bytes[40..].copy_from_slice(&self.complete.to_le_bytes());
        bytes
    }

    /// Splits a request into its head and its body.
    pub fn decode(method: Method, request: &[u8]) -> Result<(Head, Body<'_>)> {
        let mut body = Body(request);
        let (table, argument) = (body.u32()?, body.u32()?);
        let (seq, done, count) = (body.u64()?, body.u64()?, body.u64()?);
        let (step, complete) = match method {
            Method::Compare => (0, 0),
            _ => (body.u64()?, body.u64()?),
        };
        Ok((Head { table, argument, seq, done, count, step, complete }, body))
    }
}

/// The unread rest of a message. Reads check every length, because the peer is not trusted.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, count: u64, width: usize) -> Result<&'a [u8]> {
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(width));
        let split = bytes.and_then(|bytes| self.0.split_at_checked(bytes));
        let (taken, rest) = split.ok_or_else(|| {
            Error::invalid("message is shorter than its header states")
                .expected(format!("{count} x {width} more bytes"))
                .got(self.0.len())
        })?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u32(&mut self) -> Result<u32> {
        let bytes = self.take(1, 4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub fn u64(&mut self) -> Result<u64> {
        Ok(u64::from(self.u32()?) | u64::from(self.u32()?) << 32)
    }

    pub fn u64s(&mut self, count: u64) -> Result<Cow<'a, [u64]>> {
        let bytes = self.take(count, 8)?;
        Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(numbers) if cfg!(target_endian = "little") => Cow::Borrowed(numbers),
            _ => bytes
                .chunks_exact(8)
                .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
                .collect(),
        })
    }

    pub fn u32s(&mut self, count: u64) -> Result<Cow<'a, [u32]>> {
        let bytes = self.take(count, 4)?;
        Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(numbers) if cfg!(target_endian = "little") => Cow::Borrowed(numbers),
            _ => bytes
                .chunks_exact(4)
                .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
        })
    }

    pub fn f32s(&mut self, count: u64) -> Result<Cow<'a, [f32]>> {
        Ok(match self.u32s(count)? {
            Cow::Borrowed(bits) => Cow::Borrowed(bytemuck::cast_slice(bits)),
            Cow::Owned(bits) => bits.into_iter().map(f32::from_bits).collect(),
        })
    }

    /// Reads the rest as numbers.
    pub fn rest_f32s(&mut self) -> Result<Cow<'a, [f32]>> {
        let numbers = self.f32s(self.0.len() as u64 / 4)?;
        self.end()?;
        Ok(numbers)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = self.u64()?;
        self.take(count, 1)
    }

    pub fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| Error::invalid("text in a message is not UTF-8"))
    }

    pub fn end(&self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(Error::invalid("message is longer than its header states")
                .got(format!("{more} more bytes"))),
        }
    }
}

/// Returns numbers as the bytes of a message.
pub(crate) fn bytes_of<T: Number>(numbers: &[T]) -> Cow<'_, [u8]> {
    match cfg!(target_endian = "little") {
        true => Cow::Borrowed(bytemuck::cast_slice(numbers)),
        false => numbers.iter().flat_map(|number| number.little()).collect(),
    }
}

pub(crate) trait Number: bytemuck::Pod {
    /// Returns its bytes, lowest first.
    fn little(&self) -> Vec<u8>;
}

macro_rules! number {
    ($($t:ty)*) => {$(
        impl Number for $t {
            fn little(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        }
    )*};
}
number!(u32 u64 f32);

/// Appends `count` numbers to `answer`; `fill` writes them.
pub(crate) fn fill_f32s(
    answer: &mut Vec<u8>,
    count: usize,
    fill: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<()> {
    let start = answer.len();
    answer.resize(start + count * 4, 0);
    match bytemuck::try_cast_slice_mut(&mut answer[start..]) {
        Ok(numbers) if cfg!(target_endian = "little") => fill(numbers),
        _ => {
            let mut numbers = vec![0.0; count];
            let result = fill(&mut numbers);
            answer.truncate(start);
            numbers.iter().for_each(|number| answer.extend(number.to_le_bytes()));
            result
        }
    }
}

/// Copies the numbers of a message into `out`, which has the same length.
pub(crate) fn copy_f32s(bytes: &[u8], out: &mut [f32]) {
    if cfg!(target_endian = "little") {
        bytemuck::cast_slice_mut(out).copy_from_slice(bytes);
        return;
    }
    for (number, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *number = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_the_numbers_of_their_list() {
        for (at, method) in METHODS.into_iter().enumerate() {
            assert_eq!(method as usize, at + 1);
            assert_eq!(Method::parse(method as u8).unwrap(), method);
        }
        assert!(Method::parse(0).is_err() && Method::parse(METHODS.len() as u8 + 1).is_err());
    }

    #[test]
    fn messages_round_trip_wherever_they_stand_in_memory() {
        let head = Head {
            table: 7,
            argument: 2,
            seq: 1 << 40,
            done: 3,
            count: 2,
            step: 9,
            complete: 1 << 50,
        };
        for shift in 0..9 {
            let mut bytes = vec![0; shift];
            bytes.extend(head.encode());
            bytes.extend(bytes_of(&[u64::MAX, 5]).iter());
            bytes.extend(bytes_of(&[1.5f32, -2.0]).iter());
            let (got, mut body) = Head::decode(Method::PushSparse, &bytes[shift..]).unwrap();
            assert_eq!(got, head);
            assert_eq!(*body.u64s(got.count).unwrap(), [u64::MAX, 5]);
            let mut out = [0.0; 2];
            copy_f32s(body.0, &mut out);
            assert_eq!(out, [1.5, -2.0]);
            assert_eq!(*body.rest_f32s().unwrap(), out);
            let mut answer = vec![1; shift];
            fill_f32s(&mut answer, 2, |numbers| {
                numbers.copy_from_slice(&out);
                Ok(())
            })
            .unwrap();
            assert_eq!(answer[shift..], bytes[bytes.len() - 8..]);
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        let bytes = Head { count: u64::MAX, ..Head::default() }.encode();
        let (head, mut body) = Head::decode(Method::PushSparse, &bytes).unwrap();
        assert!(body.u64s(head.count).is_err());
        assert!(Head::decode(Method::PushSparse, &bytes[..HEAD_BYTES - 1]).is_err());
        assert!(Body(&[1, 2, 3]).rest_f32s().is_err(), "not whole numbers");
        assert!(Body(&[255; 12]).text().is_err());
    }
}
