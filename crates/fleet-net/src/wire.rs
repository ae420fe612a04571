//! Numbers, bytes and texts in messages: little-endian, lengths first, every read checked.

use fleet_base::{Error, Result};

#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn new() -> Writer {
        Writer::default()
    }

    pub(crate) fn u8(mut self, value: u8) -> Writer {
        self.0.push(value);
        self
    }

    pub(crate) fn u32(mut self, value: u32) -> Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn u64(mut self, value: u64) -> Writer {
        self.0.extend(value.to_le_bytes());
        self
    }

    pub(crate) fn bytes(self, value: &[u8]) -> Writer {
        // Every caller's bytes are bounded far below by its own limits.
        let mut writer = self.u32(value.len() as u32);
        writer.0.extend(value);
        writer
    }

    pub(crate) fn text(self, value: &str) -> Writer {
        self.bytes(value.as_bytes())
    }

    pub(crate) fn option(self, value: Option<&[u8]>) -> Writer {
        match value {
            None => self.u8(0),
            Some(value) => self.u8(1).bytes(value),
        }
    }
}

pub(crate) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader(bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| {
            Error::unavailable("a peer's message is cut off")
                .expected(format!("{count} more bytes"))
                .got(self.0.len())
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.array::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8]> {
        let count = self.u32()?;
        self.take(count as usize)
    }

    pub(crate) fn text(&mut self) -> Result<&'a str> {
        std::str::from_utf8(self.bytes()?)
            .map_err(|_| Error::unavailable("a peer's message holds text that is not UTF-8"))
    }

    pub(crate) fn option(&mut self) -> Result<Option<&'a [u8]>> {
        Ok(match self.u8()? {
            0 => None,
            _ => Some(self.bytes()?),
        })
    }

    pub(crate) fn end(self) -> Result<()> {
        match self.0.len() {
            0 => Ok(()),
            more => Err(Error::unavailable("a peer's message is longer than what it says")
                .got(format!("{more} more bytes"))),
        }
    }
}

/// An error on its way to another process; places and help travel along.
pub(crate) fn put_error(writer: Writer, error: &Error) -> Writer {
    use fleet_base::ErrorKind as Kind;
    let kind = match error.kind() {
        Kind::Invalid => 0,
        Kind::Unsupported => 1,
        Kind::Unavailable => 2,
        Kind::Exhausted => 3,
        Kind::Numeric => 4,
        Kind::Internal => 5,
    };
    let text = error.to_string();
    let text = text.strip_prefix("internal error (please report it): ").unwrap_or(&text);
    let mut end = text.len().min(ERROR_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    writer.u8(kind).text(&text[..end])
}

/// A message of an error from a peer that is longer than this helps nobody.
const ERROR_BYTES_MAX: usize = 8 << 10;

pub(crate) fn take_error(reader: &mut Reader<'_>) -> Result<Error> {
    use fleet_base::ErrorKind as Kind;
    let kind = match reader.u8()? {
        0 => Kind::Invalid,
        1 => Kind::Unsupported,
        3 => Kind::Exhausted,
        4 => Kind::Numeric,
        5 => Kind::Internal,
        _ => Kind::Unavailable,
    };
    Ok(Error::new(kind, reader.text()?))
}
