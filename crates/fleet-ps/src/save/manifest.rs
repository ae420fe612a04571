//! What a server wrote: a text file of a line a fact, the last one a checksum over the others.

use super::{COMPRESSED, SaveFormat};
use fleet_base::file::{TEMPORARY_SUFFIX, write_file};
use fleet_base::{Error, Result};
use std::fmt::Write;
use std::ops::Range;
use std::path::Path;

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
    /// Which numbers of a dense table in blocks the part has, in their order.
    pub numbers: Option<Vec<Range<usize>>>,
    pub parts: Vec<Part>,
}

pub(super) struct Part {
    pub name: String,
    pub bytes: u64,
    pub checksum: u32,
    /// Bytes before compression, of parts that are compressed.
    pub plain_bytes: Option<u64>,
}

const TITLE: &str = "fleet sparse table, version 1";
/// A manifest of the most shards a table may have is smaller.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

/// Begins the line of [`Manifest::numbers`].
const NUMBERS: &str = "numbers";
const PREFIX: &str = "manifest-";

/// The manifest of a server in a save.
pub(super) fn file_name(server: u32, save_id: u64) -> String {
    format!("{PREFIX}{server:03}.{save_id}")
}

/// Server and save of every manifest in a folder.
pub(super) fn list(folder: &Path) -> Result<Vec<(u32, u64)>> {
    numbered(folder, PREFIX)
}

/// Numbers of the files `<prefix><server>.<save>`.
pub(super) fn numbered(folder: &Path, prefix: &str) -> Result<Vec<(u32, u64)>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("list", folder, &error)),
    };
    let numbers = entries.flatten().filter_map(|entry| {
        let name = entry.file_name();
        let (server, save) = name.to_str()?.strip_prefix(prefix)?.split_once('.')?;
        Some((server.parse().ok()?, save.parse().ok()?))
    });
    Ok(numbers.collect())
}

/// How a server names the parts of its next save: not as those that are there.
pub(super) fn next_round(folder: &Path, server: u32) -> Result<u64> {
    let own = list(folder)?.into_iter().filter(|(of, _)| *of == server);
    // One that cannot be read names nothing that will be looked for.
    let rounds = own.filter_map(|(of, save)| read(&folder.join(file_name(of, save))).ok());
    Ok(rounds.map(|manifest| manifest.round + 1).max().unwrap_or(0))
}

/// Deletes a server's other saves.
pub(super) fn remove_others(folder: &Path, server: u32, save_id: u64) {
    for (of, save) in list(folder).unwrap_or_default() {
        if of == server && save != save_id {
            remove(folder, server, save);
        }
    }
}

/// Deletes a server's part in a save: first the manifest, so that the save is none from then on. What
/// cannot be deleted harms nobody.
pub(super) fn remove(folder: &Path, server: u32, save_id: u64) {
    let path = folder.join(file_name(server, save_id));
    let manifest = read(&path);
    let _ = std::fs::remove_file(&path);
    for part in manifest.iter().flat_map(|manifest| &manifest.parts) {
        let _ = std::fs::remove_file(folder.join(&part.name));
    }
}

/// Deletes what a process of this server left that died while it wrote a save. No other one writes
/// files of these names: a folder has one job.
pub(super) fn remove_temporary(folder: &Path, server: u32) {
    let own = ["part", "manifest", "saved"].map(|what| format!(".{what}-{server:03}"));
    let is_own = |name: &str| {
        let rest = own.iter().find_map(|prefix| name.strip_prefix(&prefix[..]));
        rest.is_some_and(|rest| rest.starts_with(['-', '.'])) && name.ends_with(TEMPORARY_SUFFIX)
    };
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(is_own) {
            // What cannot be deleted harms nobody.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

pub(super) fn write(folder: &Path, manifest: &Manifest) -> Result<()> {
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
    write_file(&path, text.as_bytes())
}

pub(super) fn read(path: &Path) -> Result<Manifest> {
    let broken = |why: &str| {
        Error::invalid(format!("{} is damaged: {why}", path.display()))
            .help("load another save, or restore this file from where it was copied")
    };
    let size = std::fs::metadata(path).map_err(|error| Error::io("read", path, &error))?.len();
    if size > MANIFEST_BYTES_MAX {
        return Err(broken("it is too large for a manifest"));
    }
    let bytes = std::fs::read(path).map_err(|error| Error::io("read", path, &error))?;
    let text = std::str::from_utf8(&bytes).map_err(|_| broken("it is not text"))?;
    let last = text.trim_end_matches('\n').rfind('\n').map_or(0, |at| at + 1);
    let sum = text[last..].trim_end().strip_prefix("end ");
    let sum = sum.and_then(|sum| u32::from_str_radix(sum, 16).ok());
    if sum != Some(crc32fast::hash(&bytes[..last])) {
        return Err(broken("its checksum is wrong"));
    }
    parse(&text[..last]).ok_or_else(|| broken("it is of another version"))
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
    // A name from a file must not lead out of the folder.
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
