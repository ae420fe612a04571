//! Shared code of the image examples: drawn digits in colour, and a training with the documented
//! line of progress.

use fleet::nn::models::ImageClassifier;
use fleet::prelude::*;
use fleet::trainer::{Evaluation, Event, Feeds, Progress, Source, from_fn};
use fleet_synth::{Digits, IMAGE_PIXELS, IMAGE_SIDE};
use std::ops::ControlFlow;

/// Batch size of all workers together.
const BATCH: usize = 32;
/// Batches of an epoch.
const BATCHES: u64 = 50;
/// First of the digits that training does not see.
const UNSEEN: u64 = 1 << 40;
/// Batches from one line of progress to the next.
const PRINT_PERIOD: u64 = 5;

/// Trains a classifier of images of this size, and returns the accuracy on unseen ones.
pub fn train(
    net: &Net,
    model: &ImageClassifier<'_>,
    optimizer: impl Into<OptimizerDesc>,
    strategy: &DistributedStrategy,
    (size, steps): (usize, u64),
) -> Result<f64> {
    let fleet = Fleet::collective()?;
    let job = fleet.distributed_optimizer(optimizer, strategy).minimize(net, model.loss)?;
    let [loss, acc1, acc5] = [model.loss, model.acc1, model.acc5].map(|var| var.name());
    let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    Trainer::new(&fleet)
        .steps(steps)
        .watch("loss", &loss)
        .watch("acc1", &acc1)
        .watch("acc5", &acc5)
        .progress(Progress::none())
        .on_event(|event, _| {
            if let Event::Step { step, epoch, values: [loss, acc1, acc5], .. } = event {
                let batch = (step - 1) % BATCHES;
                let line = format!(
                    "[Epoch {epoch}, batch {batch}] loss: {loss:.5}, acc1: {acc1:.5}, acc5: \
                     {acc5:.5}"
                );
                if batch.is_multiple_of(PRINT_PERIOD) {
                    fleet.util().print_on_rank(line, 0);
                }
            }
            Ok(ControlFlow::Continue(()))
        })
        .run(&mut session, digits(&fleet, size, 0, BATCHES))?;
    let evaluation = Evaluation::new().mean("acc1", &acc1);
    let found = evaluation.run(&fleet, &mut session, digits(&fleet, size, UNSEEN, 8))?;
    let accuracy = found.get("acc1").unwrap_or_default();
    let line = format!("accuracy on {} unseen digits: {:.1} %", found.rows, 100.0 * accuracy);
    fleet.util().print_on_rank(line, 0);
    fleet.finish()?;
    Ok(accuracy)
}

/// Returns `batches` batches of digits, of which this worker takes its share.
fn digits(fleet: &Fleet, size: usize, first: u64, batches: u64) -> impl Source + use<> {
    let rows = BATCH / fleet.worker_num();
    let first = first + (rows * fleet.worker_index()) as u64;
    let make = move |_epoch, batch: u64, feeds: &mut Feeds| {
        let (x, y) = pictures(size, rows, first + batch * BATCH as u64)?;
        feeds.set("x", x);
        feeds.set("y", y);
        Ok(true)
    };
    from_fn(make).batches(batches)
}

/// Grey digits of 28x28 in the middle of larger images, brightest in one of the three colours.
fn pictures(size: usize, count: usize, first: u64) -> Result<(Tensor, Tensor)> {
    let Some(space) = size.checked_sub(IMAGE_SIDE) else {
        let error = Error::invalid("images are smaller than a digit");
        return Err(error.expected(format!("at least {IMAGE_SIDE}")).got(size));
    };
    let (mut grey, mut labels) = (vec![0.0; count * IMAGE_PIXELS], vec![0; count]);
    Digits::new(1).fill_batch_f32(&mut grey, &mut labels, first)?;
    let mut images = vec![-1.0f32; count * 3 * size * size];
    let edge = space / 2;
    for (at, digit) in grey.chunks(IMAGE_PIXELS).enumerate() {
        for colour in 0..3 {
            let shade = if at % 3 == colour { 1.0 } else { 0.5 };
            let plane = &mut images[(3 * at + colour) * size * size..][..size * size];
            for (row, pixels) in digit.chunks(IMAGE_SIDE).enumerate() {
                let line = &mut plane[(row + edge) * size + edge..][..IMAGE_SIDE];
                line.iter_mut().zip(pixels).for_each(|(to, grey)| *to = shade * grey);
            }
        }
    }
    let (count, size) = (count as i64, size as i64);
    let images = Tensor::from_slice(&images, [count, 3, size, size])?;
    Ok((images, Tensor::from_slice(&labels, [count, 1])?))
}
