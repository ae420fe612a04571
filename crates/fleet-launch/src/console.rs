//! The console: followed logs go to the standard output, messages of the launcher to the standard
//! error.
//!
//! Followed lines may have a prefix with role and rank. Colours and the status line below the logs
//! appear only on a terminal. The job's token is masked in all output.

use crate::options::{Options, Verbosity};
use fleet_base::terminal;
use fleet_base::text::printable;
use fleet_net::Token;
use fleet_topology::{Env, Role, names};
use std::io::{IsTerminal, Write};
use std::time::Duration;

pub struct Console {
    verbosity: Verbosity,
    /// Both streams are terminals, so that a status line can be drawn and wiped.
    is_terminal: bool,
    has_colours: bool,
    has_prefixes: bool,
    /// The text of the token.
    secret: Vec<u8>,
    /// Standard output and standard error are the same file, so that each line needs to be shown
    /// only once.
    is_one_stream: bool,
    /// Columns of the status line now on the screen.
    status_shown: Option<usize>,
    /// The last output did not end a line.
    is_mid_line: bool,
    /// Incomplete lines by prefix.
    partial: Vec<(String, Vec<u8>)>,
}

impl Console {
    pub fn new(options: &Options, env: &Env, token: Option<Token>, follows_many: bool) -> Console {
        let is_terminal = std::io::stdout().is_terminal() && std::io::stderr().is_terminal();
        let usable = env.text("TERM") != Some("dumb");
        Console {
            verbosity: options.verbosity,
            is_terminal: is_terminal && usable,
            has_colours: is_terminal && usable && env.text(names::NO_COLOR).is_none(),
            has_prefixes: follows_many,
            is_one_stream: is_one_stream(),
            secret: token.map_or(Vec::new(), |token| token.to_text().into_bytes()),
            status_shown: None,
            is_mid_line: false,
            partial: Vec::new(),
        }
    }

    /// Whether a status line is drawn.
    pub fn draws(&self) -> bool {
        self.is_terminal && self.verbosity >= Verbosity::Normal
    }

    /// Whether followed logs and messages go to one place: a terminal, a file, a pipe.
    pub fn is_one_stream(&self) -> bool {
        self.is_one_stream
    }

    /// Shows output of a followed process.
    pub fn follow(&mut self, role: Role, rank: usize, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let prefix = match self.has_prefixes {
            true => self.coloured(colour(role), &format!("[{role} {rank}]")) + " ",
            false => String::new(),
        };
        let at = match self.partial.iter().position(|(known, _)| *known == prefix) {
            Some(at) => at,
            None => {
                self.partial.push((prefix.clone(), Vec::new()));
                self.partial.len() - 1
            }
        };
        let held = &mut self.partial[at].1;
        held.extend_from_slice(bytes);
        // Complete lines are written. Without prefixes the rest is written too, since a progress
        // bar has no line end.
        let whole = match held.iter().rposition(|byte| *byte == b'\n') {
            Some(end) => end + 1,
            None => 0,
        };
        let ready = match self.has_prefixes && held.len() < PARTIAL_BYTES_MAX {
            true => whole,
            false => held.len(),
        };
        let ready = ready - begun(&held[..ready], &self.secret);
        let out: Vec<u8> = held.drain(..ready).collect();
        self.write_out(&prefix, &out);
    }

    /// Writes the incomplete lines, each with a line end.
    pub fn flush_partial(&mut self) {
        for (prefix, mut bytes) in std::mem::take(&mut self.partial) {
            if !bytes.is_empty() {
                bytes.push(b'\n');
                self.write_out(&prefix, &bytes);
            }
        }
    }

    fn write_out(&mut self, prefix: &str, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.clear_status();
        let mut text = Vec::with_capacity(bytes.len() + prefix.len());
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            text.extend_from_slice(prefix.as_bytes());
            text.extend_from_slice(line);
        }
        let text = mask(text, &self.secret);
        self.is_mid_line = text.last() != Some(&b'\n');
        let mut out = std::io::stdout().lock();
        // If the reader is gone, the log files still have the text.
        let _ = out.write_all(&text).and_then(|()| out.flush());
    }

    /// Writes a message of the launcher at the normal level.
    pub fn info(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Normal {
            self.line(&format!("fleetrun: {text}"));
        }
    }

    /// Writes text without a prefix at the normal level.
    pub fn plain(&mut self, text: impl AsRef<str>) {
        if self.verbosity >= Verbosity::Normal {
            self.line(text.as_ref());
        }
    }

    pub fn debug(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Debug {
            self.line(text);
        }
    }

    pub fn warn(&mut self, text: &str) {
        if self.verbosity >= Verbosity::Warnings {
            let tag = self.coloured("33", "warning:");
            self.tagged(&(tag + " "), text);
        }
    }

    /// Writes an error, at every level.
    pub fn error(&mut self, text: &str) {
        let tag = self.coloured("31", "error:");
        self.tagged(&(tag + " "), text);
    }

    /// Writes a line without a tag, at every level.
    pub fn line(&mut self, text: &str) {
        self.tagged("", text);
    }

    /// Writes a line. The text may come from files and processes, so it is escaped; the tag may
    /// contain a colour.
    fn tagged(&mut self, tag: &str, text: &str) {
        self.clear_status();
        let fresh = if self.is_mid_line && self.is_one_stream { "\n" } else { "" };
        self.is_mid_line = false;
        let text = printable(text);
        let text = mask(format!("{fresh}{tag}{text}\n").into_bytes(), &self.secret);
        let _ = std::io::stderr().lock().write_all(&text);
    }

    /// Draws the status line if there is a terminal and no line is incomplete.
    pub fn status(&mut self, running: &str, elapsed: Duration) {
        if !self.draws() || self.is_mid_line {
            return;
        }
        let seconds = elapsed.as_secs();
        let clock = format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60);
        // The last column stays free: some terminals wrap to the next line there.
        let columns = terminal::columns(std::io::stderr()).saturating_sub(1);
        let text = terminal::fitted(&clock, running, columns);
        let shown = self.status_shown.replace(text.chars().count());
        let wipe = shown.map_or(String::new(), |shown| wipe(shown, columns + 1));
        let text = self.coloured("2", &text);
        let _ = write!(std::io::stderr().lock(), "{wipe}\r{text}\x1b[K");
    }

    pub fn clear_status(&mut self) {
        if let Some(shown) = self.status_shown.take() {
            let wipe = wipe(shown, terminal::columns(std::io::stderr()));
            let _ = write!(std::io::stderr().lock(), "{wipe}\r\x1b[K");
        }
    }

    fn coloured(&self, code: &str, text: &str) -> String {
        match self.has_colours {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_string(),
        }
    }
}

fn is_one_stream() -> bool {
    let (out, err) = (std::io::stdout(), std::io::stderr());
    match (rustix::fs::fstat(&out), rustix::fs::fstat(&err)) {
        (Ok(out), Ok(err)) => {
            (out.st_dev, out.st_ino, out.st_rdev) == (err.st_dev, err.st_ino, err.st_rdev)
        }
        _ => false,
    }
}

/// Returns the sequence that moves to the start of a status line which now spans several rows,
/// since the terminal has become narrower.
fn wipe(shown: usize, columns: usize) -> String {
    match shown.saturating_sub(1) / columns.max(1) {
        0 => String::new(),
        rows => format!("\x1b[{rows}A\r\x1b[J"),
    }
}

/// Returns the number of bytes at the end that may be the start of a secret whose rest has not
/// arrived.
fn begun(bytes: &[u8], secret: &[u8]) -> usize {
    let most = secret.len().saturating_sub(1).min(bytes.len());
    (1..=most).rev().find(|length| bytes.ends_with(&secret[..*length])).unwrap_or(0)
}

/// Replaces every occurrence of a secret.
fn mask(bytes: Vec<u8>, secret: &[u8]) -> Vec<u8> {
    let found = |bytes: &[u8]| bytes.windows(secret.len()).position(|window| window == secret);
    if secret.is_empty() || found(&bytes).is_none() {
        return bytes;
    }
    let mut rest = bytes.as_slice();
    let mut masked = Vec::with_capacity(bytes.len());
    while let Some(at) = found(rest) {
        masked.extend_from_slice(&rest[..at]);
        masked.extend_from_slice(b"***");
        rest = &rest[at + secret.len()..];
    }
    masked.extend_from_slice(rest);
    masked
}

fn colour(role: Role) -> &'static str {
    match role {
        Role::Worker => "36",
        Role::Server => "35",
        Role::HeterWorker => "34",
        Role::Coordinator => "32",
    }
}

/// Limit on an incomplete line; a longer one is shown in parts.
const PARTIAL_BYTES_MAX: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::{begun, mask, wipe};

    #[test]
    fn a_secret_in_two_parts_waits_for_the_second() {
        assert_eq!(begun(b"a sec", b"secret"), 3);
        assert_eq!(begun(b"a secret", b"secret"), 0);
        assert_eq!(
            (begun(b"", b"secret"), begun(b"secre", b"secret"), begun(b"x", b"")),
            (0, 5, 0)
        );
    }

    #[test]
    fn a_line_on_two_rows_is_wiped_from_both() {
        assert_eq!((wipe(79, 80), wipe(80, 80)), (String::new(), String::new()));
        assert_eq!(
            (wipe(79, 40), wipe(79, 20)),
            ("\x1b[1A\r\x1b[J".into(), "\x1b[3A\r\x1b[J".into())
        );
    }

    #[test]
    fn secrets_are_masked_wherever_they_stand() {
        let masked = |text: &str| String::from_utf8(mask(text.into(), b"secret")).unwrap();
        assert_eq!(masked("secret and secretsecret"), "*** and ******");
        assert_eq!(masked("secre"), "secre");
        assert_eq!(masked(""), "");
    }
}
