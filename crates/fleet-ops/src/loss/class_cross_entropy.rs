//! `class_cross_entropy`: softmax cross entropy of X and class weights: the logits of a sample are
//! `scale * X W^T`, without a bias. W has a row for each class, so that rows of classes that a step
//! does not use need no gradient and no update. f32; labels i64 or i32.
//!
//! * With `normalize`, rows of X and of W are divided by their norms, so that products are cosines.
//!   `margin` is then added to the angle of the label's class (ArcFace).
//! * With `num_samples`, or `sample_ratio` of the rows of W, a step uses only some classes: those
//!   of the batch's labels, and random others, a function of seed, stream, step and rank.
//!   There are at least as many as samples in the batch. The gradient of W then has only the rows
//!   in use. A test run uses all classes; Softmax and Sampled are then 0.
//!
//! `c_class_cross_entropy` is the same for the samples of all ranks of a ring. X, Label and Loss
//! are those of this rank. W has this rank's classes, of `classes` in all: rank r has those from
//! `r * rows of W` on. Rows behind the last class are not used. Ranks gather features and labels,
//! but no logits: they exchange the maximum of each row, then its sum of exponentials and the logit
//! of its label. The gradient of X is summed over the classes of all ranks. That of W needs no
//! sum, since each rank has the samples of all ranks.
//!
//! Softmax, Features, Columns, Slopes and Sampled are for the gradient: the probabilities of this
//! rank's columns, the features of all ranks as they are in the product, the column of each label
//! (-1 if another rank has it), the derivative of the margin, and the row of each column (a single
//! 0 if all rows are in use).

use super::labels::check_label;
use crate::comm::{self, LABEL as CALL_LABEL, NRANKS, RING_ID};
use crate::nn::random;
use crate::prelude::*;
use crate::tensor::gather::Indices;
use crate::{ReduceOp, Ring};
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::classes::sample::{bits_len, sample};
use fleet_kernels::classes::{self, Classes, Losses};
use fleet_kernels::fill::Draw;
use fleet_kernels::softmax::parts::{self, Columns, OTHER};
use std::sync::Arc;

const X: usize = 0;
const LABEL: usize = 1;
const W: usize = 2;
const LOSS: usize = 0;
const SOFTMAX: usize = 1;
const FEATURES: usize = 2;
const COLUMNS: usize = 3;
const SLOPES: usize = 4;
const SAMPLED: usize = 5;
/// The outputs are inputs of the gradient from here on, without the loss.
const SAVED: usize = 2;
const DLOSS: usize = 8;

const ATTRS: &[AttrSpec] = &[
    attr("normalize", Bool(false)),
    attr("margin", Float(0.0)),
    attr("scale", Float(1.0)),
    attr("num_samples", Int(0)),
    attr("sample_ratio", Float(0.0)),
    attr("is_test", Bool(false)),
    attr("seed", Int(0)),
    attr("stream", Int(0)),
];
const RANK_ATTRS: &[AttrSpec] = &[
    ATTRS[0],
    ATTRS[1],
    ATTRS[2],
    ATTRS[3],
    ATTRS[4],
    ATTRS[5],
    ATTRS[6],
    ATTRS[7],
    attr("classes", Int(1)),
    RING_ID,
    NRANKS,
    CALL_LABEL,
];

/// The op `class_cross_entropy`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "class_cross_entropy",
        inputs: &[one("X"), one("Label"), one("W")],
        outputs: &[
            one("Loss"),
            one("Softmax"),
            one("Features"),
            one("Columns"),
            one("Slopes"),
            one("Sampled"),
        ],
        attrs: ATTRS,
    },
    infer,
    grad: Grad::OpRule(&GRAD, rule),
    cpu,
    traits: OpTraits { random: true, cost, ..OpTraits::plain() },
};

/// The op `class_cross_entropy_grad`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "class_cross_entropy_grad",
        inputs: &[
            one("X"),
            one("Label"),
            one("W"),
            one("Softmax"),
            one("Features"),
            one("Columns"),
            one("Slopes"),
            one("Sampled"),
            one("Loss@GRAD"),
        ],
        outputs: &[optional("X@GRAD"), optional("W@GRAD")],
        attrs: ATTRS,
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: cpu_grad,
    traits: OpTraits { shape_only: &["Label"], cost: cost_grad, ..OpTraits::plain() },
};

/// The op `c_class_cross_entropy`.
pub static OF_RANKS: OpDef = OpDef {
    spec: OpSpec { name: "c_class_cross_entropy", attrs: RANK_ATTRS, ..DEF.spec },
    grad: Grad::OpRule(&OF_RANKS_GRAD, rule),
    traits: OpTraits {
        effect: true,
        gathers_samples: true,
        traffic: |c| {
            let samples = c.output("Columns").map_or(0, Meta::numel) as f64;
            let mut traffic = Traffic::copies(c.input_bytes("X"), c.ranks());
            traffic.add(Traffic::copies(LABEL_BYTES * samples / c.ranks(), c.ranks()));
            traffic.add(Traffic::all_reduce(MAX_BYTES * samples, c.ranks()));
            traffic.add(Traffic::all_reduce(SUMS_BYTES * samples, c.ranks()));
            Some(traffic)
        },
        divide: |d| Err(d.unsupported("divides its classes already")),
        ..DEF.traits
    },
    ..DEF
};

/// The op `c_class_cross_entropy_grad`.
pub static OF_RANKS_GRAD: OpDef = OpDef {
    spec: OpSpec { name: "c_class_cross_entropy_grad", attrs: RANK_ATTRS, ..GRAD.spec },
    traits: OpTraits {
        effect: true,
        owned: &["W@GRAD"],
        traffic: |c| {
            let mut traffic = Traffic::copies(c.input_bytes("Loss@GRAD"), c.ranks());
            traffic.add(Traffic::shares(c.input_bytes("Features"), c.ranks()));
            Some(traffic)
        },
        ..GRAD.traits
    },
    ..GRAD
};

/// Bytes that ranks exchange for a sample: its label, its maximum, then two sums.
const LABEL_BYTES: f64 = 8.0;
const MAX_BYTES: f64 = 4.0;
const SUMS_BYTES: f64 = 8.0;

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    for slot in ["X", "W"] {
        i.check_dtype(slot, &[DType::F32])?;
        i.check_rank(slot, 2)?;
    }
    check_attrs(i.op)?;
    let (x, w) = (i.input("X")?.shape, i.input("W")?.shape);
    if w[1] == 0 {
        return Err(i.error("W", "has rows without elements").got(w));
    }
    let loss = check_label(i, "X", "Label", 1, false)?;
    i.check_shape("W", [w[0], x[1]])?;
    let ranks = if i.op.spec.attr_index("nranks").is_some() { check_ranks(i, w[0])? } else { 1 };
    let samples = if x[0] < 0 { -1 } else { x[0].saturating_mul(ranks) };
    let columns = columns(i.op, w[0], samples);
    i.set("Loss", DType::F32, loss);
    let width = if x[1] < 0 { w[1] } else { x[1] };
    i.set("Softmax", DType::F32, Shape::new(&[samples, columns])?);
    i.set("Features", DType::F32, Shape::new(&[samples, width])?);
    i.set("Columns", DType::I64, [samples]);
    i.set("Slopes", DType::F32, [samples]);
    i.set("Sampled", DType::I64, [if samples_classes(i.op) { columns } else { 1 }]);
    Ok(())
}

fn check_attrs(op: &Op) -> Result<()> {
    let wrong = |name: &str, expected: &str, got: String| {
        Err(Error::invalid(format!("invalid {name} of {}", op.name())).expected(expected).got(got))
    };
    let number = |name: &str| op.attr_float(name);
    let (margin, scale, ratio) = (number("margin"), number("scale"), number("sample_ratio"));
    if !(scale > 0.0 && scale < f64::from(f32::MAX)) {
        return wrong("scale", "a number above 0", scale.to_string());
    }
    if !(0.0..=std::f64::consts::PI).contains(&margin) {
        return wrong("margin", "an angle from 0 to pi", margin.to_string());
    }
    if margin > 0.0 && !op.attr_bool("normalize") {
        return wrong("margin", "0 without normalize", margin.to_string());
    }
    if !(0.0..=1.0).contains(&ratio) {
        return wrong("sample_ratio", "0 to 1", ratio.to_string());
    }
    let count = op.attr_int("num_samples");
    if count < 0 || count > 0 && ratio > 0.0 {
        return wrong("num_samples", "0 or more, and 0 with a sample_ratio", count.to_string());
    }
    Ok(())
}

/// Returns the number of ranks. Fails if they do not have all classes.
fn check_ranks(i: &InferCtx<'_>, rows: i64) -> Result<i64> {
    let (ranks, classes) = (comm::nranks(i)?, i.op.attr_int("classes"));
    if classes >= 1 && (rows < 0 || classes <= rows.saturating_mul(ranks)) {
        return Ok(ranks);
    }
    Err(Error::invalid(format!("invalid classes of {}", i.op.name()))
        .expected(format!("1 to those of {ranks} ranks with {rows} rows each"))
        .got(classes))
}

/// Returns whether a step uses only some classes.
fn samples_classes(op: &Op) -> bool {
    op.attr_int("num_samples") > 0 || op.attr_float("sample_ratio") > 0.0
}

/// Returns the number of this rank's classes that a step uses, or -1 if it is unknown.
fn columns(op: &Op, rows: i64, samples: i64) -> i64 {
    if !samples_classes(op) {
        return rows;
    }
    let of_ratio = (op.attr_float("sample_ratio") * rows as f64).ceil() as i64;
    let wanted = op.attr_int("num_samples").max(of_ratio);
    match (rows, samples) {
        (..0, _) => -1,
        (rows, _) if wanted >= rows => rows,
        (_, ..0) => -1,
        // A rank may have the classes of all labels.
        (rows, samples) => wanted.max(samples).min(rows),
    }
}

fn rule(g: &mut GradCtx<'_, '_>, grad: &'static OpDef) -> Result<()> {
    let dloss = g.dy("Loss")?;
    let (x, w) = (g.x("X")?, g.x("W")?);
    let kind = if samples_classes(&g.op) { VarKind::SparseRows } else { VarKind::Dense };
    let dx = g.dx("X")?;
    let dw = if g.wants("W") { Some(g.dx_of(w, kind)?) } else { None };
    if dx.is_none() && dw.is_none() {
        return Ok(());
    }
    let inputs = [("X", x), ("Label", g.x("Label")?), ("W", w), ("Loss@GRAD", dloss)];
    let saved: Vec<(&str, VarId)> = DEF.spec.outputs[1..]
        .iter()
        .map(|slot| Ok((slot.name, g.y(slot.name)?)))
        .collect::<Result<_>>()?;
    let names = grad.spec.attrs.iter().map(|attr| attr.name);
    let attrs: Vec<_> = names.filter_map(|name| Some((name, g.op.attr(name)?.clone()))).collect();
    let mut call = g.op(grad).maybe_output("X@GRAD", dx).maybe_output("W@GRAD", dw);
    for (slot, var) in inputs.into_iter().chain(saved) {
        call = call.input(slot, var);
    }
    for (name, value) in attrs {
        call = call.attr(name, value);
    }
    call.done().map(drop)
}

/// The forward pass's outputs are checked by its shape rule.
fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
    let sampled = samples_classes(i.op);
    if sampled && i.op.attr_bool("is_test") {
        return Err(Error::unsupported(format!("no gradient of a test run of {}", i.op.name()))
            .help("add gradients to the training program"));
    }
    let (x, w) = (i.input("X")?, i.input("W")?);
    if !i.op.output("X@GRAD").is_empty() {
        i.set("X@GRAD", x.dtype, x.shape);
    }
    if !i.op.output("W@GRAD").is_empty() {
        let rows = i.input("Sampled")?.shape.numel().unwrap_or(0);
        let meta = match sampled {
            true => Meta::sparse(w.dtype, w.shape, rows),
            false => Meta::dense(w.dtype, w.shape),
        };
        i.push("W@GRAD", meta);
    }
    Ok(())
}

/// The sizes and options of an op.
#[derive(Clone, Copy)]
struct Plan {
    /// Samples of this rank.
    own: usize,
    /// Samples of all ranks.
    samples: usize,
    dim: usize,
    /// Rows of W.
    rows: usize,
    /// Columns that the step uses.
    columns: usize,
    /// Classes of all ranks.
    classes: usize,
    rank: usize,
    samples_classes: bool,
    is_normalized: bool,
    is_test: bool,
    margin: f32,
    scale: f32,
}

impl Plan {
    fn new(p: &PrepareCtx<'_>, ring: Option<&Arc<dyn Ring>>) -> Plan {
        let (x, w) = (p.input("X").shape, p.input("W").shape);
        let (own, dim, rows) = (x.at(0), x.at(1), w.at(0));
        let samples_classes = samples_classes(p.op);
        let is_test = p.op.attr_bool("is_test");
        let samples = own * ring.map_or(1, |ring| ring.size());
        let uses_all = !samples_classes || is_test;
        let columns = if uses_all { rows as i64 } else { columns(p.op, w[0], samples as i64) };
        let classes = ring.map_or(w[0], |_| p.op.attr_int("classes"));
        Plan {
            own,
            samples,
            dim,
            rows,
            columns: usize::try_from(columns).unwrap_or_default(),
            classes: usize::try_from(classes).unwrap_or_default(),
            rank: ring.map_or(0, |ring| ring.rank()),
            samples_classes,
            is_normalized: p.op.attr_bool("normalize"),
            is_test,
            margin: p.op.attr_float("margin") as f32,
            scale: p.op.attr_float("scale") as f32,
        }
    }

    /// Whether the step uses some classes only.
    fn samples_now(&self) -> bool {
        self.samples_classes && !self.is_test
    }

    /// Returns the first of this rank's classes, and their number: without rows behind the last.
    fn own_classes(&self) -> (usize, usize) {
        let first = self.rank.saturating_mul(self.rows).min(self.classes);
        (first, (self.classes - first).min(self.rows))
    }

    fn weights<'a>(&self, weights: &'a [f32], sampled: &'a [i64]) -> Classes<'a> {
        let rows = self.samples_now().then_some(sampled);
        Classes { weights, dim: self.dim, rows, is_normalized: self.is_normalized }
    }

    fn scratch_len(&self, threads: usize) -> usize {
        classes::scratch_len(self.samples, self.dim, self.columns, threads)
    }
}

/// The exchange of numbers with other ranks; none in an op of one process.
struct Ranks {
    ring: Option<Arc<dyn Ring>>,
    label: String,
}

impl Ranks {
    fn of(p: &PrepareCtx<'_>) -> Result<Ranks> {
        if p.op.spec.attr_index("ring_id").is_none() {
            return Ok(Ranks { ring: None, label: String::new() });
        }
        Ok(Ranks { ring: Some(p.services.ring_of(p.op)?), label: comm::label(p.op) })
    }

    /// Gathers equal numbers of elements of all ranks.
    fn gather(&self, k: &KernelCtx<'_>, own: &[u8], all: &mut [u8]) -> Result<()> {
        match &self.ring {
            Some(ring) => k.communicate(|| ring.all_gather(&self.label, own, all)),
            None => {
                all.copy_from_slice(own);
                Ok(())
            }
        }
    }

    /// Replaces numbers by their maxima or sums over ranks.
    fn reduce(&self, k: &KernelCtx<'_>, numbers: &mut [f32], op: ReduceOp) -> Result<()> {
        let Some(ring) = &self.ring else { return Ok(()) };
        let parts = &mut [view_as_mut(numbers)];
        k.communicate(|| ring.all_reduce(&self.label, DType::F32, parts, op))
    }

    /// Adds numbers over ranks, of which each rank gets its share.
    fn scatter_sum(&self, k: &KernelCtx<'_>, all: &[f32], own: &mut [f32]) -> Result<()> {
        let Some(ring) = &self.ring else {
            own.copy_from_slice(all);
            return Ok(());
        };
        let (all, own) = (view_as(all), view_as_mut(own));
        let sum = ReduceOp::Sum;
        k.communicate(|| ring.reduce_scatter(&self.label, DType::F32, all, own, sum))
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let ranks = Ranks::of(p)?;
    let plan = Plan::new(p, ranks.ring.as_ref());
    let Plan { own, samples, dim, columns, .. } = plan;
    let (seed, stream) = (p.op.attr_int("seed"), p.op.attr_int("stream"));
    // A test run of sampled classes has more columns than the output.
    let is_wide = plan.samples_classes && plan.is_test;
    let logits_len = if is_wide { samples * columns } else { 0 };
    let bits = if plan.samples_now() { bits_len(plan.own_classes().1) } else { 0 };
    let integers = own + samples + bits;
    let floats = own * dim + 4 * samples + logits_len + plan.scratch_len(p.threads);
    Ok(Kernel::new(move |k| {
        let (integers, floats) = k.scratch::<f32>().split_at_mut(2 * integers);
        let (labels, bits) = view_as_mut::<_, i64>(integers).split_at_mut(own + samples);
        let (own_labels, labels) = labels.split_at_mut(own);
        plan.read_labels(k, own_labels)?;
        ranks.gather(k, view_as(&*own_labels), view_as_mut(labels))?;
        let (own_features, floats) = floats.split_at_mut(own * dim);
        let features = k.output::<f32>(FEATURES);
        match plan.is_normalized {
            true => {
                classes::normalize(k.pool, k.input(X), dim, own_features);
                ranks.gather(k, view_as(&*own_features), view_as_mut(features))?;
            }
            false => ranks.gather(k, k.arg(X).bytes(), view_as_mut(features))?,
        }
        plan.own_labels(labels);
        let (sampled, own_columns) = (k.output::<i64>(SAMPLED), k.output::<i64>(COLUMNS));
        if plan.samples_now() {
            let offset = (plan.rank as u64) << RANK_SHIFT;
            let (seed, stream) = (random::seed(seed, k), random::stream(stream, k));
            let draw = Draw { seed, stream, offset };
            sample(labels, plan.own_classes().1, draw, view_as_mut(bits), sampled);
            place(labels, sampled, own_columns);
        } else {
            sampled.fill(0);
            own_columns.copy_from_slice(labels);
        }
        let (numbers, floats) = floats.split_at_mut(4 * samples);
        let (wide, scratch) = floats.split_at_mut(logits_len);
        let softmax = k.output::<f32>(SOFTMAX);
        if is_wide {
            softmax.fill(0.0);
        }
        let logits = if is_wide { wide } else { softmax };
        let weights = plan.weights(k.input(W), sampled);
        classes::logits(k.pool, features, &weights, plan.scale, logits, scratch);
        plan.hide_padding(logits);
        plan.add_margin(logits, own_columns, k.output(SLOPES));
        let loss = plan.losses(k, &ranks, own_columns, logits, numbers)?;
        k.output::<f32>(LOSS).copy_from_slice(&loss[plan.rank * own..][..own]);
        Ok(())
    })
    .scratch::<f32>(2 * integers + floats))
}

/// Positions of random numbers are divided among ranks in shares of this power of two.
const RANK_SHIFT: u32 = 40;

impl Plan {
    /// Copies the labels, which must be classes.
    fn read_labels(&self, k: &KernelCtx<'_>, to: &mut [i64]) -> Result<()> {
        let labels = Indices::of(k, LABEL);
        for (position, to) in to.iter_mut().enumerate() {
            *to = labels.at(position);
            if !(0..self.classes as i64).contains(to) {
                let what = format!("label at position {position} is not a class");
                let last = self.classes.saturating_sub(1);
                return Err(Error::invalid(what).expected(format!("0 to {last}")).got(*to));
            }
        }
        Ok(())
    }

    /// Replaces labels by rows of W, and [`OTHER`] for those of other ranks.
    fn own_labels(&self, labels: &mut [i64]) {
        let (first, count) = self.own_classes();
        for label in labels {
            let row = *label - first as i64;
            *label = if (0..count as i64).contains(&row) { row } else { OTHER };
        }
    }

    /// Excludes the columns behind the last class.
    fn hide_padding(&self, logits: &mut [f32]) {
        let (_, count) = self.own_classes();
        if count < self.columns {
            for row in logits.chunks_exact_mut(self.columns) {
                row[count..].fill(f32::NEG_INFINITY);
            }
        }
    }

    fn add_margin(&self, logits: &mut [f32], columns: &[i64], slopes: &mut [f32]) {
        match self.margin > 0.0 {
            true => classes::add_margin(logits, columns, self.margin, self.scale, slopes),
            false => slopes.fill(1.0),
        }
    }

    /// Replaces logits by probabilities, and returns the losses of all samples.
    fn losses<'s>(
        &self,
        k: &KernelCtx<'_>,
        ranks: &Ranks,
        columns: &[i64],
        logits: &mut [f32],
        numbers: &'s mut [f32],
    ) -> Result<&'s [f32]> {
        let (max, rest) = numbers.split_at_mut(self.samples);
        let (sums, losses) = rest.split_at_mut(2 * self.samples);
        let all = Columns::all(self.columns);
        parts::maxima(k.pool, logits, all, max);
        ranks.reduce(k, max, ReduceOp::Max)?;
        parts::exponentials(k.pool, Input::Output, all, columns, max, logits, sums);
        ranks.reduce(k, sums, ReduceOp::Sum)?;
        parts::losses(k.pool, columns, sums, logits, losses);
        Ok(losses)
    }
}

/// Writes the column of each label, of the sorted rows in use.
fn place(labels: &[i64], rows: &[i64], columns: &mut [i64]) {
    for (label, column) in labels.iter().zip(columns) {
        *column = rows.binary_search(label).map_or(OTHER, |at| at as i64);
    }
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let ranks = Ranks::of(p)?;
    let plan = Plan::new(p, ranks.ring.as_ref());
    let Plan { own, samples, dim, .. } = plan;
    let wants_x = p.optional_output("X@GRAD").is_some();
    let sums = if wants_x { samples * dim } else { 0 };
    let scratch = samples + sums + plan.scratch_len(p.threads);
    Ok(Kernel::new(move |k| {
        let saved = |slot: usize| slot + SAVED;
        let columns = k.input::<i64>(saved(COLUMNS));
        let sampled = k.input::<i64>(saved(SAMPLED));
        plan.check_saved(columns, sampled)?;
        let (dloss, rest) = k.scratch::<f32>().split_at_mut(samples);
        let (dfeatures, scratch) = rest.split_at_mut(sums);
        ranks.gather(k, k.arg(DLOSS).bytes(), view_as_mut(dloss))?;
        let losses = Losses {
            features: k.input(saved(FEATURES)),
            softmax: k.input(saved(SOFTMAX)),
            labels: columns,
            slopes: k.input(saved(SLOPES)),
            scale: plan.scale,
            dloss,
        };
        let weights = plan.weights(k.input(W), sampled);
        let mut dw = k.optional_out(1);
        let rows = dw.as_mut().map(|dw| dw.slice_mut::<f32>());
        let rows = rows.map(|rows| &mut rows[..plan.columns * dim]);
        let to = wants_x.then_some(&mut *dfeatures);
        classes::gradients(k.pool, &losses, &weights, to, rows, scratch);
        if let Some(dw) = dw.as_mut().filter(|_| plan.samples_classes) {
            let count = plan.own_classes().1.min(plan.columns);
            dw.row_ids_mut()[..count].copy_from_slice(&sampled[..count]);
            dw.set_row_count(count);
        }
        if let Some(dx) = k.optional_output::<f32>(0) {
            ranks.scatter_sum(k, dfeatures, &mut dx[..own * dim])?;
            if plan.is_normalized {
                classes::normalize_gradients(k.pool, k.input(X), dim, dx);
            }
        }
        Ok(())
    })
    .scratch::<f32>(scratch))
}

impl Plan {
    /// Checks the saved numbers, by which memory is accessed.
    fn check_saved(&self, columns: &[i64], sampled: &[i64]) -> Result<()> {
        let is_column = |it: &i64| (OTHER..self.columns as i64).contains(it);
        let is_row = |it: &i64| (0..self.rows as i64).contains(it);
        let wrong = |what: &str, limit: usize, got: i64| {
            let last = limit.saturating_sub(1);
            Err(Error::invalid(what).expected(format!("at most {last}")).got(got))
        };
        if let Some(column) = columns.iter().find(|it| !is_column(it)) {
            return wrong("input 'Columns' has a number that is no column", self.columns, *column);
        }
        if let Some(row) = sampled.iter().find(|it| !is_row(it)) {
            return wrong("input 'Sampled' has a number that is no row", self.rows, *row);
        }
        Ok(())
    }
}

/// Cost of the product, and of the rows in use.
fn cost(c: &CostCtx<'_>) -> Cost {
    let (softmax, features) = (c.output("Softmax"), c.output("Features"));
    products(softmax, features, 1.0)
}

fn cost_grad(c: &CostCtx<'_>) -> Cost {
    products(c.input("Softmax"), c.input("Features"), 2.0)
}

fn products(softmax: Option<&Meta>, features: Option<&Meta>, count: f64) -> Cost {
    let (Some(softmax), Some(features)) = (softmax, features) else { return Cost::default() };
    // Programs of files may have other ranks here.
    let width = |meta: &Meta| meta.shape.dims().get(1).map_or(1.0, |&width| width as f64);
    let (logits, dim) = (softmax.numel() as f64, width(features));
    let rows = 4.0 * width(softmax) * dim;
    let bytes = softmax.bytes() as f64 + features.bytes() as f64 + count * rows;
    Cost { flops: count * 2.0 * logits * dim + 24.0 * logits, bytes }
}
