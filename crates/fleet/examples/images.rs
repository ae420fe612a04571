//! A network on a folder of images: `cargo run --release --example images [STEPS] [FOLDER]`.
//!
//! FOLDER has a folder of PNG and JPEG files for each class; without it, digits are drawn into one.

use fleet::data::{Batch, ImageList, ImageOptions, Images, Loader, LoaderOptions, Samples};
use fleet::prelude::*;
use fleet_synth::{Make, MakeFormat, MakeKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SIZE: usize = 28;
const BATCH: usize = 32;
const DRAWN: u64 = 1000;

pub fn train(steps: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-digits-{}", std::process::id()));
    draw(&folder)?;
    let right = train_on(&folder, steps);
    std::fs::remove_dir_all(&folder).map_err(|error| Error::io("remove", &folder, &error))?;
    right.map(drop)
}

/// Trains on the images of a folder; returns the accuracy.
pub fn train_on(folder: &Path, steps: u64) -> Result<f32> {
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
    let mut loader = Loader::new(images.clone(), shuffled)?;
    let mut batch = Batch::new(images.layout());
    for step in 1..=steps {
        while !loader.next(&mut batch)? {
            loader.next_epoch();
        }
        let out = session.run(&batch.feeds(), &[&loss])?;
        if step % steps.div_ceil(10) == 0 {
            let loss = out[0].item::<f32>()?;
            println!("step {step}, epoch {}: loss {loss:.4}", loader.cursor().epoch);
        }
    }

    let count = evaluated.sample_count() as f32;
    let mut loader = Loader::new(Arc::new(evaluated), plain)?;
    let mut right = 0.0;
    while loader.next(&mut batch)? {
        let out = session.evaluate(&batch.feeds(), &[&accuracy])?;
        right += out[0].item::<f32>()? * batch.len() as f32;
    }
    println!("accuracy: {:.1} %", 100.0 * right / count);
    Ok(right / count)
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
