//! Pulls and pushes: splits ids and numbers by server, and merges equal ids.

use super::{Client, KINDS, Scratch, Transport, number};
use crate::merge::UniquePush;
use crate::message::{Body, copy_f32s};
use crate::request::{Change, Read};
use crate::{
    DenseCut, Ids, JobTables, PullMode, Push, SparseConfig, Step, TableAccess, TableConfig,
};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::borrow::Cow;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

/// Limit on the sets of scratch memory kept for reuse.
const SCRATCH_MAX: usize = 64;

impl<T: Transport> TableAccess for Client<T> {
    fn worker(&self) -> usize {
        self.worker
    }

    fn job(&self) -> &JobTables {
        &self.job
    }

    fn pull_sparse(
        &self,
        table: u32,
        ids: Ids<'_>,
        rows: &mut [f32],
        mode: PullMode,
    ) -> Result<()> {
        self.placed(|| {
            let width = self.rows_config(table, &["sparse", "geo"])?.pull_width();
            check_len(table, "the rows", ids.as_slice().len() * width, rows.len())?;
            self.with_scratch(|Scratch { merger, split }| {
                let (unique, to_row) = merger.unique_ids(ids);
                split.set(unique, self.job.server_count);
                let requests: Vec<_> = (split.parts())
                    .map(|(server, ids)| {
                        let ids = Cow::Borrowed(ids.as_slice());
                        (server, Read::PullSparse { table, mode, ids }.into())
                    })
                    .collect();
                let answers = self.ask(None, &requests)?;
                for ((_, ids), answer) in split.parts().zip(&answers) {
                    check_answer(answer, ids.len() * width * 4)?;
                }
                split.spread(to_row, &answers, width, rows);
                self.transport.recycle(answers);
                Ok(())
            })
        })
    }

    fn push_sparse(&self, table: u32, step: Option<Step>, push: Push<'_>) -> Result<()> {
        self.placed(|| {
            let config = self.rows_config(table, &["sparse"])?;
            let (width, count) = (config.push_width(), push.ids.as_slice().len());
            check_len(table, "the gradients", count * width, push.grads.len())?;
            check_len(table, "the shows", count, push.shows.map_or(count, <[f32]>::len))?;
            check_len(table, "the clicks", count, push.clicks.map_or(count, <[f32]>::len))?;
            check_len(table, "the slots", count, push.slots.map_or(count, <[u32]>::len))?;
            self.send_rows((table, step), push, config)
        })
    }

    fn pull_dense(&self, table: u32, values: &mut [f32]) -> Result<()> {
        self.placed(|| {
            let cut = self.dense_cut(table, values.len())?;
            let parts: Vec<_> = self.dense_parts(cut).collect();
            let pull = || Read::PullDense { table }.into();
            let requests: Vec<_> = parts.iter().map(|(server, _)| (*server, pull())).collect();
            let answers = self.ask(None, &requests)?;
            for ((_, ranges), answer) in parts.into_iter().zip(&answers) {
                let count: usize = ranges.iter().map(ExactSizeIterator::len).sum();
                check_answer(answer, count * 4)?;
                let mut rest = answer.as_slice();
                for range in ranges {
                    let (own, others) = rest.split_at(range.len() * 4);
                    copy_f32s(own, &mut values[range]);
                    rest = others;
                }
            }
            self.transport.recycle(answers);
            Ok(())
        })
    }

    fn push_dense(&self, table: u32, step: Option<Step>, grad: &[f32]) -> Result<()> {
        let steps = self.steps.load(Relaxed);
        let push = |grad| Change::PushDense { table, steps, grad };
        self.placed(|| self.send_dense((table, step), grad, push))
    }

    fn set_dense(&self, table: u32, values: &[f32]) -> Result<()> {
        let set = |values| Change::SetDense { table, values };
        self.placed(|| self.send_dense((table, None), values, set))
    }

    fn set_rate_scale(&self, table: u32, scale: f32) -> Result<()> {
        self.placed(|| {
            self.job.table(table, &["dense", "sparse"])?;
            self.ask_all(Change::SetRateScale { table, scale }).map(drop)
        })
    }

    fn push_geo(
        &self,
        table: u32,
        step: Option<Step>,
        ids: Ids<'_>,
        differences: &[f32],
    ) -> Result<()> {
        self.placed(|| {
            let config = self.rows_config(table, &["geo"])?;
            let count = ids.as_slice().len() * config.push_width();
            check_len(table, "the differences", count, differences.len())?;
            self.send_rows((table, step), Push::new(ids, differences), config)
        })
    }

    fn pull_geo(&self, table: u32) -> Result<(Vec<u64>, Vec<f32>)> {
        self.placed(|| {
            let width = self.rows_config(table, &["geo"])?.pull_width() as u64;
            let (mut ids, mut rows) = (Vec::new(), Vec::new());
            for answer in self.ask_all(Change::PullGeo { table })? {
                let mut body = Body(&answer);
                let count = body.u64()?;
                ids.extend(body.numbers::<u64>(count)?.iter());
                rows.extend(body.numbers::<f32>(count.saturating_mul(width))?.iter());
                body.end()?;
            }
            Ok((ids, rows))
        })
    }

    fn push_steps(&self, table: u32, step: Option<Step>, count: u32) -> Result<u64> {
        self.placed(|| {
            self.job.table(table, &["global step"])?;
            // One server counts all steps.
            let server = table as usize % self.job.server_count;
            // A server that has these steps already is only asked for the total.
            let (step, steps) =
                if self.was_sent(server, table, step) { (None, 0) } else { (step, count) };
            let answers = self.ask(step, &[(server, Change::PushSteps { table, steps }.into())])?;
            number(&answers[0])
        })
    }
}

impl<T: Transport> Client<T> {
    /// Returns the config of a table's rows; the table must be one of `kinds`.
    fn rows_config(&self, table: u32, kinds: &[&str]) -> Result<&SparseConfig> {
        match self.job.table(table, kinds)? {
            TableConfig::Sparse(config) | TableConfig::Geo(config) => Ok(config),
            TableConfig::Dense { .. } | TableConfig::GlobalStep { .. } => {
                Err(Error::invalid(format!("table {table} has no rows")))
            }
        }
    }

    /// Returns the length of a dense table, which must be `numbers`, and its division among the
    /// servers.
    fn dense_cut(&self, table: u32, numbers: usize) -> Result<(usize, &DenseCut)> {
        let config = self.job.table(table, &["dense"])?;
        let TableConfig::Dense { options, .. } = config else {
            return Err(Error::invalid(format!("table {table} is not dense")));
        };
        let len = config.dense_len();
        check_len(table, "the numbers of a dense table", len, numbers)?;
        Ok((len, &options.cut))
    }

    /// Sends each server its part of the gradients of rows, or of the differences of a geo table.
    fn send_rows(
        &self,
        (table, step): (u32, Option<Step>),
        push: Push<'_>,
        config: &SparseConfig,
    ) -> Result<()> {
        let is_geo = matches!(self.job.table(table, &KINDS)?, TableConfig::Geo(_));
        let width = config.push_width();
        self.with_scratch(|Scratch { merger, split }| {
            let UniquePush { ids, grads, extras } = merger.unique_push(push, config)?;
            split.set(ids, self.job.server_count);
            let parts: Vec<_> = split.parts().collect();
            let requests: Vec<_> = (parts.iter().enumerate())
                .filter(|(_, (server, _))| is_geo || !self.was_sent(*server, table, step))
                .map(|(part, (server, ids))| {
                    let ids = Cow::Borrowed(ids.as_slice());
                    let grads = split.part_of(part, &grads, width);
                    let push = match is_geo {
                        true => Change::PushGeo { table, ids, differences: grads },
                        false => Change::PushSparse {
                            table,
                            ids,
                            grads,
                            shows: extras.shows.as_deref().map(|it| split.part_of(part, it, 1)),
                            clicks: extras.clicks.as_deref().map(|it| split.part_of(part, it, 1)),
                            slots: extras.slots.as_deref().map(|it| split.part_of(part, it, 1)),
                        },
                    };
                    (*server, push.into())
                })
                .collect();
            self.ask(step, &requests).map(drop)
        })
    }

    /// Sends each server a request with its part of the numbers of a dense table.
    fn send_dense<'a>(
        &self,
        (table, step): (u32, Option<Step>),
        numbers: &'a [f32],
        request: impl Fn(Cow<'a, [f32]>) -> Change<'a>,
    ) -> Result<()> {
        let cut = self.dense_cut(table, numbers.len())?;
        let part = |ranges: Vec<Range<usize>>| match ranges.as_slice() {
            [range] => Cow::Borrowed(&numbers[range.clone()]),
            many => many.iter().flat_map(|range| &numbers[range.clone()]).copied().collect(),
        };
        let requests: Vec<_> = self
            .dense_parts(cut)
            .filter(|(server, _)| !self.was_sent(*server, table, step))
            .map(|(server, ranges)| (server, request(part(ranges)).into()))
            .collect();
        self.ask(step, &requests).map(drop)
    }

    /// Returns the servers that have a part of a dense table, with their ranges.
    fn dense_parts(
        &self,
        (len, cut): (usize, &DenseCut),
    ) -> impl Iterator<Item = (usize, Vec<Range<usize>>)> {
        let count = self.job.server_count;
        (0..count)
            .map(move |server| (server, cut.ranges(len, server, count)))
            .filter(|(_, ranges)| !ranges.is_empty())
    }

    fn with_scratch<R>(&self, run: impl FnOnce(&mut Scratch) -> R) -> R {
        let kept = lock(&self.scratch).pop();
        let mut scratch = kept.unwrap_or_default();
        let result = run(&mut scratch);
        let mut all = lock(&self.scratch);
        if all.len() < SCRATCH_MAX {
            all.push(scratch);
        }
        result
    }
}

fn check_answer(answer: &[u8], bytes: usize) -> Result<()> {
    match answer.len() == bytes {
        true => Ok(()),
        false => Err(Error::internal("a server's answer has the wrong length")
            .expected(format!("{bytes} bytes"))
            .got(answer.len())),
    }
}

fn check_len(table: u32, what: &str, expected: usize, got: usize) -> Result<()> {
    match got == expected {
        true => Ok(()),
        false => Err(Error::invalid(format!("{what} have the wrong length"))
            .expected(expected)
            .got(got)
            .at(format!("table {table}"))),
    }
}
