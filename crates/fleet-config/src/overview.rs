//! The overview of a strategy: a table of all settings in effect.

use crate::form::literal::float64;
use crate::form::one_line;
use crate::reflect::{Field, Item, Kind, Reflect};
use crate::schema::BuildStrategy;
use crate::schema::{DistributedStrategy, ExecutionStrategy};
use crate::value::{default_of, effective};
use std::fmt::{self, Write};

/// Columns between the borders.
const WIDTH: usize = 78;
/// Width of the names' column; names are right-aligned.
const NAMES: usize = 38;
/// Width of the values' column; values are centred.
const VALUES: usize = 38;

impl fmt::Display for DistributedStrategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.overview())
    }
}

impl DistributedStrategy {
    /// Returns the table that `Display` prints.
    pub fn overview(&self) -> String {
        self.table(false)
    }

    /// Returns the rows of the table whose values are not the defaults, with the titles of their
    /// sections; empty if there are none.
    ///
    /// ```
    /// # use fleet_config::DistributedStrategy;
    /// assert!(DistributedStrategy::new().overview_of_changes().is_empty());
    /// let text = DistributedStrategy::new().with_nccl_comm_num(2).overview_of_changes();
    /// assert!(text.contains("nccl_comm_num") && !text.contains("Build Strategy"));
    /// ```
    pub fn overview_of_changes(&self) -> String {
        self.table(true)
    }

    fn table(&self, only_changes: bool) -> String {
        let mut table = Table { only_changes, ..Table::default() };
        table.title("DistributedStrategy Overview");
        let fields = self.shape().fields;
        let configs = |field: &Field| {
            let name = format!("{}_configs", field.name);
            fields.iter().find(|field| field.name == name)
        };
        for field in fields.iter().filter(|field| is_bool(field)) {
            if let Some(configs) = configs(field).filter(|_| self.is_on(field.name)) {
                table.header(&format!("{}=True <-> {}", field.name, configs.name));
                // The section tells that the switch is on, which is a change if it was assigned.
                table.has_rows = self.slot(field.number).count() > 0;
                match self.slot(configs.number).first() {
                    Some(Item::Message(message)) => table.message(message),
                    _ => table.defaults(configs),
                }
                table.end();
            }
        }
        table.header("Environment Flags, Communication Flags");
        for field in fields {
            let own_section = matches!(field.name, "build_strategy" | "execution_strategy");
            let with_configs = is_bool(field) && configs(field).is_some();
            let elsewhere = own_section || with_configs || field.name.ends_with("_configs");
            if !elsewhere && is_shown(self, field) {
                table.field(self, field);
            }
        }
        table.end();
        table.header("Build Strategy");
        table.message(self.build_strategy() as &BuildStrategy);
        table.end();
        table.header("Execution Strategy");
        table.message(self.execution_strategy() as &ExecutionStrategy);
        table.end();
        if table.is_empty { String::new() } else { table.text }
    }
}

fn is_bool(field: &Field) -> bool {
    matches!(field.kind, Kind::Bool)
}

/// Returns whether the value of a field is assigned and is not its default.
fn is_changed(message: &dyn Reflect, field: &Field) -> bool {
    message.slot(field.number).count() > 0 && effective(message, field) != default_of(field)
}

/// Returns whether a field is shown; Fleet's own fields are shown only if assigned.
fn is_shown(message: &dyn Reflect, field: &Field) -> bool {
    field.number < crate::schema::OWN_NUMBERS || message.slot(field.number).count() > 0
}

struct Table {
    text: String,
    only_changes: bool,
    /// Where the open section starts.
    section: usize,
    /// Whether the open section has rows.
    has_rows: bool,
    /// Whether no section has rows.
    is_empty: bool,
}

impl Default for Table {
    fn default() -> Table {
        let text = String::new();
        Table { text, only_changes: false, section: 0, has_rows: false, is_empty: true }
    }
}

impl Table {
    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "    |{text}|");
    }

    fn border(&mut self, of: char) {
        let _ = writeln!(self.text, "    +{}+", of.to_string().repeat(WIDTH));
    }

    fn title(&mut self, text: &str) {
        self.border('=');
        self.line(&" ".repeat(WIDTH));
        self.line(&centred(text, WIDTH));
        self.line(&" ".repeat(WIDTH));
        self.border('=');
    }

    fn header(&mut self, text: &str) {
        (self.section, self.has_rows) = (self.text.len(), false);
        self.line(&centred(text, WIDTH));
        self.border('-');
    }

    /// Ends a section; without rows, removes it.
    fn end(&mut self) {
        match self.has_rows || !self.only_changes {
            true => {
                self.border('=');
                self.is_empty = false;
            }
            false => self.text.truncate(self.section),
        }
    }

    fn row(&mut self, name: &str, value: &str) {
        self.has_rows = true;
        self.line(&format!("{name:>NAMES$}  {}", centred(value, VALUES)));
    }

    fn message(&mut self, message: &dyn Reflect) {
        for field in message.shape().fields {
            if is_shown(message, field) {
                self.field(message, field);
            }
        }
    }

    fn defaults(&mut self, configs: &Field) {
        let Kind::Message(shape) = configs.kind else { return };
        if self.only_changes {
            return;
        }
        for field in shape().fields.iter().filter(|field| field.number < crate::schema::OWN_NUMBERS)
        {
            match (field.repeated, field.default_item()) {
                (false, Some(item)) => self.row(field.name, &shown(item)),
                _ => self.unset(field),
            }
        }
    }

    fn field(&mut self, message: &dyn Reflect, field: &Field) {
        let slot = message.slot(field.number);
        if self.only_changes && !is_changed(message, field) {
            return;
        }
        match (slot.count(), field.default_item()) {
            (0, Some(item)) if !field.repeated => self.row(field.name, &shown(item)),
            (0, _) => self.unset(field),
            _ if field.is_message() => {
                // A message in the table is its text form on one line.
                let items: Vec<String> = slot.items().map(shown).collect();
                let items = items.join(", ");
                self.row(field.name, &if field.repeated { format!("[{items}]") } else { items });
            }
            _ => {
                for (index, item) in slot.items().enumerate() {
                    self.row(if index == 0 { field.name } else { "" }, &shown(item));
                }
            }
        }
    }

    fn unset(&mut self, field: &Field) {
        match (field.repeated, field.is_message()) {
            (true, true) => self.row(field.name, "[]"),
            (true, false) => {}
            (false, _) => self.row(field.name, ""),
        }
    }
}

/// Formats a value like Python, where 32-bit floats are converted to 64-bit ones.
fn shown(item: Item<'_>) -> String {
    match item {
        Item::Bool(true) => "True".into(),
        Item::Bool(false) => "False".into(),
        Item::Int32(value) => value.to_string(),
        Item::Uint32(value) => value.to_string(),
        Item::Uint64(value) => value.to_string(),
        Item::Float(value) => float64(value.into()),
        Item::Double(value) => float64(value),
        Item::Text(value) => value.to_string(),
        Item::Message(message) => one_line(message),
    }
}

/// Centres a text; if the space is odd, the extra column is on the same side as in Python.
fn centred(text: &str, width: usize) -> String {
    let chars = text.chars().count();
    let space = width.saturating_sub(chars);
    let left = space / 2 + (space & width & 1);
    format!("{}{text}{}", " ".repeat(left), " ".repeat(space - left))
}
