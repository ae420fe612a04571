//! bf16 products in the tile unit (AMX): 32 x 32 sums in f32, 32 terms a step.
//!
//! A tile is 16 lines of 64 bytes. On the left a line is a row of A, 32 terms of it; on the right a
//! line is two terms of 16 columns of B, pair by pair; sums are 16 x 16 in f32. Four tiles of sums, two
//! of A and two of B use all eight registers. Products of two bf16 are exact in f32.
//!
//! Sketch: four tile products of 16 cycles each take four loads of 1 KB, 64 bytes a cycle: from L1
//! that is what the unit asks for, from L2 it is half. So a strip of A is kept in L1 while B streams.
//!
//! The compiler knows nothing of tile registers: they live inside one `asm!` block, only their
//! configuration ([`Tiles`]) lasts longer.

use super::avx512::transpose_registers;
use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Rows of a tile, and columns of its sums.
pub(crate) const TILE: usize = 16;
/// Terms of a step.
pub(crate) const TERMS: usize = 32;
/// bf16 of a tile.
pub(crate) const TILE_LEN: usize = TILE * TERMS;
/// Rows and columns of the sums that one call makes.
pub(crate) const BLOCK: usize = 2 * TILE;

/// Whether this process may use the unit: the processor has it and the system lets us (asked once).
pub(crate) fn is_available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| has_unit() && is_x86_feature_detected!("avx512bw") && ask_system())
}

fn has_unit() -> bool {
    const AMX_BF16: u32 = 1 << 22;
    const AMX_TILE: u32 = 1 << 24;
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATE: u64 = 0b11 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let features = __cpuid_count(7, 0).edx;
    let (low, high): (u32, u32);
    // SAFETY: the processor has `xgetbv`, as OSXSAVE says.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack, preserves_flags));
    }
    let state = u64::from(high) << 32 | u64::from(low);
    features & AMX_BF16 != 0 && features & AMX_TILE != 0 && state & TILE_STATE == TILE_STATE
}

/// Linux gives the 8 KB of state to a process that asks, once for all its threads.
#[cfg(target_os = "linux")]
fn ask_system() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let answer: i64;
    // SAFETY: the call touches no memory of ours.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => answer,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    answer == 0
}

#[cfg(not(target_os = "linux"))]
fn ask_system() -> bool {
    false
}

/// The unit, set up on this thread until this is dropped.
pub(crate) struct Tiles(std::marker::PhantomData<*const ()>);

#[repr(C, align(64))]
struct Shapes {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    line_bytes: [u16; 16],
    lines: [u8; 16],
}

impl Tiles {
    /// # Safety
    /// The unit [`is_available`].
    pub unsafe fn new() -> Tiles {
        let mut shapes = Shapes {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            line_bytes: [0; 16],
            lines: [0; 16],
        };
        shapes.line_bytes[..8].fill(64);
        shapes.lines[..8].fill(TILE as u8);
        // SAFETY: the shapes are those of full tiles; the caller promises the unit.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const shapes, options(nostack, readonly, preserves_flags));
        }
        Tiles(std::marker::PhantomData)
    }

    /// Adds up one 32 x 32 block.
    ///
    /// # Safety
    /// All addresses of `block` hold what its fields say.
    pub unsafe fn run(&self, block: &Block) {
        // SAFETY: promised by the caller; `self` is the proof that the unit is set up.
        unsafe {
            asm!(
                "test {add}, {add}",
                "jnz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 4f",
                "3:",
                "tileloadd tmm0, [{sums} + {sums_pitch}]",
                "tileloadd tmm1, [{sums} + {sums_pitch} + 64]",
                "tileloadd tmm2, [{sums} + {sums_pitch} + 2048]",
                "tileloadd tmm3, [{sums} + {sums_pitch} + 2112]",
                "4:",
                "tileloadd tmm6, [{b0} + {line}]",
                "tileloadd tmm7, [{b1} + {line}]",
                "tileloadd tmm4, [{a0} + {line}]",
                "tileloadd tmm5, [{a1} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a0}, 1024",
                "add {a1}, 1024",
                "add {b0}, 1024",
                "add {b1}, 1024",
                "dec {steps}",
                "jnz 4b",
                "tilestored [{sums} + {sums_pitch}], tmm0",
                "tilestored [{sums} + {sums_pitch} + 64], tmm1",
                "tilestored [{sums} + {sums_pitch} + 2048], tmm2",
                "tilestored [{sums} + {sums_pitch} + 2112], tmm3",
                add = in(reg) u64::from(block.add),
                sums = in(reg) block.sums,
                sums_pitch = in(reg) BLOCK * size_of::<f32>(),
                line = in(reg) 64usize,
                a0 = inout(reg) block.a[0] => _,
                a1 = inout(reg) block.a[1] => _,
                b0 = inout(reg) block.b[0] => _,
                b1 = inout(reg) block.b[1] => _,
                steps = inout(reg) block.steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: the unit is there; nobody reads its registers any more.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}

/// One block: two packed strips of 16 rows of A by two of 16 columns of B.
pub(crate) struct Block {
    /// The first tile of each strip; the tiles of a strip lie one after another.
    pub a: [*const u16; 2],
    pub b: [*const u16; 2],
    /// Steps of 32 terms, at least 1.
    pub steps: usize,
    /// 32 x 32.
    pub sums: *mut f32,
    /// Whether to add to what is there.
    pub add: bool,
}

/// Packs one tile of the left side from A stored `[row][term]`: `rows` rows of `terms` terms, zero
/// beyond.
///
/// # Safety
/// `from` holds the rows, `pitch` apart; `to` has room for a tile. AVX-512 F and BW are available.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_rows(
    from: *const u16,
    pitch: usize,
    rows: usize,
    terms: usize,
    to: *mut u16,
) {
    for r in 0..TILE {
        // SAFETY: row `r` exists; masked lanes are not read.
        unsafe {
            let mask = if r < rows { lanes_32(terms) } else { 0 };
            let line = _mm512_maskz_loadu_epi16(mask, from.wrapping_add(r * pitch).cast());
            _mm512_storeu_si512(to.add(r * TERMS).cast(), line);
        }
    }
}

/// Packs one tile of the right side from B stored `[term][column]`: `cols` columns, `terms` terms.
///
/// # Safety
/// As [`pack_rows`], with one row a term.
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_pairs(
    from: *const u16,
    pitch: usize,
    terms: usize,
    cols: usize,
    to: *mut u16,
) {
    for pair in 0..TILE {
        // SAFETY: promised by the caller; `to` has a line for each pair.
        unsafe {
            let line = pair_line(from, pitch, terms, cols, pair);
            _mm512_storeu_si512(to.add(pair * TERMS).cast(), line);
        }
    }
}

/// Packs one tile of the left side from A stored `[term][row]`.
///
/// # Safety
/// As [`pack_pairs`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_rows_transposed(
    from: *const u16,
    pitch: usize,
    rows: usize,
    terms: usize,
    to: *mut u16,
) {
    let mut lines = [_mm512_setzero_ps(); TILE];
    for (pair, line) in lines.iter_mut().enumerate() {
        // SAFETY: promised by the caller.
        *line = _mm512_castsi512_ps(unsafe { pair_line(from, pitch, terms, rows, pair) });
    }
    // SAFETY: there is room for a tile.
    unsafe { store_tile(transpose_registers(lines), to) };
}

/// Packs one tile of the right side from B stored `[column][term]`.
///
/// # Safety
/// As [`pack_rows`].
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) unsafe fn pack_pairs_transposed(
    from: *const u16,
    pitch: usize,
    terms: usize,
    cols: usize,
    to: *mut u16,
) {
    let mut lines = [_mm512_setzero_ps(); TILE];
    for (col, line) in lines.iter_mut().enumerate().take(cols) {
        // SAFETY: this column's row exists; masked lanes are not read.
        *line = _mm512_castsi512_ps(unsafe {
            _mm512_maskz_loadu_epi16(lanes_32(terms), from.wrapping_add(col * pitch).cast())
        });
    }
    // SAFETY: there is room for a tile.
    unsafe { store_tile(transpose_registers(lines), to) };
}

/// Terms `2 pair` and `2 pair + 1` of 16 columns, side by side.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn pair_line(
    from: *const u16,
    pitch: usize,
    terms: usize,
    cols: usize,
    pair: usize,
) -> __m512i {
    let mask = lanes_32(cols);
    let load = |term: usize| -> __m512i {
        let mask = if term < terms { mask } else { 0 };
        // SAFETY: masked lanes are not read; the others exist.
        unsafe { _mm512_maskz_loadu_epi16(mask, from.wrapping_add(term * pitch).cast()) }
    };
    let (even, odd) = (load(2 * pair), load(2 * pair + 1));
    let widen = |x: __m512i| _mm512_cvtepu16_epi32(_mm512_castsi512_si256(x));
    _mm512_or_si512(widen(even), _mm512_slli_epi32::<16>(widen(odd)))
}

/// The first `count` (at most 32) of 32 lanes.
fn lanes_32(count: usize) -> u32 {
    if count >= 32 { u32::MAX } else { (1 << count) - 1 }
}

#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn store_tile(lines: [__m512; TILE], to: *mut u16) {
    for (r, line) in lines.into_iter().enumerate() {
        // SAFETY: promised by the caller: room for 16 lines of 32.
        unsafe { _mm512_storeu_ps(to.add(r * TERMS).cast(), line) };
    }
}
