//! Program files, with and without tensors.

use crate::checkpoint::{self, Checkpoint, Meta};
use crate::source::Source;
use fleet_base::Result;
use fleet_base::disk::{Disk, RealDisk};
use fleet_base::file::write_file;
use fleet_ir::{Dialect, PROGRAM_BYTES_MAX, Program};
use fleet_tensor::Tensor;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The format of a program in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Readable text.
    Text,
    /// Protobuf: smaller and faster.
    Binary,
}

/// Writes a program file.
///
/// ```
/// use fleet_format::{Form, Meta, load_model, load_program, save_model, save_program};
/// use fleet_ir::{Dialect, OpSpec, Program};
///
/// struct NoOps; // the registry of `fleet_ops` knows some
/// impl Dialect for NoOps {
///     fn spec(&self, _: &str) -> Option<&'static OpSpec> {
///         None
///     }
///     fn names(&self) -> Vec<&'static str> {
///         Vec::new()
///     }
/// }
/// # fn main() -> fleet_base::Result<()> {
/// # let folder = std::env::temp_dir().join(format!("fleet-program-doc-{}", std::process::id()));
/// # std::fs::create_dir_all(&folder).unwrap();
/// let program = Program::parse("fleet program 1\nblock0 { %w: f32[2] persistable }", &NoOps)?;
/// let (text, model) = (folder.join("net.fleet"), folder.join("model"));
/// save_program(&text, &program, Form::Text)?;
/// assert_eq!(load_program(&text, &NoOps)?, (program.clone(), Form::Text));
///
/// let w = fleet_tensor::Tensor::from_slice(&[1.0f32, 2.0], [2])?;
/// save_model(&model, &program, [("w", &w)], &Meta::default())?;
/// let (found, checkpoint) = load_model(&model, &NoOps)?;
/// assert_eq!((found, checkpoint.tensors.len()), (program, 1));
/// # std::fs::remove_dir_all(&folder).ok();
/// # Ok(())
/// # }
/// ```
pub fn save_program(path: impl AsRef<Path>, program: &Program, form: Form) -> Result<()> {
    match form {
        Form::Text => write_file(path.as_ref(), program.to_string().as_bytes()),
        Form::Binary => write_file(path.as_ref(), &program.to_bytes()),
    }
}

/// Reads a program file of either form, or the program in a model's folder.
pub fn load_program(path: impl AsRef<Path>, dialect: &dyn Dialect) -> Result<(Program, Form)> {
    let path = path.as_ref();
    if path.is_dir() {
        return Ok((load_model_program(path, dialect)?, Form::Binary));
    }
    let bytes = Source::open(path)?.read_all(PROGRAM_BYTES_MAX as u64)?;
    let program = Program::read(&bytes, dialect).map_err(|error| error.at(path.display()))?;
    Ok((program, if Program::is_text(&bytes) { Form::Text } else { Form::Binary }))
}

/// Saves a program with its tensors, such as a pruned program and its parameters, to a folder.
pub fn save_model<'t>(
    folder: impl AsRef<Path>,
    program: &Program,
    tensors: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
    meta: &Meta,
) -> Result<()> {
    save_model_on(&RealDisk::handle(), folder, program, tensors, meta)
}

/// Like [`save_model`], on any disk.
pub fn save_model_on<'t>(
    disk: &Arc<dyn Disk>,
    folder: impl AsRef<Path>,
    program: &Program,
    tensors: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
    meta: &Meta,
) -> Result<()> {
    let tensors: Vec<_> = tensors.into_iter().collect();
    let program = program.to_bytes();
    let bytes_max = checkpoint::PART_BYTES_MAX;
    checkpoint::save_folder(disk, folder.as_ref(), &tensors, Some(&program), meta, bytes_max)
}

/// Loads a program and its tensors, as saved by [`save_model`].
pub fn load_model(
    folder: impl AsRef<Path>,
    dialect: &dyn Dialect,
) -> Result<(Program, Checkpoint)> {
    load_model_on(&RealDisk, folder, dialect)
}

/// Like [`load_model`], on any disk.
pub fn load_model_on(
    disk: &dyn Disk,
    folder: impl AsRef<Path>,
    dialect: &dyn Dialect,
) -> Result<(Program, Checkpoint)> {
    // Reads the manifest only once, because another save may end meanwhile.
    let opened = checkpoint::OpenCheckpoint::new(disk, folder.as_ref())?;
    let program = parse(opened.read_program(disk, PROGRAM_BYTES_MAX as u64)?, dialect)?;
    Ok((program, opened.read_all()?))
}

fn load_model_program(folder: &Path, dialect: &dyn Dialect) -> Result<Program> {
    let opened = checkpoint::OpenCheckpoint::new(&RealDisk, folder)?;
    parse(opened.read_program(&RealDisk, PROGRAM_BYTES_MAX as u64)?, dialect)
}

fn parse((bytes, path): (Vec<u8>, PathBuf), dialect: &dyn Dialect) -> Result<Program> {
    Program::from_bytes(&bytes, dialect).map_err(|error| error.at(path.display()))
}
