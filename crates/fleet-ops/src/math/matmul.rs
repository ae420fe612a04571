//! Matrix products. `mul` flattens its operands to matrices. `matmul_v2` multiplies the last two
//! dimensions in batches; the other dimensions are broadcast.
//!
//! f32; bf16 if the machine has a unit for it; other halves through f32. A product is planned as a
//! short list of GEMM calls. Batch dimensions that fit two strides become one call, and a weight
//! without batch dimensions gives one flat product. The gradient of a broadcast operand is summed
//! by calls that add to their result.
//!
//! The gradient ops add YSum, if it is given, to Y@GRAD: the sum of the gradients of other batches.
//! A fusion pass makes this form.

use crate::prelude::*;
use crate::rules::{begin_sum, check_added, check_row_major, dim_product, grads_like, same_dim};
use crate::widen::{has_half, is_bf16, through_f32};
use fleet_kernels::gemm::{Batch, Factor, Gemm};
use fleet_tensor::{Element, bf16};

const X: usize = 0;
const Y: usize = 1;
const DOUT: usize = 2;
const Y_SUM: usize = 3;

/// The gradient that the gradient ops can add to another tensor, and that tensor.
pub(crate) const ADDED_TO_Y: (&str, &str) = ("Y@GRAD", "YSum");

pub static MUL: OpDef = OpDef {
    spec: OpSpec {
        name: "mul",
        inputs: &[one("X"), one("Y")],
        outputs: &[one("Out")],
        attrs: MUL_ATTRS,
    },
    infer: |i| {
        let shape = mul_shape(i)?;
        let dtype = i.input("X")?.dtype;
        i.set("Out", dtype, shape);
        Ok(())
    },
    grad: Grad::Op(&MUL_GRAD),
    cpu: mul_cpu,
    traits: OpTraits { cost, divide: divide_mul, ..OpTraits::amp(AmpClass::White) },
};

pub static MUL_GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "mul_grad",
        inputs: &[one("X"), one("Y"), one("Out@GRAD"), optional("YSum")],
        outputs: &[optional("X@GRAD"), optional("Y@GRAD")],
        attrs: MUL_ATTRS,
    },
    infer: |i| {
        grads_like(i, &["X", "Y"])?;
        check_added(i, ADDED_TO_Y)
    },
    grad: Grad::None,
    cpu: mul_grad_cpu,
    traits: OpTraits {
        cost,
        inplace: &[ADDED_TO_Y],
        separable: true,
        ..OpTraits::amp(AmpClass::White)
    },
};

const MUL_ATTRS: &[fleet_ir::AttrSpec] =
    &[attr("x_num_col_dims", Int(1)), attr("y_num_col_dims", Int(1))];

pub static MATMUL: OpDef = OpDef {
    spec: OpSpec { name: "matmul_v2", attrs: MATMUL_ATTRS, ..MUL.spec },
    infer: |i| {
        let shape = matmul_shape(i)?;
        let dtype = i.input("X")?.dtype;
        i.set("Out", dtype, shape);
        Ok(())
    },
    grad: Grad::Op(&MATMUL_GRAD),
    cpu: matmul_cpu,
    traits: OpTraits { divide: divide_matmul, ..MUL.traits },
};

pub static MATMUL_GRAD: OpDef = OpDef {
    spec: OpSpec { name: "matmul_v2_grad", attrs: MATMUL_ATTRS, ..MUL_GRAD.spec },
    cpu: matmul_grad_cpu,
    ..MUL_GRAD
};

const MATMUL_ATTRS: &[fleet_ir::AttrSpec] =
    &[attr("trans_x", Bool(false)), attr("trans_y", Bool(false)), attr("alpha", Float(1.0))];

/// Returns `X.dims[..x_num_col_dims] + Y.dims[y_num_col_dims..]`, checked.
pub(crate) fn mul_shape(i: &InferCtx<'_>) -> Result<Shape> {
    let (x, y) = (i.input("X")?, i.input("Y")?);
    i.check_dtype("X", &[DType::F32, DType::F16, DType::BF16])?;
    i.check_dtype("Y", &[x.dtype])?;
    let cut = |slot: &str, shape: &Shape, name: &str| {
        let cut = i.op.attr_int(name);
        if cut < 1 || cut >= shape.rank() as i64 {
            return Err(Error::invalid(format!(
                "attribute '{name}' of {} is out of range",
                i.op.name()
            ))
            .expected(format!("1 or more, and below the rank of {slot} (shape {shape})"))
            .got(cut));
        }
        Ok(cut as usize)
    };
    let y_cut = if i.op.spec.attr_index("y_num_col_dims").is_some() {
        cut("Y", &y.shape, "y_num_col_dims")?
    } else {
        1.min(y.shape.rank())
    };
    let x_cut = cut("X", &x.shape, "x_num_col_dims")?;
    let (width, height) = (dim_product(&x.shape[x_cut..]), dim_product(&y.shape[..y_cut]));
    if same_dim(width, height).is_none() {
        return Err(i
            .error("Y", "has the wrong height")
            .expected(format!("{width} rows, the width of X {} flattened at {x_cut}", x.shape))
            .got(format!("{height} (shape {} flattened at {y_cut})", y.shape)));
    }
    let dims: Vec<i64> = x.shape[..x_cut].iter().chain(&y.shape[y_cut..]).copied().collect();
    Shape::new(&dims)
}

fn matmul_shape(i: &InferCtx<'_>) -> Result<Shape> {
    let (x, y) = (i.input("X")?, i.input("Y")?);
    i.check_dtype("X", &[DType::F32, DType::F16, DType::BF16])?;
    i.check_dtype("Y", &[x.dtype])?;
    for (slot, shape) in [("X", &x.shape), ("Y", &y.shape)] {
        if shape.rank() == 0 {
            return Err(i
                .error(slot, "has the wrong number of dimensions")
                .expected("1 or more")
                .got(0));
        }
    }
    let operands =
        Operands::new(&x.shape, &y.shape, i.op.attr_bool("trans_x"), i.op.attr_bool("trans_y"));
    let ([m, k], [k2, n]) = (operands.x_matrix(), operands.y_matrix());
    if same_dim(k, k2).is_none() {
        return Err(i
            .error("Y", "has the wrong height")
            .expected(format!("{k} rows, the width of X {}", x.shape))
            .got(format!("{k2} (shape {})", y.shape)));
    }
    let batch = operands.x_batch().broadcast(&operands.y_batch()).map_err(|_| {
        i.error("Y", "has batch dimensions that do not broadcast with those of X")
            .expected(x.shape)
            .got(y.shape)
    })?;
    let mut dims = batch.to_vec();
    if x.shape.rank() > 1 {
        dims.push(m);
    }
    if y.shape.rank() > 1 {
        dims.push(n);
    }
    if dims.is_empty() {
        dims.push(1);
    }
    Shape::new(&dims)
}

/// Operands of `matmul_v2` as batches of matrices: a vector X is a row, a vector Y is a column.
struct Operands {
    x: Shape,
    y: Shape,
    trans_x: bool,
    trans_y: bool,
}

impl Operands {
    fn new(x: &Shape, y: &Shape, trans_x: bool, trans_y: bool) -> Operands {
        let row = |x: &Shape| Shape::of(&[1, x[0]]);
        let column = |y: &Shape| Shape::of(&[y[0], 1]);
        Operands {
            x: if x.rank() == 1 { row(x) } else { *x },
            y: if y.rank() == 1 { column(y) } else { *y },
            trans_x: trans_x && x.rank() > 1,
            trans_y: trans_y && y.rank() > 1,
        }
    }

    fn x_batch(&self) -> Shape {
        Shape::of(&self.x[..self.x.rank() - 2])
    }

    fn y_batch(&self) -> Shape {
        Shape::of(&self.y[..self.y.rank() - 2])
    }

    /// Returns [M, K].
    fn x_matrix(&self) -> [i64; 2] {
        let at = self.x.rank() - 2;
        if self.trans_x { [self.x[at + 1], self.x[at]] } else { [self.x[at], self.x[at + 1]] }
    }

    /// Returns [K, N].
    fn y_matrix(&self) -> [i64; 2] {
        let at = self.y.rank() - 2;
        if self.trans_y { [self.y[at + 1], self.y[at]] } else { [self.y[at], self.y[at + 1]] }
    }
}

fn cost(ctx: &CostCtx<'_>) -> Cost {
    let numel = |meta: Option<&Meta>| meta.map_or(0.0, |meta| meta.numel() as f64);
    // M N K is the square root of (M K)(K N)(M N), for all batches together. This also holds for
    // gradients.
    let (x, y) = (numel(ctx.input("X")), numel(ctx.input("Y")));
    let out = numel(ctx.output("Out").or(ctx.input("Out@GRAD")));
    let batch = (|| {
        let (x, y) = (ctx.input("X")?.shape, ctx.input("Y")?.shape);
        let batched = ctx.op.spec.attr_index("trans_y").is_some() && y.rank() > 2;
        let heads = |shape: &Shape| -> f64 {
            shape[..shape.rank() - 2].iter().map(|dim| dim.unsigned_abs() as f64).product()
        };
        Some(if batched && x.rank() > 2 { heads(&x).max(heads(&y)) } else { 1.0 })
    })();
    let product = 2.0 * (x * y * out / batch.unwrap_or(1.0)).sqrt();
    let gradients = ctx.outputs.iter().zip(ctx.op.spec.outputs);
    let sides = gradients.filter(|(vars, slot)| !vars.is_empty() && slot.name.ends_with("@GRAD"));
    let times = if ctx.op.input("Out@GRAD").is_empty() { 1 } else { sides.count() };
    Cost { flops: product * times as f64, bytes: ctx.bytes() }
}

/// The role of a divided dimension of an operand of a product.
enum Role {
    /// It is this dimension of the result.
    Result(usize),
    /// The product sums over it.
    Summed,
}

/// Applies the rule of products. Each role is that of the operand's divided dimension, with its
/// division. `x_summed` is the dimension of X that is summed over, if it is a single one.
fn divide_product(
    d: &mut Divide<'_>,
    x: Option<(Role, Along)>,
    y: Option<(Role, Along)>,
    x_summed: Option<usize>,
) -> Result<()> {
    let set_result = |d: &mut Divide<'_>, axis: usize, along: Along| {
        d.keep_padding();
        d.set_part("Out", along.at(axis))
    };
    let is_same = |x: Along, y: Along| x.at(0) == y.at(0);
    match (x, y) {
        (Some((Role::Summed, of_x)), Some((Role::Summed, of_y))) if is_same(of_x, of_y) => {
            d.set("Out", Placement::Sum)
        }
        // A layer that is divided by rows takes its part of the whole input.
        (None, Some((Role::Summed, along))) => match x_summed {
            Some(axis) => {
                d.want("X", along.at(axis))?;
                d.set("Out", Placement::Sum)
            }
            None => Err(d.unsupported("does not divide an input that it flattens")),
        },
        (Some((Role::Summed, _)), None) => {
            Err(d.unsupported("needs rows of Y for the columns that a rank has of X"))
        }
        (Some((Role::Result(axis), along)), None) => set_result(d, axis, along),
        (None, Some((Role::Result(axis), along))) => set_result(d, axis, along),
        (Some((Role::Result(axis), of_x)), Some((Role::Result(other), of_y)))
            if axis == other && is_same(of_x, of_y) =>
        {
            set_result(d, axis, of_x)
        }
        (None, None) => Err(d.unsupported("has no divided input")),
        _ => Err(d.unsupported("does not fit these parts of its two operands")),
    }
}

fn divide_mul(d: &mut Divide<'_>) -> Result<()> {
    let (x, y) = (d.shape("X")?, d.shape("Y")?);
    let (x_cut, y_cut) = (d.op.attr_usize("x_num_col_dims"), d.op.attr_usize("y_num_col_dims"));
    // Elements along the summed dimension are in blocks of the dimensions flattened before it.
    let summed = |along: Along, before: &[i64]| match usize::try_from(dim_product(before)) {
        Ok(blocks) => {
            Ok((Role::Summed, Along { groups: along.groups.saturating_mul(blocks), ..along }))
        }
        Err(_) => Err(d.unsupported("does not divide an input that it flattens")),
    };
    let role_x = |along: Along| match along.axis < x_cut {
        true => Ok((Role::Result(along.axis), along)),
        false => summed(along, &x[x_cut..along.axis]),
    };
    let role_y = |along: Along| match along.axis < y_cut {
        true => summed(along, &y[..along.axis]),
        false => Ok((Role::Result(along.axis - y_cut + x_cut), along)),
    };
    let x_role = d.along("X").map(role_x).transpose()?;
    let y_role = d.along("Y").map(role_y).transpose()?;
    divide_product(d, x_role, y_role, (x_cut + 1 == x.rank()).then_some(x_cut))
}

fn divide_matmul(d: &mut Divide<'_>) -> Result<()> {
    let (x, y, out) = (d.shape("X")?, d.shape("Y")?, d.output_shape("Out")?);
    if x.rank() < 2 || y.rank() < 2 {
        return Err(d.unsupported("does not divide products of vectors"));
    }
    let axes = |shape: &Shape, transposed: bool| {
        let (row, column) = (shape.rank() - 2, shape.rank() - 1);
        if transposed { (column, row) } else { (row, column) }
    };
    let (x_row, x_summed) = axes(&x, d.op.attr_bool("trans_x"));
    let (y_summed, y_column) = axes(&y, d.op.attr_bool("trans_y"));
    let role = |along: Along, shape: &Shape, summed: usize, own: usize, place: usize| {
        let role = match along.axis {
            axis if axis == summed => Role::Summed,
            axis if axis == own => Role::Result(place),
            // A batch dimension.
            axis => Role::Result(axis + out.rank() - shape.rank()),
        };
        (role, along)
    };
    let x_role = d.along("X").map(|it| role(it, &x, x_summed, x_row, out.rank() - 2));
    let y_role = d.along("Y").map(|it| role(it, &y, y_summed, y_column, out.rank() - 1));
    // A batch dimension of one operand divides that of the other, unless that is broadcast.
    for (slot, shape, other) in [("Y", &y, &x_role), ("X", &x, &y_role)] {
        let Some((Role::Result(axis), along)) = other else { continue };
        let of_batch = (*axis + 2 < out.rank() && d.along(slot).is_none())
            .then(|| (axis + shape.rank()).checked_sub(out.rank()))
            .flatten();
        if let Some(own) = of_batch.filter(|own| shape[*own] != 1) {
            d.want(slot, along.at(own))?;
        }
    }
    divide_product(d, x_role, y_role, Some(x_summed))
}

/// Returns M, N and K of a `mul` with known shapes.
pub(crate) fn mul_sizes(p: &PrepareCtx<'_>) -> (usize, usize, usize) {
    let (x, y) = (p.input("X").shape, p.input("Y").shape);
    let x_cut = p.op.attr_usize("x_num_col_dims");
    let y_cut = match p.op.attr("y_num_col_dims") {
        Some(_) => p.op.attr_usize("y_num_col_dims"),
        None => 1,
    };
    (x.product(0..x_cut), y.product(y_cut..y.rank()), x.product(x_cut..x.rank()))
}

fn mul_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (m, n, k) = mul_sizes(p);
    let gemm = Gemm::nn(m, n, k);
    match () {
        () if is_bf16(p) && gemm.is_bf16_native() => mul_kernel::<bf16>(p, gemm),
        () if has_half(p) => through_f32(p, mul_cpu),
        () => mul_kernel::<f32>(p, gemm),
    }
}

fn mul_kernel<T: Element + Factor>(p: &PrepareCtx<'_>, gemm: Gemm) -> Result<Kernel> {
    check_row_major(p)?;
    let scratch = T::scratch_len(&gemm, p.threads);
    Ok(Kernel::infallible(move |k| {
        let (x, y, out) = (k.input::<T>(X), k.input(Y), k.output(0));
        T::run(&gemm, k.pool, x, y, out, k.scratch());
    })
    .scratch::<f32>(scratch))
}

fn mul_grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (m, n, k) = mul_sizes(p);
    let sides = [Gemm::nt(m, k, n), Gemm::tn(k, n, m)];
    match () {
        () if is_bf16(p) && sides.iter().all(Gemm::is_bf16_native) => {
            mul_grad_kernel::<bf16>(p, sides)
        }
        () if has_half(p) => through_f32(p, mul_grad_cpu),
        () => mul_grad_kernel::<f32>(p, sides),
    }
}

fn mul_grad_kernel<T: Element + Factor>(p: &PrepareCtx<'_>, sides: [Gemm; 2]) -> Result<Kernel> {
    check_row_major(p)?;
    let [grad_x, grad_y] = sides;
    let scratch = T::scratch_len(&grad_x, p.threads).max(T::scratch_len(&grad_y, p.threads));
    Ok(Kernel::infallible(move |k| {
        let (x, y, dout) = (k.input::<T>(X), k.input::<T>(Y), k.input::<T>(DOUT));
        let scratch = k.scratch();
        if let Some(dx) = k.optional_output(0) {
            T::run(&grad_x, k.pool, dout, y, dx, scratch);
        }
        if let Some(dy) = k.optional_output(1) {
            let beta = f32::from(begin_sum(k, (1, Y_SUM), dy));
            T::run(&grad_y.beta(beta), k.pool, x, dout, dy, scratch);
        }
    })
    .scratch::<f32>(scratch))
}

/// A batch dimension: its length, and the strides of the matrices A, B and C along it.
#[derive(Clone, Copy)]
struct BatchAxis {
    len: usize,
    a: usize,
    b: usize,
    c: usize,
}

/// GEMM calls with the offsets of their operands, in order.
struct GemmCalls(Vec<(Gemm, [usize; 3])>);

impl GemmCalls {
    /// Covers all `axes`. Axes with stride 0 in C are sums, which are added up call by call.
    fn new(gemm: Gemm, axes: &[BatchAxis]) -> GemmCalls {
        let merged = merge(axes);
        let (kept, summed): (Vec<BatchAxis>, Vec<BatchAxis>) =
            merged.into_iter().partition(|axis| axis.c > 0);
        // A call covers two strides. The other axes are looped over.
        let (outer, inner) = kept.split_at(kept.len().saturating_sub(2));
        let axis = |k: usize| {
            let none = BatchAxis { len: 1, a: 0, b: 0, c: 0 };
            if inner.len() == 2 {
                inner[k]
            } else if k == 1 {
                *inner.first().unwrap_or(&none)
            } else {
                none
            }
        };
        let (first, second) = (axis(0), axis(1));
        let batch = Batch {
            count: [first.len, second.len],
            a: [first.a, second.a],
            b: [first.b, second.b],
            c: [first.c, second.c],
        };
        let mut calls = Vec::new();
        for at in offsets(outer) {
            for (index, more) in offsets(&summed).into_iter().enumerate() {
                let beta = if index == 0 { 0.0 } else { 1.0 };
                let places = [at[0] + more[0], at[1] + more[1], at[2]];
                calls.push((gemm.beta(beta).batched_2(batch), places));
            }
        }
        GemmCalls(calls)
    }

    fn is_bf16_native(&self) -> bool {
        self.0.iter().all(|(gemm, _)| gemm.is_bf16_native())
    }

    fn scratch_len<T: Factor>(&self, threads: usize) -> usize {
        self.0.iter().map(|(gemm, _)| T::scratch_len(gemm, threads)).max().unwrap_or(0)
    }

    /// Runs the calls. With `adds`, the result is added to C.
    fn run<T: Factor + Default>(
        &self,
        pool: &Pool,
        (a, b): (&[T], &[T]),
        c: &mut [T],
        adds: bool,
        scratch: &mut [f32],
    ) {
        if self.0.is_empty() && !adds {
            c.fill(T::default());
        }
        for (gemm, at) in &self.0 {
            let gemm = if adds { gemm.beta(1.0) } else { *gemm };
            let (a, b, c) = (&a[at[0]..], &b[at[1]..], &mut c[at[2]..]);
            T::run(&gemm, pool, a, b, c, scratch);
        }
    }
}

/// Merges neighbouring axes if all three operands are contiguous across them.
fn merge(axes: &[BatchAxis]) -> Vec<BatchAxis> {
    let mut merged: Vec<BatchAxis> = Vec::new();
    for axis in axes.iter().rev().filter(|axis| axis.len != 1) {
        match merged.last_mut() {
            Some(inner)
                if axis.a == inner.a * inner.len
                    && axis.b == inner.b * inner.len
                    && axis.c == inner.c * inner.len =>
            {
                inner.len *= axis.len;
            }
            _ => merged.push(*axis),
        }
    }
    merged.reverse();
    merged
}

/// Returns the offsets of A, B and C at every index of the axes.
fn offsets(axes: &[BatchAxis]) -> Vec<[usize; 3]> {
    let mut all = vec![[0; 3]];
    for axis in axes {
        let step = |at: &[usize; 3], k: usize| {
            [at[0] + k * axis.a, at[1] + k * axis.b, at[2] + k * axis.c]
        };
        all = all.iter().flat_map(|at| (0..axis.len).map(move |k| step(at, k))).collect();
    }
    all
}

/// A `matmul_v2` with known shapes.
struct Product {
    m: usize,
    n: usize,
    k: usize,
    trans_x: bool,
    trans_y: bool,
    alpha: f32,
    /// Strides of X, Y and Out along the batch dimensions, as `a`, `b` and `c`.
    axes: Vec<BatchAxis>,
}

impl Product {
    fn new(p: &PrepareCtx<'_>) -> Product {
        let (trans_x, trans_y) = (p.op.attr_bool("trans_x"), p.op.attr_bool("trans_y"));
        let operands = Operands::new(&p.input("X").shape, &p.input("Y").shape, trans_x, trans_y);
        let ([m, k], [_, n]) = (operands.x_matrix(), operands.y_matrix());
        let (m, n, k) = (m as usize, n as usize, k as usize);
        let (x, y) = (operands.x_batch(), operands.y_batch());
        let rank = x.rank().max(y.rank());
        let mut strides = [m * k, k * n, m * n];
        let mut axes = Vec::new();
        for back in 0..rank {
            let dim = |shape: &Shape| shape.iter().rev().nth(back).map_or(1, |dim| *dim as usize);
            let (x_len, y_len) = (dim(&x), dim(&y));
            let len = if x_len == 1 { y_len } else { x_len };
            let step = |own: usize, stride: usize| if own == 1 { 0 } else { stride };
            axes.push(BatchAxis {
                len,
                a: step(x_len, strides[0]),
                b: step(y_len, strides[1]),
                c: strides[2],
            });
            strides = [strides[0] * x_len, strides[1] * y_len, strides[2] * len];
        }
        axes.reverse();
        let (trans_x, trans_y) = (operands.trans_x, operands.trans_y);
        let alpha = p.op.attr_float("alpha") as f32;
        Product { m, n, k, trans_x, trans_y, alpha, axes }.folded()
    }

    /// Treats the batch of X as rows of one product if Y has no batch dimensions.
    fn folded(self) -> Product {
        let flat = merge(&self.axes);
        match flat.as_slice() {
            [BatchAxis { len, a, b: 0, .. }] if *a == self.m * self.k && !self.trans_x => {
                Product { m: self.m * len, axes: Vec::new(), ..self }
            }
            _ => self,
        }
    }

    /// Returns the product `rows x depth` by `depth x cols`, with operands stored transposed or
    /// not.
    fn gemm(&self, rows: usize, cols: usize, depth: usize, trans_a: bool, trans_b: bool) -> Gemm {
        let gemm = match (trans_a, trans_b) {
            (false, false) => Gemm::nn(rows, cols, depth),
            (false, true) => Gemm::nt(rows, cols, depth),
            (true, false) => Gemm::tn(rows, cols, depth),
            (true, true) => Gemm::tt(rows, cols, depth),
        };
        gemm.alpha(self.alpha)
    }

    fn forward(&self) -> GemmCalls {
        GemmCalls::new(self.gemm(self.m, self.n, self.k, self.trans_x, self.trans_y), &self.axes)
    }

    /// Returns the axes with the strides of (X, Y, Out) assigned to A, B and C.
    fn reordered(&self, pick: fn(&BatchAxis) -> BatchAxis) -> Vec<BatchAxis> {
        self.axes.iter().map(pick).collect()
    }

    /// Returns the calls for `dX = dOut op(Y)^T`, or its transpose `op(Y) dOut^T`, and whether dOut
    /// is A.
    fn grad_x(&self) -> (GemmCalls, bool) {
        let (m, n, k) = (self.m, self.n, self.k);
        if self.trans_x {
            let axes = self.reordered(|it| BatchAxis { len: it.len, a: it.b, b: it.c, c: it.a });
            (GemmCalls::new(self.gemm(k, m, n, self.trans_y, true), &axes), false)
        } else {
            let axes = self.reordered(|it| BatchAxis { len: it.len, a: it.c, b: it.b, c: it.a });
            (GemmCalls::new(self.gemm(m, k, n, false, !self.trans_y), &axes), true)
        }
    }

    /// Returns the calls for `dY = op(X)^T dOut`, or its transpose `dOut^T op(X)`, and whether dOut
    /// is A.
    fn grad_y(&self) -> (GemmCalls, bool) {
        let (m, n, k) = (self.m, self.n, self.k);
        if self.trans_y {
            let axes = self.reordered(|it| BatchAxis { len: it.len, a: it.c, b: it.a, c: it.b });
            (GemmCalls::new(self.gemm(n, k, m, true, self.trans_x), &axes), true)
        } else {
            let axes = self.reordered(|it| BatchAxis { len: it.len, a: it.a, b: it.c, c: it.b });
            (GemmCalls::new(self.gemm(k, n, m, !self.trans_x, false), &axes), false)
        }
    }
}

fn matmul_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let calls = Product::new(p).forward();
    match () {
        () if is_bf16(p) && calls.is_bf16_native() => matmul_kernel::<bf16>(p, calls),
        () if has_half(p) => through_f32(p, matmul_cpu),
        () => matmul_kernel::<f32>(p, calls),
    }
}

fn matmul_kernel<T: Element + Factor>(p: &PrepareCtx<'_>, calls: GemmCalls) -> Result<Kernel> {
    check_row_major(p)?;
    let scratch = calls.scratch_len::<T>(p.threads);
    Ok(Kernel::infallible(move |k| {
        calls.run::<T>(k.pool, (k.input(X), k.input(Y)), k.output(0), false, k.scratch())
    })
    .scratch::<f32>(scratch))
}

fn matmul_grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let product = Product::new(p);
    let sides = [product.grad_x(), product.grad_y()];
    match () {
        () if is_bf16(p) && sides.iter().all(|side| side.0.is_bf16_native()) => {
            matmul_grad_kernel::<bf16>(p, sides)
        }
        () if has_half(p) => through_f32(p, matmul_grad_cpu),
        () => matmul_grad_kernel::<f32>(p, sides),
    }
}

/// Makes the gradient kernel. `sides` has the calls for X@GRAD and Y@GRAD, and whether Out@GRAD is
/// their A.
fn matmul_grad_kernel<T: Element + Factor>(
    p: &PrepareCtx<'_>,
    sides: [(GemmCalls, bool); 2],
) -> Result<Kernel> {
    check_row_major(p)?;
    let scratch = sides.iter().map(|side| side.0.scratch_len::<T>(p.threads)).max().unwrap_or(0);
    Ok(Kernel::infallible(move |k| {
        let dout = k.input::<T>(DOUT);
        let scratch = k.scratch();
        for (slot, other) in [(0, Y), (1, X)] {
            let Some(out) = k.optional_output(slot) else { continue };
            let (calls, dout_first) = &sides[slot];
            let other = k.input::<T>(other);
            let operands = if *dout_first { (dout, other) } else { (other, dout) };
            let adds = slot == 1 && begin_sum(k, (1, Y_SUM), out);
            calls.run::<T>(k.pool, operands, out, adds, scratch);
        }
    })
    .scratch::<f32>(scratch))
}
