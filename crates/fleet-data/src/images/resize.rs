//! Converts decoded pixels to the floats of a batch in one pass: crops the resized image, mirrors
//! it if asked, normalises it and writes one plane per colour. Pixels outside the crop are not
//! computed.
//!
//! The filter is a triangle: linear interpolation when the image grows, and an average of all
//! covered pixels when it shrinks. Rows are mixed before columns, because rows are contiguous in
//! memory. The intermediate values stay floats.

use super::{Pixels, SIDE_MAX};
use fleet_base::{Error, Result};
use std::ops::Range;

/// Returns the height and width after the shorter side is resized to `side`, with the same aspect
/// ratio.
pub fn resized_size(pixels: &Pixels, side: usize) -> Result<[usize; 2]> {
    let (height, width) = (pixels.height, pixels.width);
    let scaled = |long: usize, short: usize| (long * side + short / 2) / short;
    let size = match height <= width {
        true => [side, scaled(width, height)],
        false => [scaled(height, width), side],
    };
    if size[0].max(size[1]) > 4 * SIDE_MAX {
        return Err(
            Error::invalid("image is too narrow to resize").got(format!("{height}x{width}"))
        );
    }
    Ok(size)
}

/// A crop of a resized image, and the normalisation of its values.
pub struct Crop {
    /// Height and width of the whole resized image.
    pub resized: [usize; 2],
    /// Top left corner of the crop in the resized image.
    pub corner: [usize; 2],
    pub size: [usize; 2],
    pub flip: bool,
    /// A byte of a colour becomes byte * scale + shift.
    pub scale: [f32; 3],
    pub shift: [f32; 3],
}

impl Crop {
    /// Writes three planes of the crop's size.
    pub fn write(&self, pixels: &Pixels, out: &mut [f32]) {
        let [height, width] = self.size;
        let reach = |axis: usize, from: usize| {
            let start = self.corner[axis];
            FilterTaps::new(from, self.resized[axis], start..start + self.size[axis])
        };
        let same = self.resized == [pixels.height, pixels.width];
        let (rows, columns) = (reach(0, pixels.height), reach(1, pixels.width));
        let used = columns.used();
        let planes = out.split_at_mut(height * width);
        let (red, (green, blue)) = (planes.0, planes.1.split_at_mut(height * width));
        // One value more than the pixels have, because each pixel is read as four floats.
        let mut line = vec![0.0f32; 3 * used.len() + 1];
        for row in 0..height {
            let own = row * width..(row + 1) * width;
            let planes = [&mut red[own.clone()], &mut green[own.clone()], &mut blue[own]];
            if same {
                let start = ((self.corner[0] + row) * pixels.width + self.corner[1]) * 3;
                let from = pixels.rgb[start..start + width * 3].chunks_exact(3);
                self.write_row(
                    planes,
                    from.map(|it| [0, 1, 2].map(|colour| f32::from(it[colour]))),
                );
            } else {
                mix_rows(pixels, &rows, row, used.clone(), &mut line);
                self.write_row(
                    planes,
                    (0..width).map(|column| columns.mix(column, used.start, &line)),
                );
            }
        }
    }

    /// Normalises and writes one row of pixels.
    fn write_row(&self, planes: [&mut [f32]; 3], pixels: impl Iterator<Item = [f32; 3]>) {
        let [red, green, blue] = planes;
        let last = red.len() - 1;
        for (column, pixel) in pixels.enumerate() {
            let at = if self.flip { last - column } else { column };
            red[at] = pixel[0] * self.scale[0] + self.shift[0];
            green[at] = pixel[1] * self.scale[1] + self.shift[1];
            blue[at] = pixel[2] * self.scale[2] + self.shift[2];
        }
    }
}

/// The source pixels and their weights for each new pixel along one axis: the first source pixel,
/// and `taps` weights.
struct FilterTaps {
    starts: Vec<usize>,
    weights: Vec<f32>,
    taps: usize,
}

impl FilterTaps {
    /// Computes the weights of the new pixels `part` when `from` pixels become `to`.
    fn new(from: usize, to: usize, part: Range<usize>) -> FilterTaps {
        let scale = from as f32 / to as f32;
        let radius = scale.max(1.0);
        let taps = ((2.0 * radius).ceil() as usize + 1).min(from);
        let mut filter = FilterTaps { starts: Vec::new(), weights: Vec::new(), taps };
        for new in part {
            let centre = (new as f32 + 0.5) * scale;
            let first = ((centre - radius).floor().max(0.0) as usize).min(from - taps);
            let weight = |old: usize| (1.0 - ((old as f32 + 0.5 - centre) / radius).abs()).max(0.0);
            let sum: f32 = (first..first + taps).map(weight).sum();
            filter.starts.push(first);
            filter.weights.extend((first..first + taps).map(|old| weight(old) / sum));
        }
        filter
    }

    /// Returns the range of source pixels that the new pixels need.
    fn used(&self) -> Range<usize> {
        let first = self.starts.first().copied().unwrap_or(0);
        first..self.starts.last().map_or(first, |last| last + self.taps)
    }

    fn weights(&self, new: usize) -> &[f32] {
        &self.weights[new * self.taps..(new + 1) * self.taps]
    }

    /// Computes a new pixel from a line of pixels; `line_start` is the index of the line's first
    /// pixel.
    fn mix(&self, new: usize, line_start: usize, line: &[f32]) -> [f32; 3] {
        let start = 3 * (self.starts[new] - line_start);
        let mut sums = [0.0f32; 4];
        for (tap, weight) in self.weights(new).iter().enumerate() {
            // The fourth value belongs to the next pixel and is ignored.
            let from = &line[start + 3 * tap..][..4];
            for (sum, value) in sums.iter_mut().zip(from) {
                *sum += weight * value;
            }
        }
        [sums[0], sums[1], sums[2]]
    }
}

/// Computes the columns `used` of one new row.
fn mix_rows(pixels: &Pixels, rows: &FilterTaps, row: usize, used: Range<usize>, line: &mut [f32]) {
    let line = &mut line[..3 * used.len()];
    line.fill(0.0);
    for (tap, weight) in rows.weights(row).iter().enumerate().filter(|(_, it)| **it > 0.0) {
        let start = (rows.starts[row] + tap) * pixels.width + used.start;
        let from = &pixels.rgb[3 * start..3 * (start + used.len())];
        line.iter_mut().zip(from).for_each(|(sum, it)| *sum += weight * f32::from(*it));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(height: usize, width: usize, value: impl Fn(usize, usize) -> u8) -> Pixels {
        let places = (0..height).flat_map(|row| (0..width).map(move |column| (row, column)));
        let rgb = places.flat_map(|(row, column)| [value(row, column); 3]).collect();
        Pixels { height, width, rgb }
    }

    /// Returns the red plane of a crop, in byte values.
    fn part(pixels: &Pixels, side: usize, corner: [usize; 2], size: [usize; 2]) -> Vec<f32> {
        let resized = resized_size(pixels, side).unwrap();
        let (scale, shift) = ([1.0; 3], [0.0; 3]);
        let part = Crop { resized, corner, size, flip: false, scale, shift };
        let mut out = vec![f32::NAN; 3 * size[0] * size[1]];
        part.write(pixels, &mut out);
        let planes: Vec<&[f32]> = out.chunks(size[0] * size[1]).collect();
        assert!(planes[0] == planes[1] && planes[0] == planes[2]);
        planes[0].to_vec()
    }

    #[test]
    fn sizes_and_values() {
        let flat = grey(40, 60, |_, _| 77);
        assert_eq!(resized_size(&flat, 16).unwrap(), [16, 24]);
        assert!(part(&flat, 16, [0, 0], [16, 24]).iter().all(|it| (it - 77.0).abs() < 1e-4));
        assert_eq!(resized_size(&grey(9, 3, |_, _| 200), 6).unwrap(), [18, 6]);
        assert!(resized_size(&grey(1, 9000, |_, _| 0), 64).is_err());
        // In its middle, a linear ramp stays linear at any scale.
        for side in [8, 64] {
            let ramp = grey(32, 32, |_, column| column as u8 * 8);
            let ramp = part(&ramp, side, [0, 0], [side, side]);
            for column in side / 4..3 * side / 4 {
                let expected = ((column as f32 + 0.5) * 32.0 / side as f32 - 0.5) * 8.0;
                let got = ramp[side / 2 * side + column];
                assert!((got - expected).abs() <= 0.01, "{side}: {got} for {expected}");
            }
        }
        // A fine pattern becomes its mean, not a coarse pattern (no aliasing).
        let fine = grey(64, 64, |row, column| ((row + column) % 2 * 200) as u8);
        assert!(part(&fine, 8, [0, 0], [8, 8]).iter().all(|it| (it - 100.0).abs() <= 2.0));
        let same = grey(5, 7, |row, column| (row * 7 + column) as u8);
        assert!(part(&same, 5, [0, 0], [5, 7]).iter().enumerate().all(|(at, it)| *it == at as f32));
        let one = part(&grey(1, 1, |_, _| 9), 4, [0, 0], [4, 4]);
        assert!(one.iter().all(|it| *it == 9.0));
    }

    #[test]
    fn a_part_is_that_part_of_the_whole() {
        let noise = grey(37, 53, |row, column| (row * 7919 + column * 104_729) as u8);
        for side in [20, 37, 64] {
            let [height, width] = resized_size(&noise, side).unwrap();
            let whole = part(&noise, side, [0, 0], [height, width]);
            let (corner, size) = ([3, 5], [side - 4, side - 6]);
            let cut = part(&noise, side, corner, size);
            for row in 0..size[0] {
                let line = &whole[(corner[0] + row) * width + corner[1]..][..size[1]];
                assert!(cut[row * size[1]..][..size[1]] == *line, "{side}, row {row}");
            }
        }
    }

    #[test]
    fn mirrored_and_normalised() {
        let ramp = grey(4, 6, |_, column| column as u8);
        let part = |flip| {
            let [resized, size] = [[4, 6], [2, 3]];
            let (scale, shift) = ([2.0, 3.0, 4.0], [1.0, 0.0, -1.0]);
            let mut out = vec![0.0; 18];
            Crop { resized, corner: [1, 2], size, flip, scale, shift }.write(&ramp, &mut out);
            out
        };
        assert_eq!(part(false)[..6], [5.0, 7.0, 9.0, 5.0, 7.0, 9.0]);
        assert_eq!(part(true)[..3], [9.0, 7.0, 5.0]);
        assert_eq!(part(true)[6..9], [12.0, 9.0, 6.0]);
        assert_eq!(part(false)[12..15], [7.0, 11.0, 15.0]);
    }
}
