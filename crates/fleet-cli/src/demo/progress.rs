//! The progress of training: a bar that is drawn over on a terminal, some lines everywhere else.

use crate::output::{Output, Stop};
use fleet_base::text;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

pub struct Progress {
    steps: u64,
    batch: usize,
    score: Option<&'static str>,
    is_terminal: bool,
    begin: Instant,
    shown: Instant,
    /// Steps done when the speed was last measured.
    shown_steps: u64,
    rate: f64,
    loss: Average,
    value: Average,
}

/// How often the bar is drawn.
const PERIOD: Duration = Duration::from_millis(100);
/// Lines that are printed where there is no terminal.
const LINES: u64 = 10;
/// The whole line fits 80 columns, and is then drawn over as one.
const BAR_CELLS: u64 = 14;

impl Progress {
    pub fn new(steps: u64, batch: usize, score: Option<&'static str>) -> Progress {
        let now = Instant::now();
        Progress {
            steps,
            batch,
            score,
            is_terminal: std::io::stdout().is_terminal(),
            begin: now,
            shown: now,
            shown_steps: 0,
            rate: 0.0,
            loss: Average::default(),
            value: Average::default(),
        }
    }

    /// Step `done` is done.
    pub fn step(
        &mut self,
        done: u64,
        loss: f64,
        score: Option<f64>,
        out: &mut Output,
    ) -> Result<(), Stop> {
        self.loss.add(loss);
        self.value.add(score.unwrap_or(0.0));
        let last = done == self.steps;
        let due = match self.is_terminal {
            true => self.shown.elapsed() >= PERIOD,
            false => done * LINES / self.steps > (done - 1) * LINES / self.steps,
        };
        if !due && !last {
            return Ok(());
        }
        self.measure(done);
        let line = self.line(done);
        if !self.is_terminal {
            return out.line(line);
        }
        // Clears what a longer line may have left.
        out.text(format!("\r{line}\x1b[K"))?;
        if last {
            out.text("\n")?;
        }
        out.flush()
    }

    fn measure(&mut self, done: u64) {
        let seconds = self.shown.elapsed().as_secs_f64().max(1e-9);
        let rate = (done - self.shown_steps) as f64 * self.batch as f64 / seconds;
        // The first steps also plan.
        self.rate = if self.rate == 0.0 { rate } else { 0.8 * self.rate + 0.2 * rate };
        self.shown = Instant::now();
        self.shown_steps = done;
    }

    fn line(&self, done: u64) -> String {
        let percent = done * 100 / self.steps;
        let mut line = match self.is_terminal {
            true => {
                let full = (done * BAR_CELLS / self.steps) as usize;
                let rest = BAR_CELLS as usize - full;
                format!("[{}{}] {percent:>3} %", "=".repeat(full), " ".repeat(rest))
            }
            false => format!("{percent:>3} %"),
        };
        line += &format!("  {:>7} samples/s", text::count(self.rate));
        line += &format!("  loss {:.4}", self.loss.value());
        if let Some(score) = self.score {
            line += &format!("  {score} {:.4}", self.value.value());
        }
        let left = self.begin.elapsed().as_secs_f64() * (self.steps - done) as f64 / done as f64;
        if self.is_terminal && done < self.steps {
            line += &format!("  {left:.0} s left");
        }
        line
    }
}

/// A mean that forgets: of about the last fifty values.
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

    #[test]
    fn lines_say_how_far_and_how_good() {
        let mut progress = Progress::new(200, 10, Some("AUC"));
        progress.is_terminal = false;
        (0..100).for_each(|_| progress.loss.add(0.5));
        progress.value.add(0.75);
        progress.rate = 12_300.0;
        assert_eq!(progress.line(100), " 50 %   12.3 k samples/s  loss 0.5000  AUC 0.7500");
        progress.is_terminal = true;
        let line = progress.line(100);
        assert!(line.starts_with("[=======       ]  50 %"), "{line}");
        assert!(line.ends_with("s left"), "{line}");
        assert!(line.len() < 78, "{line}");
    }
}
