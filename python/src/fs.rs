//! File systems by name: that of this machine, or HDFS.

use crate::error::waiting;
use crate::job::FleetCell;
use fleet::Result;
use fleet::fs::FileSystem;
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

/// A file system.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct FsCell {
    fs: Box<dyn FileSystem>,
}

#[pymethods]
impl FsCell {
    /// Returns the file system of a job.
    #[staticmethod]
    fn of_job(cell: &Bound<'_, FleetCell>) -> FsCell {
        FsCell { fs: cell.get().fleet.util().get_fs() }
    }

    /// Returns the names of the folders and of the files in a folder.
    fn ls(&self, py: Python<'_>, path: &str) -> PyResult<(Vec<String>, Vec<String>)> {
        let entries = waiting(py, || self.fs.ls(path))?;
        let (folders, files): (Vec<_>, Vec<_>) =
            entries.into_iter().partition(|entry| entry.is_folder);
        let names = |entries: Vec<fleet::fs::Entry>| -> Vec<String> {
            entries.into_iter().map(|entry| entry.name).collect()
        };
        Ok((names(folders), names(files)))
    }

    fn exists(&self, py: Python<'_>, path: &str) -> PyResult<bool> {
        waiting(py, || self.fs.exists(path))
    }

    /// Returns whether the path is a folder; `None` if it does not exist.
    fn is_folder(&self, py: Python<'_>, path: &str) -> PyResult<Option<bool>> {
        waiting(py, || -> Result<Option<bool>> {
            if !self.fs.exists(path)? {
                return Ok(None);
            }
            let path = path.trim_end_matches('/');
            let Some((parent, name)) = path.rsplit_once('/') else {
                let found = self.fs.ls(".")?.into_iter().find(|entry| entry.name == path);
                return Ok(Some(found.is_none_or(|entry| entry.is_folder)));
            };
            let parent = if parent.is_empty() { "/" } else { parent };
            let found = self.fs.ls(parent)?.into_iter().find(|entry| entry.name == name);
            Ok(Some(found.is_none_or(|entry| entry.is_folder)))
        })
    }

    fn mkdirs(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        waiting(py, || self.fs.mkdirs(path))
    }

    fn delete(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        waiting(py, || self.fs.delete(path))
    }

    fn mv(&self, py: Python<'_>, from: &str, to: &str) -> PyResult<()> {
        waiting(py, || self.fs.mv(from, to))
    }

    fn upload(&self, py: Python<'_>, local: PathBuf, folder: &str) -> PyResult<()> {
        waiting(py, || self.fs.upload(&[local.as_path()], folder))
    }

    fn download(&self, py: Python<'_>, path: &str, local_folder: PathBuf) -> PyResult<()> {
        let folder: &Path = &local_folder;
        waiting(py, || self.fs.download(&[path], folder))
    }
}
