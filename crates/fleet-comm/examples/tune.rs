//! All-reduce in shared memory between threads, for trying sizes of slots and thresholds:
//! `cargo run --release -p fleet-comm --example tune -- RANKS SLOT_KB SMALL_KB SPIN_US`.

use fleet_comm::{GroupOptions, ReduceOp, World};
use std::time::{Duration, Instant};

fn main() -> fleet_base::Result<()> {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let or = |index: usize, default: u64| args.get(index).copied().unwrap_or(default);
    let ranks = or(0, 2) as usize;
    let options = GroupOptions {
        slot_bytes: Some(or(1, 128) as usize * 1024),
        small_bytes_max: Some(or(2, 16) as usize * 1024),
        spin: args.get(3).map(|us| Duration::from_micros(*us)),
        ..GroupOptions::default()
    };
    let all: Vec<usize> = (0..ranks).collect();
    std::thread::scope(|scope| {
        for world in World::threads(ranks) {
            let (all, options) = (&all, &options);
            scope.spawn(move || {
                let group = world.group("world", all, options).expect("opens");
                for bytes in [4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20] {
                    let mut data = vec![0.0f32; bytes / 4];
                    let runs = ((200 << 20) / bytes).clamp(5, 3000);
                    let mut times = Vec::new();
                    for _ in 0..runs + runs / 4 {
                        group.barrier("begin").expect("goes well");
                        let begin = Instant::now();
                        group.all_reduce("x", &mut data, ReduceOp::Sum).expect("goes well");
                        times.push(begin.elapsed());
                    }
                    let mut times = times.split_off(runs / 4);
                    times.sort();
                    let median = times[times.len() / 2].as_secs_f64();
                    if group.rank() == 0 {
                        let rate = bytes as f64 / median / 1e9;
                        println!(
                            "{ranks} x {:>7} KB: {:>10.1} us {rate:>7.2} GB/s   best {:.1} us",
                            bytes >> 10,
                            median * 1e6,
                            times[0].as_secs_f64() * 1e6
                        );
                    }
                }
            });
        }
    });
    Ok(())
}
