//! `fleet export --onnx`: a model folder as one ONNX file, whose inputs are the columns of the
//! data.

use crate::saved::{FEATURES_FILE, JOB_FILE, PROGRAM_FOLDER, SavedModel};
use fleet::{ExecOptions, OnnxInputs, OnnxOptions, WrittenOnnx};
use fleet_base::{Error, Result};
use std::path::Path;

/// Name of the scores.
const SCORE: &str = "score";
/// Names of the vectors of a model with two towers.
const VECTORS: [&str; 2] = ["user_vector", "item_vector"];

/// Writes a model folder, or any other saved model, as an ONNX file. Without a version of the op
/// set, it is the lowest one that can express the model.
///
/// The inputs of a model folder's file are its columns: numbers are f32, and categories are hashes
/// ([`category_hash`](fleet_data::category_hash)).
pub fn export(
    folder: &Path,
    path: &Path,
    opset: Option<i64>,
    options: OnnxOptions,
) -> Result<WrittenOnnx> {
    if !folder.join(JOB_FILE).is_file() || !folder.join(FEATURES_FILE).is_file() {
        let opset = opset.unwrap_or(options.opset);
        return fleet::export_onnx_model(folder, path, &OnnxOptions { opset, ..options });
    }
    let model = SavedModel::open(folder, ExecOptions::threads(1))?;
    let features = &model.features;
    let opset = opset.unwrap_or(options.opset.max(features.opset_min()));
    if opset < features.opset_min() {
        return Err(Error::unsupported("hash buckets and crosses need a newer ONNX op set")
            .expected(format!("at least {}", features.opset_min()))
            .got(opset)
            .help("leave --opset out, or train with vocabularies and without crosses"));
    }
    let source = |name: &str| {
        model.job.column(name).map_or_else(|| name.to_string(), |column| column.source.clone())
    };
    let is_column = |name: &str| model.job.columns.iter().any(|column| column.source == name);
    let outputs = [SCORE].into_iter().chain(VECTORS).map(|name| {
        let mut name = name.to_string();
        while is_column(&name) {
            name.push('_');
        }
        name
    });
    let outputs: Vec<String> = outputs.take(model.targets().len()).collect();
    let options = OnnxOptions { opset, ..options };
    fleet::export_onnx_model_from(folder.join(PROGRAM_FOLDER), path, &options, |graph| {
        Ok(OnnxInputs { inputs: features.write_onnx(graph, &source)?, outputs })
    })
}
