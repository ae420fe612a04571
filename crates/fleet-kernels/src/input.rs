//! Inputs that may share the memory of the output.

use std::ops::Range;

/// An input of a kernel that reads each element before it writes the result to the same position.
///
/// ```
/// use fleet_kernels::{elementwise::{Unary, unary}, input::Input, pool::Pool};
/// let (pool, x) = (Pool::new(1), [-1.0, 2.0]);
/// let mut y = [0.0; 2];
/// unary(&pool, Unary::Abs, &x, &mut y);
/// unary(&pool, Unary::Neg, Input::Output, &mut y);
/// assert_eq!(y, [-1.0, -2.0]);
/// ```
#[derive(Clone, Copy, Debug)]
pub enum Input<'a, T> {
    /// Elements in memory of their own.
    Separate(&'a [T]),
    /// The elements are in the output, where the results replace them.
    Output,
}

impl<'a, T> Input<'a, T> {
    /// Returns the first `len` elements.
    pub fn first(self, len: usize) -> Self {
        match self {
            Input::Separate(all) => Input::Separate(&all[..len]),
            Input::Output => Input::Output,
        }
    }

    /// Returns a range of elements, for a kernel that gets the same range of the output.
    pub fn range(self, range: Range<usize>) -> Self {
        match self {
            Input::Separate(all) => Input::Separate(&all[range]),
            Input::Output => Input::Output,
        }
    }

    /// Returns the elements, which may be those of the output.
    pub fn or<'b>(self, output: &'b [T]) -> &'b [T]
    where
        'a: 'b,
    {
        match self {
            Input::Separate(slice) => slice,
            Input::Output => output,
        }
    }

    /// Returns the address of the elements.
    ///
    /// # Panics
    /// Panics unless there are `len` of them.
    pub(crate) fn start(self, len: usize, output: *const T, output_len: usize) -> *const T {
        let (start, given) = match self {
            Input::Separate(slice) => (slice.as_ptr(), slice.len()),
            Input::Output => (output, output_len),
        };
        assert_eq!(given, len, "input has the wrong length");
        start
    }
}

impl<'a, T> From<&'a [T]> for Input<'a, T> {
    fn from(slice: &'a [T]) -> Self {
        Input::Separate(slice)
    }
}

impl<'a, T, const N: usize> From<&'a [T; N]> for Input<'a, T> {
    fn from(array: &'a [T; N]) -> Self {
        Input::Separate(array)
    }
}

impl<'a, T> From<&'a Vec<T>> for Input<'a, T> {
    fn from(vec: &'a Vec<T>) -> Self {
        Input::Separate(vec)
    }
}
