//! The sliding window of forward and backward-to-data: every pixel of a grid of outputs is the sum,
//! over taps, of an input pixel times a matrix.
//!
//! A task takes some rows of the grid, or some whole images. It copies the input rows that they
//! need into scratch memory with zeros around them, unless no tap leaves the image (1 x 1). Then it
//! runs register tiles over six pixels at a time: for each block of terms, each panel of 64 output
//! channels, all pixels. Copied rows are contiguous over (column, channel), so that a k x k window
//! has k segments. Scratch memory, one panel's weights and the output stay within L2.
//!
//! Sketch: copying costs about 0.3 cycles per input number, the window `taps * c_out / 32` cycles.

use crate::micro::{self, Finish, Isa, LINE, PANEL, Prefetch, TILE_ROWS, Tile};
use crate::pool::{Pool, Shareable};
use std::ops::Range;

use super::KERNEL_MAX;

/// Target number of pixels in a task. `PIXELS_WIDE` is for copied windows over images of at least
/// `WIDE_COLS_MIN` columns, where the rows shared with the next task cost more.
const PIXELS: usize = 196;
const PIXELS_WIDE: usize = 448;
const WIDE_COLS_MIN: usize = 28;

/// Limits on the terms summed in registers before C is accessed, and on their segments.
const TERMS_MAX: usize = 768;
const SEGMENTS_MAX: usize = 32;

/// Number of tasks below which output channels are split too. It is lower for copied inputs,
/// because each split repeats the copy.
const TASKS_MIN: usize = 8;
const TASKS_MIN_COPIED: usize = 4;

/// One dimension of a window.
#[derive(Clone, Copy)]
pub(super) struct Axis {
    /// Number of input rows (or columns).
    pub size: usize,
    /// Number of rows of the grid, and distance between them in input rows.
    pub count: usize,
    pub step: usize,
    /// Number of rows of the output, and position of the grid in it.
    pub out_size: usize,
    pub out_first: usize,
    pub out_step: usize,
    /// Input row of each tap for row 0 of the grid, in ascending order.
    pub taps: [isize; KERNEL_MAX],
    pub tap_count: usize,
}

impl Axis {
    fn taps(&self) -> &[isize] {
        &self.taps[..self.tap_count]
    }

    fn first_tap(&self) -> isize {
        self.taps().first().copied().unwrap_or(0)
    }

    /// Returns the number of input rows from the first to the last that `count` rows of the grid
    /// use.
    fn span(&self, count: usize) -> usize {
        let last = self.taps().last().copied().unwrap_or(0);
        (count - 1) * self.step + (last - self.first_tap()) as usize + 1
    }

    /// Whether every tap of every row is inside the input.
    fn is_inside(&self) -> bool {
        self.tap_count == 0
            || self.first_tap() >= 0
                && self.first_tap() as usize + self.span(self.count) <= self.size
    }

    /// Whether adjacent taps are adjacent inputs.
    fn is_dense(&self) -> bool {
        self.taps().windows(2).all(|pair| pair[1] == pair[0] + 1)
    }
}

/// A grid of outputs, its inputs and its weights.
#[derive(Clone, Copy)]
pub(super) struct Window {
    pub images: usize,
    pub rows: Axis,
    pub cols: Axis,
    pub groups: usize,
    /// Numbers of channels in a group.
    pub c_in: usize,
    pub c_out: usize,
    /// Position of the weights, and distance between groups, each
    /// `[ceil(c_out / 64)][row tap][column tap][c_in][64]`.
    pub filter_start: usize,
    pub filter_group: usize,
}

/// Inputs and outputs of a window.
#[derive(Clone, Copy)]
pub(super) struct Sides {
    pub x: *const f32,
    pub filter: *const f32,
    pub y: *mut f32,
    /// Null, or one number per output channel.
    pub bias: *const f32,
    /// Null, or 128 numbers for each row task and panel.
    pub stats: *mut f32,
}

// SAFETY: tasks only read x, filter and bias, and write disjoint parts of y and stats.
unsafe impl Sync for Sides {}

/// The split of a window into tasks; it depends on its shape alone.
#[derive(Clone, Copy)]
pub(super) struct WindowSplit {
    /// Number of rows of the grid in a task, all of one image, or number of whole images.
    rows: usize,
    images: usize,
    /// Number of tasks along images and rows.
    pub row_tasks: usize,
    /// Number of panels in a task, and number of parts into which all panels are split.
    panels: usize,
    panel_parts: usize,
    /// Whether input rows are copied to scratch memory.
    copied: bool,
}

impl WindowSplit {
    pub fn new(window: &Window) -> WindowSplit {
        let (rows, cols) = (window.rows.count, window.cols.count);
        let copied = !(window.rows.is_inside() && window.cols.is_inside());
        let is_wide = copied && cols >= WIDE_COLS_MIN;
        let wanted = if is_wide { PIXELS_WIDE } else { PIXELS };
        let images = (wanted / (rows * cols).max(1)).clamp(1, window.images.max(1));
        let rows_in_task =
            if rows * cols <= wanted * 5 / 4 { rows } else { best_rows(wanted, cols) };
        let row_tasks = if rows_in_task == rows {
            window.images.div_ceil(images)
        } else {
            window.images * rows.div_ceil(rows_in_task)
        };
        let panels = window.c_out.div_ceil(PANEL);
        let tasks_min = if copied { TASKS_MIN_COPIED } else { TASKS_MIN };
        let parts = tasks_min.div_ceil((row_tasks * window.groups).max(1)).min(panels);
        let panels_in_task = panels.div_ceil(parts);
        WindowSplit {
            rows: rows_in_task,
            images: if rows_in_task == rows { images } else { 1 },
            row_tasks,
            panels: panels_in_task,
            panel_parts: panels.div_ceil(panels_in_task),
            copied,
        }
    }

    fn tasks(&self, window: &Window) -> usize {
        self.row_tasks * window.groups * self.panel_parts
    }

    /// Returns the length of the copied rows of one task, in floats.
    fn copied_len(&self, window: &Window) -> usize {
        if !self.copied {
            return 0;
        }
        let len = self.images * window.rows.span(self.rows) * window.cols.span(window.cols.count);
        (len * window.c_in).div_ceil(LINE) * LINE
    }
}

/// Returns the number of rows in a task: about `wanted` pixels, with the least waste in the last
/// tile.
fn best_rows(wanted: usize, cols: usize) -> usize {
    let most = (wanted + wanted / 8).div_euclid(cols).max(1);
    let waste = |rows: &usize| {
        let pixels = rows * cols;
        (pixels.div_ceil(TILE_ROWS) * TILE_ROWS - pixels) * 1000 / pixels
    };
    // On a tie, take the larger count.
    (most.div_ceil(2)..=most).rev().min_by_key(waste).unwrap_or(1)
}

pub(super) fn scratch_len(window: &Window, threads: usize) -> usize {
    if window.rows.count == 0 || window.cols.count == 0 {
        return 0;
    }
    LINE + threads * WindowSplit::new(window).copied_len(window)
}

/// Computes the grid: `y = act(beta * y + sums + bias)`.
///
/// The caller has checked that all memory that the window refers to exists.
pub(super) fn run(
    window: &Window,
    isa: Isa,
    pool: &Pool,
    sides: Sides,
    scratch: &mut [f32],
    beta: f32,
    relu: bool,
) {
    if window.images * window.rows.count * window.cols.count == 0 {
        return;
    }
    let split = WindowSplit::new(window);
    let copied_len = split.copied_len(window);
    let (scratch, _) = micro::cut_aligned(scratch, pool.threads() * copied_len);
    let scratch = Shareable::new(scratch);
    let (tasks, threads) = (split.tasks(window), pool.threads());
    pool.run_with_worker(tasks, |task, worker| {
        let copy = scratch.ptr().wrapping_add(worker * copied_len);
        // A guess at the thread's next task, used only for prefetching.
        let next = Task::new(window, &split, isa, sides, (task + threads).min(tasks - 1));
        let task = Task::new(window, &split, isa, sides, task);
        let prefetch = if next.row_task == task.row_task { (sides.x, 0) } else { next.input() };
        Task { beta, relu, prefetch, ..task }.run(copy);
    });
}

/// A part of the grid: some rows of one image or some whole images, and some panels.
struct Task<'a> {
    window: &'a Window,
    isa: Isa,
    sides: Sides,
    beta: f32,
    relu: bool,
    /// The memory that will be read next: its start, and its length in floats.
    prefetch: (*const f32, usize),
    copied: bool,
    row_task: usize,
    images: Range<usize>,
    rows: Range<usize>,
    group: usize,
    panels: Range<usize>,
}

/// The location of a task's inputs: the pixel of row 0, column 0, and distances.
struct Place {
    first: *const f32,
    image: usize,
    row: usize,
    pixel: usize,
    /// Origin of the tap offsets.
    tap_row: isize,
    tap_col: isize,
}

impl<'a> Task<'a> {
    fn new(
        window: &'a Window,
        split: &WindowSplit,
        isa: Isa,
        sides: Sides,
        task: usize,
    ) -> Task<'a> {
        let (rest, part) = (task / split.panel_parts, task % split.panel_parts);
        let (row_task, group) = (rest / window.groups, rest % window.groups);
        let panels = window.c_out.div_ceil(PANEL);
        let (images, rows) = if split.rows == window.rows.count {
            let first = row_task * split.images;
            (first..(first + split.images).min(window.images), 0..split.rows)
        } else {
            let in_image = window.rows.count.div_ceil(split.rows);
            let (image, first) = (row_task / in_image, row_task % in_image * split.rows);
            (image..image + 1, first..(first + split.rows).min(window.rows.count))
        };
        Task {
            window,
            isa,
            sides,
            beta: 0.0,
            relu: false,
            prefetch: (sides.x, 0),
            copied: split.copied,
            row_task,
            images,
            rows,
            group,
            panels: part * split.panels..((part + 1) * split.panels).min(panels),
        }
    }

    fn run(&self, copy: *mut f32) {
        let window = self.window;
        let place = if self.copied { self.copy_rows(copy) } else { self.in_place() };
        let taps = (window.rows.tap_count, window.cols.tap_count);
        let is_merged = window.cols.is_dense() && place.pixel == window.c_in;
        let (count, len) = match is_merged {
            true => (taps.0, taps.1 * window.c_in),
            false => (taps.0 * taps.1, window.c_in),
        };
        let offset = |segment: usize| {
            let (row, col) =
                if is_merged { (segment, 0) } else { (segment / taps.1, segment % taps.1) };
            (window.rows.taps[row] - place.tap_row) * place.row as isize
                + (window.cols.taps[col] - place.tap_col) * place.pixel as isize
        };
        // Long segments are split, and short ones are combined.
        let parts = len.div_ceil(TERMS_MAX).max(1);
        let part_len = len.div_ceil(parts);
        let blocks = (count * len).div_ceil(TERMS_MAX).max(count.div_ceil(SEGMENTS_MAX)).max(1);
        let together = count.div_ceil(blocks).max(1);
        let total = count.div_ceil(together).max(1) * parts;
        for block in 0..total {
            let (first, part) = (block / parts * together, block % parts);
            let segment_count = together.min(count - first);
            let start = part * part_len;
            let mut segments = [0isize; SEGMENTS_MAX];
            for (s, segment) in segments.iter_mut().enumerate().take(segment_count) {
                *segment = offset(first + s) + start as isize;
            }
            let terms = Terms {
                segments: &segments[..segment_count],
                len: part_len.min(len - start),
                first: first * len + start,
                all: count * len,
                is_first: block == 0,
                is_last: block + 1 == total,
            };
            for panel in self.panels.clone() {
                let pass = (block * self.panels.len() + panel - self.panels.start, total);
                self.panel(&place, &terms, panel, pass);
            }
        }
    }

    /// Computes all pixels of the task, for one panel and one block of terms. `pass` is the index
    /// of this call and the number of such calls.
    fn panel(&self, place: &Place, terms: &Terms<'_>, panel: usize, pass: (usize, usize)) {
        let window = self.window;
        let (rows, cols) = (&window.rows, &window.cols);
        let out_pixel = window.groups * window.c_out;
        let out_row = cols.out_size * out_pixel;
        let first_channel = self.group * window.c_out + panel * PANEL;
        let mut tile = Tile {
            a: [std::ptr::null(); TILE_ROWS],
            a_step: 1,
            segments: terms.segments.as_ptr(),
            segment_count: terms.segments.len(),
            segment_len: terms.len,
            b: self.sides.filter.wrapping_add(
                window.filter_start
                    + self.group * window.filter_group
                    + (panel * terms.all + terms.first) * PANEL,
            ),
            b_step: PANEL,
            c: [std::ptr::null_mut(); TILE_ROWS],
            rows: 0,
            prefetch: Prefetch::none(place.first),
            cols: (window.c_out - panel * PANEL).min(PANEL),
            finish: self.finish(terms, panel),
        };
        let pixels = self.images.len() * self.rows.len() * cols.count;
        let (in_pass, passes) = (pixels.div_ceil(TILE_ROWS), pass.1 * self.panels.len());
        let all_terms = terms.segments.len() * terms.len;
        let mut tiles_done = pass.0 * in_pass;
        // In place, the first pass reads inputs from distant memory, so it prefetches its own next
        // pixels.
        let is_near = !self.copied && pass.0 == 0 && cols.step == 1;
        let mut flush = |tile: &mut Tile| {
            tile.prefetch = if is_near {
                let next = tile.a[0].wrapping_add(TILE_ROWS * place.pixel);
                Prefetch::part(next, TILE_ROWS * place.pixel, 0, 1, all_terms)
            } else {
                let parts = in_pass * passes;
                Prefetch::part(self.prefetch.0, self.prefetch.1, tiles_done, parts, all_terms)
            };
            tiles_done += 1;
            // SAFETY: the window's inputs, weights and outputs were checked to exist. Only this
            // task writes these pixels of this panel.
            unsafe { micro::tile(self.isa, tile) };
            tile.rows = 0;
        };
        for image in self.images.clone() {
            for row in self.rows.clone() {
                let in_row = (row - self.rows.start) * rows.step;
                let in_at = (image - self.images.start) * place.image + in_row * place.row;
                let out_line = image * rows.out_size + rows.out_first + row * rows.out_step;
                let out_at = out_line * out_row + cols.out_first * out_pixel + first_channel;
                let mut from = place.first.wrapping_add(in_at);
                let mut to = self.sides.y.wrapping_add(out_at);
                for _ in 0..cols.count {
                    tile.a[tile.rows] = from;
                    tile.c[tile.rows] = to;
                    tile.rows += 1;
                    from = from.wrapping_add(cols.step * place.pixel);
                    to = to.wrapping_add(cols.out_step * out_pixel);
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

    /// Returns the operations after a block of terms of a panel. Before the last block, clears the
    /// panel's statistics.
    fn finish(&self, terms: &Terms<'_>, panel: usize) -> Finish {
        let (window, sides) = (self.window, &self.sides);
        let mut finish = Finish {
            beta: if terms.is_first { self.beta } else { 1.0 },
            relu: self.relu && terms.is_last,
            ..Finish::STORE
        };
        if terms.is_last && !sides.bias.is_null() {
            finish.bias = sides.bias.wrapping_add(self.group * window.c_out + panel * PANEL);
        }
        if terms.is_last && !sides.stats.is_null() {
            let panels = window.c_out.div_ceil(PANEL);
            let slot = (self.row_task * window.groups + self.group) * panels + panel;
            finish.stats = sides.stats.wrapping_add(slot * 2 * PANEL);
            // SAFETY: the slot belongs to this task, and the caller checked the length.
            unsafe { finish.stats.write_bytes(0, 2 * PANEL) };
        }
        finish
    }

    /// Returns the input rows that the task reads, as one piece. Returns none if they are not
    /// contiguous.
    fn input(&self) -> (*const f32, usize) {
        let window = self.window;
        let rows = &window.rows;
        if window.groups > 1 || rows.tap_count == 0 {
            return (self.sides.x, 0);
        }
        let clamp = |row: isize| row.clamp(0, rows.size as isize - 1) as usize;
        let top = clamp((self.rows.start * rows.step) as isize + rows.first_tap());
        let last = (self.rows.end - 1) * rows.step;
        let last = clamp(last as isize + rows.taps().last().copied().unwrap_or(0));
        let first = self.images.start * rows.size + top;
        let end = (self.images.end - 1) * rows.size + last + 1;
        let row = window.cols.size * window.c_in;
        (self.sides.x.wrapping_add(first * row), (end - first) * row)
    }

    /// Returns the location of inputs that are read in place.
    fn in_place(&self) -> Place {
        let window = self.window;
        let pixel = window.groups * window.c_in;
        let row = window.cols.size * pixel;
        let image = window.rows.size * row;
        let at = self.images.start * image
            + self.rows.start * window.rows.step * row
            + self.group * window.c_in;
        let first = self.sides.x.wrapping_add(at);
        Place { first, image, row, pixel, tap_row: 0, tap_col: 0 }
    }

    /// Copies the input rows that the task needs, with zeros outside the input.
    fn copy_rows(&self, copy: *mut f32) -> Place {
        let window = self.window;
        let source = Source {
            x: self.sides.x,
            height: window.rows.size,
            width: window.cols.size,
            pixel: window.groups * window.c_in,
            first_channel: self.group * window.c_in,
            channels: window.c_in,
        };
        let (span, width) =
            (window.rows.span(self.rows.len()), window.cols.span(window.cols.count));
        let (tap_row, tap_col) = (window.rows.first_tap(), window.cols.first_tap());
        let row = width * window.c_in;
        let top = (self.rows.start * window.rows.step) as isize + tap_row;
        for (i, image) in self.images.clone().enumerate() {
            for r in 0..span {
                let target = copy.wrapping_add((i * span + r) * row);
                // SAFETY: the scratch memory was sized for these rows, and belongs to this thread.
                unsafe {
                    source.copy_row(image, top + r as isize, tap_col, width, window.c_in, target);
                }
            }
        }
        Place { first: copy, image: span * row, row, pixel: window.c_in, tap_row, tap_col }
    }
}

/// A block of terms of the sum.
struct Terms<'a> {
    segments: &'a [isize],
    len: usize,
    /// Position of the first term, and number of all terms.
    first: usize,
    all: usize,
    is_first: bool,
    is_last: bool,
}

/// Images from which rows are copied.
pub(super) struct Source {
    pub x: *const f32,
    pub height: usize,
    pub width: usize,
    /// Distance between pixels in floats, and the channels of the group.
    pub pixel: usize,
    pub first_channel: usize,
    pub channels: usize,
}

impl Source {
    /// Copies columns `first..first + width` of a row, `pitch` floats per pixel, with zeros outside
    /// the image.
    ///
    /// # Safety
    /// The image exists, and `target` has space for `width * pitch` floats.
    pub unsafe fn copy_row(
        &self,
        image: usize,
        row: isize,
        first: isize,
        width: usize,
        pitch: usize,
        target: *mut f32,
    ) {
        // Columns of the target that are inside the image.
        let begin = first.min(0).unsigned_abs().min(width);
        let end = (self.width as isize - first).clamp(begin as isize, width as isize) as usize;
        // SAFETY: columns begin..end are inside the image if the row is; the others are only in the
        // target.
        unsafe {
            if row < 0 || row as usize >= self.height || begin == end {
                target.write_bytes(0, width * pitch);
                return;
            }
            target.write_bytes(0, begin * pitch);
            target.add(end * pitch).write_bytes(0, (width - end) * pitch);
            let start = (first + begin as isize) as usize;
            let at = ((image * self.height + row as usize) * self.width + start) * self.pixel;
            let from = self.x.add(at + self.first_channel);
            if self.pixel == self.channels && pitch == self.channels {
                let len = (end - begin) * pitch;
                std::ptr::copy_nonoverlapping(from, target.add(begin * pitch), len);
                return;
            }
            for column in 0..end - begin {
                let (from, to) =
                    (from.add(column * self.pixel), target.add((begin + column) * pitch));
                std::ptr::copy_nonoverlapping(from, to, self.channels);
            }
        }
    }
}
