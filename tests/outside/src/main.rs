//! A network with its own op, optimizer, data format and metric. This one program is worker,
//! server, launcher and the commands for programs: `--help` lists them.

#![forbid(unsafe_code)]

mod bent;
mod network;
mod points;
mod sign_momentum;
mod train;
mod within;

use fleet::app::{self, App};
use fleet::ops::OpDef;
use std::process::ExitCode;

/// The ops of this program. Tests install them, too.
static OPS: [&OpDef; 2] = [&bent::DEF, &sign_momentum::DEF];

fn main() -> ExitCode {
    let app = App::new(env!("CARGO_PKG_NAME"))
        .version(env!("CARGO_PKG_VERSION"))
        .ops(&OPS)
        .network("surface", |net| Ok(network::network(net).loss))
        .job("make", train::MAKE, train::make)
        .job("train", train::TRAIN, train::train)
        .job("predict", train::PREDICT, train::predict);
    app::run(app)
}
