//! TOML: names as in the text form, messages as tables, enums by name.

use super::document::{Data, Entry, Node, PROBLEMS_MAX};
use super::literal::{float32, quoted};
use crate::problem::{Places, Problem};
use crate::reflect::{Item, Kind, Reflect};
use crate::value::Value;
use std::fmt::Write;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

pub fn write(message: &dyn Reflect) -> String {
    let mut out = String::new();
    table(message, "", &mut out);
    out
}

/// Scalars come first, because TOML adds keys to the last table that was opened.
fn table(message: &dyn Reflect, path: &str, out: &mut String) {
    let fields = message.shape().fields;
    for field in fields.iter().filter(|field| !field.is_message()) {
        let slot = message.slot(field.number);
        let items: Vec<String> = slot.items().map(|item| scalar(field.kind, item)).collect();
        match (&items[..], field.repeated) {
            ([], _) => {}
            (items, true) => {
                let _ = writeln!(out, "{} = [{}]", field.name, items.join(", "));
            }
            (items, false) => {
                let _ = writeln!(out, "{} = {}", field.name, items[0]);
            }
        }
    }
    for field in fields.iter().filter(|field| field.is_message()) {
        for item in message.slot(field.number).items() {
            let Item::Message(nested) = item else { continue };
            let path = super::document::join(path, field.name);
            let gap = if out.is_empty() { "" } else { "\n" };
            let _ = match field.repeated {
                true => writeln!(out, "{gap}[[{path}]]"),
                false => writeln!(out, "{gap}[{path}]"),
            };
            table(nested, &path, out);
        }
    }
}

fn scalar(kind: Kind, item: Item<'_>) -> String {
    match item {
        Item::Float(value) => float32(value),
        // TOML's integers have 63 bits and a sign.
        Item::Uint64(value) if i64::try_from(value).is_err() => quoted(&value.to_string()),
        item => Value::of(kind, item).to_string(),
    }
}

pub fn read(text: &str) -> (Vec<Entry>, Vec<Problem>) {
    let places = Places::new(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    let problems = errors.iter().take(PROBLEMS_MAX).map(|error| {
        let start = error.span().map_or(0, |span| span.start);
        Problem::error("", error.message().replace('\n', ", ")).at(places.of(start))
    });
    let mut problems: Vec<Problem> = problems.collect();
    // At the end of the text, the parser reports each unclosed bracket separately.
    problems.dedup();
    (entries(table.get_ref(), &places), problems)
}

fn entries(table: &DeTable<'_>, places: &Places<'_>) -> Vec<Entry> {
    let entry = |(key, value): (&Spanned<_>, &Spanned<DeValue<'_>>)| Entry {
        key: <std::borrow::Cow<'_, str> as AsRef<str>>::as_ref(key.get_ref()).to_string(),
        at: places.of(key.span().start),
        node: node(value, places),
    };
    table.iter().map(entry).collect()
}

fn node(value: &Spanned<DeValue<'_>>, places: &Places<'_>) -> Node {
    let data = match value.get_ref() {
        DeValue::String(text) => Data::Value(Value::Str(text.to_string())),
        DeValue::Boolean(value) => Data::Value(Value::Bool(*value)),
        DeValue::Integer(number) => match i128::from_str_radix(number.as_str(), number.radix()) {
            Ok(value) => Data::Value(Value::Int(value)),
            Err(_) => Data::Number(number.as_str().into()),
        },
        DeValue::Float(number) => match number.as_str().parse() {
            Ok(value) => Data::Value(Value::Float(value)),
            Err(_) => Data::Number(number.as_str().into()),
        },
        DeValue::Datetime(time) => Data::Number(time.to_string()),
        DeValue::Array(values) => {
            Data::List(values.iter().map(|value| node(value, places)).collect())
        }
        DeValue::Table(table) => Data::Message(entries(table, places)),
    };
    Node { at: places.of(value.span().start), data }
}
