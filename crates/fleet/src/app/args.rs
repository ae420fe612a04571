//! Command lines.

use clap::{ArgMatches, Command, Parser};
use fleet_base::text::printable;
use std::ffi::OsString;
use std::io::Write;

/// Parses the command line; exits if it is wrong or asks for help.
pub fn parse_args<T: Parser>(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> T {
    T::try_parse_from(args).unwrap_or_else(|error| exit(&error))
}

/// Parses a command line of several commands, like [`parse_args`].
pub(super) fn parse_command(command: Command, args: Vec<OsString>) -> ArgMatches {
    command.try_get_matches_from(args).unwrap_or_else(|error| exit(&error))
}

/// Prints an error of a command line, or the help that it asks for, and exits.
pub(super) fn exit(error: &clap::Error) -> ! {
    if !error.use_stderr() {
        error.exit();
    }
    // The message quotes arguments.
    let text = error.render().to_string();
    let _ = std::io::stderr().write_all(printable(&text).as_bytes());
    std::process::exit(error.exit_code());
}
