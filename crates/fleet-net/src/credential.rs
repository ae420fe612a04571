//! Credentials for protocols that do not start with Fleet's handshake (`handshake.rs`), such as
//! gRPC. A credential is a text, signed with the job's token, that lets its bearer use one server
//! until it expires.
//!
//! ```text
//! server -> client   challenge:   server . now
//! client -> server   credential:  until . code(server, until)
//! ```
//!
//! `server` is a random number drawn when the server starts, so a credential is valid for one
//! server process only. `now` and `until` are seconds of the server's own clock, so clocks need not
//! agree. The token itself is never sent. A credential is not bound to a connection or a request:
//! an attacker that can read the network can use it until it expires.

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
    server_id: u64,
}

/// Longest validity of a credential. It limits the damage of a challenge with a wrong time.
pub const CREDENTIAL_VALIDITY_MAX: Duration = Duration::from_secs(24 * 3600);
/// Label of the signed data. It keeps codes of the handshake from being valid as credentials.
const LABEL: &[u8] = b"fleet credential";

impl Verifier {
    /// Returns a verifier of a new server, which accepts credentials made from its own challenges.
    pub fn new(token: &Token) -> Result<Verifier> {
        Ok(Verifier { token: token.clone(), server_id: random_number()? })
    }

    /// A challenge to make a credential from. It is not secret.
    pub fn challenge(&self, now: Time) -> String {
        format!("{:016x}.{}", self.server_id, seconds(now))
    }

    /// Checks that a credential is valid for this server and the job's token at `now`.
    pub fn verify(&self, credential: &str, now: Time) -> Result<()> {
        let wrong = || Error::invalid("malformed credential").expected("SECONDS.CODE");
        let (until, code) = credential.split_once('.').ok_or_else(wrong)?;
        let until: u64 = until.parse().map_err(|_| wrong())?;
        let code = from_hex(code).ok_or_else(wrong)?;
        let parts = [LABEL, &self.server_id.to_le_bytes(), &until.to_le_bytes()];
        if !self.token.verify(&parts, &code) {
            return Err(Error::invalid("credential is not valid for this job and server")
                .help("create one from the job token and this server's challenge"));
        }
        let now = seconds(now);
        if until < now {
            return Err(
                Error::invalid("credential has expired").got(format!("{} s too late", now - until))
            );
        }
        if until - now > CREDENTIAL_VALIDITY_MAX.as_secs() {
            return Err(Error::invalid("validity of the credential is too long")
                .expected(format!("up to {CREDENTIAL_VALIDITY_MAX:?}"))
                .got(format!("{} s", until - now)));
        }
        Ok(())
    }
}

impl Token {
    /// Makes a credential for the server of `challenge`, valid for the next `span`.
    pub fn credential(&self, challenge: &str, span: Duration) -> Result<String> {
        let wrong = || {
            Error::invalid("malformed challenge of a server")
                .expected("SERVER.SECONDS")
                .got(challenge.chars().take(80).flat_map(char::escape_default).collect::<String>())
        };
        if span > CREDENTIAL_VALIDITY_MAX {
            return Err(Error::invalid("validity of the credential is too long")
                .expected(format!("up to {CREDENTIAL_VALIDITY_MAX:?}"))
                .got(format!("{span:?}")));
        }
        let (server, now) = challenge.split_once('.').ok_or_else(wrong)?;
        let server = u64::from_str_radix(server, 16).map_err(|_| wrong())?;
        let now: u64 = now.parse().map_err(|_| wrong())?;
        let until = now.saturating_add(span.as_secs());
        let code = self.sign(&[LABEL, &server.to_le_bytes(), &until.to_le_bytes()]);
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
        check(&good, 161, "has expired: got 1 s too late");

        let foreign = Token::generate().unwrap();
        check(
            &foreign.credential(&server.challenge(at(100)), minute).unwrap(),
            100,
            "not valid for this",
        );
        let again = Verifier::new(&token).unwrap();
        check(
            &token.credential(&again.challenge(at(100)), minute).unwrap(),
            100,
            "not valid for this",
        );
        // A validity longer than the signed one.
        let (_, code) = good.split_once('.').unwrap();
        check(&format!("999.{code}"), 100, "not valid for this");
        // A man in the middle that claims a late time gets no usable credential.
        let late = format!("{:016x}.{}", server.server_id, u64::MAX);
        check(&token.credential(&late, minute).unwrap(), 100, "is too long");
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
