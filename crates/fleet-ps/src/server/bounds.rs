//! Checks of requests before they run: answers too long for a frame, and folders outside the save
//! root.

use super::ServerTables;
use crate::io_error::io_error;
use crate::request::{Change, Method, Read, Request};
use crate::save::remote::remote_url;
use fleet_base::{Error, Result};
use std::path::{Component, Path, PathBuf};

/// Limits on the requests of a server's clients.
#[derive(Clone, Debug)]
pub(super) struct Bounds {
    /// Longest answer, in bytes.
    pub answer_bytes_max: usize,
    /// Folder that saves and loads must stay in, if there is one.
    pub save_root: Option<PathBuf>,
}

impl Bounds {
    /// Checks a request before it runs. Malformed requests pass here and are rejected where they
    /// run.
    pub fn check(&self, tables: &ServerTables, method: u8, request: &[u8]) -> Result<()> {
        let Ok(method) = Method::parse(method) else { return Ok(()) };
        let Ok((_, request)) = Request::decode(method, request) else { return Ok(()) };
        match request {
            Request::Read(Read::PullSparse { table, ids, .. }) => {
                self.check_answer(ids.len().saturating_mul(tables.pull_width(table) * 4))
            }
            Request::Read(Read::LastSave { dir })
            | Request::Change(Change::Save { dir, .. } | Change::Load { dir, .. }) => {
                self.check_folder(Path::new(dir))
            }
            _ => Ok(()),
        }
    }

    fn check_answer(&self, bytes: usize) -> Result<()> {
        match bytes <= self.answer_bytes_max {
            true => Ok(()),
            false => Err(Error::exhausted("pull exceeds the size limit of an answer")
                .expected(format!("up to {} bytes", self.answer_bytes_max))
                .got(bytes)
                .help("pull fewer ids at once")),
        }
    }

    fn check_folder(&self, dir: &Path) -> Result<()> {
        let Some(root) = &self.save_root else { return Ok(()) };
        let is_within = match (remote_url(root)?, remote_url(dir)?) {
            (Some(root), Some(dir)) => is_below(root, dir),
            (None, None) => is_inside(root, dir).map_err(io_error("resolve", dir))?,
            _ => false,
        };
        match is_within {
            true => Ok(()),
            false => Err(Error::invalid("folder outside the servers' save root")
                .expected(format!("a folder in {}", root.display()))
                .got(dir.display())
                .help("choose a folder in FLEET_SAVE_ROOT of the servers (fleetrun --save_root)")),
        }
    }
}

/// Returns whether a remote folder is `root` or below it. Neither has a part `..`.
fn is_below(root: &str, dir: &str) -> bool {
    let root = root.trim_end_matches('/');
    dir.strip_prefix(root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether a folder, which may not exist yet, is in `root` after all links are resolved.
fn is_inside(root: &Path, dir: &Path) -> std::io::Result<bool> {
    let dir = std::path::absolute(dir)?;
    if dir.components().any(|part| part == Component::ParentDir) {
        return Ok(false);
    }
    // A path that does not exist is not a link. A dangling link exists itself.
    let is_there = |path: &&Path| path.symlink_metadata().is_ok();
    let Some(known) = dir.ancestors().find(is_there) else { return Ok(false) };
    Ok(known.canonicalize()?.starts_with(root.canonicalize()?))
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    /// A root on one file system excludes the others.
    #[test]
    fn remote_folders_have_a_remote_root() {
        let check = |root: &str, dir: &str| {
            let bounds = Bounds { answer_bytes_max: 0, save_root: Some(root.into()) };
            bounds.check_folder(Path::new(dir)).map_err(|error| error.to_string())
        };
        let root = "hdfs://host/saves/";
        for dir in ["hdfs://host/saves", "hdfs://host/saves/", "hdfs://host/saves/a/b"] {
            assert_eq!(check(root, dir), Ok(()), "{dir}");
        }
        for dir in ["hdfs://host/saves2", "hdfs://other/saves/a", "/saves/a", "afs://host/saves/a"]
        {
            let error = check(root, dir).unwrap_err();
            assert!(error.contains("expected a folder in hdfs://host/saves/"), "{error}");
        }
        assert!(check(root, "hdfs://host/saves/../a").unwrap_err().contains("a path without .."));
        assert!(check("/saves", root).unwrap_err().contains("outside the servers' save root"));
    }

    #[test]
    fn links_and_dots_lead_nowhere() {
        let base = std::env::temp_dir().join(format!("fleet-save-root-{}", std::process::id()));
        let root = base.join("root");
        std::fs::create_dir_all(root.join("there")).unwrap();
        std::fs::create_dir_all(base.join("root2")).unwrap();
        std::os::unix::fs::symlink(&base, root.join("out")).unwrap();
        std::os::unix::fs::symlink(base.join("missing"), root.join("dangling")).unwrap();
        for (path, wanted) in [
            ("root", true),
            ("root/there/new/deep", true),
            ("root2", false),
            ("root/../root2", false),
            ("root/there/../../root2", false),
            ("root/out/root2", false),
            ("root/out/new", false),
        ] {
            assert_eq!(is_inside(&root, &base.join(path)).unwrap(), wanted, "{path}");
        }
        assert!(is_inside(&root, &root.join("dangling/new")).is_err());
        assert!(!is_inside(&root, Path::new("/")).unwrap());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
