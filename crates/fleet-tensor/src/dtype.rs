//! Element types.

use crate::Plain;
use fleet_base::{Error, Result, text};
use half::{bf16, f16};
use std::fmt;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DType {
    Bool,
    U8,
    I8,
    I16,
    I32,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl DType {
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

    pub const fn is_float(self) -> bool {
        matches!(self, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
    }

    pub const fn is_int(self) -> bool {
        matches!(self, DType::U8 | DType::I8 | DType::I16 | DType::I32 | DType::I64)
    }

    /// Returns the short name, as in the text form of programs: `f32`.
    pub const fn name(self) -> &'static str {
        match self {
            DType::Bool => "bool",
            DType::U8 => "u8",
            DType::I8 => "i8",
            DType::I16 => "i16",
            DType::I32 => "i32",
            DType::I64 => "i64",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::F32 => "f32",
            DType::F64 => "f64",
        }
    }

    /// Parses a short name or a documented long one (`float32`, `int64`).
    ///
    /// ```
    /// use fleet_tensor::DType;
    /// assert_eq!(DType::parse("f32").unwrap(), DType::F32);
    /// assert_eq!(DType::parse("int64").unwrap(), DType::I64);
    /// assert!(DType::parse("flaot32").unwrap_err().to_string().contains("did you mean 'float32'?"));
    /// ```
    pub fn parse(name: &str) -> Result<DType> {
        const LONG: [(&str, DType); 10] = [
            ("bool", DType::Bool),
            ("uint8", DType::U8),
            ("int8", DType::I8),
            ("int16", DType::I16),
            ("int32", DType::I32),
            ("int64", DType::I64),
            ("float16", DType::F16),
            ("bfloat16", DType::BF16),
            ("float32", DType::F32),
            ("float64", DType::F64),
        ];
        if let Some(found) = DType::ALL.into_iter().find(|dtype| dtype.name() == name) {
            return Ok(found);
        }
        if let Some((_, found)) = LONG.iter().find(|(long, _)| *long == name) {
            return Ok(*found);
        }
        let known = DType::ALL.iter().map(|dtype| dtype.name()).chain(LONG.iter().map(|it| it.0));
        let hint = text::did_you_mean(name, known);
        Err(Error::invalid(format!("unknown element type '{name}'{hint}")))
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A Rust type that tensors can have as elements. Tensors of `bool` hold bytes of 0 and 1 and are
/// read as `u8`.
pub trait Element: Plain + Default + PartialEq + fmt::Debug + 'static {
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
element!(i8 => I8, i16 => I16, i32 => I32, i64 => I64, f16 => F16, bf16 => BF16, f32 => F32, f64 => F64);

impl Element for u8 {
    const DTYPE: DType = DType::U8;
    fn reads(dtype: DType) -> bool {
        matches!(dtype, DType::U8 | DType::Bool)
    }
}
