//! Command lines.

use clap::Parser;
use fleet_base::text::printable;
use std::ffi::OsString;
use std::io::Write;

/// Parses the command line; exits if it is wrong or asks for help.
pub fn parse_args<T: Parser>(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> T {
    T::try_parse_from(args).unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        // The message quotes arguments.
        let text = error.render().to_string();
        let _ = std::io::stderr().write_all(printable(&text).as_bytes());
        std::process::exit(error.exit_code());
    })
}
