//! The gradient of the filter: a sum over pixels for every tap and input channel.
//!
//! The register tile has six (tap, input channel) rows and 64 output channels, and runs over
//! pixels. x is broadcast from a copy of the input rows with zeros around them, and dy is packed
//! into panels. Both are in scratch memory for one block of pixels at a time. The sum is split in
//! three ways, all by shape: slices of the pixels, ranges of the rows, ranges of the panels. The
//! first slice adds to the gradient, and the others add to scratch memory and are added in order.
//! Small gradients are sliced. Large ones are split along the side whose repeated copies cost
//! least.

use super::window::Source;
use super::{Backward, Conv2d, depthwise};
use crate::micro::{self, Finish, Isa, LINE, PANEL, Prefetch, TILE_ROWS, Tile};
use crate::pool::{Pool, Shareable};
use std::ops::Range;

/// Number of pixels in a block. Each block adds to the gradient once, which costs as much as 12
/// pixels.
const PIXELS: usize = 392;

/// Target number of tasks.
const TASKS: usize = 8;

/// Number of floats in a page of memory.
const PAGE: usize = 1024;

/// Minimum number of channels in a part.
const CUT_CHANNELS_MIN: usize = 64;

/// Padding of each pixel of the copy, in floats, so that pixels do not all map to the same sets of
/// L1.
const SKEW: usize = 16;

/// The split of the sum; it depends on the shape alone.
#[derive(Clone, Copy)]
struct WeightsSplit {
    slices: usize,
    /// Number of lines (rows of the output, of all images) in a slice and in a block.
    slice_lines: usize,
    block_lines: usize,
    /// Number of input channels and panels in a task (of one group).
    channels: usize,
    channel_parts: usize,
    panels: usize,
    panel_parts: usize,
}

impl WeightsSplit {
    fn new(conv: &Conv2d) -> WeightsSplit {
        let lines = (conv.n * conv.out_h()).max(1);
        let (channels, panels) = (conv.group_in(), conv.panels());
        let taps = conv.kh * conv.kw;
        let len = (conv.groups * taps * channels * panels * PANEL).max(1);
        let (slices, channel_parts, panel_parts) = cheapest_parts(conv, lines, len);
        let panels_in_task = panels.div_ceil(panel_parts);
        let channels_in_task = channels.div_ceil(channel_parts);
        let slice_lines = lines.div_ceil(slices);
        WeightsSplit {
            slices: lines.div_ceil(slice_lines),
            slice_lines,
            block_lines: PIXELS.div_ceil(conv.out_w().max(1)).min(slice_lines),
            channels: channels_in_task,
            channel_parts: channels.div_ceil(channels_in_task),
            panels: panels_in_task,
            panel_parts: panels.div_ceil(panels_in_task),
        }
    }

    fn tasks(&self, conv: &Conv2d) -> usize {
        self.slices * conv.groups * self.channel_parts * self.panel_parts
    }
}

/// Returns the numbers of slices of the pixels, of parts of the input channels, and of parts of the
/// panels. They give at least [`TASKS`] tasks where the shape allows, with the least memory
/// traffic. x is copied once per part of the panels; reading it again in place costs a quarter of
/// that. dy is copied once per part of the channels. A slice's sums are written, read and added.
fn cheapest_parts(conv: &Conv2d, lines: usize, len: usize) -> (usize, usize, usize) {
    let (panels, wanted) = (conv.panels(), TASKS.div_ceil(conv.groups));
    let channels_max = (conv.group_in() / CUT_CHANNELS_MIN).max(1);
    let (x, dy) = (conv.input_len() as f64, conv.output_len() as f64);
    let x = if is_in_place(conv) { x / 4.0 } else { x };
    let mut best = (1, 1, 1);
    let mut least = (usize::MAX, f64::INFINITY);
    for slices in [1, 2, 4, 8] {
        for panel_parts in 1..=wanted.min(panels) {
            let channel_parts = wanted.div_ceil(slices * panel_parts).min(channels_max);
            let missing = wanted.saturating_sub(slices * panel_parts * channel_parts);
            let moved = 3.0 * ((slices - 1) * len) as f64
                + panel_parts as f64 * x
                + channel_parts as f64 * dy;
            if slices <= lines && (missing, moved) < least {
                (best, least) = ((slices, channel_parts, panel_parts), (missing, moved));
            }
        }
    }
    best
}

/// Whether x is read in place. That requires that a window takes each pixel once, in order, and
/// that pixels do not all start on page boundaries. Otherwise they would all map to the same sets
/// of L1, and each would need a TLB entry.
fn is_in_place(conv: &Conv2d) -> bool {
    let takes_all = conv.kh * conv.kw == 1 && conv.stride == [1, 1] && conv.pad == [[0, 0]; 2];
    takes_all && !conv.c_in.is_multiple_of(PAGE)
}

/// The layout of x in scratch memory, for one block of lines.
#[derive(Clone, Copy)]
struct CopyLayout {
    /// Number of floats in a pixel, and of pixels in a row.
    pixel: usize,
    width: usize,
    /// Number of rows for the lines of a block: all that the window needs, or one row per line.
    rows_max: usize,
    /// Whether only the pixels of a 1 x 1 window are copied.
    sampled: bool,
    /// Whether these are all pixels, in order, so that x is read in place.
    in_place: bool,
    /// Whether the panels of dy are read in place: there is only one, without other data between
    /// its rows.
    dy_in_place: bool,
}

impl CopyLayout {
    fn new(conv: &Conv2d, split: &WeightsSplit) -> CopyLayout {
        let channels = split.channels;
        let pixel = if channels.is_multiple_of(PANEL) { channels + SKEW } else { channels };
        let sampled = conv.kh * conv.kw == 1;
        let in_place = is_in_place(conv);
        let dy_in_place = conv.c_out == PANEL && conv.groups == 1;
        if sampled {
            let pixel = if in_place { conv.c_in } else { pixel };
            let rows_max = if in_place { 0 } else { split.block_lines };
            return CopyLayout {
                pixel,
                width: conv.out_w(),
                rows_max,
                sampled,
                in_place,
                dy_in_place,
            };
        }
        let width = (conv.out_w() - 1) * conv.stride[1] + (conv.kw - 1) * conv.dilation[1] + 1;
        // In a block that spans several images, each image needs extra rows for the height of a
        // window.
        let images = (split.block_lines + conv.out_h() - 2) / conv.out_h() + 1;
        let window = (conv.kh - 1) * conv.dilation[0] + 1;
        let rows_max = split.block_lines * conv.stride[0] + images * window;
        CopyLayout { pixel, width, rows_max, sampled, in_place, dy_in_place }
    }

    fn len(&self) -> usize {
        (self.rows_max * self.width * self.pixel).div_ceil(LINE) * LINE
    }
}

/// Returns the lengths of the parts of scratch memory, in floats: x and dy of each thread, and the
/// sums of the slices.
fn parts(conv: &Conv2d, split: &WeightsSplit) -> [usize; 3] {
    let copied = CopyLayout::new(conv, split);
    let dy = split.panels * split.block_lines * conv.out_w() * PANEL;
    [copied.len(), dy, (split.slices - 1) * conv.filter_len().div_ceil(LINE) * LINE]
}

impl Conv2d {
    /// Returns the length of the scratch memory of [`Conv2d::backward_weights`] on a pool of
    /// `threads`, in floats.
    pub fn backward_weights_scratch_len(&self, threads: usize) -> usize {
        if self.is_depthwise() {
            return depthwise::backward_weights_scratch_len(self);
        }
        if self.output_len() == 0 {
            return 0;
        }
        let [x, dy, sums] = parts(self, &WeightsSplit::new(self));
        LINE + threads * (x + dy) + sums
    }

    /// Computes `dfilter = beta * dfilter + gradient`, in the packed layout of the filter.
    ///
    /// # Panics
    /// If the shape does not pass [`Conv2d::check`], or a slice is too short.
    pub fn backward_weights(
        &self,
        pool: &Pool,
        x: &[f32],
        dy: &[f32],
        dfilter: &mut [f32],
        scratch: &mut [f32],
        options: Backward,
    ) {
        self.hold(x.len(), dfilter.len(), dy.len());
        let threads = pool.threads();
        assert!(
            scratch.len() >= self.backward_weights_scratch_len(threads),
            "conv: scratch is too short"
        );
        let dfilter = &mut dfilter[..self.filter_len()];
        if self.output_len() == 0 {
            match options.beta == 0.0 {
                true => dfilter.fill(0.0),
                false => dfilter.iter_mut().for_each(|value| *value *= options.beta),
            }
            return;
        }
        let isa = options.isa.unwrap_or(Isa::best()).or_best_available();
        if self.is_depthwise() {
            depthwise::backward_weights(self, isa, pool, x, dy, dfilter, scratch, options.beta);
            return;
        }
        let split = WeightsSplit::new(self);
        let [x_len, dy_len, sums_len] = parts(self, &split);
        let (own, sums) = micro::cut_aligned(scratch, threads * (x_len + dy_len));
        let (own, sums) = (Shareable::new(own), Shareable::new(&mut sums[..sums_len]));
        let gradient = Shareable::new(dfilter);
        let copied = CopyLayout::new(self, &split);
        let call = Call { conv: self, split, copied, isa, x, dy, beta: options.beta };
        let slice_len = self.filter_len().div_ceil(LINE) * LINE;
        pool.run_with_worker(split.tasks(self), |task, worker| {
            let own = own.ptr().wrapping_add(worker * (x_len + dy_len));
            let slice = task % split.slices;
            let target = match slice {
                0 => gradient.ptr(),
                _ => sums.ptr().wrapping_add((slice - 1) * slice_len),
            };
            call.task(task, target, own, own.wrapping_add(x_len));
        });
        if split.slices > 1 {
            pool.run_ranges(self.filter_len(), SUM_GRAIN, |range| {
                // SAFETY: each task adds its own range.
                let total = unsafe { gradient.slice(range.start, range.len()) };
                for slice in 1..split.slices {
                    let at = (slice - 1) * slice_len + range.start;
                    // SAFETY: the slices' sums are only read now.
                    let part = unsafe { &*sums.slice(at, range.len()) };
                    for (total, part) in total.iter_mut().zip(part) {
                        *total += part;
                    }
                }
            });
        }
    }
}

/// Number of floats that one task of the last step adds.
const SUM_GRAIN: usize = 8192;

/// One call: the state that tasks share.
struct Call<'a> {
    conv: &'a Conv2d,
    split: WeightsSplit,
    copied: CopyLayout,
    isa: Isa,
    x: &'a [f32],
    dy: &'a [f32],
    beta: f32,
}

impl Call<'_> {
    /// Computes one slice of the pixels, for some input channels and panels of one group.
    fn task(&self, task: usize, target: *mut f32, x: *mut f32, dy: *mut f32) {
        let (conv, split) = (self.conv, &self.split);
        let (rest, slice) = (task / split.slices, task % split.slices);
        let (rest, channel_part) = (rest / split.channel_parts, rest % split.channel_parts);
        let (group, panel_part) = (rest / split.panel_parts, rest % split.panel_parts);
        let channels = channel_part * split.channels;
        let panels = panel_part * split.panels;
        let part = Part {
            group,
            channels: channels..(channels + split.channels).min(conv.group_in()),
            panels: panels..(panels + split.panels).min(conv.panels()),
        };
        let all = conv.n * conv.out_h();
        let lines = slice * split.slice_lines..((slice + 1) * split.slice_lines).min(all);
        let beta = if slice == 0 { self.beta } else { 0.0 };
        for first in lines.clone().step_by(split.block_lines) {
            let block = first..(first + split.block_lines).min(lines.end);
            let next = block.end..(block.end + split.block_lines).min(lines.end);
            let (x, dy) = (self.load_x(&part, &block, x), self.load_dy(&part, &block, dy));
            let prefetch = self.prefetch(&part, &next);
            // A block has a few long lines or one run of pixels, so there is almost always one
            // piece.
            let most = if self.copied.sampled { block.len() } else { SEGMENTS_MAX };
            for start in block.clone().step_by(most) {
                let piece = start..(start + most).min(block.end);
                let beta = if start == lines.start { beta } else { 1.0 };
                self.tiles(&part, &block, &piece, beta, target, x, dy, prefetch);
            }
        }
    }

    /// Returns the memory of x and of dy that the next block will read.
    fn prefetch(&self, part: &Part, next: &Range<usize>) -> [PrefetchRegion; 2] {
        if next.is_empty() {
            return [PrefetchRegion { first: self.x.as_ptr(), pieces: 0, len: 0, pitch: 0 }; 2];
        }
        let (conv, height) = (self.conv, self.conv.out_h());
        let input_row = |line: usize, tap: usize| {
            let row = (line % height * conv.stride[0] + tap).saturating_sub(conv.pad[0][0]);
            line / height * conv.h + row.min(conv.h - 1)
        };
        let first = input_row(next.start, 0);
        let rows = input_row(next.end - 1, (conv.kh - 1) * conv.dilation[0]) + 1 - first;
        let x_at = first * conv.w * conv.c_in + part.group * conv.group_in() + part.channels.start;
        let x = self.x.as_ptr().wrapping_add(x_at);
        let dy_at = next.start * conv.out_w() * conv.c_out
            + part.group * conv.group_out()
            + part.panels.start * PANEL;
        let dy = self.dy.as_ptr().wrapping_add(dy_at);
        let columns = part.panels.end * PANEL;
        let columns = columns.min(conv.group_out()) - part.panels.start * PANEL;
        let x_len = part.channels.len();
        [
            PrefetchRegion { first: x, pieces: rows * conv.w, len: x_len, pitch: conv.c_in },
            PrefetchRegion {
                first: dy,
                pieces: next.len() * conv.out_w(),
                len: columns,
                pitch: conv.c_out,
            },
        ]
    }

    fn tiles(
        &self,
        part: &Part,
        block: &Range<usize>,
        piece: &Range<usize>,
        beta: f32,
        target: *mut f32,
        x: *const f32,
        dy: *const f32,
        prefetch: [PrefetchRegion; 2],
    ) {
        let (conv, copied) = (self.conv, &self.copied);
        let width = conv.out_w();
        let (segments, count, len) = self.segments(block, piece);
        let a_step = if copied.sampled { copied.pixel } else { conv.stride[1] * copied.pixel };
        let rows = conv.kh * conv.kw * part.channels.len();
        let tiles = rows.div_ceil(TILE_ROWS) * part.panels.len();
        let mut tiles_done = 0;
        let all_rows = conv.kh * conv.kw * conv.group_in();
        for panel in part.panels.clone() {
            let packed = (panel - part.panels.start) * block.len() + (piece.start - block.start);
            let out = (part.group * conv.panels() + panel) * all_rows * PANEL;
            let mut tile = Tile {
                a: [x; TILE_ROWS],
                a_step,
                segments: segments.as_ptr(),
                segment_count: count,
                segment_len: len,
                b: dy.wrapping_add(packed * width * PANEL),
                b_step: PANEL,
                c: [target; TILE_ROWS],
                rows: 0,
                cols: PANEL,
                prefetch: Prefetch::none(x),
                finish: Finish { beta, ..Finish::STORE },
            };
            let mut flush = |tile: &mut Tile| {
                // Tiles alternate between prefetching x and prefetching dy.
                let turn = (tiles_done / 2, tiles.div_ceil(2));
                tile.prefetch = prefetch[tiles_done % 2].prefetch(turn, count * len);
                tiles_done += 1;
                // SAFETY: x and dy are in scratch memory for this block. The packed gradient has 64
                // columns in every panel, and no other task writes these rows of it.
                unsafe { micro::tile(self.isa, tile) };
                tile.rows = 0;
            };
            for kh in 0..conv.kh {
                for kw in 0..conv.kw {
                    let tap = (kh * conv.dilation[0] * copied.width + kw * conv.dilation[1])
                        * copied.pixel;
                    let row = (kh * conv.kw + kw) * conv.group_in() + part.channels.start;
                    for channel in 0..part.channels.len() {
                        tile.a[tile.rows] = x.wrapping_add(tap + channel);
                        tile.c[tile.rows] = target.wrapping_add(out + (row + channel) * PANEL);
                        tile.rows += 1;
                        if tile.rows == TILE_ROWS {
                            flush(&mut tile);
                        }
                    }
                }
            }
            if tile.rows > 0 {
                flush(&mut tile);
            }
        }
    }

    /// Returns where the pixels of a piece start in the copy of its block, and the number and the
    /// length of these segments.
    fn segments(
        &self,
        block: &Range<usize>,
        piece: &Range<usize>,
    ) -> ([isize; SEGMENTS_MAX], usize, usize) {
        let (copied, width) = (&self.copied, self.conv.out_w());
        let mut segments = [0isize; SEGMENTS_MAX];
        if copied.sampled {
            segments[0] = ((piece.start - block.start) * width * copied.pixel) as isize;
            return (segments, 1, piece.len() * width);
        }
        for (segment, line) in segments.iter_mut().zip(piece.clone()) {
            *segment = (self.copied_row(block, line) * copied.width * copied.pixel) as isize;
        }
        (segments, piece.len(), width)
    }

    /// Returns the row of the copy at which the window of a line starts.
    fn copied_row(&self, block: &Range<usize>, line: usize) -> usize {
        let conv = self.conv;
        let height = conv.out_h();
        let (image, first) = (line / height, block.start / height);
        let inside = if image == first { line - block.start } else { line % height };
        self.rows_before(block, image - first) + inside * conv.stride[0]
    }

    /// Returns the number of rows of the copy for the first `images` images of a block.
    fn rows_before(&self, block: &Range<usize>, images: usize) -> usize {
        let conv = self.conv;
        let window = (conv.kh - 1) * conv.dilation[0] + 1;
        let span = |lines: usize| (lines - 1) * conv.stride[0] + window;
        match images {
            0 => 0,
            _ => {
                span(conv.out_h() - block.start % conv.out_h()) + (images - 1) * span(conv.out_h())
            }
        }
    }

    /// Returns the address of x for a block: in place, or `copy`, which is filled first.
    fn load_x(&self, part: &Part, block: &Range<usize>, copy: *mut f32) -> *const f32 {
        if !self.copied.in_place {
            self.copy_x(part, block, copy);
            return copy;
        }
        let at = block.start * self.conv.w * self.conv.c_in;
        let channel = part.group * self.conv.group_in() + part.channels.start;
        self.x.as_ptr().wrapping_add(at + channel)
    }

    /// Returns the address of the panels of dy for a block: in place, or `packed`, which is filled
    /// first.
    fn load_dy(&self, part: &Part, block: &Range<usize>, packed: *mut f32) -> *const f32 {
        if !self.copied.dy_in_place {
            self.pack_dy(part, block, packed);
            return packed;
        }
        self.dy.as_ptr().wrapping_add(block.start * self.conv.out_w() * PANEL)
    }

    /// Copies the input rows of a block, with zeros outside the input.
    fn copy_x(&self, part: &Part, block: &Range<usize>, target: *mut f32) {
        let (conv, copied) = (self.conv, &self.copied);
        let source = Source {
            x: self.x.as_ptr(),
            height: conv.h,
            width: conv.w,
            pixel: conv.c_in,
            first_channel: part.group * conv.group_in() + part.channels.start,
            channels: part.channels.len(),
        };
        let (top, left) = (conv.pad[0][0] as isize, conv.pad[1][0] as isize);
        let height = conv.out_h();
        if copied.sampled {
            for (i, line) in block.clone().enumerate() {
                let (image, row) = (line / height, (line % height * conv.stride[0]) as isize - top);
                let to = target.wrapping_add(i * copied.width * copied.pixel);
                // SAFETY: the scratch memory was sized for these lines.
                unsafe { self.sample_row(&source, image, row, to) };
            }
            return;
        }
        let window = (conv.kh - 1) * conv.dilation[0] + 1;
        let (first, last) = (block.start / height, (block.end - 1) / height);
        for image in first..=last {
            let begin = if image == first { block.start % height } else { 0 };
            let end = if image == last { (block.end - 1) % height + 1 } else { height };
            let rows = (end - begin - 1) * conv.stride[0] + window;
            let at = self.rows_before(block, image - first);
            for r in 0..rows {
                let row = (begin * conv.stride[0] + r) as isize - top;
                let to = target.wrapping_add((at + r) * copied.width * copied.pixel);
                // SAFETY: the scratch memory was sized for these rows.
                unsafe { source.copy_row(image, row, -left, copied.width, copied.pixel, to) };
            }
        }
    }

    /// Copies every stride-th pixel of a row.
    ///
    /// # Safety
    /// The image exists, and the target has space for a line.
    unsafe fn sample_row(&self, source: &Source, image: usize, row: isize, target: *mut f32) {
        let (conv, copied) = (self.conv, &self.copied);
        let left = conv.pad[1][0] as isize;
        if conv.stride[1] == 1 {
            // SAFETY: promised by the caller.
            unsafe { source.copy_row(image, row, -left, copied.width, copied.pixel, target) };
            return;
        }
        for column in 0..copied.width {
            let from = (column * conv.stride[1]) as isize - left;
            // SAFETY: promised by the caller.
            unsafe {
                let to = target.add(column * copied.pixel);
                source.copy_row(image, row, from, 1, copied.pixel, to);
            }
        }
    }

    /// Packs the pixels of a block, panel by panel.
    fn pack_dy(&self, part: &Part, block: &Range<usize>, target: *mut f32) {
        let conv = self.conv;
        let width = conv.out_w();
        let pixels = block.len() * width;
        for panel in part.panels.clone() {
            let column = panel * PANEL;
            let cols = (conv.group_out() - column).min(PANEL);
            let at = block.start * width * conv.c_out + part.group * conv.group_out() + column;
            let to = target.wrapping_add((panel - part.panels.start) * pixels * PANEL);
            // SAFETY: dy holds the block's lines, and the scratch memory was sized for them.
            unsafe {
                let from = self.dy.as_ptr().add(at);
                micro::copy_panel(self.isa, from, conv.c_out, pixels, cols, to);
            }
        }
    }
}

/// Pieces of memory at equal distances that will be read soon.
#[derive(Clone, Copy)]
struct PrefetchRegion {
    first: *const f32,
    pieces: usize,
    len: usize,
    pitch: usize,
}

impl PrefetchRegion {
    /// Returns the prefetch of one of `tiles` tiles: an equal part if the pieces are contiguous,
    /// else one piece.
    fn prefetch(&self, (tile, tiles): (usize, usize), terms: usize) -> Prefetch {
        if self.pitch == self.len {
            return Prefetch::part(self.first, self.pieces * self.len, tile, tiles, terms);
        }
        match tile < self.pieces {
            true => {
                Prefetch::part(self.first.wrapping_add(tile * self.pitch), self.len, 0, 1, terms)
            }
            false => Prefetch::none(self.first),
        }
    }
}

/// The part of the gradient that a task computes.
struct Part {
    group: usize,
    channels: Range<usize>,
    panels: Range<usize>,
}

/// Limit on the segments of a tile.
const SEGMENTS_MAX: usize = 64;
