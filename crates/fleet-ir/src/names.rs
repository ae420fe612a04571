//! Names and texts as the text form writes them.

use std::borrow::Cow;
use std::fmt::Write;

/// Length limit of a name, in bytes. Generated names are far shorter, and the limit keeps the
/// search for the nearest known name fast even on a hostile file.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

/// Returns a variable's name, quoted if necessary.
pub(crate) fn name(name: &str) -> Cow<'_, str> {
    bare_or_quoted(name, is_name_byte(name.as_bytes().first()))
}

/// Returns the name of an op, slot or attribute, quoted if necessary.
pub(crate) fn word(name: &str) -> Cow<'_, str> {
    bare_or_quoted(name, name.bytes().next().is_some_and(is_word_start))
}

fn bare_or_quoted(name: &str, starts_well: bool) -> Cow<'_, str> {
    if starts_well && name.bytes().all(|byte| is_name_byte(Some(&byte))) {
        Cow::Borrowed(name)
    } else {
        Cow::Owned(quoted(name))
    }
}

/// Whether a byte may occur in a name without quotes.
pub(crate) fn is_name_byte(byte: Option<&u8>) -> bool {
    byte.is_some_and(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'@' | b'/' | b'-'))
}

pub(crate) fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_'
}

pub(crate) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c.is_control() || is_invisible(c) => {
                write!(out, "\\u{{{:x}}}", u32::from(c)).expect("writing to a string never fails");
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

/// Whether a character could make one printed name look like another: direction marks, joiners, the
/// byte order mark and line separators.
fn is_invisible(c: char) -> bool {
    matches!(u32::from(c), 0x200b..=0x200f | 0x2028..=0x202e | 0x2060..=0x2069 | 0xfeff)
}
