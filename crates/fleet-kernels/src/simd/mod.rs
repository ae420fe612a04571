//! One kernel body for AVX-512, AVX2 + FMA and any other machine, selected at run time.
//!
//! A kernel is written once over a [`Simd`] token and instantiated by [`kernel!`](crate::kernel).
//! The macro compiles the body under `#[target_feature]` for every instruction set, and dispatches
//! on [`Isa::best`]. Two styles are fast inside the body. One is the methods of the token
//! (`s.fma(a, b, c)` over `S::F`, a register of `S::LANES` floats). The other is plain loops over
//! arrays of fixed size, which the compiler vectorizes with the features of the wrapper. For 64-bit
//! lanes, only such plain loops are available.
//!
//! ```
//! use fleet_kernels::{kernel, simd::Simd};
//! kernel! {
//!     /// y += a * x.
//!     pub fn axpy<S>(s: S, a: f32, x: &[f32], y: &mut [f32]) {
//!         let len = x.len().min(y.len());
//!         let a = s.splat(a);
//!         let mut i = 0;
//!         // SAFETY: `i + LANES <= len` for whole registers, the part is `len - i` floats long.
//!         unsafe {
//!             while i + S::LANES <= len {
//!                 let sum = s.fma(a, s.load(x.as_ptr().add(i)), s.load(y.as_ptr().add(i)));
//!                 s.store(y.as_mut_ptr().add(i), sum);
//!                 i += S::LANES;
//!             }
//!             let rest = len - i;
//!             let sum = s.fma(
//!                 a,
//!                 s.load_part(x.as_ptr().add(i), rest),
//!                 s.load_part(y.as_ptr().add(i), rest),
//!             );
//!             s.store_part(y.as_mut_ptr().add(i), sum, rest);
//!         }
//!     }
//! }
//! let mut y = [1.0; 19];
//! axpy(2.0, &[3.0; 19], &mut y);
//! assert_eq!(y, [7.0; 19]);
//! ```

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod portable;
mod registers;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
pub use avx512::Avx512;
pub use portable::Portable;
pub use registers::Simd;

/// The instruction sets for which kernels are compiled, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Isa {
    /// Any machine.
    Portable,
    /// AVX2 with FMA.
    Avx2,
    /// AVX-512.
    Avx512,
}

impl Isa {
    /// Returns the best one that this machine has. The standard library detects it once; later
    /// calls are a few loads.
    #[inline]
    pub fn best() -> Isa {
        #[cfg(test)]
        if let Some(forced) = FORCED.get() {
            return forced;
        }
        Isa::detect()
    }

    #[inline]
    fn detect() -> Isa {
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("fma")
            {
                return Isa::Avx512;
            }
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Isa::Avx2;
            }
        }
        Isa::Portable
    }

    /// Iterates over all that this machine has, best first.
    pub fn available() -> impl Iterator<Item = Isa> {
        let all = [Isa::Avx512, Isa::Avx2, Isa::Portable];
        all.into_iter().filter(|isa| *isa <= Isa::detect())
    }

    /// Returns this one, or the best if the machine lacks it. Calling a missing one would be
    /// undefined behavior.
    pub(crate) fn or_best_available(self) -> Isa {
        self.min(Isa::detect())
    }
}

#[cfg(test)]
thread_local! {
    static FORCED: std::cell::Cell<Option<Isa>> = const { std::cell::Cell::new(None) };
}

/// Runs `test` once for every instruction set that this machine has. The choice holds for this
/// thread only, so tests use a pool of one thread.
#[cfg(test)]
pub(crate) fn for_every_isa(mut test: impl FnMut(Isa)) {
    for forced in Isa::available() {
        FORCED.set(Some(forced));
        test(forced);
        FORCED.set(None);
    }
}

/// Instantiates a function for every instruction set; see the [module](self) for an example.
///
/// The first parameter is the token, which callers of the function do not pass. Generic parameters
/// after `S` take one bound each and must be inferable from the arguments. In the `unsafe fn` form,
/// the whole body is an unsafe context. Code called from the body, including closures, must be
/// `#[inline(always)]`. Otherwise it is compiled for the baseline, and its instructions become
/// calls.
#[macro_export]
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$S:ident $(, $gen:ident: $bound:path)*>(
        $s:ident: $S2:ident $(, $arg:ident: $ty:ty)* $(,)?
    ) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name<$($gen: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$S: $crate::simd::Simd $(, $gen: $bound)*>(
                $s: $S $(, $arg: $ty)*
            ) $(-> $ret)? $body
            $crate::kernel_dispatch!(body [$($gen: $bound),*] [$($arg: $ty),*] [$(-> $ret)?])
        }
    };
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident<$S:ident $(, $gen:ident: $bound:path)*>(
        $s:ident: $S2:ident $(, $arg:ident: $ty:ty)* $(,)?
    ) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        $vis unsafe fn $name<$($gen: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(unused_unsafe, unsafe_op_in_unsafe_fn)]
            unsafe fn body<$S: $crate::simd::Simd $(, $gen: $bound)*>(
                $s: $S $(, $arg: $ty)*
            ) $(-> $ret)? $body
            $crate::kernel_dispatch!(body [$($gen: $bound),*] [$($arg: $ty),*] [$(-> $ret)?])
        }
    };
}

/// The second half of [`kernel!`](crate::kernel); not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_dispatch {
    ($body:ident [$($gen:ident: $bound:path),*] [$($arg:ident: $ty:ty),*] [$($ret:tt)*]) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
            #[allow(unused_unsafe)]
            unsafe fn avx512<$($gen: $bound),*>($($arg: $ty),*) $($ret)* {
                // SAFETY: the features are those of this function.
                unsafe { $body($crate::simd::Avx512::new() $(, $arg)*) }
            }
            #[target_feature(enable = "avx2,fma")]
            #[allow(unused_unsafe)]
            unsafe fn avx2<$($gen: $bound),*>($($arg: $ty),*) $($ret)* {
                // SAFETY: the features are those of this function.
                unsafe { $body($crate::simd::Avx2::new() $(, $arg)*) }
            }
            match $crate::simd::Isa::best() {
                // SAFETY: `best` detected the features on this machine.
                $crate::simd::Isa::Avx512 => return unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                $crate::simd::Isa::Avx2 => return unsafe { avx2($($arg),*) },
                $crate::simd::Isa::Portable => {}
            }
        }
        #[allow(unused_unsafe)]
        // SAFETY: the contract of the body is that of the surrounding function.
        unsafe { $body($crate::simd::Portable $(, $arg)*) }
    }};
}

/// `for_registers!(S, len, |i, n| { .. })` runs the body for every register of `0..len`, where `n`
/// is the number of lanes in use. All registers but the last are full. This is a macro, because a
/// closure that the compiler does not inline would be compiled without the kernel's features and
/// run a hundred times slower.
#[macro_export]
macro_rules! for_registers {
    ($S:ident, $len:expr, |$i:ident, $n:ident| $body:block) => {{
        let len: usize = $len;
        let mut at = 0usize;
        while at + <$S as $crate::simd::Simd>::LANES <= len {
            let ($i, $n) = (at, <$S as $crate::simd::Simd>::LANES);
            $body
            at += <$S as $crate::simd::Simd>::LANES;
        }
        if at < len {
            let ($i, $n) = (at, len - at);
            $body
        }
    }};
}

/// Keeps the compiler from vectorizing the surrounding loop, whose body already handles a whole
/// array. Otherwise, where pointers do not overlap, the compiler would gather one element of every
/// array into a register.
#[inline(always)]
pub(crate) fn block_loop_vectorization() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: the assembly contains no instruction.
    unsafe {
        std::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

/// Prefetches the cache line at `pointer`. Any address is allowed, because no value is read.
#[inline(always)]
pub(crate) fn prefetch<T>(pointer: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(pointer.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = pointer;
}

/// A pointer shared between tasks. The kernel that creates it ensures that no two tasks write the
/// same element.
#[derive(Debug)]
pub(crate) struct SharedPtr<T>(*mut T);

impl<T> Clone for SharedPtr<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SharedPtr<T> {}

// SAFETY: every kernel that creates one ensures the condition above.
unsafe impl<T: Send> Send for SharedPtr<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedPtr<T> {}

impl<T> SharedPtr<T> {
    /// Creates a pointer for reading only.
    #[inline(always)]
    pub(crate) fn new(p: *const T) -> Self {
        SharedPtr(p.cast_mut())
    }
    /// Creates a pointer for reading and writing.
    #[inline(always)]
    pub(crate) fn new_mut(p: *mut T) -> Self {
        SharedPtr(p)
    }
    /// Returns the pointer advanced by `i` elements.
    ///
    /// # Safety
    /// The result is inside the allocation or one past its end.
    #[inline(always)]
    pub(crate) unsafe fn at(self, i: usize) -> *mut T {
        // SAFETY: promised by the caller.
        unsafe { self.0.add(i) }
    }
}
