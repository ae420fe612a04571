//! What a server wrote: a text file of a line a fact, the last one a checksum over the others.

use super::SaveFormat;
use fleet_base::file::write_file;
use fleet_base::{Error, Result};
use std::fmt::Write;
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
    pub parts: Vec<Part>,
}

pub(super) struct Part {
    pub name: String,
    pub bytes: u64,
    pub checksum: u32,
}

const TITLE: &str = "fleet sparse table, version 1";
/// A manifest of the most shards a table may have is smaller.
const MANIFEST_BYTES_MAX: u64 = 1 << 20;

pub(super) fn file_name(server: u32) -> String {
    format!("manifest-{server:03}")
}

pub(super) fn write(path: &Path, manifest: &Manifest) -> Result<()> {
    let Manifest { table_id, server, server_count, save_id, round, mode, .. } = manifest;
    let mut text = format!(
        "{TITLE}\ntable {table_id}\nserver {server}\nserver_count {server_count}\n\
         save_id {save_id}\nround {round}\nmode {mode}\nformat {}\nlayout {}\n",
        manifest.format.name(),
        manifest.layout
    );
    for part in &manifest.parts {
        // Writing to a string does not fail.
        let _ = writeln!(text, "part {} {} {:08x}", part.name, part.bytes, part.checksum);
    }
    let _ = writeln!(text, "end {:08x}", crc32fast::hash(text.as_bytes()));
    write_file(path, text.as_bytes())
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
        parts: Vec::new(),
    };
    let parts = lines.map(part).collect::<Option<Vec<Part>>>()?;
    Some(Manifest { parts, ..manifest })
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
    };
    words.next().is_none().then_some(part)
}
