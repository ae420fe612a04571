//! Closing report of a training on parameter servers: the samples trained, and the workers.

use fleet::ps::WorkerSeen;
use fleet::servers::WorkerStats;
use fleet_base::text;

/// State of the servers' tables and workers at the end of a training.
pub struct ClosingReport {
    /// Mean samples per step of one worker.
    pub rows: f64,
    /// Samples that all workers were to train in this run.
    pub planned: f64,
    /// Samples trained by an earlier run.
    pub before: f64,
    /// Steps of all workers when this process began to train: those of its earlier processes if it
    /// was restarted, and those that durable servers had kept.
    pub steps_at_begin: u64,
    /// Duration since this process began to train, in seconds.
    pub seconds: f64,
    /// The workers, as the servers have seen them.
    pub seen: Vec<WorkerSeen>,
    /// Pushes and pulls of this worker.
    pub stats: WorkerStats,
}

impl ClosingReport {
    /// Returns the lines of the closing report as pairs of label and text.
    pub fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![("trained", self.amount()), ("speed", self.speed())];
        for seen in &self.seen {
            let (worker, samples) = (seen.worker, text::count(self.samples_of(seen)));
            if seen.is_lost() {
                let why = seen.why();
                facts.push(("lost", format!("worker {worker} {why}; trained {samples} samples")));
            }
            if seen.starts > 1 {
                let starts = seen.starts;
                let text = format!("worker {worker}: {starts} starts, {samples} samples in total");
                facts.push(("restarted", text));
            }
        }
        facts
    }

    /// Describes the pushes of this worker, which is the first one.
    pub fn pushes(&self) -> String {
        let stats = &self.stats;
        format!(
            "worker 0: {} gradients in {} pushes, waited {:.2} s; staleness {:.1} own gradients on \
             average, {} at most",
            stats.gradient_count,
            stats.push_count,
            stats.blocked_seconds,
            stats.staleness_mean(),
            stats.staleness_max
        )
    }

    fn samples_of(&self, seen: &WorkerSeen) -> f64 {
        seen.steps as f64 * self.rows
    }

    fn samples(&self) -> f64 {
        self.seen.iter().map(|seen| self.samples_of(seen)).sum()
    }

    /// Returns the samples of all workers since this process began to train.
    fn samples_here(&self) -> f64 {
        self.samples() - self.steps_at_begin as f64 * self.rows
    }

    fn amount(&self) -> String {
        let samples = self.samples();
        let mut text = format!("{} samples", text::count(samples));
        text += &match self.steps_at_begin {
            0 => format!(" in {:.1} s", self.seconds),
            _ => {
                let here = text::count(self.samples_here());
                format!(", {here} of them in the {:.1} s of this process", self.seconds)
            }
        };
        if (samples - self.planned).abs() >= 1.0 {
            text += &format!(", of {} planned", text::count(self.planned));
        }
        if self.before > 0.0 {
            text += &format!(", after {} of an earlier run", text::count(self.before));
        }
        text
    }

    fn speed(&self) -> String {
        let here = self.samples_here();
        if here <= 0.0 {
            return "not measured: no step since this process started".to_string();
        }
        let rate = text::count(here / self.seconds.max(1e-9));
        let lost = self.seen.iter().filter(|seen| seen.is_lost()).count();
        let over = match (self.seen.len(), lost) {
            (1, _) => String::new(),
            (all, 0) => format!(" over all {all} workers"),
            (all, lost) => format!(" over {all} workers, {lost} of them lost"),
        };
        format!("{rate} samples/s{over}")
    }
}
