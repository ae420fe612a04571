//! The user's lines. A full disk or a closed descriptor behind a standard stream never ends a job;
//! `println!` would panic there.

use std::fmt::Display;
use std::io::{Result, Write};

/// Prints the user's lines, such as fetched values.
pub(crate) struct Printer<W = std::io::Stdout, E = std::io::Stderr> {
    out: W,
    errors: E,
    has_failed: bool,
}

impl Printer {
    pub fn stdout() -> Printer {
        Printer { out: std::io::stdout(), errors: std::io::stderr(), has_failed: false }
    }
}

impl<W: Write, E: Write> Printer<W, E> {
    /// Prints a line. The first failure is reported on the standard error, and training continues.
    pub fn line(&mut self, text: impl Display) {
        let Err(error) = write_line(&mut self.out, text) else { return };
        if !std::mem::replace(&mut self.has_failed, true) {
            let what = format_args!("fleet: cannot print to the standard output: {error}");
            let _ = write_line(&mut self.errors, what);
        }
    }
}

/// Writes the line in one piece, since other processes write to the same stream.
fn write_line(to: &mut impl Write, text: impl Display) -> Result<()> {
    to.write_all(format!("{text}\n").as_bytes())?;
    to.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer whose disk is full.
    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> Result<usize> {
            Err(std::io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_disk_is_reported_once() {
        let mut printer = Printer { out: Full, errors: Vec::new(), has_failed: false };
        (0..3).for_each(|step| printer.line(step));
        let told = String::from_utf8(printer.errors).unwrap();
        assert_eq!(told.lines().count(), 1, "{told}");
        assert!(told.starts_with("fleet: cannot print to the standard output: "), "{told}");
        Printer { out: Full, errors: Full, has_failed: false }.line("neither can be written");
    }
}
