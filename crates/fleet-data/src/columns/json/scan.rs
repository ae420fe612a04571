//! The tokens of JSON: strings, numbers, literals, and values to be skipped.

use crate::lines::LineError;
use fleet_base::Error;

/// A place in the text of a JSON value.
pub(in crate::columns) struct Scan<'a> {
    text: &'a [u8],
    at: usize,
    /// Name of the text: `line` or `body`.
    what: &'static str,
}

impl<'a> Scan<'a> {
    pub fn new(text: &'a [u8]) -> Scan<'a> {
        Scan { text, at: 0, what: "line" }
    }

    /// Returns a scan of the body of a request.
    pub fn of_body(text: &'a [u8]) -> Scan<'a> {
        Scan { text, at: 0, what: "body" }
    }

    /// Returns the start of the value at a place, for an error.
    #[cold]
    pub fn value_at(&self, at: usize) -> String {
        let rest = self.text.get(at..).unwrap_or_default();
        let rest = &rest[..rest.len().min(SHOWN_BYTES)];
        let end = match rest.first() {
            Some(b'"') => rest.iter().skip(1).position(|byte| *byte == b'"').map(|at| at + 2),
            _ => rest.iter().position(|byte| b",]} \r\n\t".contains(byte)),
        };
        let shown = String::from_utf8_lossy(&rest[..end.unwrap_or(rest.len())]);
        if end.is_some() { shown.into_owned() } else { format!("{shown}..") }
    }

    pub fn at(&self) -> usize {
        self.at
    }

    /// Returns the next byte after blanks, without taking it.
    pub fn peek(&mut self) -> Option<u8> {
        loop {
            let byte = *self.text.get(self.at)?;
            if !matches!(byte, b' ' | b'\t' | b'\r' | b'\n') {
                return Some(byte);
            }
            self.at += 1;
        }
    }

    /// Returns whether a list is next whose first value starts with this byte.
    pub fn peek_list_of(&mut self, byte: u8) -> bool {
        if self.peek() != Some(b'[') {
            return false;
        }
        Scan { at: self.at + 1, ..*self }.peek() == Some(byte)
    }

    /// Takes the next byte after blanks if it is this one.
    pub fn take_if(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    /// Takes this byte after blanks.
    pub fn take(&mut self, byte: u8) -> Result<(), LineError> {
        match self.take_if(byte) {
            true => Ok(()),
            false => Err(self.wrong(&format!("'{}'", char::from(byte)))),
        }
    }

    /// Takes a comma or the byte that ends a list; returns whether it was a comma.
    pub fn next_of(&mut self, end: u8) -> Result<bool, LineError> {
        if self.take_if(b',') {
            return Ok(true);
        }
        match self.take_if(end) {
            true => Ok(false),
            false => Err(self.wrong(&format!("',' or '{}'", char::from(end)))),
        }
    }

    /// Takes the byte that opens an object or list at this depth.
    pub fn enter(&mut self, depth: usize) -> Result<(), LineError> {
        if depth + 1 > DEPTH_MAX {
            let error = Error::exhausted("JSON value is nested too deeply");
            let error = error.expected(format!("at most {DEPTH_MAX} levels"));
            return Err(LineError { at: self.at, error });
        }
        self.at += 1;
        Ok(())
    }

    /// Fails unless only blanks follow.
    pub fn end(&mut self) -> Result<(), LineError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.wrong(&format!("the end of the {} after the object", self.what))),
        }
    }

    /// Takes the key of a field.
    pub fn key<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], LineError>
    where
        'a: 'b,
    {
        match self.peek() {
            Some(b'"') => self.string(buffer),
            _ => Err(self.wrong("a key in quotes")),
        }
    }

    /// Takes a string, whose opening quote is next. Its text is part of the line, or in the buffer
    /// if it has escapes.
    pub fn string<'b>(&mut self, buffer: &'b mut Vec<u8>) -> Result<&'b [u8], LineError>
    where
        'a: 'b,
    {
        let start = self.at + 1;
        let end = start + self.until_special(start)?;
        self.at = end + 1;
        if self.text[end] == b'"' {
            return Ok(&self.text[start..end]);
        }
        self.at = end;
        buffer.clear();
        buffer.extend_from_slice(&self.text[start..end]);
        loop {
            match self.text[self.at] {
                b'"' => {
                    self.at += 1;
                    return Ok(buffer);
                }
                _ => self.escape(buffer)?,
            }
            let from = self.at;
            self.at += self.until_special(from)?;
            buffer.extend_from_slice(&self.text[from..self.at]);
        }
    }

    /// Returns the distance to the next quote or backslash.
    fn until_special(&self, from: usize) -> Result<usize, LineError> {
        let rest = self.text.get(from..).unwrap_or_default();
        let found = memchr::memchr2(b'"', b'\\', rest);
        found.ok_or_else(|| LineError::new(self.at, "JSON string has no closing quote"))
    }

    /// Takes an escape, whose backslash is next.
    fn escape(&mut self, buffer: &mut Vec<u8>) -> Result<(), LineError> {
        let at = self.at;
        let wrong = || LineError::new(at, "invalid escape in a JSON string");
        let byte = *self.text.get(at + 1).ok_or_else(wrong)?;
        self.at += 2;
        buffer.push(match byte {
            b'"' | b'\\' | b'/' => byte,
            b'n' => b'\n',
            b't' => b'\t',
            b'r' => b'\r',
            b'b' => 8,
            b'f' => 12,
            b'u' => {
                let first = self.unit().ok_or_else(wrong)?;
                let is_pair = (0xd800..0xdc00).contains(&first);
                let second = match is_pair && self.text[self.at..].starts_with(b"\\u") {
                    true => {
                        self.at += 2;
                        Some(self.unit().ok_or_else(wrong)?)
                    }
                    false => None,
                };
                let mut chars = char::decode_utf16(std::iter::once(first).chain(second));
                let char = chars.next().and_then(Result::ok).ok_or_else(wrong)?;
                buffer.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            _ => return Err(wrong()),
        });
        Ok(())
    }

    /// Takes four hexadecimal digits.
    fn unit(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        let is_hex = digits.iter().all(u8::is_ascii_hexdigit);
        let digits = std::str::from_utf8(digits).ok().filter(|_| is_hex)?;
        u16::from_str_radix(digits, 16).ok()
    }

    /// Takes `true`, `false`, or a missing value: `null`, and `NaN`, which some writers use.
    pub fn literal(&mut self) -> Result<Option<bool>, LineError> {
        for (word, value) in LITERALS {
            if self.text[self.at..].starts_with(word) {
                self.at += word.len();
                return Ok(value);
            }
        }
        Err(self.wrong("a value"))
    }

    /// Takes a number, and returns its text.
    pub fn number(&mut self) -> Result<&'a [u8], LineError> {
        let start = self.at;
        let digits = |scan: &mut Scan<'_>| {
            let rest = &scan.text[scan.at..];
            let count = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            scan.at += count;
            count > 0
        };
        let take = |scan: &mut Scan<'_>, bytes: &[u8]| {
            let found = scan.text.get(scan.at).is_some_and(|byte| bytes.contains(byte));
            scan.at += usize::from(found);
            found
        };
        take(self, b"-");
        // A zero is a number of its own: JSON has no leading zeros.
        let mut is_number = take(self, b"0") || digits(self);
        if is_number && take(self, b".") {
            is_number = digits(self);
        }
        if is_number && take(self, b"eE") {
            take(self, b"+-");
            is_number = digits(self);
        }
        if is_number {
            return Ok(&self.text[start..self.at]);
        }
        self.at = start;
        Err(self.wrong("a value"))
    }

    /// Skips a value at this depth.
    pub fn skip(&mut self, depth: usize) -> Result<(), LineError> {
        match self.peek() {
            Some(b'"') => self.skip_string(),
            Some(b't' | b'f' | b'n' | b'N') => self.literal().map(drop),
            Some(open @ (b'[' | b'{')) => {
                self.enter(depth)?;
                let end = if open == b'[' { b']' } else { b'}' };
                let mut more = !self.take_if(end);
                while more {
                    if open == b'{' {
                        self.peek();
                        self.skip_string()?;
                        self.take(b':')?;
                    }
                    self.skip(depth + 1)?;
                    more = self.next_of(end)?;
                }
                Ok(())
            }
            _ => self.number().map(drop),
        }
    }

    fn skip_string(&mut self) -> Result<(), LineError> {
        if self.text.get(self.at) != Some(&b'"') {
            return Err(self.wrong("a key in quotes"));
        }
        let mut from = self.at + 1;
        loop {
            from += self.until_special(from)?;
            if self.text[from] == b'"' {
                self.at = from + 1;
                return Ok(());
            }
            // A backslash and the byte that it escapes.
            from += 2;
        }
    }

    #[cold]
    fn wrong(&self, expected: &str) -> LineError {
        let error = Error::invalid(format!("{} is not valid JSON", self.what)).expected(expected);
        let error = match self.text.get(self.at) {
            None => error.got(format!("the end of the {}", self.what)),
            Some(byte) => error.got(format!("'{}'", byte.escape_ascii())),
        };
        LineError { at: self.at, error }
    }
}

const LITERALS: [(&[u8], Option<bool>); 4] =
    [(b"true", Some(true)), (b"false", Some(false)), (b"null", None), (b"NaN", None)];
/// Bytes of a value that an error shows.
const SHOWN_BYTES: usize = 40;
/// Limit of nested objects and lists, each of which takes a stack frame.
const DEPTH_MAX: usize = 64;
