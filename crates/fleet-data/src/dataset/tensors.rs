//! A dataset of whole tensors in memory, such as the columns of a table. The first dimension of
//! each tensor counts the records.

use super::turns::Turns;
use super::{BATCH_MAX, Dataset, check_threads};
use crate::batch::{Batch, BatchLayout, BatchSource};
use crate::loader::Samples;
use fleet_base::rng::Sequence;
use fleet_base::{Error, Result};
use fleet_tensor::Tensor;
use std::sync::Arc;

/// Records whose inputs are rows of tensors.
///
/// ```
/// use fleet_data::{Batch, BatchSource, Dataset, TensorDataset};
/// use fleet_tensor::Tensor;
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [3, 2])?;
/// let label = Tensor::from_slice(&[0i64, 1, 0], [3, 1])?;
/// let mut dataset = TensorDataset::new([("x".into(), x), ("label".into(), label)], 2)?;
/// let mut batch = Batch::new(dataset.layout());
/// let mut sources = dataset.sources(1)?;
/// assert!(sources[0].next_batch(&mut batch)?);
/// assert_eq!(batch.tensor("x")?.to_vec::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert!(sources[0].next_batch(&mut batch)?); // the last batch is smaller
/// assert_eq!(batch.tensor("label")?.to_vec::<i64>()?, [0]);
/// dataset.shuffle_for_epoch(7, 0); // the order is a function of seed and epoch
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct TensorDataset {
    layout: Arc<BatchLayout>,
    columns: Arc<Vec<Tensor>>,
    order: Arc<Vec<u64>>,
    batch_size: usize,
    drop_last: bool,
    threads: usize,
    /// The seed of a new order in each epoch of a trainer.
    seed: Option<u64>,
}

impl TensorDataset {
    /// Returns a dataset of named tensors. Fails unless all of them have the same number of rows.
    pub fn new(
        columns: impl IntoIterator<Item = (String, Tensor)>,
        batch_size: usize,
    ) -> Result<TensorDataset> {
        if batch_size == 0 || batch_size > BATCH_MAX {
            return Err(Error::invalid("batch size is out of range")
                .expected(format!("1 to {BATCH_MAX}"))
                .got(batch_size));
        }
        let (names, columns): (Vec<String>, Vec<Tensor>) = columns.into_iter().unzip();
        let rows = |tensor: &Tensor| tensor.shape().dims().first().map(|rows| *rows as usize);
        let Some(count) = columns.first().and_then(rows) else {
            return Err(Error::invalid("the dataset needs a tensor with at least one dimension"));
        };
        for (name, column) in names.iter().zip(&columns) {
            if rows(column) != Some(count) {
                return Err(Error::invalid(format!("'{name}' has another number of rows"))
                    .expected(format!("{count}, as '{}' has", names[0]))
                    .got(column.shape()));
            }
        }
        let shapes: Vec<Vec<usize>> = columns.iter().map(row_shape).collect();
        let inputs = names.iter().zip(&columns).zip(&shapes);
        let layout = BatchLayout::of_tensors(
            inputs.map(|((name, column), shape)| (name.as_str(), column.dtype(), &shape[..])),
        );
        let order = Arc::new((0..count as u64).collect());
        let columns = Arc::new(columns);
        let (drop_last, threads, seed) = (false, 1, None);
        Ok(TensorDataset { layout, columns, order, batch_size, drop_last, threads, seed })
    }

    /// Sets whether to drop an incomplete last batch.
    pub fn drop_last(mut self, drop_last: bool) -> TensorDataset {
        self.drop_last = drop_last;
        self
    }

    /// Sets the number of threads that make batches. The order of batches does not depend on it.
    pub fn threads(mut self, threads: usize) -> Result<TensorDataset> {
        check_threads(threads)?;
        self.threads = threads;
        Ok(self)
    }

    /// Sets the seed by which a trainer shuffles the records in each epoch; `None` keeps the order.
    pub fn shuffle_by(&mut self, seed: Option<u64>) {
        self.seed = seed;
    }

    /// Shuffles the records for an epoch by the seed of [`TensorDataset::shuffle_by`], if any.
    pub fn start_epoch(&mut self, epoch: u64) {
        if let Some(seed) = self.seed {
            self.shuffle_for_epoch(seed, epoch);
        }
    }

    /// Shuffles the records for an epoch. The order is a function of the seed and the epoch.
    pub fn shuffle_for_epoch(&mut self, seed: u64, epoch: u64) {
        let mut order: Vec<u64> = (0..self.order.len() as u64).collect();
        Sequence::new(seed, EPOCH_STREAM + epoch).shuffle(&mut order);
        self.order = Arc::new(order);
    }
}

impl Dataset for TensorDataset {
    fn layout(&self) -> &Arc<BatchLayout> {
        &self.layout
    }

    fn sources(&self, threads: usize) -> Result<Vec<Box<dyn BatchSource>>> {
        let threads = if threads == 0 { self.threads } else { threads };
        check_threads(threads)?;
        let source = |turns| {
            let (layout, columns) = (Arc::clone(&self.layout), Arc::clone(&self.columns));
            let order = Arc::clone(&self.order);
            Box::new(TensorSource { layout, columns, order, turns }) as Box<dyn BatchSource>
        };
        let turns = Turns::divide(self.order.len(), self.batch_size, self.drop_last, threads);
        Ok(turns.map(source).collect())
    }

    fn batch_count(&self) -> Option<u64> {
        Some(Turns::batch_count(self.order.len(), self.batch_size, self.drop_last))
    }
}

impl Samples for TensorDataset {
    fn sample_count(&self) -> u64 {
        self.order.len() as u64
    }

    fn fill(&self, samples: &[u64], batch: &mut Batch) -> Result<()> {
        let place = |sample: &u64| self.order.get(*sample as usize).copied();
        let rows: Option<Vec<u64>> = samples.iter().map(place).collect();
        let rows = rows.ok_or_else(|| {
            Error::invalid("record position is out of range")
                .expected(format!("less than {}", self.order.len()))
        })?;
        gather(&self.layout, &self.columns, &rows, batch)
    }

    fn batch_layout(&self) -> Option<&Arc<BatchLayout>> {
        Some(&self.layout)
    }
}

/// Hands out some batches of the records.
struct TensorSource {
    layout: Arc<BatchLayout>,
    columns: Arc<Vec<Tensor>>,
    order: Arc<Vec<u64>>,
    turns: Turns,
}

impl BatchSource for TensorSource {
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool> {
        let Some(places) = self.turns.next() else { return Ok(false) };
        gather(&self.layout, &self.columns, &self.order[places], batch)?;
        Ok(true)
    }
}

/// Copies rows of the columns into a batch.
fn gather(layout: &BatchLayout, columns: &[Tensor], rows: &[u64], batch: &mut Batch) -> Result<()> {
    for (from, to) in columns.iter().zip(batch.dense(layout, rows.len())?) {
        let row_bytes = row_shape(from).iter().product::<usize>() * from.dtype().size();
        if row_bytes == 0 {
            continue;
        }
        let bytes = from.as_bytes();
        for (to, row) in to.as_bytes_mut().chunks_exact_mut(row_bytes).zip(rows) {
            to.copy_from_slice(&bytes[*row as usize * row_bytes..][..row_bytes]);
        }
    }
    Ok(())
}

fn row_shape(tensor: &Tensor) -> Vec<usize> {
    tensor.shape().dims().iter().skip(1).map(|size| *size as usize).collect()
}

/// Stream of the shuffles, apart from those of other datasets.
const EPOCH_STREAM: u64 = 0x4 << 40;

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(count: i64) -> Tensor {
        Tensor::from_slice(&(0..count).collect::<Vec<i64>>(), [count, 1]).unwrap()
    }

    fn pass(dataset: &TensorDataset, threads: usize) -> Vec<Vec<i64>> {
        let sources = dataset.sources(threads).unwrap();
        let mut batches = crate::Prefetch::start(sources, dataset.layout(), 1).unwrap();
        let (mut batch, mut all) = (Batch::new(dataset.layout()), Vec::new());
        while batches.next_batch(&mut batch).unwrap() {
            all.push(batch.tensor("n").unwrap().to_vec::<i64>().unwrap());
        }
        all
    }

    #[test]
    fn batches_follow_the_order_for_any_number_of_threads() {
        let mut dataset = TensorDataset::new([("n".to_string(), numbers(10))], 3).unwrap();
        let plain = [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7, 8], vec![9]];
        dataset.shuffle_for_epoch(1, 0);
        let shuffled = pass(&dataset, 1);
        assert_ne!(shuffled, plain);
        assert_eq!(pass(&dataset, 3), shuffled);
        dataset.shuffle_for_epoch(1, 1);
        assert_ne!(pass(&dataset, 1), shuffled);
        let mut sorted = pass(&dataset, 2).concat();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<i64>>());
        let whole = TensorDataset::new([("n".to_string(), numbers(10))], 3).unwrap();
        assert_eq!(pass(&whole, 2), plain);
        assert_eq!(pass(&whole.drop_last(true), 2), plain[..3]);
    }

    #[test]
    fn columns_have_the_same_number_of_rows() {
        let columns = [("a".to_string(), numbers(3)), ("b".to_string(), numbers(4))];
        let error = TensorDataset::new(columns, 1).err().unwrap().to_string();
        assert_eq!(error, "'b' has another number of rows: expected 3, as 'a' has, got [4, 1]");
        assert!(TensorDataset::new([("a".to_string(), numbers(3))], 0).is_err());
        assert!(TensorDataset::new([], 1).is_err());
    }
}
