//! Attention over packed queries, keys and values QKV [batch, time, 3, heads, dim]. One product
//! with a [model, 3 * model] weight gives this layout. The op equals flash_attn without splitting
//! QKV first.

use super::flash_attn::{
    ATTRS, DropoutOptions, attention, check_dropout, check_mask, divide_heads, mask_shape,
};
use crate::prelude::*;
use crate::widen::{FLOATS, any_float};
use fleet_kernels::attention::{Attention, Heads, HeadsMut, Mask, Strides};

const MASK: usize = 1;
const OUT: usize = 2;
const LSE: usize = 3;
const DOUT: usize = 4;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "flash_attn_qkvpacked",
        inputs: &[one("QKV"), optional("Mask")],
        outputs: &[one("Out"), one("SoftmaxLse")],
        attrs: ATTRS,
    },
    infer: |i| {
        let [batch, time, heads, dim] = check(i)?;
        check_mask(i, [batch, heads, time, time])?;
        check_dropout(i.op)?;
        i.set("Out", i.input("QKV")?.dtype, [batch, time, heads, dim]);
        i.set("SoftmaxLse", DType::F32, [batch, heads, time]);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        random: true,
        cost: |c| cost(c, 1.0),
        divide: |d| match d.along("QKV") {
            Some(along) if along == Along::axis(3) => divide_heads(d),
            _ => Err(d.unsupported("needs all queries, keys and values of some heads")),
        },
        ..OpTraits::amp(AmpClass::White)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "flash_attn_qkvpacked_grad",
        inputs: &[one("QKV"), optional("Mask"), one("Out"), one("SoftmaxLse"), one("Out@GRAD")],
        outputs: &[one("QKV@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        check(i)?;
        i.check_shape("Out@GRAD", i.input("Out")?.shape)?;
        let qkv = i.input("QKV")?;
        i.set("QKV@GRAD", qkv.dtype, qkv.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    traits: OpTraits { cost: |c| cost(c, 2.5), ..OpTraits::amp(AmpClass::White) },
};

/// Checks QKV, and returns batch, time, heads and dim.
fn check(i: &InferCtx<'_>) -> Result<[i64; 4]> {
    i.check_dtype("QKV", FLOATS)?;
    let qkv = i.check_rank("QKV", 5)?;
    i.check_shape("QKV", [-1, -1, 3, -1, -1])?;
    Ok([qkv[0], qkv[1], qkv[3], qkv[4]])
}

fn sizes(qkv: &Shape) -> [usize; 5] {
    let at = |axis: usize| qkv[axis].unsigned_abs() as usize;
    [at(0), at(1), at(3), at(4), at(1)]
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (attention, options) =
        (attention(p.op, sizes(&p.input("QKV").shape)), DropoutOptions::of(p.op));
    let mask_shape = mask_shape(p);
    Ok(Kernel::infallible(move |k| {
        let attention =
            Attention { dropout: options.map(|options| options.at_step(k)), ..attention };
        let (time, heads, dim) = (attention.queries, attention.heads, attention.dim);
        let [q, key, v] = Heads::split(k.input(0), time, heads, dim);
        attention.forward(
            k.pool,
            q,
            key,
            v,
            k.optional(MASK).map(|mask| Mask::new(mask, mask_shape)),
            HeadsMut::new(k.output(0), Strides::dense(time, heads, dim)),
            k.output(1),
            k.scratch(),
        );
    })
    .scratch::<f32>(attention.forward_scratch_len(p.threads)))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (attention, options) =
        (attention(p.op, sizes(&p.input("QKV").shape)), DropoutOptions::of(p.op));
    let mask_shape = mask_shape(p);
    Ok(Kernel::infallible(move |k| {
        let attention =
            Attention { dropout: options.map(|options| options.at_step(k)), ..attention };
        let (time, heads, dim) = (attention.queries, attention.heads, attention.dim);
        let dense = Strides::dense(time, heads, dim);
        let [q, key, v] = Heads::split(k.input(0), time, heads, dim);
        let [dq, dk, dv] = HeadsMut::split(k.output(0), time, heads, dim);
        attention.backward(
            k.pool,
            (q, key, v),
            k.optional(MASK).map(|mask| Mask::new(mask, mask_shape)),
            (Heads::new(k.input(OUT), dense), Heads::new(k.input(DOUT), dense)),
            k.input(LSE),
            (dq, dk, dv),
            k.scratch(),
        );
    })
    .scratch::<f32>(attention.backward_scratch_len(p.threads)))
}

fn cost(c: &CostCtx<'_>, factor: f64) -> Cost {
    let flops = c.input("QKV").map_or(0.0, |qkv| attention(c.op, sizes(&qkv.shape)).flops());
    Cost { flops: factor * flops, bytes: c.bytes() }
}
