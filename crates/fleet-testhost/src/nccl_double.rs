//! Compiles the double of NCCL and the CUDA driver (`nccl_double.c`).

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// A folder with `libnccl.so.2` and `libcuda.so.1`, which are the same library, in the folder for
/// temporary files of the tests.
pub fn double(all: &str) -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let mut hasher = DefaultHasher::new();
        include_bytes!("nccl_double.c").hash(&mut hasher);
        let all = Path::new(all);
        let folder = all.join(format!("nccl-double-{:016x}", hasher.finish()));
        if !folder.exists() {
            // Other processes may compile it concurrently; the result of the first one is kept.
            let fresh = all.join(format!("nccl-double-{}", std::process::id()));
            std::fs::create_dir_all(&fresh).expect("a folder of the build");
            compile(&fresh);
            if std::fs::rename(&fresh, &folder).is_err() {
                assert!(folder.exists(), "{} does not exist", folder.display());
                std::fs::remove_dir_all(&fresh).expect("the folder is removed");
            }
        }
        folder
    })
}

fn compile(folder: &Path) {
    let source = folder.join("nccl_double.c");
    std::fs::write(&source, include_bytes!("nccl_double.c")).expect("a file of the build");
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let made = Command::new(&compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        .arg("-o")
        .args([&folder.join("libnccl.so.2"), &source])
        .output()
        .unwrap_or_else(|error| panic!("a C compiler is needed ({compiler:?}): {error}"));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    std::os::unix::fs::symlink("libnccl.so.2", folder.join("libcuda.so.1")).expect("a link");
}
