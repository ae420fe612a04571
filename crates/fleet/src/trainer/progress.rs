//! Progress of a training: one line that is rewritten on a terminal, or some lines elsewhere.

use crate::Fleet;
use fleet_base::Result;
use fleet_base::terminal::{columns, fitted};
use fleet_base::text::{count, printable};
use fleet_topology::names;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::time::Duration;

/// Display of a training's progress.
///
/// ```
/// use fleet::trainer::Progress;
/// let mut log = Vec::new();
/// let progress = Progress::lines(&mut log); // or none, on, auto
/// # drop(progress);
/// ```
pub struct Progress<'a> {
    out: Option<Box<dyn Write + 'a>>,
    form: Form,
    /// File for the line, which the launcher draws.
    live: Option<PathBuf>,
}

#[derive(Clone, Copy)]
enum Form {
    /// One line, rewritten, for a terminal of this many columns.
    Rewritten {
        columns: fn() -> usize,
    },
    Lines,
}

impl<'a> Progress<'a> {
    /// Shows nothing.
    pub fn none() -> Progress<'a> {
        Progress { out: None, form: Form::Lines, live: None }
    }

    /// Writes to the standard output: one line that is rewritten if it is a terminal, else a line
    /// for each tenth of the training. In a job of several workers it is never rewritten, and
    /// `fleetrun` draws the line.
    pub fn auto(fleet: &Fleet) -> Progress<'a> {
        if fleet.is_first_worker() { Progress::each(fleet) } else { Progress::none() }
    }

    /// As [`Progress::auto`], on every worker: each shows its own in its log.
    pub fn each(fleet: &Fleet) -> Progress<'a> {
        let out = std::io::stdout();
        let is_terminal = out.is_terminal() && fleet.worker_num() == 1;
        let terminal = || columns(std::io::stdout());
        let form = if is_terminal { Form::Rewritten { columns: terminal } } else { Form::Lines };
        let live = fleet.env().text(names::FLEET_PROGRESS).map(PathBuf::from);
        Progress { out: Some(Box::new(out)), form, live }
    }

    /// Writes plain lines.
    pub fn lines(out: impl Write + 'a) -> Progress<'a> {
        Progress { out: Some(Box::new(out)), form: Form::Lines, live: None }
    }

    /// Writes one line and rewrites it, as on a terminal of 80 columns.
    pub fn rewritten(out: impl Write + 'a) -> Progress<'a> {
        let form = Form::Rewritten { columns: || 80 };
        Progress { out: Some(Box::new(out)), form, live: None }
    }
}

/// Amount of a training, as far as it is known.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Amount {
    /// Steps of an earlier run.
    pub before: u64,
    /// Steps of the whole training.
    pub steps: Option<u64>,
    pub epochs: Option<u64>,
    /// Number of workers, each of which has about as many rows.
    pub workers: u64,
}

/// The state of the display.
pub(super) struct Display<'a> {
    progress: Progress<'a>,
    labels: Vec<String>,
    averages: Vec<Average>,
    begin: Duration,
    /// Time, step and rows when the speed was last measured.
    measured: (Duration, u64, u64),
    rows: u64,
    rate: f64,
    /// Whether an unfinished line is on the terminal.
    is_drawn: bool,
}

/// Interval between redraws of the line.
const PERIOD: Duration = Duration::from_millis(100);
/// Number of lines without a terminal.
const LINES: u64 = 10;
/// Interval in steps of lines if the number of steps is unknown.
const LINE_STEPS: u64 = 1000;
/// Width of the bar for which the line fits 80 columns.
const BAR_CELLS: u64 = 14;

impl<'a> Display<'a> {
    pub fn new(
        progress: Progress<'a>,
        labels: Vec<String>,
        before: u64,
        now: Duration,
    ) -> Display<'a> {
        Display {
            progress,
            averages: labels.iter().map(|_| Average::default()).collect(),
            labels,
            begin: now,
            measured: (now, before, 0),
            rows: 0,
            rate: 0.0,
            is_drawn: false,
        }
    }

    /// Shows a step, if a line is due. Workers that make their steps together call `mean` for means
    /// over all of them, in steps that have a plain line, also if they show none.
    pub fn step(
        &mut self,
        amount: &Amount,
        (step, epoch): (u64, u64),
        (rows, values): (u64, &[f64]),
        now: Duration,
        mean: impl FnOnce(&mut [f64]) -> Result<()>,
    ) -> Result<()> {
        self.averages.iter_mut().zip(values).for_each(|(average, value)| average.add(*value));
        self.rows += rows * amount.workers;
        let is_redraw_due = now.saturating_sub(self.measured.0) >= PERIOD;
        let is_last = amount.steps == Some(step);
        let is_line_due = match amount.steps {
            Some(steps) => share(step, steps, LINES) > share(step - 1, steps, LINES),
            None => step.is_multiple_of(LINE_STEPS),
        };
        let mut means: Vec<f64> = Vec::new();
        if is_line_due && !self.averages.is_empty() {
            means.extend(self.averages.iter().map(Average::value));
            mean(&mut means)?;
        }
        if !(step == amount.before + 1 || is_redraw_due || is_line_due || is_last) {
            return Ok(());
        }
        self.measure(amount.before, step, now);
        let own: Vec<f64> = self.averages.iter().map(Average::value).collect();
        if is_redraw_due || is_last {
            self.draw_live(amount, (step, epoch), &own, is_last, now);
        }
        match self.progress.form {
            Form::Lines if is_line_due => {
                self.print(&self.line(amount, (step, epoch), &means, None));
            }
            Form::Rewritten { columns } if is_redraw_due || is_last => {
                let line = self.line(amount, (step, epoch), &own, Some(now));
                // Some terminals wrap a line that fills the last column.
                let line = fitted("", &line, columns().saturating_sub(1));
                // Clears the rest of a longer line.
                self.write(&format!("\r{line}\x1b[K"));
                self.is_drawn = true;
            }
            _ => {}
        }
        Ok(())
    }

    /// Prints a line of its own, above the line that is rewritten.
    pub fn print(&mut self, line: &str) {
        let lead = match std::mem::take(&mut self.is_drawn) {
            true => "\r\x1b[K",
            false => "",
        };
        self.write(&format!("{lead}{}\n", printable(line)));
    }

    /// Ends the display.
    pub fn end(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            self.write("\n");
        }
        if let Some(live) = &self.progress.live {
            // A failure is harmless: the launcher draws the last line once more.
            let _ = std::fs::write(live, "");
        }
    }

    /// Writes in one piece, since other processes write to the same terminal. A failure ends the
    /// display, not the training.
    fn write(&mut self, text: &str) {
        let Some(out) = &mut self.progress.out else { return };
        if out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_err() {
            self.progress.out = None;
        }
    }

    /// Writes the line for the launcher.
    fn draw_live(
        &self,
        amount: &Amount,
        at: (u64, u64),
        values: &[f64],
        is_last: bool,
        now: Duration,
    ) {
        let Some(live) = &self.progress.live else { return };
        let line = match is_last {
            false => self.line(amount, at, values, Some(now)),
            true => String::new(),
        };
        // A failure is harmless: only the line is missing.
        let _ = std::fs::write(live, line);
    }

    /// Updates the speed. The first step includes planning: its speed is replaced by that of the
    /// next interval, with which the average starts.
    fn measure(&mut self, before: u64, step: u64, now: Duration) {
        let (then, measured_step, rows) = self.measured;
        if step == measured_step {
            return;
        }
        let seconds = now.saturating_sub(then).as_secs_f64().max(1e-9);
        let rate = (self.rows - rows) as f64 / seconds;
        let starts_average = measured_step <= before + 1;
        self.rate = if starts_average { rate } else { 0.8 * self.rate + 0.2 * rate };
        self.measured = (now, step, self.rows);
    }

    /// Formats the line; with a bar and the remaining time if `now` is given.
    fn line(
        &self,
        amount: &Amount,
        (step, epoch): (u64, u64),
        values: &[f64],
        now: Option<Duration>,
    ) -> String {
        let mut line = String::new();
        // Writing to a string cannot fail.
        let mut put = |text: std::fmt::Arguments<'_>| _ = line.write_fmt(text);
        match amount.steps {
            None => put(format_args!("step {step}")),
            Some(steps) => {
                if now.is_some() {
                    let full = share(step, steps, BAR_CELLS) as usize;
                    let rest = BAR_CELLS as usize - full;
                    put(format_args!("[{}{}] ", "=".repeat(full), " ".repeat(rest)));
                }
                put(format_args!("{:>3} %", share(step, steps, 100)));
                if let (Some(now), true) = (now, step < steps) {
                    put(format_args!(
                        "  {:>6} left",
                        self.time_left(amount.before, step, steps, now)
                    ));
                }
            }
        }
        match amount.epochs {
            Some(1) => {}
            Some(epochs) => put(format_args!("  epoch {}/{epochs}", epoch + 1)),
            None if amount.steps.is_none() => put(format_args!("  epoch {}", epoch + 1)),
            None => {}
        }
        put(format_args!("  {:>7} samples/s", count(self.rate)));
        for (label, value) in self.labels.iter().zip(values) {
            put(format_args!("  {label} {value:.4}"));
        }
        line
    }

    fn time_left(&self, before: u64, step: u64, steps: u64, now: Duration) -> String {
        let here = step.saturating_sub(before).max(1);
        let passed = now.saturating_sub(self.begin).as_secs_f64();
        time(passed * (steps - step) as f64 / here as f64)
    }
}

impl Drop for Display<'_> {
    /// An error message that follows begins a line.
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the part of `parts` that is done.
fn share(step: u64, steps: u64, parts: u64) -> u64 {
    let done = u128::from(step) * u128::from(parts) / u128::from(steps.max(1));
    done.min(parts.into()) as u64
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

    fn amount(before: u64, steps: Option<u64>, epochs: Option<u64>) -> Amount {
        Amount { before, steps, epochs, workers: 1 }
    }

    /// Two runs: one from the beginning, and one that resumes after step 100.
    #[test]
    fn the_speed_average_starts_after_the_first_step() {
        for before in [0, 100] {
            let mut display = Display::new(Progress::none(), Vec::new(), before, Duration::ZERO);
            let mut rate_at = |step: u64, seconds: u64| {
                display.rows = step * 10;
                display.measure(before, before + step, Duration::from_secs(seconds));
                display.rate
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
    fn lines_have_progress_time_speed_and_values() {
        let labels = vec!["loss".to_string(), "AUC".to_string()];
        let mut display = Display::new(Progress::none(), labels, 0, Duration::ZERO);
        display.rate = 12_300.0;
        let check = |amount: Amount, now: Option<u64>, expected: &str| {
            let now = now.map(Duration::from_secs);
            let line = display.line(&amount, (100, 2), &[0.5, 0.75], now);
            assert_eq!(line, expected);
            assert!(line.len() < 80, "{line}");
        };
        let values = "   12.3 k samples/s  loss 0.5000  AUC 0.7500";
        let one = amount(0, Some(200), Some(1));
        check(one, None, &format!(" 50 %{values}"));
        check(one, Some(30), &format!("[=======       ]  50 %    30 s left{values}"));
        check(amount(0, Some(200), Some(4)), None, &format!(" 50 %  epoch 3/4{values}"));
        check(amount(0, None, None), Some(1), &format!("step 100  epoch 3{values}"));
        let resumed = "[===           ]  25 %   5 min left";
        check(amount(90, Some(400), None), Some(10), &format!("{resumed}{values}"));
        assert_eq!([45.2, 720.0, 12_600.0].map(time), ["45 s", "12 min", "3.5 h"]);
    }

    /// Each step takes 150 ms, so that every one is drawn.
    fn shown(form: fn(&mut Vec<u8>) -> Progress<'_>, steps: u64) -> String {
        let mut written = Vec::new();
        let mut display = Display::new(form(&mut written), Vec::new(), 0, Duration::ZERO);
        let amount = amount(0, Some(steps), Some(1));
        for step in 1..=steps {
            let now = Duration::from_millis(150 * step);
            display.step(&amount, (step, 0), (15, &[]), now, |_| Ok(())).unwrap();
            if step == 2 {
                display.print("a note");
            }
        }
        display.end();
        drop(display);
        String::from_utf8(written).unwrap()
    }

    #[test]
    fn a_terminal_has_one_line_that_is_rewritten() {
        let text = shown(|out| Progress::rewritten(out), 3);
        let expected = "\r[====          ]  33 %     0 s left      100 samples/s\x1b[K\
                        \r[=========     ]  66 %     0 s left      100 samples/s\x1b[K\
                        \r\x1b[Ka note\n\
                        \r[==============] 100 %      100 samples/s\x1b[K\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn elsewhere_there_is_a_line_for_each_tenth() {
        let text = shown(|out| Progress::lines(out), 20);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 11, "{text}");
        assert_eq!((lines[0], lines[1]), (" 10 %      100 samples/s", "a note"));
        assert_eq!(lines[10], "100 %      100 samples/s");
    }
}
