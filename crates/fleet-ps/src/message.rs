//! Numbers and texts in messages, as bytes. Everything is little-endian.

use fleet_base::{Error, Result};
use std::borrow::Cow;

/// Length of the end of an answer to a changing request: the epoch of the server, and the number
/// below which its requests are kept.
pub(crate) const ACKNOWLEDGEMENT_BYTES: usize = 16;

/// The unread rest of a message. Reads check every length, because the peer is not trusted.
#[derive(Clone, Copy)]
pub(crate) struct Body<'a>(pub &'a [u8]);

impl<'a> Body<'a> {
    fn take(&mut self, count: u64, width: usize) -> Result<&'a [u8]> {
        let bytes = usize::try_from(count).ok().and_then(|count| count.checked_mul(width));
        let split = bytes.and_then(|bytes| self.0.split_at_checked(bytes));
        let (taken, rest) = split.ok_or_else(|| {
            Error::invalid("message is shorter than its header states")
                .expected(format!("{count} x {width} more bytes"))
                .got(self.0.len())
        })?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.take(1, 4).map(u32::from_little)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.take(1, 8).map(u64::from_little)
    }

    /// Reads `count` numbers, in place where their bytes allow it.
    pub fn numbers<T: Number>(&mut self, count: u64) -> Result<Cow<'a, [T]>> {
        let bytes = self.take(count, size_of::<T>())?;
        Ok(match bytemuck::try_cast_slice(bytes) {
            Ok(numbers) if cfg!(target_endian = "little") => Cow::Borrowed(numbers),
            _ => bytes.chunks_exact(size_of::<T>()).map(T::from_little).collect(),
        })
    }

    /// Reads the rest as numbers.
    pub fn rest_f32s(&mut self) -> Result<Cow<'a, [f32]>> {
        let numbers = self.numbers(self.0.len() as u64 / 4)?;
        self.end()?;
        Ok(numbers)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = self.u64()?;
        self.take(count, 1)
    }

    pub fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| Error::invalid("text in a message is not UTF-8"))
    }

    pub fn end(&self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(Error::invalid("message is longer than its header states")
                .got(format!("{more} more bytes"))),
        }
    }
}

/// Returns numbers as the bytes of a message.
pub(crate) fn bytes_of<T: Number>(numbers: &[T]) -> Cow<'_, [u8]> {
    match cfg!(target_endian = "little") {
        true => Cow::Borrowed(bytemuck::cast_slice(numbers)),
        false => numbers.iter().flat_map(|number| number.little()).collect(),
    }
}

pub(crate) trait Number: bytemuck::Pod {
    /// Returns its bytes, lowest first.
    fn little(&self) -> Vec<u8>;
    /// Returns the number with these bytes, as many as it has, lowest first.
    fn from_little(bytes: &[u8]) -> Self;
}

macro_rules! number {
    ($($t:ty)*) => {$(
        impl Number for $t {
            fn little(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn from_little(bytes: &[u8]) -> $t {
                let mut own = [0; size_of::<$t>()];
                own.copy_from_slice(bytes);
                <$t>::from_le_bytes(own)
            }
        }
    )*};
}
number!(u8 u32 u64 f32);

/// Appends numbers to an answer.
pub(crate) fn put<T: Number>(answer: &mut Vec<u8>, numbers: &[T]) {
    answer.extend_from_slice(&bytes_of(numbers));
}

/// Appends `count` numbers to `answer`; `fill` writes them.
pub(crate) fn fill_f32s(
    answer: &mut Vec<u8>,
    count: usize,
    fill: impl FnOnce(&mut [f32]) -> Result<()>,
) -> Result<()> {
    let start = answer.len();
    answer.resize(start + count * 4, 0);
    match bytemuck::try_cast_slice_mut(&mut answer[start..]) {
        Ok(numbers) if cfg!(target_endian = "little") => fill(numbers),
        _ => {
            let mut numbers = vec![0.0; count];
            let result = fill(&mut numbers);
            answer.truncate(start);
            numbers.iter().for_each(|number| answer.extend(number.to_le_bytes()));
            result
        }
    }
}

/// Copies the numbers of a message into `out`, which has the same length.
pub(crate) fn copy_f32s(bytes: &[u8], out: &mut [f32]) {
    if cfg!(target_endian = "little") {
        bytemuck::cast_slice_mut(out).copy_from_slice(bytes);
        return;
    }
    for (number, bytes) in out.iter_mut().zip(bytes.chunks_exact(4)) {
        *number = f32::from_little(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_wherever_they_stand_in_memory() {
        for shift in 0..9 {
            let mut bytes = vec![0; shift];
            bytes.extend(bytes_of(&[u64::MAX, 5]).iter());
            bytes.extend(bytes_of(&[1.5f32, -2.0]).iter());
            let mut body = Body(&bytes[shift..]);
            assert_eq!(*body.numbers::<u64>(2).unwrap(), [u64::MAX, 5]);
            let mut out = [0.0; 2];
            copy_f32s(body.0, &mut out);
            assert_eq!(out, [1.5, -2.0]);
            assert_eq!(*body.rest_f32s().unwrap(), out);
            let mut answer = vec![1; shift];
            fill_f32s(&mut answer, 2, |numbers| {
                numbers.copy_from_slice(&out);
                Ok(())
            })
            .unwrap();
            assert_eq!(answer[shift..], bytes[bytes.len() - 8..]);
        }
    }

    #[test]
    fn lengths_that_lie_are_refused() {
        assert!(Body(&[0; 24]).numbers::<u64>(u64::MAX).is_err());
        assert!(Body(&[1, 2, 3]).rest_f32s().is_err(), "not whole numbers");
        assert!(Body(&[255; 12]).text().is_err());
    }
}
