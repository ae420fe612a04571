//! The characters of a text form, with the position of the next one.

use crate::problem::Place;
use std::iter::Peekable;
use std::str::Chars;

pub struct Cursor<'t> {
    chars: Peekable<Chars<'t>>,
    pub at: Place,
}

impl<'t> Cursor<'t> {
    pub fn new(text: &'t str) -> Cursor<'t> {
        Cursor { chars: text.chars().peekable(), at: Place { line: 1, column: 1 } }
    }

    pub fn peek(&mut self) -> Option<char> {
        self.chars.peek().copied()
    }

    pub fn next(&mut self) -> Option<char> {
        self.next_if(|_| true)
    }

    /// Takes the next character if it `belongs`.
    pub fn next_if(&mut self, belongs: impl Fn(char) -> bool) -> Option<char> {
        let c = self.chars.next_if(|c| belongs(*c))?;
        self.at = match c {
            '\n' => Place { line: self.at.line + 1, column: 1 },
            _ => Place { column: self.at.column + 1, ..self.at },
        };
        Some(c)
    }

    /// Takes the following characters as long as they `belong`.
    pub fn take_while(&mut self, belong: impl Fn(char) -> bool) -> String {
        std::iter::from_fn(|| self.next_if(&belong)).collect()
    }

    /// Takes the next character if it is a digit in base `radix`.
    pub fn digit(&mut self, radix: u32) -> Option<u32> {
        self.next_if(|c| c.is_digit(radix))?.to_digit(radix)
    }
}
