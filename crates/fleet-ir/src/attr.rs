//! Attribute values of ops.

use crate::BlockId;
use fleet_tensor::DType;
use std::fmt;

/// The value of an attribute.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    Str(String),
    /// Integers, such as the sizes of a shape.
    Ints(Vec<i64>),
    /// Floating-point numbers.
    Floats(Vec<f64>),
    /// Texts.
    Strs(Vec<String>),
    /// An element type.
    DType(DType),
    /// A block that the op runs: the body of a loop or a branch.
    Block(BlockId),
}

/// The type of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttrKind {
    /// [`Attr::Int`].
    Int,
    /// [`Attr::Float`].
    Float,
    /// [`Attr::Bool`].
    Bool,
    /// [`Attr::Str`].
    Str,
    /// [`Attr::Ints`].
    Ints,
    /// [`Attr::Floats`].
    Floats,
    /// [`Attr::Strs`].
    Strs,
    /// [`Attr::DType`].
    DType,
    /// [`Attr::Block`].
    Block,
}

impl Attr {
    /// Returns the type of the value.
    pub fn kind(&self) -> AttrKind {
        match self {
            Attr::Int(_) => AttrKind::Int,
            Attr::Float(_) => AttrKind::Float,
            Attr::Bool(_) => AttrKind::Bool,
            Attr::Str(_) => AttrKind::Str,
            Attr::Ints(_) => AttrKind::Ints,
            Attr::Floats(_) => AttrKind::Floats,
            Attr::Strs(_) => AttrKind::Strs,
            Attr::DType(_) => AttrKind::DType,
            Attr::Block(_) => AttrKind::Block,
        }
    }
}

impl AttrKind {
    /// Returns the name of the type as errors show it: `list of int`.
    pub fn name(self) -> &'static str {
        match self {
            AttrKind::Int => "int",
            AttrKind::Float => "float",
            AttrKind::Bool => "bool",
            AttrKind::Str => "string",
            AttrKind::Ints => "list of int",
            AttrKind::Floats => "list of float",
            AttrKind::Strs => "list of string",
            AttrKind::DType => "element type",
            AttrKind::Block => "block",
        }
    }
}

impl fmt::Display for AttrKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

macro_rules! attr_from {
    ($($ty:ty => $make:expr;)*) => {
        $(impl From<$ty> for Attr {
            fn from(value: $ty) -> Attr {
                let make: fn($ty) -> Attr = $make;
                make(value)
            }
        })*
    };
}

attr_from! {
    i64 => Attr::Int;
    i32 => |v| Attr::Int(i64::from(v));
    usize => |v| Attr::Int(v as i64);
    f64 => Attr::Float;
    f32 => |v| Attr::Float(f64::from(v));
    bool => Attr::Bool;
    String => Attr::Str;
    &str => |v| Attr::Str(v.to_string());
    Vec<i64> => Attr::Ints;
    &[i64] => |v| Attr::Ints(v.to_vec());
    Vec<f64> => Attr::Floats;
    Vec<String> => Attr::Strs;
    DType => Attr::DType;
    BlockId => Attr::Block;
}
