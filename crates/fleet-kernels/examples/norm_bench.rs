//! Measures attention, and the kernels limited by memory bandwidth, on the shapes of ResNet-50,
//! wide & deep and BERT: `cargo run --release -p fleet-kernels --example norm_bench [filter]`.
//!
//! Prints the median of several runs with 1 and with 2 threads, and the resulting rate.

use fleet_base::rng::Sequence;
use fleet_kernels::embedding::{self, Grid, Source};
use fleet_kernels::pool::Pool;
use std::hint::black_box;
use std::time::Instant;

struct Bench {
    filter: Option<String>,
    pools: [Pool; 2],
}

impl Bench {
    /// Runs `body` for at least half a second and at least 5 times, and prints the median. `work`
    /// is a number of bytes or operations, named by `unit`.
    fn time(&self, name: &str, work: f64, unit: &str, mut body: impl FnMut(&Pool)) -> [f64; 2] {
        if self.filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            return [0.0; 2];
        }
        let mut medians = [0.0; 2];
        let mut line = format!("{name:44}");
        for (pool, out) in self.pools.iter().zip(&mut medians) {
            body(pool);
            let begin = Instant::now();
            let mut times = Vec::new();
            while times.len() < 5 || (begin.elapsed().as_secs_f64() < 0.5 && times.len() < 500) {
                let start = Instant::now();
                body(pool);
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            *out = median;
            line += &format!("  {:9.3} ms {:7.1} {unit}", median * 1e3, work / median / 1e9);
        }
        println!("{line}");
        medians
    }
}

fn floats(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Sequence::new(seed, 0);
    let mut out = Vec::with_capacity(count);
    advise_huge_pages(out.as_mut_ptr(), count);
    out.extend((0..count).map(|_| random.unit() as f32 - 0.5));
    out
}

/// Requests huge pages, as Fleet's tensors do.
fn advise_huge_pages(start: *mut f32, count: usize) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut u8, bytes: usize, advice: i32) -> i32;
        }
        const MADV_HUGEPAGE: i32 = 14;
        let page = (start as usize).next_multiple_of(4096);
        let bytes = (start as usize + count * 4).saturating_sub(page) & !4095;
        // SAFETY: whole pages inside the allocation; the advice changes no data.
        unsafe { madvise(page as *mut u8, bytes, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, count);
}

fn main() {
    let bench = Bench { filter: std::env::args().nth(1), pools: [Pool::new(1), Pool::new(2)] };
    println!("{:44}  {:>22}  {:>22}", "", "1 thread", "2 threads");
    for (name, part) in PARTS {
        // A filter that names a part skips the setup of the others.
        let other = |filter: &String| {
            PARTS.iter().any(|part| filter.starts_with(part.0)) && !filter.starts_with(name)
        };
        if !bench.filter.as_ref().is_some_and(other) {
            part(&bench);
        }
    }
}

fn attentions(bench: &Bench) {
    use fleet_kernels::attention::*;
    let bert = Attention {
        batch: 8,
        heads: 12,
        queries: 128,
        keys: 128,
        dim: 64,
        scale: 0.125,
        is_causal: false,
        dropout: None,
    };
    let dropout = Some(Dropout { probability: 0.1, seed: 1, stream: 2, part: (0, 1) });
    let long = Attention { batch: 1, queries: 1024, keys: 1024, ..bert };
    for (name, shape) in [
        ("bert", bert),
        ("dropout bert", Attention { dropout, ..bert }),
        ("1024", long),
        ("1024 causal", Attention { is_causal: true, ..long }),
    ] {
        let Attention { batch, heads, queries: time, dim, .. } = shape;
        let qkv = floats(batch * time * 3 * heads * dim, 1);
        let mut gradient = qkv.clone();
        let mut out = floats(batch * time * heads * dim, 2);
        let d_out = out.clone();
        let mut lse = vec![0.0; shape.lse_len()];
        let mut scratch =
            vec![0.0; shape.forward_scratch_len(2).max(shape.backward_scratch_len(2))];
        let strides = Strides::dense(time, heads, dim);
        let [q, k, v] = Heads::split(&qkv, time, heads, dim);
        bench.time(&format!("attention forward {name}"), shape.flops(), "GF/s", |pool| {
            let out = HeadsMut::new(&mut out, strides);
            shape.forward(pool, q, k, v, None, out, &mut lse, &mut scratch);
        });
        bench.time(&format!("attention backward {name}"), 2.5 * shape.flops(), "GF/s", |pool| {
            let [dq, dk, dv] = HeadsMut::split(&mut gradient, time, heads, dim);
            let outs = (Heads::new(&out, strides), Heads::new(&d_out, strides));
            shape.backward(pool, (q, k, v), None, outs, &lse, (dq, dk, dv), &mut scratch);
        });
    }
}

type Part = fn(&Bench);
const PARTS: &[(&str, Part)] =
    &[("embedding", embeddings), ("bn", batch_norms), ("attention", attentions), ("pool2d", pools)];

/// Batch norms of ResNet-50, batch 16: (plane, channels, number with ReLU only, number with a
/// residual and ReLU, number without either).
const RESNET50: [(usize, usize, usize, usize, usize); 12] = [
    (112 * 112, 64, 1, 0, 0),
    (56 * 56, 64, 6, 0, 0),
    (56 * 56, 256, 0, 3, 1),
    (56 * 56, 128, 1, 0, 0),
    (28 * 28, 128, 7, 0, 0),
    (28 * 28, 512, 0, 4, 1),
    (28 * 28, 256, 1, 0, 0),
    (14 * 14, 256, 11, 0, 0),
    (14 * 14, 1024, 0, 6, 1),
    (14 * 14, 512, 1, 0, 0),
    (7 * 7, 512, 5, 0, 0),
    (7 * 7, 2048, 0, 3, 1),
];

fn batch_norms(bench: &Bench) {
    use fleet_kernels::batch_norm::*;
    let batch = 16;
    let cold = 3;
    let mut total = [0.0; 2];
    for (plane, channels, relu, residual, bare) in RESNET50 {
        let dims = Dims { batch, plane, channels, order: Order::ChannelsLast };
        // Several sets of buffers, so that none is still in a cache at its next use.
        let sets = cold.max((400usize << 20) / (dims.len() * 16)).min(40);
        let mut x: Vec<Vec<f32>> = (0..sets).map(|i| floats(dims.len(), i as u64)).collect();
        let mut y = x.clone();
        let mut dy = x.clone();
        let skip = x.clone();
        let [gamma, beta, mean, inv] = [1.0, 0.1, 0.0, 3.4].map(|v| vec![v; channels]);
        let (mut m, mut v) = (mean.clone(), mean.clone());
        let (mut d_gamma, mut d_beta) = (mean.clone(), mean.clone());
        let mut scratch = vec![0.0; scratch_len(&dims)];
        let bytes = (dims.len() * 4) as f64;
        let mut turn = 0;
        let mut next = || {
            turn = (turn + 1) % sets;
            turn
        };
        let name = |what: &str| format!("bn {what} {plane}x{channels}");
        bench.time(&name("statistics"), bytes, "GB/s", |pool| {
            statistics(pool, &dims, &x[next()], &mut scratch, &mut m, &mut v);
        });
        let mut forward = |with_residual: bool, pool: &Pool, turn: usize| {
            let skip = with_residual.then_some(&skip[turn][..]);
            let act = if bare == 0 || with_residual { Act::Relu } else { Act::None };
            let (x, y) = (Operand::Read(&x[turn]), Output::New(&mut y[turn]));
            normalise(pool, &dims, x, (&mean, &inv), (&gamma, &beta), skip, act, y, &mut scratch);
        };
        let mut times = [0.0; 2];
        let count = (relu + bare) as f64;
        if count > 0.0 {
            let got = bench
                .time(&name("forward"), 2.0 * bytes, "GB/s", |pool| forward(false, pool, next()));
            times = [0, 1].map(|i| times[i] + count * got[i]);
        }
        if residual > 0 {
            let name = name("forward + residual");
            let got = bench.time(&name, 3.0 * bytes, "GB/s", |pool| forward(true, pool, next()));
            times = [0, 1].map(|i| times[i] + residual as f64 * got[i]);
        }
        let mut back = |with_residual: bool, pool: &Pool, turn: usize| {
            let args = Backward {
                dy: Operand::Reuse(&mut dy[turn]),
                addend: None,
                mask: if with_residual { Mask::FromOutput(&y[turn]) } else { Mask::FromInput },
                masked: if with_residual { Masked::OverDy } else { Masked::Drop },
                x: Operand::Reuse(&mut x[turn]),
                dx: if with_residual { InputGradient::OverX } else { InputGradient::OverDy },
                mean: &mean,
                inv_std: &inv,
                gamma: &gamma,
                beta: &beta,
                is_frozen: false,
                d_gamma: &mut d_gamma,
                d_beta: &mut d_beta,
            };
            backward(pool, &dims, args, &mut scratch);
        };
        if count > 0.0 {
            let got = bench
                .time(&name("backward"), 5.0 * bytes, "GB/s", |pool| back(false, pool, next()));
            times = [0, 1].map(|i| times[i] + count * got[i]);
        }
        if residual > 0 {
            let name = name("backward + residual");
            let got = bench.time(&name, 7.0 * bytes, "GB/s", |pool| back(true, pool, next()));
            times = [0, 1].map(|i| times[i] + residual as f64 * got[i]);
        }
        total = [0, 1].map(|i| total[i] + times[i]);
    }
    let [one, two] = total.map(|seconds| seconds * 1e3);
    println!("bn of ResNet-50, batch 16, statistics given: {one:.1} ms, {two:.1} ms");
}

fn embeddings(bench: &Bench) {
    let (rows, dim, batch, slots) = (1_000_000, 16, 2048, 26);
    let mut random = Sequence::new(1, 0);
    let count = batch * slots;
    let ids: Vec<i64> = (0..count).map(|_| random.below(rows as u64) as i64).collect();
    let mut table = floats(rows * dim, 1);
    let mut moment = vec![0.1; rows * dim];
    let stride = slots * dim + 13;
    let mut out = vec![0.0; batch * stride];
    let bytes = (count * dim * 8) as f64;
    bench.time("embedding gather 53k x 16", bytes, "GB/s", |pool| {
        embedding::lookup(pool, &table, dim, &ids, None, Grid::packed(dim), &mut out).unwrap();
    });
    let grid = Grid { start: 13, group: slots, group_stride: stride, stride: dim };
    bench.time("embedding gather + concat", bytes, "GB/s", |pool| {
        embedding::lookup(pool, &table, dim, &ids, None, grid, &mut out).unwrap();
    });
    let mut scratch = vec![0; embedding::group_scratch_len(count)];
    bench.time("embedding group ids", (count * 8) as f64, "GB/s", |pool| {
        black_box(embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap());
    });
    let gradient = floats(out.len(), 2);
    let source = Source { data: &gradient, grid };
    let mut merged = vec![0.0; count * dim];
    bench.time("embedding group + merge rows", bytes, "GB/s", |pool| {
        let groups = embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap();
        embedding::merge_rows(pool, &groups, &source, dim, &mut merged);
    });
    bench.time("embedding group + merge + sgd", bytes, "GB/s", |pool| {
        let groups = embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap();
        embedding::sgd_rows(pool, &groups, &source, dim, 1e-3, &mut table).unwrap();
    });
    bench.time("embedding group + merge + adagrad", bytes, "GB/s", |pool| {
        let groups = embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap();
        let rates = (1e-3, 1e-6);
        embedding::adagrad_rows(pool, &groups, &source, dim, rates, &mut table, &mut moment)
            .unwrap();
    });
    let hashed: Vec<i64> =
        ids.iter().map(|&id| id.wrapping_mul(0x9E37_79B9_7F4A_7C15u64 as i64)).collect();
    bench.time("embedding group 64-bit ids", (count * 8) as f64, "GB/s", |pool| {
        black_box(embedding::group(pool, &hashed, None, None, &mut scratch).unwrap());
    });
}

fn pools(bench: &Bench) {
    use fleet_kernels::batch_norm::Order;
    use fleet_kernels::pool2d::*;
    let input =
        Input { batch: 16, channels: 64, height: 112, width: 112, order: Order::ChannelsLast };
    let windows = Strided { size: [3, 3], stride: [2, 2], pads: [[1, 1]; 2], ceil_mode: false };
    let pooling = Pool2d::strided(input, windows).unwrap();
    let mut x = floats(pooling.input_len(), 1);
    let mut y = floats(pooling.output_len(), 2);
    let mut offsets = vec![0u8; y.len()];
    let bytes = (x.len() * 4 + y.len() * 5) as f64;
    bench.time("pool2d max 3x3 s2 112x112x64 forward", bytes, "GB/s", |pool| {
        pooling.max_forward(pool, &x, &mut y, Some(&mut offsets));
    });
    bench.time("pool2d max 3x3 s2 112x112x64 backward", bytes, "GB/s", |pool| {
        pooling.max_backward(pool, &y, &offsets, &mut x);
    });
    let last = Pool2d::global(Input { channels: 2048, height: 7, width: 7, ..input });
    let mut x = floats(last.input_len(), 1);
    let mut y = floats(last.output_len(), 2);
    let bytes = (x.len() * 4) as f64;
    bench.time("pool2d global average 7x7x2048 forward", bytes, "GB/s", |pool| {
        last.average_forward(pool, Count::Exclusive, &x, &mut y);
    });
    bench.time("pool2d global average 7x7x2048 backward", bytes, "GB/s", |pool| {
        last.average_backward(pool, Count::Exclusive, &y, &mut x);
    });
}
