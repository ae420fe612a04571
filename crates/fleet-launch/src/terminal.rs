//! What a terminal has room for.

use std::os::fd::AsFd;

/// The width of the terminal that a stream goes to; 80 where it is none, or does not say.
pub fn columns(stream: impl AsFd) -> usize {
    match rustix::termios::tcgetwinsize(stream) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => COLUMNS_DEFAULT,
    }
}

/// A line of progress of at most so many columns: `lead`, which is missed least, then `text`, whose
/// parts, two spaces apart, go from the last to the first.
///
/// ```
/// use fleet_launch::terminal::fitted;
/// let line = |columns| fitted("00:01:07", "[==  ]  50 %  9 s left  loss 0.45", columns);
/// assert_eq!(line(80), "00:01:07  [==  ]  50 %  9 s left  loss 0.45");
/// assert_eq!(line(40), "[==  ]  50 %  9 s left  loss 0.45");
/// assert_eq!(line(30), "[==  ]  50 %  9 s left");
/// assert_eq!(line(4), "[==");
/// ```
pub fn fitted(lead: &str, text: &str, columns: usize) -> String {
    let width = |text: &str| text.chars().count();
    if width(lead) + GAP.len() + width(text) <= columns {
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
