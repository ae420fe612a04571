//! Times the vector kernels on this machine and prints one line a kernel: milliseconds, GB/s of what
//! it must move, and the time of a rival (torch, 2 threads, measured elsewhere) where there is one.
//! Run with `cargo run --release --example vector_bench [threads] [name part]`.

use std::hint::black_box;
use std::time::Instant;

use fleet_kernels::binary::{Binary, Broadcast, binary, binary_raw};
use fleet_kernels::chain::{bias_activation_grad, bias_activation_grad_scratch_len};
use fleet_kernels::elementwise::{Unary, unary, unary_grad};
use fleet_kernels::layer_norm::{
    LayerNorm, layer_norm, layer_norm_grad, layer_norm_grad_scratch_len,
};
use fleet_kernels::pool::Pool;
use fleet_kernels::reduce::{Fold, Reduction, any_nonfinite, reduce, squared_norm};
use fleet_kernels::softmax::{softmax, softmax_cross_entropy, softmax_grad};

struct Bench {
    threads: usize,
    only: String,
}

impl Bench {
    /// The median of several runs of `body`, which moves `bytes`.
    fn time(&self, name: &str, bytes: usize, rival_ms: Option<f64>, mut body: impl FnMut()) {
        if !name.contains(&self.only) {
            return;
        }
        body();
        let mut times = Vec::new();
        let begin = Instant::now();
        while times.len() < 5 || (begin.elapsed().as_millis() < 150 && times.len() < 1000) {
            let start = Instant::now();
            body();
            times.push(start.elapsed().as_secs_f64() * 1e3);
        }
        times.sort_by(f64::total_cmp);
        let ms = times[times.len() / 2];
        let rival = rival_ms.map_or(String::new(), |ms| format!("  (torch {ms} ms)"));
        let rate = bytes as f64 / ms / 1e6;
        println!("{:<34} {} threads {ms:9.3} ms {rate:7.1} GB/s{rival}", name, self.threads);
    }
}

fn numbers(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i % 251) as f32 * 0.01 - 1.2).collect()
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|arg| arg.parse().ok()).unwrap_or(2);
    let bench = Bench { threads, only: args.next().unwrap_or_default() };
    let pool = Pool::new(threads);
    elementwise(&bench, &pool);
    rows(&bench, &pool);
    reductions(&bench, &pool);
}

fn elementwise(bench: &Bench, pool: &Pool) {
    let n = 2048 * 400;
    let (x, dy) = (numbers(n), numbers(n));
    let mut y = vec![0.0; n];
    for op in [
        Unary::Relu,
        Unary::Exp,
        Unary::Log,
        Unary::Tanh,
        Unary::Sigmoid,
        Unary::Gelu,
        Unary::Sin,
        Unary::Pow { exponent: 2.5 },
    ] {
        bench.time(&format!("{op:?} 2048x400"), 8 * n, None, || {
            unary(pool, op, black_box(&x), &mut y);
        });
    }
    for op in [Unary::Relu, Unary::Gelu] {
        bench.time(&format!("{op:?} gradient 2048x400"), 12 * n, None, || {
            unary_grad(pool, op, black_box(&x), &dy, &mut y);
        });
    }
    let bias = numbers(400);
    let row = Broadcast::new(&[2048, 400], &[400]).unwrap();
    bench.time("add bias 2048x400", 8 * n, None, || {
        binary(pool, Binary::Add, &row, black_box(&x), &bias, &mut y);
    });
    let column = numbers(2048);
    let plan = Broadcast::new(&[2048, 400], &[2048, 1]).unwrap();
    bench.time("mul column 2048x400", 8 * n, None, || {
        binary(pool, Binary::Mul, &plan, black_box(&x), &column, &mut y);
    });
    let mut dbias = vec![0.0; 400];
    let mut scratch = vec![0.0; bias_activation_grad_scratch_len(2048, 400)];
    bench.time("bias + relu gradient 2048x400", 12 * n, None, || {
        let op = Some(Unary::Relu);
        bias_activation_grad(pool, op, black_box(&x), &dy, &mut y, &mut dbias, &mut scratch);
    });
    let n = 25 << 20;
    let (a, b) = (vec![1.0f32; n], vec![2.0f32; n]);
    let mut out = vec![0.0f32; n];
    let same = Broadcast::new(&[n], &[n]).unwrap();
    bench.time("add 100 MB", 12 * n, Some(9.5), || {
        binary(pool, Binary::Add, &same, black_box(&a), &b, &mut out);
    });
    let mut a = a;
    bench.time("add 100 MB in place", 12 * n, None, || {
        let a = a.as_mut_ptr();
        // SAFETY: the output is the left operand.
        unsafe { binary_raw(pool, Binary::Add, &same, a, black_box(&b).as_ptr(), a) };
    });
}

fn rows(bench: &Bench, pool: &Pool) {
    let (rows, len) = (98304, 128);
    let n = rows * len;
    let x = numbers(n);
    let (mut y, mut dx) = (vec![0.0; n], vec![0.0; n]);
    bench.time("softmax 98304x128", 8 * n, Some(15.5), || {
        softmax(pool, black_box(&x), len, &mut y);
    });
    bench.time("softmax gradient 98304x128", 12 * n, None, || {
        softmax_grad(pool, black_box(&y), &x, len, &mut dx);
    });
    let labels = vec![7i64; rows];
    let mut loss = vec![0.0; rows];
    bench.time("softmax + cross-entropy 98304x128", 8 * n, None, || {
        softmax_cross_entropy(pool, black_box(&x), &labels, -1, &mut y, &mut loss).unwrap();
    });
    let (rows, len) = (8192, 768);
    let n = rows * len;
    let (x, dy) = (numbers(n), numbers(n));
    let (mut y, mut mean, mut inv_std) = (vec![0.0; n], vec![0.0; rows], vec![0.0; rows]);
    let (gamma, beta) = (numbers(len), numbers(len));
    let norm = LayerNorm { len, epsilon: 1e-5, gamma: Some(&gamma), beta: Some(&beta) };
    bench.time("layer norm 8192x768", 8 * n, Some(1.7), || {
        layer_norm(pool, norm, black_box(&x), None, &mut y, &mut mean, &mut inv_std);
    });
    let (mut dgamma, mut dbeta) = (vec![0.0; len], vec![0.0; len]);
    let mut scratch = vec![0.0; layer_norm_grad_scratch_len(rows, len)];
    bench.time("layer norm gradient 8192x768", 12 * n, None, || {
        layer_norm_grad(
            pool,
            norm,
            black_box(&x),
            &mean,
            &inv_std,
            &dy,
            None,
            &mut y,
            &mut dgamma,
            &mut dbeta,
            &mut scratch,
        );
    });
}

fn reductions(bench: &Bench, pool: &Pool) {
    let mut case = |shape: &[usize], axes: &[usize]| {
        let plan = Reduction::new(shape, axes);
        let x = numbers(plan.in_len());
        let (mut out, mut scratch) = (vec![0.0; plan.out_len()], vec![0.0; plan.scratch_len()]);
        bench.time(&format!("sum {shape:?} over {axes:?}"), 4 * x.len(), None, || {
            reduce(pool, Fold::Sum, &plan, black_box(&x), &mut out, &mut scratch);
        });
    };
    case(&[2048, 400], &[0]);
    case(&[2048, 400], &[1]);
    case(&[50176, 64], &[0]);
    case(&[1_000_000, 3], &[0]);
    case(&[8, 64, 3136], &[0, 2]);
    case(&[10_000_000], &[0]);
    let x = numbers(10_000_000);
    bench.time("squared norm 10M", 4 * x.len(), None, || {
        black_box(squared_norm(pool, black_box(&x)));
    });
    bench.time("any nonfinite 10M", 4 * x.len(), None, || {
        black_box(any_nonfinite(pool, black_box(&x)));
    });
}
