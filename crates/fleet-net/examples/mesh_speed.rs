//! Latency and bandwidth of a TCP mesh between two threads of this process:
//! `cargo run --release -p fleet-net --example mesh_speed [STREAMS] [SPIN_US]`.

use fleet_base::Result;
use fleet_net::{Fabric, Limits, MemoryStore, TcpFabric, TcpOptions, Token, Transfer};
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>().unwrap_or(2));
    let streams = args.next().unwrap_or(2) as usize;
    let spin = Duration::from_micros(args.next().unwrap_or(20));
    let (store, token) = (MemoryStore::new(), Token::generate()?);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..2)
            .map(|rank| {
                let (store, token) = (&store, &token);
                scope.spawn(move || run(store, token, rank, streams, spin))
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })
}

fn run(
    store: &MemoryStore,
    token: &Token,
    rank: usize,
    streams: usize,
    spin: Duration,
) -> Result<()> {
    let limits = Limits::within(Duration::from_secs(120));
    let mut options = TcpOptions::new("speed", rank, 2);
    (options.streams, options.spin_time) = (streams, spin);
    let fabric = TcpFabric::start(store, token, options, &limits)?;
    let mesh = fabric.open("world", &[0, 1])?;
    for bytes in [4, 4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20] {
        let (data, mut into) = (vec![1; bytes], vec![0; bytes]);
        let rounds = (1 << 31) / (bytes + 200_000) as u64 / 4 + 3;
        let mut sum = 0u64;
        for (name, fold) in [("exchange", false), ("exchange with fold", true)] {
            let start = Instant::now();
            for _ in 0..rounds {
                let mut sink = |_: usize, piece: &[u8]| sum += u64::from(piece[0]);
                let receive = match fold {
                    false => Transfer::Recv { from: 1 - rank, into: &mut into },
                    true => Transfer::Fold { from: 1 - rank, bytes, unit: 4, sink: &mut sink },
                };
                let send = Transfer::Send { to: 1 - rank, data: &data };
                mesh.transfer(&mut [send, receive], &limits)?;
            }
            if rank == 0 {
                let each = start.elapsed().as_secs_f64() / rounds as f64;
                let rate = bytes as f64 / each / 1e9;
                println!("{name:20} {bytes:>10} bytes {:>10.1} us {rate:>7.3} GB/s", each * 1e6);
            }
        }
    }
    Ok(())
}
