//! Where a command writes its lines: to the standard output, or to a function of a program that
//! embeds the command, such as Python.

use fleet_base::Result;
use fleet_base::output::{ExitReason, Output};
use std::fmt::Display;

/// The lines of a command.
pub enum Lines<'a> {
    /// The standard output.
    Output(&'a mut Output),
    /// A function that gets each line.
    Call(&'a mut dyn FnMut(&str) -> Result<()>),
}

impl Lines<'_> {
    /// Writes a line.
    pub fn line(&mut self, text: impl Display) -> Result<(), ExitReason> {
        match self {
            Lines::Output(out) => out.line(text),
            Lines::Call(call) => Ok(call(&text.to_string())?),
        }
    }

    /// Writes out buffered text.
    pub fn flush(&mut self) -> Result<(), ExitReason> {
        match self {
            Lines::Output(out) => out.flush(),
            Lines::Call(_) => Ok(()),
        }
    }
}
