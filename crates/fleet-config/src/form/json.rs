//! JSON: names as in the text form, enums by name, infinities and NaN as strings.
//!
//! This crate has its own parser, because problems must be reported with line and column.

use super::cursor::Cursor;
use super::document::{DEPTH_MAX, Data, Entry, Node};
use super::literal::{float32, float64, quoted};
use crate::problem::{Place, Problem};
use crate::reflect::{Item, Kind, Reflect};
use crate::value::Value;
use std::fmt::Write;

pub fn write(message: &dyn Reflect) -> String {
    let mut out = String::new();
    object(message, 0, &mut out);
    out.push('\n');
    out
}

fn object(message: &dyn Reflect, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth + 1);
    let mut comma = "\n";
    out.push('{');
    for field in message.shape().fields {
        let slot = message.slot(field.number);
        if slot.count() == 0 {
            continue;
        }
        let _ = write!(out, "{comma}{indent}{}: ", quoted(field.name));
        comma = ",\n";
        if field.repeated {
            out.push('[');
        }
        for (index, item) in slot.items().enumerate() {
            if index > 0 {
                out.push_str(", ");
            }
            match item {
                Item::Message(nested) => object(nested, depth + 1, out),
                item => out.push_str(&scalar(field.kind, item)),
            }
        }
        if field.repeated {
            out.push(']');
        }
    }
    match comma {
        "\n" => out.push('}'),
        _ => {
            let _ = write!(out, "\n{}}}", "  ".repeat(depth));
        }
    }
}

fn scalar(kind: Kind, item: Item<'_>) -> String {
    let finite = |value: f64, text: String| match value.is_finite() {
        true => text,
        false => quoted(&text),
    };
    match item {
        Item::Float(value) => finite(value.into(), float32(value)),
        Item::Double(value) => finite(value, float64(value)),
        item => Value::of(kind, item).to_string(),
    }
}

/// Parses a text into a tree. JSON has no line structure for recovery, so only the first syntax
/// error is reported.
pub fn read(text: &str) -> (Vec<Entry>, Vec<Problem>) {
    let mut reader = Reader::new(text);
    let entries = reader.value(0).and_then(|node| {
        reader.end()?;
        match node.data {
            Data::Message(entries) => Ok(entries),
            _ => Err(("expected an object".into(), node.at)),
        }
    });
    match entries {
        Ok(entries) => (entries, Vec::new()),
        Err((message, at)) => (Vec::new(), vec![Problem::error("", message).at(at)]),
    }
}

impl Value {
    /// Parses a command-line value: JSON, Python's `True` and `False`, or else a text.
    ///
    /// ```
    /// use fleet_config::Value;
    /// assert_eq!(Value::read("[1, 2]"), [1, 2].into());
    /// assert_eq!(Value::read("1F1B"), "1F1B".into());
    /// ```
    pub fn read(text: &str) -> Value {
        match text.trim() {
            "True" => Value::Bool(true),
            "False" => Value::Bool(false),
            trimmed => json_value(trimmed).unwrap_or_else(|| text.into()),
        }
    }
}

/// Returns `None` if the text is not JSON.
fn json_value(text: &str) -> Option<Value> {
    let mut reader = Reader::new(text);
    let node = reader.value(0).ok()?;
    reader.end().ok()?;
    Some(plain(node.data))
}

fn plain(data: Data) -> Value {
    match data {
        Data::Word(text) | Data::Number(text) => Value::Str(text),
        Data::Value(value) => value,
        Data::List(nodes) => Value::List(nodes.into_iter().map(|node| plain(node.data)).collect()),
        Data::Message(entries) => {
            Value::map(entries.into_iter().map(|entry| (entry.key, plain(entry.node.data))))
        }
    }
}

type SyntaxError = (String, Place);

struct Reader<'t> {
    chars: Cursor<'t>,
}

impl<'t> Reader<'t> {
    fn new(text: &'t str) -> Reader<'t> {
        Reader { chars: Cursor::new(text) }
    }

    fn skip_space(&mut self) {
        self.chars.take_while(|c| matches!(c, ' ' | '\t' | '\r' | '\n'));
    }

    fn accept(&mut self, sign: char) -> bool {
        self.skip_space();
        self.chars.next_if(|c| c == sign).is_some()
    }

    fn expected<T>(&mut self, what: &str) -> Result<T, SyntaxError> {
        let got = match self.chars.peek() {
            Some(c) => format!("'{}'", c.escape_debug()),
            None => "the end of the text".into(),
        };
        Err((format!("expected {what}, got {got}"), self.chars.at))
    }

    fn end(&mut self) -> Result<(), SyntaxError> {
        self.skip_space();
        match self.chars.peek() {
            None => Ok(()),
            Some(_) => self.expected("the end of the text"),
        }
    }

    fn value(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        self.skip_space();
        let at = self.chars.at;
        if depth >= DEPTH_MAX {
            return Err((format!("values are nested deeper than {DEPTH_MAX} levels"), at));
        }
        let data = match self.chars.peek() {
            Some('{') => Data::Message(self.sequence('}', |reader| reader.entry(depth))?),
            Some('[') => Data::List(self.sequence(']', |reader| reader.value(depth + 1))?),
            Some('"') => Data::Value(Value::Str(self.string()?)),
            Some('-' | '0'..='9') => Data::Value(self.number(at)?),
            Some('a'..='z' | 'A'..='Z') => Data::Value(self.word(at)?),
            _ => return self.expected("a value"),
        };
        Ok(Node { at, data })
    }

    /// Parses items separated by commas, from the opening sign up to `close`.
    fn sequence<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T, SyntaxError>,
    ) -> Result<Vec<T>, SyntaxError> {
        self.chars.next();
        let mut items = Vec::new();
        if self.accept(close) {
            return Ok(items);
        }
        loop {
            items.push(item(self)?);
            if self.accept(close) {
                return Ok(items);
            }
            if !self.accept(',') {
                return self.expected(&format!("',' or '{close}'"));
            }
        }
    }

    /// Parses a name and its value.
    fn entry(&mut self, depth: usize) -> Result<Entry, SyntaxError> {
        self.skip_space();
        let at = self.chars.at;
        if self.chars.peek() != Some('"') {
            return self.expected("a name in double quotes");
        }
        let key = self.string()?;
        if !self.accept(':') {
            return self.expected("':'");
        }
        Ok(Entry { key, at, node: self.value(depth + 1)? })
    }

    fn number(&mut self, at: Place) -> Result<Value, SyntaxError> {
        let part = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
        let text = self.chars.take_while(part);
        let value = match text.contains(['.', 'e', 'E']) {
            true => text.parse().ok().map(Value::Float),
            false => text.parse().ok().map(Value::Int),
        };
        value.ok_or_else(|| (format!("'{text}' is not a number"), at))
    }

    fn word(&mut self, at: Place) -> Result<Value, SyntaxError> {
        let word = self.chars.take_while(|c| c.is_ascii_alphanumeric());
        match word.as_str() {
            "true" => Ok(Value::Bool(true)),
            "false" => Ok(Value::Bool(false)),
            "null" => Ok(Value::None),
            _ => Err((format!("expected a value, got '{word}'"), at)),
        }
    }

    fn string(&mut self) -> Result<String, SyntaxError> {
        let at = self.chars.at;
        self.chars.next();
        let mut text = String::new();
        loop {
            match self.chars.next() {
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape()?),
                Some(c) if c >= ' ' => text.push(c),
                _ => return Err(("the string has no closing \"".into(), at)),
            }
        }
    }

    fn escape(&mut self) -> Result<char, SyntaxError> {
        let at = self.chars.at;
        let wrong = || ("unknown escape in a string".to_string(), at);
        let c = match self.chars.next() {
            Some(c @ ('"' | '\\' | '/')) => c,
            Some('b') => '\u{8}',
            Some('f') => '\u{c}',
            Some('n') => '\n',
            Some('r') => '\r',
            Some('t') => '\t',
            Some('u') => {
                let first = self.hex().ok_or_else(wrong)?;
                // A character beyond the basic plane is two escapes.
                let code = match first {
                    0xd800..0xdc00 => {
                        if self.chars.next() != Some('\\') || self.chars.next() != Some('u') {
                            return Err(wrong());
                        }
                        let second = self.hex().filter(|code| (0xdc00..0xe000).contains(code));
                        0x10000 + ((first - 0xd800) << 10) + second.ok_or_else(wrong)? - 0xdc00
                    }
                    code => code,
                };
                char::from_u32(code).ok_or_else(wrong)?
            }
            _ => return Err(wrong()),
        };
        Ok(c)
    }

    fn hex(&mut self) -> Option<u32> {
        (0..4).try_fold(0, |value, _| Some(value << 4 | self.chars.digit(16)?))
    }
}
