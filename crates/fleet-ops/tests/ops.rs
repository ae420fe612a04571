//! Runs the op cases of `tests/filetests/ops`; `FLEET_OP=relu` restricts them to some ops.

use fleet_testkit::{CountingAllocator, filetest};
use std::path::Path;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn op_cases() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/filetests/ops");
    let filter = std::env::var("FLEET_OP").unwrap_or_default();
    if let Err(error) = filetest::run_dir(&dir, &filter) {
        panic!("{error}");
    }
}
