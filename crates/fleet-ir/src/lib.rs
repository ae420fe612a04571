//! The program format: a network and its training step as data.
//!
//! A [`Program`] holds blocks of ops over variables. Blocks, ops and variables are identified by
//! `u32` ids. Names are labels for users, strategies and checkpoints, never identity. This crate
//! does not know the meaning of an op. Each op points to its [`OpSpec`] (slots and attributes). A
//! [`Dialect`] looks specs up by name when a program is read from text or bytes.
//!
//! A program prints itself (`Display`), and [`Program::parse`] reads the text back.
//! [`Program::to_bytes`] and [`Program::from_bytes`] write and read the protobuf form. Two programs
//! are equal when they print the same text. [`Program::to_dot`] writes a graph for Graphviz.
//! [`Program::verify`] reports every error in a program.

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod attr;
mod dot;
mod lex;
mod limits;
mod names;
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
pub use program::{Block, BlockId, NameCounters, OpId, Program, VarId};
pub use spec::{
    Arity, AttrConst, AttrSpec, Dialect, OpSpec, SlotSpec, attr, many, one, optional, required,
};
pub use var::{Division, Param, Regularizer, Var, VarKind};
pub use verify::all_in_one;
