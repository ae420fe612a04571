//! Saves of dense tables and global steps: like sparse ones, with one part per server,
//! `part-<server>`.
//!
//! Text: one line per element, the parameter and then its own state, `p m v`. If a rule has state
//! of the whole table, the last line is `shared a b`. Binary: the bytes in memory. A load reads the
//! elements of all servers and keeps its own, so the number of servers may change, and so may the
//! blocks.

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
    format!("dense len={len} rule={}", table.config().rule.name())
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

/// Loads the ranges `own` of a table of `len` numbers, which may have been divided differently when
/// it was saved; returns how many numbers.
pub(crate) fn load_dense(
    table: &DenseTable,
    len: usize,
    own: &[Range<usize>],
    checked: &Checked,
) -> Result<u64> {
    let wrong = || {
        Error::invalid("parts do not add up to the dense table")
            .expected(format!("{len} numbers and their state"))
            .at(format!("dense table {}", table.config().table_id))
    };
    let own_len: usize = own.iter().map(ExactSizeIterator::len).sum();
    let mut image = DenseImage::empty(&table.config().rule, own_len);
    let mut found = 0;
    for part in checked.each_part() {
        let (manifest, bytes) = part?;
        let part = parse(table, manifest.format, &bytes).ok_or_else(wrong)?;
        let (server, servers) = (manifest.server as usize, manifest.server_count as usize);
        let even = || vec![dense_range(len, server, servers)];
        let saved = manifest.numbers.clone().unwrap_or_else(even);
        let saved_len: usize = saved.iter().map(ExactSizeIterator::len).sum();
        if saved_len != part.values.len() || saved.iter().any(|range| range.end > len) {
            return Err(wrong().got(format!("{} in a part of {saved_len}", part.values.len())));
        }
        for (from, to, count) in common(&saved, own) {
            image.copy(to, &part, from, count);
            found += count;
        }
    }
    if found != own_len {
        return Err(wrong().got(format!("{found} of {own_len} numbers of this server")));
    }
    table.restore(image)?;
    Ok(found as u64)
}

/// Returns the overlaps of two lists of ranges: their position in the ranges of one, and of the
/// other, laid end to end, and their length.
fn common(one: &[Range<usize>], other: &[Range<usize>]) -> Vec<(usize, usize, usize)> {
    let mut found = Vec::new();
    let mut one_at = 0;
    for a in one {
        let mut other_at = 0;
        for b in other {
            let (start, end) = (a.start.max(b.start), a.end.min(b.end));
            if start < end {
                found.push((one_at + start - a.start, other_at + start - b.start, end - start));
            }
            other_at += b.len();
        }
        one_at += a.len();
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
