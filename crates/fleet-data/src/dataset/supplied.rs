//! A dataset of batches that the caller makes.

use super::Dataset;
use crate::batch::{BatchLayout, BatchSource};
use fleet_base::Result;
use fleet_tensor::DType;
use std::sync::Arc;

/// A dataset whose batches are made elsewhere, such as by a program in another language: the inputs
/// of a batch, and a function that starts a pass.
///
/// ```
/// use fleet_data::{Batch, BatchSource, Dataset, SuppliedBatches};
/// use fleet_tensor::{DType, Tensor};
/// struct Countdown(i64);
/// impl BatchSource for Countdown {
///     fn next_batch(&mut self, batch: &mut Batch) -> fleet_base::Result<bool> {
///         self.0 -= 1;
///         batch.set_tensors(vec![Tensor::from_slice(&[self.0], [1, 1])?])?;
///         Ok(self.0 >= 0)
///     }
/// }
/// let inputs = [("x".to_string(), DType::I64)];
/// let dataset = SuppliedBatches::new(&inputs, || Ok(Box::new(Countdown(2))));
/// let mut batch = Batch::new(dataset.layout());
/// let mut source = dataset.sources(0)?.remove(0);
/// assert!(source.next_batch(&mut batch)?);
/// assert_eq!(batch.tensor("x")?.item::<i64>()?, 1);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct SuppliedBatches<F> {
    layout: Arc<BatchLayout>,
    start: F,
}

impl<F: Fn() -> Result<Box<dyn BatchSource>>> SuppliedBatches<F> {
    /// Returns a dataset of batches with these inputs. Each pass calls `start` once.
    pub fn new(inputs: &[(String, DType)], start: F) -> SuppliedBatches<F> {
        let inputs = inputs.iter().map(|(name, dtype)| (name.as_str(), *dtype, &[][..]));
        SuppliedBatches { layout: BatchLayout::of_tensors(inputs), start }
    }
}

impl<F: Fn() -> Result<Box<dyn BatchSource>>> Dataset for SuppliedBatches<F> {
    fn layout(&self) -> &Arc<BatchLayout> {
        &self.layout
    }

    /// Returns one source, for any number of threads.
    fn sources(&self, _threads: usize) -> Result<Vec<Box<dyn BatchSource>>> {
        Ok(vec![(self.start)()?])
    }
}
