//! Vectors of users and items, of a model with two towers: computing, saving and searching them.

use crate::features::Applied;
use crate::job::Side;
use crate::saved::{SCORE_ROWS, SavedModel};
use fleet::Tensor;
use fleet::format::{read_safetensors, write_safetensors};
use fleet_base::file::{make_folder, write_file};
use fleet_base::{Error, Result, input};
use fleet_data::{Batch, Block, RowRef};
use fleet_kernels::products::products;
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::path::{Path, PathBuf};

/// Folder of the vectors in a model folder.
pub const VECTORS_FOLDER: &str = "vectors";
/// Name of the tensor in a file of vectors.
const TENSOR: &str = "vectors";
/// File with the version of the model whose vectors are in the folder; written last.
const VERSION_FILE: &str = "version.json";
/// Limit of this file.
const VERSION_BYTES_MAX: u64 = 4 << 10;
/// Limit of the texts of users or items.
const TEXTS_BYTES_MAX: u64 = 4 << 30;

/// Vectors of users or items with their names.
#[derive(Clone, Debug, PartialEq)]
pub struct Vectors {
    /// The texts of the column that names them.
    pub texts: Texts,
    /// Numbers of a vector.
    pub dim: usize,
    /// The vectors, one after the other.
    pub values: Vec<f32>,
}

/// Texts of users or items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Texts {
    /// The column.
    pub column: String,
    /// Its values, in the order of the vectors.
    pub values: Vec<String>,
}

fn paths(model: &Path, side: Side) -> [PathBuf; 2] {
    let name = match side {
        Side::User => "users",
        Side::Item => "items",
    };
    let folder = model.join(VECTORS_FOLDER);
    [folder.join(format!("{name}.safetensors")), folder.join(format!("{name}.json"))]
}

/// Returns the file of the index of a model's items.
pub fn index_path(model: &Path) -> PathBuf {
    model.join(VECTORS_FOLDER).join("items.index.safetensors")
}

/// The content of the file of the version.
#[derive(Serialize, Deserialize)]
struct OfVersion {
    version: u64,
}

/// Marks the vectors in a model folder as those of a version of the model.
pub fn finish(model: &Path, version: u64) -> Result<()> {
    let text = serde_json::to_string(&OfVersion { version })
        .map_err(|error| Error::internal(format!("a version has no JSON form: {error}")))?;
    write_file(&model.join(VECTORS_FOLDER).join(VERSION_FILE), text.as_bytes())
}

/// Fails unless the vectors in a model folder are those of a version of the model. A training
/// writes them after the model: an index of many items takes minutes.
pub fn check_version(model: &Path, version: u64) -> Result<()> {
    let path = model.join(VECTORS_FOLDER).join(VERSION_FILE);
    let bytes = match path.is_file() {
        true => input::read(&path, "the version of vectors", VERSION_BYTES_MAX)?,
        false => Vec::new(),
    };
    let found = serde_json::from_slice::<OfVersion>(&bytes).map(|found| found.version).ok();
    match found == Some(version) {
        true => Ok(()),
        false => Err(Error::unavailable("the vectors are not of the version of the model")
            .expected(version)
            .got(found.map_or("none".to_string(), |found| found.to_string()))
            .at(path.display())
            .help("wait for the training that writes them, or train the model again")),
    }
}

impl Vectors {
    /// Writes the vectors into a model folder.
    pub fn save(&self, model: &Path, side: Side) -> Result<()> {
        make_folder(&model.join(VECTORS_FOLDER))?;
        let [path, names] = paths(model, side);
        let shape = [self.texts.values.len() as i64, self.dim as i64];
        let tensor = Tensor::from_slice(&self.values, shape)?;
        write_safetensors(path, [(TENSOR, &tensor)], &BTreeMap::new())?;
        let text = serde_json::to_string(&self.texts)
            .map_err(|error| Error::internal(format!("texts have no JSON form: {error}")))?;
        write_file(&names, text.as_bytes())
    }

    /// Reads vectors of a model folder.
    pub fn load(model: &Path, side: Side) -> Result<Vectors> {
        let [path, names] = paths(model, side);
        let damaged = |why: String| {
            Error::invalid(format!("{} is damaged: {why}", path.display()))
                .help("copy the model folder again, or train the model again")
        };
        let bytes = input::read(&names, "the names of vectors", TEXTS_BYTES_MAX)?;
        let texts: Texts =
            serde_json::from_slice(&bytes).map_err(|error| damaged(error.to_string()))?;
        let (tensors, _) = read_safetensors(&path)?;
        let tensor = tensors.iter().find(|(name, _)| name == TENSOR).map(|(_, tensor)| tensor);
        let tensor = tensor.ok_or_else(|| damaged("no vectors".to_string()))?;
        let dims = tensor.shape();
        let (rows, dim) = match dims.dims() {
            [rows, dim] if *dim > 0 => (*rows as usize, *dim as usize),
            _ => return Err(damaged(format!("a matrix is expected, not {dims}"))),
        };
        if rows != texts.values.len() {
            return Err(damaged(format!("{rows} vectors for {} names", texts.values.len())));
        }
        Ok(Vectors { texts, dim, values: tensor.to_vec::<f32>()? })
    }

    /// Returns the number of vectors.
    pub fn len(&self) -> usize {
        self.texts.values.len()
    }

    /// Returns whether there are no vectors.
    pub fn is_empty(&self) -> bool {
        self.texts.values.is_empty()
    }

    /// Returns a vector.
    pub fn vector(&self, at: usize) -> &[f32] {
        &self.values[at * self.dim..][..self.dim]
    }

    /// Returns a checksum of the numbers.
    pub fn sum(&self) -> u32 {
        let mut sum = crc32fast::Hasher::new();
        self.values.iter().for_each(|value| sum.update(&value.to_le_bytes()));
        sum.finalize()
    }

    /// Returns the products of the vectors with another one.
    pub fn products(&self, other: &[f32]) -> Vec<f32> {
        let mut all = vec![0.0; self.len()];
        products(&self.values, other, &mut all);
        all
    }

    /// Returns the places and products of the `count` vectors with the largest products, without
    /// some of them. Of equal ones, the first are taken.
    pub fn nearest(
        &self,
        other: &[f32],
        count: usize,
        is_excluded: impl Fn(usize) -> bool,
    ) -> Vec<(usize, f32)> {
        let mut kept: BinaryHeap<Found> = BinaryHeap::with_capacity(count + 1);
        for (at, score) in self.products(other).into_iter().enumerate() {
            let found = Found { score, at };
            let is_better = kept.len() < count || kept.peek().is_some_and(|worst| found < *worst);
            if is_better && !is_excluded(at) {
                kept.push(found);
                if kept.len() > count {
                    kept.pop();
                }
            }
        }
        kept.into_sorted_vec().into_iter().map(|found| (found.at, found.score)).collect()
    }
}

/// A found vector. The best is the least, so that a heap has the worst at its top.
struct Found {
    score: f32,
    at: usize,
}

impl Ord for Found {
    fn cmp(&self, other: &Found) -> Ordering {
        other.score.total_cmp(&self.score).then(self.at.cmp(&other.at))
    }
}

impl PartialOrd for Found {
    fn partial_cmp(&self, other: &Found) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Found {
    fn eq(&self, other: &Found) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Found {}

/// Computes the vectors of a side for all rows of a block of slots.
pub fn vectors_of(
    model: &mut SavedModel,
    applied: &Applied,
    rows: &Block,
    side: Side,
) -> Result<Vec<f32>> {
    let mut batch = Batch::new(&applied.layout(false)?);
    let mut values = Vec::new();
    let all: Vec<RowRef> = (0..rows.len() as u32).map(|row| RowRef { block: 0, row }).collect();
    for part in all.chunks(SCORE_ROWS) {
        batch.fill(&[rows], part)?;
        values.extend_from_slice(model.vectors(side, &batch)?);
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_are_the_largest_products() {
        let column = "item".to_string();
        let names: Vec<String> = (0..50).map(|it| it.to_string()).collect();
        let values: Vec<f32> = (0..50 * 11).map(|it| ((it * 37 % 101) as f32) - 50.0).collect();
        let vectors = Vectors { texts: Texts { column, values: names }, dim: 11, values };
        let query: Vec<f32> = (0..11).map(|it| (it as f32 - 4.5) / 3.0).collect();
        let mut all: Vec<(usize, f32)> = vectors.products(&query).into_iter().enumerate().collect();
        all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        assert_eq!(vectors.nearest(&query, 5, |_| false), all[..5]);
        let best = all[0].0;
        assert_eq!(vectors.nearest(&query, 5, |at| at == best), all[1..6]);
        assert_eq!(vectors.nearest(&query, 100, |_| false), all);
        assert_eq!(vectors.nearest(&query, 0, |_| false), []);
        let direct: f32 = query.iter().zip(&vectors.values).map(|(a, b)| a * b).sum();
        assert!((vectors.products(&query)[0] - direct).abs() < 1e-3);
    }
}
