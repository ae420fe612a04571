//! Dense tables and global steps in files: as sparse ones, with one part a server, `part-<server>`.
//!
//! Text: a line an element, the parameter and then its own state, `p m v`; at last, where a rule has
//! state of the whole table, `shared a b`. Binary: the bytes of memory. A load takes the elements of all
//! servers and keeps its own: the number of servers may change.

use super::load::{Checked, check};
use super::manifest::{self, Part};
use super::{SaveFormat, SaveOptions, Saved, begin};
use crate::dense::DenseImage;
use crate::{DenseCut, DenseTable, GlobalStep};
use fleet_base::file::write_file;
use fleet_base::{Error, Result};
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

/// What must be equal for one table to fit another: `len` numbers on all servers.
fn layout(table: &DenseTable, len: usize, cut: &DenseCut) -> String {
    format!("dense len={len} rule={}{}", table.config().rule.name(), cut.layout())
}

const STEPS_LAYOUT: &str = "global step";

/// Writes one server's part of a dense table of `len` numbers.
pub(crate) fn write_dense(
    table: &DenseTable,
    len: usize,
    cut: &DenseCut,
    dir: &Path,
    options: &SaveOptions,
) -> Result<Saved> {
    let image = table.image();
    let elements = image.values.len();
    let bytes = match options.format {
        SaveFormat::Binary => {
            let numbers = image.values.iter().chain(&image.state);
            numbers.flat_map(|number| number.to_le_bytes()).collect()
        }
        SaveFormat::Text => text(&image).into_bytes(),
    };
    let table_id = table.config().table_id;
    write_one(table_id, layout(table, len, cut), &bytes, elements as u64, dir, options)
}

/// Writes one server's count of steps.
pub(crate) fn write_steps(
    steps: &GlobalStep,
    table_id: u32,
    dir: &Path,
    options: &SaveOptions,
) -> Result<Saved> {
    let text = format!("{}\n", steps.count());
    write_one(table_id, STEPS_LAYOUT.to_string(), text.as_bytes(), 0, dir, options)
}

fn write_one(
    table_id: u32,
    layout: String,
    bytes: &[u8],
    row_count: u64,
    dir: &Path,
    options: &SaveOptions,
) -> Result<Saved> {
    let folder = begin(dir, table_id, options)?;
    let round = manifest::next_round(&folder, options.server)?;
    let mut manifest = options.manifest(table_id, round, layout);
    let name = match round {
        0 => format!("part-{:03}", options.server),
        _ => format!("part-{:03}.{round}", options.server),
    };
    write_file(&folder.join(&name), bytes)?;
    let (length, checksum) = (bytes.len() as u64, crc32fast::hash(bytes));
    manifest.parts.push(Part { name, bytes: length, checksum });
    manifest::write(&folder, &manifest)?;
    Ok(Saved { row_count, bytes: length })
}

pub(crate) fn check_dense(
    table: &DenseTable,
    len: usize,
    cut: &DenseCut,
    dir: &Path,
    save_id: u64,
) -> Result<Checked> {
    check(dir, table.config().table_id, save_id, &layout(table, len, cut))
}

pub(crate) fn check_steps(table_id: u32, dir: &Path, save_id: u64) -> Result<Checked> {
    check(dir, table_id, save_id, STEPS_LAYOUT)
}

/// Loads elements `range` of a table of `len` numbers; returns how many.
pub(crate) fn load_dense(
    table: &DenseTable,
    len: usize,
    range: Range<usize>,
    checked: &Checked,
) -> Result<u64> {
    let wrong = || {
        Error::invalid("the parts of a dense table do not make it up")
            .expected(format!("{len} numbers and their state"))
            .at(format!("dense table {}", table.config().table_id))
    };
    let parts: Vec<DenseImage> = checked
        .each_part()
        .map(|part| {
            let (format, bytes) = part?;
            image(table, format, &bytes).ok_or_else(wrong)
        })
        .collect::<Result<_>>()?;
    let mut own = DenseImage::empty(&table.config().rule, range.len());
    let shape = own.shape;
    let (mut at, mut found) = (0, 0);
    for part in &parts {
        let part_len = part.values.len();
        for element in 0..part_len {
            let global = at + element;
            if range.contains(&global) {
                let to = global - range.start;
                own.values[to] = part.values[element];
                for block in 0..shape.blocks {
                    own.state[block * range.len() + to] = part.state[block * part_len + element];
                }
                if to == 0 {
                    let (own_at, part_at) = (shape.blocks * range.len(), shape.blocks * part_len);
                    own.state[own_at..].copy_from_slice(&part.state[part_at..]);
                }
                found += 1;
            }
        }
        at += part_len;
    }
    if at != len {
        return Err(wrong().got(at));
    }
    table.restore(own)?;
    Ok(found)
}

/// The steps of all servers of a save.
pub(crate) fn load_steps(checked: &Checked) -> Result<u64> {
    let steps = checked.each_part().map(|part| {
        let (_, bytes) = part?;
        let text = String::from_utf8_lossy(&bytes);
        text.trim().parse::<u64>().map_err(|_| {
            Error::invalid("a count of steps is malformed").expected("a number").got(text)
        })
    });
    steps.sum()
}

fn text(image: &DenseImage) -> String {
    let len = image.values.len();
    let (elements, shared) = image.state.split_at(image.shape.blocks * len);
    let mut text = String::new();
    for (at, value) in image.values.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{value}");
        for block in 0..image.shape.blocks {
            let _ = write!(text, " {}", elements[block * len + at]);
        }
        text.push('\n');
    }
    if !shared.is_empty() {
        text.push_str("shared");
        for value in shared {
            let _ = write!(text, " {value}");
        }
        text.push('\n');
    }
    text
}

/// A part as its table would have it; `None` if it is malformed.
fn image(table: &DenseTable, format: SaveFormat, bytes: &[u8]) -> Option<DenseImage> {
    let rule = &table.config().rule;
    let shape = DenseImage::empty(rule, 0).shape;
    match format {
        SaveFormat::Binary => {
            let numbers: Vec<f32> = bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            let len = numbers.len().checked_sub(shape.shared)? / (1 + shape.blocks);
            let mut image = DenseImage::empty(rule, len);
            (bytes.len() == (len + image.state.len()) * 4).then_some(())?;
            image.values.copy_from_slice(&numbers[..len]);
            image.state.copy_from_slice(&numbers[len..]);
            Some(image)
        }
        SaveFormat::Text => {
            let text = std::str::from_utf8(bytes).ok()?;
            let (shared, lines): (Vec<&str>, Vec<&str>) =
                text.lines().partition(|line| line.starts_with("shared"));
            let len = lines.len();
            let mut image = DenseImage::empty(rule, len);
            for (at, line) in lines.iter().enumerate() {
                let mut words = line.split(' ').map(|word| word.parse::<f32>().ok());
                image.values[at] = words.next()??;
                for block in 0..shape.blocks {
                    image.state[block * len + at] = words.next()??;
                }
                words.next().is_none().then_some(())?;
            }
            let mut words = shared.first().unwrap_or(&"shared").split(' ').skip(1);
            for to in &mut image.state[shape.blocks * len..] {
                *to = words.next()?.parse().ok()?;
            }
            (words.next().is_none() && shared.len() < 2).then_some(image)
        }
    }
}
