//! `fleet new`: a crate of the user, with an op, an optimizer, a data format, a metric, a network
//! and jobs to start from. `tests/outside` is the same crate, which CI builds and tests.

use clap::Args;
use fleet_base::file::{make_folder, write_file};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct NewArgs {
    /// Name of the crate and of its folder, which is created here
    name: String,
    /// Checkout of Fleet to depend on [default: the one that this command was built from]
    #[arg(long, value_name = "FOLDER", conflicts_with = "git")]
    path: Option<PathBuf>,
    /// Git repository of Fleet to depend on
    #[arg(long, value_name = "URL")]
    git: Option<String>,
}

/// Lists files of `tests/outside` with their contents.
macro_rules! files {
    ($($path:literal,)*) => {
        [$(($path, include_str!(concat!("../../../tests/outside/", $path))),)*]
    };
}

const FILES: [(&str, &str); 9] = files![
    "Cargo.toml",
    "src/bent.rs",
    "src/main.rs",
    "src/network.rs",
    "src/points.rs",
    "src/sign_momentum.rs",
    "src/train.rs",
    "src/within.rs",
    "tests/jobs.rs",
];

/// Places of the name and of the dependency in [`FILES`].
const NAMES: [&str; 2] = ["name = \"outside\"", "CARGO_BIN_EXE_outside"];
const NAME: &str = "outside";
const DEPENDENCY: &str = "fleet = { path = \"../../crates/fleet\" }";

/// Checkout that this command was built from.
const CHECKOUT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

pub fn run(args: &NewArgs, out: &mut Output) -> Result<(), ExitReason> {
    check_name(&args.name)?;
    let dependency = match &args.git {
        Some(url) => format!("fleet = {{ git = {url:?} }}"),
        None => {
            let checkout = args.path.as_deref().unwrap_or(Path::new(CHECKOUT));
            format!("fleet = {{ path = {:?} }}", fleet_crate(checkout)?)
        }
    };
    let folder = Path::new(&args.name);
    if folder.exists() {
        let error = Error::invalid(format!("{} exists already", folder.display()));
        return Err(error.expected("a name without a file or folder here").into());
    }
    for (path, text) in FILES {
        let path = folder.join(path);
        path.parent().map_or(Ok(()), make_folder)?;
        let renamed = NAMES.iter().fold(text.replace(DEPENDENCY, &dependency), |text, name| {
            text.replace(*name, &name.replace(NAME, &args.name))
        });
        write_file(&path, renamed.as_bytes())?;
    }
    out.line(format!("created the crate {0}: cd {0}, and cargo test or cargo run", args.name))
}

/// Accepts the names that cargo accepts, except that of Fleet itself.
fn check_name(name: &str) -> Result<()> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
    if begins && name.chars().all(is_plain) && name != "fleet" {
        return Ok(());
    }
    Err(Error::invalid("invalid name of a crate")
        .expected("letters, digits, - and _, first a letter; not fleet")
        .got(name))
}

/// Returns the path of the crate `fleet` in a checkout.
fn fleet_crate(checkout: &Path) -> Result<PathBuf> {
    let found = checkout.join("crates/fleet").canonicalize();
    found.ok().filter(|folder| folder.join("Cargo.toml").is_file()).ok_or_else(|| {
        Error::invalid("no checkout of Fleet found")
            .expected("a folder with crates/fleet")
            .got(checkout.display())
            .help("name a checkout with --path FOLDER, or a repository with --git URL")
    })
}
