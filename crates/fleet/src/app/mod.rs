//! Commands that inspect, convert and run programs, for `fleet` and for programs of users.

mod args;
mod diff;
mod env;
mod inspect;
mod rewrite;
mod run;
mod strategy;
mod strategy_file;
mod tools;
mod trace;

pub use args::parse_args;
pub use tools::Tools;
