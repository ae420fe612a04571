//! A block of bf16 products in the tile unit (AMX).
//!
//! A tile fills a register of the unit. Four tiles of sums, two of A and two of B use all eight.
//!
//! Sketch: four tile products of 16 cycles each need four loads of 1 KB, that is 64 bytes a cycle.
//! L1 delivers that, and L2 half of it. A strip of A is therefore kept in L1 while B streams.
//!
//! The compiler does not know tile registers. They are used only inside one `asm!` block, and only
//! their configuration ([`Tiles`]) lasts longer.

use super::bf16::{BLOCK, Block, TILE};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Whether this process may use the unit: the processor has it and the system permits it. Checked
/// once.
pub(crate) fn is_available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER
        .get_or_init(|| has_unit() && is_x86_feature_detected!("avx512bw") && request_permission())
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
    // SAFETY: the processor has `xgetbv`, since OSXSAVE is set.
    unsafe {
        asm!(
            "xgetbv",
            in("ecx") 0,
            out("eax") low,
            out("edx") high,
            options(nomem, nostack, preserves_flags)
        );
    }
    let state = u64::from(high) << 32 | u64::from(low);
    features & AMX_BF16 != 0 && features & AMX_TILE != 0 && state & TILE_STATE == TILE_STATE
}

/// Requests permission. Linux grants the 8 KB of tile state to a process once, for all its threads.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let answer: i64;
    // SAFETY: the call accesses no memory of this process.
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
fn request_permission() -> bool {
    false
}

/// The unit, configured on this thread until this is dropped.
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
    /// [`is_available`] holds.
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
            asm!(
                "ldtilecfg [{}]",
                in(reg) &raw const shapes,
                options(nostack, readonly, preserves_flags)
            );
        }
        Tiles(std::marker::PhantomData)
    }

    /// Sums one 32 x 32 block.
    ///
    /// # Safety
    /// All addresses in `block` are valid as described at its fields.
    pub unsafe fn run(&self, block: &Block) {
        // SAFETY: promised by the caller; `self` proves that the unit is configured.
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
        // SAFETY: the unit is available, and its registers are not used afterwards.
        unsafe { asm!("tilerelease", options(nostack, nomem, preserves_flags)) };
    }
}
