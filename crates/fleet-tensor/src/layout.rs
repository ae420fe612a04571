//! How the elements of a tensor lie in memory.

use crate::Shape;
use std::fmt;

/// Physical order of a tensor's elements. Everything but the kernels named here sees row-major
/// tensors; the executor may keep a parameter (and its gradient and optimizer state) in another
/// layout, and converts when such a tensor is fetched or saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The last dimension is contiguous.
    #[default]
    RowMajor,
    /// A convolution filter [Cout, Cin/groups, kh, kw] kept as
    /// [ceil(Cout/64)][kh][kw][Cin/groups][64], missing output channels zero: what the direct
    /// convolution kernels read without packing.
    Filter64,
}

impl Layout {
    /// Every layout, oldest first: files refer to them by place and name.
    pub const ALL: [Layout; 2] = [Layout::RowMajor, Layout::Filter64];

    /// The name, as the text form of programs writes it.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::RowMajor => "row_major",
            Layout::Filter64 => "filter64",
        }
    }

    /// Elements that a tensor of `shape` occupies, padding included.
    pub fn physical_len(self, shape: &Shape) -> usize {
        match self {
            Layout::RowMajor => shape.len(),
            Layout::Filter64 => {
                assert_eq!(shape.rank(), 4, "a filter has four dimensions");
                shape.at(0).div_ceil(64) * 64 * shape.product(1..4)
            }
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
