//! Fleet's side of the benchmarks of the Python package.

use crate::measure::{Options, print_rates};
use fleet::prelude::*;
use std::time::Instant;

/// Time of one run of three inputs and one result of 8 numbers, in microseconds.
pub fn run_overhead(options: &Options) -> Result<()> {
    let net = Net::new();
    let [a, b, c] = ["a", "b", "c"].map(|name| net.data(name, [-1, 8], DType::F32));
    let total = (a + b + c).name();
    let exec = fleet::ExecOptions { num_threads: 1, ..options.exec() };
    let mut session = Session::new(net.build()?, exec)?;
    let ones = Tensor::from_slice(&[1.0f32; 8], [1, 8])?;
    let feed = ["a", "b", "c"].map(|name| (name, &ones));
    let (calls, warmup) = options.counts(20_000, 2_000);
    let mut times = Vec::with_capacity(calls);
    for call in 0..warmup + calls {
        let begin = Instant::now();
        session.run(&feed, &[&total])?;
        if call >= warmup {
            times.push(begin.elapsed().as_secs_f64() * 1e6);
        }
    }
    print_rates(options, "us", times);
    Ok(())
}
