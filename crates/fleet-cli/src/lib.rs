//! The commands `fleet` and `fleetrun` as functions, for the two binaries and for the scripts of
//! the Python package.

#![forbid(unsafe_code)]

mod checkpoint;
mod data;
mod doctor;
mod durable;
mod export;
mod fleet;
mod fleetrun;
mod new;
#[cfg(feature = "grpc")]
mod ps;

pub use self::fleet::fleet;
pub use self::fleetrun::fleetrun;
