//! Random tensors: uniform, normal, truncated normal, integers, a permutation.
//!
//! These ops fill parameters in startup programs. A number depends only on the seed, the op's
//! `stream` and its position, so every run draws the same numbers. `seed` 0 means the program's.
//! Floating-point tensors are drawn in f32. A truncated normal is within two standard deviations.

use crate::divide::Runs;
use crate::prelude::*;
use crate::tensor::fill::{divide_shape, infer_shape_attr};
use crate::widen::any_float;
use fleet_base::rng::Sequence;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::cast::cast;
use fleet_kernels::fill::{Draw, normal, randint, truncated_normal, uniform};

const SEED: AttrSpec = attr("seed", Int(0));
const STREAM: AttrSpec = attr("stream", Int(0));
const SHAPE: AttrSpec = required("shape", AttrKind::Ints);
const DTYPE: AttrSpec = attr("dtype", DTypeOf(DType::F32));

macro_rules! random {
    ($($name:literal $DEF:ident [$a:expr, $b:expr] $dtype:expr, $amp:ident, $cpu:expr;)*) => {$(
        #[doc = concat!("The op `", $name, "`.")]
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[],
                outputs: &[one("Out")],
                attrs: &[SHAPE, $dtype, $a, $b, SEED, STREAM, PART],
            },
            infer: infer_shape_attr,
            grad: Grad::None,
            cpu: $cpu,
            traits: OpTraits { random: true, divide, ..OpTraits::amp(AmpClass::$amp) },
        };
    )*};
}

random! {
    "uniform_random" UNIFORM [attr("min", Float(-1.0)), attr("max", Float(1.0))]
        DTYPE, Gray, |p| any_float(p, uniform_cpu);
    "gaussian_random" GAUSSIAN [attr("mean", Float(0.0)), attr("std", Float(1.0))]
        DTYPE, Gray, |p| any_float(p, gaussian_cpu);
    "truncated_gaussian_random" TRUNCATED [attr("mean", Float(0.0)), attr("std", Float(1.0))]
        DTYPE, Unlisted, |p| any_float(p, truncated_cpu);
    "randint" RANDINT [attr("low", Int(0)), required("high", AttrKind::Int)]
        attr("dtype", DTypeOf(DType::I64)), Unlisted, randint_cpu;
}

/// A part has the numbers that the whole tensor would have.
fn divide(d: &mut Divide<'_>) -> Result<()> {
    let along = d.requested()?;
    divide_shape(d, along)?;
    d.set_random_part(along);
    Ok(())
}

/// Generator of an op. The seed of the program is known when the op runs.
#[derive(Clone, Copy)]
struct Source {
    seed: u64,
    stream: u64,
}

impl Source {
    fn new(op: &Op) -> Source {
        Source { seed: op.attr_int("seed") as u64, stream: op.attr_int("stream") as u64 }
    }

    /// Calls `fill` with each run of elements, and the start of its numbers.
    fn fill<T: Copy + Default>(
        &self,
        k: &KernelCtx<'_>,
        runs: &Runs,
        out: &mut [T],
        fill: impl Fn(&Pool, Draw, &mut [T]),
    ) {
        let draw = Draw { seed: self.seed(k), stream: self.stream, offset: 0 };
        if runs.has_padding() {
            out.fill(T::default());
        }
        runs.each(out.len(), |run, offset| {
            fill(k.pool, Draw { offset, ..draw }, &mut out[run]);
        });
    }

    fn seed(&self, k: &KernelCtx<'_>) -> u64 {
        if self.seed == 0 { k.seed } else { self.seed }
    }
}

/// Fills f32 with `fill`. For f64, fills scratch with f32 and converts it.
fn floats(
    p: &PrepareCtx<'_>,
    fill: impl Fn(&Pool, Draw, &mut [f32]) + Send + Sync + 'static,
) -> Result<Kernel> {
    let (out, source) = (p.output("Out"), Source::new(p.op));
    if p.output_layouts[0][0] != Layout::RowMajor {
        return Err(Error::internal(format!("{} supports only row-major tensors", p.op.name())));
    }
    let runs = Runs::of_initial(p.op, &out.shape)?;
    match out.dtype {
        DType::F32 => Ok(Kernel::infallible(move |k| source.fill(k, &runs, k.output(0), &fill))),
        DType::F64 => {
            let len = out.shape.len();
            Ok(Kernel::infallible(move |k| {
                let drawn = &mut k.scratch::<f32>()[..len];
                source.fill(k, &runs, drawn, &fill);
                cast(k.pool, drawn, k.output::<f64>(0));
            })
            .scratch::<f32>(len))
        }
        dtype => Err(p.no_kernel(dtype)),
    }
}

fn uniform_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (min, max) = (p.op.attr_float("min"), p.op.attr_float("max"));
    if min.is_nan() || max.is_nan() || min > max {
        return Err(Error::invalid("attributes of uniform_random are out of range")
            .expected("min <= max")
            .got(format!("min {min}, max {max}")));
    }
    let (min, max) = (min as f32, max as f32);
    floats(p, move |pool, draw, out| uniform(pool, draw, min, max, out))
}

fn moments(op: &Op) -> Result<(f32, f32)> {
    let (mean, std) = (op.attr_float("mean"), op.attr_float("std"));
    if mean.is_nan() || std.is_nan() || std < 0.0 {
        return Err(Error::invalid(format!("attributes of {} are out of range", op.name()))
            .expected("a mean, and a std of 0 or more")
            .got(format!("mean {mean}, std {std}")));
    }
    Ok((mean as f32, std as f32))
}

fn gaussian_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (mean, std) = moments(p.op)?;
    floats(p, move |pool, draw, out| normal(pool, draw, mean, std, out))
}

fn truncated_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (mean, std) = moments(p.op)?;
    floats(p, move |pool, draw, out| truncated_normal(pool, draw, mean, std, out))
}

fn randint_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (low, high) = (p.op.attr_int("low"), p.op.attr_int("high"));
    if high <= low {
        return Err(Error::invalid("attributes of randint are out of range")
            .expected("low < high")
            .got(format!("low {low}, high {high}")));
    }
    let (out, source) = (p.output("Out"), Source::new(p.op));
    let len = out.shape.len();
    let runs = Runs::of_initial(p.op, &out.shape)?;
    let fill = move |pool: &Pool, draw: Draw, out: &mut [i64]| randint(pool, draw, low, high, out);
    match out.dtype {
        DType::I64 => Ok(Kernel::infallible(move |k| source.fill(k, &runs, k.output(0), fill))),
        DType::I32 => Ok(Kernel::infallible(move |k| {
            let drawn = &mut k.scratch::<i64>()[..len];
            source.fill(k, &runs, drawn, fill);
            cast(k.pool, drawn, k.output::<i32>(0));
        })
        .scratch::<i64>(len)),
        dtype => Err(p.no_kernel(dtype)),
    }
}

/// `randperm`: the numbers 0 to n - 1 in random order.
pub static RANDPERM: OpDef = OpDef {
    spec: OpSpec {
        name: "randperm",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[required("n", AttrKind::Int), attr("dtype", DTypeOf(DType::I64)), SEED, STREAM],
    },
    infer: |i| {
        let count = i.op.attr_int("n");
        if count < 0 {
            return Err(Error::invalid("attribute 'n' of randperm is out of range")
                .expected("0 or more")
                .got(count));
        }
        i.set("Out", i.op.attr_dtype("dtype"), [count]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let source = Source::new(p.op);
        let shuffled = move |k: &KernelCtx<'_>| Sequence::new(source.seed(k), source.stream);
        match p.output("Out").dtype {
            DType::I64 => Ok(Kernel::infallible(move |k| {
                let out = k.output::<i64>(0);
                out.iter_mut().enumerate().for_each(|(index, it)| *it = index as i64);
                shuffled(k).shuffle(out);
            })),
            DType::I32 => Ok(Kernel::infallible(move |k| {
                let out = k.output::<i32>(0);
                out.iter_mut().enumerate().for_each(|(index, it)| *it = index as i32);
                shuffled(k).shuffle(out);
            })),
            dtype => Err(p.no_kernel(dtype)),
        }
    },
    traits: OpTraits { random: true, ..OpTraits::plain() },
};
