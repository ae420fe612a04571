//! The entry policy of a sparse table: which ids get a row.

use fleet_base::{Error, Result};

/// When an id that the table has not seen gets a row. Until then, pulls read zeros for it and its
/// pushes are dropped (and counted).
///
/// ```
/// use fleet_table::Entry;
/// assert_eq!(Entry::parse("count_filter_entry:10")?, Entry::CountFilter(10));
/// assert_eq!(Entry::probability(0.5)?.to_string(), "probability_entry:0.5");
/// assert!(Entry::probability(1.0).is_err());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Entry {
    /// On first sight.
    #[default]
    None,
    /// After this many pulls. The count takes no row: a pending id costs only its index entry.
    CountFilter(u32),
    /// On first sight, if the id's random number in [0, 1), a function of (seed, table, id), is at
    /// least this.
    Probability(f32),
    /// On first sight. The named variables of the program hold shows and clicks, which workers push
    /// with the gradients.
    ShowClick {
        /// Name of the variable with the shows.
        show: String,
        /// Name of the variable with the clicks.
        click: String,
    },
}

impl Entry {
    /// Returns the policy of admitting ids after `count` pulls. Fails for a negative count.
    pub fn count_filter(count: i64) -> Result<Entry> {
        u32::try_from(count).map(Entry::CountFilter).map_err(|_| {
            Error::invalid("invalid count_filter").expected("an integer >= 0").got(count)
        })
    }

    /// Returns the policy of admitting ids at random. Fails unless the number is between 0 and 1.
    pub fn probability(probability: f32) -> Result<Entry> {
        if probability > 0.0 && probability < 1.0 {
            return Ok(Entry::Probability(probability));
        }
        Err(Error::invalid("invalid probability").expected("a number in (0, 1)").got(probability))
    }

    /// Returns the policy of counting shows and clicks of these variables. Fails if a name is empty
    /// or contains a colon.
    pub fn show_click(show: &str, click: &str) -> Result<Entry> {
        if show.is_empty() || click.is_empty() || show.contains(':') || click.contains(':') {
            return Err(Error::invalid("invalid show_name or click_name")
                .expected("two names of variables without colons")
                .got(format!("'{show}' and '{click}'")));
        }
        Ok(Entry::ShowClick { show: show.to_string(), click: click.to_string() })
    }

    /// Parses the form that [`Display`](std::fmt::Display) writes, which table descriptors use.
    pub fn parse(text: &str) -> Result<Entry> {
        let parts: Vec<&str> = text.split(':').collect();
        let wrong = || {
            Error::invalid(format!("malformed entry '{text}'")).expected(
                "none, count_filter_entry:N, probability_entry:P or show_click_entry:SHOW:CLICK",
            )
        };
        match parts[..] {
            ["none"] => Ok(Entry::None),
            ["count_filter_entry", n] => Entry::count_filter(n.parse().map_err(|_| wrong())?),
            ["probability_entry", p] => Entry::probability(p.parse().map_err(|_| wrong())?),
            ["show_click_entry", show, click] => Entry::show_click(show, click),
            _ => Err(wrong()),
        }
    }
}

impl std::fmt::Display for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Entry::None => write!(f, "none"),
            Entry::CountFilter(count) => write!(f, "count_filter_entry:{count}"),
            Entry::Probability(probability) => write!(f, "probability_entry:{probability}"),
            Entry::ShowClick { show, click } => write!(f, "show_click_entry:{show}:{click}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_round_trip() {
        for entry in [
            Entry::None,
            Entry::CountFilter(10),
            Entry::Probability(0.25),
            Entry::show_click("show", "click").unwrap(),
        ] {
            assert_eq!(Entry::parse(&entry.to_string()).unwrap(), entry);
        }
    }

    #[test]
    fn senseless_entries_are_refused() {
        let check = |result: Result<Entry>, words: &str| {
            let error = result.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        };
        check(Entry::count_filter(-1), "invalid count_filter: expected an integer >= 0, got -1");
        check(Entry::probability(0.0), "invalid probability: expected a number in (0, 1)");
        check(Entry::probability(f32::NAN), "invalid probability: expected a number in (0, 1)");
        check(Entry::show_click("", "b"), "invalid show_name or click_name");
        check(Entry::parse("count_filter_entry"), "malformed");
        check(Entry::parse("count_filter_entry:1.5"), "malformed");
    }
}
