//! Passes the optimization level to the crate, which warns if it is compiled without.

fn main() {
    let level = std::env::var("OPT_LEVEL").unwrap_or_default();
    println!("cargo::rustc-env=FLEET_OPT_LEVEL={level}");
    println!("cargo::rerun-if-changed=build.rs");
}
