//! Access: for this machine alone, or for clients with a token.

use fleet_base::{Error, Result, input};
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::Path;

/// The token that requests must carry.
#[derive(Clone)]
pub struct Token(Vec<u8>);

/// Limit of the file of a token.
const TOKEN_BYTES_MAX: u64 = 4096;
/// Limit against tokens that can be guessed.
const TOKEN_BYTES_MIN: usize = 16;

impl Token {
    /// Reads a token from a file, without blanks around it.
    pub fn read(path: &Path) -> Result<Token> {
        let bytes = input::read(path, "the token", TOKEN_BYTES_MAX)?;
        let token = bytes.trim_ascii();
        let is_text = token.iter().all(u8::is_ascii_graphic);
        if token.len() < TOKEN_BYTES_MIN || !is_text {
            return Err(Error::invalid("the file has no token")
                .expected(format!("one line with {TOKEN_BYTES_MIN} characters or more"))
                .at(path.display())
                .help("make one: head -c 24 /dev/urandom | base64 > FILE"));
        }
        Ok(Token(token.to_vec()))
    }

    /// Returns whether the value of a header `authorization` carries the token. The time does not
    /// tell how much of a wrong token is right.
    pub fn admits(&self, header: Option<&[u8]>) -> bool {
        let Some((scheme, got)) = header.and_then(|header| header.split_at_checked(7)) else {
            return false;
        };
        let differences = self.0.iter().zip(got).fold(0, |all, (a, b)| all | (a ^ b));
        scheme.eq_ignore_ascii_case(b"bearer ") && got.len() == self.0.len() && differences == 0
    }
}

/// Listens on an address. Without a token, only this machine may reach it.
pub fn listen(address: &str, token: Option<&Token>, option: &str) -> Result<TcpListener> {
    let wrong = |error: std::io::Error| {
        Error::invalid(format!("cannot listen on {address}: {error}"))
            .at(option)
            .help("name HOST:PORT; port 0 lets the system choose")
    };
    let all: Vec<SocketAddr> = address.to_socket_addrs().map_err(wrong)?.collect();
    if token.is_none() && !all.iter().all(|address| address.ip().is_loopback()) {
        return Err(Error::invalid("other machines could use the server without a token")
            .expected("an address of this machine alone, such as 127.0.0.1:8000")
            .got(address)
            .at(option)
            .help("set a token with --token-file FILE"));
    }
    let listener = TcpListener::bind(&all[..]).map_err(wrong)?;
    listener.set_nonblocking(true).map_err(wrong)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_is_admitted() {
        let token = Token(b"0123456789abcdef".to_vec());
        let admits = |header: &str| token.admits(Some(header.as_bytes()));
        assert!(admits("Bearer 0123456789abcdef") && admits("bearer 0123456789abcdef"));
        for wrong in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer 0123456789abcde",
            "Bearer 0123456789abcdef0",
            "Bearer 0123456789abcdeg",
            "Basic 0123456789abcdef",
        ] {
            assert!(!admits(wrong), "{wrong}");
        }
        assert!(!token.admits(None));
    }

    #[test]
    fn other_machines_need_a_token() {
        let error = listen("0.0.0.0:0", None, "--listen").unwrap_err().to_string();
        assert!(error.contains("without a token") && error.contains("--token-file"), "{error}");
        let token = Token(vec![b'x'; 16]);
        assert!(listen("0.0.0.0:0", Some(&token), "--listen").is_ok());
        assert!(listen("127.0.0.1:0", None, "--listen").is_ok());
        assert!(listen("nowhere", None, "--listen").is_err());
    }
}
