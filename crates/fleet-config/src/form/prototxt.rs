//! Protobuf's text form: a writer with the same output as protobuf's, byte for byte, and a reader.
//!
//! The reader accepts the same syntax as protobuf's reader: comments, `name: {}`, `name {}`,
//! `name <>`, lists `[a, b]`, the separators `,` and `;`, and numbers in three bases. Strings have
//! single or double quotes and escapes, and adjacent strings are joined. After an error, the reader
//! continues with the next line, so that one run finds all errors of a file.

use super::cursor::Cursor;
use super::document::{DEPTH_MAX, Data, Entry, Node, PROBLEMS_MAX};
use super::literal::float32;
use crate::problem::{Place, Problem};
use crate::reflect::{Item, Kind, Reflect};
use crate::value::Value;
use std::fmt::Write;

pub fn write(message: &dyn Reflect) -> String {
    let mut text = String::new();
    fields(message, 0, &mut text);
    text
}

fn fields(message: &dyn Reflect, depth: usize, out: &mut String) {
    let indent = "  ".repeat(depth);
    for field in message.shape().fields {
        let slot = message.slot(field.number);
        for item in slot.items() {
            let name = field.name;
            let text = match (field.kind, item) {
                (_, Item::Message(nested)) => {
                    let _ = writeln!(out, "{indent}{name} {{");
                    fields(nested, depth + 1, out);
                    let _ = writeln!(out, "{indent}}}");
                    continue;
                }
                (Kind::Enum(shape), Item::Int32(number)) => match shape.name_of(number) {
                    Some(name) => name.to_string(),
                    None => number.to_string(),
                },
                (_, Item::Float(value)) => float32(value),
                (_, Item::Text(value)) => quoted(value),
                (kind, item) => Value::of(kind, item).to_string(),
            };
            let _ = writeln!(out, "{indent}{name}: {text}");
        }
    }
}

/// Returns a string in double quotes, with octal escapes for bytes other than printable ASCII.
fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'\n' => out += "\\n",
            b'\r' => out += "\\r",
            b'\t' => out += "\\t",
            b'"' => out += "\\\"",
            b'\'' => out += "\\'",
            b'\\' => out += "\\\\",
            b' '..=b'~' => out.push(char::from(byte)),
            _ => {
                let _ = write!(out, "\\{byte:03o}");
            }
        }
    }
    out.push('"');
    out
}

/// Parses a text into a tree, and returns it with all syntax errors.
pub fn read(text: &str) -> (Vec<Entry>, Vec<Problem>) {
    let mut reader = Reader { tokens: lex(text), next: 0, problems: Vec::new(), ended: false };
    let entries = reader.entries(None, 0);
    (entries, reader.problems)
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    Number(String),
    Str(Vec<u8>),
    Sign(char),
    /// An invalid token, with its error message.
    Bad(String),
    End,
}

struct Reader {
    tokens: Vec<(Token, Place)>,
    next: usize,
    problems: Vec<Problem>,
    /// Whether the text ended too early.
    ended: bool,
}

/// A syntax error and its position.
type SyntaxError = (String, Place);

impl Reader {
    fn peek(&self) -> &Token {
        &self.tokens[self.next].0
    }

    fn place(&self) -> Place {
        self.tokens[self.next].1
    }

    fn take(&mut self) -> (Token, Place) {
        let token = self.tokens[self.next].clone();
        // The last token is `End`, and is never consumed.
        self.next = (self.next + 1).min(self.tokens.len() - 1);
        token
    }

    fn accept(&mut self, sign: char) -> bool {
        let found = *self.peek() == Token::Sign(sign);
        if found {
            self.take();
        }
        found
    }

    fn expected<T>(&self, what: &str) -> Result<T, SyntaxError> {
        let got = match self.peek() {
            Token::Bad(message) => return Err((message.clone(), self.place())),
            Token::Word(text) | Token::Number(text) => format!("'{text}'"),
            Token::Str(_) => "a string".into(),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::End => "the end of the text".into(),
        };
        Err((format!("expected {what}, got {got}"), self.place()))
    }

    /// Parses entries up to `close`, or to the end of the text.
    fn entries(&mut self, close: Option<char>, depth: usize) -> Vec<Entry> {
        let mut entries = Vec::new();
        while self.problems.len() < PROBLEMS_MAX {
            match self.peek() {
                Token::End => {
                    // Reported only once, for the innermost open message.
                    if let (Some(close), false) = (close, self.ended) {
                        self.ended = true;
                        let at = self.place();
                        let message = format!("expected '{close}', got the end of the text");
                        self.problems.push(Problem::error("", message).at(at));
                    }
                    break;
                }
                Token::Sign(sign) if Some(*sign) == close => {
                    self.take();
                    break;
                }
                _ => match self.entry(depth) {
                    Ok(entry) => entries.push(entry),
                    Err((message, at)) => {
                        self.problems.push(Problem::error("", message).at(at));
                        self.skip_line(at);
                    }
                },
            }
        }
        entries
    }

    /// Skips to the next line, or to a token that may end a message.
    fn skip_line(&mut self, from: Place) {
        if self.place() == from {
            self.take();
        }
        while self.place().line == from.line
            && !matches!(self.peek(), Token::End | Token::Sign('}' | '>'))
        {
            self.take();
        }
    }

    fn entry(&mut self, depth: usize) -> Result<Entry, SyntaxError> {
        let at = self.place();
        let key = match self.peek() {
            Token::Word(word) => word.clone(),
            _ => return self.expected("the name of a field"),
        };
        self.take();
        let colon = self.accept(':');
        let node = match self.peek() {
            Token::Sign('{' | '<' | '[') => self.value(depth)?,
            _ if colon => self.value(depth)?,
            _ => return self.expected(&format!("':' or '{{' after {key}")),
        };
        let _ = self.accept(',') || self.accept(';');
        Ok(Entry { key, at, node })
    }

    fn value(&mut self, depth: usize) -> Result<Node, SyntaxError> {
        let at = self.place();
        if depth >= DEPTH_MAX {
            return Err((format!("messages are nested deeper than {DEPTH_MAX} levels"), at));
        }
        let data = match self.peek().clone() {
            Token::Word(word) => {
                self.take();
                Data::Word(word)
            }
            Token::Number(number) => {
                self.take();
                Data::Number(number)
            }
            Token::Str(_) => Data::Value(Value::Str(self.string()?)),
            Token::Sign('[') => Data::List(self.list(depth)?),
            Token::Sign(open @ ('{' | '<')) => {
                self.take();
                let close = if open == '{' { '}' } else { '>' };
                Data::Message(self.entries(Some(close), depth + 1))
            }
            _ => return self.expected("a value"),
        };
        Ok(Node { at, data })
    }

    fn list(&mut self, depth: usize) -> Result<Vec<Node>, SyntaxError> {
        self.take();
        let mut nodes = Vec::new();
        if self.accept(']') {
            return Ok(nodes);
        }
        loop {
            nodes.push(self.value(depth + 1)?);
            if self.accept(']') {
                return Ok(nodes);
            }
            if self.ended && *self.peek() == Token::End {
                return Ok(nodes);
            }
            if !self.accept(',') {
                return self.expected("',' or ']'");
            }
        }
    }

    /// Parses a string; adjacent strings are joined.
    fn string(&mut self) -> Result<String, SyntaxError> {
        let at = self.place();
        let mut bytes = Vec::new();
        while let Token::Str(part) = self.peek() {
            bytes.extend_from_slice(part);
            self.take();
        }
        String::from_utf8(bytes).map_err(|_| ("the string is not UTF-8".to_string(), at))
    }
}

fn lex(text: &str) -> Vec<(Token, Place)> {
    let mut lexer = Lexer { chars: Cursor::new(text) };
    let mut tokens = Vec::new();
    loop {
        lexer.skip_space();
        let at = lexer.chars.at;
        let token = lexer.token();
        let end = token == Token::End;
        tokens.push((token, at));
        if end {
            return tokens;
        }
    }
}

struct Lexer<'t> {
    chars: Cursor<'t>,
}

impl Lexer<'_> {
    fn skip_space(&mut self) {
        loop {
            self.chars.take_while(char::is_whitespace);
            if self.chars.peek() != Some('#') {
                return;
            }
            self.chars.take_while(|c| c != '\n');
        }
    }

    fn token(&mut self) -> Token {
        let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        match self.chars.peek() {
            None => Token::End,
            Some(c) if c.is_ascii_alphabetic() || c == '_' => {
                Token::Word(self.chars.take_while(word))
            }
            Some('0'..='9' | '.' | '+' | '-') => {
                Token::Number(self.chars.take_while(|c| word(c) || matches!(c, '.' | '+' | '-')))
            }
            Some(quote @ ('"' | '\'')) => {
                self.chars.next();
                self.string(quote).map_or_else(Token::Bad, Token::Str)
            }
            Some(sign @ ('{' | '}' | '<' | '>' | '[' | ']' | ':' | ',' | ';')) => {
                self.chars.next();
                Token::Sign(sign)
            }
            Some(other) => {
                self.chars.next();
                Token::Bad(format!("unexpected character '{}'", other.escape_debug()))
            }
        }
    }

    fn string(&mut self, quote: char) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut utf8 = [0; 4];
        loop {
            if self.chars.peek().is_none_or(|c| c == '\n') {
                return Err(format!("the string has no closing {quote}"));
            }
            match self.chars.next().unwrap_or(quote) {
                c if c == quote => return Ok(bytes),
                '\\' => self.escape(&mut bytes)?,
                c => bytes.extend_from_slice(c.encode_utf8(&mut utf8).as_bytes()),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), String> {
        let c = self.chars.next().ok_or("the string ends with a backslash")?;
        let byte = match c {
            'a' => 7,
            'b' => 8,
            'f' => 12,
            'n' => b'\n',
            'r' => b'\r',
            't' => b'\t',
            'v' => 11,
            '\\' | '\'' | '"' | '?' => c as u8,
            '0'..='7' => {
                let mut value = c.to_digit(8).unwrap_or(0);
                for _ in 0..2 {
                    let Some(digit) = self.chars.digit(8) else { break };
                    value = value * 8 + digit;
                }
                u8::try_from(value).map_err(|_| "an octal escape exceeds one byte")?
            }
            'x' | 'X' => self.hex(1, 2)? as u8,
            'u' | 'U' => {
                let digits = if c == 'u' { 4 } else { 8 };
                let code = char::from_u32(self.hex(digits, digits)?);
                let code = code.ok_or("an escape is not a Unicode character")?;
                bytes.extend_from_slice(code.encode_utf8(&mut [0; 4]).as_bytes());
                return Ok(());
            }
            other => return Err(format!("unknown escape '\\{}'", other.escape_debug())),
        };
        bytes.push(byte);
        Ok(())
    }

    fn hex(&mut self, digits_min: usize, digits_max: usize) -> Result<u32, String> {
        let (mut value, mut digits) = (0u32, 0);
        while digits < digits_max {
            let Some(digit) = self.chars.digit(16) else { break };
            value = value << 4 | digit;
            digits += 1;
        }
        match digits >= digits_min {
            true => Ok(value),
            false => {
                Err(format!("expected {digits_min} hexadecimal digits in an escape, got {digits}"))
            }
        }
    }
}
