//! The order of a tensor's elements in memory.

use crate::Shape;
use std::fmt;

/// The physical order of a tensor's elements. Only the kernels named below read other layouts than
/// row-major. The executor may keep a parameter, its gradient and its optimizer state in another
/// layout, and converts them when they are fetched or saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Layout {
    /// The last dimension is contiguous.
    #[default]
    RowMajor,
    /// A convolution filter `[Cout, Cin/groups, kh, kw]`, stored as
    /// `[ceil(Cout/64)][kh][kw][Cin/groups][64]`. Missing output channels are zero. The direct
    /// convolution kernels read it without packing.
    Filter64,
}

impl Layout {
    /// Every layout, in order of introduction. Files refer to layouts by index and by name.
    pub const ALL: [Layout; 2] = [Layout::RowMajor, Layout::Filter64];

    /// Returns the name, as in the text form of programs.
    pub const fn name(self) -> &'static str {
        match self {
            Layout::RowMajor => "row_major",
            Layout::Filter64 => "filter64",
        }
    }

    /// Returns the number of elements that a tensor of `shape` occupies, including padding.
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
