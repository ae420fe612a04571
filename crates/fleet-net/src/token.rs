//! The secret that the processes of one job share.

use crate::stream::Stream;
use fleet_base::{Error, Result, input};
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::net::TcpStream;
use std::path::Path;

/// The secret of a job. The launcher makes it and passes it to its children in the environment. It
/// is never printed.
///
/// ```
/// use fleet_net::Token;
/// let token = Token::generate()?;
/// assert_eq!(Token::from_text(&token.to_text())?, token);
/// assert_eq!(format!("{token:?}"), "Token(hidden)");
/// # Ok::<(), fleet_base::Error>(())
/// ```
///
/// A token may require TLS. Then every connection of the job is encrypted and
/// authenticated by the token, without certificates. The text of the token includes the
/// requirement.
#[derive(Clone)]
pub struct Token {
    secret: [u8; 32],
    tls: Option<std::sync::Arc<crate::tls::Tls>>,
}

/// Prefix of the text of a token that requires TLS.
const TLS_MARK: &str = "tls:";

/// Shorter secrets can be guessed by an attacker that records one connection.
const TEXT_CHARS_MIN: usize = 16;

/// A secret has about 64 characters, so a larger file is the wrong one.
const FILE_BYTES_MAX: u64 = 4096;

impl Token {
    /// Returns a token with a random secret. Fails if the system has no random numbers.
    pub fn generate() -> Result<Token> {
        Ok(Token::from_secret(random()?))
    }

    fn from_secret(secret: [u8; 32]) -> Token {
        Token { secret, tls: None }
    }

    /// The same secret for connections under TLS. Either all processes of a job use it, or none.
    pub fn over_tls(mut self) -> Result<Token> {
        self.tls = Some(std::sync::Arc::new(crate::tls::Tls::generate()?));
        Ok(self)
    }

    /// Whether connections are encrypted.
    pub fn is_over_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Wraps a connection that this process opened.
    pub(crate) fn wrap_client(&self, socket: TcpStream) -> Result<Stream> {
        if let Some(tls) = &self.tls {
            return Ok(Stream::under(socket, tls.client()?));
        }
        Ok(Stream::plain(socket))
    }

    /// Wraps a connection that another process opened.
    pub(crate) fn wrap_server(&self, socket: TcpStream) -> Result<Stream> {
        if let Some(tls) = &self.tls {
            return Ok(Stream::under(socket, tls.server()?));
        }
        Ok(Stream::plain(socket))
    }

    /// Parses the output of [`Token::to_text`], or any other secret of 16 characters or more. The
    /// prefix `tls:` requires TLS.
    pub fn from_text(text: &str) -> Result<Token> {
        let text = text.trim();
        if let Some(secret) = text.strip_prefix(TLS_MARK) {
            return Token::from_text(secret)?.over_tls();
        }
        if let Some(bytes) = from_hex(text) {
            return Ok(Token::from_secret(bytes));
        }
        if text.chars().count() < TEXT_CHARS_MIN {
            return Err(Error::invalid("the job token is too short")
                .expected(format!("{TEXT_CHARS_MIN} characters or more"))
                .got(format!("{}", text.chars().count()))
                .help("let fleetrun generate one, or use the output of `openssl rand -hex 32`"));
        }
        Ok(Token::from_secret(Sha256::digest(text.as_bytes()).into()))
    }

    /// Reads a file or a pipe with a text for [`Token::from_text`].
    ///
    /// ```
    /// let error = fleet_net::Token::read(std::path::Path::new("/dev/zero")).err().unwrap();
    /// assert!(error.to_string().contains("too large for a job token: expected at most 4 KiB"));
    /// ```
    pub fn read(path: &Path) -> Result<Token> {
        let bytes = input::read(path, "a job token", FILE_BYTES_MAX)
            .map_err(|error| error.help("generate one with `openssl rand -hex 32`"))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            Error::invalid("the job token is not text").at(path.display()).caused(error)
        })?;
        Token::from_text(&text).map_err(|error| error.at(path.display()))
    }

    /// 64 hexadecimal digits, for the environment of a child; `tls:` in front if TLS is required.
    pub fn to_text(&self) -> String {
        let mark = if self.is_over_tls() { TLS_MARK } else { "" };
        let digits: String = self.secret.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{mark}{digits}")
    }

    /// The code over `parts`. It depends on the boundaries between them.
    pub(crate) fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        self.mac(parts).finalize().into_bytes().into()
    }

    /// Verifies a code in constant time.
    pub(crate) fn verify(&self, parts: &[&[u8]], code: &[u8]) -> bool {
        self.mac(parts).verify_slice(code).is_ok()
    }

    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        // HMAC pads a key shorter than a block with zeros.
        let mut key = [0; 64];
        key[..32].copy_from_slice(&self.secret);
        let mut mac = <Hmac<Sha256> as KeyInit>::new(&key.into());
        for part in parts {
            mac.update(&(part.len() as u64).to_le_bytes());
            mac.update(part);
        }
        mac
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Token) -> bool {
        self.secret == other.secret && self.is_over_tls() == other.is_over_tls()
    }
}

impl Eq for Token {}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Token(hidden)")
    }
}

/// Bytes from the operating system's generator.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::unavailable(format!("cannot get random bytes: {error}")))?;
    Ok(bytes)
}

/// A random number that no other process gets, to identify a client or a server process.
///
/// ```
/// assert_ne!(fleet_net::random_number()?, fleet_net::random_number()?);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn random_number() -> Result<u64> {
    random().map(u64::from_le_bytes)
}

pub(crate) fn from_hex(text: &str) -> Option<[u8; 32]> {
    if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut bytes = [0; 32];
    for (index, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[index * 2..index * 2 + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn known_answer() {
        // HMAC-SHA256 by Python's hmac, key 32 x 0x01, over the lengths and bytes of "ab" and "".
        let token = Token::from_secret([1; 32]);
        let code = token.sign(&[b"ab", b""]);
        assert!(token.verify(&[b"ab", b""], &code));
        assert!(!token.verify(&[b"a", b"b"], &code));
        assert!(!token.verify(&[b"ab", b""], &code[..31]));
        let text: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "ce970acbd4acd0e5cee0c5f0d9b6bd161b45465ed21037cd26f963aa1ef6d33e");
    }

    #[test]
    fn texts() {
        assert!(Token::from_text("short").is_err());
        let word = Token::from_text("a secret of the whole team").unwrap();
        assert_ne!(word, Token::from_text("a secret of the whole tean").unwrap());
        assert_eq!(Token::from_text(&word.to_text()).unwrap(), word);
    }
}
