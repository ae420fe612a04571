//! Programs: what a network computes, as data.
//!
//! A [`Program`] holds blocks of ops over variables, all by `u32` id; names are labels for users,
//! strategies and checkpoints, never identity. What an op means is not known here: an op points to
//! its [`OpSpec`] (slots and attributes), which a [`Dialect`] looks up by name when a program is read
//! from text or bytes.

mod attr;
mod op;
mod program;
mod spec;
mod var;

pub use attr::{Attr, AttrKind};
pub use op::{Op, OpBuilder, OpRole};
pub use program::{Block, BlockId, OpId, Program, VarId};
pub use spec::{
    Arity, AttrConst, AttrSpec, Dialect, OpSpec, SlotSpec, attr, many, one, optional, required,
};
pub use var::{Param, Regularizer, Var, VarKind};
