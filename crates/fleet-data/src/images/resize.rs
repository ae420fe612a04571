//! Resizing by a triangle filter: linear between pixels where the image grows, an average over all
//! that a new pixel covers where it shrinks. First along rows, then along columns.

use super::{Pixels, SIDE_MAX};
use fleet_base::{Error, Result};

/// Brings the shorter side to `side` and keeps the proportions.
pub fn shorter_side(pixels: Pixels, side: usize) -> Result<Pixels> {
    let (height, width) = (pixels.height, pixels.width);
    let scaled = |long: usize, short: usize| (long * side + short / 2) / short;
    let (new_height, new_width) = match height <= width {
        true => (side, scaled(width, height)),
        false => (scaled(height, width), side),
    };
    if (new_height, new_width) == (height, width) {
        return Ok(pixels);
    }
    if new_height.max(new_width) > 4 * SIDE_MAX {
        return Err(
            Error::invalid("image is too narrow to be resized").got(format!("{height}x{width}"))
        );
    }
    let rows = along_rows(&pixels, new_width);
    Ok(along_columns(&rows, new_height))
}

/// The pixels that make one new pixel: from which on, and their weights.
struct Reach {
    start: usize,
    weights: Vec<f32>,
}

fn reaches(from: usize, to: usize) -> Vec<Reach> {
    let scale = from as f32 / to as f32;
    let radius = scale.max(1.0);
    (0..to)
        .map(|new| {
            let centre = (new as f32 + 0.5) * scale;
            let start = (centre - radius).floor().max(0.0) as usize;
            let end = ((centre + radius).ceil() as usize).min(from);
            let weight = |old: usize| (1.0 - ((old as f32 + 0.5 - centre) / radius).abs()).max(0.0);
            let mut weights: Vec<f32> = (start..end).map(weight).collect();
            let sum: f32 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
            Reach { start, weights }
        })
        .collect()
}

fn along_rows(pixels: &Pixels, width: usize) -> Pixels {
    let reaches = reaches(pixels.width, width);
    let mut rgb = vec![0u8; pixels.height * width * 3];
    let rows = pixels.rgb.chunks_exact(pixels.width * 3).zip(rgb.chunks_exact_mut(width * 3));
    for (from, to) in rows {
        for (reach, to) in reaches.iter().zip(to.chunks_exact_mut(3)) {
            let mut sums = [0.0f32; 3];
            for (weight, pixel) in reach.weights.iter().zip(from[reach.start * 3..].chunks_exact(3))
            {
                sums.iter_mut().zip(pixel).for_each(|(sum, it)| *sum += weight * f32::from(*it));
            }
            to.iter_mut().zip(sums).for_each(|(to, sum)| *to = (sum + 0.5) as u8);
        }
    }
    Pixels { height: pixels.height, width, rgb }
}

fn along_columns(pixels: &Pixels, height: usize) -> Pixels {
    let line = pixels.width * 3;
    let mut rgb = vec![0u8; height * line];
    let mut sums = vec![0.0f32; line];
    for (reach, to) in reaches(pixels.height, height).iter().zip(rgb.chunks_exact_mut(line)) {
        sums.fill(0.0);
        let rows = pixels.rgb[reach.start * line..].chunks_exact(line);
        for (weight, row) in reach.weights.iter().zip(rows) {
            sums.iter_mut().zip(row).for_each(|(sum, it)| *sum += weight * f32::from(*it));
        }
        to.iter_mut().zip(&sums).for_each(|(to, sum)| *to = (sum + 0.5) as u8);
    }
    Pixels { height, width: pixels.width, rgb }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(height: usize, width: usize, value: impl Fn(usize, usize) -> u8) -> Pixels {
        let places = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
        let rgb = places.flat_map(|(row, column)| [value(row, column); 3]).collect();
        Pixels { height, width, rgb }
    }

    #[test]
    fn sizes_and_values() {
        let flat = shorter_side(grey(40, 60, |_, _| 77), 16).unwrap();
        assert_eq!((flat.height, flat.width), (16, 24));
        assert!(flat.rgb.iter().all(|it| *it == 77));
        let tall = shorter_side(grey(9, 3, |_, _| 200), 6).unwrap();
        assert_eq!((tall.height, tall.width), (18, 6));
        // A ramp stays one, in the middle, whether it grows or shrinks.
        for side in [8, 64] {
            let ramp = shorter_side(grey(32, 32, |_, column| column as u8 * 8), side).unwrap();
            for column in side / 4..3 * side / 4 {
                let expected = ((column as f32 + 0.5) * 32.0 / side as f32 - 0.5) * 8.0;
                let got = f32::from(ramp.rgb[(side / 2 * side + column) * 3]);
                assert!((got - expected).abs() <= 1.0, "{side}: {got} for {expected}");
            }
        }
        // A fine pattern becomes its mean, not a coarse pattern.
        let fine = shorter_side(grey(64, 64, |row, column| ((row + column) % 2 * 200) as u8), 8);
        assert!(fine.unwrap().rgb.iter().all(|it| it.abs_diff(100) <= 2));
        let same = grey(5, 7, |row, column| (row * 7 + column) as u8);
        assert_eq!(shorter_side(same.clone(), 5).unwrap(), same);
        assert!(shorter_side(grey(1, 9000, |_, _| 0), 64).is_err());
    }
}
