//! Finds the sizes at which one all-reduce algorithm over a mesh overtakes another on your machine.
//!
//! ```text
//! cargo run --release -p fleet-comm --example mesh_thresholds -- \
//!     [--ranks 2,4,8] [--kb 4,64,1024] [--ms 300]
//! ```
//!
//! Ranks are threads of this process that communicate over TCP on the loopback, so the cost of the
//! machine is measured: system calls, copies, context switches. Each number of ranks and each size
//! gets a row. It holds the median time in microseconds of a call plus a barrier for each
//! algorithm, the fastest algorithm, and the time of `Auto`. The constants in `src/mesh/choose.rs`
//! come from such a table.

use fleet_base::{Error, Result};
use fleet_comm::{Algorithm, GroupOptions, ReduceOp, World};
use fleet_net::{Abort, Limits, MemoryStore, TcpFabric, TcpOptions, Token};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of calls before timing starts, to open connections and allocate memory.
const WARMUP: usize = 3;
/// Maximum number of calls per cell.
const CALLS_MAX: usize = 200;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let list = |name: &str, default: &str| -> Result<Vec<usize>> {
        let at = args.iter().position(|arg| arg == name);
        let text = at.and_then(|at| args.get(at + 1)).map_or(default, String::as_str);
        let number = |word: &str| {
            word.parse()
                .map_err(|_| Error::invalid(format!("{name} is not a list of numbers")).got(text))
        };
        text.split(',').map(number).collect()
    };
    let (ranks, sizes) = (list("--ranks", "2,4,8")?, list("--kb", "1,4,16,64,256,1024,4096")?);
    let span = Duration::from_millis(list("--ms", "300")?[0] as u64);
    let algorithms = &Algorithm::ALL[1..];
    print!("| ranks | size |");
    algorithms.iter().for_each(|algorithm| print!(" {algorithm:?} |"));
    println!(" best | Auto |\n| --- | --- |{} --- | --- |", " --- |".repeat(algorithms.len()));
    for ranks in ranks {
        for kb in &sizes {
            let mut row = Vec::new();
            for algorithm in algorithms {
                row.push((measure(ranks, kb << 10, *algorithm, span)?, *algorithm));
            }
            let auto = measure(ranks, kb << 10, Algorithm::Auto, span)?;
            let cells: Vec<String> = row.iter().map(|(us, _)| format!("{us:.0}")).collect();
            let best = row.iter().min_by(|a, b| a.0.total_cmp(&b.0));
            let best = best.map(|(_, algorithm)| format!("{algorithm:?}")).unwrap_or_default();
            println!("| {ranks} | {kb} KB | {} | {best} | {auto:.0} |", cells.join(" | "));
        }
    }
    Ok(())
}

/// Median time of a call in microseconds, measured by rank 0.
fn measure(ranks: usize, bytes: usize, algorithm: Algorithm, span: Duration) -> Result<f64> {
    let (store, token) = (MemoryStore::new(), Token::generate()?);
    let spans: Result<Vec<Vec<f64>>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| {
                let (store, token) = (store.clone(), &token);
                scope.spawn(move || rank_of(rank, ranks, bytes, algorithm, span, store, token))
            })
            .collect();
        let join = |thread: std::thread::ScopedJoinHandle<'_, Result<Vec<f64>>>| {
            thread.join().unwrap_or_else(|_| Err(Error::internal("a rank panicked")))
        };
        threads.into_iter().map(join).collect()
    });
    let mut spans = spans?.swap_remove(0);
    spans.sort_by(f64::total_cmp);
    Ok(spans[spans.len() / 2])
}

fn rank_of(
    rank: usize,
    ranks: usize,
    bytes: usize,
    algorithm: Algorithm,
    span: Duration,
    store: MemoryStore,
    token: &Token,
) -> Result<Vec<f64>> {
    let limits = Limits::within(Duration::from_secs(60));
    let tcp = TcpOptions::new("thresholds", rank, ranks).interface("127.0.0.1");
    let fabric = TcpFabric::start(&store, token, tcp, &limits)?;
    let world = World::new(Arc::new(fabric), Arc::new(store), Abort::new());
    let all: Vec<usize> = (0..ranks).collect();
    let options = GroupOptions { shared_memory: false, algorithm, ..GroupOptions::default() };
    let group = world.group("world", &all, &options)?;
    let mut data = vec![0.0f32; bytes / 4];
    let (mut spans, mut going) = (Vec::new(), [1u8]);
    let begin = Instant::now();
    while going[0] == 1 {
        let start = Instant::now();
        group.all_reduce("x", &mut data, ReduceOp::Sum)?;
        // With some algorithms rank 0 returns before the others have the result.
        group.barrier("all ranks have the result")?;
        spans.push(start.elapsed().as_secs_f64() * 1e6);
        // Rank 0 decides when to stop.
        let over = spans.len() > WARMUP && begin.elapsed() >= span || spans.len() >= CALLS_MAX;
        going[0] = u8::from(!over);
        group.broadcast("going", &mut going, 0)?;
    }
    Ok(spans.split_off(WARMUP))
}
