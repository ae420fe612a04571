//! Requests to a server: their contents, and their bytes.
//!
//! ```text
//! 0  u32 table     8  u64 number of the request, counted by the client (changes only)
//! 4  u32 argument  16 u64 the client has the answers to all requests below this one (changes only)
//!                  24 u64 count
//!                  32 u64 newest of the worker's steps whose gradients these are (0: none)
//!                  40 u64 steps of the worker whose gradients all servers have
//! ```
//!
//! The body follows: ids (8 bytes each), then numbers (4 bytes each), or a text. Everything is
//! little-endian. All lengths keep the numbers aligned, so that slices of them can be read in
//! place. `wire` and `decode` say which fields a request uses. Durable servers log these bytes.

use crate::message::{Body, bytes_of};
use crate::{Arrival, PullMode, SaveFormat, SaveMode};
use fleet_base::{Error, Result};
use std::borrow::Cow;
use std::time::Duration;

const HEAD_BYTES: usize = 48;
/// Length of the head of [`Method::Compare`]. Versions of Fleet with other heads understand this
/// one too, so that a mismatch of versions can be reported.
const COMPARE_HEAD_BYTES: usize = 32;

/// Flags of a push of rows: the numbers that follow the gradients.
const SHOWS: u32 = 1;
const CLICKS: u32 = 2;
const SLOTS: u32 = 4;
/// Argument of an arrival at [`Arrival::Sent`] without gradients; see [`Change::Arrive`].
const SKIPPED: u32 = 2;
/// The table's own limit on the age of its rows.
const DAYS_DEFAULT: u32 = u32::MAX;
/// Flags of saves and loads, beside the mode.
const BINARY: u32 = 1 << 8;
const ONE_TABLE: u32 = 1 << 9;

/// Defines the methods: the byte of each, whether it reads or changes something, and its name.
macro_rules! methods {
    ($($byte:literal $kind:ident $name:ident,)*) => {
        /// The kind of a request, as one byte.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Method {
            $($name = $byte,)*
        }

        const METHODS: &[Method] = &[$(Method::$name),*];

        impl Method {
            /// Returns whether running it a second time would be wrong: it is a [`Change`].
            pub fn changes(self) -> bool {
                match self {
                    $(Method::$name => $kind::CHANGES,)*
                }
            }
        }

        impl Request<'_> {
            pub fn method(&self) -> Method {
                match self {
                    $(Request::$kind($kind::$name { .. }) => Method::$name,)*
                }
            }
        }
    };
}
methods! {
    1 Read Compare, 2 Read PullSparse, 3 Change PushSparse, 4 Read PullDense, 5 Change PushDense,
    6 Change SetDense, 7 Change SetRateScale, 8 Change PushGeo, 9 Change PullGeo,
    10 Change PushSteps, 11 Change Arrive, 12 Read Wait, 13 Change Finish, 14 Read Stop,
    15 Change Shrink, 16 Read Stats, 17 Read LastSave, 18 Change Save, 19 Change EndSave,
    20 Change Load, 21 Read Heartbeat, 22 Read Rounds, 23 Change Clear, 24 Read Workers,
    25 Change BeginRun, 26 Change Adopt, 27 Change Resume, 28 Change NewRun, 29 Change Settle,
    30 Change Keep,
}

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

    /// Returns whether it carries results of a worker's steps.
    pub fn is_push(self) -> bool {
        use Method as M;
        matches!(self, M::PushSparse | M::PushDense | M::PushGeo | M::PushSteps | M::Keep)
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

/// The content of a request.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Request<'a> {
    Read(Read<'a>),
    Change(Change<'a>),
}

/// A request that may run any number of times.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Read<'a> {
    /// First request on a connection: the client's text of the job, which must equal the server's,
    /// and what this server has last acknowledged to the client (`server/durable/epochs.rs`): life,
    /// epoch, sequence number (`None` from another version). Answer: the server's number and
    /// life.
    Compare {
        job: &'a str,
        acknowledged: Option<[u64; 3]>,
    },
    /// Answer: rows.
    PullSparse {
        table: u32,
        mode: PullMode,
        ids: Cow<'a, [u64]>,
    },
    /// Answer: this server's part.
    PullDense {
        table: u32,
    },
    /// Waits for a round of a barrier. Answer: three u32 for each missing worker: its number and
    /// its [`WorkerSign`](crate::server::WorkerSign).
    Wait {
        at: Arrival,
        round: u64,
        timeout: Duration,
    },
    Stop,
    /// Answer: the numbers of [`TableStats`](crate::TableStats), in order.
    Stats {
        table: u32,
    },
    /// Answer: the number of the latest save in the folder.
    LastSave {
        dir: &'a str,
    },
    /// Heartbeat of a worker, with the steps that it has made.
    Heartbeat {
        steps: u64,
    },
    /// Answer: the number of rounds that all workers have completed at a barrier.
    Rounds {
        at: Arrival,
    },
    /// Answer: the state of every worker (`seen.rs`).
    Workers,
}

/// A request that runs once, however often it is sent.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Change<'a> {
    /// Each id once: the sender has merged equal ones.
    PushSparse {
        table: u32,
        ids: Cow<'a, [u64]>,
        grads: Cow<'a, [f32]>,
        shows: Option<Cow<'a, [f32]>>,
        clicks: Option<Cow<'a, [f32]>>,
        slots: Option<Cow<'a, [u32]>>,
    },
    /// This server's part of the gradient, and the steps that the worker has made.
    PushDense {
        table: u32,
        steps: u64,
        grad: Cow<'a, [f32]>,
    },
    SetDense {
        table: u32,
        values: Cow<'a, [f32]>,
    },
    SetRateScale {
        table: u32,
        scale: f32,
    },
    PushGeo {
        table: u32,
        ids: Cow<'a, [u64]>,
        differences: Cow<'a, [f32]>,
    },
    /// Answer: a count, ids, rows.
    PullGeo {
        table: u32,
    },
    /// Answer: u64, the steps of all workers.
    PushSteps {
        table: u32,
        steps: u32,
    },
    /// `steps` that the worker has made. `skipped`: at [`Arrival::Sent`], the worker has pushed no
    /// gradients for this step. Answer: the round.
    Arrive {
        at: Arrival,
        steps: u64,
        skipped: bool,
    },
    /// `steps` that the worker has made. Answer: 1 if all workers have finished or are lost.
    Finish {
        steps: u64,
    },
    /// Answer: u64, the number of rows deleted.
    Shrink {
        table: u32,
        unseen_days: Option<u8>,
    },
    /// Of one table or of all. Answer: rows, bytes.
    Save {
        id: u64,
        table: Option<u32>,
        dir: &'a str,
        mode: SaveMode,
        format: SaveFormat,
    },
    /// `keep`: all servers have written their parts.
    EndSave {
        id: u64,
        keep: bool,
    },
    /// Of one table or of all. Answer: the number of rows and dense numbers.
    Load {
        table: Option<u32>,
        dir: &'a str,
    },
    /// Answer: the number of rows deleted.
    Clear {
        table: u32,
    },
    /// A run begins after `base` steps. [`Stamp::complete`] says which of the worker's steps are
    /// complete.
    BeginRun {
        base: u64,
    },
    /// This process takes over the worker: pushes of its earlier processes are rejected from now
    /// on. Answer: their progress (`progress.rs`).
    Adopt,
    /// The process resumes from that progress ([`Stamp::complete`]): the earlier steps count as its
    /// own.
    Resume,
    /// Never sent. A server logs it when all processes of a synchronous job are new.
    NewRun,
    /// Brings the server to a step that some server has applied.
    Settle {
        steps: u64,
    },
    /// State of the worker after [`Stamp::step`], for its next process. It replaces the last one.
    Keep {
        state: Cow<'a, [u64]>,
    },
}

/// The numbers that every request carries beside its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Number of a change, counted by the client.
    pub seq: u64,
    /// The client has the answers to all changes below this one.
    pub done: u64,
    /// Newest of the worker's steps whose gradients these are; 0 for none.
    pub step: u64,
    /// Steps of the worker whose gradients all servers have.
    pub complete: u64,
}

/// The fields of a request that depend on its content.
#[derive(Default)]
struct Wire<'a> {
    table: u32,
    argument: u32,
    count: u64,
    body: Vec<Cow<'a, [u8]>>,
}

/// A request to one server, as bytes: a head, and parts that are sent one after another.
pub struct Message<'a> {
    pub(crate) server: usize,
    pub(crate) method: Method,
    head: [u8; HEAD_BYTES],
    body: Vec<Cow<'a, [u8]>>,
}

impl<'a> Message<'a> {
    pub(crate) fn new(server: usize, stamp: Stamp, request: &'a Request<'a>) -> Message<'a> {
        let Wire { table, argument, count, body } = request.wire();
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&table.to_le_bytes());
        head[4..8].copy_from_slice(&argument.to_le_bytes());
        head[8..16].copy_from_slice(&stamp.seq.to_le_bytes());
        head[16..24].copy_from_slice(&stamp.done.to_le_bytes());
        head[24..32].copy_from_slice(&count.to_le_bytes());
        head[32..40].copy_from_slice(&stamp.step.to_le_bytes());
        head[40..].copy_from_slice(&stamp.complete.to_le_bytes());
        Message { server, method: request.method(), head, body }
    }

    /// Returns the parts to be sent.
    pub(crate) fn parts(&self) -> Vec<&[u8]> {
        let head = match self.method {
            Method::Compare => &self.head[..COMPARE_HEAD_BYTES],
            _ => &self.head[..],
        };
        std::iter::once(head).chain(self.body.iter().map(|part| &**part)).collect()
    }

    /// Returns all bytes in one piece.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.parts().concat()
    }
}

impl<'a> Request<'a> {
    fn wire(&self) -> Wire<'_> {
        match self {
            Request::Read(read) => read.wire(),
            Request::Change(change) => change.wire(),
        }
    }

    /// Reads a request, whose sender is not trusted.
    pub fn decode(method: Method, bytes: &'a [u8]) -> Result<(Stamp, Request<'a>)> {
        let mut body = Body(bytes);
        let (table, argument) = (body.u32()?, body.u32()?);
        let (seq, done, count) = (body.u64()?, body.u64()?, body.u64()?);
        let (step, complete) = match method {
            Method::Compare => (0, 0),
            _ => (body.u64()?, body.u64()?),
        };
        let fields = Fields { table, argument, count, body };
        let request = match method.changes() {
            false => Request::Read(Read::decode(method, fields)?),
            true => Request::Change(Change::decode(method, fields)?),
        };
        Ok((Stamp { seq, done, step, complete }, request))
    }
}

/// The fields of a request that arrived.
struct Fields<'a> {
    table: u32,
    argument: u32,
    count: u64,
    body: Body<'a>,
}

impl Fields<'_> {
    fn barrier(&self) -> Result<Arrival> {
        match self.argument {
            0 => Ok(Arrival::Sent),
            1 => Ok(Arrival::Received),
            other => Err(Error::invalid("unknown barrier").expected("0 or 1").got(other)),
        }
    }

    fn pull_mode(&self) -> Result<PullMode> {
        match self.argument {
            0 => Ok(PullMode::Train),
            1 => Ok(PullMode::Infer),
            2 => Ok(PullMode::InferInitial),
            other => Err(Error::invalid("unknown pull mode").expected("0 to 2").got(other)),
        }
    }

    /// Returns the table that a save or load is limited to, if it is.
    fn one_table(&self) -> Option<u32> {
        (self.argument & ONE_TABLE != 0).then_some(self.table)
    }
}

impl<'a> From<Read<'a>> for Request<'a> {
    fn from(read: Read<'a>) -> Request<'a> {
        Request::Read(read)
    }
}

impl<'a> From<Change<'a>> for Request<'a> {
    fn from(change: Change<'a>) -> Request<'a> {
        Request::Change(change)
    }
}

impl<'a> Read<'a> {
    const CHANGES: bool = false;

    fn wire(&self) -> Wire<'_> {
        let none = Wire::default();
        match self {
            Read::Compare { job, acknowledged } => {
                let acknowledged = acknowledged.as_ref().map(|it| bytes_of(&it[..]));
                let body = std::iter::once(text_bytes(job)).chain(acknowledged).collect();
                Wire { body, ..none }
            }
            Read::PullSparse { table, mode, ids } => Wire {
                table: *table,
                argument: *mode as u32,
                count: ids.len() as u64,
                body: vec![bytes_of::<u64>(ids)],
            },
            Read::PullDense { table } | Read::Stats { table } => Wire { table: *table, ..none },
            Read::Wait { at, round, timeout } => {
                let milliseconds = (timeout.as_millis() as u64).to_le_bytes();
                let body = vec![Cow::Owned(milliseconds.to_vec())];
                Wire { argument: *at as u32, count: *round, body, ..none }
            }
            Read::LastSave { dir } => Wire { body: vec![text_bytes(dir)], ..none },
            Read::Heartbeat { steps } => Wire { count: *steps, ..none },
            Read::Rounds { at } => Wire { argument: *at as u32, ..none },
            Read::Stop | Read::Workers => none,
        }
    }

    fn decode(method: Method, mut fields: Fields<'a>) -> Result<Read<'a>> {
        let Fields { table, count, ref mut body, .. } = fields;
        let read = match method {
            Method::Compare => {
                // Another version may have less or more behind the text, which tells the versions
                // apart.
                let job = body.text()?;
                let acknowledged = match [body.u64(), body.u64(), body.u64()] {
                    [Ok(life), Ok(epoch), Ok(seq)] => Some([life, epoch, seq]),
                    _ => None,
                };
                return Ok(Read::Compare { job, acknowledged });
            }
            Method::PullSparse => {
                let ids = body.numbers(count)?;
                Read::PullSparse { table, mode: fields.pull_mode()?, ids }
            }
            Method::Wait => {
                let timeout = Duration::from_millis(body.u64()?);
                Read::Wait { at: fields.barrier()?, round: count, timeout }
            }
            Method::LastSave => Read::LastSave { dir: body.text()? },
            Method::PullDense => Read::PullDense { table },
            Method::Stop => Read::Stop,
            Method::Stats => Read::Stats { table },
            Method::Heartbeat => Read::Heartbeat { steps: count },
            Method::Rounds => Read::Rounds { at: fields.barrier()? },
            Method::Workers => Read::Workers,
            other => {
                let error = Error::unsupported("request is not a read");
                return Err(error.got(format!("{other:?}")));
            }
        };
        fields.body.end().map(|()| read)
    }
}

impl<'a> Change<'a> {
    const CHANGES: bool = true;

    /// Returns the table that gets results of a worker's steps, if any does.
    pub fn pushed_table(&self) -> Option<u32> {
        match self {
            Change::PushSparse { table, .. }
            | Change::PushDense { table, .. }
            | Change::PushGeo { table, .. }
            | Change::PushSteps { table, .. } => Some(*table),
            _ => None,
        }
    }

    fn wire(&self) -> Wire<'_> {
        let none = Wire::default();
        match self {
            Change::PushSparse { table, ids, grads, shows, clicks, slots } => {
                let mut wire = Wire { table: *table, count: ids.len() as u64, ..none };
                wire.body = vec![bytes_of::<u64>(ids), bytes_of::<f32>(grads)];
                wire.extra(SHOWS, shows.as_deref().map(bytes_of));
                wire.extra(CLICKS, clicks.as_deref().map(bytes_of));
                wire.extra(SLOTS, slots.as_deref().map(bytes_of));
                wire
            }
            Change::PushDense { table, steps, grad } => {
                Wire { table: *table, count: *steps, body: vec![bytes_of::<f32>(grad)], ..none }
            }
            Change::SetDense { table, values } => {
                Wire { table: *table, body: vec![bytes_of::<f32>(values)], ..none }
            }
            Change::SetRateScale { table, scale } => {
                Wire { table: *table, argument: scale.to_bits(), ..none }
            }
            Change::PushGeo { table, ids, differences } => {
                let body = vec![bytes_of::<u64>(ids), bytes_of::<f32>(differences)];
                Wire { table: *table, count: ids.len() as u64, body, ..none }
            }
            Change::PushSteps { table, steps } => Wire { table: *table, argument: *steps, ..none },
            Change::Arrive { at, steps, skipped } => {
                let argument = if *skipped { SKIPPED } else { *at as u32 };
                Wire { argument, count: *steps, ..none }
            }
            Change::Shrink { table, unseen_days } => {
                let argument = unseen_days.map_or(DAYS_DEFAULT, u32::from);
                Wire { table: *table, argument, ..none }
            }
            Change::Save { id, table, dir, mode, format } => {
                let binary = if *format == SaveFormat::Binary { BINARY } else { 0 };
                let wire = Wire::of_folder(*table, dir);
                Wire { argument: *mode as u32 | binary | wire.argument, count: *id, ..wire }
            }
            Change::EndSave { id, keep } => Wire { argument: u32::from(*keep), count: *id, ..none },
            Change::Load { table, dir } => Wire::of_folder(*table, dir),
            Change::PullGeo { table } | Change::Clear { table } => Wire { table: *table, ..none },
            Change::Finish { steps: count }
            | Change::BeginRun { base: count }
            | Change::Settle { steps: count } => Wire { count: *count, ..none },
            Change::Keep { state } => {
                Wire { count: state.len() as u64, body: vec![bytes_of::<u64>(state)], ..none }
            }
            Change::Adopt | Change::Resume | Change::NewRun => none,
        }
    }

    fn decode(method: Method, mut fields: Fields<'a>) -> Result<Change<'a>> {
        let Fields { table, argument, count, ref mut body } = fields;
        let change = match method {
            Method::PushSparse => Change::decode_rows((table, argument, count), body)?,
            Method::PushDense => Change::PushDense { table, steps: count, grad: body.rest_f32s()? },
            Method::SetDense => Change::SetDense { table, values: body.rest_f32s()? },
            Method::PushGeo => {
                let ids = body.numbers(count)?;
                Change::PushGeo { table, ids, differences: body.rest_f32s()? }
            }
            Method::Save => {
                let dir = body.text();
                let mode = SaveMode::parse(i64::from(argument & !(BINARY | ONE_TABLE)))?;
                let binary = argument & BINARY != 0;
                let format = if binary { SaveFormat::Binary } else { SaveFormat::Text };
                Change::Save { id: count, table: fields.one_table(), dir: dir?, mode, format }
            }
            Method::Load => {
                let dir = body.text()?;
                Change::Load { table: fields.one_table(), dir }
            }
            Method::SetRateScale => Change::SetRateScale { table, scale: f32::from_bits(argument) },
            Method::PullGeo => Change::PullGeo { table },
            Method::PushSteps => Change::PushSteps { table, steps: argument },
            Method::Arrive if argument == SKIPPED => {
                Change::Arrive { at: Arrival::Sent, steps: count, skipped: true }
            }
            Method::Arrive => {
                Change::Arrive { at: fields.barrier()?, steps: count, skipped: false }
            }
            Method::Finish => Change::Finish { steps: count },
            Method::Shrink => {
                let days = (argument != DAYS_DEFAULT).then_some(argument);
                let unseen_days = days.map(|days| u8::try_from(days).unwrap_or(u8::MAX));
                Change::Shrink { table, unseen_days }
            }
            Method::EndSave => Change::EndSave { id: count, keep: argument == 1 },
            Method::Clear => Change::Clear { table },
            Method::BeginRun => Change::BeginRun { base: count },
            Method::Adopt => Change::Adopt,
            Method::Resume => Change::Resume,
            Method::NewRun => Change::NewRun,
            Method::Settle => Change::Settle { steps: count },
            Method::Keep => Change::Keep { state: body.numbers(count)? },
            other => {
                let error = Error::unsupported("request is not a change");
                return Err(error.got(format!("{other:?}")));
            }
        };
        fields.body.end().map(|()| change)
    }

    /// Reads a push of rows. The gradients' width is what the other numbers leave.
    fn decode_rows(
        (table, argument, count): (u32, u32, u64),
        body: &mut Body<'a>,
    ) -> Result<Change<'a>> {
        let ids = body.numbers(count)?;
        let has = |flag: u32| argument & flag != 0;
        let extras = [SHOWS, CLICKS, SLOTS].into_iter().filter(|flag| has(*flag)).count() as u64;
        let after = count.saturating_mul(extras);
        let grads = (body.0.len() as u64 / 4).checked_sub(after).ok_or_else(|| {
            Error::invalid("message is shorter than its header states")
                .expected(format!("{after} numbers after the gradients"))
                .got(format!("{} bytes", body.0.len()))
        })?;
        let grads = body.numbers(grads)?;
        let shows = has(SHOWS).then(|| body.numbers(count)).transpose()?;
        let clicks = has(CLICKS).then(|| body.numbers(count)).transpose()?;
        let slots = has(SLOTS).then(|| body.numbers(count)).transpose()?;
        Ok(Change::PushSparse { table, ids, grads, shows, clicks, slots })
    }
}

impl<'a> Wire<'a> {
    /// Appends numbers that a flag announces, if there are any.
    fn extra(&mut self, flag: u32, numbers: Option<Cow<'a, [u8]>>) {
        if let Some(numbers) = numbers {
            self.argument |= flag;
            self.body.push(numbers);
        }
    }

    /// Returns a request about a folder with one table, or all.
    fn of_folder(table: Option<u32>, dir: &str) -> Wire<'a> {
        let argument = if table.is_some() { ONE_TABLE } else { 0 };
        let table = table.unwrap_or_default();
        Wire { table, argument, body: vec![text_bytes(dir)], ..Wire::default() }
    }
}

/// Returns a text as in a message, after its length.
fn text_bytes<'a>(text: &str) -> Cow<'a, [u8]> {
    [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids() -> Cow<'static, [u64]> {
        vec![u64::MAX, 5].into()
    }

    fn numbers(count: usize) -> Cow<'static, [f32]> {
        (0..count).map(|at| at as f32 - 1.5).collect()
    }

    /// One request of each method, and some more forms.
    fn requests() -> Vec<Request<'static>> {
        let (at, dir, steps) = (Arrival::Received, "a folder", 9);
        let reads = [
            Read::Compare { job: "text", acknowledged: Some([1, 2, 3]) },
            Read::PullSparse { table: 7, mode: PullMode::InferInitial, ids: ids() },
            Read::PullDense { table: 7 },
            Read::Wait { at, round: 3, timeout: Duration::from_millis(1 << 33) },
            Read::Stop,
            Read::Stats { table: 7 },
            Read::LastSave { dir },
            Read::Heartbeat { steps },
            Read::Rounds { at: Arrival::Sent },
            Read::Workers,
        ];
        let push = |shows, clicks, slots| Change::PushSparse {
            table: 7,
            ids: ids(),
            grads: numbers(6),
            shows,
            clicks,
            slots,
        };
        let (mode, format) = (SaveMode::Delta, SaveFormat::Binary);
        let changes = [
            push(None, None, None),
            push(Some(numbers(2)), None, Some(vec![1, 2].into())),
            push(Some(numbers(2)), Some(numbers(2)), None),
            Change::PushDense { table: 7, steps, grad: numbers(3) },
            Change::SetDense { table: 7, values: numbers(4) },
            Change::SetRateScale { table: 7, scale: 0.25 },
            Change::PushGeo { table: 7, ids: ids(), differences: numbers(4) },
            Change::PullGeo { table: 7 },
            Change::PushSteps { table: 7, steps: 2 },
            Change::Arrive { at, steps, skipped: false },
            Change::Arrive { at: Arrival::Sent, steps, skipped: true },
            Change::Finish { steps },
            Change::Shrink { table: 7, unseen_days: Some(3) },
            Change::Shrink { table: 7, unseen_days: None },
            Change::Save { id: 4, table: Some(7), dir, mode, format },
            Change::Save { id: 4, table: None, dir, mode, format: SaveFormat::Text },
            Change::EndSave { id: 4, keep: true },
            Change::Load { table: Some(0), dir },
            Change::Load { table: None, dir },
            Change::Clear { table: 7 },
            Change::BeginRun { base: 6 },
            Change::Adopt,
            Change::Resume,
            Change::NewRun,
            Change::Settle { steps },
            Change::Keep { state: ids() },
        ];
        let reads = reads.into_iter().map(Request::Read);
        reads.chain(changes.into_iter().map(Request::Change)).collect()
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let all = requests();
        for method in METHODS {
            assert!(all.iter().any(|request| request.method() == *method), "{method:?}");
        }
        for request in all {
            let stamp = match request.method() {
                Method::Compare => Stamp { seq: 1 << 40, done: 3, ..Stamp::default() },
                _ => Stamp { seq: 1 << 40, done: 3, step: 9, complete: 1 << 50 },
            };
            let method = request.method();
            let bytes = Message::new(0, stamp, &request).bytes();
            let (got, read) = Request::decode(method, &bytes).unwrap();
            assert_eq!((got, &read), (stamp, &request));
            assert_eq!(matches!(read, Request::Change(_)), method.changes(), "{method:?}");
            // Each shorter or longer message is another request or an error, never a panic.
            for len in 0..bytes.len() {
                let shorter = Request::decode(method, &bytes[..len]);
                assert!(shorter.is_err() || shorter.unwrap().1 != request, "{method:?}, {len}");
            }
            let longer = [&bytes[..], &[0]].concat();
            let longer = Request::decode(method, &longer);
            assert!(longer.is_err() || method == Method::Compare, "{method:?}");
        }
    }

    /// Durable servers of earlier builds have logged these bytes.
    #[test]
    fn bytes_stay_as_they_are() {
        let push = Request::Change(Change::PushSparse {
            table: 1,
            ids: vec![5].into(),
            grads: vec![0.5, 0.5].into(),
            shows: None,
            clicks: Some(vec![2.0].into()),
            slots: None,
        });
        let stamp = Stamp { seq: 2, done: 1, step: 4, complete: 3 };
        let mut wanted = vec![1, 0, 0, 0, 2, 0, 0, 0];
        [2u64, 1, 1, 4, 3, 5].iter().for_each(|number| wanted.extend(number.to_le_bytes()));
        [0.5f32, 0.5, 2.0].iter().for_each(|number| wanted.extend(number.to_le_bytes()));
        assert_eq!(Message::new(0, stamp, &push).bytes(), wanted);
        let folder = Request::Change(Change::Load { table: Some(3), dir: "ab" });
        let bytes = Message::new(0, stamp, &folder).bytes();
        assert_eq!(
            (&bytes[..8], &bytes[48..]),
            (&[3, 0, 0, 0, 0, 2, 0, 0][..], &[2, 0, 0, 0, 0, 0, 0, 0, b'a', b'b'][..])
        );
    }

    #[test]
    fn methods_keep_their_bytes() {
        for (at, method) in METHODS.iter().enumerate() {
            assert_eq!(*method as usize, at + 1);
            assert_eq!(Method::parse(*method as u8).unwrap(), *method);
        }
        assert_eq!((Method::Wait as u8, Method::Keep as u8), (12, 30));
        assert!(Method::parse(0).is_err() && Method::parse(METHODS.len() as u8 + 1).is_err());
    }
}
