//! Tests of data that feeds programs, and of metrics over a job.

#[path = "../common/launch.rs"]
mod launch;
mod passes;
mod workers;

use fleet::prelude::*;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The test whose processes are the ranks of all jobs.
const RANKS: &str = "workers::a_global_shuffle_loses_and_doubles_nothing";

/// A folder that is removed at the end of the test.
pub struct Folder {
    pub path: PathBuf,
}

impl Folder {
    pub fn new(name: &str) -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("fleet-{name}-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Folder { path }
    }

    pub fn file(&self, name: &str, content: &[u8]) -> PathBuf {
        let path = self.path.join(name);
        std::fs::write(&path, content).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Returns a line with y = 2a - b, derived from a number.
pub fn line(number: usize) -> String {
    let (a, b) = ((number * 37 % 97) as f32 / 97.0, (number * 53 % 89) as f32 / 89.0);
    format!("2 {a} {b} 1 {}\n", 2.0 * a - b)
}

/// Builds a regression of y on two numbers; returns its loss.
pub fn regression(net: &Net) -> Var<'_> {
    let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 1], DType::F32));
    x.fc(1).mse_loss(y, Reduction::Mean)
}

pub fn session() -> (Session, String) {
    let net = Net::new();
    let loss = regression(&net);
    net.minimize(loss, Sgd::new(0.3)).unwrap();
    let loss = loss.name();
    (Session::new(net.build().unwrap(), ExecOptions::threads(2)).unwrap(), loss)
}

pub fn text_files(session: &Session, batch_size: usize) -> DatasetOptions {
    let schema = fleet::slots_of(&session.programs.main, &["x", "y"]).unwrap();
    let files = TextFiles::multi_slot(&schema);
    DatasetOptions { batch_size, ..DatasetOptions::new(files).unwrap() }
}

pub fn loaded(options: DatasetOptions, files: &[PathBuf]) -> InMemoryDataset {
    let mut dataset = InMemoryDataset::new(options).unwrap();
    dataset.set_filelist(files).unwrap();
    dataset.load_into_memory().unwrap();
    dataset
}

pub fn parameters(session: &Session) -> Vec<f32> {
    let of = |name: &str| session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap();
    [of("fc_0.w_0"), of("fc_0.b_0")].concat()
}
