//! What every room of Fleet shares and none of them owns: ids and entity maps, the error type,
//! counter-based random numbers, files that appear whole, the port to the file system, name
//! suggestions. It knows nothing of machine learning.

pub mod disk;
pub mod entity;
pub mod error;
pub mod file;
pub mod input;
pub mod rng;
pub mod sealed;
pub mod signals;
pub mod text;

pub use entity::{EntityMap, EntityRef};
pub use error::{Error, ErrorCode, ErrorKind, Result};
