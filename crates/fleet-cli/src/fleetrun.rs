//! `fleetrun`: starts training jobs. The launcher is a library of its own. This binary adds the
//! built-in jobs, which it runs by starting itself again with a hidden first argument.

use clap::Parser;
use fleet::Fleet;
use fleet::app::parse_args;
use fleet_base::output::Output;
use fleet_launch::{Builtins, OwnProcess};
use fleet_topology::Env;
use std::process::ExitCode;

/// The demos of `fleet demo` as jobs.
const BUILTINS: Builtins<'static> = Builtins {
    argument: "__demo",
    prefix: "demo:",
    names: &["wide_deep", "lenet", "word2vec", "bert", "resnet"],
    not_on_servers: fleet_demo::UNSUPPORTED_ON_SERVERS,
};

/// Train a demo model as a job
#[derive(Parser)]
#[command(
    name = "fleetrun demo:NAME",
    bin_name = "fleetrun demo:NAME",
    override_usage = "fleetrun [FLAGS] demo:NAME [OPTIONS]"
)]
struct DemoCommand {
    #[command(flatten)]
    demo: fleet_demo::DemoArgs,
}

fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    if args.first().is_some_and(|first| first == BUILTINS.argument) {
        // The hidden argument takes the place of the program's name.
        let command: DemoCommand = parse_args(args);
        return Output::run(|out| fleet_demo::run(&command.demo, &Fleet::from_env()?, out));
    }
    let executable = std::env::current_exe();
    let own = OwnProcess { args, env: Env::process(), executable };
    ExitCode::from(fleet_launch::main(own, &BUILTINS))
}
