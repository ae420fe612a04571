//! The signature of an op: its slots and attributes. The op registry holds its meaning.

use crate::{Attr, AttrKind};
use fleet_tensor::DType;

/// The slots and attributes of an op, in the order in which ops store them.
#[derive(Debug)]
pub struct OpSpec {
    /// The name of the operation: `matmul`.
    pub name: &'static str,
    /// The input slots.
    pub inputs: &'static [SlotSpec],
    /// The output slots.
    pub outputs: &'static [SlotSpec],
    /// The attributes.
    pub attrs: &'static [AttrSpec],
}

/// A named input or output of an op.
#[derive(Clone, Copy, Debug)]
pub struct SlotSpec {
    /// The documented name of the slot: `X`.
    pub name: &'static str,
    /// The number of variables that the slot takes.
    pub arity: Arity,
}

/// The number of variables that a slot takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Exactly one.
    One,
    /// None or one.
    Optional,
    /// Any number, including zero.
    Many,
}

/// A named attribute. An attribute without a default is required.
#[derive(Clone, Copy, Debug)]
pub struct AttrSpec {
    /// The documented name of the attribute.
    pub name: &'static str,
    /// The type of its values.
    pub kind: AttrKind,
    /// The value of ops that do not set it; `None` if every op must.
    pub default: Option<AttrConst>,
}

/// The default value of an attribute, as a constant.
#[derive(Clone, Copy, Debug)]
pub enum AttrConst {
    /// See [`Attr::Int`].
    Int(i64),
    /// See [`Attr::Float`].
    Float(f64),
    /// See [`Attr::Bool`].
    Bool(bool),
    /// See [`Attr::Str`].
    Str(&'static str),
    /// See [`Attr::Ints`].
    Ints(&'static [i64]),
    /// See [`Attr::Floats`].
    Floats(&'static [f64]),
    /// See [`Attr::Strs`].
    Strs(&'static [&'static str]),
    /// See [`Attr::DType`].
    DType(DType),
}

/// A lookup of specs by name, for reading programs from text or bytes.
pub trait Dialect {
    /// Returns the spec of an op, or `None` if the name is not known.
    fn spec(&self, name: &str) -> Option<&'static OpSpec>;
    /// Returns every known name, for suggestions.
    fn names(&self) -> Vec<&'static str>;
}

/// Returns a slot that takes exactly one variable.
pub const fn one(name: &'static str) -> SlotSpec {
    SlotSpec { name, arity: Arity::One }
}

/// Returns a slot that takes at most one variable.
pub const fn optional(name: &'static str) -> SlotSpec {
    SlotSpec { name, arity: Arity::Optional }
}

/// Returns a slot that takes any number of variables.
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
    /// Returns the type of the value.
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

    /// Returns the value as an op stores it.
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
    /// Returns the position of an input slot among the inputs.
    pub fn input_index(&self, name: &str) -> Option<usize> {
        self.inputs.iter().position(|slot| slot.name == name)
    }

    /// Returns the position of an output slot among the outputs.
    pub fn output_index(&self, name: &str) -> Option<usize> {
        self.outputs.iter().position(|slot| slot.name == name)
    }

    /// Returns the position of an attribute among the attributes.
    pub fn attr_index(&self, name: &str) -> Option<usize> {
        self.attrs.iter().position(|attr| attr.name == name)
    }
}
