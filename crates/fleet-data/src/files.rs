//! Lists of files: glob patterns, and each worker's shard.

use crate::pipe::{is_url, object_name_error};
use fleet_base::{Error, Result};
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
    for name in names(folder)? {
        // As in shells, `*` does not match hidden files.
        let hidden = name.starts_with('.') && !piece.starts_with('.');
        if !hidden && matches(piece.as_bytes(), name.as_bytes()) {
            next.push(folder.join(name));
        }
    }
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

/// Returns whether a name matches a pattern of `*`, `?`, `[..]` and plain bytes.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Position to backtrack to when the last star must match one more byte.
    let mut retry = None;
    while n < name.len() {
        match element(&pattern[p..], name[n]) {
            Element::Star => {
                retry = Some((p, n + 1));
                p += 1;
                continue;
            }
            Element::Fits(length) => {
                p += length;
                n += 1;
                continue;
            }
            Element::Differs => {}
        }
        let Some((star, taken)) = retry else { return false };
        retry = Some((star, taken + 1));
        (p, n) = (star + 1, taken);
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns whether the names of a path match the components of a pattern.
#[cfg(feature = "object-store")]
pub(crate) fn matches_path(pattern: &[&str], path: &[&str]) -> bool {
    match pattern {
        [] => path.is_empty(),
        ["**", rest @ ..] => (0..=path.len()).any(|depth| matches_path(rest, &path[depth..])),
        [first, rest @ ..] => path.split_first().is_some_and(|(name, below)| {
            matches(first.as_bytes(), name.as_bytes()) && matches_path(rest, below)
        }),
    }
}

enum Element {
    Star,
    /// Length of the part of the pattern that the byte matches.
    Fits(usize),
    Differs,
}

fn element(pattern: &[u8], byte: u8) -> Element {
    match pattern {
        [b'*', ..] => Element::Star,
        [b'?', ..] => Element::Fits(1),
        [b'[', rest @ ..] if rest[1.min(rest.len())..].contains(&b']') => {
            let end = 1 + rest[1..].iter().position(|byte| *byte == b']').unwrap_or(0);
            let (set, inverted) = match &rest[..end] {
                [b'!', set @ ..] => (set, true),
                set => (set, false),
            };
            if in_set(set, byte) != inverted { Element::Fits(end + 2) } else { Element::Differs }
        }
        [same, ..] if *same == byte => Element::Fits(1),
        _ => Element::Differs,
    }
}

fn in_set(mut set: &[u8], byte: u8) -> bool {
    while let [first, rest @ ..] = set {
        match rest {
            [b'-', last, rest @ ..] => {
                if (*first..=*last).contains(&byte) {
                    return true;
                }
                set = rest;
            }
            _ => {
                if *first == byte {
                    return true;
                }
                set = rest;
            }
        }
    }
    false
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
        let check = |pattern: &str, name: &str, expected: bool| {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern} {name}");
        };
        check("*", "abc", true);
        check("*", "", true);
        check("a*c", "abbbc", true);
        check("a*c", "abbbd", false);
        check("*a*b*", "xxaxxbxx", true);
        check("part-?", "part-7", true);
        check("part-?", "part-77", false);
        check("part-[0-3]", "part-2", true);
        check("part-[0-3]", "part-4", false);
        check("part-[!0-3]", "part-4", true);
        check("[]", "[]", true);
        check("[", "[", true);
        check("a", "", false);
        check(&"*a".repeat(30), &"b".repeat(200), false);
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
