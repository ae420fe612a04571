//! Measured steps of a session: their time, the time in which a stage waits for others, and the
//! memory that training adds. They are compared with the prediction, if the layout was planned.

use crate::planner::{Prediction, private_bytes};
use fleet_base::sync::lock;
use fleet_base::text::{bytes, counted};
use fleet_strategy::auto::duration;
use fleet_strategy::{Bubble, StageInfo};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Measured steps of a session. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct StepClock(Arc<Shared>);

#[derive(Default)]
struct Shared {
    prediction: Option<Prediction>,
    stage: Option<StageInfo>,
    /// Private memory of the process before the session, in bytes.
    memory_before: Option<u64>,
    times: Mutex<Times>,
    is_reported: AtomicBool,
    /// Whether each rank reads the prediction from a file, of which a machine may have another
    /// version.
    is_of_file: bool,
}

/// The sums over the measured steps.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Times {
    /// Number of all steps.
    all: u64,
    measured: u64,
    seconds: f64,
    waits: f64,
}

/// Number of first steps that are not measured: they include planning, and first uses of memory.
const FIRST_STEPS: u64 = 2;

/// Predictions of less memory are not compared: a process reuses about as much that it has freed.
const MEMORY_COMPARED_MIN: u64 = 32 << 20;

/// The measurements of a rank, in numbers that ranks exchange.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Measured {
    /// Mean duration of a step, in seconds.
    pub step_seconds: f64,
    /// Mean wait for messages of other stages in a step, in seconds.
    pub wait_seconds: f64,
    /// Memory that the session has added to the process, in bytes; 0 if it is unknown.
    pub memory_bytes: f64,
}

impl StepClock {
    /// Starts before a session exists, whose memory is measured. A planning has used memory that
    /// the session reuses, so the memory from before it counts, if it is known.
    pub fn new(
        prediction: Option<Prediction>,
        before_planning: Option<u64>,
        stage: Option<&StageInfo>,
        is_of_file: bool,
    ) -> StepClock {
        let stage = stage.filter(|stage| stage.count > 1).cloned();
        let is_watched = prediction.is_some() || stage.is_some();
        let now = is_watched.then(private_bytes).flatten();
        let memory_before = now.into_iter().chain(before_planning).min();
        let shared = Shared { prediction, stage, memory_before, is_of_file, ..Shared::default() };
        StepClock(Arc::new(shared))
    }

    /// Returns whether anything is reported on some rank, if ranks may differ in that.
    pub fn may_differ(&self) -> bool {
        self.0.is_of_file
    }

    /// Returns whether anything is reported.
    pub fn is_watched(&self) -> bool {
        self.0.prediction.is_some() || self.0.stage.is_some()
    }

    /// Adds a step.
    pub fn add(&self, took: Duration, waited: Duration) {
        let mut times = lock(&self.0.times);
        times.all += 1;
        if times.all > FIRST_STEPS {
            times.measured += 1;
            times.seconds += took.as_secs_f64();
            times.waits += waited.as_secs_f64();
        }
    }

    /// Returns what was measured, unless no step was.
    pub fn measured(&self) -> Option<Measured> {
        let times = *lock(&self.0.times);
        let count = (times.measured > 0).then_some(times.measured as f64)?;
        let added = private_bytes().zip(self.0.memory_before);
        let added = added.map_or(0, |(now, before)| now.saturating_sub(before));
        Some(Measured {
            step_seconds: times.seconds / count,
            wait_seconds: times.waits / count,
            memory_bytes: added as f64,
        })
    }

    /// Returns the report on this rank's steps or, with those of all ranks by rank, on the job.
    /// Empty if there is nothing to report, or if it was reported before.
    pub fn report(&self, own: usize, all: &[Measured]) -> Vec<String> {
        if all.is_empty() || !self.is_watched() || self.0.is_reported.swap(true, Relaxed) {
            return Vec::new();
        }
        let mut lines = Vec::new();
        lines.extend(self.0.prediction.map(|it| compare(&it, all)));
        if let Some(stage) = &self.0.stage {
            lines.push(bubbles(stage, own, all));
        }
        lines
    }
}

/// Compares a prediction with the slowest rank and with the one that has added most memory.
fn compare(predicted: &Prediction, all: &[Measured]) -> String {
    let most = |of: fn(&Measured) -> f64| all.iter().map(of).fold(0.0, f64::max);
    let (step, memory) = (most(|it| it.step_seconds), most(|it| it.memory_bytes));
    let (of, need) = (counted(all.len(), "rank"), predicted.memory_bytes);
    let mut line = format!(
        "planned: {} a step predicted, {} measured ({})",
        duration(predicted.step_seconds),
        duration(step),
        off(predicted.step_seconds, step)
    );
    if memory > 0.0 && need >= MEMORY_COMPARED_MIN {
        line += &format!(
            "; {} of memory predicted, {} measured ({}), the most of {of}",
            bytes(need),
            bytes(memory as u64),
            off(need as f64, memory)
        );
    }
    line
}

/// Formats the error of a prediction: how much more it is than what was measured.
fn off(predicted: f64, measured: f64) -> String {
    let share = (predicted / measured.max(1e-12) - 1.0) * 100.0;
    format!("{share:+.0} %")
}

/// Lists the share of a step in which each stage waits.
fn bubbles(stage: &StageInfo, own: usize, all: &[Measured]) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let first = if all.len() == 1 { own } else { 0 };
    let shares = all.iter().enumerate().map(|(at, it)| {
        let share = percent(it.wait_seconds / it.step_seconds.max(1e-12));
        format!("rank {} {share}", first + at)
    });
    let shares = shares.collect::<Vec<_>>().join(", ");
    let Bubble { formula, sizes, .. } = stage.bubble();
    format!("pipeline: waits for other stages, of a step: {shares}; {formula} ({sizes})")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(step_ms: f64, wait_ms: f64, memory_mib: f64) -> Measured {
        Measured {
            step_seconds: step_ms * 1e-3,
            wait_seconds: wait_ms * 1e-3,
            memory_bytes: memory_mib * 1024.0 * 1024.0,
        }
    }

    #[test]
    fn the_first_steps_are_not_measured() {
        let clock = StepClock::default();
        let seconds = Duration::from_secs;
        for (took, waited) in [(100, 50), (50, 20), (2, 1)] {
            clock.add(seconds(took), seconds(waited));
        }
        assert_eq!(clock.measured().map(|it| (it.step_seconds, it.wait_seconds)), Some((2.0, 1.0)));
        clock.add(seconds(4), seconds(1));
        assert_eq!(clock.measured().map(|it| (it.step_seconds, it.wait_seconds)), Some((3.0, 1.0)));
        assert_eq!(StepClock::default().measured(), None);
    }

    #[test]
    fn predictions_and_bubbles_are_reported_once() {
        let prediction =
            Prediction { step_seconds: 0.011, memory_bytes: 200 << 20, ..Prediction::default() };
        let stage =
            StageInfo { count: 2, micro_batches: 8, virtual_stages: 1, ..StageInfo::default() };
        let clock = StepClock::new(Some(prediction), None, Some(&stage), false);
        let all = [measured(10.0, 1.0, 100.0), measured(9.0, 1.8, 250.0)];
        let lines = clock.report(0, &all);
        assert_eq!(
            lines,
            [
                "planned: 11.0 ms a step predicted, 10.0 ms measured (+10 %); 200 MiB of memory \
                 predicted, 250 MiB measured (-20 %), the most of 2 ranks",
                "pipeline: waits for other stages, of a step: rank 0 10.0 %, rank 1 20.0 %; (S - \
                 1) / (M + S - 1) = 11.1 % (S = 2, M = 8)",
            ]
        );
        assert!(clock.report(0, &all).is_empty());
        let alone = StepClock::new(None, None, Some(&stage), false).report(3, &all[1..]);
        assert!(alone[0].contains("step: rank 3 20.0 %;"), "{alone:?}");
    }
}
