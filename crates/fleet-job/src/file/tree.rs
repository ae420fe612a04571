//! A TOML file as a tree with positions.

use fleet_config::{Place, Places, Problem};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A key and its value.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// Position of the key.
    pub at: Place,
    /// The value.
    pub node: Node,
}

/// A value and its position.
#[derive(Clone, Debug)]
pub struct Node {
    /// Position of the value.
    pub at: Place,
    /// The value.
    pub data: Data,
}

/// A value.
#[derive(Clone, Debug)]
pub enum Data {
    /// Text, or a date, as written.
    Text(String),
    /// `true` or `false`.
    Bool(bool),
    /// An integer.
    Int(i64),
    /// Any other number.
    Number(f64),
    /// A list.
    List(Vec<Node>),
    /// A table, in the order of the file.
    Table(Vec<Entry>),
}

impl Data {
    /// Describes the value for errors: `'text'`, `17`, `a list`.
    pub fn got(&self) -> String {
        match self {
            Data::Text(text) => format!("'{text}'"),
            Data::Bool(value) => value.to_string(),
            Data::Int(value) => value.to_string(),
            Data::Number(value) => value.to_string(),
            Data::List(items) => format!("a list of {}", items.len()),
            Data::Table(_) => "a table".to_string(),
        }
    }
}

/// Parses TOML. Errors of the syntax are problems with a position; the tree has what was readable.
pub fn parse(text: &str) -> (Vec<Entry>, Vec<Problem>) {
    let places = Places::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    let problems = errors.iter().map(|error| {
        let start = error.span().map_or(0, |span| span.start);
        Problem::error("", error.message().replace('\n', ", ")).at(places.of(start))
    });
    let mut problems: Vec<Problem> = problems.take(PROBLEMS_MAX).collect();
    // At the end of the text, the parser reports each unclosed bracket separately.
    problems.dedup();
    (entries(table.get_ref(), &places), problems)
}

/// More errors of syntax do not help: they follow from the first ones.
const PROBLEMS_MAX: usize = 20;

/// Tables are sorted by key; positions restore the order of the file.
fn entries(table: &DeTable<'_>, places: &Places<'_>) -> Vec<Entry> {
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| Entry {
        key: <std::borrow::Cow<'_, str> as AsRef<str>>::as_ref(key.get_ref()).to_string(),
        at: places.of(key.span().start),
        node: node(value, places),
    };
    let mut entries: Vec<Entry> = table.iter().map(entry).collect();
    entries.sort_by_key(|entry| entry.at);
    entries
}

fn node(value: &Spanned<DeValue<'_>>, places: &Places<'_>) -> Node {
    let data = match value.get_ref() {
        DeValue::String(text) => Data::Text(text.to_string()),
        DeValue::Boolean(value) => Data::Bool(*value),
        DeValue::Integer(number) => match i64::from_str_radix(number.as_str(), number.radix()) {
            Ok(value) => Data::Int(value),
            Err(_) => Data::Number(number.as_str().parse().unwrap_or(f64::NAN)),
        },
        DeValue::Float(number) => Data::Number(number.as_str().parse().unwrap_or(f64::NAN)),
        DeValue::Datetime(time) => Data::Text(time.to_string()),
        DeValue::Array(values) => {
            Data::List(values.iter().map(|value| node(value, places)).collect())
        }
        DeValue::Table(table) => Data::Table(entries(table, places)),
    };
    Node { at: places.of(value.span().start), data }
}
