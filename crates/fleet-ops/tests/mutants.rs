//! Ops in invalid programs: the cases of `tests/filetests/ops` with modified numbers, types and
//! inputs. For any program, shape rules and kernels must return outputs or an error.
//!
//! `FLEET_MUTANTS=200` sets the number of mutants per case (default 2). A failure prints its text.

use fleet_base::ErrorKind;
use fleet_base::rng::Sequence;
use fleet_ops::Meta;
use fleet_tensor::{DType, Shape};
use fleet_testkit::filetest;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// Numbers that rules are likely to mishandle.
const NUMBERS: [&str; 18] = [
    "-1",
    "0",
    "1",
    "2",
    "3",
    "5",
    "-2",
    "-3",
    "100",
    "1e30",
    "-1e30",
    "nan",
    "inf",
    "2147483648",
    "4294967296",
    "9223372036854775807",
    "-9223372036854775808",
    "4611686018427387904",
];

/// Dimensions of inputs. They are small, because inputs are allocated.
const DIMS: [&str; 7] = ["0", "1", "2", "3", "4", "7", "16"];

const TYPES: [&str; 7] = ["f32", "f64", "f16", "bf16", "i64", "i32", "bool"];

/// Maximum number of elements of a computed output, because mutants request tensors of any size.
const ELEMENTS_MAX: usize = 100_000;

#[test]
fn mutated_cases_run_or_are_refused() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/ops");
    let texts = filetest::texts(&dir).expect("the cases can be read");
    let filter = std::env::var("FLEET_OP").unwrap_or_default();
    let count = std::env::var("FLEET_MUTANTS").ok().and_then(|count| count.parse().ok());
    let (mut ran, mut refused, mut failed) = (0, 0, Vec::new());
    for (index, text) in texts.iter().enumerate() {
        if !text.lines().next().is_some_and(|head| head.contains(&filter)) {
            continue;
        }
        for at in 0..count.unwrap_or(2) {
            let mut rng = Sequence::new(11, index as u64 * 1_000_003 + at);
            let mutant = mutate(text, &mut rng);
            match catch_unwind(AssertUnwindSafe(|| filetest::attempt(&mutant, ELEMENTS_MAX))) {
                Ok(Ok(())) => ran += 1,
                Ok(Err(error)) => {
                    refused += 1;
                    if error.kind() == ErrorKind::Internal {
                        failed.push(format!("{mutant}\n{error}"));
                    }
                }
                Err(_) => failed.push(mutant),
            }
        }
    }
    assert!(failed.is_empty(), "{} fail:\n\n{}", failed.len(), failed.join("\n\n"));
    assert!(ran > 0 && refused > 0, "{ran} ran, {refused} were refused");
}

#[test]
fn mutated_gradients_run_or_are_refused() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/ops");
    let texts = filetest::texts(&dir).expect("the cases can be read");
    let filter = std::env::var("FLEET_OP").unwrap_or_default();
    let count = std::env::var("FLEET_MUTANTS").ok().and_then(|count| count.parse().ok());
    let mut failed = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let head = text.lines().next().unwrap_or_default();
        if !head.contains(&filter) || !text.contains("\ngrad ") {
            continue;
        }
        for at in 0..count.unwrap_or(2) {
            let mut rng = Sequence::new(12, index as u64 * 1_000_003 + at);
            let mut changes = String::new();
            let mut change = |meta: Meta| {
                let changed = changed(meta, &mut rng);
                if changed != meta {
                    changes += &format!("{}{} for {} ", changed.dtype, changed.shape, meta.shape);
                }
                changed
            };
            let run = || filetest::attempt_grad(text, &mut change);
            let failure = match catch_unwind(AssertUnwindSafe(run)) {
                Ok(Err(error)) if error.kind() == ErrorKind::Internal => error.to_string(),
                Ok(_) => continue,
                Err(_) => "it panics".to_string(),
            };
            failed.push(format!("{text}\n{changes}\n{failure}"));
        }
    }
    assert!(failed.is_empty(), "{} fail:\n\n{}", failed.len(), failed.join("\n\n"));
}

/// Returns the same type and shape in most cases. Otherwise changes, adds or removes a dimension,
/// or changes the type.
fn changed(meta: Meta, rng: &mut Sequence) -> Meta {
    let mut dims = meta.shape.to_vec();
    let dim = DIMS[rng.below(DIMS.len() as u64) as usize].parse().expect("a number");
    let at = rng.below(dims.len().max(1) as u64) as usize;
    match rng.below(8) {
        0 | 1 if at < dims.len() => dims[at] = dim,
        2 if at < dims.len() => drop(dims.remove(at)),
        3 if dims.len() < 6 => dims.insert(at, dim),
        4 => {
            let dtype = TYPES[rng.below(TYPES.len() as u64) as usize];
            return Meta { dtype: DType::parse(dtype).expect("a type"), ..meta };
        }
        _ => {}
    }
    Meta::dense(meta.dtype, Shape::of(&dims))
}

/// Returns the op and its inputs, with one to three modifications.
fn mutate(text: &str, rng: &mut Sequence) -> String {
    let kept = |line: &&str| ["op ", "in ", "same "].iter().any(|word| line.starts_with(word));
    let mut lines: Vec<String> = text.lines().filter(kept).map(str::to_string).collect();
    for _ in 0..1 + rng.below(3) {
        let at = rng.below(lines.len() as u64) as usize;
        let line = lines[at].clone();
        match (line.starts_with("op "), rng.below(8)) {
            (true, _) => lines[at] = change(&line, "=", &NUMBERS, rng),
            (false, 0) if lines.len() > 1 => drop(lines.remove(at)),
            (false, 1) => lines.push(line),
            (false, 2) => lines[at] = retyped(&line, rng),
            (false, 3..6) if !line.contains('@') => {
                let (head, _) = line.split_once(" = ").unwrap_or((&line, ""));
                lines[at] = change(head, "[", &DIMS, rng) + " = fill 1";
            }
            _ => lines[at] = change(&line, " = ", &NUMBERS, rng),
        }
    }
    lines.join("\n")
}

/// Replaces a number after the first `mark`.
fn change(line: &str, mark: &str, numbers: &[&str], rng: &mut Sequence) -> String {
    let Some(start) = line.find(mark).map(|at| at + mark.len()) else { return line.to_string() };
    let (head, tail) = line.split_at(start);
    let is_number = |word: &str| word.parse::<f64>().is_ok();
    let words: Vec<&str> = tail.split_inclusive([' ', ',', '=', '[', ']', ':']).collect();
    let bare = |word: &str| word.trim_end_matches([' ', ',', '=', '[', ']', ':']).to_string();
    let places: Vec<usize> = (0..words.len()).filter(|at| is_number(&bare(words[*at]))).collect();
    if places.is_empty() {
        return line.to_string();
    }
    let place = places[rng.below(places.len() as u64) as usize];
    let mut changed = head.to_string();
    for (at, word) in words.into_iter().enumerate() {
        if at == place {
            changed += numbers[rng.below(numbers.len() as u64) as usize];
            changed += &word[bare(word).len()..];
        } else {
            changed += word;
        }
    }
    changed
}

/// Changes the element type.
fn retyped(line: &str, rng: &mut Sequence) -> String {
    let Some((head, tail)) = line.split_once('[') else { return line.to_string() };
    let Some((head, _)) = head.rsplit_once(' ') else { return line.to_string() };
    format!("{head} {}[{tail}", TYPES[rng.below(TYPES.len() as u64) as usize])
}
