//! Prints the speed of the heavy kernels on this machine: GFLOP/s of matrix products, and the time
//! of every convolution of ResNet-50, for 1 and 2 threads.
//!
//! `cargo run --release -p fleet-kernels --example kernel_bench [gemm|bf16|conv] [batch]`

use fleet_kernels::conv::{Backward, Conv2d, Forward};
use fleet_kernels::gemm::{Epilogue, Gemm};
use fleet_kernels::pool::Pool;
use half::bf16;
use std::time::Instant;

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let pools = [Pool::new(1), Pool::new(2)];
    if wanted.is_empty() || wanted == "gemm" {
        gemm(&pools);
    }
    if wanted.is_empty() || wanted == "bf16" {
        bf16_products(&pools);
    }
    if wanted.is_empty() || wanted == "conv" {
        let batches = match std::env::args().nth(2).and_then(|batch| batch.parse().ok()) {
            Some(batch) => vec![batch],
            None => vec![8, 16],
        };
        batches.into_iter().for_each(|batch| resnet(&pools, batch));
    }
}

/// Numbers that start on a cache line, as in a planned arena.
struct Aligned {
    numbers: Vec<f32>,
    first: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        let numbers: Vec<f32> = (0..len as u32 + 16)
            .map(|i| (i.wrapping_mul(2654435761) >> 8) as f32 / 8388608.0 - 1.0)
            .collect();
        let first = numbers.as_ptr().align_offset(64);
        Aligned { numbers, first }
    }
}

impl std::ops::Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.numbers[self.first..]
    }
}

impl std::ops::DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.numbers[self.first..]
    }
}

/// The convolutions of ResNet-50: side, channels in and out, window, stride, number of occurrences.
const RESNET_50: [(usize, usize, usize, usize, usize, usize); 22] = [
    (224, 3, 64, 7, 2, 1),
    (56, 64, 64, 1, 1, 1),
    (56, 256, 64, 1, 1, 2),
    (56, 64, 64, 3, 1, 3),
    (56, 64, 256, 1, 1, 4),
    (56, 256, 128, 1, 1, 1),
    (56, 128, 128, 3, 2, 1),
    (28, 128, 512, 1, 1, 4),
    (56, 256, 512, 1, 2, 1),
    (28, 512, 128, 1, 1, 3),
    (28, 128, 128, 3, 1, 3),
    (28, 512, 256, 1, 1, 1),
    (28, 256, 256, 3, 2, 1),
    (14, 256, 1024, 1, 1, 6),
    (28, 512, 1024, 1, 2, 1),
    (14, 1024, 256, 1, 1, 5),
    (14, 256, 256, 3, 1, 5),
    (14, 1024, 512, 1, 1, 1),
    (14, 512, 512, 3, 2, 1),
    (7, 512, 2048, 1, 1, 3),
    (14, 1024, 2048, 1, 2, 1),
    (7, 2048, 512, 1, 1, 2),
];

/// The last convolution, separate so that the table stays in the order of the network.
const RESNET_50_LAST: (usize, usize, usize, usize, usize, usize) = (7, 512, 512, 3, 1, 2);

fn resnet(pools: &[Pool], batch: usize) {
    println!("ResNet-50, batch {batch}: milliseconds (GFLOP/s) forward, data, weights");
    let mut sums = vec![[0.0f64; 3]; pools.len()];
    for (side, c_in, c_out, k, stride, count) in RESNET_50.into_iter().chain([RESNET_50_LAST]) {
        let conv = Conv2d {
            stride: [stride; 2],
            pad: [[k / 2; 2]; 2],
            ..Conv2d::square(batch, side, side, c_in, c_out, k)
        };
        print!("{:<28}", format!("{count} x {k}x{k}s{stride} {c_in}->{c_out} @{side}"));
        for (pool, sums) in pools.iter().zip(&mut sums) {
            let times = directions(&conv, pool);
            for (direction, time) in times.into_iter().enumerate() {
                print!(" {:>6.2} ({:>3.0})", time * 1e3, conv.flops() / time * 1e-9);
                // The network does not need the gradient of the images.
                if c_in != 3 || direction != 1 {
                    sums[direction] += time * 1e3 * count as f64;
                }
            }
            print!("  |");
        }
        println!();
    }
    for (pool, sums) in pools.iter().zip(&sums) {
        let all: f64 = sums.iter().sum();
        println!("all 53, {} threads: {sums:.1?} = {all:.1} ms", pool.threads());
    }
}

fn directions(conv: &Conv2d, pool: &Pool) -> [f64; 3] {
    let threads = pool.threads();
    let (mut x, mut y) = (Aligned::new(conv.input_len()), Aligned::new(conv.output_len()));
    let mut filter = Aligned::new(conv.filter_len());
    let mut forward = Aligned::new(conv.forward_scratch_len(threads));
    let mut data = Aligned::new(conv.backward_data_scratch_len(threads));
    let mut weights = Aligned::new(conv.backward_weights_scratch_len(threads));
    [
        seconds(|| conv.forward(pool, &x, &filter, &mut y, &mut forward, Forward::default())),
        seconds(|| conv.backward_data(pool, &y, &filter, &mut x, &mut data, Backward::default())),
        seconds(|| {
            conv.backward_weights(pool, &x, &y, &mut filter, &mut weights, Backward::default());
        }),
    ]
}

/// Returns the median time of one call in seconds, over enough calls to take about 0.1 s.
fn seconds(mut call: impl FnMut()) -> f64 {
    call();
    let start = Instant::now();
    call();
    let once = start.elapsed().as_secs_f64();
    let runs = ((0.1 / once) as usize).clamp(9, 2000);
    let mut times: Vec<f64> = (0..runs)
        .map(|_| {
            let start = Instant::now();
            call();
            start.elapsed().as_secs_f64()
        })
        .collect();
    times.sort_by(f64::total_cmp);
    times[runs / 2]
}

fn gemm(pools: &[Pool]) {
    println!("{:<28} {:>9} {:>9}   GFLOP/s, 1 and 2 threads", "product", "1", "2");
    let shapes = [
        (2048, 400, 429),
        (2048, 400, 400),
        (1024, 768, 768),
        (1024, 3072, 768),
        (1024, 768, 3072),
        (128, 2048, 2048),
        (1024, 1024, 1024),
        (64, 64, 64),
    ];
    for (m, n, k) in shapes {
        line(pools, &format!("nn {m}x{n}x{k}"), Gemm::nn(m, n, k));
        line(pools, &format!("nt {m}x{k}x{n}"), Gemm::nt(m, k, n));
        line(pools, &format!("tn {k}x{n}x{m}"), Gemm::tn(k, n, m));
    }
    let heads = Gemm::nt(128, 128, 64).batched(96, 128 * 64, 128 * 64, 128 * 128);
    line(pools, "96 x nt 128x128x64", heads);
    let heads = Gemm::nn(128, 64, 128).batched(96, 128 * 128, 128 * 64, 128 * 64);
    line(pools, "96 x nn 128x64x128", heads);
    let heads = Gemm::tn(128, 64, 128).batched(96, 128 * 128, 128 * 64, 128 * 64);
    line(pools, "96 x tn 128x64x128", heads);
    for (m, n, k) in [(2048, 1, 400), (1, 4096, 4096)] {
        line(pools, &format!("nn {m}x{n}x{k}"), Gemm::nn(m, n, k));
        line(pools, &format!("nt {m}x{n}x{k}"), Gemm::nt(m, n, k));
    }
    line(pools, "tn 400x1x2048", Gemm::tn(400, 1, 2048));
    line(pools, "nn 2048x400x1", Gemm::nn(2048, 400, 1));
    line(pools, "nn 8x4096x4096", Gemm::nn(8, 4096, 4096));
}

/// Measures the same products in f32 and in bf16, if the machine has a bf16 unit.
fn bf16_products(pools: &[Pool]) {
    println!("GFLOP/s, 1 and 2 threads: f32, then bf16");
    for (m, n, k) in [(1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (2048, 400, 429)] {
        let all = [("nn", Gemm::nn(m, n, k)), ("nt", Gemm::nt(m, k, n)), ("tn", Gemm::tn(k, n, m))];
        for (kind, gemm) in all {
            let name = format!("{kind} {}x{}x{}", gemm.m, gemm.n, gemm.k);
            line(pools, &name, gemm);
            if !gemm.is_bf16_native() {
                println!("{name} bf16: not supported on this machine");
                continue;
            }
            let numbers = |len: usize| -> Vec<bf16> {
                (0..len).map(|i| bf16::from_f32((i * 7919 % 1000) as f32 / 500.0 - 1.0)).collect()
            };
            let [a, b, c] = gemm.lens();
            let (a, b, mut c) = (numbers(a), numbers(b), numbers(c));
            print!("{:<28}", format!("{name} bf16"));
            for pool in pools {
                let mut scratch = Aligned::new(gemm.scratch_len_bf16(pool.threads()));
                let time = seconds(|| {
                    gemm.run_bf16(pool, &a, &b, &mut c, &mut scratch, &Epilogue::NONE);
                });
                print!(" {:>9.1}", gemm.flops() / time * 1e-9);
            }
            println!();
        }
    }
}

fn line(pools: &[Pool], name: &str, gemm: Gemm) {
    let [a, b, c] = gemm.lens();
    let (a, b, mut c) = (Aligned::new(a), Aligned::new(b), Aligned::new(c));
    print!("{name:<28}");
    for pool in pools {
        let mut scratch = Aligned::new(gemm.scratch_len(pool.threads()));
        let time = seconds(|| gemm.run(pool, &a, &b, &mut c, &mut scratch, &Epilogue::NONE));
        print!(" {:>9.1}", gemm.flops() / time * 1e-9);
    }
    println!();
}
