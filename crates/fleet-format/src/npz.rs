//! Named tensors in NumPy's `.npz` format: a zip of `.npy` files. They are written uncompressed,
//! like `numpy.savez` does; compressed ones can be read too. The zip's CRC32 of each entry is
//! checked.

use crate::npy;
use crate::source::{
    NamedTensors, Source, TensorInfo, check_distinct, describe, described_bytes, finder,
};
use fleet_base::disk::{Disk, RealDisk};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use fleet_tensor::Tensor;
use std::borrow::Borrow;
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
    write_streamed(disk, path, &describe(tensors)?, finder(tensors))
}

/// Writes tensors that `read` returns one at a time.
pub(crate) fn write_streamed<T: Borrow<Tensor>>(
    disk: &Arc<dyn Disk>,
    path: &Path,
    infos: &[TensorInfo],
    read: impl FnMut(&TensorInfo) -> Result<T>,
) -> Result<()> {
    check_distinct(infos.iter().map(|info| info.name.as_str()))?;
    for TensorInfo { name, dtype, .. } in infos {
        if name.len() > NAME_BYTES_MAX {
            return Err(Error::invalid("the name of a tensor is too long for a zip file")
                .expected(format!("at most {NAME_BYTES_MAX} bytes"))
                .got(name.len()));
        }
        npy::descr_of(name, *dtype)?;
    }
    let file = AtomicFile::create_on(disk, path)?;
    let writer = BufWriter::new(file);
    let failed = |error: io::Error| Error::io("write", path, &error);
    let writer = write_archive(writer, infos, read, failed)?;
    writer.into_inner().map_err(|error| failed(error.into_error()))?.commit()
}

/// Writes the archive to any writer.
fn write_archive<W: Write + Seek, T: Borrow<Tensor>>(
    writer: W,
    infos: &[TensorInfo],
    mut read: impl FnMut(&TensorInfo) -> Result<T>,
    failed: impl Fn(io::Error) -> Error,
) -> Result<W> {
    let mut archive = ZipWriter::new(FailOnceWriter::new(writer));
    for info in infos {
        let tensor = read(info)?;
        described_bytes(info, tensor.borrow())?;
        let (header, bytes) = npy::parts(&info.name, tensor.borrow())?;
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Stored)
            .large_file(bytes.len() as u64 > LARGE_BYTES);
        let started = archive.start_file(format!("{}.npy", info.name), options);
        started.map_err(|error| failed(error.into()))?;
        for part in [&header, bytes] {
            archive.write_all(part).map_err(&failed)?;
        }
    }
    let writer = archive.finish().map_err(|error| failed(error.into()))?;
    match writer.failed {
        false => Ok(writer.writer),
        true => Err(failed(io::ErrorKind::Other.into())),
    }
}

/// A writer that reports its first failure and then ignores everything written. When an unfinished
/// archive is dropped, it tries to finish, prints an error if it cannot, and panics if positions do
/// not add up. So positions go on as if nothing had failed.
struct FailOnceWriter<W> {
    writer: W,
    failed: bool,
    position: u64,
    end: u64,
}

impl<W> FailOnceWriter<W> {
    fn new(writer: W) -> FailOnceWriter<W> {
        FailOnceWriter { writer, failed: false, position: 0, end: 0 }
    }

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
        let written = self.unless_failed(bytes.len(), |writer| writer.write(bytes))?;
        self.position = self.position.saturating_add(written as u64);
        self.end = self.end.max(self.position);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.unless_failed((), |writer| writer.flush())
    }
}

impl<W: Seek> Seek for FailOnceWriter<W> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
            SeekFrom::End(by) => self.end.checked_add_signed(by),
        };
        let position = position.ok_or(io::ErrorKind::InvalidInput)?;
        self.position = self.unless_failed(position, |writer| writer.seek(to))?;
        Ok(self.position)
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
    use fleet_tensor::DType;
    use std::io::Cursor;

    /// A file that may reach this many bytes; then its disk is full.
    struct Full {
        file: Cursor<Vec<u8>>,
        bytes_max: u64,
    }

    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let room = self.bytes_max.saturating_sub(self.file.position());
            match bytes.len().min(room as usize) {
                0 if !bytes.is_empty() => Err(io::ErrorKind::StorageFull.into()),
                some => self.file.write(&bytes[..some]),
            }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Full {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.file.seek(to)
        }
    }

    #[test]
    fn a_disk_that_is_full_at_any_byte_is_an_error() {
        let (x, y) = (Tensor::zeros(DType::F32, [5]), Tensor::zeros(DType::I64, [2, 3]));
        let (x, y) = (x.expect("a tensor"), y.expect("a tensor"));
        let tensors = [("x", &x), ("a/long/name", &y)];
        let write = |bytes_max| {
            let full = Full { file: Cursor::default(), bytes_max };
            let failed = |error: io::Error| Error::io("write", Path::new("x.npz"), &error);
            let infos = describe(&tensors).expect("row-major");
            write_archive(full, &infos, finder(&tensors), failed)
        };
        let whole = write(u64::MAX).expect("enough space").file.into_inner();
        for bytes_max in 0..whole.len() as u64 {
            let error = write(bytes_max).err().expect("no space left").to_string();
            assert!(error.contains("no storage space"), "{bytes_max}: {error}");
        }
        let again = write(whole.len() as u64).expect("enough space");
        assert_eq!(again.file.into_inner(), whole);
    }

    #[test]
    fn only_the_first_failure_is_told() {
        let mut writer = FailOnceWriter::new(Full { file: Cursor::default(), bytes_max: 5 });
        writer.write_all(&[0; 4]).expect("enough space");
        let error = writer.write_all(&[0; 4]).expect_err("no space left");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        writer.write_all(&[0; 4]).expect("later failures are not reported");
        assert_eq!(writer.stream_position().expect("a position"), 9);
        assert_eq!(writer.seek(SeekFrom::End(-2)).expect("a position"), 7);
    }
}
