//! Saves of dense tables and global steps: like sparse ones, with one part per server,
//! `part-<server>`.
//!
//! Text: one line per element, the parameter and then its own state, `p m v`. If a rule has state
//! of the whole table, the last line is `shared a b`. Binary: the bytes in memory. A load reads the
//! elements of all servers and keeps its own, so the number of servers may change, and so may the
//! blocks. Parameters are found by name, so they may also be in other tables than before.

use super::index::FoundDense;
use super::load::Checked;
use super::manifest::{self, Part};
use super::{SaveFormat, Saved, Saver, part_name};
use crate::dense::DenseImage;
use crate::{DenseCut, DenseTable, GlobalStep, dense_range};
use fleet_base::{Error, Result};
use std::fmt::Write;
use std::ops::Range;

/// Describes the layout of a table, which must be equal for it to fit another; `len` counts the
/// numbers on all servers.
pub(crate) fn layout(table: &DenseTable, len: usize) -> String {
    layout_name(table.config().rule.name(), len)
}

pub(super) fn layout_name(rule: &str, len: usize) -> String {
    format!("dense len={len} rule={rule}")
}

pub(crate) const STEPS_LAYOUT: &str = "global step";

impl Saver<'_> {
    /// Writes this server's part of a dense table of `len` numbers.
    pub fn dense(&self, table: &DenseTable, len: usize, cut: &DenseCut) -> Result<Saved> {
        let image = table.image();
        let bytes = match self.options.format {
            SaveFormat::Binary => {
                let numbers = image.values.iter().chain(&image.state);
                numbers.flat_map(|number| number.to_le_bytes()).collect()
            }
            SaveFormat::Text => text(&image).into_bytes(),
        };
        let (server, servers) = (self.options.server as usize, self.options.server_count as usize);
        // The ranges of an even division are known.
        let numbers = (*cut != DenseCut::Even).then(|| cut.ranges(len, server, servers));
        let saved = self.file(table.config().table_id, layout(table, len), numbers, &bytes)?;
        Ok(Saved { row_count: image.values.len() as u64, ..saved })
    }

    /// Writes this server's count of steps.
    pub fn steps(&self, steps: &GlobalStep, table_id: u32) -> Result<Saved> {
        let text = format!("{}\n", steps.count());
        self.file(table_id, STEPS_LAYOUT.to_string(), None, text.as_bytes())
    }

    /// Writes a table that is one file.
    fn file(
        &self,
        table_id: u32,
        layout: String,
        numbers: Option<Vec<Range<usize>>>,
        bytes: &[u8],
    ) -> Result<Saved> {
        self.table(table_id, layout, |folder, manifest| {
            let name = part_name(self.options.server, None, manifest.round);
            let path = folder.join(&name);
            let (length, checksum) = (bytes.len() as u64, crc32fast::hash(bytes));
            manifest.numbers = numbers;
            manifest.parts.push(Part { name, bytes: length, checksum, plain_bytes: None });
            manifest::put(self.disk, &path, bytes)?;
            Ok(Saved { row_count: 0, bytes: length })
        })
    }
}

/// Loads the ranges `own` of a table from the tables of a save, which may have been divided
/// differently; returns how many numbers.
pub(crate) fn load_dense(
    table: &DenseTable,
    own: &[Range<usize>],
    found: &[(FoundDense, Checked)],
) -> Result<u64> {
    let own_len: usize = own.iter().map(ExactSizeIterator::len).sum();
    let mut image = DenseImage::empty(&table.config().rule, own_len);
    let mut count = 0;
    for (saved, checked) in found {
        let wanted = own_runs(own, saved);
        let place = format!("dense table {}", table.config().table_id);
        each_part(checked, saved.len, |format, ranges, len, bytes| {
            let part = parse(table, format, bytes)?;
            if part.values.len() == len {
                for (from, to, len) in common(ranges, &wanted) {
                    image.copy(to, &part, from, len);
                    count += len;
                }
            }
            Some(part.values.len())
        })
        .map_err(|error| error.at(place))?;
    }
    if count != own_len {
        return Err(wrong(own_len).got(format!("{count} of {own_len} numbers of this server")));
    }
    table.restore(image)?;
    Ok(count as u64)
}

/// Reads the values of a saved table of `len` numbers.
pub(super) fn values(checked: &Checked, len: usize) -> Result<Vec<f32>> {
    let mut parts: Vec<(Range<usize>, Vec<f32>)> = Vec::new();
    each_part(checked, len, |format, ranges, part_len, bytes| {
        let part = part_values(format, bytes, part_len)?;
        let (mut rest, count) = (&part[..], part.len());
        for range in ranges {
            let (own, others) = rest.split_at_checked(range.len())?;
            parts.push((range.clone(), own.to_vec()));
            rest = others;
        }
        Some(count)
    })?;
    parts.sort_by_key(|(range, _)| (range.start, range.end));
    let mut all = Vec::new();
    for (range, values) in parts {
        if range.start != all.len() {
            return Err(wrong(len).got(format!("no number {}", all.len())));
        }
        all.extend(values);
    }
    match all.len() == len {
        true => Ok(all),
        false => Err(wrong(len).got(all.len())),
    }
}

/// Visits the parts of a saved table of `len` numbers: their format, places, count of numbers and
/// bytes. `visit` returns how many numbers it found, or `None` if the bytes are malformed.
fn each_part(
    checked: &Checked,
    len: usize,
    mut visit: impl FnMut(SaveFormat, &[Range<usize>], usize, &[u8]) -> Option<usize>,
) -> Result<()> {
    for part in checked.each_part() {
        let (manifest, bytes) = part?;
        let (server, servers) = (manifest.server as usize, manifest.server_count as usize);
        let even = || vec![dense_range(len, server, servers)];
        let saved = manifest.numbers.clone().unwrap_or_else(even);
        let sum = saved.iter().try_fold(0usize, |sum, range| sum.checked_add(range.len()));
        let is_inside = saved.iter().all(|range| range.end <= len);
        let part_len = sum.filter(|_| is_inside).ok_or_else(|| wrong(len))?;
        let count = visit(manifest.format, &saved, part_len, &bytes).ok_or_else(|| wrong(len))?;
        if count != part_len {
            return Err(wrong(len).got(format!("{count} in a part of {part_len}")));
        }
    }
    Ok(())
}

fn wrong(len: usize) -> Error {
    Error::invalid("parts do not add up to the dense table")
        .expected(format!("{len} numbers and their state"))
}

/// Places of a saved table that go to this server, with their positions among its numbers.
fn own_runs(own: &[Range<usize>], saved: &FoundDense) -> Vec<(Range<usize>, usize)> {
    let mut runs = Vec::new();
    for run in &saved.runs {
        let mut own_at = 0;
        for range in own {
            let start = range.start.max(run.own);
            let end = range.end.min(run.own + run.saved.len());
            if start < end {
                let from = run.saved.start + start - run.own;
                runs.push((from..from + end - start, own_at + start - range.start));
            }
            own_at += range.len();
        }
    }
    runs
}

/// Returns the overlaps of a part's ranges with the wanted ones: their position in the part, their
/// position in the image, and their length.
fn common(part: &[Range<usize>], wanted: &[(Range<usize>, usize)]) -> Vec<(usize, usize, usize)> {
    let mut found = Vec::new();
    let mut part_at = 0;
    for a in part {
        for (b, to) in wanted {
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            if start < end {
                found.push((part_at + start - a.start, to + start - b.start, end - start));
            }
        }
        part_at += a.len();
    }
    found
}

impl DenseImage {
    /// Copies numbers with their state from a part. State that all numbers share is copied with the
    /// first one.
    fn copy(&mut self, to: usize, part: &DenseImage, from: usize, count: usize) {
        let (own_len, part_len) = (self.values.len(), part.values.len());
        self.values[to..to + count].copy_from_slice(&part.values[from..from + count]);
        for block in 0..self.blocks {
            let part = &part.state[block * part_len + from..][..count];
            self.state[block * own_len + to..][..count].copy_from_slice(part);
        }
        if to == 0 {
            let blocks = self.blocks;
            self.state[blocks * own_len..].copy_from_slice(&part.state[blocks * part_len..]);
        }
    }
}

/// Returns the total steps of all servers of a save.
pub(crate) fn load_steps(checked: &Checked) -> Result<u64> {
    let steps = checked.each_part().map(|part| {
        let (_, bytes) = part?;
        let text = String::from_utf8_lossy(&bytes);
        text.trim()
            .parse::<u64>()
            .map_err(|_| Error::invalid("malformed count of steps").expected("a number").got(text))
    });
    steps.sum()
}

fn text(image: &DenseImage) -> String {
    let len = image.values.len();
    let (elements, shared) = image.state.split_at(image.blocks * len);
    let mut text = String::new();
    for (at, value) in image.values.iter().enumerate() {
        // Writing to a string does not fail.
        let _ = write!(text, "{value}");
        for block in 0..image.blocks {
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

/// Returns the values of a part, without state; `None` if it is malformed.
fn part_values(format: SaveFormat, bytes: &[u8], len: usize) -> Option<Vec<f32>> {
    match format {
        SaveFormat::Binary => {
            let (values, _) = bytes.split_at_checked(len.checked_mul(4)?)?;
            let chunks = values.chunks_exact(4);
            Some(chunks.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
        }
        SaveFormat::Text => {
            let lines = std::str::from_utf8(bytes).ok()?.lines();
            let lines = lines.filter(|line| !line.starts_with("shared"));
            lines.map(|line| line.split(' ').next()?.parse().ok()).collect()
        }
    }
}

/// Parses a part of a table; `None` if it is malformed.
fn parse(table: &DenseTable, format: SaveFormat, bytes: &[u8]) -> Option<DenseImage> {
    let rule = &table.config().rule;
    let empty = DenseImage::empty(rule, 0);
    match format {
        SaveFormat::Binary => {
            let numbers: Vec<f32> = bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            let len = numbers.len().checked_sub(empty.state.len())? / (1 + empty.blocks);
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
                for block in 0..image.blocks {
                    image.state[block * len + at] = words.next()??;
                }
                words.next().is_none().then_some(())?;
            }
            let mut words = shared.first().unwrap_or(&"shared").split(' ').skip(1);
            for to in &mut image.state[empty.blocks * len..] {
                *to = words.next()?.parse().ok()?;
            }
            (words.next().is_none() && shared.len() < 2).then_some(image)
        }
    }
}
