//! The gradient of the filter: for every tap and input channel, a sum over pixels.
//!
//! The register tile has six (tap, input channel) rows, 64 output channels, and runs over pixels: x
//! is broadcast from a copy of the input rows with zeros around them, dy is packed into panels, and
//! both lie in scratch for a block of pixels at a time. The sum is dealt out three ways, all by
//! shape: slices of the pixels (the first adds into the gradient, the others into scratch, and are
//! added in order), ranges of the rows, ranges of the panels. Small gradients are sliced; large
//! ones are cut along the side whose repeated copies cost least.

use super::window::Source;
use super::{Backward, Conv2d, depthwise};
use crate::micro::{self, Ahead, Finish, Isa, LINE, PANEL, TILE_ROWS, Tile};
use crate::pool::{Pool, Shareable};
use std::ops::Range;

/// Pixels of a block: each block adds to the gradient once, which costs as much as 12 pixels.
const PIXELS: usize = 392;

/// Pieces that the work is cut into.
const TASKS: usize = 8;

/// Floats of a page of memory.
const PAGE: usize = 1024;

/// Channels of a part at least.
const CUT_CHANNELS_MIN: usize = 64;

/// Floats between the pixels of the copy beyond their channels, so that they do not all fall on the
/// same sets of L1.
const SKEW: usize = 16;

/// How the sum is cut; a function of the shape alone.
#[derive(Clone, Copy)]
struct Cut {
    slices: usize,
    /// Lines (rows of the output, of all images) of a slice and of a block.
    slice_lines: usize,
    block_lines: usize,
    /// Input channels and panels of a task (of one group).
    channels: usize,
    channel_parts: usize,
    panels: usize,
    panel_parts: usize,
}

impl Cut {
    fn new(conv: &Conv2d) -> Cut {
        let lines = (conv.n * conv.out_h()).max(1);
        let (channels, panels) = (conv.group_in(), conv.panels());
        let taps = conv.kh * conv.kw;
        let len = (conv.groups * taps * channels * panels * PANEL).max(1);
        let (slices, channel_parts, panel_parts) = cheapest_parts(conv, lines, len);
        let panels_in_task = panels.div_ceil(panel_parts);
        let channels_in_task = channels.div_ceil(channel_parts);
        let slice_lines = lines.div_ceil(slices);
        Cut {
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

/// Slices of the pixels, parts of the input channels and of the panels: at least [`TASKS`] pieces
/// where the shape allows, and of these the way that moves the least. x is copied once a part of
/// the panels (reading it in place again costs a quarter), dy once a part of the channels, and a
/// slice's sums are written, read and added.
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

/// Whether x is read where it is: a window takes each pixel once, in order, and pixels do not each
/// begin a page (then all of them fall on the same sets of L1, and each needs an entry of the TLB).
fn is_in_place(conv: &Conv2d) -> bool {
    let takes_all = conv.kh * conv.kw == 1 && conv.stride == [1, 1] && conv.pad == [[0, 0]; 2];
    takes_all && !conv.c_in.is_multiple_of(PAGE)
}

/// The copy of x in scratch, for one block of lines.
#[derive(Clone, Copy)]
struct Copied {
    /// Floats of a pixel, and pixels of a row.
    pixel: usize,
    width: usize,
    /// Rows for each line of a block: all that the window needs, or the lines' own rows.
    rows_max: usize,
    /// Only the pixels that a 1 x 1 window takes are copied.
    sampled: bool,
    /// Those are all pixels, in order: x is read where it is.
    in_place: bool,
    /// The panels of dy are read where they are: there is one, and nothing beside it.
    dy_in_place: bool,
}

impl Copied {
    fn new(conv: &Conv2d, cut: &Cut) -> Copied {
        let channels = cut.channels;
        let pixel = if channels.is_multiple_of(PANEL) { channels + SKEW } else { channels };
        let sampled = conv.kh * conv.kw == 1;
        let in_place = is_in_place(conv);
        let dy_in_place = conv.c_out == PANEL && conv.groups == 1;
        if sampled {
            let pixel = if in_place { conv.c_in } else { pixel };
            let rows_max = if in_place { 0 } else { cut.block_lines };
            return Copied { pixel, width: conv.out_w(), rows_max, sampled, in_place, dy_in_place };
        }
        let width = (conv.out_w() - 1) * conv.stride[1] + (conv.kw - 1) * conv.dilation[1] + 1;
        // A block that crosses images has a window's height more rows in each.
        let images = (cut.block_lines + conv.out_h() - 2) / conv.out_h() + 1;
        let window = (conv.kh - 1) * conv.dilation[0] + 1;
        let rows_max = cut.block_lines * conv.stride[0] + images * window;
        Copied { pixel, width, rows_max, sampled, in_place, dy_in_place }
    }

    fn len(&self) -> usize {
        (self.rows_max * self.width * self.pixel).div_ceil(LINE) * LINE
    }
}

/// Floats of the scratch: each thread's x and dy, its row offsets, and the slices' sums.
fn parts(conv: &Conv2d, cut: &Cut) -> [usize; 3] {
    let copied = Copied::new(conv, cut);
    let dy = cut.panels * cut.block_lines * conv.out_w() * PANEL;
    [copied.len(), dy, (cut.slices - 1) * conv.filter_len().div_ceil(LINE) * LINE]
}

impl Conv2d {
    pub fn backward_weights_scratch_len(&self, threads: usize) -> usize {
        if self.is_depthwise() {
            return depthwise::backward_weights_scratch_len(self);
        }
        if self.output_len() == 0 {
            return 0;
        }
        let [x, dy, sums] = parts(self, &Cut::new(self));
        LINE + threads * (x + dy) + sums
    }

    /// `dfilter = beta * dfilter + gradient`, packed as the filter is.
    ///
    /// # Panics
    /// If the shape does not pass [`Conv2d::check`] or a slice is too short.
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
        assert!(scratch.len() >= self.backward_weights_scratch_len(threads), "conv: short scratch");
        let dfilter = &mut dfilter[..self.filter_len()];
        if self.output_len() == 0 {
            match options.beta == 0.0 {
                true => dfilter.fill(0.0),
                false => dfilter.iter_mut().for_each(|value| *value *= options.beta),
            }
            return;
        }
        let isa = options.isa.unwrap_or(Isa::best()).or_best();
        if self.is_depthwise() {
            depthwise::backward_weights(self, isa, pool, x, dy, dfilter, scratch, options.beta);
            return;
        }
        let cut = Cut::new(self);
        let [x_len, dy_len, sums_len] = parts(self, &cut);
        let (own, sums) = micro::cut_aligned(scratch, threads * (x_len + dy_len));
        let (own, sums) = (Shareable::new(own), Shareable::new(&mut sums[..sums_len]));
        let gradient = Shareable::new(dfilter);
        let copied = Copied::new(self, &cut);
        let call = Call { conv: self, cut, copied, isa, x, dy, beta: options.beta };
        let slice_len = self.filter_len().div_ceil(LINE) * LINE;
        pool.run_with_worker(cut.tasks(self), |task, worker| {
            let own = own.ptr().wrapping_add(worker * (x_len + dy_len));
            let slice = task % cut.slices;
            let target = match slice {
                0 => gradient.ptr(),
                _ => sums.ptr().wrapping_add((slice - 1) * slice_len),
            };
            call.task(task, target, own, own.wrapping_add(x_len));
        });
        if cut.slices > 1 {
            pool.run_ranges(self.filter_len(), SUM_GRAIN, |range| {
                // SAFETY: each task adds up a range of its own.
                let total = unsafe { gradient.slice(range.start, range.len()) };
                for slice in 1..cut.slices {
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

/// Floats that one task of the last step adds up.
const SUM_GRAIN: usize = 8192;

/// One call: everything that tasks share.
struct Call<'a> {
    conv: &'a Conv2d,
    cut: Cut,
    copied: Copied,
    isa: Isa,
    x: &'a [f32],
    dy: &'a [f32],
    beta: f32,
}

impl Call<'_> {
    /// One slice of the pixels, for some input channels and panels of one group.
    fn task(&self, task: usize, target: *mut f32, x: *mut f32, dy: *mut f32) {
        let (conv, cut) = (self.conv, &self.cut);
        let (rest, slice) = (task / cut.slices, task % cut.slices);
        let (rest, channel_part) = (rest / cut.channel_parts, rest % cut.channel_parts);
        let (group, panel_part) = (rest / cut.panel_parts, rest % cut.panel_parts);
        let channels = channel_part * cut.channels;
        let panels = panel_part * cut.panels;
        let part = Part {
            group,
            channels: channels..(channels + cut.channels).min(conv.group_in()),
            panels: panels..(panels + cut.panels).min(conv.panels()),
        };
        let all = conv.n * conv.out_h();
        let lines = slice * cut.slice_lines..((slice + 1) * cut.slice_lines).min(all);
        let beta = if slice == 0 { self.beta } else { 0.0 };
        for first in lines.clone().step_by(cut.block_lines) {
            let block = first..(first + cut.block_lines).min(lines.end);
            let next = block.end..(block.end + cut.block_lines).min(lines.end);
            let (x, dy) = (self.bring_x(&part, &block, x), self.bring_dy(&part, &block, dy));
            let ahead = self.ahead(&part, &next);
            // Blocks of a few long lines or of one run of pixels: almost always a single piece.
            let most = if self.copied.sampled { block.len() } else { SEGMENTS_MAX };
            for start in block.clone().step_by(most) {
                let piece = start..(start + most).min(block.end);
                let beta = if start == lines.start { beta } else { 1.0 };
                self.tiles(&part, &block, &piece, beta, target, x, dy, ahead);
            }
        }
    }

    /// What the next block will read, of x and of dy.
    fn ahead(&self, part: &Part, next: &Range<usize>) -> [Next; 2] {
        if next.is_empty() {
            return [Next { first: self.x.as_ptr(), pieces: 0, len: 0, pitch: 0 }; 2];
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
            Next { first: x, pieces: rows * conv.w, len: x_len, pitch: conv.c_in },
            Next { first: dy, pieces: next.len() * conv.out_w(), len: columns, pitch: conv.c_out },
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
        ahead: [Next; 2],
    ) {
        let (conv, copied) = (self.conv, &self.copied);
        let mut segments = [0isize; SEGMENTS_MAX];
        let width = conv.out_w();
        let (count, len) = if copied.sampled {
            segments[0] = ((piece.start - block.start) * width * copied.pixel) as isize;
            (1, piece.len() * width)
        } else {
            for (segment, line) in segments.iter_mut().zip(piece.clone()) {
                *segment = (self.copied_row(block, line) * copied.width * copied.pixel) as isize;
            }
            (piece.len(), width)
        };
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
                ahead: Ahead::nothing(x),
                finish: Finish { beta, ..Finish::STORE },
            };
            let mut flush = |tile: &mut Tile| {
                // Tiles ask for x and for dy in turn.
                let turn = (tiles_done / 2, tiles.div_ceil(2));
                tile.ahead = ahead[tiles_done % 2].ahead(turn, count * len);
                tiles_done += 1;
                // SAFETY: x and dy were brought to scratch for this block; the packed gradient has
                // 64 columns in every panel, and no other task writes these rows of it.
                unsafe { micro::run(self.isa, tile) };
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

    /// Row of the copy where the window of a line begins.
    fn copied_row(&self, block: &Range<usize>, line: usize) -> usize {
        let conv = self.conv;
        let height = conv.out_h();
        let (image, first) = (line / height, block.start / height);
        let inside = if image == first { line - block.start } else { line % height };
        self.rows_before(block, image - first) + inside * conv.stride[0]
    }

    /// Rows of the copy that the first `images` images of a block take.
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

    /// Where x lies for a block: in place, or in `copy`, which is then filled.
    fn bring_x(&self, part: &Part, block: &Range<usize>, copy: *mut f32) -> *const f32 {
        if !self.copied.in_place {
            self.copy_x(part, block, copy);
            return copy;
        }
        let at = block.start * self.conv.w * self.conv.c_in;
        let channel = part.group * self.conv.group_in() + part.channels.start;
        self.x.as_ptr().wrapping_add(at + channel)
    }

    /// Where the panels of dy lie for a block.
    fn bring_dy(&self, part: &Part, block: &Range<usize>, packed: *mut f32) -> *const f32 {
        if !self.copied.dy_in_place {
            self.pack_dy(part, block, packed);
            return packed;
        }
        self.dy.as_ptr().wrapping_add(block.start * self.conv.out_w() * PANEL)
    }

    /// Copies the input rows of a block, with zeros where there is no input.
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
                // SAFETY: the scratch was sized for these lines.
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
                // SAFETY: the scratch was sized for these rows.
                unsafe { source.copy_row(image, row, -left, copied.width, copied.pixel, to) };
            }
        }
    }

    /// Every stride-th pixel of a row.
    ///
    /// # Safety
    /// The image exists, and the target has room for a line.
    unsafe fn sample_row(&self, source: &Source, image: usize, row: isize, target: *mut f32) {
        let (conv, copied) = (self.conv, &self.copied);
        let left = conv.pad[1][0] as isize;
        if conv.stride[1] == 1 {
            // SAFETY: as promised.
            unsafe { source.copy_row(image, row, -left, copied.width, copied.pixel, target) };
            return;
        }
        for column in 0..copied.width {
            let from = (column * conv.stride[1]) as isize - left;
            // SAFETY: as promised.
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
            // SAFETY: dy holds the block's lines, the scratch was sized for them.
            unsafe {
                let from = self.dy.as_ptr().add(at);
                micro::copy_panel(self.isa, from, conv.c_out, pixels, cols, to);
            }
        }
    }
}

/// Pieces of memory at even distances that will be read soon.
#[derive(Clone, Copy)]
struct Next {
    first: *const f32,
    pieces: usize,
    len: usize,
    pitch: usize,
}

impl Next {
    /// What one of some tiles asks for: an equal part where pieces touch, else one piece.
    fn ahead(&self, (tile, tiles): (usize, usize), terms: usize) -> Ahead {
        if self.pitch == self.len {
            return Ahead::part(self.first, self.pieces * self.len, tile, tiles, terms);
        }
        match tile < self.pieces {
            true => Ahead::part(self.first.wrapping_add(tile * self.pitch), self.len, 0, 1, terms),
            false => Ahead::nothing(self.first),
        }
    }
}

/// The part of the gradient that a task computes.
struct Part {
    group: usize,
    channels: Range<usize>,
    panels: Range<usize>,
}

/// Segments of a tile.
const SEGMENTS_MAX: usize = 64;
