//! Features of the tables of parameter servers, checked against closed forms.

mod amp;
mod best_area;
mod click;
mod dc_asgd;
mod guide;
#[cfg(unix)]
mod hdfs;
mod ids;
mod incremental;
mod inference;
mod onnx;
mod transpiler;
