//! Lists of files: glob patterns, names of objects, and each worker's shard.

use fleet_base::{Error, Result};
use glob::{MatchOptions, Pattern};
use std::path::{Path, PathBuf};

/// Returns the files that match a pattern, sorted by name. `*` and `?` match characters within one
/// name, `**` matches any number of folders, and `[a-c]` and `[!a]` match one character.
///
/// ```
/// let folder = std::env::temp_dir().join(format!("glob-example-{}", std::process::id()));
/// std::fs::create_dir_all(folder.join("day-1")).unwrap();
/// for name in ["day-1/part-1", "day-1/part-0", "day-1/meta"] {
///     std::fs::write(folder.join(name), "").unwrap();
/// }
/// let found = fleet_data::glob(&folder.join("day-*/part-?").to_string_lossy())?;
/// let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
/// assert_eq!(names, ["part-0", "part-1"]);
/// std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn glob(pattern: &str) -> Result<Vec<PathBuf>> {
    if is_url(Path::new(pattern)) {
        return Err(object_name_error(pattern));
    }
    let pieces = pattern.split('/').filter(|piece| !piece.is_empty());
    let root = if pattern.starts_with('/') { PathBuf::from("/") } else { PathBuf::new() };
    let mut found = vec![root];
    for piece in pieces {
        let mut next = Vec::new();
        for folder in &found {
            step(folder, piece, &mut next)?;
        }
        found = next;
    }
    found.retain(|path| path.is_file());
    found.sort();
    found.dedup();
    if found.is_empty() {
        return Err(Error::invalid("no file matches the pattern").got(pattern));
    }
    Ok(found)
}

/// Appends the entries of a folder that match one component of a pattern.
fn step(folder: &Path, piece: &str, next: &mut Vec<PathBuf>) -> Result<()> {
    if piece == "**" {
        return collect_folders(folder, 0, next);
    }
    if !piece.contains(['*', '?', '[']) {
        let path = folder.join(piece);
        next.extend(path.exists().then_some(path));
        return Ok(());
    }
    let pattern = parsed(piece)?;
    // As in shells, `*` does not match hidden files.
    let rules = MatchOptions { require_literal_leading_dot: true, ..MatchOptions::new() };
    let names = names(folder)?.into_iter();
    next.extend(names.filter(|name| pattern.matches_with(name, rules)).map(|it| folder.join(it)));
    check_count(next.len())
}

/// Appends a folder and all folders below it.
fn collect_folders(folder: &Path, depth: usize, next: &mut Vec<PathBuf>) -> Result<()> {
    if depth > DEPTH_MAX {
        return Err(Error::exhausted("folders are nested too deeply").at(folder.display()));
    }
    next.push(folder.to_path_buf());
    for name in names(folder)? {
        let path = folder.join(&name);
        // A symbolic link could lead back up.
        if !name.starts_with('.') && path.is_dir() && !path.is_symlink() {
            collect_folders(&path, depth + 1, next)?;
        }
    }
    check_count(next.len())
}

pub(crate) fn check_count(found: usize) -> Result<()> {
    if found <= FILES_MAX {
        return Ok(());
    }
    Err(Error::exhausted("a pattern matches too many files")
        .expected(format!("at most {FILES_MAX}")))
}

fn names(folder: &Path) -> Result<Vec<String>> {
    let shown = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    if !shown.is_dir() {
        return Ok(Vec::new());
    }
    let entries =
        std::fs::read_dir(shown).map_err(|error| Error::io("list the folder", shown, &error))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    Ok(names.collect())
}

/// Parses a pattern, or one component of it.
pub(crate) fn parsed(pattern: &str) -> Result<Pattern> {
    Pattern::new(pattern)
        .map_err(|error| Error::invalid(format!("invalid pattern: {}", error.msg)).got(pattern))
}

/// Returns whether a name is that of an object, `SCHEME://..`, rather than a file's.
pub(crate) fn is_url(path: &Path) -> bool {
    let scheme = path.to_str().and_then(|path| path.split_once("://"));
    scheme.is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric())
    })
}

/// Returns the error for a name of an object where only files are supported.
pub(crate) fn object_name_error(name: impl std::fmt::Display) -> Error {
    let stores = match cfg!(feature = "object-store") {
        true => "set object_stores(..) on the format, and list names with ObjectStores::glob",
        false => "build with the feature `object-store`",
    };
    let help = format!("{stores}; for text and TFRecord files, a download_command works too");
    Error::invalid("file is in an object store").help(help).at(name)
}

/// Returns worker `worker`'s shard of the files. Shards are contiguous; if the count does not
/// divide evenly, the first workers get one file more.
///
/// ```
/// let files: Vec<String> = (0..10).map(|part| format!("part-{part}")).collect();
/// assert_eq!(fleet_data::file_shard(&files, 0, 3)?, &files[..4]);
/// assert_eq!(fleet_data::file_shard(&files, 2, 3)?, &files[7..]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn file_shard<T>(files: &[T], worker: usize, worker_count: usize) -> Result<&[T]> {
    let range = crate::shard_range(files.len() as u64, worker as u64, worker_count as u64)?;
    Ok(&files[range.start as usize..range.end as usize])
}

/// Limit of the folder depth; deeper trees are most likely loops.
const DEPTH_MAX: usize = 64;
/// Limit of the number of files; a list of this many names takes 200 MB.
pub(crate) const FILES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        let folder = std::env::temp_dir().join(format!("fleet-patterns-{}", std::process::id()));
        let names = ["part-2", "part-4", "part-77", ".part-9", "x/part-2", "x/y/part-3"];
        std::fs::create_dir_all(folder.join("x/y")).unwrap();
        for name in names {
            std::fs::write(folder.join(name), "").unwrap();
        }
        for (pattern, expected) in [
            ("*", &["part-2", "part-4", "part-77"][..]),
            ("p*r*-2", &["part-2"]),
            ("part-?", &["part-2", "part-4"]),
            ("part-[0-3]", &["part-2"]),
            ("part-[!0-3]", &["part-4"]),
            ("**/part-[23]", &["part-2", "x/part-2", "x/y/part-3"]),
            ("x/**/part*", &["x/part-2", "x/y/part-3"]),
            (".p*", &[".part-9"]),
        ] {
            let found = glob(&folder.join(pattern).to_string_lossy()).unwrap();
            let expected: Vec<PathBuf> = expected.iter().map(|name| folder.join(name)).collect();
            assert_eq!(found, expected, "{pattern}");
        }
        for (pattern, words) in [
            ("part-?a", "no file matches"),
            (&*"*a".repeat(30), "no file matches"),
            ("part-[", "invalid pattern"),
        ] {
            let error = glob(&folder.join(pattern).to_string_lossy()).unwrap_err().to_string();
            assert!(error.contains(words), "{pattern}: {error}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn shares_are_contiguous() {
        let files: Vec<usize> = (0..10).collect();
        let sizes: Vec<usize> =
            (0..3).map(|worker| file_shard(&files, worker, 3).unwrap().len()).collect();
        assert_eq!(sizes, [4, 3, 3]);
        assert!(file_shard(&files, 3, 3).is_err());
    }
}
