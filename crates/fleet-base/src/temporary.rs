//! A local folder for temporary files, which is removed with its value.

use crate::{Error, Result};
use std::fs::DirBuilder;
use std::io;
use std::path::{Path, PathBuf};

/// A folder that only this user can read. A process that is killed leaves it behind.
///
/// ```
/// use fleet_base::temporary::TemporaryFolder;
/// let folder = TemporaryFolder::new(&std::env::temp_dir(), "fleet-doc")?;
/// let path = folder.path().to_path_buf();
/// std::fs::write(path.join("file"), "text")?;
/// drop(folder);
/// assert!(!path.exists());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Debug)]
pub struct TemporaryFolder(PathBuf);

/// Limit on names to try; earlier processes of this id may have left some.
const ATTEMPTS_MAX: u32 = 1000;

impl TemporaryFolder {
    /// Creates an empty folder in `base`.
    pub fn new(base: &Path, prefix: &str) -> Result<TemporaryFolder> {
        let process = std::process::id();
        for attempt in 0..ATTEMPTS_MAX {
            let path = base.join(format!("{prefix}-{process}-{attempt}"));
            match builder().create(&path) {
                Ok(()) => return Ok(TemporaryFolder(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => {
                    return Err(Error::io("create the folder", &path, &error)
                        .help("TMPDIR sets the folder for temporary files"));
                }
            }
        }
        Err(Error::unavailable(format!("cannot create a temporary folder in {}", base.display()))
            .got(format!("{ATTEMPTS_MAX} existing folders {prefix}-{process}-*"))
            .help("remove those that no process uses"))
    }

    /// Returns the folder's path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TemporaryFolder {
    fn drop(&mut self) {
        // A folder that cannot be removed is harmless.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(unix)]
fn builder() -> DirBuilder {
    use std::os::unix::fs::DirBuilderExt;
    let mut builder = DirBuilder::new();
    builder.mode(0o700);
    builder
}

#[cfg(not(unix))]
fn builder() -> DirBuilder {
    DirBuilder::new()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn folders_are_separate_and_private() {
        let base = TemporaryFolder::new(&std::env::temp_dir(), "fleet-temporary").unwrap();
        let [one, other] = [(); 2].map(|()| TemporaryFolder::new(base.path(), "a").unwrap());
        assert_ne!(one.path(), other.path());
        let mode = one.path().metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let error = TemporaryFolder::new(Path::new("/no/such"), "a").unwrap_err().to_string();
        assert!(error.contains("/no/such/a-") && error.contains("TMPDIR"), "{error}");
    }
}
