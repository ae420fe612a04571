//! A double of a Hadoop client: a shell script whose HDFS is a folder of this machine. It can fail.

use std::ops::Range;
use std::path::{Path, PathBuf};

/// The client `hadoop`, in a folder of its own that is deleted at the end. URLs of any host lead to
/// the folder [`Hadoop::file`].
pub struct Hadoop {
    folder: PathBuf,
}

impl Hadoop {
    /// Writes the client to a folder, which is emptied before.
    pub fn new(folder: impl Into<PathBuf>) -> Hadoop {
        use std::os::unix::fs::PermissionsExt;
        let folder = folder.into();
        std::fs::remove_dir_all(&folder).ok();
        for name in ["files", "tmp"] {
            std::fs::create_dir_all(folder.join(name)).expect("a folder for the client");
        }
        let program = folder.join("hadoop");
        std::fs::write(&program, include_str!("hadoop.sh")).expect("the client");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))
            .expect("a client that can be executed");
        Hadoop { folder }
    }

    /// The folder with the program `hadoop`.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of the program `hadoop`.
    pub fn program(&self) -> String {
        self.folder.join("hadoop").display().to_string()
    }

    /// An empty folder for the temporary files of the client's user.
    pub fn temporary(&self) -> PathBuf {
        self.folder.join("tmp")
    }

    /// The file or folder at a path of HDFS, `/save`.
    pub fn file(&self, path: &str) -> PathBuf {
        self.folder.join("files").join(path.trim_start_matches('/'))
    }

    /// Paths of all files of HDFS, sorted.
    pub fn files(&self) -> Vec<String> {
        let root = self.folder.join("files");
        let (mut files, mut folders) = (Vec::new(), vec![root.clone()]);
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).expect("a folder").flatten() {
                let path = entry.path();
                match path.is_dir() {
                    true => folders.push(path),
                    false => files
                        .extend(path.strip_prefix(&root).map(|it| format!("/{}", it.display()))),
                }
            }
        }
        files.sort();
        files
    }

    /// The commands so far: action and options.
    pub fn commands(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.folder.join("log")).unwrap_or_default();
        text.lines().map(str::to_string).collect()
    }

    /// Counts commands anew, and makes those of these numbers, from 1, fail. The first of them does
    /// a part of its work.
    pub fn fail(&self, numbers: Range<usize>) {
        let Range { start, end } = numbers;
        std::fs::write(self.folder.join("fail"), format!("{start} {end}\n")).expect("a file");
        for name in ["count", "log"] {
            std::fs::remove_file(self.folder.join(name)).ok();
        }
    }

    /// Counts commands anew, and lets all succeed.
    pub fn recover(&self) {
        self.fail(0..0);
    }
}

impl Drop for Hadoop {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
