//! Encodes numbers, bytes and texts: little-endian, with length prefixes. Every read is checked.

use fleet_base::{Error, ErrorCode, ErrorKind as Kind, Result};

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
        // Callers limit their bytes to far less than 4 GiB.
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
            Error::unavailable("truncated message from peer")
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
        utf8(self.bytes()?)
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
            more => Err(Error::unavailable("trailing bytes in a message from peer")
                .got(format!("{more} more bytes"))),
        }
    }
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|_| Error::unavailable("text in a message from peer is not UTF-8"))
}

/// Writes an error for another process, part by part. The reader gets the same kind, code and
/// culprit.
pub(crate) fn put_error(writer: Writer, error: &Error) -> Writer {
    let kind = position(&KINDS, error.kind());
    let code = error.code().map_or(0, |code| 1 + position(&CODES, code));
    let culprit = error.culprit().map_or(NO_CULPRIT, |rank| rank as u32);
    let mut room = ERROR_BYTES_MAX;
    let mut short = |text: &str| {
        let mut end = text.len().min(room);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        room -= end;
        text[..end].to_string()
    };
    let writer = writer.u8(kind).u8(code).u32(culprit).text(&short(error.message()));
    let writer = error.details().into_iter().fold(writer, |writer, text| {
        writer.option(text.map(&mut short).as_ref().map(String::as_bytes))
    });
    let count = error.places().len().min(PLACES_MAX);
    error.places()[..count]
        .iter()
        .fold(writer.u32(count as u32), |writer, place| writer.text(&short(place)))
}

/// Reads an error from another process.
pub(crate) fn take_error(reader: &mut Reader<'_>) -> Result<Error> {
    let kind = KINDS.get(usize::from(reader.u8()?)).copied().unwrap_or(Kind::Unavailable);
    let code = usize::from(reader.u8()?).checked_sub(1).and_then(|code| CODES.get(code));
    let culprit = reader.u32()?;
    let mut error = Error::new(kind, reader.text()?);
    if let Some(code) = code {
        error = error.with_code(*code);
    }
    if culprit != NO_CULPRIT {
        error = error.caused_by(culprit as usize);
    }
    let details: [fn(Error, &str) -> Error; 3] = [
        |error, text| error.expected(text),
        |error, text| error.got(text),
        |error, text| error.help(text),
    ];
    for detail in details {
        if let Some(text) = reader.option()? {
            error = detail(error, utf8(text)?);
        }
    }
    let count = reader.u32()?;
    for _ in 0..count.min(PLACES_MAX as u32) {
        error = error.at(reader.text()?);
    }
    Ok(error)
}

fn position<T: PartialEq>(known: &[T], wanted: T) -> u8 {
    // The lists contain every variant and are short.
    known.iter().position(|item| *item == wanted).unwrap_or(0) as u8
}

/// Kinds by their numbers in messages.
const KINDS: [Kind; 6] = [
    Kind::Invalid,
    Kind::Unsupported,
    Kind::Unavailable,
    Kind::Exhausted,
    Kind::Numeric,
    Kind::Internal,
];

/// Codes by their numbers in messages, which start at 1: 0 means no code.
const CODES: [ErrorCode; 5] = [
    ErrorCode::ConnectionClosed,
    ErrorCode::ConnectionLost,
    ErrorCode::KeysMissing,
    ErrorCode::Deadlock,
    ErrorCode::NotConnected,
];

const NO_CULPRIT: u32 = u32::MAX;

/// Size limit of all texts of an error together. Longer texts are truncated.
const ERROR_BYTES_MAX: usize = 8 << 10;

/// Maximum number of places of an error. Errors of Fleet have fewer than ten.
const PLACES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(error: &Error) -> Error {
        let bytes = put_error(Writer::new(), error).0;
        let mut reader = Reader::new(&bytes);
        let read = take_error(&mut reader).unwrap();
        reader.end().unwrap();
        read
    }

    #[test]
    fn errors_arrive_as_they_were_sent() {
        let plain = Error::invalid("no such table").expected("0 to 3").got(7).help("declare it");
        let coded = Error::unavailable("rank 3 died").with_code(ErrorCode::Deadlock).caused_by(3);
        let placed = Error::internal("a lock is poisoned").at("table 1").at("server 0");
        let cases =
            KINDS.map(|kind| Error::new(kind, "x")).into_iter().chain([plain, coded, placed]);
        for error in cases {
            assert_eq!(sent(&error), error);
        }
        for code in CODES {
            assert_eq!(sent(&Error::numeric("x").with_code(code)).code(), Some(code));
        }
    }

    #[test]
    fn long_errors_are_cut_at_a_character() {
        let long = Error::invalid("é".repeat(ERROR_BYTES_MAX)).at("here").help("shorten it");
        let read = sent(&long);
        assert_eq!(read.message().len(), ERROR_BYTES_MAX);
        let many = (0..2 * PLACES_MAX).fold(Error::invalid("x"), |error, place| error.at(place));
        assert_eq!(sent(&many).places().len(), PLACES_MAX);
    }

    #[test]
    fn truncated_errors_are_refused() {
        let error = Error::invalid("no such table").expected("0").got(7).help("declare it").at("t");
        let bytes = put_error(Writer::new(), &error).0;
        for end in 0..bytes.len() {
            assert!(take_error(&mut Reader::new(&bytes[..end])).is_err(), "{end} bytes");
        }
    }
}
