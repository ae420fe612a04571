//! The register tile and the packing loops in plain Rust, for any machine. 6 rows x 16 columns fit
//! the 32 registers of NEON, and LLVM vectorizes the inner loops.

use super::{Finish, PANEL, TILE_ROWS, Tile};

const COLS: usize = 16;

type StripFn = unsafe fn(&Tile, usize);

static STRIPS: [StripFn; TILE_ROWS] =
    [strip_of::<1>, strip_of::<2>, strip_of::<3>, strip_of::<4>, strip_of::<5>, strip_of::<6>];

/// # Safety
/// The guarantees of [`Tile`] hold.
#[inline]
pub(crate) unsafe fn tile(tile: &Tile) {
    let kernel = STRIPS[tile.rows - 1];
    for first in (0..tile.cols).step_by(COLS) {
        // SAFETY: promised by the caller.
        unsafe { kernel(tile, first) }
    }
}

/// Computes `a * b + c`, fused where that is one instruction rather than a call.
#[inline(always)]
pub(crate) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Defines a function `name(isa, ..)` that runs `body` compiled for an instruction set. The last
/// argument of `body` computes `a * b + c`, fused where the instruction set can.
macro_rules! for_isa {
    (fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)?, $body:ident) => {
        fn $name(isa: $crate::simd::Isa, $($arg: $ty),*) $(-> $ret)? {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx512f,avx512vl,avx512dq,avx2,fma")]
            fn avx512($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*, |a: f32, b, c| a.mul_add(b, c))
            }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($arg: $ty),*) $(-> $ret)? {
                $body($($arg),*, |a: f32, b, c| a.mul_add(b, c))
            }
            match isa {
                // SAFETY: `isa` is available, here and below.
                #[cfg(target_arch = "x86_64")]
                $crate::simd::Isa::Avx512 => unsafe { avx512($($arg),*) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                $crate::simd::Isa::Avx2 => unsafe { avx2($($arg),*) },
                _ => $body($($arg),*, $crate::micro::portable::multiply_add),
            }
        }
    };
}
pub(crate) use for_isa;

unsafe fn strip_of<const ROWS: usize>(tile: &Tile, first: usize) {
    let mut acc = [[0.0f32; COLS]; ROWS];
    // SAFETY: all addresses are promised by the caller.
    unsafe {
        let mut b = tile.b.add(first);
        for s in 0..tile.segment_count {
            let offset = *tile.segments.add(s);
            let a: [*const f32; ROWS] = std::array::from_fn(|r| tile.a[r].offset(offset));
            let mut at = 0usize;
            for _ in 0..tile.segment_len {
                let columns = b.cast::<[f32; COLS]>().read();
                for r in 0..ROWS {
                    let value = *a[r].add(at);
                    for j in 0..COLS {
                        acc[r][j] = multiply_add(value, columns[j], acc[r][j]);
                    }
                }
                at += tile.a_step;
                b = b.wrapping_add(tile.b_step);
            }
        }
    }
    let Finish { alpha, beta, bias, relu, stats } = tile.finish;
    for j in 0..(tile.cols - first).min(COLS) {
        let column = first + j;
        let (mut sum, mut squares) = (0.0, 0.0);
        for r in 0..ROWS {
            // SAFETY: all addresses are promised by the caller.
            unsafe {
                let at = tile.c[r].add(column);
                let mut value = acc[r][j] * alpha;
                if beta != 0.0 {
                    value = multiply_add(*at, beta, value);
                }
                if !bias.is_null() {
                    value += *bias.add(column);
                }
                // Written so that a NaN stays a NaN.
                if relu && value < 0.0 {
                    value = 0.0;
                }
                *at = value;
                sum += value;
                squares = multiply_add(value, value, squares);
            }
        }
        if !stats.is_null() {
            // SAFETY: as above.
            unsafe {
                *stats.add(column) += sum;
                *stats.add(PANEL + column) += squares;
            }
        }
    }
}

/// # Safety
/// As for [`super::clear_where_not_positive`].
pub(crate) unsafe fn clear_where_not_positive(tile: &Tile, mask: &[*const f32; TILE_ROWS]) {
    for r in 0..tile.rows {
        for col in 0..tile.cols {
            // SAFETY: promised by the caller.
            unsafe {
                let is_positive = *mask[r].add(col) > 0.0; // false for a NaN
                if !is_positive {
                    *tile.c[r].add(col) = 0.0;
                }
            }
        }
    }
}

/// # Safety
/// As for [`super::copy_panel`].
pub(crate) unsafe fn copy_panel(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    for k in 0..rows {
        // SAFETY: promised by the caller.
        unsafe {
            std::ptr::copy_nonoverlapping(source.add(k * pitch), target.add(k * PANEL), cols);
            target.add(k * PANEL + cols).write_bytes(0, PANEL - cols);
        }
    }
}

/// # Safety
/// As for [`super::transpose_panel`].
pub(crate) unsafe fn transpose_panel(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    // Blocks of 16 x 16 keep both sides in L1 for any pitch.
    for k0 in (0..rows).step_by(16) {
        for j0 in (0..PANEL).step_by(16) {
            for k in k0..(k0 + 16).min(rows) {
                for j in j0..j0 + 16 {
                    // SAFETY: promised by the caller; absent columns are not read.
                    unsafe {
                        let value = if j < cols { *source.add(j * pitch + k) } else { 0.0 };
                        *target.add(k * PANEL + j) = value;
                    }
                }
            }
        }
    }
}

/// # Safety
/// As for [`super::copy_strips`].
pub(crate) unsafe fn copy_strips(
    source: *const f32,
    pitch: usize,
    rows: usize,
    cols: usize,
    target: *mut f32,
) {
    for strip in 0..cols.div_ceil(TILE_ROWS) {
        for k in 0..rows {
            for r in 0..TILE_ROWS {
                let column = strip * TILE_ROWS + r;
                // SAFETY: promised by the caller; absent columns are not read.
                unsafe {
                    let value = if column < cols { *source.add(k * pitch + column) } else { 0.0 };
                    *target.add((strip * rows + k) * TILE_ROWS + r) = value;
                }
            }
        }
    }
}
