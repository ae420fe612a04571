//! The backend for ranks that share memory.
//!
//! **Cost.** An all-reduce of S bytes over n ranks must read and write every rank's buffer once:
//! 2nS bytes of memory traffic. Everything else stays in caches. Data goes through slots of some
//! ten thousand bytes, which one rank writes and the others read before they leave the second-level
//! cache. With two ranks each byte crosses between the cores once as an operand and once as a
//! result.
//!
//! **Protocol.** All ranks go through the same sequence of numbered *steps*. In a step a rank may
//! write its slot of that number (modulo [`segment::SLOTS`]) and publishes its counter `filled`. It
//! reads the slots of the others when their counters have reached the step, and publishes its
//! counter `consumed`. A slot is overwritten only when every rank has consumed its content. A
//! collective is a short sequence of steps, and an early rank runs ahead until its slots are full.
//!
//! **Waiting** starts with a short spin, or none if the host has fewer cores than ranks. Then it
//! uses a futex with a timeout. At each timeout it checks the reasons to stop: the token, the
//! deadline, the fault of another rank, the death of a peer.

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
