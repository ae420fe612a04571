//! The first bytes of every connection. Both sides agree on the protocol and prove that they know
//! the job's token.
//!
//! ```text
//! client                                     server
//! header: magic, version, nonce (44 bytes) ->
//!                                         <- header: magic, version, nonce
//! code(client, headers, hello), hello     ->
//!                                         <- code(server, headers, hello, answer), answer
//! ```
//!
//! Under TLS (`tls.rs`) all of this is encrypted, and the codes also cover a value that TLS derives
//! for the connection. A code is HMAC-SHA256 under the token. Nonces are fresh, so messages cannot
//! be replayed. The labels differ, so messages cannot be reflected. The server authenticates only
//! to a client that has authenticated itself. Later bytes of the connection are not signed: if
//! attackers can inject into connections of the cluster's network, use a token that requires TLS.

use crate::stream::Stream;
use crate::token::random;
use crate::wire::{Reader, Writer, put_error, take_error};
use crate::{Limits, Token, socket};
use fleet_base::{Error, Result};
use rustix::event::PollFlags;
use std::net::SocketAddr;

pub(crate) const MAGIC: [u8; 8] = *b"FLEETNET";
/// Version of the protocol. Changes when processes of different versions cannot communicate.
pub const PROTOCOL_VERSION: u16 = 2;
pub(crate) const HEADER_BYTES: usize = 44;
pub(crate) const CODE_BYTES: usize = 32;
/// Size limit of a hello, which names a rank and a mesh.
pub(crate) const HELLO_BYTES_MAX: usize = 4 << 10;
/// Size limit of an answer. The longest is an error.
const ANSWER_BYTES_MAX: usize = 16 << 10;

pub(crate) type Header = [u8; HEADER_BYTES];

/// The service that a client requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    Store = 1,
    Member = 2,
    Mesh = 3,
    Calls = 4,
}

#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    pub(crate) body: Vec<u8>,
}

impl Hello {
    fn encode(&self) -> Vec<u8> {
        Writer::new().u8(self.purpose as u8).bytes(&self.body).0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Hello> {
        let mut reader = Reader::new(bytes);
        let purpose = match reader.u8()? {
            1 => Purpose::Store,
            2 => Purpose::Member,
            3 => Purpose::Mesh,
            4 => Purpose::Calls,
            other => {
                return Err(Error::unsupported("unknown purpose of a connection").got(other));
            }
        };
        let body = reader.bytes()?.to_vec();
        reader.end()?;
        Ok(Hello { purpose, body })
    }
}

pub(crate) fn new_header() -> Result<Header> {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..10].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
    header[12..].copy_from_slice(&random::<32>()?);
    Ok(header)
}

/// Sent in place of a header by a server that requires TLS, to a client that does not use it.
pub(crate) const TLS_REQUIRED: Header = {
    let mut header = [0; HEADER_BYTES];
    let mark = *b"FLEETTLS";
    let mut at = 0;
    while at < mark.len() {
        header[at] = mark[at];
        at += 1;
    }
    header
};
/// The first byte of a connection under TLS: a handshake record.
pub(crate) const TLS_FIRST_BYTE: u8 = 0x16;
/// Sent by a server without TLS to a client that uses it: the alert `handshake_failure`.
pub(crate) const TLS_REFUSAL: [u8; 7] = [0x15, 3, 3, 0, 2, 2, 40];

/// Checks that `header`, or the part of it received so far, is one of Fleet's.
pub(crate) fn check_header(header: &[u8]) -> Result<()> {
    const SAME: &str =
        "use the same token for all processes of the job, including the prefix `tls:`";
    if header.starts_with(&TLS_REQUIRED[..MAGIC.len()]) {
        return Err(
            Error::invalid("the peer requires TLS, but this process does not use it").help(SAME)
        );
    }
    if header.first() == Some(&TLS_FIRST_BYTE) {
        return Err(Error::invalid("the peer uses TLS, but this process does not").help(SAME));
    }
    let magic = header.len().min(MAGIC.len());
    if header[..magic] != MAGIC[..magic] {
        let start: String = header[..magic]
            .iter()
            .flat_map(|byte| std::ascii::escape_default(*byte))
            .map(char::from)
            .collect();
        return Err(Error::invalid("the peer does not speak Fleet's protocol")
            .expected("FLEETNET")
            .got(format!("'{start}'")));
    }
    if let Some(version) = header.get(8..10) {
        let version = u16::from_le_bytes([version[0], version[1]]);
        if version != PROTOCOL_VERSION {
            return Err(Error::invalid("protocol version mismatch")
                .expected(PROTOCOL_VERSION)
                .got(version)
                .help("run the same version of Fleet on all machines of a job"));
        }
    }
    Ok(())
}

/// Verifies the client's code, on the server.
pub(crate) fn verify_client(
    token: &Token,
    headers: [&Header; 2],
    hello: &[u8],
    binding: &[u8],
    code: &[u8],
) -> bool {
    token.verify(&bound(&[b"fleet client", headers[0], headers[1], hello], binding), code)
}

/// The parts of a code, followed by the binding to the TLS connection, if there is one.
fn bound<'a>(parts: &[&'a [u8]], binding: &'a [u8]) -> Vec<&'a [u8]> {
    let own = (!binding.is_empty()).then_some(binding);
    parts.iter().copied().chain(own).collect()
}

/// Sent to a client that does not know the token, in place of a code. It is not signed, because the
/// server authenticates only to a client that has authenticated itself.
pub(crate) const REFUSAL: [u8; CODE_BYTES + 4] = [0; CODE_BYTES + 4];

/// The last message of the handshake: code and answer.
pub(crate) fn answer(
    token: &Token,
    headers: [&Header; 2],
    hello: &[u8],
    binding: &[u8],
    result: &Result<Vec<u8>>,
) -> Vec<u8> {
    let answer = match result {
        Ok(body) => Writer::new().u8(1).bytes(body).0,
        Err(error) => put_error(Writer::new().u8(0), error).0,
    };
    let parts = [&b"fleet server"[..], headers[0], headers[1], hello, &answer];
    let code = token.sign(&bound(&parts, binding));
    let mut message = code.to_vec();
    message.extend((answer.len() as u32).to_le_bytes());
    message.extend(answer);
    message
}

/// Connects to `address` and authenticates. Returns the connection and the server's answer.
pub(crate) fn connect_and_handshake(
    address: SocketAddr,
    token: &Token,
    hello: &Hello,
    limits: &Limits,
) -> Result<(Stream, Vec<u8>)> {
    let stream = token.wrap_client(socket::connect(address, limits)?)?;
    let body = tls_handshake(&stream, limits)
        .and_then(|()| client_handshake(&stream, token, hello, limits))
        .map_err(|error| error.at(format!("the handshake with {address}")))?;
    Ok((stream, body))
}

/// The client's side of the TLS handshake, if the connection uses TLS.
fn tls_handshake(stream: &Stream, limits: &Limits) -> Result<()> {
    loop {
        match stream.tls_handshake() {
            Ok(true) => return Ok(()),
            Ok(false) => socket::wait(stream, PollFlags::IN, limits)?,
            Err(error) => return Err(tls_error(&error)),
        }
    }
}

/// The error of a failed TLS handshake.
pub(crate) fn tls_error(error: &std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::InvalidData => Error::invalid(format!("TLS handshake failed: {error}"))
            .help("check that the other process also uses a token with `tls:`"),
        _ => socket::lost(error),
    }
}

fn client_handshake(
    stream: &Stream,
    token: &Token,
    hello: &Hello,
    limits: &Limits,
) -> Result<Vec<u8>> {
    let own = new_header()?;
    socket::write_parts(stream, &[&own], limits)?;
    let mut theirs: Header = [0; HEADER_BYTES];
    socket::read_exact(stream, &mut theirs, limits)?;
    check_header(&theirs)?;
    let hello = hello.encode();
    let binding = stream.binding()?;
    let code = token.sign(&bound(&[b"fleet client", &own, &theirs, &hello], &binding));
    let length = (hello.len() as u32).to_le_bytes();
    socket::write_parts(stream, &[&code, &length, &hello], limits)?;
    let mut start = [0; CODE_BYTES + 4];
    socket::read_exact(stream, &mut start, limits)?;
    let (code, length) = start.split_at(CODE_BYTES);
    let length = u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
    if start == REFUSAL {
        return Err(Error::invalid("the peer rejected the job token").help(
            "both processes must belong to the same job; the address may be from an older job",
        ));
    }
    if length > ANSWER_BYTES_MAX {
        return Err(Error::invalid("handshake answer is too long")
            .expected(format!("up to {ANSWER_BYTES_MAX} bytes"))
            .got(length));
    }
    let mut answer = vec![0; length];
    socket::read_exact(stream, &mut answer, limits)?;
    let parts = [&b"fleet server"[..], &own, &theirs, &hello, &answer];
    if !token.verify(&bound(&parts, &binding), code) {
        return Err(Error::invalid("the peer does not know the job token")
            .help("another program may listen on this address, or it may be from an older job"));
    }
    let mut reader = Reader::new(&answer);
    match reader.u8()? {
        1 => Ok(reader.bytes()?.to_vec()),
        _ => Err(take_error(&mut reader)?),
    }
}
