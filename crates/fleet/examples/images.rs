//! A network on a folder of images: `cargo run --release --example images [STEPS] [FOLDER]`.
//!
//! FOLDER has a folder of PNG and JPEG files for each class; without it, digits are drawn into one.

use fleet::data::{ImageList, ImageOptions, Images, Loader, LoaderOptions, Samples};
use fleet::prelude::*;
use fleet::trainer::Evaluation;
use fleet_synth::{Make, MakeFormat, MakeKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SIZE: usize = 28;
const BATCH: usize = 32;
const DRAWN: u64 = 1000;

/// Draws images to a temporary folder, and trains on them for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-digits-{}", std::process::id()));
    draw(&folder)?;
    let right = train_on(&folder, steps);
    std::fs::remove_dir_all(&folder).map_err(|error| Error::io("remove", &folder, &error))?;
    right.map(drop)
}

/// Trains on the images of a folder; returns the accuracy.
pub fn train_on(folder: &Path, steps: u64) -> Result<f64> {
    // Random crops of slightly larger images, so that the network seldom sees the same one twice.
    let list = ImageList::folder(folder)?;
    let options = ImageOptions { resize: Some(SIZE + 4), ..ImageOptions::new([SIZE, SIZE]) };
    let evaluated = Images::new(list.clone(), options.clone())?;
    let images = Arc::new(Images::new(list, ImageOptions { random_crop: true, ..options })?);
    println!("{} images of {} classes", images.sample_count(), images.classes().len());

    let net = Net::new();
    let image = net.data("image", [-1, 3, SIZE as i64, SIZE as i64], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let x = image.conv2d(Conv2d::new(16, 5).act(Act::Relu)).pool2d(Pool2d::max(2).stride(2));
    let x = x.conv2d(Conv2d::new(32, 5).act(Act::Relu)).pool2d(Pool2d::max(2).stride(2));
    let logits = x.fc(Fc::new(128).act(Act::Relu)).fc(images.classes().len() as i64);
    let (loss, accuracy) = (logits.cross_entropy(label), logits.accuracy(label, 1));
    net.minimize(loss, Adam::new(1e-3))?;
    let (loss, accuracy) = (loss.name(), accuracy.name());
    let mut session = Session::new(net.build()?, ExecOptions::default())?;

    // Two threads read and decode while the network trains.
    let plain = LoaderOptions {
        batch_size: BATCH,
        threads: 2,
        drop_last: false,
        ..LoaderOptions::default()
    };
    let shuffled = LoaderOptions { shuffle: true, ..plain.clone() };
    let loader = Loader::new(images, shuffled)?;
    let fleet = Fleet::collective()?;
    Trainer::new(&fleet).steps(steps).watch("loss", &loss).run(&mut session, loader)?;

    let loader = Loader::new(Arc::new(evaluated), plain)?;
    let evaluation = Evaluation::new().mean("accuracy", &accuracy);
    let accuracy = evaluation.run(&fleet, &mut session, loader)?.scalars[0].1;
    println!("accuracy: {:.1} %", 100.0 * accuracy);
    Ok(accuracy)
}

/// Draws digits as PNG files, in folders named by the digit.
fn draw(folder: &Path) -> Result<()> {
    let (kind, format) = (MakeKind::Digits { seed: 1 }, MakeFormat::Png);
    let folder = folder.to_path_buf();
    let make = Make { kind, format, first_row: 0, rows: DRAWN, shards: 1, folder };
    make.write().map(drop)
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let steps = args.next().map_or(Ok(300), |steps| steps.parse())?;
    match args.next() {
        Some(folder) => train_on(&PathBuf::from(folder), steps).map(drop),
        None => train(steps),
    }
}
