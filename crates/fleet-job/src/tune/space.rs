//! The fields of `[tune]`: their values, their checks, and the trials drawn from them.

use crate::file::{Data, Entry, Node, Text, View, problems_of_value, set};
use crate::schema::{Field, JOB, Kind, Table};
use fleet_base::rng::Sequence;
use fleet_base::text;
use fleet_config::{Place, Problem};

/// A field that is searched.
pub struct Searched {
    /// Its path, as in the file.
    pub path: String,
    keys: Vec<String>,
    at: Place,
    values: Values,
    is_integer: bool,
}

enum Values {
    Choice(Vec<Node>),
    Between { low: f64, high: f64, is_log: bool },
}

/// Tables whose fields may be searched: all trials must have the same rows and the same measure.
const TABLES: [&str; 5] = ["columns", "crosses", "model", "train", "tables"];
/// Fields in these tables that decide over rows, labels or the run.
const FIXED: [&str; 10] = [
    "role",
    "name",
    "separator",
    "positive",
    "at_least",
    "classes",
    "seed",
    "warm_start",
    "checkpoint_every",
    "epochs",
];
/// Significant digits of a number that is drawn, so that the best job file is readable.
const DIGITS: i32 = 3;
/// Draws of a trial before the search space is taken to have no other trials.
const DRAWS_MAX: usize = 200;

/// Returns the fields of `[tune]` that can be searched, and the problems of the others.
pub fn searched(root: &[Entry]) -> (Vec<Searched>, Vec<Problem>) {
    let (mut fields, mut problems) = (Vec::new(), Vec::new());
    for entry in View::root(root).table("tune").entries() {
        match field_of(root, entry) {
            Ok(field) => fields.push(field),
            Err(found) => problems.extend(found),
        }
    }
    (fields, problems)
}

/// Returns all problems of `[tune]`, with `check` for the rules between fields: each value alone
/// must make a valid job.
pub fn problems(file: &Text, check: impl Fn(&Text) -> Vec<Problem>) -> Vec<Problem> {
    let (fields, mut problems) = searched(&file.root);
    let base = Text { file: file.file.clone(), root: plain(&file.root), problems: Vec::new() };
    let known: Vec<String> = check(&base).iter().map(|problem| problem.message.clone()).collect();
    for field in &fields {
        for (value, at) in field.ends() {
            let mut root = base.root.clone();
            let shown = crate::file::inline(&value);
            let path = tune_path(&field.path);
            if let Err(key) = set(&mut root, &field.keys, value, at) {
                let message = format!("'{key}' is not written as a table");
                problems.push(Problem::error(path, message).at(field.at));
                break;
            }
            let trial = Text { file: file.file.clone(), root, problems: Vec::new() };
            let new = check(&trial).into_iter().filter(|problem| problem.is_error());
            for problem in new.filter(|problem| !known.contains(&problem.message)) {
                let message = format!("with {shown}: {}: {}", problem.path, problem.message);
                problems.push(Problem::error(&path, message).at(at));
            }
        }
    }
    problems
}

/// Returns a job without `[tune]`.
pub fn plain(root: &[Entry]) -> Vec<Entry> {
    root.iter().filter(|entry| entry.key != "tune").cloned().collect()
}

fn tune_path(path: &str) -> String {
    format!("tune.\"{path}\"")
}

fn field_of(root: &[Entry], entry: &Entry) -> Result<Searched, Vec<Problem>> {
    let path = tune_path(&entry.key);
    let at_key = |message: String| vec![Problem::error(&path, message).at(entry.at)];
    let (keys, field) = find(root, &entry.key).map_err(at_key)?;
    let name = field.name;
    let table = keys.first().map(String::as_str).unwrap_or_default();
    if !TABLES.contains(&table) || FIXED.contains(&name) {
        let problem = Problem::error(&path, "the field cannot be searched").at(entry.at);
        return Err(vec![problem.help(format!(
            "fields of {} can, except {}",
            TABLES.join(", "),
            FIXED.join(", ")
        ))]);
    }
    let view = View::of(&entry.node);
    let mut forms = ["choice", "range", "log"].into_iter().filter(|it| view.node(it).is_some());
    let (Some(form), None) = (forms.next(), forms.next()) else {
        let problem = Problem::error(&path, "expected one of choice, range and log");
        let help = "for example { choice = [8, 16] } or { log = [1e-4, 1e-2] }";
        return Err(vec![problem.at(entry.node.at).help(help)]);
    };
    let items = match view.node(form).map(|node| &node.data) {
        Some(Data::List(items)) => items.clone(),
        // The schema has reported it.
        _ => return Err(Vec::new()),
    };
    let wrong: Vec<Problem> =
        items.iter().flat_map(|item| problems_of_value(&path, item, &field.kind)).collect();
    if !wrong.is_empty() {
        return Err(wrong);
    }
    let is_integer = matches!(field.kind, Kind::Int(..));
    let at = entry.at;
    let searched = |values| Searched { path: entry.key.clone(), keys, at, values, is_integer };
    if form == "choice" {
        return Ok(searched(Values::Choice(items)));
    }
    let ends: Vec<f64> = items.iter().filter_map(number).collect();
    let is_log = form == "log";
    match ends[..] {
        [low, high] if low < high && !(is_log && low <= 0.0) => {
            Ok(searched(Values::Between { low, high, is_log }))
        }
        _ => {
            let above = if is_log { ", both above 0" } else { "" };
            let message = format!("expected two numbers, the lower one first{above}");
            Err(vec![Problem::error(&path, message).at(entry.node.at)])
        }
    }
}

fn number(node: &Node) -> Option<f64> {
    match node.data {
        Data::Int(value) => Some(value as f64),
        Data::Number(value) => Some(value).filter(|value| value.is_finite()),
        _ => None,
    }
}

/// Returns the keys of a path and its field. Names of columns and crosses may contain dots.
fn find(root: &[Entry], path: &str) -> Result<(Vec<String>, &'static Field), String> {
    let mut keys = Vec::new();
    let (mut table, mut rest, mut view) = (&JOB, path, View::root(root));
    loop {
        let (name, after) = rest.split_once('.').map_or((rest, None), |(a, b)| (a, Some(b)));
        let Some(field) = table.field(name) else {
            let near = text::did_you_mean(name, table.names());
            return Err(format!("no field '{name}'{near}"));
        };
        keys.push(name.to_string());
        view = view.table(name);
        let Some(after) = after else {
            return match nested(&field.kind) {
                Some(_) => Err(format!("'{path}' is a table: name one of its fields")),
                None => Ok((keys, field)),
            };
        };
        let Some((next, is_map)) = nested(&field.kind) else {
            return Err(format!("'{name}' has no fields"));
        };
        rest = after;
        if is_map {
            let names = || view.entries().iter().map(|entry| entry.key.as_str());
            let found = names().filter_map(|name| {
                let rest = after.strip_prefix(name)?.strip_prefix('.')?;
                Some((name, rest))
            });
            let Some((found, after)) = found.max_by_key(|(name, _)| name.len()) else {
                let wanted = after.rsplit_once('.').map_or(after, |(name, _)| name);
                let near = text::did_you_mean(wanted, names());
                return Err(format!("[{name}] has no '{wanted}'{near}"));
            };
            keys.push(found.to_string());
            (view, rest) = (view.table(found), after);
        }
        table = next;
    }
}

/// Returns the table in a value, and whether it is one of several by name.
fn nested(kind: &Kind) -> Option<(&'static Table, bool)> {
    match kind {
        Kind::Table(table) => Some((table, false)),
        Kind::Map(kind) => nested(kind).map(|(table, _)| (table, true)),
        Kind::Either(kinds) => kinds.iter().find_map(nested),
        _ => None,
    }
}

impl Searched {
    /// Returns the values that a check tries: all choices, or both ends.
    fn ends(&self) -> Vec<(Data, Place)> {
        match &self.values {
            Values::Choice(items) => items.iter().map(|it| (it.data.clone(), it.at)).collect(),
            Values::Between { low, high, .. } => {
                [*low, *high].map(|end| (self.data(end), self.at)).to_vec()
            }
        }
    }

    fn data(&self, value: f64) -> Data {
        match self.is_integer {
            true => Data::Int(value.round() as i64),
            false => Data::Number(value),
        }
    }

    fn draw(&self, random: &mut Sequence) -> Data {
        match &self.values {
            Values::Choice(items) => items[random.below(items.len() as u64) as usize].data.clone(),
            Values::Between { low, high, is_log: false } if self.is_integer => {
                let (low, high) = (low.ceil() as i64, high.floor() as i64);
                let count = high.saturating_sub(low).max(0) as u64 + 1;
                Data::Int(low + random.below(count) as i64)
            }
            Values::Between { low, high, is_log } => {
                let unit = random.unit();
                let value = match is_log {
                    true => (low.ln() + unit * (high / low).ln()).exp(),
                    false => low + unit * (high - low),
                };
                self.data(rounded(value).clamp(*low, *high))
            }
        }
    }
}

/// Rounds to a few significant digits.
fn rounded(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = (DIGITS - 1 - value.abs().log10().floor() as i32).clamp(0, 300) as usize;
    // The decimal text is the nearest number with these digits.
    format!("{value:.digits$}").parse().unwrap_or(value)
}

/// A trial: a job without `[tune]`.
pub struct Trial {
    /// Values of the searched fields as TOML, in the order of the file.
    pub values: Vec<String>,
    /// The job.
    pub root: Vec<Entry>,
}

/// Draws up to `count` different trials whose jobs are valid. A small search space has fewer.
pub fn trials(
    root: &[Entry],
    fields: &[Searched],
    count: usize,
    seed: u64,
    is_valid: impl Fn(&[Entry]) -> bool,
) -> Vec<Trial> {
    let mut trials: Vec<Trial> = Vec::new();
    let mut random = Sequence::new(seed, 0);
    let mut failures = 0;
    while trials.len() < count && failures < DRAWS_MAX {
        let mut trial = Trial { values: Vec::new(), root: plain(root) };
        for field in fields {
            let data = field.draw(&mut random);
            trial.values.push(crate::file::inline(&data));
            // A path that cannot be set is a problem of the file already.
            let _ = set(&mut trial.root, &field.keys, data, field.at);
        }
        let is_new = trials.iter().all(|other| other.values != trial.values);
        if is_new && is_valid(&trial.root) {
            trials.push(trial);
            failures = 0;
        } else {
            failures += 1;
        }
    }
    trials
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file::read_text;

    const HEAD: &str = "version = 1\n[data]\ntrain = \"a.csv\"\n[columns]\n\
        y = { role = \"label\" }\n\
        \"a.b\" = { kind = \"number\", embed = \"piecewise\" }\n[tune]\n";

    fn read(tune: &str) -> (Vec<Entry>, Vec<Searched>, Vec<String>) {
        let text = read_text("job.toml".as_ref(), &format!("{HEAD}{tune}"));
        let (fields, problems) = searched(&text.root);
        let problems = text.problems.iter().chain(&problems).map(|it| it.to_string()).collect();
        (text.root, fields, problems)
    }

    #[test]
    fn draws_are_in_range_and_repeatable() {
        let (root, fields, problems) = read(
            "\"train.optimizer.rate\" = { log = [1e-4, 1e-2] }\n\
             \"model.dim\" = { range = [2, 9] }\n\
             \"model.hidden\" = { choice = [[], [64, 32]] }\n\
             \"columns.a.b.bins\" = { log = [2, 64] }\n",
        );
        assert!(problems.is_empty(), "{problems:?}");
        let draw = |seed| trials(&root, &fields, 30, seed, |_| true);
        let all = draw(1);
        assert_eq!(all.len(), 30);
        for trial in &all {
            let rate: f64 = trial.values[0].parse().unwrap();
            let dim: i64 = trial.values[1].parse().unwrap();
            let bins: i64 = trial.values[3].parse().unwrap();
            assert!((1e-4..=1e-2).contains(&rate) && (2..=9).contains(&dim));
            assert!((2..=64).contains(&bins));
            let job = crate::job::Job::of(View::root(&trial.root));
            assert_eq!((job.train.optimizer.rate, job.model.dim), (rate, dim));
            assert!(trial.root.iter().all(|entry| entry.key != "tune"));
        }
        let values =
            |trials: Vec<Trial>| trials.into_iter().map(|it| it.values).collect::<Vec<_>>();
        assert_eq!(values(draw(1)), values(all));
        assert_ne!(values(draw(2)), values(draw(1)));
        // A small space has few trials.
        let (root, fields, _) = read("\"model.dim\" = { choice = [4, 8] }\n");
        assert_eq!(trials(&root, &fields, 30, 1, |_| true).len(), 2);
    }

    #[test]
    fn numbers_are_rounded() {
        assert_eq!([0.0012345, 123.456, 0.5, 0.0].map(rounded), [0.00123, 123.0, 0.5, 0.0]);
        assert_eq!(rounded(123456.0), 123456.0);
    }
}
