//! An index of vectors, for searches that compare a query with few of them: a hierarchical
//! navigable small world graph (HNSW; Malkov and Yashunin, 2016).
//!
//! A node of the graph is a vector, with all items that have it. Each is linked with near ones. A
//! search walks along the links towards the query, first in sparse layers, then in the layer of all
//! nodes. It may miss some of the nearest ones.
//!
//! The graph follows from the vectors alone: nodes are inserted in a seeded order (`build.rs`). A
//! layer has the first nodes of that order, a sixteenth of those of the layer below.
//!
//! Searches want the largest products. So each vector gets one number more that makes all of them
//! equally long, and queries get 0 there: the nearest vector has the largest product.

mod build;
mod graph;

pub use crate::vectors::{Texts, Vectors};
use fleet::Tensor;
use fleet::format::{read_safetensors, write_safetensors};
use fleet_base::{Error, Result};
use fleet_kernels::products::products_at;
pub use graph::Scratch;
use graph::{FREE, Layer, Near, Rows, WIDTH_MAX, search};
use std::collections::BTreeMap;
use std::path::Path;

/// Links of a node in a layer; the layer of all nodes has twice as many.
const LINKS: usize = WIDTH_MAX / 2;
/// Nodes that a search keeps at least: more find more of the nearest ones, more slowly.
const KEPT_MIN: usize = 128;
/// Largest number of items: places are 32-bit integers in the file.
const ITEMS_MAX: usize = i32::MAX as usize;
/// Numbers in a line of a cache: vectors of nodes have zeros up to a multiple of it.
const LINE: usize = 16;
/// Names in the file.
const ITEMS: &str = "items";
const STARTS: &str = "starts";
const SUM: &str = "crc32_of_vectors";

/// A graph over vectors.
#[derive(Debug, PartialEq)]
pub struct Index {
    /// The items of the first node, then those of the next, and so on.
    items: Vec<u32>,
    /// Where the items of each node start, then the number of items.
    starts: Vec<u32>,
    /// The layers, that of all nodes first.
    layers: Vec<Layer>,
    /// The vector of each node.
    vectors: Rows<f32>,
    /// The sum of the vectors that the graph was made of.
    sum: u32,
}

impl Index {
    /// Builds the graph, which is the same for any number of threads.
    pub fn build(vectors: &Vectors, threads: usize) -> Result<Index> {
        let count = vectors.len();
        if count > ITEMS_MAX {
            return Err(Error::exhausted("too many items for an index")
                .expected(format!("at most {ITEMS_MAX}"))
                .got(count));
        }
        build::build(vectors, threads)
    }

    fn nodes(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns all items of a node.
    fn items_of(&self, node: u32) -> &[u32] {
        let [start, end] = [node as usize, node as usize + 1].map(|at| self.starts[at] as usize);
        &self.items[start..end]
    }

    /// Returns the places and products of about the `count` vectors with the largest products, best
    /// first. `excluded` is the number of vectors that `is_excluded` may leave out.
    pub fn nearest(
        &self,
        other: &[f32],
        (count, excluded): (usize, usize),
        is_excluded: impl Fn(usize) -> bool,
        scratch: &mut Scratch,
    ) -> Vec<(usize, f32)> {
        if self.nodes() == 0 || count == 0 {
            return Vec::new();
        }
        let mut query = vec![0.0; self.vectors.width()];
        query[..other.len()].copy_from_slice(other);
        let products = |nodes: &[u32], out: &mut [f32]| {
            products_at(self.vectors.all(), nodes, &query, out);
        };
        let mut first = [0.0];
        products(&[0], &mut first);
        let mut near = vec![Near::new(first[0], 0)];
        let kept = KEPT_MIN.max(2 * count.saturating_add(excluded)).min(self.nodes());
        for (at, layer) in self.layers.iter().enumerate().rev() {
            near = search(layer, &near, if at == 0 { kept } else { 1 }, products, scratch);
        }
        let mut found: Vec<(usize, f32)> = Vec::new();
        for near in near {
            let score = near.product();
            // Further nodes are behind those that were found.
            if found.len() >= count && found.last().is_some_and(|last| score < last.1) {
                break;
            }
            let items = self.items_of(near.node()).iter().map(|item| *item as usize);
            found.extend(items.filter(|item| !is_excluded(*item)).map(|item| (item, score)));
        }
        found.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        found.truncate(count);
        found
    }

    /// Writes the graph.
    pub fn save(&self, path: &Path) -> Result<()> {
        let ints = |values: &[u32], shape: [i64; 2]| {
            // A free link is -1.
            let values: Vec<i32> = values.iter().map(|value| *value as i32).collect();
            Tensor::from_slice(&values, shape)
        };
        let column = |values: &[u32]| ints(values, [values.len() as i64, 1]);
        let mut tensors = vec![
            (ITEMS.to_string(), column(&self.items)?),
            (STARTS.to_string(), column(&self.starts)?),
        ];
        for (at, layer) in self.layers.iter().enumerate() {
            let shape = [layer.len() as i64, layer.width() as i64];
            tensors.push((layer_name(at), ints(layer.all(), shape)?));
        }
        let meta = BTreeMap::from([(SUM.to_string(), format!("{:08x}", self.sum))]);
        write_safetensors(path, tensors.iter().map(|(name, it)| (name.as_str(), it)), &meta)
    }

    /// Reads the graph of some vectors.
    pub fn load(path: &Path, vectors: &Vectors) -> Result<Index> {
        let help = "train the model again, or search with --search exact";
        let damaged =
            |why: &str| Error::invalid(format!("{} is damaged: {why}", path.display())).help(help);
        let (tensors, meta) = read_safetensors(path)?;
        let sum = vectors.sum();
        if meta.get(SUM).is_none_or(|known| *known != format!("{sum:08x}")) {
            let message = format!("{} is of other vectors than the model", path.display());
            return Err(Error::invalid(message).help(help));
        }
        let read = |name: &str| -> Result<Vec<u32>> {
            let tensor = tensors.iter().find(|(known, _)| known == name).map(|(_, it)| it);
            let tensor = tensor.ok_or_else(|| damaged(&format!("no tensor '{name}'")))?;
            Ok(tensor.to_vec::<i32>()?.into_iter().map(|value| value as u32).collect())
        };
        let count = vectors.len();
        let (items, starts) = (read(ITEMS)?, read(STARTS)?);
        let mut is_there = vec![false; count];
        let is_new = |at: &u32| {
            is_there.get_mut(*at as usize).is_some_and(|it| !std::mem::replace(it, true))
        };
        if items.len() != count || !items.iter().all(is_new) {
            return Err(damaged("it does not have each item once"));
        }
        let ends = [starts.first().copied(), starts.last().copied()];
        if ends != [Some(0), Some(count as u32)] || !starts.is_sorted_by(|a, b| a < b) {
            return Err(damaged("nodes without items"));
        }
        let mut layers = empty_layers(starts.len() - 1)?;
        for (at, layer) in layers.iter_mut().enumerate() {
            let (links, nodes) = (read(&layer_name(at))?, layer.len());
            let is_right = |link: &u32| *link == FREE || (*link as usize) < nodes;
            if links.len() != layer.all().len() || !links.iter().all(is_right) {
                return Err(damaged(&format!("wrong links in layer {at}")));
            }
            layer.all_mut().copy_from_slice(&links);
        }
        let vectors = vectors_of(vectors, &items, &starts)?;
        Ok(Index { items, starts, layers, vectors, sum })
    }
}

fn layer_name(at: usize) -> String {
    format!("links_{at}")
}

/// Returns layers without links: a node in [`LINKS`] is also in the layer above.
fn empty_layers(count: usize) -> Result<Vec<Layer>> {
    let mut layers = Vec::new();
    let (mut nodes, mut width) = (count, 2 * LINKS);
    loop {
        let mut layer = Layer::zeros(nodes, width)?;
        layer.all_mut().fill(FREE);
        layers.push(layer);
        if nodes <= LINKS {
            return Ok(layers);
        }
        (nodes, width) = (nodes.div_ceil(LINKS), LINKS);
    }
}

/// Returns the vector of each node: that of its first item.
fn vectors_of(vectors: &Vectors, items: &[u32], starts: &[u32]) -> Result<Rows<f32>> {
    let width = vectors.dim.next_multiple_of(LINE);
    let mut rows = Rows::zeros(starts.len() - 1, width)?;
    for (row, start) in rows.all_mut().chunks_exact_mut(width).zip(starts) {
        let item = items[*start as usize] as usize;
        row[..vectors.dim].copy_from_slice(vectors.vector(item));
    }
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;
    use fleet_base::temporary::TemporaryFolder;
    use fleet_kernels::products::products;
    use std::time::Instant;

    fn product(a: &[f32], b: &[f32]) -> f32 {
        let mut product = [0.0];
        products(a, b, &mut product);
        product[0]
    }

    /// Vectors around a few centres, as those of a trained model are, and queries like them.
    fn vectors(count: usize, dim: usize, seed: u64, are_equally_long: bool) -> Vectors {
        let mut random = Sequence::new(seed, 7);
        let mut centres = Sequence::new(1, 3);
        let centres: Vec<f32> = (0..40 * dim).map(|_| centres.normal() as f32).collect();
        let mut values = Vec::new();
        for _ in 0..count {
            let centre = random.below(40) as usize;
            let length = if are_equally_long { 1.0 } else { random.unit() as f32 + 0.2 };
            let at = &centres[centre * dim..][..dim];
            let vector: Vec<f32> =
                at.iter().map(|value| length * (value + 0.7 * random.normal() as f32)).collect();
            let norm = if are_equally_long { product(&vector, &vector).sqrt() } else { 1.0 };
            values.extend(vector.iter().map(|value| value / norm));
        }
        let names = (0..count).map(|at| at.to_string()).collect();
        Vectors { texts: Texts { column: "item".into(), values: names }, dim, values }
    }

    /// Returns the share of the exact nearest items that the index finds.
    fn recall(items: &Vectors, index: &Index, queries: &Vectors, count: usize) -> f64 {
        let (mut found, mut scratch) = (0, Scratch::default());
        for query in 0..queries.len() {
            let query = queries.vector(query);
            let exact = items.nearest(query, count, |_| false);
            let near = index.nearest(query, (count, 0), |_| false, &mut scratch);
            assert_eq!(near.len(), count.min(items.len()));
            // A found item has the same score, bit for bit.
            for (at, score) in &near {
                assert_eq!(*score, product(items.vector(*at), query));
            }
            found += near.iter().filter(|it| exact.contains(it)).count();
        }
        found as f64 / (queries.len() * count.min(items.len())) as f64
    }

    #[test]
    fn most_of_the_nearest_are_found() {
        for (are_equally_long, dim) in [(true, 16), (false, 16), (false, 32)] {
            let items = vectors(4000, dim, 1, are_equally_long);
            let queries = vectors(200, dim, 2, are_equally_long);
            let begin = Instant::now();
            let index = Index::build(&items, 2).unwrap();
            let built = begin.elapsed();
            let recall = recall(&items, &index, &queries, 10);
            let kind = if are_equally_long { "cosine" } else { "dot" };
            println!(
                "recall@10 {recall:.4} of 4000 items, {kind}, dim {dim}, built in {built:.1?}"
            );
            assert!(recall > 0.97, "{recall}");
        }
    }

    #[test]
    fn threads_do_not_change_the_graph() {
        let mut items = vectors(3000, 8, 1, false);
        items.values[100 * 8..400 * 8].fill(0.25);
        let one = Index::build(&items, 1).unwrap();
        for threads in [2, 3, 8] {
            assert!(Index::build(&items, threads).unwrap() == one, "{threads} threads");
        }
    }

    #[test]
    fn few_items_and_exclusions_are_exact() {
        for count in [0, 1, 2, 17, 100] {
            let items = vectors(count, 8, 1, false);
            let index = Index::build(&items, 2).unwrap();
            let queries = vectors(20, 8, 2, false);
            let mut scratch = Scratch::default();
            for at in 0..queries.len() {
                let query = queries.vector(at);
                let exact = items.nearest(query, 10, |_| false);
                let near = index.nearest(query, (10, 0), |_| false, &mut scratch);
                assert_eq!(near, exact);
                let best: Vec<usize> = exact.iter().take(3).map(|(at, _)| *at).collect();
                let is_best = |at: usize| best.contains(&at);
                let exact = items.nearest(query, 10, is_best);
                assert_eq!(index.nearest(query, (10, 3), is_best, &mut scratch), exact);
            }
            assert!(index.nearest(queries.vector(0), (0, 0), |_| false, &mut scratch).is_empty());
        }
    }

    /// Equal vectors, and vectors of zeros, have places as well.
    #[test]
    fn equal_vectors_are_found() {
        let mut items = vectors(500, 4, 1, false);
        items.values[..400 * 4].fill(0.25);
        items.values[400 * 4..450 * 4].fill(0.0);
        let index = Index::build(&items, 2).unwrap();
        assert_eq!(index.nodes(), 52);
        for query in [[1.0; 4], [-1.0, 0.5, 2.0, 0.0], [0.0; 4]] {
            for count in [5, 100, 460] {
                let scratch = &mut Scratch::default();
                let near = index.nearest(&query, (count, 0), |_| false, scratch);
                assert_eq!(near, items.nearest(&query, count, |_| false), "{count}");
            }
        }
    }

    #[test]
    fn a_saved_index_is_checked() {
        let folder = TemporaryFolder::new(&std::env::temp_dir(), "fleet-nearest").unwrap();
        let path = folder.path().join("items.index.safetensors");
        let items = vectors(300, 8, 1, false);
        let index = Index::build(&items, 2).unwrap();
        index.save(&path).unwrap();
        assert!(Index::load(&path, &items).unwrap() == index);
        let mut other = items.clone();
        other.values[0] += 1.0;
        let error = Index::load(&path, &other).unwrap_err().to_string();
        assert!(error.contains("is of other vectors"), "{error}");
        type Change = fn(&mut Index);
        let changes: [(Change, &str); 5] = [
            (|it| it.items[3] = it.items[4], "each item once"),
            (|it| it.starts[1] = 0, "nodes without items"),
            (|it| it.layers[0].all_mut()[5] = 300, "links in layer 0"),
            (|it| it.layers[1].all_mut()[0] = 19, "links in layer 1"),
            (|it| drop(it.layers.pop()), "no tensor 'links_2'"),
        ];
        for (change, part) in changes {
            let mut wrong = Index::build(&items, 2).unwrap();
            change(&mut wrong);
            wrong.save(&path).unwrap();
            let error = Index::load(&path, &items).unwrap_err().to_string();
            assert!(error.contains("is damaged") && error.contains(part), "{part}: {error}");
        }
        std::fs::write(&path, b"nothing").unwrap();
        assert!(Index::load(&path, &items).is_err());
    }
}
