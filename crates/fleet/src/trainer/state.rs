//! State of a training between two steps, as checkpoints keep it.

use super::source::{Position, Source};
use crate::Resumed;
use fleet_base::{Error, Result};
use fleet_data::Cursor;
use std::collections::BTreeMap;
use std::str::FromStr;

/// A value of the goal, and the step that reached it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Best {
    /// Number of steps made.
    pub step: u64,
    /// Value of the goal.
    pub value: f64,
}

/// Progress of a training after a step.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct State {
    /// Number of steps made.
    pub step: u64,
    /// Number of whole epochs made.
    pub epoch: u64,
    /// Position within the epoch.
    pub position: Position,
    /// Rows of all workers up to the last row of scalars.
    pub rows: u64,
    /// Duration of the training, in seconds.
    pub seconds: f64,
    /// Sums of value times rows of this worker since the last row of scalars; last, its rows.
    pub sums: Vec<f64>,
    pub best: Option<Best>,
    /// Number of validations since the best one.
    pub misses: u64,
}

/// Where a training begins that is not new.
pub(super) struct Start {
    pub state: State,
    /// The checkpoint that it resumes from.
    pub resumed: Option<Resumed>,
    /// Whether it is that of a restarted worker, which joins the others.
    pub has_joined: bool,
}

/// Returns the state after a step of which only the number is known. The data must know its length.
pub(super) fn state_at(step: u64, data: &dyn Source, watched: usize) -> Result<State> {
    let mut state = State { step, sums: vec![0.0; watched + 1], ..State::default() };
    if step == 0 {
        return Ok(state);
    }
    let Some(count) = data.batches_after(Position::default()).filter(|count| *count > 0) else {
        return Err(Error::unsupported("cannot find the position of a step in the data")
            .expected("data of known length, such as a Loader or an InMemoryDataset")
            .got(format!("{step} steps, and a pass of unknown length")));
    };
    state.epoch = step / count;
    state.position = Position { batches: step % count, cursor: None };
    Ok(state)
}

/// Prefix of the names of entries.
const PREFIX: &str = "trainer.";

impl State {
    /// Returns the entries of a checkpoint of `ranks` ranks.
    pub fn entries(
        &self,
        ranks: usize,
        constants: &[(String, String)],
    ) -> BTreeMap<String, String> {
        let mut all = BTreeMap::new();
        let mut put = |name: &str, value: String| _ = all.insert(format!("{PREFIX}{name}"), value);
        put("epoch", self.epoch.to_string());
        put("batches", self.position.batches.to_string());
        put("rows", self.rows.to_string());
        put("seconds", self.seconds.to_string());
        put("sums", self.sums.iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
        put("misses", self.misses.to_string());
        put("ranks", ranks.to_string());
        for (name, value) in constants {
            put(&format!("constant.{name}"), value.clone());
        }
        if let Some(cursor) = self.position.cursor {
            put("cursor", cursor.to_string());
        }
        if let Some(best) = self.best {
            put("best", best.value.to_string());
            put("best_step", best.step.to_string());
        }
        all
    }

    /// Checks that the constants of a training are those of the checkpoint.
    pub fn check_constants(
        constants: &[(String, String)],
        entries: &BTreeMap<String, String>,
    ) -> Result<()> {
        for (name, value) in constants {
            let saved = entries.get(&format!("{PREFIX}constant.{name}"));
            if saved != Some(value) {
                return Err(Error::invalid(format!("the checkpoints have another {name}"))
                    .expected(value)
                    .got(saved.map_or("none", String::as_str))
                    .help(format!("use another folder, or the {name} of the checkpoints")));
            }
        }
        Ok(())
    }

    /// Reads the entries of a checkpoint of this step, and the number of ranks that saved it. With
    /// another number of ranks, sums since the last row of scalars are dropped.
    pub fn read(
        step: u64,
        entries: &BTreeMap<String, String>,
        ranks: usize,
        watched: usize,
    ) -> Result<(State, usize)> {
        let entry = |name: &str| entries.get(&format!("{PREFIX}{name}")).map(String::as_str);
        let cursor = entry("cursor").map(Cursor::from_str).transpose()?;
        let best = match (entry("best"), entry("best_step")) {
            (Some(value), Some(step)) => {
                let (value, step) = (parse("best", value)?, parse("best_step", step)?);
                Some(Best { step, value })
            }
            _ => None,
        };
        let number = |name| parse::<u64>(name, required(name, entry(name))?);
        let old_ranks = number("ranks")?;
        let old_ranks = usize::try_from(old_ranks).unwrap_or(usize::MAX);
        let is_same = old_ranks == ranks;
        let sums = match entry("sums").filter(|_| is_same) {
            None | Some("") => Vec::new(),
            Some(text) => {
                text.split(' ').map(|it| parse("sums", it)).collect::<Result<Vec<f64>>>()?
            }
        };
        let sums = if sums.len() == watched + 1 { sums } else { vec![0.0; watched + 1] };
        let batches = number("batches")?;
        let seconds = parse("seconds", required("seconds", entry("seconds"))?)?;
        let state = State {
            step,
            epoch: number("epoch")?,
            position: Position { batches, cursor },
            rows: number("rows")?,
            seconds,
            sums,
            best,
            misses: number("misses")?,
        };
        Ok((state, old_ranks))
    }
}

fn required<'a>(name: &str, entry: Option<&'a str>) -> Result<&'a str> {
    entry.ok_or_else(|| {
        Error::invalid("the checkpoint was not made by a trainer")
            .expected(format!("an entry '{PREFIX}{name}'"))
            .help("use another folder, or resume it with Checkpoints::resume")
    })
}

fn parse<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| {
        Error::invalid(format!("invalid entry '{PREFIX}{name}' of a checkpoint"))
            .expected("a number")
            .got(format!("{text:?}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let cursor = Cursor { epoch: 3, taken: 64, seed: 7, sample_count: 1000 };
        State {
            step: 17,
            epoch: 3,
            position: Position { batches: 5, cursor: Some(cursor) },
            rows: 544,
            seconds: 1.0 / 3.0,
            sums: vec![0.1 + 0.2, 96.0],
            best: Some(Best { step: 12, value: 2.0 / 7.0 }),
            misses: 2,
        }
    }

    #[test]
    fn entries_read_back_bit_by_bit() {
        for state in [state(), State { sums: vec![0.0; 2], ..State::default() }] {
            let read = State::read(state.step, &state.entries(2, &[]), 2, 1).unwrap();
            assert_eq!(read, (state, 2));
        }
        // Another number of ranks: no sums.
        let (other, ranks) = State::read(17, &state().entries(2, &[]), 1, 1).unwrap();
        assert_eq!((other.sums, ranks), (vec![0.0; 2], 2));
    }

    #[test]
    fn bad_entries_are_refused() {
        let error = State::read(1, &BTreeMap::new(), 1, 0).unwrap_err().to_string();
        assert!(error.contains("not made by a trainer"), "{error}");
        for name in ["epoch", "batches", "rows", "seconds", "sums", "misses", "cursor", "best"] {
            let mut entries = state().entries(1, &[]);
            entries.insert(format!("{PREFIX}{name}"), "x".to_string());
            State::read(17, &entries, 1, 1).expect_err(name);
        }
    }
}
