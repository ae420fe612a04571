//! Writes a tree as a TOML file. Comments of the file that it was read from are not in the tree.

use super::tree::{Data, Entry, Node};
use fleet_config::Place;
use std::fmt::Write;

/// Sets a value, and makes the tables on its path that are missing. Fails with the key at which
/// the path meets something other than a table.
pub fn set(entries: &mut Vec<Entry>, keys: &[String], data: Data, at: Place) -> Result<(), String> {
    let [key, rest @ ..] = keys else { return Ok(()) };
    let index = match entries.iter().position(|entry| entry.key == *key) {
        Some(index) => index,
        None => {
            let node = Node { at, data: Data::Table(Vec::new()) };
            entries.push(Entry { key: key.clone(), at, node });
            entries.len() - 1
        }
    };
    let node = &mut entries[index].node;
    if rest.is_empty() {
        *node = Node { at, data };
        return Ok(());
    }
    match &mut node.data {
        Data::Table(inner) => set(inner, rest, data, at),
        _ => Err(key.clone()),
    }
}

/// Returns the text of a file: single values first, then a section for each table. Tables in a
/// section are on a line of their own.
pub fn to_toml(root: &[Entry]) -> String {
    let is_table = |entry: &&Entry| matches!(entry.node.data, Data::Table(_));
    let mut out = String::new();
    for entry in root.iter().filter(|entry| !is_table(entry)) {
        put(entry, &mut out);
    }
    for entry in root.iter().filter(is_table) {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\n[{}]", key(&entry.key));
        if let Data::Table(inner) = &entry.node.data {
            inner.iter().for_each(|entry| put(entry, &mut out));
        }
    }
    out
}

fn put(entry: &Entry, out: &mut String) {
    let _ = writeln!(out, "{} = {}", key(&entry.key), inline(&entry.node.data));
}

/// Returns a value as TOML in one line.
pub fn inline(data: &Data) -> String {
    match data {
        Data::Text(text) => quoted(text),
        Data::Bool(value) => value.to_string(),
        Data::Int(value) => value.to_string(),
        Data::Number(value) if value.is_nan() => "nan".to_string(),
        Data::Number(value) if value.is_infinite() => {
            if *value > 0.0 { "inf" } else { "-inf" }.to_string()
        }
        // With a point or an exponent, so that it stays a number that is no integer.
        Data::Number(value) => format!("{value:?}"),
        Data::List(items) => {
            let items: Vec<String> = items.iter().map(|item| inline(&item.data)).collect();
            format!("[{}]", items.join(", "))
        }
        Data::Table(entries) if entries.is_empty() => "{}".to_string(),
        Data::Table(entries) => {
            let entry =
                |entry: &Entry| format!("{} = {}", key(&entry.key), inline(&entry.node.data));
            format!("{{ {} }}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    }
}

fn key(key: &str) -> String {
    let is_bare = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    match !key.is_empty() && key.chars().all(is_bare) {
        true => key.to_string(),
        false => quoted(key),
    }
}

fn quoted(text: &str) -> String {
    let mut out = "\"".to_string();
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{:04X}", letter as u32);
            }
            letter => out.push(letter),
        }
    }
    out + "\""
}

#[cfg(test)]
mod tests {
    use super::super::tree::parse;
    use super::*;

    /// A file that was written reads as the same values.
    #[test]
    fn files_read_as_they_were() {
        let text = "version = 1\n[data]\ntrain = ['a\"b\\c', \"tab\\t\"]\nafter = 2024-03-01\n\
                    [columns]\n\"a b\" = { kind = \"number\", sigma = 1e-3, big = 1e300 }\n\
                    [columns.c]\nvocabulary.min_count = 5\n[empty]\n";
        let (root, problems) = parse(text);
        assert!(problems.is_empty());
        let written = to_toml(&root);
        let (again, problems) = parse(&written);
        assert!(problems.is_empty(), "{written}");
        assert_eq!(to_toml(&again), written);
        assert!(written.contains("\"a b\" = { kind = \"number\", sigma = 0.001, big = 1e300 }"));
        assert!(written.contains("train = [\"a\\\"b\\\\c\", \"tab\\u0009\"]"), "{written}");
    }

    #[test]
    fn values_are_set_in_tables() {
        let (mut root, _) = parse("a = 1\nb = { c = 2 }\n");
        let at = Place { line: 1, column: 1 };
        let mut change = |path: &str, value| {
            let keys: Vec<String> = path.split('.').map(str::to_string).collect();
            set(&mut root, &keys, Data::Int(value), at)
        };
        change("b.c", 3).unwrap();
        change("b.d.e", 4).unwrap();
        change("f.g", 5).unwrap();
        assert_eq!(change("a.x", 6), Err("a".to_string()));
        assert_eq!(to_toml(&root), "a = 1\n\n[b]\nc = 3\nd = { e = 4 }\n\n[f]\ng = 5\n");
    }
}
