//! Credentials for protocols that do not start with Fleet's handshake (`handshake.rs`), such as
//! gRPC. A credential is a text, signed with the job's token, that lets its bearer use one server
//! until it expires.
//!
//! ```text
//! server -> client   challenge:   life . now
//! client -> server   credential:  until . code(life, until)
//! ```
//!
//! `life` is a random number drawn when the server starts, so a credential is valid for one server
//! process only. `now` and `until` are seconds of the server's own clock, so clocks need not agree.
//! The token itself is never sent. A credential is not bound to a connection or a request: an
//! attacker that can read the network can use it until it expires.

use crate::token::{from_hex, random_number};
use crate::{Time, Token};
use fleet_base::{Error, Result};
use std::time::Duration;

/// The server's side: issues challenges and verifies credentials.
///
/// ```
/// use fleet_net::{Time, Token, Verifier};
/// use std::time::Duration;
/// let token = Token::generate()?;
/// let server = Verifier::new(&token)?;
/// let credential = token.credential(&server.challenge(Time::now()), Duration::from_secs(60))?;
/// server.verify(&credential, Time::now())?;
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct Verifier {
    token: Token,
    life: u64,
}

/// Longest validity of a credential. It limits the damage of a challenge with a wrong time.
pub const CREDENTIAL_SPAN_MAX: Duration = Duration::from_secs(24 * 3600);
/// Label of the signed data. It keeps codes of the handshake from being valid as credentials.
const LABEL: &[u8] = b"fleet credential";

impl Verifier {
    pub fn new(token: &Token) -> Result<Verifier> {
        Ok(Verifier { token: token.clone(), life: random_number()? })
    }

    /// A challenge to make a credential from. It is not secret.
    pub fn challenge(&self, now: Time) -> String {
        format!("{:016x}.{}", self.life, seconds(now))
    }

    /// Checks that a credential is valid for this server and the job's token at `now`.
    pub fn verify(&self, credential: &str, now: Time) -> Result<()> {
        let wrong = || {
            Error::invalid("a credential is malformed").expected("SECONDS.CODE, as Fleet makes it")
        };
        let (until, code) = credential.split_once('.').ok_or_else(wrong)?;
        let until: u64 = until.parse().map_err(|_| wrong())?;
        let code = from_hex(code).ok_or_else(wrong)?;
        let parts = [LABEL, &self.life.to_le_bytes(), &until.to_le_bytes()];
        if !self.token.verify(&parts, &code) {
            return Err(Error::invalid("a credential is not of this job and this server")
                .help("make one with the job's token from this server's challenge"));
        }
        let now = seconds(now);
        if until < now {
            return Err(Error::invalid("a credential has expired")
                .got(format!("{} s after its end", now - until)));
        }
        if until - now > CREDENTIAL_SPAN_MAX.as_secs() {
            return Err(Error::invalid("a credential holds for too long")
                .expected(format!("up to {CREDENTIAL_SPAN_MAX:?}"))
                .got(format!("{} s", until - now)));
        }
        Ok(())
    }
}

impl Token {
    /// Makes a credential for the server of `challenge`, valid for the next `span`.
    pub fn credential(&self, challenge: &str, span: Duration) -> Result<String> {
        let wrong = || {
            Error::invalid("a server's challenge is malformed")
                .expected("LIFE.SECONDS")
                .got(challenge.chars().take(80).flat_map(char::escape_default).collect::<String>())
        };
        if span > CREDENTIAL_SPAN_MAX {
            return Err(Error::invalid("a credential would hold for too long")
                .expected(format!("up to {CREDENTIAL_SPAN_MAX:?}"))
                .got(format!("{span:?}")));
        }
        let (life, now) = challenge.split_once('.').ok_or_else(wrong)?;
        let life = u64::from_str_radix(life, 16).map_err(|_| wrong())?;
        let now: u64 = now.parse().map_err(|_| wrong())?;
        let until = now.saturating_add(span.as_secs());
        let code = self.sign(&[LABEL, &life.to_le_bytes(), &until.to_le_bytes()]);
        let code: String = code.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{until}.{code}"))
    }
}

fn seconds(time: Time) -> u64 {
    time.since(Time::default()).as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::default().plus(Duration::from_secs(seconds))
    }

    #[test]
    fn it_holds_for_one_server_one_token_and_its_span() {
        let token = Token::generate().unwrap();
        let server = Verifier::new(&token).unwrap();
        let minute = Duration::from_secs(60);
        let check = |credential: &str, now: u64, words: &str| {
            let error = server.verify(credential, at(now)).unwrap_err().to_string();
            assert!(error.contains(words), "{credential}: {error}");
        };
        let good = token.credential(&server.challenge(at(100)), minute).unwrap();
        server.verify(&good, at(100)).unwrap();
        server.verify(&good, at(160)).unwrap();
        check(&good, 161, "has expired: got 1 s after its end");

        let foreign = Token::generate().unwrap();
        check(&foreign.credential(&server.challenge(at(100)), minute).unwrap(), 100, "not of this");
        let again = Verifier::new(&token).unwrap();
        check(&token.credential(&again.challenge(at(100)), minute).unwrap(), 100, "not of this");
        // A validity longer than the signed one.
        let (_, code) = good.split_once('.').unwrap();
        check(&format!("999.{code}"), 100, "not of this");
        // A man in the middle that claims a late time gets no usable credential.
        let late = format!("{:016x}.{}", server.life, u64::MAX);
        check(&token.credential(&late, minute).unwrap(), 100, "holds for too long");
        for malformed in ["", ".", "1", "1.", "x.00", "1.éé", &good[..good.len() - 1]] {
            check(malformed, 100, "malformed");
        }
    }

    #[test]
    fn senseless_challenges_and_spans_are_refused() {
        let token = Token::generate().unwrap();
        for challenge in ["", "1", "x.1", "1.x", "-1.1"] {
            assert!(token.credential(challenge, Duration::ZERO).is_err(), "{challenge}");
        }
        let days = Duration::from_secs(48 * 3600);
        assert!(token.credential("1.1", days).is_err());
    }
}
