//! Helpers for messages: nearest name, byte counts, control characters.

use std::borrow::Cow;

/// Escapes control characters except line ends and tabs. Text from a file or a peer then cannot
/// move the cursor of a terminal or change its title and colours. Escaping twice changes nothing.
///
/// ```
/// use fleet_base::text::printable;
/// assert_eq!(printable("mul\u{1b}[2J\n"), "mul\\u{1b}[2J\n");
/// ```
pub fn printable(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && c != '\n' && c != '\t')
}

/// Like [`printable`], for text that must stay on one line: escapes line ends, too.
pub fn printable_line(text: &str) -> Cow<'_, str> {
    escaped(text, |c| c.is_control() && c != '\t')
}

fn escaped(text: &str, is_escaped: fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match is_escaped(c) {
            true => out.extend(c.escape_debug()),
            false => out.push(c),
        }
    }
    Cow::Owned(out)
}

/// The candidate nearest to `name` by edit distance (a swap of neighbours is one edit), if it is
/// near enough to be a typing error.
///
/// ```
/// let known = ["matmul", "mul", "mean"];
/// assert_eq!(fleet_base::text::nearest("matmull", known), Some("matmul"));
/// assert_eq!(fleet_base::text::nearest("softmax", known), None);
/// ```
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Longer names are not typed by hand, so typing errors are not considered.
    const CHARS_MAX: usize = 100;
    let chars = name.chars().count();
    if chars > CHARS_MAX {
        return None;
    }
    let limit = (chars / 3).max(1);
    known
        .into_iter()
        .filter(|candidate| candidate.chars().count().abs_diff(chars) <= limit)
        .map(|candidate| (strsim::osa_distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Text to append to a message: `; did you mean 'x'?`, or nothing if no candidate is near.
pub fn did_you_mean<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, known).map(|found| format!("; did you mean '{found}'?")).unwrap_or_default()
}

/// Formats `1 op` or `2 ops`.
///
/// ```
/// use fleet_base::text::counted;
/// assert_eq!((counted(1, "op"), counted(2, "op")), ("1 op".into(), "2 ops".into()));
/// ```
pub fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Bytes with a binary unit: `1.5 MiB`.
///
/// ```
/// assert_eq!(fleet_base::text::bytes(1_572_864), "1.5 MiB");
/// assert_eq!(fleet_base::text::bytes(512), "512 B");
/// ```
pub fn bytes(count: u64) -> String {
    scaled(count as f64, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB", "PiB"])
}

/// Formats a number of bytes beyond a limit so that it never reads the same as the limit.
///
/// ```
/// assert_eq!(fleet_base::text::bytes_over(2049, 1024), "2 KiB");
/// assert_eq!(fleet_base::text::bytes_over(1025, 1024), "more than 1 KiB");
/// ```
pub fn bytes_over(count: u64, limit: u64) -> String {
    let (count, limit) = (bytes(count), bytes(limit));
    if count == limit { format!("more than {limit}") } else { count }
}

/// A count with a decimal unit: `3.86 G`.
pub fn count(count: f64) -> String {
    scaled(count, 1000.0, &["", "k", "M", "G", "T", "P"]).trim_end().to_string()
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let text = if unit == 0 { format!("{value:.0}") } else { format!("{value:.2}") };
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text
    };
    format!("{text} {}", units[unit])
}
