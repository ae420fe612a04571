//! Times of a plan's steps: totals for a profile, and the last run as a trace.
//!
//! A [`Trace`] records when and on which lane each op ran. It shows how much communication overlaps
//! with compute and how much is exposed. As JSON it opens in `chrome://tracing` and Perfetto.
//! Traces of several ranks can be joined, because their times are on the system clock.
//! [`Trace::from_chrome_json`] reads the JSON back.

use crate::plan::{Plan, StepKind};
use fleet_base::{Error, Result};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Measured times of a plan's steps.
pub(crate) struct Times {
    epoch: Instant,
    /// The epoch on the system clock, in microseconds.
    epoch_us: f64,
    steps: Vec<StepTimes>,
}

/// Times of a step, in nanoseconds: `begin` and `end` since the epoch, `total` over all runs.
#[derive(Default)]
struct StepTimes {
    total: AtomicU64,
    begin: AtomicU64,
    end: AtomicU64,
    /// Communication time in the last run.
    communication: AtomicU64,
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

    /// Resets and returns the counter to which a starting step adds its communication time.
    pub fn communication_ns(&self, step: usize) -> &AtomicU64 {
        let communication = &self.steps[step].communication;
        communication.store(0, Relaxed);
        communication
    }

    /// Records a finished step. If it `only_communicates`, its whole duration counts as
    /// communication. Compute within such a step has already been subtracted from the counter.
    pub fn record(&self, step: usize, begin: u64, only_communicates: bool) {
        let (times, end) = (&self.steps[step], self.now());
        let took = end.saturating_sub(begin);
        times.total.fetch_add(took, Relaxed);
        if only_communicates {
            times.communication.fetch_add(took, Relaxed);
        }
        times.begin.store(begin, Relaxed);
        times.end.store(end, Relaxed);
    }

    pub fn total_seconds(&self, step: usize) -> f64 {
        self.steps[step].total.load(Relaxed) as f64 * 1e-9
    }

    /// Returns the trace of the last run: the steps that began at `run_begin` or later.
    pub fn trace(&self, plan: &Plan, run_begin: u64) -> Trace {
        let mut spans = Vec::new();
        for (step, times) in plan.steps.iter().zip(&self.steps) {
            let (begin, end) = (times.begin.load(Relaxed), times.end.load(Relaxed));
            if begin < run_begin || end < begin || !matches!(step.kind, StepKind::Run(_)) {
                continue;
            }
            let op = plan.program.op(step.op);
            spans.push(Span {
                op: op.name().to_string(),
                detail: plan.program.describe_op(step.op),
                lane: step.lane,
                talked_us: times.communication.load(Relaxed).min(end - begin) as f64 * 1e-3,
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
    /// Name of the op.
    pub op: String,
    /// Description of the op as in errors, with its variables and source location.
    pub detail: String,
    /// 0 for the compute lane; every other lane is a thread of its own.
    pub lane: usize,
    /// Communication time within the span. The rest is compute, such as updates of parameters whose
    /// summed gradients arrive.
    pub talked_us: f64,
    /// Start in microseconds since the run began.
    pub begin_us: f64,
    /// End, as `begin_us`.
    pub end_us: f64,
}

impl Span {
    /// Returns the fraction of the span that is not compute: communication, or all of a span on
    /// another lane that does not communicate.
    fn non_compute_fraction(&self) -> f64 {
        match (self.talked_us > 0.0, self.lane) {
            (true, _) => (self.talked_us / (self.end_us - self.begin_us).max(1e-9)).min(1.0),
            (false, 0) => 0.0,
            (false, _) => 1.0,
        }
    }
}

/// The ops of one run, sorted by their start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trace {
    /// Start of the run, in microseconds since 1970.
    pub start_us: f64,
    /// The ops, in the order of their start.
    pub spans: Vec<Span>,
}

impl Trace {
    /// Returns the time from the start of the first op to the end of the last.
    pub fn duration_us(&self) -> f64 {
        let begin = self.spans.first().map_or(0.0, |span| span.begin_us);
        self.spans.iter().map(|span| span.end_us - begin).fold(0.0, f64::max)
    }

    /// Returns the exposed time: communication or another lane was active while nothing was
    /// computed.
    pub fn exposed_us(&self) -> f64 {
        self.shares().exposed_us
    }

    /// Splits the duration into compute, other work and exposed time.
    ///
    /// ```
    /// use fleet_exec::{Span, Trace};
    /// let span = |op: &str, lane, begin_us, end_us| {
    ///     let talked_us = if lane > 0 { end_us - begin_us } else { 0.0 };
    ///     Span { op: op.into(), detail: op.into(), lane, talked_us, begin_us, end_us }
    /// };
    /// let spans = vec![span("mul_grad", 0, 0.0, 8.0), span("c_allreduce_sum", 1, 4.0, 10.0)];
    /// let shares = Trace { start_us: 0.0, spans }.shares();
    /// assert_eq!((shares.total_us, shares.compute_us), (10.0, 8.0));
    /// assert_eq!((shares.other_us, shares.exposed_us), (6.0, 2.0));
    /// let text = shares.to_string();
    /// assert!(text.ends_with("compute 80.0 %, communication 60.0 %, exposed 20.0 %"));
    /// ```
    pub fn shares(&self) -> Shares {
        let mut edges: Vec<(f64, bool, usize)> = Vec::new();
        for (index, span) in self.spans.iter().enumerate() {
            edges.push((span.begin_us, true, index));
            edges.push((span.end_us, false, index));
        }
        edges.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut shares = Shares { total_us: self.duration_us(), ..Shares::default() };
        let (mut active, mut last) = (ActiveOps::new(self.spans.len()), 0.0);
        for (at, begins, index) in edges {
            let [none_computes, all_compute] = active.products();
            shares.compute_us += (at - last) * (1.0 - none_computes);
            shares.other_us += (at - last) * (1.0 - all_compute);
            if active.count > 0 {
                shares.exposed_us += (at - last) * none_computes;
            }
            match begins {
                true => active.begin(index, self.spans[index].non_compute_fraction()),
                false => active.end(index),
            }
            last = at;
        }
        shares
    }

    /// Returns the trace in Chrome's trace format, with `rank` as the process.
    ///
    /// ```
    /// use fleet_exec::{Span, Trace};
    ///
    /// let (op, detail) = ("mul".to_string(), "mul(x, w)".to_string());
    /// let span = Span { op, detail, lane: 0, talked_us: 0.0, begin_us: 10.0, end_us: 12.5 };
    /// let text = Trace { start_us: 0.0, spans: vec![span] }.to_chrome_json(3);
    /// assert!(text.contains("\"dur\":2.5") && text.contains("\"pid\":3"));
    /// ```
    pub fn to_chrome_json(&self, rank: usize) -> String {
        chrome(self.events(rank))
    }

    /// Returns the traces of several ranks as one file.
    pub fn join(traces: &[(usize, Trace)]) -> String {
        chrome(traces.iter().flat_map(|(rank, trace)| trace.events(*rank)).collect())
    }

    fn events(&self, rank: usize) -> Vec<Value> {
        let name = json!({"name": "process_name", "ph": "M", "pid": rank,
            "args": {"name": format!("rank {rank}")}});
        let lanes: BTreeSet<usize> = self.spans.iter().map(|span| span.lane).collect();
        let lanes = lanes.into_iter().map(|lane| {
            let label = if lane == 0 { "compute".into() } else { format!("lane {lane}") };
            json!({"name": "thread_name", "ph": "M", "pid": rank, "tid": lane,
                "args": {"name": label}})
        });
        let spans = self.spans.iter().map(|span| {
            let cat = if span.talked_us > 0.0 { COMMUNICATION } else { "op" };
            json!({"name": span.op, "cat": cat, "ph": "X", "pid": rank, "tid": span.lane,
                "ts": self.start_us + span.begin_us, "dur": span.end_us - span.begin_us,
                "args": {"op": span.detail, "talked_us": span.talked_us}})
        });
        std::iter::once(name).chain(lanes).chain(spans).collect()
    }

    /// Reads the traces in Chrome's format by rank, as written by [`Trace::to_chrome_json`] or
    /// [`Trace::join`].
    ///
    /// ```
    /// use fleet_exec::{Span, Trace};
    /// let (op, detail) = ("mul".to_string(), "mul(x, w)".to_string());
    /// let span = Span { op, detail, lane: 1, talked_us: 2.0, begin_us: 0.0, end_us: 2.5 };
    /// let trace = Trace { start_us: 7.0, spans: vec![span] };
    /// let read = Trace::from_chrome_json(&trace.to_chrome_json(3))?;
    /// assert_eq!(read, [(3, trace)]);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn from_chrome_json(text: &str) -> Result<Vec<(usize, Trace)>> {
        let wrong = |what: String| {
            let error = Error::invalid("not a trace of a run").got(what);
            error.expected(
                "Chrome's trace format, as written by fleet run --trace and \
                 fleetrun demo:NAME --trace",
            )
        };
        let root: Value = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
        let events = root["traceEvents"].as_array();
        let events = events.ok_or_else(|| wrong("no list 'traceEvents'".into()))?;
        let mut by_rank: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        for (index, event) in events.iter().enumerate().filter(|(_, event)| event["ph"] == "X") {
            let (rank, span) = read_span(event).map_err(|field| {
                let got: String = event[field].to_string().chars().take(VALUE_CHARS_MAX).collect();
                Error::invalid(format!("not a trace of a run: traceEvents[{index}].{field}"))
                    .expected(expected(field))
                    .got(got)
            })?;
            by_rank.entry(rank).or_default().push(span);
        }
        Ok(by_rank.into_iter().map(|(rank, spans)| (rank, Trace::of(spans))).collect())
    }

    /// Builds a trace from spans whose times are on the system clock.
    fn of(mut spans: Vec<Span>) -> Trace {
        let start_us = spans.iter().map(|span| span.begin_us).fold(f64::INFINITY, f64::min);
        for span in &mut spans {
            span.begin_us -= start_us;
            span.end_us -= start_us;
        }
        spans.sort_by(|a, b| a.begin_us.total_cmp(&b.begin_us));
        Trace { start_us, spans }
    }
}

fn chrome(events: Vec<Value>) -> String {
    json!({"traceEvents": events, "displayTimeUnit": "ms"}).to_string()
}

/// The category of ops that communicate.
const COMMUNICATION: &str = "communication";

/// Limit on the times in a trace file: about 30,000 years after 1970. Larger times are damage, and
/// their differences would not be finite.
const TIME_US_MAX: f64 = 1e18;

/// Limit on the length of a value quoted in an error.
const VALUE_CHARS_MAX: usize = 100;

/// Parses an event into its rank and span. The error is the name of the invalid field.
fn read_span(event: &Value) -> std::result::Result<(usize, Span), &'static str> {
    let time_us = |name: &str| event[name].as_f64().filter(|us| us.abs() <= TIME_US_MAX);
    let number = |name: &str| event[name].as_u64().and_then(|it| usize::try_from(it).ok());
    let begin_us = time_us("ts").ok_or("ts")?;
    let took_us = time_us("dur").filter(|us| *us >= 0.0).ok_or("dur")?;
    let talked_us = match event["cat"] == COMMUNICATION {
        true => event["args"]["talked_us"].as_f64().unwrap_or(took_us).clamp(0.0, took_us),
        false => 0.0,
    };
    let span = Span {
        op: event["name"].as_str().ok_or("name")?.to_string(),
        detail: event["args"]["op"].as_str().unwrap_or_default().to_string(),
        lane: number("tid").ok_or("tid")?,
        talked_us,
        begin_us,
        end_us: begin_us + took_us,
    };
    Ok((number("pid").ok_or("pid")?, span))
}

fn expected(field: &str) -> &'static str {
    match field {
        "ts" => "microseconds, at most 1e18",
        "dur" => "microseconds, 0 to 1e18",
        "name" => "the name of an op",
        _ => "a whole number, 0 or more",
    }
}

/// The ops that run at one moment. A leaf of the tree holds an op's non-compute and compute
/// fractions, and an inner node holds the products of its children. Adding or removing an op takes
/// O(log n) and avoids the rounding error of repeated divisions.
struct ActiveOps {
    /// The root is at index 1, and the leaves are the second half.
    tree: Vec<[f64; 2]>,
    count: usize,
}

impl ActiveOps {
    fn new(span_count: usize) -> ActiveOps {
        ActiveOps { tree: vec![[1.0; 2]; 2 * span_count.next_power_of_two()], count: 0 }
    }

    fn begin(&mut self, index: usize, beside: f64) {
        self.count += 1;
        self.set(index, [beside, 1.0 - beside]);
    }

    fn end(&mut self, index: usize) {
        self.count -= 1;
        self.set(index, [1.0; 2]);
    }

    fn set(&mut self, index: usize, value: [f64; 2]) {
        let mut node = self.tree.len() / 2 + index;
        self.tree[node] = value;
        while node > 1 {
            node /= 2;
            let [left, right] = [self.tree[2 * node], self.tree[2 * node + 1]];
            self.tree[node] = [left[0] * right[0], left[1] * right[1]];
        }
    }

    /// Returns the fraction of time in which no op computes, and the fraction in which all do. The
    /// communication of a span is assumed to be spread evenly over it.
    fn products(&self) -> [f64; 2] {
        self.tree[1]
    }
}

/// The split of the time of one or more runs: see [`Trace::shares`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shares {
    /// Duration of the runs.
    pub total_us: f64,
    /// Time in which an op computed.
    pub compute_us: f64,
    /// Time in which ranks communicated or another lane worked.
    pub other_us: f64,
    /// The part of `other_us` in which nothing was computed.
    pub exposed_us: f64,
}

impl Shares {
    /// Adds the times of other runs.
    pub fn add(&mut self, other: &Shares) {
        self.total_us += other.total_us;
        self.compute_us += other.compute_us;
        self.other_us += other.other_us;
        self.exposed_us += other.exposed_us;
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = |us: f64| 100.0 * us / self.total_us.max(1e-9);
        let Shares { total_us, compute_us, other_us, exposed_us } = *self;
        let (compute, other, exposed) = (share(compute_us), share(other_us), share(exposed_us));
        write!(
            f,
            "{:.2} ms: compute {compute:.1} %, communication {other:.1} %, exposed {exposed:.1} %",
            total_us * 1e-3
        )
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
            talked_us: 0.0,
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
        assert_eq!(Trace::default().shares(), Shares::default());
    }

    /// With a single lane, all communication is exposed.
    #[test]
    fn talking_on_the_lane_of_compute_is_exposed() {
        let span = |talked_us, begin_us, end_us| Span {
            op: String::new(),
            detail: String::new(),
            lane: 0,
            talked_us,
            begin_us,
            end_us,
        };
        let spans = vec![span(0.0, 0.0, 6.0), span(3.0, 6.0, 9.0), span(0.0, 9.0, 10.0)];
        let shares = Trace { start_us: 0.0, spans }.shares();
        let expected = Shares { total_us: 10.0, compute_us: 7.0, other_us: 3.0, exposed_us: 3.0 };
        assert_eq!(shares, expected);
    }

    /// An update of parameters as their summed gradients arrive counts as compute, even where the
    /// sum is exposed. A batch norm that merges its statistics counts partly as communication.
    #[test]
    fn ops_that_talk_and_compute_are_both() {
        let span = |lane, begin_us, end_us, talked_us| Span {
            op: String::new(),
            detail: String::new(),
            lane,
            talked_us,
            begin_us,
            end_us,
        };
        // Compute hides two units of the sum. One of the other two units is an update.
        let spans = vec![span(0, 0.0, 6.0, 0.0), span(1, 4.0, 8.0, 2.0), span(0, 8.0, 10.0, 0.5)];
        let shares = Trace { start_us: 0.0, spans }.shares();
        let expected = Shares { total_us: 10.0, compute_us: 8.5, other_us: 2.5, exposed_us: 1.5 };
        assert_eq!(shares, expected);
    }

    /// A linear search through the running ops would be repeated 300,000 times.
    #[test]
    fn many_ops_at_one_time_are_counted() {
        let count = 300_000;
        let spans = (0..count).map(|index| Span {
            op: String::new(),
            detail: String::new(),
            lane: index % 2,
            talked_us: 0.0,
            begin_us: index as f64,
            end_us: (index + 100_000) as f64,
        });
        let trace = Trace { start_us: 0.0, spans: spans.collect() };
        let shares = trace.shares();
        assert_eq!((shares.total_us, shares.compute_us), (399_999.0, 399_998.0));
        assert_eq!((shares.other_us, shares.exposed_us), (399_998.0, 1.0));
    }

    /// A lane number from a file must not make the reader list all lower lanes.
    #[test]
    fn lanes_of_any_number_are_joined() {
        let event =
            |lane: u64| json!({"ph": "X", "name": "mul", "ts": 1, "dur": 1, "pid": 0, "tid": lane});
        let text = json!({"traceEvents": [event(u64::MAX), event(3)]}).to_string();
        let read = Trace::from_chrome_json(&text).unwrap();
        assert_eq!(Trace::from_chrome_json(&Trace::join(&read)).unwrap(), read);
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let error = |field: &str, value: Value| {
            let mut event =
                json!({"ph": "X", "name": "mul", "ts": 1, "dur": 1, "pid": 0, "tid": 0});
            event[field] = value;
            let text = json!({"traceEvents": [{"ph": "M"}, event]}).to_string();
            Trace::from_chrome_json(&text).unwrap_err().to_string()
        };
        let begin = "not a trace of a run: traceEvents[1]";
        assert_eq!(
            error("dur", json!(-1)),
            format!("{begin}.dur: expected microseconds, 0 to 1e18, got -1")
        );
        assert_eq!(
            error("tid", json!(0.5)),
            format!("{begin}.tid: expected a whole number, 0 or more, got 0.5")
        );

        let event = |fields: &str| {
            format!(r#"{{"traceEvents": [{{"ph": "X", "name": "mul", "tid": 0, {fields}}}]}}"#)
        };
        for text in [
            "".into(),
            "[]".into(),
            "{}".into(),
            r#"{"traceEvents": 3}"#.into(),
            event(r#""ts": 1, "dur": -1, "pid": 0"#),
            event(r#""ts": 1, "dur": 1, "pid": -1"#),
            event(r#""ts": -1e308, "dur": 1, "pid": 0"#),
        ] {
            let error = Trace::from_chrome_json(&text).unwrap_err().to_string();
            assert!(error.contains("not a trace of a run"), "{text}: {error}");
        }
    }
}
