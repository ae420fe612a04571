//! Exports models to ONNX files.

use crate::save::{InferenceModel, read_model};
use crate::saved_tables::model_folders;
use fleet_base::{Error, Result};
use fleet_exec::Scope;
use fleet_ir::Program;
use fleet_onnx::{
    OnnxBuilder, OnnxInputs, OnnxOptions, TableRows, Values, WrittenOnnx, export, export_from,
    too_many_rows,
};
use fleet_ps::{SavedRows, TableIndex};
use fleet_tensor::Tensor;
use std::path::{Path, PathBuf};

/// Writes the forward part of `program` that computes `targets`, with the variables that it reads,
/// as an ONNX file. A model that was trained in half precision is exported in f32.
///
/// ```
/// use fleet::prelude::*;
/// # let file = std::env::temp_dir().join(format!("fleet-onnx-doc-{}.onnx", std::process::id()));
/// let net = Net::new();
/// let y = net.data("x", [-1, 2], DType::F32).fc(1);
/// net.minimize(y.mean(), Sgd::new(0.1))?;
/// let y = y.name();
/// let session = Session::new(net.build()?, ExecOptions::default())?;
/// // Here `file` ends in .onnx.
/// let options = fleet::OnnxOptions::default();
/// let main = &session.programs.main;
/// let written = fleet::export_onnx(&file, main, &[&y], &session.scope, &options)?;
/// assert_eq!((written.inputs, written.outputs), (vec!["x".to_string()], vec![y]));
/// # std::fs::remove_file(&file).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn export_onnx(
    path: impl AsRef<Path>,
    program: &Program,
    targets: &[&str],
    scope: &Scope,
    options: &OnnxOptions,
) -> Result<WrittenOnnx> {
    let mut values = ScopeValues { scope, tables: None };
    export(program, targets, &mut values, options)?.save(path.as_ref())
}

/// Writes a model that [`save_inference_model`](crate::save_inference_model) saved as an ONNX file.
/// The rows of tables on parameter servers come from the save that `dir` belongs to: see
/// [`Worker::save_inference_model`](crate::servers::Worker::save_inference_model). An id without a
/// row reads as zeros.
///
/// ```
/// use fleet::prelude::*;
/// # let dir = std::env::temp_dir().join(format!("fleet-onnx-model-{}", std::process::id()));
/// # std::fs::create_dir_all(&dir).unwrap();
/// let net = Net::new();
/// let y = net.data("x", [-1, 2], DType::F32).fc(1).name();
/// let session = Session::new(net.build()?, ExecOptions::default())?;
/// let model = dir.join("model");
/// fleet::save_inference_model(&model, &session.programs.main, &[&y], &session.scope)?;
/// let options = fleet::OnnxOptions { opset: 18, ..Default::default() };
/// let written = fleet::export_onnx_model(&model, dir.join("model.onnx"), &options)?;
/// assert_eq!((written.opset, written.has_data_file), (18, false));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn export_onnx_model(
    dir: impl AsRef<Path>,
    path: impl AsRef<Path>,
    options: &OnnxOptions,
) -> Result<WrittenOnnx> {
    let (model, tables) = model_folders(dir.as_ref());
    let InferenceModel { program, scope, targets, .. } = read_model(&model)?;
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let mut values = ScopeValues { scope: &scope, tables };
    export(&program, &targets, &mut values, options)?.save(path.as_ref())
}

/// Writes a saved model like [`export_onnx_model`], with nodes before it that `prepare` writes:
/// they compute its inputs from those of the file.
pub fn export_onnx_model_from(
    dir: impl AsRef<Path>,
    path: impl AsRef<Path>,
    options: &OnnxOptions,
    prepare: impl FnOnce(&mut OnnxBuilder<'_>) -> Result<OnnxInputs>,
) -> Result<WrittenOnnx> {
    let (model, tables) = model_folders(dir.as_ref());
    let InferenceModel { program, scope, targets, .. } = read_model(&model)?;
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    let mut values = ScopeValues { scope: &scope, tables };
    export_from(&program, &targets, &mut values, options, prepare)?.save(path.as_ref())
}

/// The values of a scope, and the rows of a save.
struct ScopeValues<'a> {
    scope: &'a Scope,
    /// Folder of the tables' save.
    tables: Option<PathBuf>,
}

impl Values for ScopeValues<'_> {
    fn variable(&mut self, name: &str) -> Result<Tensor> {
        self.scope.tensor(name)
    }

    fn table(&mut self, id: u32, row_count_max: u64) -> Result<TableRows> {
        let Some(dir) = &self.tables else {
            return Err(Error::invalid(format!("the rows of table {id} are on parameter servers"))
                .help("save the model with Worker::save_inference_model, and export the save"));
        };
        let SavedRows { ids, width, values, row_count } =
            TableIndex::read(dir)?.rows(id, row_count_max)?;
        if row_count > row_count_max {
            let error = too_many_rows(&id.to_string(), row_count, row_count_max);
            return Err(error.at(dir.display()));
        }
        let rows = Tensor::from_slice(&values, [ids.len() as i64, width as i64])?;
        Ok(TableRows { ids: ids.into_iter().map(|id| id as i64).collect(), rows })
    }
}
