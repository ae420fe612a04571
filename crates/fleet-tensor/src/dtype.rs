//! Element types.

use crate::Plain;
use fleet_base::{Error, Result, text};
use half::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    /// Booleans, stored as bytes of 0 and 1.
    Bool,
    /// Unsigned integers of 8 bits.
    U8,
    /// Signed integers of 8 bits.
    I8,
    /// Signed integers of 16 bits.
    I16,
    /// Signed integers of 32 bits.
    I32,
    /// Signed integers of 64 bits: ids and labels.
    I64,
    /// IEEE floats of 16 bits.
    F16,
    /// Floats of 16 bits with the range of `F32`.
    BF16,
    /// Floats of 32 bits.
    F32,
    /// Floats of 64 bits.
    F64,
}

impl DType {
    /// Every type, in the order of declaration.
    pub const ALL: [DType; 10] = [
        DType::Bool,
        DType::U8,
        DType::I8,
        DType::I16,
        DType::I32,
        DType::I64,
        DType::F16,
        DType::BF16,
        DType::F32,
        DType::F64,
    ];

    /// Returns the size of one element in bytes.
    pub const fn size(self) -> usize {
        match self {
            DType::Bool | DType::U8 | DType::I8 => 1,
            DType::I16 | DType::F16 | DType::BF16 => 2,
            DType::I32 | DType::F32 => 4,
            DType::I64 | DType::F64 => 8,
        }
    }

    /// Returns whether the elements are floats.
    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    /// Returns the short name, as in the text form of programs: `f32`.
    pub const fn name(self) -> &'static str {
        NAMES[self as usize].0
    }

    /// Parses a short name or a documented long one (`float32`, `int64`).
    ///
    /// ```
    /// use fleet_tensor::DType;
    /// assert_eq!(DType::parse("f32").unwrap(), DType::F32);
    /// assert_eq!(DType::parse("int64").unwrap(), DType::I64);
    /// let error = DType::parse("flaot32").unwrap_err().to_string();
    /// assert!(error.contains("did you mean 'float32'?"));
    /// ```
    pub fn parse(name: &str) -> Result<DType> {
        if let Some(index) = NAMES.iter().position(|names| names.0 == name || names.1 == name) {
            return Ok(DType::ALL[index]);
        }
        let hint = text::did_you_mean(name, NAMES.iter().flat_map(|names| [names.0, names.1]));
        Err(Error::invalid(format!("unknown element type '{name}'{hint}")))
    }
}

/// The short and the long name of each type, in the order of [`DType::ALL`].
const NAMES: [(&str, &str); DType::ALL.len()] = [
    ("bool", "bool"),
    ("u8", "uint8"),
    ("i8", "int8"),
    ("i16", "int16"),
    ("i32", "int32"),
    ("i64", "int64"),
    ("f16", "float16"),
    ("bf16", "bfloat16"),
    ("f32", "float32"),
    ("f64", "float64"),
];

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that tensors can have as elements. Tensors of `bool` hold bytes of 0 and 1 and are
/// read as `u8`.
pub trait Element: Plain + Default + PartialEq + fmt::Debug + 'static {
    /// Type of these elements.
    const DTYPE: DType;

    /// Whether a tensor of `dtype` can be read as this type.
    fn reads(dtype: DType) -> bool {
        dtype == Self::DTYPE
    }
}

macro_rules! element {
    ($($ty:ty => $dtype:ident),*) => {
        $(impl Element for $ty { const DTYPE: DType = DType::$dtype; })*
    };
}
element!(i8 => I8, i16 => I16, i32 => I32, i64 => I64);
element!(f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

impl Element for u8 {
    const DTYPE: DType = DType::U8;
    fn reads(dtype: DType) -> bool {
        matches!(dtype, DType::U8 | DType::Bool)
    }
}
