//! A file as a tree with positions, and how the tree fills a strategy. The three text forms differ
//! only in how the tree is parsed, not in its meaning.

use crate::compat;
use crate::problem::{Place, Problem};
use crate::reflect::{Field, Kind, Reflect};
use crate::value::{Value, expected_type};
use fleet_base::text::did_you_mean;
use std::collections::{BTreeMap, BTreeSet};

/// A key and its value.
pub struct Entry {
    pub key: String,
    pub at: Place,
    pub node: Node,
}

pub struct Node {
    pub at: Place,
    pub data: Data,
}

pub enum Data {
    /// A bare word: `true`, `PS`, `inf`.
    Word(String),
    /// A number as written; the field decides whether `010` is eight or ten.
    Number(String),
    /// Any value except lists and maps.
    Value(Value),
    List(Vec<Node>),
    Message(Vec<Entry>),
}

/// Deeper trees are rejected; the deepest message has five levels.
pub const DEPTH_MAX: usize = 64;

/// Reading stops after this many problems. Users do not read more, and a wrong file can have many.
pub const PROBLEMS_MAX: usize = 100;

/// The result of filling a strategy.
#[derive(Default)]
pub struct FillResult {
    pub problems: Vec<Problem>,
    /// Position of the last assignment to each path.
    pub places: BTreeMap<String, Place>,
    /// Whether the form has bare words, so that strings are not accepted in their place.
    pub has_words: bool,
}

impl FillResult {
    /// Assigns everything in `entries` to the message at `path`.
    pub fn fill(&mut self, target: &mut dyn Reflect, entries: Vec<Entry>, path: &str) {
        let shape = target.shape();
        let mut seen = BTreeSet::new();
        for entry in entries {
            if self.problems.len() >= PROBLEMS_MAX {
                return;
            }
            let Some(field) = shape.field(&entry.key) else {
                match compat::renamed(shape.name, &entry.key) {
                    Some(renamed) => self.renamed(target, entry, renamed, path),
                    None => self.unknown(target, &entry, path),
                }
                continue;
            };
            let path = join(path, field.name);
            if !field.repeated && !seen.insert(field.number) && !field.is_message() {
                let problem = Problem::warning(&*path, "assigned more than once")
                    .why("the last value wins")
                    .help("keep only one");
                self.problems.push(problem.at(entry.at));
            }
            self.field(target, field, entry, path);
        }
    }

    /// Assigns through an alias from documents, or a name of the 1.x interface.
    fn renamed(
        &mut self,
        target: &mut dyn Reflect,
        entry: Entry,
        renamed: compat::Alias,
        path: &str,
    ) {
        let (old, at) = (join(path, &entry.key), entry.at);
        self.problems.extend(renamed.notice(&old).map(|notice| notice.at(at)));
        let mut keys = renamed.path.rsplit('.');
        let mut entry = Entry { key: keys.next().unwrap_or_default().into(), ..entry };
        for key in keys {
            let node = Node { at, data: Data::Message(vec![entry]) };
            entry = Entry { key: key.into(), at, node };
        }
        self.fill(target, vec![entry], path);
    }

    fn unknown(&mut self, target: &dyn Reflect, entry: &Entry, path: &str) {
        let shape = target.shape();
        let (key, hint) = (&entry.key, did_you_mean(&entry.key, shape.names()));
        let message = format!("{} has no field '{key}'{hint}", shape.name);
        self.problems.push(Problem::error(join(path, &entry.key), message).at(entry.at));
    }

    fn field(&mut self, target: &mut dyn Reflect, field: &Field, entry: Entry, path: String) {
        let nodes = match entry.node.data {
            // JSON's null means not assigned.
            Data::Value(Value::None) => return,
            Data::List(nodes) if field.repeated => nodes,
            data => vec![Node { at: entry.node.at, data }],
        };
        self.places.insert(path.clone(), entry.at);
        for node in nodes {
            let at = node.at;
            let slot = target.slot_mut(field.number);
            let path = match field.repeated {
                true => format!("{path}[{}]", slot.count()),
                false => path.clone(),
            };
            match (field.kind, node.data) {
                (Kind::Message(_), Data::Message(entries)) => {
                    self.places.insert(path.clone(), entry.at);
                    if let Some(message) = slot.open() {
                        self.fill(message, entries, &path);
                    }
                }
                (kind, data) => {
                    let scalar = scalar_value(kind, &data, self.has_words)
                        .and_then(|value| value.scalar(kind));
                    match scalar {
                        Some(scalar) => {
                            slot.put(scalar);
                            self.places.insert(path, at);
                        }
                        None => {
                            let message =
                                format!("expected {}, got {}", expected_type(kind), preview(&data));
                            self.problems.push(Problem::error(path, message).at(at));
                        }
                    }
                }
            }
        }
    }
}

/// Returns the value that a scalar in the file has for a field of this kind.
fn scalar_value(kind: Kind, data: &Data, has_words: bool) -> Option<Value> {
    let value = match data {
        Data::Value(value) => value.clone(),
        Data::Word(word) => match (kind, word.as_str()) {
            (Kind::Bool, "true" | "True" | "t") => Value::Bool(true),
            (Kind::Bool, "false" | "False" | "f") => Value::Bool(false),
            (Kind::Float | Kind::Double, _) => Value::Float(parse_special(word)?),
            (Kind::Enum(_), name) => Value::Str(name.into()),
            _ => return None,
        },
        Data::Number(text) => return number(kind, text),
        Data::List(_) | Data::Message(_) => return None,
    };
    match (kind, &value) {
        // JSON has no literals for infinities and NaN, and TOML has no integers above 63 bits.
        (Kind::Bool | Kind::Float | Kind::Double | Kind::Enum(_), Value::Str(_))
            if has_words && matches!(data, Data::Value(_)) =>
        {
            None
        }
        (Kind::Float | Kind::Double, Value::Str(text)) => Some(Value::Float(parse_special(text)?)),
        (Kind::Uint64, Value::Str(text)) => Some(Value::Int(text.parse::<u64>().ok()?.into())),
        // In files, booleans and numbers are not interchangeable.
        (Kind::Bool, Value::Int(_)) => None,
        (Kind::Int32 | Kind::Uint32 | Kind::Uint64, Value::Bool(_)) => None,
        _ => Some(value),
    }
}

/// Parses a number of the text form: integers also as `0x1f` or `017`, floats also as `1f`.
fn number(kind: Kind, text: &str) -> Option<Value> {
    if matches!(kind, Kind::Float | Kind::Double) {
        let digits = text.strip_suffix(['f', 'F']).unwrap_or(text);
        let value = parse_special(text).or_else(|| digits.parse().ok());
        return value.map(Value::Float);
    }
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if !digits.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    let value = i128::from_str_radix(digits, radix).ok()?;
    let plain = radix == 10 && !negative;
    match kind {
        Kind::Bool if !plain => None,
        _ => Some(Value::Int(if negative { -value } else { value })),
    }
}

/// Parses `inf`, `infinity` and `nan` in any case, with or without a minus.
fn parse_special(word: &str) -> Option<f64> {
    let name = word.strip_prefix('-').unwrap_or(word);
    word.parse().ok().filter(|_| name.starts_with(|c: char| c.is_ascii_alphabetic()))
}

fn preview(data: &Data) -> String {
    /// Longer values are truncated to keep messages readable.
    const CHARS_MAX: usize = 60;
    let text = match data {
        Data::Word(text) | Data::Number(text) => text.clone(),
        Data::Value(value) => value.to_string(),
        Data::List(_) => "a list".into(),
        Data::Message(_) => "a message".into(),
    };
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

pub fn join(path: &str, name: &str) -> String {
    if path.is_empty() { name.into() } else { format!("{path}.{name}") }
}
