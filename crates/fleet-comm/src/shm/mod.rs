//! The engine for ranks that share memory.
//!
//! **Sketch.** An all-reduce of S bytes over n ranks must read and write every rank's buffer once:
//! 2nS bytes of memory traffic. Everything else stays in caches: data goes through slots of some
//! ten thousand bytes, written by one rank and read by the others before they leave the
//! second-level cache. For two ranks each byte crosses between the cores once on the way in and
//! once on the way out.
//!
//! **Protocol.** All ranks walk through the same stream of numbered *steps*. In a step a rank may
//! write its slot of that number (modulo [`segment::SLOTS`]), publishes its counter `filled`, reads
//! the others' slots after their counters say so, and publishes `consumed`. A slot is written again
//! only when everybody has consumed what was in it. That is all: a collective is a small program
//! over steps, and a rank that is early runs ahead until the slots are full.
//!
//! **Waiting** is spinning for a moment, not at all when the host has fewer cores than ranks, then
//! a futex with a timeout, at which the reasons to give up are looked at: the token, the deadline,
//! another rank's fault, a peer's death.

mod engine;
mod join;
mod large;
mod moves;
mod pair;
mod segment;
mod small;
mod sys;

pub(crate) use engine::{Engine, Tuning};
pub(crate) use join::{Local, join};
pub(crate) use pair::check_pair;
pub(crate) use segment::LOCAL_RANKS_MAX;
pub(crate) use sys::cpu_time;
