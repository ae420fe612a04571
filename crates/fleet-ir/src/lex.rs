//! The lexer of the text form: tokens with their positions. It accepts any UTF-8 text. It reads no
//! further ahead than it must, so that an error points to the first invalid token.

use crate::names::{NAME_BYTES_MAX, is_name_byte, is_word_start};
use fleet_base::{Error, Result};
use std::borrow::Cow;
use std::fmt;

/// A token of the text form.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token<'t> {
    /// A keyword, or the name of an op, slot, attribute, type or block.
    Ident(&'t str),
    /// `%name`, without the `%`.
    Var(Cow<'t, str>),
    /// An integer or a float with its sign, as written.
    Number(&'t str),
    /// The content of a quoted string.
    Str(Cow<'t, str>),
    Punct(char),
    End,
}

impl fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Ident(word) => write!(f, "'{}'", clipped(word)),
            Token::Var(name) => write!(f, "'%{}'", clipped(name)),
            Token::Number(number) => write!(f, "'{}'", clipped(number)),
            Token::Str(text) => write!(f, "{:?}", clipped(text)),
            Token::Punct(punct) => write!(f, "'{punct}'"),
            Token::End => f.write_str("end of input"),
        }
    }
}

/// The byte offset of a token in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position(pub usize);

impl Position {
    /// Describes the position: `line 3, column 5: (Out: %y) = mul(X: %x)`. Lines and columns count
    /// from 1; columns count characters.
    pub fn describe(self, text: &str) -> String {
        let before = &text[..self.0];
        let start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = before.matches('\n').count() + 1;
        let column = text[start..self.0].chars().count() + 1;
        let content = text[start..].lines().next().unwrap_or("").trim();
        if content.is_empty() {
            return format!("line {line}, column {column}");
        }
        format!("line {line}, column {column}: {}", clipped(content))
    }
}

/// Returns the start of a text that may be long, for messages.
pub(crate) fn clipped(text: &str) -> Cow<'_, str> {
    const CHARS_MAX: usize = 100;
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => Cow::Owned(format!("{} ..", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// Splits a text into tokens.
pub(crate) struct Lexer<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Lexer<'t> {
    pub fn new(text: &'t str) -> Lexer<'t> {
        // Some editors write a byte order mark at the start of a file.
        let at = if text.starts_with('\u{feff}') { '\u{feff}'.len_utf8() } else { 0 };
        Lexer { text, at }
    }

    pub fn next(&mut self) -> Result<(Position, Token<'t>)> {
        self.skip_blank();
        let start = Position(self.at);
        let Some(first) = self.peek() else {
            return Ok((start, Token::End));
        };
        let token = match first {
            b'%' => {
                self.at += 1;
                Token::Var(self.var_name(start)?)
            }
            b'"' => Token::Str(self.quoted()?),
            b'-' | b'+' | b'0'..=b'9' => Token::Number(self.number(start)?),
            byte if is_word_start(byte) => Token::Ident(self.name(start)?),
            b'{' | b'}' | b'(' | b')' | b'[' | b']' | b':' | b',' | b'=' | b'!' => {
                self.at += 1;
                Token::Punct(char::from(first))
            }
            _ => {
                let found = self.text[self.at..].chars().next().unwrap_or(' ');
                return Err(self.error(start, "unexpected character", found));
            }
        };
        Ok((start, token))
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_blank(&mut self) {
        while let Some(byte) = self.peek() {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                b'#' => {
                    let rest = &self.text[self.at..];
                    self.at += rest.find('\n').unwrap_or(rest.len());
                }
                _ => break,
            }
        }
    }

    fn var_name(&mut self, start: Position) -> Result<Cow<'t, str>> {
        let name = match self.peek() {
            Some(b'"') => self.quoted()?,
            byte if is_name_byte(byte.as_ref()) => Cow::Borrowed(self.name(start)?),
            _ => {
                return Err(
                    Error::invalid("missing variable name after '%'").at(start.describe(self.text))
                );
            }
        };
        self.check_length(start, &name)?;
        Ok(name)
    }

    fn name(&mut self, start: Position) -> Result<&'t str> {
        let rest = &self.text.as_bytes()[self.at..];
        let len = rest.iter().position(|b| !is_name_byte(Some(b))).unwrap_or(rest.len());
        let name = &self.text[self.at..self.at + len];
        self.check_length(start, name)?;
        self.at += len;
        Ok(name)
    }

    fn check_length(&self, start: Position, name: &str) -> Result<()> {
        if name.len() <= NAME_BYTES_MAX {
            return Ok(());
        }
        Err(Error::invalid("a name is too long")
            .expected(format!("at most {NAME_BYTES_MAX} bytes"))
            .got(name.len())
            .at(start.describe(self.text)))
    }

    /// Reads digits with sign, point and exponent; `-inf` and `-nan` too. The parser converts the
    /// number, because only it knows whether an integer or a float is expected.
    fn number(&mut self, start: Position) -> Result<&'t str> {
        let rest = &self.text.as_bytes()[self.at..];
        let mut len = 1;
        while let Some(&byte) = rest.get(len) {
            let sign = matches!(byte, b'-' | b'+') && matches!(rest[len - 1], b'e' | b'E');
            if !(byte.is_ascii_alphanumeric() || byte == b'.' || byte == b'_' || sign) {
                break;
            }
            len += 1;
        }
        let number = &self.text[self.at..self.at + len];
        if number.parse::<f64>().is_err() {
            return Err(self.error(start, "invalid number", clipped(number)));
        }
        self.at += len;
        Ok(number)
    }

    fn quoted(&mut self) -> Result<Cow<'t, str>> {
        let start = Position(self.at);
        self.at += 1;
        let from = self.at;
        let mut built: Option<String> = None;
        loop {
            let run = self.at;
            let rest = &self.text[run..];
            let stop = rest.find(['"', '\\', '\n']).unwrap_or(rest.len());
            self.at += stop;
            if let Some(built) = &mut built {
                built.push_str(&rest[..stop]);
            }
            match self.peek() {
                Some(b'"') => {
                    let end = self.at;
                    self.at += 1;
                    return Ok(match built {
                        Some(built) => Cow::Owned(built),
                        None => Cow::Borrowed(&self.text[from..end]),
                    });
                }
                Some(b'\\') => {
                    let so_far = built.get_or_insert_with(|| self.text[from..run + stop].into());
                    // The borrow of `built` must end before `self.escape()`.
                    let mut text = std::mem::take(so_far);
                    text.push(self.escape()?);
                    built = Some(text);
                }
                _ => {
                    return Err(Error::invalid("unterminated string")
                        .expected("'\"'")
                        .at(start.describe(self.text)));
                }
            }
        }
    }

    /// Reads an escape sequence, including the backslash.
    fn escape(&mut self) -> Result<char> {
        let start = Position(self.at);
        let rest = &self.text[self.at + 1..];
        let (value, len) = match rest.as_bytes().first() {
            Some(b'"') => (Some('"'), 1),
            Some(b'\\') => (Some('\\'), 1),
            Some(b'n') => (Some('\n'), 1),
            Some(b'r') => (Some('\r'), 1),
            Some(b't') => (Some('\t'), 1),
            Some(b'u') => unicode_escape(rest),
            _ => (None, 0),
        };
        let Some(value) = value else {
            return Err(Error::invalid("unknown escape in a string")
                .expected(r#"one of \" \\ \n \r \t \u{..}"#)
                .at(start.describe(self.text)));
        };
        self.at += 1 + len;
        Ok(value)
    }

    fn error(&self, at: Position, message: &str, got: impl fmt::Display) -> Error {
        Error::invalid(message).got(format!("'{got}'")).at(at.describe(self.text))
    }
}

/// Decodes `u{1f600}`. Returns the character and the length of the sequence.
fn unicode_escape(rest: &str) -> (Option<char>, usize) {
    const DIGITS_MAX: usize = 6;
    let digits = rest.strip_prefix("u{").and_then(|rest| rest.split_once('}')).map(|it| it.0);
    let digits = digits.filter(|it| (1..=DIGITS_MAX).contains(&it.len()));
    let value = digits
        .filter(|it| it.bytes().all(|byte| byte.is_ascii_hexdigit()))
        .and_then(|it| u32::from_str_radix(it, 16).ok())
        .and_then(char::from_u32);
    (value, digits.map_or(0, |it| it.len() + 3))
}
