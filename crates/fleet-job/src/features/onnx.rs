//! Features as nodes of an ONNX graph: from the columns of a row to the inputs of the program.
//!
//! Inputs of the graph are numbers as they are in the data (NaN if missing), and categories by
//! their hashes (0 if missing), since models know categories by their hashes only. Each node does
//! what `apply.rs` and `number.rs` do, in the same precision.

use super::ids::{CROSS_START, Lookup};
use super::number::{NORMAL_LOW, NORMAL_TAIL, normal_factors};
use super::{Features, INPUT_NUMBERS, INPUT_SCALES, Ids, Number, input_of_ids, input_of_several};
use fleet::{DType, OnnxBuilder, OnnxValue, Tensor};
use fleet_base::{Error, Result};
use std::collections::HashMap;

/// Version of the op set that has exclusive or, which hash buckets and crosses need.
const XOR_OPSET: i64 = 18;

/// Columns that are inputs already, by their names.
type Columns = HashMap<String, OnnxValue>;

impl Features {
    /// Returns the lowest version of the op set that can express the features.
    pub fn opset_min(&self) -> i64 {
        let needs_xor =
            |ids: &Ids| ids.columns.len() > 1 || matches!(ids.lookup, Lookup::Buckets(_));
        if self.ids.iter().any(needs_xor) { XOR_OPSET } else { *fleet::OnnxOptions::OPSETS.start() }
    }

    /// Adds the columns as inputs, and the nodes that compute the inputs of the program. `source`
    /// returns the name of a column in data files.
    pub fn write_onnx(
        &self,
        graph: &mut OnnxBuilder<'_>,
        source: &dyn Fn(&str) -> String,
    ) -> Result<HashMap<String, OnnxValue>> {
        let mut made = HashMap::new();
        let mut numbers = Vec::new();
        for number in &self.numbers {
            numbers.push(graph.input(&source(&number.column), DType::F32, false)?);
        }
        let mut parts = Vec::new();
        for (number, value) in self.numbers.iter().zip(&numbers) {
            parts.push(number.write_onnx(graph, *value)?);
        }
        for (_, value) in
            self.numbers.iter().zip(&numbers).filter(|(number, _)| number.may_be_missing)
        {
            let is_missing = graph.node("IsNaN", &[*value], &[]);
            parts.push(graph.cast(is_missing, DType::F32));
        }
        if !parts.is_empty() {
            let all = graph.node("Concat", &parts, &[("axis", 1)]);
            made.insert(INPUT_NUMBERS.to_string(), all);
        }
        let columns = self.hashes(graph, source)?;
        for table in self.tables() {
            let mut rows = Vec::new();
            for ids in self.single(table.dim) {
                let hash = hash_of(graph, ids, &columns)?;
                rows.push(self.rows_of(graph, ids, hash)?);
            }
            if !rows.is_empty() {
                let all = graph.node("Concat", &rows, &[("axis", 1)]);
                made.insert(input_of_ids(table.dim), all);
            }
        }
        let mut scales = Vec::new();
        for (index, ids) in self.several().enumerate() {
            let hashes = columns.get(&ids.columns[0]).copied().ok_or_else(no_column)?;
            let (rows, scale) = self.several_rows(graph, ids, hashes)?;
            made.insert(input_of_several(index), rows);
            scales.push(scale);
        }
        if !scales.is_empty() {
            let all = graph.node("Concat", &scales, &[("axis", 1)]);
            made.insert(INPUT_SCALES.to_string(), all);
        }
        Ok(made)
    }

    /// Adds an input with the hashes of each column of categories.
    fn hashes(
        &self,
        graph: &mut OnnxBuilder<'_>,
        source: &dyn Fn(&str) -> String,
    ) -> Result<Columns> {
        let mut columns = Columns::new();
        for ids in &self.ids {
            for name in &ids.columns {
                if !columns.contains_key(name) {
                    let input = graph.input(&source(name), DType::I64, ids.is_several())?;
                    columns.insert(name.clone(), input);
                }
            }
        }
        Ok(columns)
    }

    /// Returns the rows of hashes in the table of their width.
    fn rows_of(
        &self,
        graph: &mut OnnxBuilder<'_>,
        ids: &Ids,
        hash: OnnxValue,
    ) -> Result<OnnxValue> {
        let base = ids.base;
        let rows = match &self.source_of(ids).lookup {
            Lookup::Vocabulary(known) => {
                let keys = known.iter().map(|hash| *hash as i64).collect();
                let rows = (base + 2..base + 2 + known.len() as i64).collect();
                graph.hash_table(hash, keys, rows, base + 1)
            }
            Lookup::Buckets(count) => {
                let mixed = mixed(graph, hash)?;
                let bucket = high_product(graph, mixed, *count)?;
                let first = graph.scalar(base + 1)?;
                graph.node("Add", &[bucket, first], &[])
            }
            // A missing value is 0.
            Lookup::Rows(count) => return Self::integer_rows(graph, (base, *count), hash),
        };
        let missing = graph.scalar(base)?;
        let is_missing = equals(graph, hash, 0)?;
        Ok(graph.node("Where", &[is_missing, missing, rows], &[]))
    }

    /// Returns the rows of ids that are integers plus 1. Those that no training could have had are
    /// like missing ones, so that they do not read rows of other features.
    fn integer_rows(
        graph: &mut OnnxBuilder<'_>,
        (base, count): (i64, u64),
        ids: OnnxValue,
    ) -> Result<OnnxValue> {
        let (zero, last) = (graph.scalar(0)?, graph.scalar(count as i64)?);
        let is_above = graph.node("Greater", &[ids, last], &[]);
        let is_below = graph.node("Less", &[ids, zero], &[]);
        let is_outside = graph.node("Or", &[is_above, is_below], &[]);
        let known = graph.node("Where", &[is_outside, zero, ids], &[]);
        let first = graph.scalar(base)?;
        Ok(graph.node("Add", &[known, first], &[]))
    }

    /// Returns the rows of a feature with several values, after the row of a missing value or the
    /// padding, and the factor of their sum.
    fn several_rows(
        &self,
        graph: &mut OnnxBuilder<'_>,
        ids: &Ids,
        hashes: OnnxValue,
    ) -> Result<(OnnxValue, OnnxValue)> {
        let is_missing = equals(graph, hashes, 0)?;
        let is_value = graph.node("Not", &[is_missing], &[]);
        let ones = graph.cast(is_value, DType::I64);
        // The newest values of a history are the last ones.
        let reverse = i64::from(ids.history_of.is_some());
        let axis = graph.scalar(1)?;
        let place = graph.node("CumSum", &[ones, axis], &[("reverse", reverse)]);
        let values_max = graph.scalar(ids.values_max.unwrap_or(1) as i64)?;
        let is_early = graph.node("LessOrEqual", &[place, values_max], &[]);
        let is_used = graph.node("And", &[is_value, is_early], &[]);
        let rows = self.rows_of(graph, ids, hashes)?;
        let padding = graph.scalar(0)?;
        let rows = graph.node("Where", &[is_used, rows, padding], &[]);
        let used = graph.cast(is_used, DType::I64);
        let axes = graph.ints(&[1])?;
        let count = graph.node("ReduceSum", &[used, axes], &[("keepdims", 1)]);
        let is_empty = equals(graph, count, 0)?;
        let missing = graph.scalar(ids.base)?;
        let first = graph.node("Where", &[is_empty, missing, padding], &[]);
        let rows = graph.node("Concat", &[first, rows], &[("axis", 1)]);
        let one = graph.constant(Tensor::from_slice(&[1.0f32], [1])?);
        let count = graph.cast(count, DType::F32);
        let scale = match ids.is_sum {
            true => graph.node("Where", &[is_empty, one, one], &[]),
            false => {
                let count = graph.node("Max", &[count, one], &[]);
                graph.node("Div", &[one, count], &[])
            }
        };
        Ok((rows, scale))
    }
}

/// Returns the hash of a feature with one value: that of its column, or of a cross.
fn hash_of(graph: &mut OnnxBuilder<'_>, ids: &Ids, columns: &Columns) -> Result<OnnxValue> {
    let columns: Option<Vec<OnnxValue>> =
        ids.columns.iter().map(|name| columns.get(name).copied()).collect();
    let columns = columns.ok_or_else(no_column)?;
    if let [only] = columns[..] {
        return Ok(only);
    }
    let zero = graph.scalar(0)?;
    let mut hash = graph.scalar(CROSS_START as i64)?;
    let mut is_missing = None;
    for column in columns {
        let left = graph.shift(hash, 23)?;
        let right = graph.shift(hash, 23 - 64)?;
        let rotated = graph.node("Add", &[left, right], &[]);
        let word = graph.node("BitwiseXor", &[rotated, column], &[]);
        hash = mixed(graph, word)?;
        let lacks = equals(graph, column, 0)?;
        is_missing = Some(match is_missing {
            None => lacks,
            Some(others) => graph.node("Or", &[others, lacks], &[]),
        });
    }
    let (is_zero, one) = (equals(graph, hash, 0)?, graph.scalar(1)?);
    let hash = graph.node("Where", &[is_zero, one, hash], &[]);
    let is_missing = is_missing.ok_or_else(no_column)?;
    Ok(graph.node("Where", &[is_missing, zero, hash], &[]))
}

fn no_column() -> Error {
    Error::internal("a feature without a column")
}

fn equals(graph: &mut OnnxBuilder<'_>, x: OnnxValue, value: i64) -> Result<OnnxValue> {
    let value = graph.scalar(value)?;
    Ok(graph.node("Equal", &[x, value], &[]))
}

/// Mixes the bits of words like `ids::mixed`. Products keep the lower 64 bits.
fn mixed(graph: &mut OnnxBuilder<'_>, word: OnnxValue) -> Result<OnnxValue> {
    let mut word = word;
    for factor in [super::ids::MIX_FIRST, super::ids::MIX_SECOND] {
        let shifted = graph.shift(word, -33)?;
        let folded = graph.node("BitwiseXor", &[word, shifted], &[]);
        let factor = graph.scalar(factor as i64)?;
        word = graph.node("Mul", &[folded, factor], &[]);
    }
    let shifted = graph.shift(word, -33)?;
    Ok(graph.node("BitwiseXor", &[word, shifted], &[]))
}

/// Returns the upper 64 bits of the product of words and a number, by parts of 32 bits.
fn high_product(graph: &mut OnnxBuilder<'_>, word: OnnxValue, count: u64) -> Result<OnnxValue> {
    let high = graph.shift(word, -32)?;
    let low = lower(graph, word)?;
    let mut product = |part: OnnxValue, factor: u64| -> Result<OnnxValue> {
        let factor = graph.scalar(factor as i64)?;
        Ok(graph.node("Mul", &[part, factor], &[]))
    };
    let (count_high, count_low) = (count >> 32, count & u64::from(u32::MAX));
    let (low_low, high_low) = (product(low, count_low)?, product(high, count_low)?);
    let (low_high, high_high) = (product(low, count_high)?, product(high, count_high)?);
    let mut middle = graph.shift(low_low, -32)?;
    for part in [high_low, low_high] {
        let part = lower(graph, part)?;
        middle = graph.node("Add", &[middle, part], &[]);
    }
    let mut sum = high_high;
    for part in [high_low, low_high, middle] {
        let part = graph.shift(part, -32)?;
        sum = graph.node("Add", &[sum, part], &[]);
    }
    Ok(sum)
}

fn lower(graph: &mut OnnxBuilder<'_>, word: OnnxValue) -> Result<OnnxValue> {
    let left = graph.shift(word, 32)?;
    graph.shift(left, -32)
}

/// Returns a constant with one element, which keeps the shape of what it is combined with.
fn float(graph: &mut OnnxBuilder<'_>, value: f32) -> Result<OnnxValue> {
    Ok(graph.constant(Tensor::from_slice(&[value], [1])?))
}

fn double(graph: &mut OnnxBuilder<'_>, value: f64) -> Result<OnnxValue> {
    Ok(graph.constant(Tensor::from_slice(&[value], [1])?))
}

impl Number {
    /// Returns the number that the model gets of a column, like [`Number::apply`].
    fn write_onnx(&self, graph: &mut OnnxBuilder<'_>, column: OnnxValue) -> Result<OnnxValue> {
        let value = if self.is_log { log_of(graph, column)? } else { column };
        let changed = match self.quantiles.is_empty() {
            true => {
                let (mean, deviation) = (float(graph, self.mean)?, float(graph, self.deviation)?);
                let difference = graph.node("Sub", &[value, mean], &[]);
                let scaled = graph.node("Div", &[difference, deviation], &[]);
                let limit = super::number::LIMIT;
                let ends = [-limit, limit].map(|end| Tensor::from_slice(&[end], []));
                let [low, high] = ends;
                let (low, high) = (graph.constant(low?), graph.constant(high?));
                graph.node("Clip", &[scaled, low, high], &[])
            }
            false => {
                let rank = rank_in(graph, &self.quantiles, value)?;
                normal_score(graph, rank)?
            }
        };
        let is_missing = graph.node("IsNaN", &[column], &[]);
        let zero = float(graph, 0.0)?;
        Ok(graph.node("Where", &[is_missing, zero, changed], &[]))
    }
}

/// `sign(x) log(1 + |x|)`, in double precision since ONNX has no `log1p`.
fn log_of(graph: &mut OnnxBuilder<'_>, value: OnnxValue) -> Result<OnnxValue> {
    let wide = graph.cast(value, DType::F64);
    let size = graph.node("Abs", &[wide], &[]);
    let one = double(graph, 1.0)?;
    let sum = graph.node("Add", &[size, one], &[]);
    let log = graph.node("Log", &[sum], &[]);
    let sign = graph.node("Sign", &[wide], &[]);
    let signed = graph.node("Mul", &[sign, log], &[]);
    Ok(graph.cast(signed, DType::F32))
}

/// Returns the share of the quantiles below values, like `number::rank_in`.
fn rank_in(graph: &mut OnnxBuilder<'_>, quantiles: &[f32], value: OnnxValue) -> Result<OnnxValue> {
    let count = quantiles.len() as i64;
    let all = graph.constant(Tensor::from_slice(quantiles, [count])?);
    let axes = graph.ints(&[1])?;
    // `[batch, 1]` with `[quantiles]` is `[batch, quantiles]`.
    let mut counted = |op: &'static str| {
        let is = graph.node(op, &[all, value], &[]);
        let ones = graph.cast(is, DType::I64);
        graph.node("ReduceSum", &[ones, axes], &[("keepdims", 1)])
    };
    let (below, not_above) = (counted("Less"), counted("LessOrEqual"));
    let one = graph.scalar(1)?;
    let last = float(graph, (count - 1).max(1) as f32)?;
    let before = graph.node("Sub", &[below, one], &[]);
    // Among equal quantiles: the middle.
    let sum = graph.node("Add", &[before, not_above], &[]);
    let (sum, two) = (graph.cast(sum, DType::F32), float(graph, 2.0)?);
    let middle = graph.node("Div", &[sum, two], &[]);
    // Between two quantiles.
    let [zero, end] = [graph.scalar(0)?, graph.scalar(count - 1)?];
    let at_left = graph.node("Max", &[before, zero], &[]);
    let at_right = graph.node("Min", &[below, end], &[]);
    let left = graph.node("Gather", &[all, at_left], &[]);
    let right = graph.node("Gather", &[all, at_right], &[]);
    let over = graph.node("Sub", &[value, left], &[]);
    let width = graph.node("Sub", &[right, left], &[]);
    let part = graph.node("Div", &[over, width], &[]);
    let left = graph.cast(before, DType::F32);
    let between = graph.node("Add", &[left, part], &[]);
    let is_equal = graph.node("Less", &[below, not_above], &[]);
    let place = graph.node("Where", &[is_equal, middle, between], &[]);
    let rank = graph.node("Div", &[place, last], &[]);
    // Outside of all.
    let is_low = equals(graph, not_above, 0)?;
    let is_high = equals(graph, below, count)?;
    let [zero, one] = [float(graph, 0.0)?, float(graph, 1.0)?];
    let rank = graph.node("Where", &[is_low, zero, rank], &[]);
    Ok(graph.node("Where", &[is_high, one, rank], &[]))
}

/// Returns the normal numbers with these shares below them, like `number::normal_score`.
fn normal_score(graph: &mut OnnxBuilder<'_>, share: OnnxValue) -> Result<OnnxValue> {
    let wide = graph.cast(share, DType::F64);
    let end = |value: f64| Tensor::from_slice(&[value], []);
    let low = graph.constant(end(NORMAL_LOW)?);
    let high = graph.constant(end(1.0 - NORMAL_LOW)?);
    let share = graph.node("Clip", &[wide, low, high], &[]);
    let one = double(graph, 1.0)?;
    let rest = graph.node("Sub", &[one, share], &[]);
    let lower = tail(graph, share)?;
    let upper = tail(graph, rest)?;
    let upper = graph.node("Neg", &[upper], &[]);
    let [a, b, ..] = normal_factors();
    let half = double(graph, 0.5)?;
    let q = graph.node("Sub", &[share, half], &[]);
    let r = graph.node("Mul", &[q, q], &[]);
    let above = polynomial(graph, a, r)?;
    let above = graph.node("Mul", &[above, q], &[]);
    let under = polynomial(graph, b, r)?;
    let under = graph.node("Mul", &[under, r], &[]);
    let under = graph.node("Add", &[under, one], &[]);
    let center = graph.node("Div", &[above, under], &[]);
    let [from, to] = [double(graph, NORMAL_TAIL)?, double(graph, 1.0 - NORMAL_TAIL)?];
    let is_low = graph.node("Less", &[share, from], &[]);
    let is_high = graph.node("Greater", &[share, to], &[]);
    let score = graph.node("Where", &[is_high, upper, center], &[]);
    let score = graph.node("Where", &[is_low, lower, score], &[]);
    Ok(graph.cast(score, DType::F32))
}

fn tail(graph: &mut OnnxBuilder<'_>, share: OnnxValue) -> Result<OnnxValue> {
    let (log, minus_two) = (graph.node("Log", &[share], &[]), double(graph, -2.0)?);
    let product = graph.node("Mul", &[log, minus_two], &[]);
    let q = graph.node("Sqrt", &[product], &[]);
    let [.., c, d] = normal_factors();
    let above = polynomial(graph, c, q)?;
    let under = polynomial(graph, d, q)?;
    let under = graph.node("Mul", &[under, q], &[]);
    let one = double(graph, 1.0)?;
    let under = graph.node("Add", &[under, one], &[]);
    Ok(graph.node("Div", &[above, under], &[]))
}

fn polynomial(graph: &mut OnnxBuilder<'_>, factors: &[f64], x: OnnxValue) -> Result<OnnxValue> {
    let mut sum = double(graph, factors.first().copied().unwrap_or(0.0))?;
    for factor in factors.iter().skip(1) {
        let product = graph.node("Mul", &[sum, x], &[]);
        let factor = double(graph, *factor)?;
        sum = graph.node("Add", &[product, factor], &[]);
    }
    Ok(sum)
}
