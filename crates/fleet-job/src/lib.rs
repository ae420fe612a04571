//! Jobs: training on a user's own data without code. A job file (TOML) says where the data is, what
//! its columns mean, and which model to train.
//!
//! ```text
//! job.toml --file, job, check--> Job
//! files --raw--> columns --features--> slots --rows--> batches --model--> scores
//! ```
//!
//! * `schema/` has all fields of a job file, `file/` reads them with their places, `job.rs` makes
//!   values of them, and `check.rs` has the rules between fields.
//! * `origin.rs`, `raw.rs`, `split.rs` and `rows.rs` read the data, and `made.rs` generates rows
//!   that need no files; `features/` is fitted to them, and saved with the model. Validation,
//!   reports and predictions apply the same features.
//! * `model/` writes the program, `train/` trains it by [`fleet::Trainer`], `saved.rs` is the
//!   result, and `report/` measures it. `tune/` trains many variants of a job.
//! * `negatives.rs` draws items for a retrieval, whose vectors `retrieval.rs` saves; `catalogue.rs`
//!   finds the best items for users, by comparing all of them or by the index of `nearest.rs`:
//!   `recommend.rs` those for files, and `serving/recommend.rs` those for requests.
//! * `lanes.rs` runs a saved model on rows, `predict.rs` scores files, and `serving.rs` requests.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod catalogue;
mod check;
pub mod closing;
pub mod commands;
mod data;
pub mod embed;
mod features;
mod file;
mod init;
mod job;
mod keep;
mod lanes;
mod lines;
mod made;
mod model;
pub mod nearest;
mod negatives;
pub mod onnx;
mod optimizer;
mod origin;
mod parsed;
pub mod predict;
mod problems;
mod raw;
pub mod recommend;
mod report;
mod retrieval;
mod rows;
mod saved;
pub mod schema;
mod scoring;
pub mod serving;
mod split;
mod threads;
pub mod trace;
pub mod train;
pub mod tune;
mod vectors;
mod version;

pub use check::problems_of;
pub use lines::Lines;
pub use threads::Threads;
