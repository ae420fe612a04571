//! The loss scale of a worker, which the servers keep for the worker's next process.
//!
//! A worker sends its scale and counts after its first step, and after each step that has changed
//! the scale or was skipped. All other steps were good, so the counts after a later step follow.

use fleet_base::{Error, Result};
use fleet_exec::Scope;
use fleet_ps::{Progress, RunControl};
use fleet_strategy::{BAD_STEPS, GOOD_STEPS, LOSS_SCALE, SKIPPED_STEPS};
use fleet_tensor::Tensor;

/// Sends the loss scale of a worker to the servers when it has changed.
#[derive(Default)]
pub(super) struct ScaleKeeper {
    /// Steps of this worker, from the first one of the job.
    step: u64,
    /// The state that the servers have.
    kept: Option<ScaleState>,
}

/// The loss scale and its counts.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ScaleState {
    scale: f32,
    good: i32,
    bad: i32,
    skipped: i32,
}

impl ScaleKeeper {
    /// Starts to count after a step of the job, in a run of which the servers have no state yet.
    pub fn count_from(&mut self, step: u64) {
        *self = ScaleKeeper { step, kept: None };
    }

    /// Counts a step, and sends the state if the servers cannot derive it.
    pub fn after_step(&mut self, scope: &Scope, run: &dyn RunControl) -> Result<()> {
        self.step += 1;
        let Some(now) = ScaleState::read(scope)? else { return Ok(()) };
        let is_known = |kept: ScaleState| (kept.scale, kept.skipped) == (now.scale, now.skipped);
        if self.kept.is_some_and(is_known) {
            return Ok(());
        }
        run.keep(self.step, &now.numbers())?;
        self.kept = Some(now);
        Ok(())
    }
}

/// Sets the loss scale to that of the worker's earlier process, if the servers have it.
pub(super) fn restore(scope: &mut Scope, progress: &Progress) -> Result<()> {
    let held = ScaleState::read(scope)?;
    let (Some(_), Some(kept)) = (held, ScaleState::of(&progress.kept)?) else { return Ok(()) };
    let good_steps = progress.complete.saturating_sub(progress.kept_step);
    kept.after(i32::try_from(good_steps).unwrap_or(i32::MAX)).write(scope)
}

impl ScaleState {
    /// Reads the variables; none if the loss is not scaled.
    fn read(scope: &Scope) -> Result<Option<ScaleState>> {
        if !scope.contains(LOSS_SCALE) {
            return Ok(None);
        }
        let count = |name: &str| match scope.contains(name) {
            true => scope.tensor(name)?.item::<i32>(),
            false => Ok(0),
        };
        Ok(Some(ScaleState {
            scale: scope.tensor(LOSS_SCALE)?.item()?,
            good: count(GOOD_STEPS)?,
            bad: count(BAD_STEPS)?,
            skipped: count(SKIPPED_STEPS)?,
        }))
    }

    fn write(self, scope: &mut Scope) -> Result<()> {
        scope.assign(LOSS_SCALE, &Tensor::from_slice(&[self.scale], [1])?)?;
        let counts =
            [(GOOD_STEPS, self.good), (BAD_STEPS, self.bad), (SKIPPED_STEPS, self.skipped)];
        for (name, count) in counts {
            if scope.contains(name) {
                scope.assign(name, &Tensor::from_slice(&[count], [1])?)?;
            }
        }
        Ok(())
    }

    /// Returns the state after more steps, all of them good.
    fn after(self, good_steps: i32) -> ScaleState {
        let bad = if good_steps > 0 { 0 } else { self.bad };
        ScaleState { good: self.good.saturating_add(good_steps), bad, ..self }
    }

    fn numbers(self) -> [u64; 4] {
        let count = |count: i32| u64::from(count.unsigned_abs());
        [self.scale.to_bits().into(), count(self.good), count(self.bad), count(self.skipped)]
    }

    /// Reads the numbers from a server; none if it has no state.
    fn of(numbers: &[u64]) -> Result<Option<ScaleState>> {
        let invalid = || {
            Error::invalid("invalid state of a worker from a server")
                .expected("a loss scale and three counts")
                .got(format!("{numbers:?}"))
        };
        let [scale, good, bad, skipped] = match numbers {
            [] => return Ok(None),
            numbers => <[u64; 4]>::try_from(numbers).map_err(|_| invalid())?,
        };
        let count = |number: u64| i32::try_from(number).map_err(|_| invalid());
        let scale = f32::from_bits(u32::try_from(scale).map_err(|_| invalid())?);
        if !(scale.is_finite() && scale > 0.0) {
            return Err(invalid());
        }
        let (good, bad, skipped) = (count(good)?, count(bad)?, count(skipped)?);
        Ok(Some(ScaleState { scale, good, bad, skipped }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_they_were_sent() {
        let state = ScaleState { scale: 0.5, good: 7, bad: 0, skipped: 3 };
        assert_eq!(ScaleState::of(&state.numbers()).unwrap(), Some(state));
        assert_eq!(ScaleState::of(&[]).unwrap(), None);
        let mut bad: Vec<Vec<u64>> = vec![vec![1], vec![0; 5]];
        for (at, number) in [(0, 0), (0, u64::MAX), (0, f32::NAN.to_bits().into()), (2, 1 << 31)] {
            let mut numbers = state.numbers().to_vec();
            numbers[at] = number;
            bad.push(numbers);
        }
        for numbers in bad {
            let error = ScaleState::of(&numbers).unwrap_err().to_string();
            assert!(error.contains("expected a loss scale and three counts"), "{error}");
        }
    }

    #[test]
    fn counts_follow_from_the_number_of_good_steps() {
        let state = ScaleState { scale: 8.0, good: 0, bad: 1, skipped: 3 };
        assert_eq!(state.after(0), state);
        assert_eq!(state.after(5), ScaleState { good: 5, bad: 0, ..state });
    }
}
