//! Access to the values of a table that fits the schema.

use super::tree::{Data, Entry, Node};
use fleet_config::Place;

/// A table of the file, or an absent one, which has no values.
#[derive(Clone, Copy)]
pub struct View<'t> {
    entries: &'t [Entry],
    /// Position of the table.
    pub at: Option<Place>,
}

impl<'t> View<'t> {
    /// Returns the view of the root.
    pub fn root(entries: &'t [Entry]) -> View<'t> {
        View { entries, at: None }
    }

    /// Returns the view of a value; empty if it is no table.
    pub fn of(node: &'t Node) -> View<'t> {
        match &node.data {
            Data::Table(entries) => View { entries, at: Some(node.at) },
            _ => View { entries: &[], at: Some(node.at) },
        }
    }

    /// Returns the keys and values in the order of the file.
    pub fn entries(self) -> &'t [Entry] {
        self.entries
    }

    /// Returns a value.
    pub fn node(self, name: &str) -> Option<&'t Node> {
        self.entries.iter().find(|entry| entry.key == name).map(|entry| &entry.node)
    }

    /// Returns a table; an empty one if it is absent.
    pub fn table(self, name: &str) -> View<'t> {
        self.node(name).map_or(View { entries: &[], at: self.at }, View::of)
    }

    /// Returns a table if it is there.
    pub fn maybe_table(self, name: &str) -> Option<View<'t>> {
        self.node(name).map(View::of)
    }

    /// Returns a text.
    pub fn text(self, name: &str) -> Option<&'t str> {
        match &self.node(name)?.data {
            Data::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns an integer.
    pub fn int(self, name: &str) -> Option<i64> {
        match self.node(name)?.data {
            Data::Int(value) => Some(value),
            _ => None,
        }
    }

    /// Returns an integer that is 0 or more.
    pub fn count(self, name: &str) -> Option<u64> {
        self.int(name).and_then(|value| u64::try_from(value).ok())
    }

    /// Returns a number.
    pub fn number(self, name: &str) -> Option<f64> {
        match self.node(name)?.data {
            Data::Int(value) => Some(value as f64),
            Data::Number(value) => Some(value),
            _ => None,
        }
    }

    /// Returns a list of texts, or a single text as a list.
    pub fn texts(self, name: &str) -> Option<Vec<String>> {
        self.node(name).map(texts)
    }

    /// Returns a list of integers.
    pub fn ints(self, name: &str) -> Option<Vec<i64>> {
        let Data::List(items) = &self.node(name)?.data else { return None };
        let int = |item: &Node| match item.data {
            Data::Int(value) => Some(value),
            _ => None,
        };
        Some(items.iter().filter_map(int).collect())
    }

    /// Returns a list of numbers.
    pub fn numbers(self, name: &str) -> Option<Vec<f64>> {
        let Data::List(items) = &self.node(name)?.data else { return None };
        let number = |item: &Node| match item.data {
            Data::Int(value) => Some(value as f64),
            Data::Number(value) => Some(value),
            _ => None,
        };
        Some(items.iter().filter_map(number).collect())
    }

    /// Returns the position of a value, or that of the table if the value is absent.
    pub fn place(self, name: &str) -> Option<Place> {
        self.node(name).map(|node| node.at).or(self.at)
    }
}

/// Returns the texts of a list, or a single text as a list.
pub fn texts(node: &Node) -> Vec<String> {
    placed_texts(node).into_iter().map(|(_, text)| text.to_string()).collect()
}

/// Like [`texts`], with the position of each.
pub fn placed_texts(node: &Node) -> Vec<(Place, &str)> {
    match &node.data {
        Data::Text(text) => vec![(node.at, text)],
        Data::List(items) => items.iter().flat_map(placed_texts).collect(),
        _ => Vec::new(),
    }
}
