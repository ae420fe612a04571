//! The manifest of a server's save: text with one fact a line; the last line is a checksum of the
//! others.

use super::{COMPRESSED, SaveFormat};
use fleet_base::disk::{Disk, PathKind, read_file};
use fleet_base::file::{AtomicFile, TEMPORARY_SUFFIX};
use fleet_base::{Error, Result};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub(super) struct Manifest {
    pub table_id: u32,
    pub server: u32,
    pub server_count: u32,
    pub save_id: u64,
    /// How often this server saved here before.
    pub round: u64,
    pub mode: u8,
    pub format: SaveFormat,
    pub layout: String,
    /// For a dense table in blocks, the ranges of its numbers in the part, in order.
    pub numbers: Option<Vec<Range<usize>>>,
    pub parts: Vec<Part>,
}

pub(super) struct Part {
    pub name: String,
    pub bytes: u64,
    pub checksum: u32,
    /// Size before compression, of compressed parts.
    pub plain_bytes: Option<u64>,
}

const TITLE: &str = "fleet sparse table, version 1";
/// Limit on a manifest, in bytes; one with the most shards that a table may have is smaller.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// First word of the line of [`Manifest::numbers`].
const NUMBERS: &str = "numbers";
/// Name of a save's list of tables for people.
pub(super) const TABLES: &str = "tables.txt";
pub(super) const PREFIX: &str = "manifest-";

/// Returns the name of a server's manifest in a save.
pub(super) fn file_name(server: u32, save_id: u64) -> String {
    format!("{PREFIX}{server:03}.{save_id}")
}

/// Lists server and save of the files `<prefix><server>.<save>`.
pub(super) fn numbered(disk: &dyn Disk, folder: &Path, prefix: &str) -> Result<Vec<(u32, u64)>> {
    Ok(names(disk, folder)?.iter().filter_map(|name| number(name, prefix)).collect())
}

/// Returns server and save of a file `<prefix><server>.<save>`.
pub(super) fn number(name: &str, prefix: &str) -> Option<(u32, u64)> {
    let (server, save) = name.strip_prefix(prefix)?.split_once('.')?;
    Some((server.parse().ok()?, save.parse().ok()?))
}

/// Lists the names in a folder; none if the folder does not exist.
fn names(disk: &dyn Disk, folder: &Path) -> Result<Vec<String>> {
    match disk.list(folder) {
        Ok(names) => Ok(names),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(Error::io("list", folder, &error)),
    }
}

/// Returns the round of a server's next save, which names its parts unlike any existing ones.
/// Manifests are not consulted: one that cannot be read now may list parts all the same.
pub(super) fn next_round(disk: &dyn Disk, folder: &Path, server: u32) -> Result<u64> {
    let names = names(disk, folder)?;
    let rounds = names.iter().filter_map(|name| round(name, server));
    Ok(rounds.max().map_or(0, |last| last.saturating_add(1)))
}

/// Returns the round of a server's part.
pub(super) fn round(name: &str, server: u32) -> Option<u64> {
    let rest = name.strip_prefix(&format!("part-{server:03}"))?;
    let rest = rest.strip_suffix(COMPRESSED).unwrap_or(rest);
    match rest.split_once('.') {
        None => (rest.is_empty() || rest.starts_with('-')).then_some(0),
        Some((_, round)) => round.parse().ok(),
    }
}

/// Deletes a server's other saves, and parts that no manifest lists. Files that cannot be deleted
/// are harmless.
pub(super) fn remove_others(disk: &dyn Disk, folder: &Path, server: u32, save_id: u64) {
    let Ok(kept) = read(disk, &folder.join(file_name(server, save_id))) else { return };
    for (of, save) in numbered(disk, folder, PREFIX).unwrap_or_default() {
        if of == server && save != save_id {
            let _ = disk.remove(&folder.join(file_name(server, save)));
        }
    }
    // The manifests are deleted first and for good, so that no save lacks a part.
    if disk.sync_folder(folder).is_err() {
        return;
    }
    let is_kept = |name: &String| kept.parts.iter().any(|part| part.name == *name);
    for name in names(disk, folder).unwrap_or_default() {
        if round(&name, server).is_some() && !is_kept(&name) {
            let _ = disk.remove(&folder.join(name));
        }
    }
}

/// Deletes a server's part of a save: first the manifest, so that the save does not count from then
/// on, even after a power cut.
pub(super) fn remove(disk: &dyn Disk, folder: &Path, server: u32, save_id: u64) {
    if let Ok(manifest) = read(disk, &folder.join(file_name(server, save_id))) {
        withdraw(disk, folder, &manifest);
    }
}

/// Deletes the parts of a failed save, and its manifest if that is in place all the same.
pub(super) fn withdraw(disk: &dyn Disk, folder: &Path, manifest: &Manifest) {
    let path = folder.join(file_name(manifest.server, manifest.save_id));
    let is_gone = match read_file(disk, &path, MANIFEST_BYTES_MAX) {
        Ok(None) => true,
        // A manifest of another round is that of a good save with this number.
        Ok(Some(bytes)) => match parse_sealed(&path, &bytes) {
            Ok(found) if found.round != manifest.round => true,
            Ok(_) => disk.remove(&path).is_ok(),
            Err(_) => false,
        },
        // An unreadable manifest may be in place; a folder is no manifest.
        Err(_) => matches!(disk.kind(&path), Ok(PathKind::Folder)),
    };
    if is_gone && disk.sync_folder(folder).is_ok() {
        for part in &manifest.parts {
            let _ = disk.remove(&folder.join(&part.name));
        }
    }
}

/// Deletes temporary files of a process of this server that died while it wrote a save. No other
/// process writes files of these names: a folder belongs to one job. Server 0 also writes the list
/// of tables.
pub(super) fn remove_temporary(disk: &dyn Disk, folder: &Path, server: u32) {
    let mut own =
        Vec::from(["part", "manifest", "saved"].map(|what| format!(".{what}-{server:03}")));
    own.extend((server == 0).then(|| format!(".{TABLES}")));
    let is_own = |name: &str| {
        let rest = own.iter().find_map(|prefix| name.strip_prefix(&prefix[..]));
        rest.is_some_and(|rest| rest.starts_with(['-', '.'])) && name.ends_with(TEMPORARY_SUFFIX)
    };
    for name in names(disk, folder).unwrap_or_default() {
        if is_own(&name) {
            // A file that cannot be deleted is harmless.
            let _ = disk.remove(&folder.join(name));
        }
    }
}

pub(super) fn write(disk: &Arc<dyn Disk>, folder: &Path, manifest: &Manifest) -> Result<()> {
    let path = folder.join(file_name(manifest.server, manifest.save_id));
    let Manifest { table_id, server, server_count, save_id, round, mode, .. } = manifest;
    let mut text = format!(
        "{TITLE}\ntable {table_id}\nserver {server}\nserver_count {server_count}\n\
         save_id {save_id}\nround {round}\nmode {mode}\nformat {}\nlayout {}\n",
        manifest.format.name(),
        manifest.layout
    );
    // Writing to a string does not fail.
    if let Some(numbers) = &manifest.numbers {
        text.push_str(NUMBERS);
        for Range { start, end } in numbers {
            let _ = write!(text, " {start}..{end}");
        }
        text.push('\n');
    }
    for part in &manifest.parts {
        let _ = write!(text, "part {} {} {:08x}", part.name, part.bytes, part.checksum);
        let _ = part.plain_bytes.map(|bytes| write!(text, " {bytes}"));
        text.push('\n');
    }
    let _ = writeln!(text, "end {:08x}", crc32fast::hash(text.as_bytes()));
    put(disk, &path, text.as_bytes())
}

/// Writes a whole file.
pub(super) fn put(disk: &Arc<dyn Disk>, path: &Path, bytes: &[u8]) -> Result<()> {
    let mut file = AtomicFile::replace_on(disk, path)?;
    file.write_all(bytes).map_err(|error| file.error("write", &error))?;
    file.commit()
}

pub(super) fn read(disk: &dyn Disk, path: &Path) -> Result<Manifest> {
    match read_file(disk, path, MANIFEST_BYTES_MAX).map_err(|error| error.or_help(WHAT_TO_DO))? {
        Some(bytes) => parse_sealed(path, &bytes),
        None => Err(Error::io("read", path, &io::ErrorKind::NotFound.into()).help(WHAT_TO_DO)),
    }
}

/// Help for files that are not as they were written.
pub(super) const WHAT_TO_DO: &str = "load another save, or copy this file again";

fn parse_sealed(path: &Path, bytes: &[u8]) -> Result<Manifest> {
    let broken = |why: &str| {
        Error::invalid(format!("{} is damaged: {why}", path.display())).help(WHAT_TO_DO)
    };
    let text = std::str::from_utf8(bytes).map_err(|_| broken("it is not text"))?;
    let last = text.trim_end_matches('\n').rfind('\n').map_or(0, |at| at + 1);
    if text[last..] != format!("end {:08x}\n", crc32fast::hash(&bytes[..last])) {
        return Err(broken("its checksum is wrong"));
    }
    parse(&text[..last]).ok_or_else(|| broken("it has another version"))
}

fn parse(text: &str) -> Option<Manifest> {
    let mut lines = text.lines();
    (lines.next()? == TITLE).then_some(())?;
    let mut fact =
        |name: &str| -> Option<&str> { lines.next()?.strip_prefix(name)?.strip_prefix(' ') };
    let manifest = Manifest {
        table_id: fact("table")?.parse().ok()?,
        server: fact("server")?.parse().ok()?,
        server_count: fact("server_count")?.parse().ok()?,
        save_id: fact("save_id")?.parse().ok()?,
        round: fact("round")?.parse().ok()?,
        mode: fact("mode")?.parse().ok()?,
        format: match fact("format")? {
            "text" => SaveFormat::Text,
            "binary" => SaveFormat::Binary,
            _ => return None,
        },
        layout: fact("layout")?.to_string(),
        numbers: None,
        parts: Vec::new(),
    };
    let mut lines = lines.peekable();
    let manifest = match lines.next_if(|line| line.starts_with(NUMBERS)) {
        Some(line) => Manifest { numbers: Some(numbers(line)?), ..manifest },
        None => manifest,
    };
    let parts = lines.map(part).collect::<Option<Vec<Part>>>()?;
    Some(Manifest { parts, ..manifest })
}

fn numbers(line: &str) -> Option<Vec<Range<usize>>> {
    let range = |word: &str| {
        let (start, end) = word.split_once("..")?;
        Some(start.parse().ok()?..end.parse().ok()?)
    };
    line.split(' ').skip(1).map(range).collect()
}

fn part(line: &str) -> Option<Part> {
    let mut words = line.strip_prefix("part ")?.split(' ');
    let name = words.next()?;
    // A name read from a file must not lead out of the folder.
    (name.starts_with("part-") && !name.contains(['/', '\\'])).then_some(())?;
    let part = Part {
        name: name.to_string(),
        bytes: words.next()?.parse().ok()?,
        checksum: u32::from_str_radix(words.next()?, 16).ok()?,
        plain_bytes: match name.ends_with(COMPRESSED) {
            true => Some(words.next()?.parse().ok()?),
            false => None,
        },
    };
    words.next().is_none().then_some(part)
}
