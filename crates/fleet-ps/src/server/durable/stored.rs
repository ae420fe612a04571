//! Values in a snapshot: numbers little-endian, a list after its length, a struct field by field.

use super::blocks::{BlockReader, BlockWriter};
use super::epochs::{Epoch, Epochs};
use crate::dense::DenseRuntime;
use crate::message::{Number, bytes_of};
use crate::server::pending::{HeldPush, Pending};
use crate::server::progress_tracker::WorkerProgress;
use crate::server::sessions::SessionImage;
use crate::sync::BarrierImage;
use fleet_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::io::{Result as IoResult, Write};

/// A value that a snapshot holds.
pub(super) trait Stored: Sized {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()>;
    fn load(input: &mut BlockReader) -> Result<Self>;

    /// Writes the items of a list.
    fn store_items(items: &[Self], out: &mut BlockWriter) -> IoResult<()> {
        items.iter().try_for_each(|item| item.store(out))
    }

    /// Reads the items of a list.
    fn load_items(count: u64, input: &mut BlockReader) -> Result<Vec<Self>> {
        (0..count).map(|_| Self::load(input)).collect()
    }
}

macro_rules! stored_numbers {
    ($($t:ty)*) => {$(
        impl Stored for $t {
            fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
                out.write_all(&self.to_le_bytes())
            }

            fn load(input: &mut BlockReader) -> Result<$t> {
                let mut bytes = [0; size_of::<$t>()];
                input.fill(&mut bytes)?;
                Ok(<$t>::from_le_bytes(bytes))
            }

            fn store_items(items: &[$t], out: &mut BlockWriter) -> IoResult<()> {
                out.write_all(&bytes_of(items))
            }

            fn load_items(count: u64, input: &mut BlockReader) -> Result<Vec<$t>> {
                let bytes = list_bytes(count, size_of::<$t>(), input)?;
                Ok(bytes.chunks_exact(size_of::<$t>()).map(Number::from_little).collect())
            }
        }
    )*};
}
stored_numbers!(u8 u32 u64 f32);

/// Reads the bytes of a list of numbers.
fn list_bytes(count: u64, width: usize, input: &mut BlockReader) -> Result<Vec<u8>> {
    let bytes = count.saturating_mul(width as u64);
    if bytes > input.total() {
        return Err(input.damaged(format!("a list of {count} numbers is longer than the file")));
    }
    let mut list = vec![0; bytes as usize];
    input.fill(&mut list)?;
    Ok(list)
}

impl Stored for bool {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        u64::from(*self).store(out)
    }

    fn load(input: &mut BlockReader) -> Result<bool> {
        Ok(u64::load(input)? != 0)
    }
}

impl<T: Stored> Stored for Vec<T> {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        (self.len() as u64).store(out)?;
        T::store_items(self, out)
    }

    fn load(input: &mut BlockReader) -> Result<Vec<T>> {
        let count = u64::load(input)?;
        T::load_items(count, input)
    }
}

impl<T: Stored> Stored for Option<T> {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        self.is_some().store(out)?;
        self.iter().try_for_each(|value| value.store(out))
    }

    fn load(input: &mut BlockReader) -> Result<Option<T>> {
        bool::load(input)?.then(|| T::load(input)).transpose()
    }
}

impl<T: Stored> Stored for [T; 2] {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        T::store_items(self, out)
    }

    fn load(input: &mut BlockReader) -> Result<[T; 2]> {
        Ok([T::load(input)?, T::load(input)?])
    }
}

impl<A: Stored, B: Stored> Stored for (A, B) {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        self.0.store(out)?;
        self.1.store(out)
    }

    fn load(input: &mut BlockReader) -> Result<(A, B)> {
        Ok((A::load(input)?, B::load(input)?))
    }
}

/// Pairs of a key and a value, as one list of numbers.
impl Stored for BTreeMap<u32, u64> {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        let pairs = self.iter().flat_map(|(key, value)| [u64::from(*key), *value]);
        pairs.collect::<Vec<u64>>().store(out)
    }

    fn load(input: &mut BlockReader) -> Result<BTreeMap<u32, u64>> {
        let pairs = Vec::<u64>::load(input)?;
        Ok(pairs.chunks_exact(2).map(|pair| (pair[0] as u32, pair[1])).collect())
    }
}

/// Three numbers for each epoch, as one list.
impl Stored for Epochs {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        let epochs = self.list().iter();
        let numbers = epochs.flat_map(|it| [it.id, it.first, u64::from(it.accepts_loss)]);
        numbers.collect::<Vec<u64>>().store(out)
    }

    fn load(input: &mut BlockReader) -> Result<Epochs> {
        let mut epochs = Epochs::default();
        for epoch in Vec::<u64>::load(input)?.chunks_exact(3) {
            epochs.push(Epoch { id: epoch[0], first: epoch[1], accepts_loss: epoch[2] != 0 });
        }
        Ok(epochs)
    }
}

const KINDS: [ErrorKind; 6] = [
    ErrorKind::Invalid,
    ErrorKind::Unsupported,
    ErrorKind::Unavailable,
    ErrorKind::Exhausted,
    ErrorKind::Numeric,
    ErrorKind::Internal,
];

/// An answer after 0, or the text of an error after the number of its kind, from 1.
impl Stored for Result<Vec<u8>> {
    fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
        match self {
            Ok(answer) => {
                0u64.store(out)?;
                answer.store(out)
            }
            Err(error) => {
                let kind = KINDS.iter().position(|kind| *kind == error.kind()).unwrap_or(0);
                (1 + kind as u64).store(out)?;
                error.to_string().into_bytes().store(out)
            }
        }
    }

    fn load(input: &mut BlockReader) -> Result<Result<Vec<u8>>> {
        let (kind, bytes) = <(u64, Vec<u8>)>::load(input)?;
        Ok(match kind.checked_sub(1) {
            None => Ok(bytes),
            Some(kind) => {
                let kind = KINDS.get(kind as usize).copied().unwrap_or(ErrorKind::Internal);
                Err(Error::new(kind, String::from_utf8_lossy(&bytes)))
            }
        })
    }
}

macro_rules! stored_structs {
    ($($name:ident { $($field:ident)* })*) => {$(
        impl Stored for $name {
            fn store(&self, out: &mut BlockWriter) -> IoResult<()> {
                $(self.$field.store(out)?;)*
                Ok(())
            }

            fn load(input: &mut BlockReader) -> Result<$name> {
                Ok($name { $($field: Stored::load(input)?),* })
            }
        }
    )*};
}
pub(super) use stored_structs;

// The fields are in the order of the file.
stored_structs! {
    BarrierImage { rounds arrived skipped finished }
    SessionImage { client done answers }
    WorkerProgress { owner client base complete tables kept_step kept }
    Pending { pushes }
    HeldPush { worker seq ids grads shows clicks slots }
    DenseRuntime { rate_scale push_count values state sum read is_loaded }
}
