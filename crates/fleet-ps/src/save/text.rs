//! Rows as lines of text.
//!
//! Plain tables: `id <tab> count <tab> unseen days <tab> has a row <tab> v1,v2,...`, weights then
//! state. A pending id has a count and no values. Click tables:
//! `id slot unseen delta show click weight state... [embedding... state...]`, separated by spaces;
//! an embedding that was not made is left out.

use crate::sparse::layout::{CLICK, DELTA, EMBED, SHOW, SLOT, has_embedx, slot_number, slot_word};
use crate::{Accessor, Record, SparseTable};
use fleet_base::Result;
use std::io::{self, Write};

pub(super) fn write(
    out: &mut impl Write,
    table: &SparseTable,
    record: Record<'_>,
) -> io::Result<()> {
    match (record, &table.config().accessor) {
        (Record::Pending { id, count }, _) => writeln!(out, "{id}\t{count}\t0\t0\t"),
        (Record::Row { id, unseen_days, values, .. }, Accessor::Plain) => {
            write!(out, "{id}\t0\t{unseen_days}\t1\t")?;
            for (at, value) in values.iter().enumerate() {
                write!(out, "{}{value}", if at == 0 { "" } else { "," })?;
            }
            writeln!(out)
        }
        (Record::Row { id, unseen_days, values, .. }, Accessor::Ctr(_)) => {
            let slot = slot_number(values[SLOT]);
            let (delta, show, click) = (values[DELTA], values[SHOW], values[CLICK]);
            write!(out, "{id} {slot} {unseen_days} {delta} {show} {click}")?;
            let end = if has_embedx(values[SLOT]) { values.len() } else { table.embedx_at() };
            values[EMBED..end].iter().try_for_each(|value| write!(out, " {value}"))?;
            writeln!(out)
        }
    }
}

/// Visits the records of a part. The outer error is the number of a malformed line.
pub(super) fn read(
    text: &str,
    table: &SparseTable,
    visit: &mut dyn FnMut(Record<'_>) -> Result<()>,
) -> std::result::Result<Result<()>, usize> {
    let mut values = vec![0.0f32; table.row_len()];
    for (number, line) in text.lines().enumerate() {
        let record = match &table.config().accessor {
            _ if line.contains('\t') => plain(line, &mut values),
            Accessor::Plain => None,
            Accessor::Ctr(_) => click(line, table, &mut values),
        };
        if let Err(error) = visit(record.ok_or(number + 1)?) {
            return Ok(Err(error));
        }
    }
    Ok(Ok(()))
}

fn plain<'v>(line: &str, values: &'v mut [f32]) -> Option<Record<'v>> {
    let mut fields = line.split('\t');
    let id = fields.next()?.parse().ok()?;
    let count = fields.next()?.parse().ok()?;
    let unseen_days = fields.next()?.parse().ok()?;
    let has_row = fields.next()?;
    let numbers = fields.next()?;
    if has_row == "0" {
        return Some(Record::Pending { id, count });
    }
    fill(values, numbers.split(','))?;
    Some(Record::Row { id, unseen_days, changed: false, values })
}

fn click<'v>(line: &str, table: &SparseTable, values: &'v mut [f32]) -> Option<Record<'v>> {
    let mut fields = line.split(' ');
    let id = fields.next()?.parse().ok()?;
    let slot: u32 = fields.next()?.parse().ok()?;
    let unseen_days = fields.next()?.parse().ok()?;
    for at in [DELTA, SHOW, CLICK] {
        values[at] = fields.next()?.parse().ok()?;
    }
    let (embed, embedx) = (EMBED, table.embedx_at());
    let rest: Vec<&str> = fields.collect();
    let made = rest.len() > embedx - embed;
    values[SLOT] = slot_word(slot, made);
    let end = if made { values.len() } else { embedx };
    values[embedx..].fill(0.0);
    fill(&mut values[embed..end], rest.into_iter())?;
    Some(Record::Row { id, unseen_days, changed: false, values })
}

/// Parses exactly as many numbers as there is room for.
fn fill<'t>(values: &mut [f32], mut words: impl Iterator<Item = &'t str>) -> Option<()> {
    for value in values {
        *value = words.next()?.parse().ok()?;
    }
    words.next().is_none().then_some(())
}
