//! The arguments of the command.

use clap::Args;
use fleet_job::Threads;
use fleet_job::recommend::SearchWay;
use std::path::PathBuf;

/// Serves the predictions of a model, and the recommendations of a retrieval.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct ServeArgs {
    /// Model folder that a job wrote. A training may replace it meanwhile
    pub model: PathBuf,
    /// Address for HTTP; one that other machines can reach needs a token
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8000")]
    pub listen: String,
    /// Address for gRPC (feature grpc)
    #[arg(long, value_name = "ADDRESS")]
    pub grpc: Option<String>,
    /// File with the token that requests must carry: `Authorization: Bearer TOKEN`
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// Limit on the rows of a request
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    pub rows: u32,
    /// Limit on the body of a request
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = size)]
    pub body: usize,
    /// Limit on the requests that wait
    #[arg(
        long,
        value_name = "N",
        default_value_t = 256,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000),
    )]
    pub queue: u32,
    /// Retrieval: files with users and items, such as the training files: these items are not
    /// recommended
    #[arg(long, value_name = "FILES", num_args = 1..)]
    pub exclude: Vec<String>,
    /// Retrieval: how items are found
    #[arg(long, value_name = "WAY", value_enum, default_value_t = SearchWay::Auto)]
    pub search: SearchWay,
    #[command(flatten)]
    pub threads: Threads,
    /// Interval between looks at the model folder for a new version; 0 waits for SIGHUP
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(..=86_400),
    )]
    pub watch: u32,
}

/// Limit on the limit of a body, so that the values of a request have 32-bit offsets.
const BODY_BYTES_MAX: f64 = (1u64 << 30) as f64;

fn size(text: &str) -> Result<usize, String> {
    let bytes = fleet_base::units::size(text)?;
    match (1.0..=BODY_BYTES_MAX).contains(&bytes) {
        true => Ok(bytes as usize),
        false => Err("expected a size up to 1GiB".to_string()),
    }
}
