//! Upper bound for an all-reduce of two ranks over TCP on the loopback: two threads send each other
//! all their numbers and add up the received ones, without Fleet. Prints GB/s in each direction.
//!
//! `cargo run --release -p fleet-comm --example tcp_pair -- [MEGABYTES] [ROUNDS]`

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Instant;

/// Bytes per read or write, small enough to stay in L2.
const TURN: usize = 256 << 10;

fn main() -> io::Result<()> {
    let mut args = std::env::args().skip(1).map(|arg| {
        let number = arg.parse::<usize>().ok().filter(|&number| number > 0);
        number.ok_or_else(|| io::Error::other(format!("expected a number above 0, got {arg}")))
    });
    let megabytes = args.next().unwrap_or(Ok(25))?;
    let rounds = args.next().unwrap_or(Ok(20))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    let (far, _) = listener.accept()?;
    let len = megabytes << 20;
    let mut rates = std::thread::scope(|scope| {
        let other = scope.spawn(|| exchange(&far, len, rounds));
        let rates = exchange(&near, len, rounds);
        other.join().unwrap_or_else(|_| Err(io::Error::other("the peer thread panicked")))?;
        rates
    })?;
    rates.sort_by(f64::total_cmp);
    println!("{megabytes} MB, {rounds} rounds: median {:.2} GB/s each way", rates[rounds / 2]);
    Ok(())
}

/// Sends and receives `len` bytes per round. Returns the bytes per nanosecond of each round.
fn exchange(stream: &TcpStream, len: usize, rounds: usize) -> io::Result<Vec<f64>> {
    stream.set_nodelay(true)?;
    let mine = vec![1u8; len];
    let mut sum = vec![0f32; len / size_of::<f32>()];
    let mut came = vec![0u8; TURN];
    let mut rates = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        let begun = Instant::now();
        std::thread::scope(|scope| {
            let writer =
                scope.spawn(|| mine.chunks(TURN).try_for_each(|part| (&*stream).write_all(part)));
            for part in sum.chunks_mut(TURN / size_of::<f32>()) {
                let came = &mut came[..size_of_val(part)];
                (&*stream).read_exact(came)?;
                for (sum, bytes) in part.iter_mut().zip(came.chunks_exact(size_of::<f32>())) {
                    *sum += f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
                }
            }
            writer.join().unwrap_or_else(|_| Err(io::Error::other("the writer panicked")))
        })?;
        rates.push(len as f64 / begun.elapsed().as_nanos() as f64);
    }
    Ok(rates)
}
