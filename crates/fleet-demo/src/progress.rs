//! Progress of training: a bar that is redrawn on a terminal, or some lines elsewhere.

use super::Demo;
use fleet::{Fleet, Result};
use fleet_base::output::{ExitReason, Output};
use fleet_base::text;
use fleet_launch::terminal;
use fleet_topology::names;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub struct Progress {
    /// Steps completed by an earlier run.
    before: u64,
    steps: u64,
    /// Samples per step, of all workers.
    batch: usize,
    score: Option<&'static str>,
    is_terminal: bool,
    /// File for the bar, which the launcher draws.
    live_file: Option<PathBuf>,
    begin: Instant,
    last_shown: Instant,
    /// Number of steps when the speed was last measured.
    measured_steps: u64,
    rate: f64,
    loss: Average,
    score_mean: Average,
}

/// Interval between redraws of the bar.
const PERIOD: Duration = Duration::from_millis(100);
/// Number of lines printed without a terminal.
const LINES: u64 = 10;
/// Width for which the whole line fits 80 columns, so that it can be redrawn.
const BAR_CELLS: u64 = 14;

impl Progress {
    /// Returns the progress of a demo, of which `before` steps are done.
    pub fn of(demo: &Demo, fleet: &Fleet, before: u64, steps: u64, batch: usize) -> Progress {
        let score = demo.score.as_ref().map(|(name, _)| *name);
        let live = fleet.env().text(names::FLEET_PROGRESS).map(PathBuf::from);
        Progress::new(before, steps, batch, score, fleet.worker_num(), live)
    }

    fn new(
        before: u64,
        steps: u64,
        batch: usize,
        score: Option<&'static str>,
        workers: usize,
        live_file: Option<PathBuf>,
    ) -> Progress {
        let now = Instant::now();
        Progress {
            before,
            steps,
            batch,
            score,
            // Without a terminal, workers print at the same steps, since they print means over all
            // workers.
            live_file,
            is_terminal: workers == 1 && std::io::stdout().is_terminal(),
            begin: now,
            last_shown: now,
            measured_steps: before,
            rate: 0.0,
            loss: Average::default(),
            score_mean: Average::default(),
        }
    }

    /// Sets the samples per step of all remaining workers.
    pub fn set_batch(&mut self, batch: usize) {
        self.batch = batch;
    }

    /// Reports step `done`. `mean` returns the means over all workers, which call it together.
    pub fn step(
        &mut self,
        done: u64,
        loss: f64,
        score: Option<f64>,
        mean: impl Fn(&[f64]) -> Result<Vec<f64>>,
        out: &mut Output,
    ) -> Result<(), ExitReason> {
        self.loss.add(loss);
        self.score_mean.add(score.unwrap_or(0.0));
        let last = done == self.steps;
        let now = Instant::now();
        let is_redraw_due = now.duration_since(self.last_shown) >= PERIOD;
        let due = match self.is_terminal {
            true => is_redraw_due,
            false => done * LINES / self.steps > (done - 1) * LINES / self.steps,
        };
        if done == self.before + 1 {
            self.measure(done, now);
        }
        if !due && !last {
            if self.live_file.is_some() && is_redraw_due {
                self.measure(done, now);
                self.draw(done, last);
            }
            return Ok(());
        }
        self.measure(done, now);
        let means = mean(&[self.loss.value(), self.score_mean.value()])?;
        let line = self.line(done, means[0], means[1], self.is_terminal);
        self.draw(done, last);
        if !self.is_terminal {
            return out.line(line);
        }
        // A wrapped line could not be redrawn. Some terminals wrap a line that fills the last
        // column.
        let columns = terminal::columns(std::io::stdout()).saturating_sub(1);
        let line = terminal::fitted("", &line, columns);
        // Clears the rest of a longer line.
        out.draw(format!("\r{line}\x1b[K"))?;
        if last {
            out.text("\n")?;
        }
        out.flush()
    }

    /// Writes the bar for the launcher, with this worker's own values; empty at the end.
    fn draw(&self, done: u64, last: bool) {
        let Some(path) = &self.live_file else { return };
        let bar = match last {
            false => self.line(done, self.loss.value(), self.score_mean.value(), true),
            true => String::new(),
        };
        // A failure is harmless: only the bar is missing.
        let _ = std::fs::write(path, bar);
    }

    /// Updates the speed. The first step includes planning: its speed is replaced by that of the
    /// next interval, with which the average starts.
    fn measure(&mut self, done: u64, now: Instant) {
        if done == self.measured_steps {
            return;
        }
        let seconds = now.duration_since(self.last_shown).as_secs_f64().max(1e-9);
        let rate = (done - self.measured_steps) as f64 * self.batch as f64 / seconds;
        let starts_average = self.measured_steps <= self.before + 1;
        self.rate = if starts_average { rate } else { 0.8 * self.rate + 0.2 * rate };
        self.last_shown = now;
        self.measured_steps = done;
    }

    fn line(&self, done: u64, loss: f64, value: f64, is_bar: bool) -> String {
        let percent = done * 100 / self.steps;
        let mut line = match is_bar {
            true => {
                let full = (done * BAR_CELLS / self.steps) as usize;
                let rest = BAR_CELLS as usize - full;
                format!("[{}{}] {percent:>3} %", "=".repeat(full), " ".repeat(rest))
            }
            false => format!("{percent:>3} %"),
        };
        let here = (done - self.before).max(1);
        let left = self.begin.elapsed().as_secs_f64() * (self.steps - done) as f64 / here as f64;
        if is_bar && done < self.steps {
            line += &format!("  {:>6} left", time(left));
        }
        line += &format!("  {:>7} samples/s", text::count(self.rate));
        line += &format!("  loss {loss:.4}");
        if let Some(score) = self.score {
            line += &format!("  {score} {value:.4}");
        }
        line
    }
}

/// Formats a duration as `45 s`, `12 min` or `3.5 h`.
fn time(seconds: f64) -> String {
    match seconds {
        ..100.0 => format!("{seconds:.0} s"),
        ..6000.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// An exponential moving average over about the last fifty values.
#[derive(Default)]
struct Average {
    sum: f64,
    weight: f64,
}

impl Average {
    fn add(&mut self, value: f64) {
        const KEPT: f64 = 0.98;
        self.sum = KEPT * self.sum + value;
        self.weight = KEPT * self.weight + 1.0;
    }

    fn value(&self) -> f64 {
        self.sum / self.weight
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two runs: one from the beginning, and one that resumes after step 100.
    #[test]
    fn the_speed_average_starts_after_the_first_step() {
        for before in [0, 100] {
            let mut progress = Progress::new(before, 200, 10, None, 1, None);
            let begin = progress.begin;
            let mut rate_at = |step: u64, seconds: u64| {
                progress.measure(before + step, begin + Duration::from_secs(seconds));
                progress.rate
            };
            // The first step plans for ten seconds.
            assert!((rate_at(1, 10) - 1.0).abs() < 1e-9);
            assert!((rate_at(11, 11) - 100.0).abs() < 1e-9);
            assert!((rate_at(31, 12) - 120.0).abs() < 1e-9);
            // A second measurement of the same step changes nothing.
            assert!((rate_at(31, 13) - 120.0).abs() < 1e-9);
        }
    }

    #[test]
    fn lines_say_how_far_and_how_good() {
        let mut progress = Progress::new(0, 200, 10, Some("AUC"), 1, None);
        progress.rate = 12_300.0;
        assert_eq!(
            progress.line(100, 0.5, 0.75, false),
            " 50 %   12.3 k samples/s  loss 0.5000  AUC 0.7500"
        );
        let line = progress.line(100, 0.5, 0.75, true);
        assert!(line.starts_with("[=======       ]  50 %"), "{line}");
        let wanted = "  50 %     0 s left   12.3 k samples/s  loss 0.5000  AUC 0.7500";
        assert_eq!(line.split_once(']').unwrap().1, wanted);
        // The whole line fits on 80 columns.
        assert!(line.len() < 80, "{line}");
        assert_eq!(
            (time(45.2), time(720.0), time(12_600.0)),
            ("45 s".into(), "12 min".into(), "3.5 h".into())
        );
    }
}
