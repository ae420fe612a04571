//! The width of terminals, and progress lines that fit it.

use std::os::fd::AsFd;

/// Returns the width of the terminal that a stream writes to; 80 if the stream is not a terminal or
/// its width is unknown.
pub fn columns(stream: impl AsFd) -> usize {
    match rustix::termios::tcgetwinsize(stream) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => COLUMNS_DEFAULT,
    }
}

/// Formats a progress line of at most `columns` characters. If it is too long, `lead` is dropped
/// first, then the parts of `text`, which are separated by two spaces, from the last to the first.
///
/// ```
/// use fleet_base::terminal::fitted;
/// let line = |columns| fitted("00:01:07", "[==  ]  50 %  9 s left  loss 0.45", columns);
/// assert_eq!(line(80), "00:01:07  [==  ]  50 %  9 s left  loss 0.45");
/// assert_eq!(line(40), "[==  ]  50 %  9 s left  loss 0.45");
/// assert_eq!(line(30), "[==  ]  50 %  9 s left");
/// assert_eq!(line(4), "[==");
/// ```
pub fn fitted(lead: &str, text: &str, columns: usize) -> String {
    let width = |text: &str| text.chars().count();
    if !lead.is_empty() && width(lead) + GAP.len() + width(text) <= columns {
        return [lead, text].join(GAP);
    }
    let mut text = text;
    while width(text) > columns {
        match text.rsplit_once(GAP) {
            Some((kept, _)) if !kept.trim().is_empty() => text = kept.trim_end(),
            _ => return text.chars().take(columns).collect(),
        }
    }
    text.to_string()
}

const COLUMNS_DEFAULT: usize = 80;
const GAP: &str = "  ";
