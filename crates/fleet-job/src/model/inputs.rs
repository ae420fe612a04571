//! Vectors of the features: numbers and their encodings, and rows of embedding tables.

use super::{TablePlace, is_sparse};
use crate::features::{
    Encoding, Features, INPUT_NUMBERS, INPUT_SCALES, Ids, TableSize, input_of_ids, input_of_several,
};
use crate::job::{Job, ModelKind, ModelPart, Side};
use fleet::nn::layers::{Embedding, Fc, SparseEmbedding};
use fleet::nn::{Init, Net, ParamAttr, Regularizer, Var};
use fleet::{DType, Shape};

/// The features of a batch.
pub struct Inputs<'n> {
    /// `[batch, numbers]`: changed numbers, then whether each is missing.
    pub numbers: Option<Var<'n>>,
    /// `[batch, n, dim]`: encoded numbers.
    pub encoded: Vec<Var<'n>>,
    /// `[batch, n, dim]`: rows of features with one id, for each width.
    pub single: Vec<Var<'n>>,
    /// `[batch, 1, dim]`: combined rows of a feature with several ids.
    pub several: Vec<Var<'n>>,
    /// `[batch, 1]`: the sum of one weight for each id, if the model needs it.
    pub wide: Option<Var<'n>>,
    /// `[batch, 1, dim]`: the rows of each feature that describes a side.
    sides: Vec<(Side, Var<'n>)>,
    net: &'n Net,
    dim: i64,
}

impl<'n> Inputs<'n> {
    /// Makes the inputs, with one weight for each id if the network has a linear part.
    pub fn new(
        net: &'n Net,
        features: &Features,
        job: &Job,
        (place, has_linear): (TablePlace, bool),
    ) -> Inputs<'n> {
        let mut inputs = Inputs {
            numbers: None,
            encoded: Vec::new(),
            single: Vec::new(),
            several: Vec::new(),
            wide: None,
            sides: Vec::new(),
            net,
            dim: job.model.dim,
        };
        if features.number_width() > 0 {
            let width = features.number_width() as i64;
            let numbers = net.data(INPUT_NUMBERS, [-1, width], DType::F32);
            inputs.numbers = Some(numbers);
            inputs.encode(features, numbers);
        }
        let outputs = features.scores() as i64;
        inputs.look_up(features, job, place, has_linear.then_some(outputs));
        inputs
    }

    /// Returns the features that describe a side as one vector for each row.
    pub fn flat_of(&self, side: Side, features: &Features, job: &Job) -> Var<'n> {
        let mut all: Vec<Var<'n>> =
            self.of_side(side).into_iter().map(|rows| rows.flatten(1)).collect();
        all.extend(self.numbers_of(side, features, job));
        match &all[..] {
            [only] => *only,
            all => self.net.concat(all, 1),
        }
    }

    /// Returns the numbers that describe a side, whether they are missing, and their encodings.
    fn numbers_of(&self, side: Side, features: &Features, job: &Job) -> Vec<Var<'n>> {
        let Some(values) = self.numbers else { return Vec::new() };
        let part = |var: Var<'n>, at: usize| var.slice([1], [at as i64], [at as i64 + 1]);
        let mut parts = Vec::new();
        let mut missing = features.numbers.len();
        // Numbers of a kind of encoding are beside each other, as their vectors are.
        let (mut kinds, mut kind, mut place) = (self.encoded.iter(), None, 0);
        for (at, number) in features.numbers.iter().enumerate() {
            let is_first =
                at == 0 || features.numbers[at - 1].encoding.order() != number.encoding.order();
            if is_first {
                place = 0;
                kind = if number.encoding == Encoding::None { None } else { kinds.next() };
            }
            if job.side_of(&number.column) == Some(side) {
                parts.push(part(values, at));
                parts.extend(number.may_be_missing.then(|| part(values, missing)));
                parts.extend(kind.map(|vectors| part(*vectors, place).flatten(1)));
            }
            missing += usize::from(number.may_be_missing);
            place += 1;
        }
        parts
    }

    /// Returns the rows of the features that describe a side, each `[batch, 1, dim]`.
    pub fn of_side(&self, side: Side) -> Vec<Var<'n>> {
        self.sides.iter().filter(|(known, _)| *known == side).map(|(_, rows)| *rows).collect()
    }

    /// Returns all features as one vector for each row.
    pub fn flat(&self) -> Var<'n> {
        let vectors = self.encoded.iter().chain(&self.single).chain(&self.several);
        let mut all: Vec<Var<'n>> = vectors.map(|var| var.flatten(1)).collect();
        all.extend(self.numbers);
        match &all[..] {
            [only] => *only,
            all => self.net.concat(all, 1),
        }
    }

    /// Returns all features as `[batch, features, dim]`: a number without an encoding is its value
    /// times a trained row.
    pub fn fields(&self) -> Var<'n> {
        let vectors = self.encoded.iter().chain(&self.single).chain(&self.several);
        let mut all: Vec<Var<'n>> = vectors.copied().collect();
        if let Some(numbers) = self.numbers {
            let attr = ParamAttr::from("number_rows").init(Init::uniform(-0.01, 0.01));
            let width = numbers.shape()[1];
            let rows = self.net.create_parameter([width, self.dim], DType::F32, attr);
            all.push(numbers.unsqueeze([2]) * rows);
        }
        match &all[..] {
            [only] => *only,
            all => self.net.concat(all, 1),
        }
    }

    /// Encodes numbers as vectors. Those with the same kind of encoding are beside each other.
    fn encode(&mut self, features: &Features, numbers: Var<'n>) {
        let kinds: Vec<&Encoding> = features.numbers.iter().map(|it| &it.encoding).collect();
        let is_piecewise = |kind: &&&Encoding| matches!(kind, Encoding::Piecewise(_));
        let is_periodic = |kind: &&&Encoding| matches!(kind, Encoding::Periodic(..));
        let plain = kinds.iter().filter(|kind| matches!(kind, Encoding::None)).count();
        let piecewise: Vec<&&Encoding> = kinds.iter().filter(is_piecewise).collect();
        let periodic: Vec<&&Encoding> = kinds.iter().filter(is_periodic).collect();
        let mut at = plain;
        let mut part = |count: usize| {
            let ends = [at as i64, (at + count) as i64];
            at += count;
            numbers.slice([1], [ends[0]], [ends[1]])
        };
        if !piecewise.is_empty() {
            let values = part(piecewise.len());
            self.encoded.push(self.piecewise(values, &piecewise));
        }
        if !periodic.is_empty() {
            let values = part(periodic.len());
            self.encoded.push(self.periodic(values, &periodic));
        }
    }

    /// How far each number is through each of its intervals, from 0 to 1, and a trained vector for
    /// each interval.
    fn piecewise(&self, values: Var<'n>, kinds: &[&&Encoding]) -> Var<'n> {
        let edges = |kind: &Encoding| match kind {
            Encoding::Piecewise(edges) => edges.clone(),
            _ => Vec::new(),
        };
        let all: Vec<Vec<f32>> = kinds.iter().map(|kind| edges(kind)).collect();
        let bins = all.iter().map(|edges| edges.len() - 1).max().unwrap_or(1);
        let (mut slopes, mut starts) = (Vec::new(), Vec::new());
        for edges in &all {
            for bin in 0..bins {
                // A number with fewer intervals has 0 in those that it lacks.
                let slope = edges.get(bin + 1).map_or(0.0, |end| 1.0 / f64::from(end - edges[bin]));
                slopes.push(slope);
                starts.push(edges.get(bin).map_or(0.0, |start| -f64::from(*start) * slope));
            }
        }
        let (count, bins) = (kinds.len() as i64, bins as i64);
        let constant = |name: &str, values: Vec<f64>| {
            let attr = ParamAttr::from(name).init(Init::Assign(values)).trainable(false);
            self.net.create_parameter([count, bins], DType::F32, attr)
        };
        let slopes = constant("piecewise_slopes", slopes);
        let starts = constant("piecewise_starts", starts);
        let parts = (values.unsqueeze([2]) * slopes + starts).clip(0.0, 1.0);
        self.vectors("piecewise", parts, count, bins)
    }

    /// Sines and cosines of each number times trained frequencies, and a trained vector for each.
    fn periodic(&self, values: Var<'n>, kinds: &[&&Encoding]) -> Var<'n> {
        let settings = |kind: &Encoding| match kind {
            Encoding::Periodic(count, sigma) => (*count, f64::from(*sigma)),
            _ => (1, 1.0),
        };
        let waves = kinds.iter().map(|kind| settings(kind).0).max().unwrap_or(1) as i64;
        let sigma = kinds.iter().map(|kind| settings(kind).1).fold(0.0, f64::max);
        let count = kinds.len() as i64;
        let deviation = sigma * 2.0 * std::f64::consts::PI;
        let attr = ParamAttr::from("periodic_frequencies").init(Init::normal(0.0, deviation));
        let frequencies = self.net.create_parameter([count, waves], DType::F32, attr);
        let angles = values.unsqueeze([2]) * frequencies;
        let parts = self.net.concat(&[angles.sin(), angles.cos()], 2);
        self.vectors("periodic", parts, count, 2 * waves).relu()
    }

    /// Multiplies the encoding of each number by a matrix of its own: `[batch, n, width]` to
    /// `[batch, n, dim]`.
    fn vectors(&self, name: &str, parts: Var<'n>, count: i64, width: i64) -> Var<'n> {
        let bound = (1.0 / width as f64).sqrt();
        let attr = ParamAttr::from(format!("{name}_weights")).init(Init::uniform(-bound, bound));
        let weights = self.net.create_parameter([count, width, self.dim], DType::F32, attr);
        let bias = ParamAttr::from(format!("{name}_bias")).init(Init::uniform(-bound, bound));
        let bias = self.net.create_parameter([count, self.dim], DType::F32, bias);
        parts.transpose([1, 0, 2]).matmul(weights).transpose([1, 0, 2]) + bias
    }

    /// Returns the row of the value that a history is compared with, `[batch, 1, dim]`, if the
    /// model compares them.
    fn target_of(&self, features: &Features, ids: &Ids, job: &Job) -> Option<Var<'n>> {
        let name = ids.history_of.as_ref().filter(|_| job.model.kind == ModelKind::Din)?;
        let at = features.single(ids.dim).position(|other| other.name == *name)? as i64;
        // The rows of this width are looked up already.
        Some(self.single.last()?.slice([1], [at], [at + 1]))
    }

    /// Looks up the rows of all ids, and for a linear model one weight for each id and output.
    fn look_up(&mut self, features: &Features, job: &Job, place: TablePlace, linear: Option<i64>) {
        let net = self.net;
        let several_count = features.several().count() as i64;
        let scales =
            (several_count > 0).then(|| net.data(INPUT_SCALES, [-1, several_count], DType::F32));
        let mut wide = Vec::new();
        for table in features.tables() {
            let dim = table.dim;
            let single = features.single(dim).count();
            let several = features.several().filter(|ids| ids.dim == dim);
            let per_row = single + several.map(|ids| ids.values_max.unwrap_or(1)).sum::<usize>();
            let lookup =
                Lookup { table, place, job, is_sparse: is_sparse(job, table.rows, per_row) };
            if single > 0 {
                let ids = net.data(&input_of_ids(dim), [-1, single as i64], DType::I64);
                let rows = lookup.rows(ids, dim, &format!("table_{dim}"));
                self.single.push(rows);
                for (at, side) in sides_of(job, features.single(dim)) {
                    self.sides.push((side, rows.slice([1], [at], [at + 1])));
                }
                wide.extend(linear.map(|width| {
                    lookup.rows(ids, width, &format!("{WEIGHTS}{dim}")).reduce_sum([1], false)
                }));
            }
            for (index, ids) in features.several().enumerate().filter(|(_, ids)| ids.dim == dim) {
                let side = job.side_of(&ids.name);
                // The longest row of the batch decides the width.
                let values = net.data(&input_of_several(index), [-1, -1], DType::I64);
                let Some(scales) = scales else { continue };
                let scale = scales.slice([1], [index as i64], [index as i64 + 1]);
                let combined = |width: i64, name: &str| {
                    lookup.rows(values, width, name).reduce_sum([1], false) * scale
                };
                let target = self.target_of(features, ids, job);
                let rows = match target {
                    Some(target) => {
                        let history = lookup.rows(values, dim, &format!("table_{dim}"));
                        attended(history, target, values, &job.model, index)
                    }
                    None => combined(dim, &format!("table_{dim}")),
                };
                let rows = rows.reshape([-1, 1, dim]);
                self.several.push(rows);
                self.sides.extend(side.map(|side| (side, rows)));
                wide.extend(linear.map(|width| combined(width, &format!("{WEIGHTS}{dim}"))));
            }
        }
        self.wide = match &wide[..] {
            [] => None,
            [only] => Some(*only),
            all => Some(net.sum_of(all)),
        };
    }
}

/// The sum of the rows of a history, weighted by how they go with the row of the target:
/// `[batch, n, dim]` and `[batch, 1, dim]` to `[batch, dim]`.
fn attended<'n>(
    history: Var<'n>,
    target: Var<'n>,
    ids: Var<'n>,
    model: &ModelPart,
    index: usize,
) -> Var<'n> {
    let net = history.net();
    let layer = |size: i64, name: String| Fc::new(size).num_flatten_dims(2).name(name);
    let mut x = net.concat(&[history, history - target, history * target], 2);
    for (at, size) in model.attention.iter().enumerate() {
        x = x.fc(layer(*size, format!("attention_{index}_{at}"))).sigmoid();
    }
    let weights = x.fc(layer(1, format!("attention_{index}")));
    // Row 0 of a table is padding.
    let is_value = ids.greater_than(0.0).cast(DType::F32).unsqueeze([2]);
    (history * (weights * is_value)).reduce_sum([1], false)
}

/// Returns the places and sides of the features that describe a side.
fn sides_of<'f>(job: &Job, features: impl Iterator<Item = &'f Ids>) -> Vec<(i64, Side)> {
    let side = |(at, ids): (i64, &Ids)| Some((at, job.side_of(&ids.name)?));
    (0..).zip(features).filter_map(side).collect()
}

/// Start of the names of the tables with one weight for each id and output.
const WEIGHTS: &str = "weights_";

/// Lookups in the tables of one width.
struct Lookup<'j> {
    table: TableSize,
    place: TablePlace,
    job: &'j Job,
    is_sparse: bool,
}

impl Lookup<'_> {
    /// Returns `[batch, n, width]`. Row 0 is the padding.
    fn rows<'n>(&self, ids: Var<'n>, width: i64, name: &str) -> Var<'n> {
        let tables = &self.job.tables;
        let mut weight = ParamAttr::from(name).init(Init::uniform(-tables.init, tables.init));
        if let Some(decay) = tables.linear_decay.filter(|_| name.starts_with(WEIGHTS)) {
            weight = weight.regularizer(Regularizer::L2(decay));
        }
        let rows = self.table.rows;
        if self.place == TablePlace::Servers {
            let table = SparseEmbedding::new(rows, width).padding_idx(0).weight(weight);
            return ids.sparse_embedding(table);
        }
        let table = Embedding::new(rows, width).padding_idx(0).weight(weight);
        ids.embedding(if self.is_sparse { table.sparse() } else { table })
    }
}

/// Returns whether a parameter is an embedding table.
pub fn is_table(name: &str) -> bool {
    name.starts_with("table_") || name.starts_with(WEIGHTS)
}

/// Returns the last dimension of a variable.
pub fn width(var: Var<'_>) -> i64 {
    let shape: Shape = var.shape();
    shape.dims().last().copied().unwrap_or(1)
}
