//! Input files: only regular files of known size; every error names the file.

use fleet_base::disk::{Access, Disk, DiskReader, PathKind, RealDisk};
use fleet_base::{Error, Result, text};
use fleet_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

/// Tensors with their names, in the order of the file.
pub type NamedTensors = Vec<(String, Tensor)>;

/// Name, type and shape of a tensor in a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor.
    pub name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Its shape.
    pub shape: Shape,
}

/// Help for a file that is not as it was written.
pub(crate) const DAMAGED_FILE_HELP: &str = "use another save, or restore this file from a backup";

/// An open file.
pub(crate) struct Source {
    pub file: DiskReader,
    pub path: PathBuf,
    pub bytes: u64,
}

impl Source {
    pub fn open(path: &Path) -> Result<Source> {
        Source::open_on(&RealDisk, path)
    }

    /// Like [`Source::open`], on any disk.
    pub fn open_on(disk: &dyn Disk, path: &Path) -> Result<Source> {
        let failed = |error| Error::io("open", path, &error);
        // Checked first, because opening a pipe would wait for a writer.
        if disk.kind(path).map_err(failed)? != PathKind::File {
            return Err(Error::invalid(format!("cannot read {}", path.display()))
                .expected("a regular file"));
        }
        let file = disk.open(path, Access::Read).map_err(failed)?;
        let bytes = file.len().map_err(failed)?;
        Ok(Source { file: DiskReader::new(file), path: path.to_path_buf(), bytes })
    }

    /// Reads the whole file, if it has at most `bytes_max` bytes.
    pub fn read_all(&mut self, bytes_max: u64) -> Result<Vec<u8>> {
        if self.bytes > bytes_max {
            return Err(self
                .damaged("file is too large")
                .expected(format!("at most {}", text::bytes(bytes_max)))
                .got(text::bytes_over(self.bytes, bytes_max)));
        }
        let mut content = Vec::with_capacity(self.bytes as usize);
        let limit = bytes_max.saturating_add(1);
        self.file.by_ref().take(limit).read_to_end(&mut content).map_err(|e| self.failed(&e))?;
        Ok(content)
    }

    pub fn seek(&mut self, to: u64) -> Result<()> {
        self.file.seek(SeekFrom::Start(to)).map(drop).map_err(|error| self.failed(&error))
    }

    /// Fills `into` from the current position.
    pub fn read_exact(&mut self, into: &mut [u8]) -> Result<()> {
        self.file.read_exact(into).map_err(|error| self.failed(&error))
    }

    pub fn failed(&self, error: &std::io::Error) -> Error {
        if error.kind() == std::io::ErrorKind::UnexpectedEof {
            return self.damaged("the file ends too early");
        }
        Error::io("read", &self.path, error)
    }

    /// Returns the error for wrong content.
    pub fn damaged(&self, what: impl Into<String>) -> Error {
        Error::invalid(what).at(self.path.display()).help(DAMAGED_FILE_HELP)
    }
}

/// Returns the bytes of a tensor; `None` if a dimension is unknown or the number overflows.
pub(crate) fn tensor_bytes(dtype: DType, shape: &Shape) -> Option<u64> {
    let dims = shape.iter().map(|dim| u64::try_from(*dim).ok());
    let count = dims.into_iter().try_fold(1u64, |count, dim| count.checked_mul(dim?))?;
    count.checked_mul(dtype.size() as u64)
}

/// Rejects bytes other than 0 and 1 in booleans, because kernels rely on these values.
pub(crate) fn check_bools(tensor: &Tensor) -> Result<()> {
    let bad = tensor.as_bytes().iter().position(|byte| *byte > 1);
    match bad.filter(|_| tensor.dtype() == DType::Bool) {
        None => Ok(()),
        Some(index) => Err(Error::invalid(format!("element {index} is not a boolean"))
            .expected("0 or 1")
            .got(tensor.as_bytes()[index])),
    }
}

/// Returns the bytes of a tensor that is to be written.
pub(crate) fn row_major_bytes<'t>(name: &str, tensor: &'t Tensor) -> Result<&'t [u8]> {
    if tensor.layout() != fleet_tensor::Layout::RowMajor {
        return Err(Error::invalid(format!("tensor '{name}' is not row-major"))
            .expected("row_major")
            .got(tensor.layout())
            .help("convert it before saving"));
    }
    Ok(tensor.as_bytes())
}

/// Describes tensors that are to be written; rejects those that cannot be.
pub(crate) fn describe(tensors: &[(&str, &Tensor)]) -> Result<Vec<TensorInfo>> {
    let describe = |(name, tensor): &(&str, &Tensor)| {
        row_major_bytes(name, tensor)?;
        let (dtype, shape) = (tensor.dtype(), *tensor.shape());
        Ok(TensorInfo { name: name.to_string(), dtype, shape })
    };
    tensors.iter().map(describe).collect()
}

/// Returns a function that finds tensors by name, as the writers need it.
pub(crate) fn finder<'t>(
    tensors: &[(&'t str, &'t Tensor)],
) -> impl FnMut(&TensorInfo) -> Result<&'t Tensor> + use<'t> {
    let held: HashMap<&str, &Tensor> = tensors.iter().copied().collect();
    move |info| {
        let found = held.get(info.name.as_str()).copied();
        found.ok_or_else(|| Error::internal("tensor without a value").at(&info.name))
    }
}

/// Returns the bytes that a tensor of this description has in a file.
pub(crate) fn info_bytes(info: &TensorInfo) -> Result<u64> {
    tensor_bytes(info.dtype, &info.shape)
        .ok_or_else(|| Error::invalid("the shape is too large").got(info.shape).at(&info.name))
}

/// Returns the bytes of a tensor, which must be as described.
pub(crate) fn described_bytes<'t>(info: &TensorInfo, tensor: &'t Tensor) -> Result<&'t [u8]> {
    if (tensor.dtype(), tensor.shape()) != (info.dtype, &info.shape) {
        return Err(Error::internal("a tensor has another type or shape than announced")
            .expected(format!("{}{}", info.dtype, info.shape))
            .got(format!("{}{}", tensor.dtype(), tensor.shape()))
            .at(&info.name));
    }
    row_major_bytes(&info.name, tensor)
}

/// Rejects duplicate names of tensors.
pub(crate) fn check_distinct<'n>(names: impl Iterator<Item = &'n str>) -> Result<()> {
    let mut seen = std::collections::HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(Error::invalid(format!("duplicate tensor name '{name}'")));
        }
    }
    Ok(())
}
