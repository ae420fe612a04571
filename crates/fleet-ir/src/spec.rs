//! The signature of an op: its slots and attributes. The op registry holds its meaning.

use crate::{Attr, AttrKind};
use fleet_tensor::DType;

/// The slots and attributes of an op, in the order in which ops store them.
#[derive(Debug)]
pub struct OpSpec {
    pub name: &'static str,
    pub inputs: &'static [SlotSpec],
    pub outputs: &'static [SlotSpec],
    pub attrs: &'static [AttrSpec],
}

/// A named input or output of an op.
#[derive(Clone, Copy, Debug)]
pub struct SlotSpec {
    pub name: &'static str,
    pub arity: Arity,
}

/// The number of variables that a slot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    One,
    /// None or one.
    Optional,
    /// Any number, including zero.
    Many,
}

/// A named attribute. An attribute without a default is required.
#[derive(Clone, Copy, Debug)]
pub struct AttrSpec {
    pub name: &'static str,
    pub kind: AttrKind,
    pub default: Option<AttrConst>,
}

/// The default value of an attribute, as a constant.
#[derive(Clone, Copy, Debug)]
pub enum AttrConst {
    Int(i64),
    Float(f64),
    Bool(bool),
    Str(&'static str),
    Ints(&'static [i64]),
    Floats(&'static [f64]),
    Strs(&'static [&'static str]),
    DType(DType),
}

/// A lookup of specs by name, for reading programs from text or bytes.
pub trait Dialect {
    fn spec(&self, name: &str) -> Option<&'static OpSpec>;
    /// Returns every known name, for suggestions.
    fn names(&self) -> Vec<&'static str>;
}

pub const fn one(name: &'static str) -> SlotSpec {
    SlotSpec { name, arity: Arity::One }
}

pub const fn optional(name: &'static str) -> SlotSpec {
    SlotSpec { name, arity: Arity::Optional }
}

pub const fn many(name: &'static str) -> SlotSpec {
    SlotSpec { name, arity: Arity::Many }
}

/// Returns an attribute with a default.
pub const fn attr(name: &'static str, default: AttrConst) -> AttrSpec {
    AttrSpec { name, kind: default.kind(), default: Some(default) }
}

/// Returns a required attribute.
pub const fn required(name: &'static str, kind: AttrKind) -> AttrSpec {
    AttrSpec { name, kind, default: None }
}

impl AttrConst {
    pub const fn kind(&self) -> AttrKind {
        match self {
            AttrConst::Int(_) => AttrKind::Int,
            AttrConst::Float(_) => AttrKind::Float,
            AttrConst::Bool(_) => AttrKind::Bool,
            AttrConst::Str(_) => AttrKind::Str,
            AttrConst::Ints(_) => AttrKind::Ints,
            AttrConst::Floats(_) => AttrKind::Floats,
            AttrConst::Strs(_) => AttrKind::Strs,
            AttrConst::DType(_) => AttrKind::DType,
        }
    }

    pub fn to_attr(self) -> Attr {
        match self {
            AttrConst::Int(value) => Attr::Int(value),
            AttrConst::Float(value) => Attr::Float(value),
            AttrConst::Bool(value) => Attr::Bool(value),
            AttrConst::Str(value) => Attr::Str(value.to_string()),
            AttrConst::Ints(value) => Attr::Ints(value.to_vec()),
            AttrConst::Floats(value) => Attr::Floats(value.to_vec()),
            AttrConst::Strs(value) => Attr::Strs(value.iter().map(|s| s.to_string()).collect()),
            AttrConst::DType(value) => Attr::DType(value),
        }
    }
}

impl OpSpec {
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|slot| slot.name == name)
    }

    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|slot| slot.name == name)
    }

    pub fn attr_index(&self, name: &str) -> Option<usize> {
        self.attrs.iter().position(|attr| attr.name == name)
    }
}
