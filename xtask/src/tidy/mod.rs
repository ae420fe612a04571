//! `cargo xtask tidy`: house rules that the compiler does not check.
//!
//! A rule finds places in files. `xtask/tidy.txt` lists how many places of a rule a file may have.
//! A file with more of them fails, and so does one with fewer, so that the numbers only shrink
//! (`cargo xtask tidy --shrink` lowers them).

mod code;
mod cycles;
mod exceptions;
mod layers;
mod quotes;
mod source;
mod subjects;
mod text;
mod unsafe_code;

use std::path::Path;

/// A place that breaks a rule.
pub struct Finding {
    pub rule: &'static str,
    /// Relative to the root.
    pub path: String,
    /// From 1.
    pub line: usize,
    pub message: String,
}

#[derive(clap::Args, Default)]
pub struct Options {
    /// Lower the numbers in xtask/tidy.txt to the current ones
    #[arg(long)]
    shrink: bool,
}

pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let files = source::load(root)?;
    let mut findings = Vec::new();
    text::check(&files, &mut findings);
    code::check(&files, &mut findings)?;
    cycles::check(&files, &mut findings);
    let mut errors = exceptions::compare(root, &findings, options.shrink)?;
    layers::check(root, &mut errors)?;
    unsafe_code::check(root, &files, &mut errors)?;
    quotes::check(root, &mut errors)?;
    subjects::check(root, &mut errors)?;
    if errors.is_empty() {
        println!("== tidy: no findings");
        return Ok(());
    }
    Err(format!("tidy found:\n  {}", errors.join("\n  ")))
}
