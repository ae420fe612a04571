//! Named tensors in NumPy's `.npz` format: a zip of `.npy` files. They are written uncompressed,
//! like `numpy.savez` does; compressed ones can be read too. The zip's CRC32 of each entry is
//! checked.

use crate::npy;
use crate::source::{NamedTensors, Source, check_distinct};
use fleet_base::disk::{Disk, RealDisk};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use fleet_tensor::Tensor;
use std::io::{self, BufReader, BufWriter, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// Reads every tensor of a `.npz` file.
pub fn read_npz(path: impl AsRef<Path>) -> Result<NamedTensors> {
    read(&RealDisk, path.as_ref())
}

/// Like [`read_npz`], on any disk.
pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Result<NamedTensors> {
    let mut source = Source::open_on(disk, path)?;
    let locate = |error: Error| error.at(source.path.display());
    let mut archive = ZipArchive::new(BufReader::new(&mut source.file))
        .map_err(|error| locate(Error::invalid(format!("not a valid npz file: {error}"))))?;
    let mut tensors = Vec::new();
    let mut stated = 0u64;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(|error| {
            locate(Error::invalid(format!("entry {index} of the npz file is damaged: {error}")))
        })?;
        let file = entry.name().map_err(|error| {
            locate(Error::invalid(format!("entry {index} of the npz file has no name: {error}")))
        })?;
        let file = file.into_owned();
        let shown: String = file.chars().take(100).collect();
        let locate = |error: Error| locate(error.at(format!("entry '{shown}'")));
        let Some(name) = file.strip_suffix(".npy") else {
            return Err(locate(Error::invalid("an entry of the npz file is not a tensor"))
                .expected("a name that ends in .npy"));
        };
        // Before memory is allocated, the claimed sizes of all entries together must be possible.
        stated = stated.saturating_add(entry.size());
        if stated > source.bytes.saturating_mul(COMPRESSION_MAX) {
            return Err(locate(Error::invalid(
                "the npz file claims more bytes than it can contain",
            )));
        }
        let bytes = entry.size();
        let tensor = npy::read(&mut entry, bytes).map_err(locate)?;
        tensors.push((name.to_string(), tensor));
    }
    check_distinct(tensors.iter().map(|(name, _)| name.as_str())).map_err(locate)?;
    Ok(tensors)
}

/// Writes tensors to a `.npz` file, which `numpy.load` reads as a dictionary of these names.
pub fn write_npz<'t>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
) -> Result<()> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    write(&RealDisk::handle(), path.as_ref(), &tensors)
}

/// Like [`write_npz`], on any disk.
pub(crate) fn write(disk: &Arc<dyn Disk>, path: &Path, tensors: &[(&str, &Tensor)]) -> Result<()> {
    check_distinct(tensors.iter().map(|(name, _)| *name))?;
    for (name, tensor) in tensors {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid("the name of a tensor is too long for a zip file")
                .expected(format!("at most {NAME_BYTES_MAX} bytes"))
                .got(name.len()));
        }
        npy::parts(name, tensor)?;
    }
    let file = AtomicFile::create_on(disk, path)?;
    let failed =
        |error: zip::result::ZipError| Error::io("write", path, &std::io::Error::from(error));
    let mut archive =
        ZipWriter::new(FailOnceWriter { writer: BufWriter::new(file), failed: false });
    for (name, tensor) in tensors {
        let (header, bytes) = npy::parts(name, tensor)?;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes.len() as u64 > LARGE_BYTES);
        archive.start_file(format!("{name}.npy"), options).map_err(failed)?;
        for part in [&header, bytes] {
            archive.write_all(part).map_err(|error| Error::io("write", path, &error))?;
        }
    }
    let writer = archive.finish().map_err(failed)?;
    let file =
        writer.writer.into_inner().map_err(|error| Error::io("write", path, error.error()))?;
    file.commit()
}

/// A writer that reports its first failure and then ignores everything written. When an unfinished
/// archive is dropped, it tries to finish, and prints an error if it cannot.
struct FailOnceWriter<W> {
    writer: W,
    failed: bool,
}

impl<W> FailOnceWriter<W> {
    fn unless_failed<T>(
        &mut self,
        instead: T,
        act: impl FnOnce(&mut W) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.failed {
            return Ok(instead);
        }
        let outcome = act(&mut self.writer);
        // The caller repeats an interrupted call.
        self.failed = matches!(&outcome, Err(error) if error.kind() != io::ErrorKind::Interrupted);
        outcome
    }
}

impl<W: Write> Write for FailOnceWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.unless_failed(bytes.len(), |writer| writer.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_failed((), |writer| writer.flush())
    }
}

impl<W: Seek> Seek for FailOnceWriter<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.unless_failed(0, |writer| writer.seek(to))
    }
}

/// Deflate compresses at most 1032 times.
const COMPRESSION_MAX: u64 = 1032;

/// Entries from this size on need the ZIP64 format; the rest up to 4 GiB is room for their header.
const LARGE_BYTES: u64 = u32::MAX as u64 - (1 << 20);

/// Limit of a name's bytes; zip has 16 bits for the length, including the suffix `.npy`.
const NAME_BYTES_MAX: usize = 65_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// A writer with room for this many bytes; then its disk is full.
    struct Full(usize);

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 = self.0.checked_sub(bytes.len()).ok_or(io::ErrorKind::StorageFull)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn only_the_first_failure_is_told() {
        let mut writer = FailOnceWriter { writer: Full(5), failed: false };
        writer.write_all(&[0; 4]).expect("enough space");
        let error = writer.write_all(&[0; 4]).expect_err("no space left");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        writer.write_all(&[0; 4]).expect("later failures are not reported");
    }
}
