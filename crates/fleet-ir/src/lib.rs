//! Programs: what a network computes, as data.
//!
//! A [`Program`] holds blocks of ops over variables, all by `u32` id; names are labels for users,
//! strategies and checkpoints, never identity. What an op means is not known here: an op points to
//! its [`OpSpec`] (slots and attributes), which a [`Dialect`] looks up by name when a program is
//! read from text or bytes.
//!
//! A program prints itself (`Display`), is read back by [`Program::parse`], and goes through
//! protobuf by [`Program::to_bytes`] and [`Program::from_bytes`]. Two programs are equal when they
//! print the same. [`Program::verify`] lists everything that is wrong with one.

mod attr;
mod lex;
mod limits;
mod op;
mod parse;
mod program;
mod proto;
mod scan;
mod spec;
mod text;
mod var;
mod verify;

pub use attr::{Attr, AttrKind};
pub use limits::PROGRAM_BYTES_MAX;
pub use op::{Op, OpBuilder, OpRole};
pub use program::{Block, BlockId, OpId, Program, VarId};
pub use spec::{
    Arity, AttrConst, AttrSpec, Dialect, OpSpec, SlotSpec, attr, many, one, optional, required,
};
pub use var::{Param, Regularizer, Var, VarKind};
pub use verify::all_in_one;
