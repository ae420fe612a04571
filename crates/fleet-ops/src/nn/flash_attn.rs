//! Attention without a stored score matrix: `Out = softmax(scale * Q K^T + Mask) V` per head.
//!
//! Q, K and V are [batch, time, heads, dim], where the time of K and V may differ from that of Q.
//! Mask is added to the scores and broadcasts to [batch, heads, queries, keys]. `scale` 0 means
//! `1 / sqrt(dim)`. The gradient recomputes the probabilities from SoftmaxLse [batch, heads,
//! queries]. Dropout applies to the probabilities. Its mask is recomputed from seed, stream and
//! step. No gradient flows to Mask.
//!
//! The functions here also serve flash_attn_qkvpacked.

use super::random;
use crate::comm::RANKS_MAX;
use crate::prelude::*;
use crate::rules::grads_like;
use crate::widen::{FLOATS, any_float};
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::attention::{Attention, Dropout, Heads, HeadsMut, Mask, Strides};

pub(super) const ATTRS: &[AttrSpec] = &[
    attr("scale", Float(0.0)),
    attr("causal", Bool(false)),
    attr("dropout_prob", Float(0.0)),
    attr("is_test", Bool(false)),
    attr("seed", Int(0)),
    attr("stream", Int(0)),
    PART,
];

const MASK: usize = 3;
// Slots of the gradient op.
const OUT: usize = 4;
const LSE: usize = 5;
const DOUT: usize = 6;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "flash_attn",
        inputs: &[one("Q"), one("K"), one("V"), optional("Mask")],
        outputs: &[one("Out"), one("SoftmaxLse")],
        attrs: ATTRS,
    },
    infer: |i| {
        let [batch, queries, heads, dim, keys] = check(i)?;
        check_mask(i, [batch, heads, queries, keys])?;
        check_dropout(i.op)?;
        i.set("Out", i.input("Q")?.dtype, [batch, queries, heads, dim]);
        i.set("SoftmaxLse", DType::F32, [batch, heads, queries]);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        random: true,
        cost: |c| cost(c, 1.0),
        divide: |d| {
            for slot in ["Q", "K", "V"] {
                if d.along(slot) != Some(HEADS) {
                    return Err(d.unsupported("needs the same heads of queries, keys and values"));
                }
            }
            divide_heads(d)
        },
        ..OpTraits::amp(AmpClass::White)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "flash_attn_grad",
        inputs: &[
            one("Q"),
            one("K"),
            one("V"),
            optional("Mask"),
            one("Out"),
            one("SoftmaxLse"),
            one("Out@GRAD"),
        ],
        outputs: &[optional("Q@GRAD"), optional("K@GRAD"), optional("V@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        check(i)?;
        i.check_shape("Out@GRAD", i.input("Out")?.shape)?;
        grads_like(i, &["Q", "K", "V"])
    },
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    // The gradient has five products of the same size; the forward pass has two.
    traits: OpTraits { cost: |c| cost(c, 2.5), ..OpTraits::amp(AmpClass::White) },
};

/// Checks Q, K and V, and returns batch, queries, heads, dim and keys.
fn check(i: &InferCtx<'_>) -> Result<[i64; 5]> {
    i.check_dtype("Q", FLOATS)?;
    for slot in ["Q", "K", "V"] {
        i.check_dtype(slot, &[i.input("Q")?.dtype])?;
        i.check_rank(slot, 4)?;
    }
    let (q, key) = (i.input("Q")?.shape, i.input("K")?.shape);
    i.check_shape("K", [q[0], -1, q[2], q[3]])?;
    i.check_shape("V", key)?;
    Ok([q[0], q[1], q[2], q[3], key[1]])
}

/// The axis of the heads in queries, keys, values and Out.
const HEADS: Along = Along::axis(2);

/// Gives each rank its heads of Out.
pub(super) fn divide_heads(d: &mut Divide<'_>) -> Result<()> {
    if d.has("Mask") && (d.along("Mask").is_some() || d.shape("Mask")?.get(1) != Some(&1)) {
        return Err(d.unsupported("supports only masks that all heads share"));
    }
    if d.op.attr_float("dropout_prob") > 0.0 {
        d.set_random_part(Along::axis(1));
    }
    d.set_part("Out", HEADS)?;
    d.set_part("SoftmaxLse", Along::axis(1))
}

/// Checks that the mask broadcasts to `full`.
pub(super) fn check_mask(i: &InferCtx<'_>, full: [i64; 4]) -> Result<()> {
    if i.optional("Mask").is_none() {
        return Ok(());
    }
    i.check_dtype("Mask", FLOATS)?;
    let mask = i.check_rank("Mask", 4)?;
    let fits = |(have, want): (&i64, &i64)| *have == 1 || have == want || *have < 0 || *want < 0;
    match mask.iter().zip(&full).all(fits) {
        true => Ok(()),
        false => Err(i
            .error("Mask", "does not broadcast to the scores")
            .expected(Shape::from(full))
            .got(mask)),
    }
}

pub(super) fn check_dropout(op: &Op) -> Result<()> {
    match *op.attr_ints(PART.name) {
        [] => {}
        [1, 1, part, parts] if (0..parts).contains(&part) && parts <= RANKS_MAX => {}
        ref other => {
            return Err(Error::invalid(format!("invalid attribute 'part' of {}", op.name()))
                .expected("axis 1, 1 group, part and parts")
                .got(format!("{other:?}")));
        }
    }
    let probability = op.attr_float("dropout_prob");
    if (0.0..1.0).contains(&probability) {
        return Ok(());
    }
    Err(Error::invalid(format!("dropout_prob of {} is wrong", op.name()))
        .expected("at least 0 and below 1")
        .got(probability))
}

/// Returns the attention of an op, without dropout, whose stream depends on the step.
pub(super) fn attention(op: &Op, [batch, queries, heads, dim, keys]: [usize; 5]) -> Attention {
    let scale = match op.attr_float("scale") {
        0.0 => 1.0 / (dim.max(1) as f64).sqrt(),
        scale => scale,
    };
    Attention {
        batch,
        heads,
        queries,
        keys,
        dim,
        scale: scale as f32,
        is_causal: op.attr_bool("causal"),
        dropout: None,
    }
}

/// Dropout options of an op. The stream is different in each step.
#[derive(Clone, Copy)]
pub(super) struct DropoutOptions {
    probability: f32,
    seed: i64,
    stream: i64,
    /// The part of the heads that this attention has, and the number of parts.
    part: (usize, usize),
}

impl DropoutOptions {
    pub(super) fn of(op: &Op) -> Option<DropoutOptions> {
        let probability = op.attr_float("dropout_prob") as f32;
        let part = match *op.attr_ints(PART.name) {
            [_, _, part, parts] => (part.max(0) as usize, parts.max(1) as usize),
            _ => (0, 1),
        };
        let options = DropoutOptions {
            probability,
            seed: op.attr_int("seed"),
            stream: op.attr_int("stream"),
            part,
        };
        (probability > 0.0 && !op.attr_bool("is_test")).then_some(options)
    }

    pub(super) fn at_step(&self, k: &KernelCtx<'_>) -> Dropout {
        Dropout {
            probability: self.probability,
            seed: random::seed(self.seed, k),
            stream: random::stream(self.stream, k),
            part: self.part,
        }
    }
}

fn sizes(p: &PrepareCtx<'_>) -> [usize; 5] {
    let (q, key) = (p.input("Q").shape, p.input("K").shape);
    [q.at(0), q.at(1), q.at(2), q.at(3), key.at(1)]
}

pub(super) fn mask_shape(p: &PrepareCtx<'_>) -> [usize; 4] {
    p.optional("Mask").map_or([1; 4], |mask| [0, 1, 2, 3].map(|axis| mask.shape.at(axis)))
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (attention, options) = (attention(p.op, sizes(p)), DropoutOptions::of(p.op));
    let mask_shape = mask_shape(p);
    Ok(Kernel::infallible(move |k| {
        let attention =
            Attention { dropout: options.map(|options| options.at_step(k)), ..attention };
        let dense = |time| Strides::dense(time, attention.heads, attention.dim);
        let (queries, keys) = (dense(attention.queries), dense(attention.keys));
        attention.forward(
            k.pool,
            Heads::new(k.input(0), queries),
            Heads::new(k.input(1), keys),
            Heads::new(k.input(2), keys),
            k.optional(MASK).map(|mask| Mask::new(mask, mask_shape)),
            HeadsMut::new(k.output(0), queries),
            k.output(1),
            k.scratch(),
        );
    })
    .scratch::<f32>(attention.forward_scratch_len(p.threads)))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (attention, options) = (attention(p.op, sizes(p)), DropoutOptions::of(p.op));
    let mask_shape = mask_shape(p);
    let own = attention.backward_scratch_len(p.threads);
    // The kernel always writes all gradients, so those that are not requested need memory too.
    let mut spare = [0; 3];
    for (index, (slot, grad)) in
        [("Q", "Q@GRAD"), ("K", "K@GRAD"), ("V", "V@GRAD")].into_iter().enumerate()
    {
        if p.optional_output(grad).is_none() {
            spare[index] = p.input(slot).numel();
        }
    }
    Ok(Kernel::infallible(move |k| {
        let attention =
            Attention { dropout: options.map(|options| options.at_step(k)), ..attention };
        let dense = |time| Strides::dense(time, attention.heads, attention.dim);
        let (queries, keys) = (dense(attention.queries), dense(attention.keys));
        let (scratch, rest) = k.scratch::<f32>().split_at_mut(own);
        let (spare_q, rest) = rest.split_at_mut(spare[0]);
        let (spare_k, rest) = rest.split_at_mut(spare[1]);
        let spare_v = &mut rest[..spare[2]];
        attention.backward(
            k.pool,
            (
                Heads::new(k.input(0), queries),
                Heads::new(k.input(1), keys),
                Heads::new(k.input(2), keys),
            ),
            k.optional(MASK).map(|mask| Mask::new(mask, mask_shape)),
            (Heads::new(k.input(OUT), queries), Heads::new(k.input(DOUT), queries)),
            k.input(LSE),
            (
                HeadsMut::new(k.optional_output(0).unwrap_or(spare_q), queries),
                HeadsMut::new(k.optional_output(1).unwrap_or(spare_k), keys),
                HeadsMut::new(k.optional_output(2).unwrap_or(spare_v), keys),
            ),
            scratch,
        );
    })
    .scratch::<f32>(own + spare.iter().sum::<usize>()))
}

fn cost(c: &CostCtx<'_>, factor: f64) -> Cost {
    let flops = match (c.input("Q"), c.input("K")) {
        (Some(q), Some(key)) => {
            let at = |shape: &Shape, axis: usize| shape[axis].unsigned_abs() as usize;
            let q = &q.shape;
            let sizes = [at(q, 0), at(q, 1), at(q, 2), at(q, 3), at(&key.shape, 1)];
            attention(c.op, sizes).flops()
        }
        _ => 0.0,
    };
    Cost { flops: factor * flops, bytes: c.bytes() }
}
