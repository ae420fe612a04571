//! Measures the vector kernels on this machine. Prints one line per kernel: milliseconds, GB/s of
//! the memory traffic it needs, and the time of a competitor (torch, 2 threads, measured elsewhere)
//! if there is one. Run with `cargo run --release --example vector_bench [threads] [name part]`.

use std::hint::black_box;
use std::time::Instant;

use fleet_kernels::bias::{
    bias_activation, bias_activation_grad, bias_activation_grad_scratch_len,
};
use fleet_kernels::binary::{Binary, Broadcast, binary};
use fleet_kernels::cast::cast;
use fleet_kernels::dropout::{Dropout, Mode, dropout};
use fleet_kernels::elementwise::{Unary, unary, unary_grad};
use fleet_kernels::fill::{Draw, normal, randint, truncated_normal, uniform};
use fleet_kernels::input::Input;
use fleet_kernels::layer_norm::{
    LayerNorm, layer_norm, layer_norm_grad, layer_norm_grad_scratch_len,
};
use fleet_kernels::optim::{
    Regularizer, Rule, Segment, Segments, Step, Table, Tensors, update_rows,
};
use fleet_kernels::pool::Pool;
use fleet_kernels::reduce::{Fold, Reduction, reduce, squared_norm};
use fleet_kernels::softmax::{softmax, softmax_cross_entropy, softmax_grad};
use fleet_kernels::transpose::{Permute, permute};

struct Bench {
    threads: usize,
    only: String,
}

impl Bench {
    /// Prints the median of several runs of `body`, which moves `bytes`.
    fn time(&self, name: &str, bytes: usize, competitor_ms: Option<f64>, mut body: impl FnMut()) {
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
        let competitor = competitor_ms.map_or(String::new(), |ms| format!("  (torch {ms} ms)"));
        let rate = bytes as f64 / ms / 1e6;
        println!("{:<34} {} threads {ms:9.3} ms {rate:7.1} GB/s{competitor}", name, self.threads);
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
    optimizers(&bench, &pool);
    random(&bench, &pool);
    moves(&bench, &pool);
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
    bench.time("bias + relu 2048x400", 8 * n, None, || {
        bias_activation(pool, Unary::Relu, black_box(&x), &bias, 400, &mut y);
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
        binary(pool, Binary::Add, &same, Input::Output, black_box(&b), &mut a);
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
    let case = |shape: &[usize], axes: &[usize]| {
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
}

fn optimizers(bench: &Bench, pool: &Pool) {
    let n = 10_000_000;
    let (mut w, g, mut m, mut v) = (numbers(n), numbers(n), numbers(n), vec![1.0; n]);
    let betas = (0.9, 0.999, 1e-8);
    let adam = Rule::Adam { beta1: betas.0, beta2: betas.1, epsilon: betas.2 };
    let lamb = Rule::Lamb { beta1: betas.0, beta2: betas.1, epsilon: betas.2, always_adapt: false };
    let momentum = Rule::Momentum { mu: 0.9, nesterov: false };
    let cases = [
        ("Sgd 10M", Rule::Sgd, 3, None),
        ("Momentum 10M", momentum, 5, None),
        ("Adam 10M", adam, 7, Some(3.6)),
        ("Adagrad 10M", Rule::Adagrad { epsilon: 1e-6 }, 5, None),
        ("Lamb 10M", lamb, 10, None),
    ];
    for (name, rule, accesses, competitor) in cases {
        let state = [Some(&mut m[..]), Some(&mut v[..]), None];
        let mut segments = Segments::new(vec![Segment::new(n, Regularizer::None, 0.0)]);
        let mut scratch = vec![0.0; segments.scratch_len()];
        let mut tensors = Some(Tensors { param: &mut w, grad: Some(&g), state, powers: None });
        let mut bound = segments.bind(|_| tensors.take().unwrap());
        bench.time(name, accesses * 4 * n, competitor, || {
            bound.update(pool, rule, Step::default(), &mut scratch);
        });
    }
    let cut = 1 << 16;
    let state = [Some(&mut m[..cut]), Some(&mut v[..cut]), None];
    let mut segments = Segments::new(vec![Segment::new(cut, Regularizer::None, 0.0)]);
    let (param, grad) = (&mut w[..cut], Some(&g[..cut]));
    let mut tensors = Some(Tensors { param, grad, state, powers: None });
    let mut bound = segments.bind(|_| tensors.take().unwrap());
    bench.time("Adam 64K, in L2", 28 * cut, None, || {
        bound.update(pool, adam, Step::default(), &mut []);
    });
    let (width, rows) = (16, 53_000);
    let mut param = numbers(1_000_000 * width);
    let mut state = vec![1.0; param.len()];
    // 7919 and 1,000,000 have no common factor, so the rows are distinct.
    let mut picked: Vec<i64> = (0..rows).map(|i| i as i64 * 7919 % 1_000_000).collect();
    picked.sort_unstable();
    let grads = numbers(rows * width);
    for (name, rule, accesses) in [
        ("Sgd rows 53k x 16 of 1M", Rule::Sgd, 3),
        ("Adagrad rows 53k x 16 of 1M", Rule::Adagrad { epsilon: 1e-6 }, 5),
    ] {
        bench.time(name, accesses * 4 * rows * width, None, || {
            let table = Table {
                param: &mut param,
                state: [Some(&mut state), None, None],
                width,
                regularizer: Regularizer::None,
                weight_decay: 0.0,
            };
            update_rows(pool, rule, Step::default(), table, &picked, &grads).unwrap();
        });
    }
}

fn random(bench: &Bench, pool: &Pool) {
    let n = 2048 * 768;
    let draw = Draw { seed: 1, stream: 2, offset: 0 };
    let x = numbers(n);
    let (mut y, mut integers) = (vec![0.0; n], vec![0; n]);
    bench.time("uniform 1.6M", 4 * n, None, || uniform(pool, draw, -1.0, 1.0, &mut y));
    bench.time("normal 1.6M", 4 * n, None, || normal(pool, draw, 0.0, 1.0, &mut y));
    bench.time("truncated normal 1.6M", 4 * n, None, || {
        truncated_normal(pool, draw, 0.0, 1.0, &mut y);
    });
    bench.time("randint 1.6M", 8 * n, None, || randint(pool, draw, 0, 1000, &mut integers));
    let drop = Dropout { probability: 0.1, mode: Mode::UpscaleInTrain, draw };
    bench.time("dropout 1.6M", 8 * n, None, || dropout(pool, drop, black_box(&x), &mut y));
}

fn moves(bench: &Bench, pool: &Pool) {
    for (name, shape, axes) in [
        ("transpose 2048x2048", &[2048, 2048][..], &[1, 0][..]),
        ("transpose 429x2048", &[429, 2048], &[1, 0]),
        ("NCHW to NHWC 8x64x56x56", &[8, 64, 56, 56], &[0, 2, 3, 1]),
        ("NHWC to NCHW 8x56x56x64", &[8, 56, 56, 64], &[0, 3, 1, 2]),
        ("NCHW to NHWC 8x3x224x224", &[8, 3, 224, 224], &[0, 2, 3, 1]),
        ("BTHD to BHTD 8x128x12x64", &[8, 128, 12, 64], &[0, 2, 1, 3]),
    ] {
        let plan = Permute::new(shape, axes).unwrap();
        let x = numbers(plan.len());
        let mut y = vec![0.0; x.len()];
        bench.time(name, 8 * x.len(), None, || permute(pool, &plan, black_box(&x), &mut y));
    }
    let n = 2048 * 768;
    let x = numbers(n);
    let (mut half, mut brain) = (vec![half::f16::ZERO; n], vec![half::bf16::ZERO; n]);
    let (mut double, mut back) = (vec![0f64; n], vec![0f32; n]);
    bench.time("f32 to f16 1.6M", 6 * n, None, || cast(pool, black_box(&x), &mut half));
    bench.time("f16 to f32 1.6M", 6 * n, None, || cast(pool, black_box(&half), &mut back));
    bench.time("f32 to bf16 1.6M", 6 * n, None, || cast(pool, black_box(&x), &mut brain));
    bench.time("bf16 to f32 1.6M", 6 * n, None, || cast(pool, black_box(&brain), &mut back));
    bench.time("f32 to f64 1.6M", 12 * n, None, || cast(pool, black_box(&x), &mut double));
    let mut integers = vec![0i64; n];
    bench.time("f32 to i64 1.6M", 12 * n, None, || cast(pool, black_box(&x), &mut integers));
}
