//! `fleet export`: saved models as ONNX files.

use clap::Args;
use fleet::OnnxOptions;
use fleet_base::output::{ExitReason, Output};
use fleet_base::text;
use std::path::PathBuf;

#[derive(Args)]
pub struct ExportArgs {
    /// Write an ONNX file; the only format
    #[arg(long, required = true)]
    onnx: bool,
    /// Folder of a saved model, of a save of parameter servers with a model, or of a trained job
    model: PathBuf,
    /// Output file, which is replaced; above 2 GiB, the tensors are in OUTPUT.data beside it
    output: PathBuf,
    /// Version of the op set [default: 17, or 18 for a job with hash buckets or crosses]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(i64).range(OnnxOptions::OPSETS),
    )]
    opset: Option<i64>,
    /// Limit on the rows of an embedding table
    #[arg(long, value_name = "N", default_value_t = OnnxOptions::default().table_rows_max)]
    max_table_rows: u64,
}

pub fn run(args: &ExportArgs, out: &mut Output) -> Result<(), ExitReason> {
    let options = OnnxOptions { table_rows_max: args.max_table_rows, ..OnnxOptions::default() };
    let written = fleet_job::onnx::export(&args.model, &args.output, args.opset, options)?;
    let data = if written.has_data_file { " in two files" } else { "" };
    out.line(format_args!(
        "{}: inputs {}; outputs {}; opset {}, {}, {}{data}",
        args.output.display(),
        written.inputs.join(", "),
        written.outputs.join(", "),
        written.opset,
        text::counted(written.nodes, "node"),
        text::bytes(written.bytes),
    ))
}
