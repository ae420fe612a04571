//! A binary that is worker, server, launcher and print command at once: [`run()`] with an [`App`],
//! which has the ops, networks and jobs of the user. The commands are those of `fleet`.

mod application;
mod args;
mod diff;
mod env;
mod execute;
mod inspect;
mod models;
mod plan;
mod rewrite;
mod strategy;
mod strategy_file;
mod tools;
mod trace;

pub use application::{App, JobFn, run};
pub use args::parse_args;
pub use models::{Models, Network};
pub use tools::Tools;
