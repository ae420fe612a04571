//! Random tensors: uniform, normal, truncated normal, integers, a permutation.
//!
//! They fill parameters in startup programs, so a number depends on the seed, the op's `stream` and
//! its place only: every run draws the same. `seed` 0 is the program's. Floating tensors are drawn in
//! f32. A truncated normal redraws what lies beyond two standard deviations.

use crate::prelude::*;
use crate::tensor::fill::infer_shape_attr;
use crate::widen::{has_half, through_f32};
use fleet_base::rng::{Philox, Sequence, normal_f32, unit_f32};
use fleet_ir::{AttrSpec, Op};
use fleet_tensor::Element;

/// Elements that a task draws; a multiple of the words of a Philox block.
const GRAIN: usize = 8 * 1024;

const SEED: AttrSpec = attr("seed", Int(0));
const STREAM: AttrSpec = attr("stream", Int(0));
const SHAPE: AttrSpec = required("shape", AttrKind::Ints);
const DTYPE: AttrSpec = attr("dtype", DTypeOf(DType::F32));

macro_rules! random {
    ($($name:literal $DEF:ident [$a:expr, $b:expr] $dtype:expr, $amp:ident, $cpu:ident;)*) => {$(
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[],
                outputs: &[one("Out")],
                attrs: &[SHAPE, $dtype, $a, $b, SEED, STREAM],
            },
            infer: infer_shape_attr,
            grad: Grad::None,
            cpu: $cpu,
            traits: OpTraits { random: true, ..OpTraits::amp(AmpClass::$amp) },
        };
    )*};
}

random! {
    "uniform_random" UNIFORM [attr("min", Float(-1.0)), attr("max", Float(1.0))]
        DTYPE, Gray, uniform_cpu;
    "gaussian_random" GAUSSIAN [attr("mean", Float(0.0)), attr("std", Float(1.0))]
        DTYPE, Gray, gaussian_cpu;
    "truncated_gaussian_random" TRUNCATED [attr("mean", Float(0.0)), attr("std", Float(1.0))]
        DTYPE, Unlisted, truncated_cpu;
    "randint" RANDINT [attr("low", Int(0)), required("high", AttrKind::Int)]
        attr("dtype", DTypeOf(DType::I64)), Unlisted, randint_cpu;
}

/// The generator of an op; the seed of the program comes with the run.
#[derive(Clone, Copy)]
struct Source {
    seed: u64,
    stream: u64,
}

impl Source {
    fn new(op: &Op) -> Source {
        Source { seed: op.attr_int("seed") as u64, stream: op.attr_int("stream") as u64 }
    }

    fn rng(&self, k: &KernelCtx<'_>) -> Philox {
        Philox::new(self.seed(k), self.stream)
    }

    fn seed(&self, k: &KernelCtx<'_>) -> u64 {
        if self.seed == 0 { k.seed } else { self.seed }
    }
}

/// Fills f32 or f64 with `draw(rng, first element, elements)`, which starts at a multiple of 4.
fn floats(
    p: &PrepareCtx<'_>,
    draw: impl Fn(&Philox, u64, &mut [f32; 4]) + Send + Sync + 'static,
) -> Result<Kernel> {
    let (dtype, source) = (p.output("Out").dtype, Source::new(p.op));
    if p.output_layouts[0][0] != Layout::RowMajor {
        return Err(Error::internal(format!("{} fills row-major tensors", p.op.name())));
    }
    match dtype {
        DType::F32 => Ok(Kernel::new(move |k| {
            fill(k, &source.rng(k), &draw, |value| value);
            Ok(())
        })),
        DType::F64 => Ok(Kernel::new(move |k| {
            fill(k, &source.rng(k), &draw, f64::from);
            Ok(())
        })),
        _ => Err(p.no_kernel(dtype)),
    }
}

fn fill<T: Element>(
    k: &KernelCtx<'_>,
    rng: &Philox,
    draw: &(impl Fn(&Philox, u64, &mut [f32; 4]) + Sync),
    cast: impl Fn(f32) -> T + Sync,
) {
    let out = k.output::<T>(0);
    let len = out.len();
    let out = Shareable::new(out);
    k.pool.run_ranges(len, GRAIN, |range| {
        // SAFETY: ranges are disjoint and inside the output.
        let places = unsafe { out.slice(range.start, range.len()) };
        for (group, places) in places.chunks_mut(4).enumerate() {
            let mut four = [0.0; 4];
            draw(rng, (range.start / 4 + group) as u64, &mut four);
            places.iter_mut().zip(four).for_each(|(place, value)| *place = cast(value));
        }
    });
}

fn uniform_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, uniform_cpu);
    }
    let (min, max) = (p.op.attr_float("min"), p.op.attr_float("max"));
    if min.is_nan() || max.is_nan() || min > max {
        return Err(Error::invalid("attributes of uniform_random are out of range")
            .expected("min up to max")
            .got(format!("min {min}, max {max}")));
    }
    let (min, width) = (min as f32, (max - min) as f32);
    floats(p, move |rng, block, four| {
        *four = rng.block(block).map(|word| min + width * unit_f32(word));
    })
}

/// Two normal numbers a block, as [`Philox::normal`] numbers them.
fn normals(rng: &Philox, group: u64) -> [f32; 4] {
    let (a, b) = (rng.block(2 * group), rng.block(2 * group + 1));
    [normal_f32(a[0], a[1]), normal_f32(a[2], a[3]), normal_f32(b[0], b[1]), normal_f32(b[2], b[3])]
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
    if has_half(p) {
        return through_f32(p, gaussian_cpu);
    }
    let (mean, std) = moments(p.op)?;
    floats(p, move |rng, group, four| {
        *four = normals(rng, group).map(|normal| mean + std * normal);
    })
}

/// Draws beyond two standard deviations are repeated, this often at most: one in 22 is, so that a
/// tenth repetition comes once in 10^13 draws; what is left then is clamped.
const REDRAWS_MAX: u64 = 10;

fn truncated_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, truncated_cpu);
    }
    let (mean, std) = moments(p.op)?;
    floats(p, move |rng, group, four| {
        *four = normals(rng, group);
        for (lane, value) in four.iter_mut().enumerate() {
            // Repetitions come from far behind anything that a tensor draws at first.
            let place = 4 * group + lane as u64;
            let mut redraw = 0;
            while value.abs() > 2.0 && redraw < REDRAWS_MAX {
                redraw += 1;
                *value = rng.normal((redraw << 48) + place);
            }
            *value = mean + std * value.clamp(-2.0, 2.0);
        }
    })
}

fn randint_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (low, high) = (p.op.attr_int("low"), p.op.attr_int("high"));
    if high <= low {
        return Err(Error::invalid("attributes of randint are out of range")
            .expected("low below high")
            .got(format!("low {low}, high {high}")));
    }
    let (width, source) = (high.wrapping_sub(low) as u64, Source::new(p.op));
    let draw = move |rng: &Philox, place: usize| {
        let word = u128::from(rng.word64(place as u64));
        low.wrapping_add(((word * u128::from(width)) >> 64) as i64)
    };
    match p.output("Out").dtype {
        DType::I64 => Ok(Kernel::new(move |k| {
            integers(k, &source.rng(k), draw);
            Ok(())
        })),
        DType::I32 => Ok(Kernel::new(move |k| {
            integers(k, &source.rng(k), |rng, place| draw(rng, place) as i32);
            Ok(())
        })),
        dtype => Err(p.no_kernel(dtype)),
    }
}

fn integers<T: Element>(
    k: &KernelCtx<'_>,
    rng: &Philox,
    draw: impl Fn(&Philox, usize) -> T + Sync,
) {
    let out = k.output::<T>(0);
    let len = out.len();
    let out = Shareable::new(out);
    k.pool.run_ranges(len, GRAIN, |range| {
        // SAFETY: ranges are disjoint and inside the output.
        let places = unsafe { out.slice(range.start, range.len()) };
        places.iter_mut().zip(range).for_each(|(place, index)| *place = draw(rng, index));
    });
}

/// The numbers 0 to n - 1 in random order.
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
            DType::I64 => Ok(Kernel::new(move |k| {
                let out = k.output::<i64>(0);
                out.iter_mut().enumerate().for_each(|(index, it)| *it = index as i64);
                shuffled(k).shuffle(out);
                Ok(())
            })),
            DType::I32 => Ok(Kernel::new(move |k| {
                let out = k.output::<i32>(0);
                out.iter_mut().enumerate().for_each(|(index, it)| *it = index as i32);
                shuffled(k).shuffle(out);
                Ok(())
            })),
            dtype => Err(p.no_kernel(dtype)),
        }
    },
    traits: OpTraits { random: true, ..OpTraits::plain() },
};
