//! Images from folders, lists and archives; results are the same for any number of threads.

use super::datasets::Folder;
use fleet_data::{
    Batch, Cursor, ImageList, ImageOptions, Images, Loader, LoaderOptions, Samples, decode_image,
};
use std::sync::Arc;

/// A PNG of one colour with a darker left half.
fn png(height: u32, width: u32, colour: [u8; 3]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, width, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header().unwrap();
    let half = |column: u32| if column < width / 2 { 2 } else { 1 };
    let places = (0..height * width).map(|place| place % width);
    let pixels: Vec<u8> = places.flat_map(|column| colour.map(|it| it / half(column))).collect();
    writer.write_image_data(&pixels).unwrap();
    writer.finish().unwrap();
    bytes
}

fn jpeg(height: u16, width: u16, colour: [u8; 3]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let pixels = colour.repeat(usize::from(height) * usize::from(width));
    let encoder = jpeg_encoder::Encoder::new(&mut bytes, 95);
    encoder.encode(&pixels, width, height, jpeg_encoder::ColorType::Rgb).unwrap();
    bytes
}

/// Four images of two classes.
fn folder() -> Folder {
    let folder = Folder::new("images");
    for class in ["a", "b"] {
        std::fs::create_dir_all(folder.path.join(class)).unwrap();
    }
    folder.file("a/1.png", &png(8, 8, [200, 100, 50]));
    folder.file("a/2.jpg", &jpeg(16, 24, [20, 40, 60]));
    folder.file("b/3.JPEG", &jpeg(12, 12, [250, 0, 0]));
    folder.file("b/4.png", &png(30, 20, [0, 0, 255]));
    folder.file("b/notes.txt", b"not an image");
    folder
}

fn images(list: ImageList, options: ImageOptions) -> Arc<Images> {
    Arc::new(Images::new(list, options).unwrap())
}

fn plain(size: [usize; 2]) -> ImageOptions {
    ImageOptions { mean: [0.0; 3], std: [1.0 / 255.0; 3], ..ImageOptions::new(size) }
}

/// Returns all images and labels.
fn all(images: &Images) -> (Vec<f32>, Vec<i64>) {
    let mut batch = Batch::new(images.layout());
    let samples: Vec<u64> = (0..images.sample_count()).collect();
    images.fill(&samples, &mut batch).unwrap();
    let (pixels, labels) = (batch.tensor("image").unwrap(), batch.tensor("label").unwrap());
    (pixels.to_vec().unwrap(), labels.to_vec().unwrap())
}

#[test]
fn folders_lists_and_archives_hold_the_same_images() {
    let folder = folder();
    let list = ImageList::folder(&folder.path).unwrap();
    assert_eq!(list.classes(), ["a", "b"]);
    let from_folder = all(&images(list, plain([6, 6])));
    assert_eq!(from_folder.1, [0, 0, 1, 1]);
    // One plane per colour; a JPEG only approximates its colours.
    let pixel =
        |image: usize, colour: usize, at: usize| from_folder.0[(image * 3 + colour) * 36 + at];
    assert_eq!([0, 1, 2].map(|colour| pixel(0, colour, 0)), [100.0, 50.0, 25.0]);
    assert_eq!([0, 1, 2].map(|colour| pixel(0, colour, 5)), [200.0, 100.0, 50.0]);
    for (colour, painted) in [20.0, 40.0, 60.0].into_iter().enumerate() {
        assert!((pixel(1, colour, 20) - painted).abs() <= 3.0);
    }

    let lines = "a/1.png 0\na/2.jpg 0\n\nb/3.JPEG 1\nb/4.png\t1\n";
    let lines = folder.file("list.txt", lines.as_bytes());
    let list = ImageList::file_list(&lines, &folder.path).unwrap();
    assert!(all(&images(list, plain([6, 6]))) == from_folder);

    let tar = |name: &str, files: &[&str]| {
        let path = folder.path.join(name);
        let mut command = std::process::Command::new("tar");
        command.arg("-cf").arg(&path).arg("-C").arg(&folder.path).args(files);
        assert!(command.status().unwrap().success());
        path
    };
    let shards = [tar("0.tar", &["a", "b/3.JPEG"]), tar("1.tar", &["b/4.png"])];
    let list = ImageList::tar_shards(&shards).unwrap();
    assert_eq!(list.classes(), ["a", "b"]);
    let mut labels = all(&images(list, plain([6, 6]))).1;
    labels.sort_unstable();
    assert_eq!(labels, [0, 0, 1, 1]);
    folder.file("b/4.cls", b"17\n");
    let with_class = tar("2.tar", &["b/4.png", "b/4.cls"]);
    let (pixels, labels) =
        all(&images(ImageList::tar_shards([with_class]).unwrap(), plain([6, 6])));
    assert_eq!(labels, [17]);
    assert!(pixels == from_folder.0[3 * 108..]);
}

#[test]
fn epochs_differ_threads_do_not_and_a_cursor_goes_on() {
    let folder = folder();
    let options = ImageOptions {
        random_crop: true,
        random_flip: true,
        resize: Some(8),
        seed: 5,
        ..plain([5, 5])
    };
    let run = |threads: usize, from: Option<Cursor>| {
        let list = ImageList::folder(&folder.path).unwrap();
        let images = images(list, options.clone());
        let mut batch = Batch::new(images.layout());
        let base = LoaderOptions { batch_size: 2, shuffle: true, ..LoaderOptions::default() };
        let mut loader = Loader::new(images, LoaderOptions { threads, ..base }).unwrap();
        if let Some(cursor) = from {
            loader.resume(cursor).unwrap();
        }
        let (mut seen, mut cursors) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            while loader.next(&mut batch).unwrap() {
                seen.push(batch.tensor("image").unwrap().to_vec::<f32>().unwrap());
                cursors.push(loader.cursor());
            }
            loader.next_epoch();
        }
        (seen, cursors)
    };
    let (seen, cursors) = run(0, None);
    assert_eq!(seen.len(), 6);
    assert!(run(2, None).0 == seen);
    let (rest, _) = run(1, Some(cursors[2]));
    assert!(rest[..3] == seen[3..]);
    // Random choices differ between epochs.
    let sorted = |epoch: &[Vec<f32>]| {
        let mut sums: Vec<u64> = epoch
            .iter()
            .flat_map(|it| it.chunks(75))
            .map(|image| image.iter().enumerate().map(|(at, it)| at as u64 * *it as u64).sum())
            .collect();
        sums.sort_unstable();
        sums
    };
    assert!(sorted(&seen[..2]) != sorted(&seen[2..4]) || sorted(&seen[..2]) != sorted(&seen[4..]));
}

#[test]
fn broken_images_are_errors_that_name_them() {
    let folder = folder();
    let good = png(8, 8, [1, 2, 3]);
    folder.file("a/0.png", &good[..good.len() / 2]);
    let images = images(ImageList::folder(&folder.path).unwrap(), plain([6, 6]));
    let mut batch = Batch::new(images.layout());
    let error = images.fill(&[0], &mut batch).unwrap_err().to_string();
    assert!(error.contains("a/0.png") && error.contains("PNG"), "{error}");
    assert!(images.fill(&[99], &mut batch).is_err());
    for bytes in [&b""[..], b"GIF89a", b"\x89PNG", b"\xff\xd8", &jpeg(16, 16, [9, 9, 9])[..80]] {
        assert!(decode_image(bytes).is_err());
    }
    // Any byte of a file may be wrong: the result is an error or another image, never a panic.
    for whole in [good, jpeg(16, 16, [200, 10, 10])] {
        for at in 0..whole.len() {
            let mut changed = whole.clone();
            changed[at] ^= 0x55;
            let _ = decode_image(&changed);
        }
    }
    let small = ImageOptions { resize: None, ..plain([9, 9]) };
    let small = Images::new(ImageList::folder(&folder.path).unwrap(), small).unwrap();
    let error = small.fill(&[1], &mut Batch::new(small.layout())).unwrap_err().to_string();
    assert!(error.contains("smaller than the crop"), "{error}");
    assert!(ImageList::folder(folder.path.join("a")).is_err(), "no folders of classes");
    let list = folder.file("list.txt", b"a/1.png one\n");
    let error = ImageList::file_list(&list, &folder.path).unwrap_err().to_string();
    assert!(error.contains("list.txt:1"), "{error}");
    let torn = folder.file("torn.tar", &[b'x'; 1024]);
    let error = ImageList::tar_shards([torn]).unwrap_err().to_string();
    assert!(error.contains("checksum") && error.contains("torn.tar"), "{error}");
    let list = || ImageList::folder(&folder.path).unwrap();
    assert!(Images::new(list(), ImageOptions { std: [0.0; 3], ..plain([6, 6]) }).is_err());
    assert!(Images::new(list(), ImageOptions { resize: Some(4), ..plain([6, 6]) }).is_err());
    assert!(Images::new(list(), plain([0, 6])).is_err());
}
