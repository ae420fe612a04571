//! When the steps of a plan ran: totals for a profile, and the last run as a trace.
//!
//! A [`Trace`] says which op ran on which lane from when to when, so that it shows what communication
//! hides behind compute and what it does not. Written as JSON it opens in `chrome://tracing` and in
//! Perfetto; traces of several ranks join, because their times are those of the system's clock.

use crate::plan::{Plan, StepKind};
use serde_json::json;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Measured times of a plan's steps.
pub(crate) struct Times {
    epoch: Instant,
    /// The epoch on the system's clock, in microseconds.
    epoch_us: f64,
    steps: Vec<StepTimes>,
}

/// Nanoseconds since the epoch.
#[derive(Default)]
struct StepTimes {
    total: AtomicU64,
    begin: AtomicU64,
    end: AtomicU64,
}

impl Times {
    pub fn new(step_count: usize) -> Times {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Times {
            epoch: Instant::now(),
            epoch_us: since.as_secs_f64() * 1e6,
            steps: (0..step_count).map(|_| StepTimes::default()).collect(),
        }
    }

    pub fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    pub fn record(&self, step: usize, begin: u64) {
        let (times, end) = (&self.steps[step], self.now());
        times.total.fetch_add(end.saturating_sub(begin), Relaxed);
        times.begin.store(begin, Relaxed);
        times.end.store(end, Relaxed);
    }

    pub fn total_seconds(&self, step: usize) -> f64 {
        self.steps[step].total.load(Relaxed) as f64 * 1e-9
    }

    /// The last run: the steps that ran since `run_begin`.
    pub fn trace(&self, plan: &Plan, run_begin: u64) -> Trace {
        let mut spans = Vec::new();
        for (step, times) in plan.steps.iter().zip(&self.steps) {
            let (begin, end) = (times.begin.load(Relaxed), times.end.load(Relaxed));
            if begin < run_begin || end < begin || !matches!(step.kind, StepKind::Run(_)) {
                continue;
            }
            spans.push(Span {
                op: plan.program.op(step.op).name().to_string(),
                detail: plan.program.describe_op(step.op),
                lane: step.lane,
                begin_us: (begin - run_begin) as f64 * 1e-3,
                end_us: (end - run_begin) as f64 * 1e-3,
            });
        }
        spans.sort_by(|a, b| a.begin_us.total_cmp(&b.begin_us));
        Trace { start_us: self.epoch_us + run_begin as f64 * 1e-3, spans }
    }
}

/// One op of one run.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    pub op: String,
    /// The op as errors name it, with its variables and its source.
    pub detail: String,
    /// 0 computes; every other lane is a thread of its own.
    pub lane: usize,
    /// Microseconds since the run began.
    pub begin_us: f64,
    pub end_us: f64,
}

/// The ops of one run, by their beginning.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// When the run began, in microseconds since 1970.
    pub start_us: f64,
    pub spans: Vec<Span>,
}

impl Trace {
    /// From the beginning of the first op to the end of the last.
    pub fn duration_us(&self) -> f64 {
        let begin = self.spans.first().map_or(0.0, |span| span.begin_us);
        self.spans.iter().map(|span| span.end_us - begin).fold(0.0, f64::max)
    }

    /// Time in which some other lane worked while the compute lane did nothing: communication that
    /// compute did not hide.
    pub fn exposed_us(&self) -> f64 {
        let mut edges: Vec<(f64, usize, bool)> = Vec::new();
        for span in &self.spans {
            let side = usize::from(span.lane != 0);
            edges.push((span.begin_us, side, true));
            edges.push((span.end_us, side, false));
        }
        edges.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut busy, mut last, mut exposed) = ([0usize; 2], 0.0, 0.0);
        for (at, side, begins) in edges {
            if busy[0] == 0 && busy[1] > 0 {
                exposed += at - last;
            }
            busy[side] = if begins { busy[side] + 1 } else { busy[side].saturating_sub(1) };
            last = at;
        }
        exposed
    }

    /// Chrome's trace format; `rank` becomes the process.
    ///
    /// ```
    /// use fleet_exec::{Span, Trace};
    ///
    /// let span = Span {
    ///     op: "mul".into(), detail: "mul(x, w)".into(), lane: 0, begin_us: 10.0, end_us: 12.5,
    /// };
    /// let text = Trace { start_us: 0.0, spans: vec![span] }.to_chrome_json(3);
    /// assert!(text.contains("\"dur\":2.5") && text.contains("\"pid\":3"));
    /// ```
    pub fn to_chrome_json(&self, rank: usize) -> String {
        let name = json!({"name": "process_name", "ph": "M", "pid": rank,
            "args": {"name": format!("rank {rank}")}});
        let lanes = self.spans.iter().map(|span| span.lane).max().map_or(0, |last| last + 1);
        let lanes = (0..lanes).map(|lane| {
            let label = if lane == 0 { "compute".into() } else { format!("lane {lane}") };
            json!({"name": "thread_name", "ph": "M", "pid": rank, "tid": lane,
                "args": {"name": label}})
        });
        let spans = self.spans.iter().map(|span| {
            json!({"name": span.op, "cat": "op", "ph": "X", "pid": rank, "tid": span.lane,
                "ts": self.start_us + span.begin_us, "dur": span.end_us - span.begin_us,
                "args": {"op": span.detail}})
        });
        let events: Vec<_> = std::iter::once(name).chain(lanes).chain(spans).collect();
        json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exposed_time_is_that_of_other_lanes_while_compute_rests() {
        let span = |lane, begin_us, end_us| Span {
            op: String::new(),
            detail: String::new(),
            lane,
            begin_us,
            end_us,
        };
        let spans = vec![
            span(0, 0.0, 10.0),
            span(1, 8.0, 13.0), // 3 exposed
            span(2, 9.0, 14.0), // 1 more
            span(0, 14.0, 20.0),
            span(1, 16.0, 19.0), // hidden
        ];
        let trace = Trace { start_us: 1e15, spans };
        assert_eq!(trace.exposed_us(), 4.0);
        assert_eq!(trace.duration_us(), 20.0);
        assert_eq!(Trace::default().duration_us(), 0.0);
    }
}
