//! The loss of training speed from reading images: ResNet-18 fed from JPEG files and from memory.

use crate::measure::{Options, print_rates};
use fleet::data::{Batch, ImageList, ImageOptions, Images, Loader, LoaderOptions, Samples};
use fleet::nn::models::{ResNetConfig, resnet};
use fleet::prelude::*;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Trains on the same images, decoded from files and in a prepared batch, in alternate passes. The
/// result is the speed from files, relative to that from memory.
pub fn images_vs_compute(options: &Options) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-bench-images-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    let outcome = shares(options, &folder);
    // The files are used up; a failure to remove them does not affect the result.
    let _ = std::fs::remove_dir_all(&folder);
    print_rates(options, "%", outcome?);
    Ok(())
}

fn shares(options: &Options, folder: &Path) -> Result<Vec<f64>> {
    let images = images(folder)?;
    let net = Net::new();
    let model = resnet(&net, &ResNetConfig::new(18));
    net.minimize(model.loss, Momentum::new(0.01, 0.9).weight_decay(Regularizer::L2(1e-4)))?;
    let mut session = Session::new(net.build()?, options.exec())?;

    let mut ready = Batch::new(images.layout());
    images.fill(&(0..BATCH as u64).collect::<Vec<_>>(), &mut ready)?;
    let (passes, warmup) = options.counts(4, 1);
    let mut shares = Vec::new();
    for pass in 0..warmup + passes {
        let begin = Instant::now();
        (0..STEPS).try_for_each(|_| step(&mut session, &ready))?;
        let memory = begin.elapsed().as_secs_f64();
        let begin = Instant::now();
        from_files(options, &mut session, &images)?;
        let files = begin.elapsed().as_secs_f64();
        if options.profile {
            let rate = |seconds: f64| (STEPS * BATCH) as f64 / seconds;
            eprintln!("images/s: {:.1} from memory, {:.1} from files", rate(memory), rate(files));
        }
        if pass >= warmup {
            shares.push(100.0 * memory / files);
        }
    }
    if options.profile {
        let begin = Instant::now();
        let all: Vec<u64> = (0..FILES as u64).collect();
        images.fill(&all, &mut ready)?;
        let each = begin.elapsed().as_secs_f64() / FILES as f64;
        eprintln!("one thread alone: {:.2} ms per image", each * 1e3);
    }
    Ok(shares)
}

fn from_files(options: &Options, session: &mut Session, images: &Arc<Images>) -> Result<()> {
    let base = LoaderOptions { batch_size: BATCH, shuffle: true, ..LoaderOptions::default() };
    let from = LoaderOptions { threads: options.threads, ..base };
    let samples: Arc<dyn Samples> = images.clone();
    let mut loader = Loader::new(samples, from)?;
    let mut batch = Batch::new(images.layout());
    while loader.next(&mut batch)? {
        step(session, &batch)?;
    }
    Ok(())
}

fn step(session: &mut Session, batch: &Batch) -> Result<()> {
    let feeds = [("x", batch.tensor("image")?), ("y", batch.tensor("label")?)];
    session.run(&feeds, &[]).map(drop)
}

/// Writes the image files; returns a pass of `STEPS` batches over them.
fn images(folder: &Path) -> Result<Arc<Images>> {
    let mut list = String::new();
    for file in 0..FILES {
        let path = folder.join(format!("{file}.jpg"));
        let encoder = jpeg_encoder::Encoder::new_file(&path, QUALITY);
        let written = encoder.and_then(|encoder| {
            let [height, width] = [HEIGHT as u16, WIDTH as u16];
            encoder.encode(&photograph(file as u64), width, height, jpeg_encoder::ColorType::Rgb)
        });
        written.map_err(|error| Error::unavailable(format!("cannot write a JPEG: {error}")))?;
    }
    for image in 0..STEPS * BATCH {
        list += &format!("{}.jpg {}\n", image % FILES, image % 1000);
    }
    let path = folder.join("list");
    std::fs::write(&path, list).map_err(|error| Error::io("write", &path, &error))?;
    let options = ImageOptions {
        resize: Some(256),
        random_crop: true,
        random_flip: true,
        ..ImageOptions::new([224, 224])
    };
    Ok(Arc::new(Images::new(ImageList::file_list(&path, folder)?, options)?))
}

/// Draws waves of all lengths and a little noise: its JPEG is as large as that of a photograph.
fn photograph(seed: u64) -> Vec<u8> {
    let mut dice = fleet::rng::Sequence::new(seed, 1);
    let waves: Vec<[f32; 5]> = (0..24)
        .map(|wave| {
            let length = 1.2f32.powi(wave) * 6.0;
            let turn = dice.unit() as f32 * std::f32::consts::TAU;
            let [phase, colour] = [dice.unit() as f32 * 6.0, dice.unit() as f32 * 2.0];
            [turn.cos() / length * 6.0, turn.sin() / length * 6.0, phase, colour, length.sqrt()]
        })
        .collect();
    let mut pixels = Vec::with_capacity(HEIGHT * WIDTH * 3);
    for row in 0..HEIGHT {
        for column in 0..WIDTH {
            for colour in 0..3 {
                let mut value = 128.0 + (dice.unit() as f32 - 0.5) * NOISE;
                for [along, down, phase, shade, height] in &waves {
                    let at = along * column as f32 + down * row as f32;
                    value += (at + phase + shade * colour as f32).sin() * height;
                }
                pixels.push(value.clamp(0.0, 255.0) as u8);
            }
        }
    }
    pixels
}

const BATCH: usize = 16;
/// Steps of a pass. It takes some seconds, so that the start of the loader is a small part of it.
const STEPS: usize = 8;
const FILES: usize = 64;
/// The usual size of a photograph in ImageNet.
const HEIGHT: usize = 375;
const WIDTH: usize = 500;
const QUALITY: u8 = 90;
const NOISE: f32 = 24.0;
