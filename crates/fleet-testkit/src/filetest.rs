//! Op cases as text: `tests/filetests/ops/*.fleet`.
//!
//! A case is a block of lines; blank lines separate cases, `#` starts a comment line.
//!
//! ```text
//! op matmul_v2 trans_y=true alpha=0.5
//! in X f32[2,3] = 1 2 3 4 5 6
//! in Y f32[4,3] = rand 7 -1 1
//! out Out f32[2,4] = 0.5 1 1.5 2 2.5 3 3.5 4
//! tol 1e-5 1e-6
//! grad X Y
//!
//! op mul
//! in X f32[2,3]
//! in Y f32[4,5]
//! error input 'Y' of mul has the wrong height
//! ```
//!
//! * `op NAME ATTR=VALUE ...`; lists are `[1,2]` without blanks, strings may be quoted.
//! * `in SLOT TYPE = VALUES`, once for each variable of the slot. TYPE is `f32[2,3]`,
//!   `f32[64,8,3,3]:filter64`, or `f32[10,4]@3,7,3` for sparse rows with these ids. VALUES are
//!   numbers, `rand SEED LOW HIGH` (see [`Value::random`]), `fill V`, or `range START STEP`.
//!   Without `= VALUES` all are zero.
//! * `out SLOT TYPE = VALUES` compares every element, `out SLOT TYPE at I:V I:V ...` some of them,
//!   and `out SLOT TYPE` only type and shape. Naming an optional output requests it. Sparse rows
//!   are compared as a dense matrix.
//! * `stat SLOT mean|std|min|max LOW HIGH`: range of a statistic, for random outputs.
//! * `tol RELATIVE [ABSOLUTE]`: tolerances, by default 1e-5 and 1e-6.
//! * `grad SLOT ...`: checks gradients with finite differences. `loss SLOT ...` restricts the
//!   outputs of the loss, `diff STEP TOLERANCE` sets step and tolerance (0.03125 and 0.002).
//! * `same OUTPUT INPUT`: the two are one variable. `seed N`, `step N`.
//! * `static`: the first dimension of the first input slot must be known.
//! * `error TEXT`: the case must fail with a message that contains the text; may be repeated.

use crate::{Case, Outputs, Value, to_filter64};
use fleet_base::{Error, Result};
use fleet_ir::{Arity, Attr, AttrKind};
use fleet_ops::{Meta, OpDef, Registry};
use fleet_tensor::{DType, Layout, Shape};
use std::fmt::Write as _;
use std::path::Path;

/// Runs every case of every `.fleet` file in a directory. The error lists all failed cases.
///
/// Runs only cases of ops whose name contains `filter`. Returns the names of the ops that ran.
pub fn run_dir(dir: &Path, filter: &str) -> Result<Vec<&'static str>> {
    let mut ran = Vec::new();
    let mut failures = String::new();
    let mut count = 0;
    for (file, text) in files(dir)? {
        for block in blocks(&text) {
            let place = format!("{file}:{}", block.line);
            match run_block(&block, filter) {
                Ok(Some(op)) => ran.push(op),
                Ok(None) => {}
                Err(error) => {
                    count += 1;
                    let _ = writeln!(failures, "{place}: {error}");
                }
            }
        }
    }
    if count > 0 {
        return Err(Error::internal(format!("{count} cases failed:\n{failures}")));
    }
    Ok(ran)
}

/// Returns the text of every case of every `.fleet` file in a directory.
pub fn texts(dir: &Path) -> Result<Vec<String>> {
    let files = files(dir)?;
    let texts = files.iter().flat_map(|(_, text)| blocks(text));
    Ok(texts.map(|block| block.lines.join("\n")).collect())
}

/// Runs the op of a case that may be invalid in any way, unless an output would have more than
/// `elements_max` elements.
pub fn attempt(text: &str, elements_max: usize) -> Result<()> {
    for block in blocks(text) {
        let name = block.lines[0].split_whitespace().nth(1).unwrap_or_default();
        let case = parse(&block, Registry::standard().get(name)?)?.case;
        let made = case.infer()?;
        let sizes = made.iter().flatten().map(|meta| meta.shape.numel());
        if sizes.flatten().all(|size| size <= elements_max) {
            case.run()?;
        }
    }
    Ok(())
}

/// Runs the gradient ops of a case over inputs whose types and shapes `change` replaces.
pub fn attempt_grad(text: &str, change: &mut dyn FnMut(Meta) -> Meta) -> Result<()> {
    for block in blocks(text) {
        let name = block.lines[0].split_whitespace().nth(1).unwrap_or_default();
        let test = parse(&block, Registry::standard().get(name)?)?;
        let slots: Vec<&str> = test.grad.iter().map(String::as_str).collect();
        test.case.attempt_grad(&slots, change)?;
    }
    Ok(())
}

/// Returns name and text of every `.fleet` file in a directory.
fn files(dir: &Path) -> Result<Vec<(String, String)>> {
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .map_err(|error| Error::io("list", dir, &error))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ext| ext == "fleet"))
        .collect();
    paths.sort();
    let read = |path: std::path::PathBuf| {
        let text =
            std::fs::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))?;
        Ok((path.file_name().unwrap_or_default().to_string_lossy().into_owned(), text))
    };
    paths.into_iter().map(read).collect()
}

/// The lines of one case, with the number of its first line.
struct Block<'a> {
    line: usize,
    lines: Vec<&'a str>,
}

fn blocks(text: &str) -> Vec<Block<'_>> {
    let mut blocks = Vec::new();
    let mut open: Option<Block<'_>> = None;
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            blocks.extend(open.take());
        } else if !line.starts_with('#') {
            open.get_or_insert(Block { line: index + 1, lines: Vec::new() }).lines.push(line);
        }
    }
    blocks.extend(open);
    blocks
}

/// A parsed case.
struct Test {
    case: Case,
    outs: Vec<Expected>,
    stats: Vec<(String, String, f64, f64)>,
    relative: f64,
    absolute: f64,
    grad: Vec<String>,
    errors: Vec<String>,
    fixed_batch: bool,
}

/// The expected value of an output.
struct Expected {
    slot: String,
    dtype: DType,
    shape: Shape,
    at: Vec<(usize, f64)>,
}

fn run_block(block: &Block<'_>, filter: &str) -> Result<Option<&'static str>> {
    let head = block.lines[0];
    let name = head.strip_prefix("op ").and_then(|rest| rest.split_whitespace().next());
    let name = name.ok_or_else(|| bad("a case starts with 'op NAME'", head))?;
    if !name.contains(filter) {
        return Ok(None);
    }
    let def = Registry::standard().get(name)?;
    if block.lines.iter().any(|line| line.starts_with("error ")) {
        check_error(block, def)?;
        return Ok(Some(def.spec.name));
    }
    let test = parse(block, def)?;
    if !test.fixed_batch {
        test.case.check_unknown_batch()?;
    }
    let outputs = test.case.run()?;
    compare(&test, &outputs)?;
    for (slot, what, low, high) in &test.stats {
        check_stat(outputs.one(slot), what, *low, *high)?;
    }
    if !test.grad.is_empty() {
        let slots: Vec<&str> = test.grad.iter().map(String::as_str).collect();
        test.case.check_grad(&slots)?;
    }
    Ok(Some(def.spec.name))
}

/// Checks that a case fails. The error may come from the attributes, the shape rule, or the kernel.
fn check_error(block: &Block<'_>, def: &'static OpDef) -> Result<()> {
    let wanted = block.lines.iter().filter_map(|line| line.strip_prefix("error "));
    let outcome = parse(block, def).and_then(|test| test.case.run().map(|_| test.errors));
    let Err(error) = outcome else {
        return Err(Error::internal("the case was accepted")
            .expected(format!("an error: {:?}", wanted.collect::<Vec<_>>())));
    };
    let message = error.to_string();
    for text in wanted {
        if !message.contains(text.trim()) {
            return Err(Error::internal("wrong error message")
                .expected(text)
                .help(format!("the message is\n    {message}")));
        }
    }
    Ok(())
}

fn parse(block: &Block<'_>, def: &'static OpDef) -> Result<Test> {
    let mut test = Test {
        case: Case::new(def),
        outs: Vec::new(),
        stats: Vec::new(),
        relative: 1e-5,
        absolute: 1e-6,
        grad: Vec::new(),
        errors: Vec::new(),
        fixed_batch: false,
    };
    for line in &block.lines {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split_whitespace().collect();
        let case = test.case;
        test.case = match (word, words.as_slice()) {
            ("op", [_, attrs @ ..]) => {
                attrs.iter().try_fold(case, |case, text| parse_attr(case, def, text))?
            }
            ("in", [slot, ty, values @ ..]) => case.input(slot, parse_input(ty, values)?),
            ("out", [slot, ty, values @ ..]) => {
                let ty = parse_type(ty)?;
                let (at, dtype, shape) = (parse_expected(&ty, values)?, ty.dtype, ty.shape);
                test.outs.push(Expected { slot: slot.to_string(), dtype, shape, at });
                with_output(case, def, slot, ty.layout)
            }
            ("stat", [slot, what, low, high]) => {
                let entry = (slot.to_string(), what.to_string(), number(low)?, number(high)?);
                test.stats.push(entry);
                case
            }
            ("tol", [relative, absolute @ ..]) => {
                test.relative = number(relative)?;
                test.absolute = absolute.first().map_or(Ok(test.absolute), |it| number(it))?;
                case
            }
            ("grad", slots) => {
                test.grad = slots.iter().map(|slot| slot.to_string()).collect();
                case
            }
            ("loss", slots) => case.loss_on(slots),
            ("diff", [step, tolerance]) => {
                case.finite_differences(number(step)?, number(tolerance)?)
            }
            ("same", [output, input]) => case.alias(output, input),
            ("seed", [value]) => case.seed(number(value)? as u64),
            ("step", [value]) => case.step(number(value)? as u64),
            ("static", []) => {
                test.fixed_batch = true;
                case
            }
            ("error", _) => {
                test.errors.push(rest.to_string());
                case
            }
            _ => return Err(bad("a line of a case", line)),
        };
    }
    Ok(test)
}

/// Requests an output that is optional, and its layout.
fn with_output(case: Case, def: &OpDef, slot: &str, layout: Layout) -> Case {
    let index = def.spec.output_index(slot);
    let is_optional = index.is_some_and(|at| def.spec.outputs[at].arity == Arity::Optional);
    let case = if is_optional { case.request_output(slot) } else { case };
    if layout == Layout::RowMajor { case } else { case.layout(slot, layout) }
}

fn bad(expected: &str, got: &str) -> Error {
    Error::invalid("cannot read the filetest").expected(expected).got(format!("'{got}'"))
}

fn number(text: &str) -> Result<f64> {
    match text {
        "true" => Ok(1.0),
        "false" => Ok(0.0),
        _ => text.parse().map_err(|_| bad("a number", text)),
    }
}

fn parse_attr(case: Case, def: &OpDef, text: &str) -> Result<Case> {
    let (name, value) = text.split_once('=').ok_or_else(|| bad("NAME=VALUE", text))?;
    let index = def.spec.attr_index(name).ok_or_else(|| {
        Error::invalid(format!("op '{}' has no attribute '{name}'", def.spec.name))
    })?;
    let plain = |text: &str| text.trim_matches('"').to_string();
    let items = || value.trim_matches(['[', ']']).split(',').filter(|item| !item.is_empty());
    let attr = match def.spec.attrs[index].kind {
        AttrKind::Int => Attr::Int(number(value)? as i64),
        AttrKind::Float => Attr::Float(number(value)?),
        AttrKind::Bool => Attr::Bool(number(value)? != 0.0),
        AttrKind::Str => Attr::Str(plain(value)),
        AttrKind::Ints => {
            Attr::Ints(items().map(|it| Ok(number(it)? as i64)).collect::<Result<_>>()?)
        }
        AttrKind::Floats => Attr::Floats(items().map(number).collect::<Result<_>>()?),
        AttrKind::Strs => Attr::Strs(items().map(plain).collect()),
        AttrKind::DType => Attr::DType(DType::parse(value)?),
        AttrKind::Block => return Err(bad("an attribute of a single op", text)),
    };
    Ok(case.attr(name, attr))
}

struct Type {
    dtype: DType,
    shape: Shape,
    layout: Layout,
    ids: Option<Vec<i64>>,
}

fn parse_type(text: &str) -> Result<Type> {
    let wrong = || bad("a type such as f32[2,3]", text);
    let (dtype, rest) = text.split_once('[').ok_or_else(wrong)?;
    let (dims, tail) = rest.split_once(']').ok_or_else(wrong)?;
    let dims: Vec<i64> = dims
        .split(',')
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.parse().map_err(|_| wrong()))
        .collect::<Result<_>>()?;
    let ids = match tail.strip_prefix('@') {
        Some(ids) => {
            let parse = |id: &str| id.parse().map_err(|_| wrong());
            Some(ids.split(',').filter(|id| !id.is_empty()).map(parse).collect::<Result<_>>()?)
        }
        None => None,
    };
    let layout = match tail {
        ":filter64" => Layout::Filter64,
        _ if tail.is_empty() || ids.is_some() => Layout::RowMajor,
        _ => return Err(wrong()),
    };
    Ok(Type { dtype: DType::parse(dtype)?, shape: Shape::new(&dims)?, layout, ids })
}

fn parse_input(ty: &str, values: &[&str]) -> Result<Value> {
    let ty = parse_type(ty)?;
    let mut shape = ty.shape;
    if let Some(ids) = &ty.ids {
        shape.dims_mut()[0] = ids.len() as i64;
    }
    let value = parse_values(ty.dtype, shape, values)?;
    if let Some(ids) = &ty.ids {
        let values: Vec<f32> = value.numbers().into_iter().map(|it| it as f32).collect();
        return Ok(Value::rows(ty.shape, ids, &values));
    }
    match ty.layout {
        Layout::RowMajor => Ok(value),
        Layout::Filter64 => Ok(to_filter64(value.tensor())?.into()),
    }
}

fn parse_values(dtype: DType, shape: Shape, words: &[&str]) -> Result<Value> {
    let len = shape.len();
    let numbers: Vec<f64> = match words {
        [] => vec![0.0; len],
        ["=", "rand", seed, low, high] => {
            let seed = number(seed)? as u64;
            return Ok(Value::random(dtype, shape, seed, number(low)?, number(high)?));
        }
        ["=", "fill", value] => vec![number(value)?; len],
        ["=", "range", start, step] => {
            let (start, step) = (number(start)?, number(step)?);
            (0..len).map(|index| start + step * index as f64).collect()
        }
        ["=", values @ ..] => values.iter().map(|it| number(it)).collect::<Result<_>>()?,
        [word, ..] => return Err(bad("= VALUES", word)),
    };
    Value::of(dtype, shape, &numbers)
}

fn parse_expected(ty: &Type, words: &[&str]) -> Result<Vec<(usize, f64)>> {
    if let ["at", pairs @ ..] = words {
        let pair = |text: &&str| {
            let (index, value) = text.split_once(':').ok_or_else(|| bad("INDEX:VALUE", text))?;
            let index: usize = index.parse().map_err(|_| bad("INDEX:VALUE", text))?;
            if index >= ty.shape.len() {
                return Err(bad("an index inside the shape", text));
            }
            Ok((index, number(value)?))
        };
        return pairs.iter().map(pair).collect();
    }
    match words {
        [] => Ok(Vec::new()),
        _ => {
            // Keep expected values in f64: the tolerance applies, not the rounding of the type.
            let dtype = if ty.dtype.is_float() { DType::F64 } else { ty.dtype };
            Ok(parse_values(dtype, ty.shape, words)?.numbers().into_iter().enumerate().collect())
        }
    }
}

fn compare(test: &Test, outputs: &Outputs) -> Result<()> {
    let mut seen: Vec<&str> = Vec::new();
    for expected in &test.outs {
        let slot = expected.slot.as_str();
        let index = seen.iter().filter(|it| **it == slot).count();
        seen.push(slot);
        let Some(value) = outputs.slot(slot).get(index) else {
            return Err(Error::internal(format!("missing output '{slot}' number {index}")));
        };
        let found = value.meta();
        if found.dtype != expected.dtype || found.shape != expected.shape {
            return Err(Error::internal(format!("output '{slot}' has the wrong type"))
                .expected(format!("{}{}", expected.dtype, expected.shape))
                .got(format!("{}{}", found.dtype, found.shape)));
        }
        let numbers = value.numbers();
        for (at, wanted) in &expected.at {
            let got = numbers[*at];
            let close = (got - wanted).abs() <= test.absolute + test.relative * wanted.abs();
            if !(close || got == *wanted || (got.is_nan() && wanted.is_nan())) {
                return Err(Error::internal(format!("output '{slot}' is wrong at element {at}"))
                    .expected(wanted)
                    .got(got));
            }
        }
    }
    Ok(())
}

fn check_stat(value: &Value, what: &str, low: f64, high: f64) -> Result<()> {
    let numbers = value.numbers();
    let count = numbers.len() as f64;
    let mean = numbers.iter().sum::<f64>() / count;
    let got = match what {
        "mean" => mean,
        "std" => (numbers.iter().map(|it| (it - mean) * (it - mean)).sum::<f64>() / count).sqrt(),
        "min" => numbers.iter().copied().fold(f64::INFINITY, f64::min),
        "max" => numbers.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        _ => return Err(bad("mean, std, min or max", what)),
    };
    if (low..=high).contains(&got) {
        return Ok(());
    }
    Err(Error::internal(format!("{what} out of range")).expected(format!("{low}..{high}")).got(got))
}
