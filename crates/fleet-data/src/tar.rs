//! Uncompressed tar archives: their headers, and parts of them.

use fleet_base::{Error, Result};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// A file in an archive.
pub(crate) struct Member {
    pub name: String,
    /// Position of its content, and its size.
    pub start: u64,
    pub bytes: u64,
}

/// Reads the headers of a tar archive.
pub(crate) fn members(file: &mut File) -> Result<Vec<Member>> {
    let total = file.metadata().map_err(|e| broken(&e))?.len();
    let (mut members, mut at, mut long_name) = (Vec::new(), 0u64, None);
    while at + TAR_BLOCK <= total {
        let header = part(file, at, TAR_BLOCK)?;
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let damaged = |what: &str| Error::invalid(format!("tar archive has {what} at byte {at}"));
        // The checksum counts its own eight bytes as blanks.
        let sum: u64 = header.iter().map(|byte| u64::from(*byte)).sum();
        let own: u64 = header[148..156].iter().map(|byte| u64::from(*byte)).sum();
        if octal(&header[148..156]) != Some(sum - own + 8 * 32) {
            return Err(damaged("a header with a wrong checksum"));
        }
        let bytes = octal(&header[124..136]).ok_or_else(|| damaged("a file of unknown size"))?;
        let start = at + TAR_BLOCK;
        if bytes > total - start {
            return Err(damaged("a file that extends past the end of the archive"));
        }
        match header[156] {
            b'L' if bytes > NAME_BYTES_MAX => return Err(damaged("a name that is too long")),
            b'L' => long_name = Some(text_until_zero(&part(file, start, bytes)?)),
            b'0' | 0 => {
                let short = match text_until_zero(&header[345..500]) {
                    prefix if header[257..262] == *b"ustar" && !prefix.is_empty() => {
                        format!("{prefix}/{}", text_until_zero(&header[..100]))
                    }
                    _ => text_until_zero(&header[..100]),
                };
                let name = long_name.take().unwrap_or(short);
                members.push(Member { name, start, bytes });
            }
            _ => long_name = None,
        }
        if members.len() > MEMBERS_MAX {
            return Err(Error::exhausted("tar archive has too many files"));
        }
        at = start + bytes.next_multiple_of(TAR_BLOCK);
    }
    Ok(members)
}

/// Reads a part of an archive.
pub(crate) fn part(file: &mut File, start: u64, bytes: u64) -> Result<Vec<u8>> {
    let mut buffer = vec![0; bytes as usize];
    file.seek(SeekFrom::Start(start)).map_err(|e| broken(&e))?;
    file.read_exact(&mut buffer).map_err(|e| broken(&e))?;
    Ok(buffer)
}

pub(crate) fn broken(error: &std::io::Error) -> Error {
    Error::unavailable(format!("cannot read the tar archive: {error}"))
}

fn octal(field: &[u8]) -> Option<u64> {
    u64::from_str_radix(text_until_zero(field).trim(), 8).ok()
}

/// Returns the text up to the first zero byte.
pub(crate) fn text_until_zero(field: &[u8]) -> String {
    let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
    String::from_utf8_lossy(&field[..end]).into_owned()
}

pub(crate) const TAR_BLOCK: u64 = 512;
/// Limit of the files in an archive; their names take 10 GB.
const MEMBERS_MAX: usize = 1 << 27;
/// Limit of a long name: that of a path on Linux, with room.
const NAME_BYTES_MAX: u64 = 1 << 16;
