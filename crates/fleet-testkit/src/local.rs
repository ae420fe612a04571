//! Ranks as threads of one process with rings in memory, so that rewritten programs run at several
//! ranks without sockets.
//!
//! Every collective is an exchange: each rank deposits its data, the last rank completes the
//! exchange, and each takes the data that it needs. Sums are computed in rank order, in f64 for f32
//! and half floats, so all ranks get the same bits. Ranks in different calls get an error that
//! names both calls. A wait that takes too long is an error, too.
//!
//! ```
//! use fleet_ops::Ring;
//! use fleet_testkit::local;
//! let sums = local::run(3, |rank, world| {
//!     let ring = world.ring(0, &[0, 1, 2], rank);
//!     let mut all = [0u8; 3];
//!     ring.all_gather("ranks", &[rank as u8], &mut all)?;
//!     Ok(all)
//! });
//! assert!(sums.into_iter().all(|all| all.unwrap() == [0, 1, 2]));
//! ```

use fleet_base::sync::{lock, wait_for};
use fleet_base::{Error, Result};
use fleet_ops::{ReduceOp, Ring};
use fleet_tensor::{DType, bf16, f16};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Timeout of a wait for peers. Tests take milliseconds, so a longer wait is a hang.
const WAIT_MAX: Duration = Duration::from_secs(30);

/// Runs `body` for every rank in a thread of its own. Returns the results by rank. A rank that
/// fails aborts the rings.
pub fn run<T: Send>(
    ranks: usize,
    body: impl Fn(usize, &World) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    let world = World::default();
    std::thread::scope(|scope| {
        let start = |rank: usize| {
            let (world, body) = (&world, &body);
            scope.spawn(move || {
                let outcome = body(rank, world);
                if let Err(error) = &outcome {
                    world.abort(&format!("rank {rank} has failed: {error}"));
                }
                outcome
            })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        let died = |_| Err(Error::internal("the thread of a rank panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
    })
}

/// The rings of one job.
#[derive(Clone, Default)]
pub struct World {
    rings: Arc<Mutex<HashMap<i64, RingsByMembers>>>,
}

type RingsByMembers = HashMap<Vec<usize>, Arc<Shared>>;

impl World {
    /// The ring `id` of `members` (ranks in the job), seen from `rank`. Different groups of ranks
    /// may each have a ring of the same id, as the nodes of a cluster do.
    ///
    /// # Panics
    /// If `rank` is not one of `members`.
    pub fn ring(&self, id: i64, members: &[usize], rank: usize) -> Arc<LocalRing> {
        let place = members.iter().position(|member| *member == rank);
        let mut rings = lock(&self.rings);
        let shared = rings.entry(id).or_default().entry(members.to_vec()).or_default();
        let shared = Arc::clone(shared);
        let rank = place.expect("this rank is a member of the ring");
        Arc::new(LocalRing { shared, rank, size: members.len(), bytes: AtomicU64::new(0) })
    }

    fn abort(&self, reason: &str) {
        let rings = lock(&self.rings);
        rings.values().flat_map(HashMap::values).for_each(|ring| ring.abort(reason));
    }
}

/// One rank's end of a ring.
pub struct LocalRing {
    shared: Arc<Shared>,
    rank: usize,
    size: usize,
    bytes: AtomicU64,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Data of each rank in the running exchange.
    deposits: HashMap<usize, (String, Vec<u8>)>,
    /// The completed exchange, until every rank has taken it.
    done: Option<Arc<Vec<Vec<u8>>>>,
    readers: usize,
    /// Messages sent but not received yet, by (from, to).
    messages: HashMap<(usize, usize), VecDeque<Vec<u8>>>,
    failed: Option<Error>,
}

impl Shared {
    fn abort(&self, reason: &str) {
        let error = Error::unavailable(format!("a peer has failed: {reason}"));
        lock(&self.state).failed.get_or_insert(error);
        self.changed.notify_all();
    }

    /// Waits until `ready` returns a value.
    fn wait<T>(
        &self,
        mut state: MutexGuard<'_, State>,
        what: &str,
        mut ready: impl FnMut(&mut State) -> Option<T>,
    ) -> Result<T> {
        let begin = Instant::now();
        loop {
            if let Some(found) = ready(&mut state) {
                self.changed.notify_all();
                return Ok(found);
            }
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            if begin.elapsed() > WAIT_MAX {
                let here =
                    state.deposits.keys().map(usize::to_string).collect::<Vec<_>>().join(", ");
                let error = Error::unavailable(format!("{what}: timeout while waiting for peers"));
                return Err(error.got(format!("ranks {here} have joined")));
            }
            state = wait_for(&self.changed, state, WAIT_MAX).0;
        }
    }
}

impl LocalRing {
    /// Number of bytes that this rank has passed to its ring.
    pub fn bytes_given(&self) -> u64 {
        self.bytes.load(SeqCst)
    }

    /// Deposits `mine` and returns the data of all ranks.
    fn exchange(&self, what: &str, mine: Vec<u8>) -> Result<Arc<Vec<Vec<u8>>>> {
        self.bytes.fetch_add(mine.len() as u64, SeqCst);
        let shared = &self.shared;
        let state = lock(&shared.state);
        // A rank that is ahead waits until all ranks have taken the previous exchange.
        shared.wait(state, what, |state| (state.done.is_none()).then_some(()))?;
        let mut state = lock(&shared.state);
        if let Some((rank, (other, _))) =
            state.deposits.iter().find(|(_, (other, _))| other != what)
        {
            let error = Error::invalid("ranks are in different calls")
                .expected(format!("'{other}', as rank {rank}"))
                .got(format!("'{what}' on rank {}", self.rank));
            state.failed.get_or_insert(error.clone());
            shared.changed.notify_all();
            return Err(error);
        }
        state.deposits.insert(self.rank, (what.to_string(), mine));
        if state.deposits.len() == self.size {
            let mut deposits = std::mem::take(&mut state.deposits);
            let in_order = (0..self.size).filter_map(|rank| deposits.remove(&rank)).map(|it| it.1);
            state.done = Some(Arc::new(in_order.collect()));
            state.readers = self.size;
            shared.changed.notify_all();
        }
        shared.wait(state, what, |state| {
            let found = state.done.clone()?;
            state.readers -= 1;
            if state.readers == 0 {
                state.done = None;
            }
            Some(found)
        })
    }

    fn reduced(
        &self,
        label: &str,
        dtype: DType,
        parts: &[&mut [u8]],
        op: ReduceOp,
    ) -> Result<Vec<u8>> {
        let what = format!("{label} {op:?} {dtype} {}", signature(parts));
        let all = self.exchange(&what, joined(parts))?;
        let pieces: Vec<&[u8]> = all.iter().map(Vec::as_slice).collect();
        reduce(dtype, &pieces, op)
    }
}

/// Returns the lengths of the parts, in bytes.
fn signature(parts: &[&mut [u8]]) -> String {
    let shown: Vec<String> = parts.iter().map(|part| part.len().to_string()).collect();
    shown.join(" ")
}

fn joined(parts: &[&mut [u8]]) -> Vec<u8> {
    parts.iter().flat_map(|part| part.iter()).copied().collect()
}

fn put(parts: &mut [&mut [u8]], from: &[u8]) {
    let mut at = 0;
    for part in parts {
        part.copy_from_slice(&from[at..at + part.len()]);
        at += part.len();
    }
}

impl Ring for LocalRing {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_reduce(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
    ) -> Result<()> {
        let sum = self.reduced(label, dtype, parts, op)?;
        put(parts, &sum);
        Ok(())
    }

    fn reduce(
        &self,
        label: &str,
        dtype: DType,
        parts: &mut [&mut [u8]],
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let sum = self.reduced(label, dtype, parts, op)?;
        if self.rank == root {
            put(parts, &sum);
        } else {
            // The result is unspecified on other ranks: overwrite it, so that its use shows.
            parts.iter_mut().for_each(|part| part.fill(0xCD));
        }
        Ok(())
    }

    fn broadcast(&self, label: &str, parts: &mut [&mut [u8]], root: usize) -> Result<()> {
        let what = format!("{label} from {root} {}", signature(parts));
        let mine = match self.rank == root {
            true => joined(parts),
            false => Vec::new(),
        };
        let all = self.exchange(&what, mine)?;
        put(parts, &all[root]);
        Ok(())
    }

    fn all_gather(&self, label: &str, mine: &[u8], all: &mut [u8]) -> Result<()> {
        let gathered = self.exchange(&format!("{label} {}", mine.len()), mine.to_vec())?;
        all.copy_from_slice(&gathered.concat());
        Ok(())
    }

    fn reduce_scatter(
        &self,
        label: &str,
        dtype: DType,
        all: &[u8],
        mine: &mut [u8],
        op: ReduceOp,
    ) -> Result<()> {
        let what = format!("{label} {op:?} {dtype} {}", all.len());
        let given = self.exchange(&what, all.to_vec())?;
        let range = self.rank * mine.len()..(self.rank + 1) * mine.len();
        let pieces: Vec<&[u8]> = given.iter().map(|bytes| &bytes[range.clone()]).collect();
        mine.copy_from_slice(&reduce(dtype, &pieces, op)?);
        Ok(())
    }

    fn all_to_all(&self, label: &str, from: &[u8], to: &mut [u8]) -> Result<()> {
        let given = self.exchange(&format!("{label} {}", from.len()), from.to_vec())?;
        let piece = from.len() / self.size;
        let range = self.rank * piece..(self.rank + 1) * piece;
        let pieces: Vec<&[u8]> = given.iter().map(|bytes| &bytes[range.clone()]).collect();
        to.copy_from_slice(&pieces.concat());
        Ok(())
    }

    fn send(&self, _: &str, to: usize, bytes: &[u8]) -> Result<()> {
        self.bytes.fetch_add(bytes.len() as u64, SeqCst);
        let mut state = lock(&self.shared.state);
        state.messages.entry((self.rank, to)).or_default().push_back(bytes.to_vec());
        self.shared.changed.notify_all();
        Ok(())
    }

    fn recv(&self, label: &str, from: usize, bytes: &mut [u8]) -> Result<()> {
        let key = (from, self.rank);
        let message = self.shared.wait(lock(&self.shared.state), label, |state| {
            state.messages.get_mut(&key).and_then(VecDeque::pop_front)
        })?;
        if message.len() != bytes.len() {
            return Err(Error::invalid(format!("{label}: message size mismatch"))
                .expected(bytes.len())
                .got(message.len()));
        }
        bytes.copy_from_slice(&message);
        Ok(())
    }

    fn barrier(&self, label: &str) -> Result<()> {
        self.exchange(label, Vec::new()).map(|_| ())
    }

    fn abort(&self, error: &Error) {
        self.shared.abort(&format!("rank {}: {error}", self.rank));
    }
}

/// Reduces pieces of equal length.
fn reduce(dtype: DType, pieces: &[&[u8]], op: ReduceOp) -> Result<Vec<u8>> {
    macro_rules! over {
        ($ty:ty, $wide:ty, $read:expr, $write:expr) => {{
            const SIZE: usize = size_of::<$ty>();
            let read = |bytes: &[u8]| -> $wide {
                let mut word = [0; SIZE];
                word.copy_from_slice(bytes);
                $read(<$ty>::from_ne_bytes(word))
            };
            let count = pieces[0].len() / SIZE;
            let mut out = Vec::with_capacity(pieces[0].len());
            for at in 0..count {
                let mut values = pieces.iter().map(|piece| read(&piece[at * SIZE..][..SIZE]));
                let first = values.next().unwrap_or_default();
                let total: $wide = match op {
                    ReduceOp::Sum => values.fold(first, |a, b| a + b),
                    ReduceOp::Avg => values.fold(first, |a, b| a + b) / pieces.len() as $wide,
                    ReduceOp::Max => values.fold(first, |a, b| if b > a { b } else { a }),
                    ReduceOp::Min => values.fold(first, |a, b| if b < a { b } else { a }),
                    ReduceOp::Prod => values.fold(first, |a, b| a * b),
                };
                let total: $ty = $write(total);
                out.extend(total.to_ne_bytes());
            }
            Ok(out)
        }};
    }
    match dtype {
        DType::F32 => over!(f32, f64, f64::from, |x: f64| x as f32),
        DType::F64 => over!(f64, f64, |x: f64| x, |x: f64| x),
        DType::F16 => over!(f16, f64, f16::to_f64, f16::from_f64),
        DType::BF16 => over!(bf16, f64, bf16::to_f64, bf16::from_f64),
        DType::I32 => over!(i32, i64, i64::from, |x: i64| x as i32),
        DType::I64 => over!(i64, i64, |x: i64| x, |x: i64| x),
        DType::U8 => over!(u8, i64, i64::from, |x: i64| x as u8),
        other => Err(Error::unsupported(format!(
            "reduction of {other} is not supported by the test ring"
        ))),
    }
}
