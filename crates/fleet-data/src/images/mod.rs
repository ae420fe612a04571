//! Images for training: from folders, file lists and tar shards. The threads of a
//! [`Loader`](crate::Loader) decode, resize, crop, flip and normalise them during training.
//!
//! Pixels stay bytes until they are written to the batch. All random choices are functions of
//! (seed, epoch, image), so neither the number of threads nor a resumed job changes them.

mod decode;
mod resize;
mod source;

pub use decode::{Pixels, decode_image};
pub use source::ImageList;

use crate::batch::{Batch, BatchLayout};
use crate::loader::Samples;
use crate::slot::{Schema, Slot};
use fleet_base::output::note;
use fleet_base::rng::Philox;
use fleet_base::{Error, Result};
use std::sync::Arc;

/// Preprocessing of decoded images.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageOptions {
    /// Height and width of the crop.
    pub size: [usize; 2],
    /// Length of the shorter side after resizing, before the crop; `None` keeps the image's size.
    pub resize: Option<usize>,
    /// Crop at a random position (training) rather than at the center (evaluation).
    pub random_crop: bool,
    /// Mirror images horizontally with a probability of one half.
    pub random_flip: bool,
    /// Means of red, green and blue on a scale of 0 to 1. A pixel becomes (value - mean) / std.
    pub mean: [f32; 3],
    /// Standard deviations of red, green and blue, on the same scale.
    pub std: [f32; 3],
    /// Seed of all random choices.
    pub seed: u64,
    /// Documented: decode images with the library DALI. Here the threads of the loader decode them;
    /// [`Images::new`] prints a note.
    pub use_dali: bool,
}

impl ImageOptions {
    /// Options for evaluation: resizes the shorter side to the larger of the two sizes, crops the
    /// center, and maps values to -1 to 1.
    pub fn new(size: [usize; 2]) -> ImageOptions {
        ImageOptions {
            size,
            resize: Some(size[0].max(size[1])),
            random_crop: false,
            random_flip: false,
            mean: [0.5; 3],
            std: [0.5; 3],
            seed: 0,
            use_dali: false,
        }
    }
}

/// Labelled images as samples of a loader, with the inputs `image` (`[3, height, width]`, red
/// first) and `label`.
///
/// ```no_run
/// use fleet_data::{Batch, ImageList, ImageOptions, Images, Loader, LoaderOptions};
/// use std::sync::Arc;
/// let list = ImageList::folder("flowers/train")?; // a folder for each class
/// let whole = ImageOptions::new([224, 224]);
/// let options =
///     ImageOptions { resize: Some(256), random_crop: true, random_flip: true, ..whole };
/// let images = Arc::new(Images::new(list, options)?);
/// let mut batch = Batch::new(images.layout());
/// let options =
///     LoaderOptions { batch_size: 32, shuffle: true, threads: 2, ..LoaderOptions::default() };
/// let mut loader = Loader::new(images, options)?;
/// while loader.next(&mut batch)? {
///     // session.run(&batch.feeds(), &[])?;
/// }
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct Images {
    list: ImageList,
    options: ImageOptions,
    layout: Arc<BatchLayout>,
}

impl Images {
    /// Returns the images of a list as samples. Fails if a size is out of range.
    pub fn new(list: ImageList, options: ImageOptions) -> Result<Images> {
        let [height, width] = options.size;
        let sides = [height, width, options.resize.unwrap_or(1)];
        if sides.iter().any(|side| !(1..=SIDE_MAX).contains(side)) {
            return Err(Error::invalid("image size is out of range")
                .expected(format!("1 to {SIDE_MAX}"))
                .got(format!("{:?}, resized to {:?}", options.size, options.resize)));
        }
        if options.resize.is_some_and(|side| side < height.max(width)) {
            return Err(Error::invalid("resized images are smaller than the crop")
                .expected(format!("at least {}", height.max(width)))
                .got(format!("{:?}", options.resize)));
        }
        if !options.std.iter().all(|std| *std > 0.0 && std.is_finite()) {
            return Err(Error::invalid("standard deviations must be positive")
                .got(format!("{:?}", options.std)));
        }
        if options.use_dali {
            note("use_dali: images are decoded by the threads of the loader, not by DALI");
        }
        let schema = Schema::new([
            Slot::dense_floats("image", [3, height, width]),
            Slot::dense_ids("label", [1]),
        ])?;
        let layout = BatchLayout::of_slots(&schema)?;
        Ok(Images { list, options, layout })
    }

    /// Returns the inputs of a batch: `image` and `label`.
    pub fn layout(&self) -> &Arc<BatchLayout> {
        &self.layout
    }

    /// Returns the names of the classes, by label; empty if a list has numbers only.
    pub fn classes(&self) -> &[String] {
        self.list.classes()
    }

    /// Writes the image `sample`, as augmented in this epoch, to `out`.
    fn write(&self, epoch: u64, sample: u64, out: &mut [f32]) -> Result<()> {
        let bytes = self.list.read(sample as usize)?;
        let named = |error: Error| error.at(self.list.name(sample as usize));
        let pixels = decode_image(&bytes).map_err(named)?;
        let resized = match self.options.resize {
            Some(side) => resize::resized_size(&pixels, side).map_err(named)?,
            None => [pixels.height, pixels.width],
        };
        let [height, width] = self.options.size;
        if resized[0] < height || resized[1] < width {
            return Err(named(
                Error::invalid("image is smaller than the crop")
                    .expected(format!("at least {height}x{width}"))
                    .got(format!("{}x{}", resized[0], resized[1]))
                    .help("set ImageOptions::resize"),
            ));
        }
        let dice = Philox::new(self.options.seed, AUGMENT_STREAM + epoch);
        let draw = |which: u64, below: usize| {
            let word = dice.word64(sample * DRAWS + which);
            ((u128::from(word) * below as u128) >> 64) as usize
        };
        let free = [resized[0] - height, resized[1] - width];
        let corner = match self.options.random_crop {
            true => [draw(0, free[0] + 1), draw(1, free[1] + 1)],
            false => [free[0] / 2, free[1] / 2],
        };
        let flip = self.options.random_flip && draw(2, 2) == 1;
        let (mean, std) = (self.options.mean, self.options.std);
        let scale = std.map(|std| 1.0 / (255.0 * std));
        let shift = [0, 1, 2].map(|colour| -mean[colour] / std[colour]);
        resize::Crop { resized, corner, size: [height, width], flip, scale, shift }
            .write(&pixels, out);
        Ok(())
    }
}

impl Samples for Images {
    fn sample_count(&self) -> u64 {
        self.list.len() as u64
    }

    /// Fills the batch as in epoch 0.
    fn fill(&self, samples: &[u64], batch: &mut Batch) -> Result<()> {
        self.fill_in_epoch(0, samples, batch)
    }

    fn fill_in_epoch(&self, epoch: u64, samples: &[u64], batch: &mut Batch) -> Result<()> {
        let total = self.list.len();
        if samples.iter().any(|sample| *sample >= total as u64) {
            return Err(Error::invalid("image index is out of range")
                .expected(format!("less than {total}")));
        }
        let pixels = 3 * self.options.size[0] * self.options.size[1];
        let [images, labels] = batch.dense(&self.layout, samples.len())? else {
            return Err(Error::internal("a batch of images has two inputs"));
        };
        let places = images.as_mut_slice::<f32>()?.chunks_exact_mut(pixels);
        for (place, sample) in places.zip(samples) {
            self.write(epoch, *sample, place)?;
        }
        let places = labels.as_mut_slice::<i64>()?.iter_mut().zip(samples);
        places.for_each(|(label, sample)| *label = self.list.label(*sample as usize));
        Ok(())
    }

    fn batch_layout(&self) -> Option<&Arc<BatchLayout>> {
        Some(&self.layout)
    }
}

/// Limit of an image's height and width; photographs are smaller.
pub(crate) const SIDE_MAX: usize = 1 << 14;
/// Random numbers reserved for one image in one epoch.
const DRAWS: u64 = 4;
const AUGMENT_STREAM: u64 = 0x5 << 44;
