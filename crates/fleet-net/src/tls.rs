//! TLS between the processes of a job, without certificates.
//!
//! A job already has a secret, its token, so it needs no chain of trust, no files and no expiry
//! dates. A server presents a fresh key (a raw public key, RFC 7250), and clients accept any key.
//! Fleet's handshake follows inside. Its codes cover the token and a value that TLS derives for
//! this connection (the exporter, RFC 5705). A man in the middle has two connections with different
//! exporters, and cannot make the codes without the token. Only TLS 1.3 is supported, without
//! resumption.

use fleet_base::{Error, Result};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer,
    UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::sign::CertifiedKey;
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, ServerConfig,
    ServerConnection, SignatureScheme,
};
use std::io::{
    Error as IoError, ErrorKind as Io, IoSlice, IoSliceMut, Read, Result as IoResult, Write,
};
use std::net::TcpStream;
use std::ops::Range;
use std::sync::Arc;

/// Maximum bytes encrypted before they are written: several records, which stay in the cache.
const ENCRYPTED_BYTES_MAX: usize = 256 << 10;
/// Maximum bytes read from a socket at once: several records.
const INBOX_BYTES_MAX: usize = 128 << 10;
/// Initial size of the inbox. It doubles when a read fills it, so memory grows with the input.
const INBOX_BYTES_MIN: usize = 1 << 10;
/// Size of the secret that binds the handshake to the connection.
const BINDING_BYTES: usize = 32;

/// The client and the server side of a process, with a key of its own.
pub(crate) struct Tls {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Tls {
    pub(crate) fn generate() -> Result<Tls> {
        let failed = |what: &dyn std::fmt::Display| Error::internal(format!("TLS: {what}"));
        let pair =
            ring::signature::Ed25519KeyPair::generate_pkcs8(&ring::rand::SystemRandom::new())
                .map_err(|error| failed(&error))?;
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.as_ref().to_vec()));
        let key = provider::sign::any_supported_type(&key).map_err(|error| failed(&error))?;
        let public = key.public_key().ok_or_else(|| failed(&"key has no public part"))?;
        let shown = CertifiedKey::new(vec![CertificateDer::from(public.to_vec())], key);
        let resolver = AlwaysResolvesServerRawPublicKeys::new(Arc::new(shown));
        // The first suite that both ends support is used. AES-128 is a fifth faster than AES-256.
        let mut provider = provider::default_provider();
        provider.cipher_suites = vec![
            provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
            provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
        ];
        let provider = Arc::new(provider);
        let versions = &[&rustls::version::TLS13];
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| failed(&error))?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(resolver));
        server.send_tls13_tickets = 0;
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(versions)
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(AnyKey(provider)))
            .with_no_client_auth();
        client.resumption = Resumption::disabled();
        client.enable_sni = false;
        Ok(Tls { client: Arc::new(client), server: Arc::new(server) })
    }

    pub(crate) fn client(&self) -> Result<Session> {
        // The name is required but not sent, and no code checks it.
        let name = ServerName::try_from("fleet")
            .map_err(|error| Error::internal(format!("TLS: {error}")))?;
        ClientConnection::new(self.client.clone(), name)
            .map(|connection| Session::new(connection.into()))
            .map_err(|error| Error::internal(format!("TLS: {error}")))
    }

    pub(crate) fn server(&self) -> Result<Session> {
        ServerConnection::new(self.server.clone())
            .map(|connection| Session::new(connection.into()))
            .map_err(|error| Error::internal(format!("TLS: {error}")))
    }
}

/// Accepts every key whose owner can sign with it. The token authenticates the owner.
#[derive(Debug)]
struct AnyKey(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        Err(rustls::Error::General("TLS 1.2 is not supported".to_string()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        key: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        let key = SubjectPublicKeyInfoDer::from(key.as_ref());
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature_with_raw_key(message, &key, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

/// One connection's side of TLS.
pub(crate) struct Session {
    connection: Connection,
    /// Received records, still encrypted, and the unprocessed part of them. Without this buffer
    /// rustls would read only 4 KB at a time.
    inbox: Vec<u8>,
    inbox_part: Range<usize>,
    /// Whether the last read filled `inbox`.
    was_filled: bool,
    /// Number of the writer's bytes that are encrypted but not yet reported as written, because
    /// their records have not been sent.
    unreported_bytes: usize,
}

impl Session {
    fn new(mut connection: Connection) -> Session {
        connection.set_buffer_limit(Some(ENCRYPTED_BYTES_MAX));
        let inbox = Vec::new();
        Session { connection, inbox, inbox_part: 0..0, was_filled: false, unreported_bytes: 0 }
    }

    pub(crate) fn handshake(&mut self, socket: &TcpStream) -> IoResult<bool> {
        while self.connection.is_handshaking() {
            self.send(socket)?;
            if !self.connection.is_handshaking() {
                break;
            }
            match self.receive(socket) {
                Ok(0) => return Err(Io::UnexpectedEof.into()),
                Ok(_) => {}
                Err(error) if error.kind() == Io::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        // The last flight fits into any socket's buffer. Otherwise the next write would send it.
        self.send(socket)?;
        Ok(true)
    }

    pub(crate) fn binding(&self) -> Result<Vec<u8>> {
        let secret = [0; BINDING_BYTES];
        self.connection
            .export_keying_material(secret, b"EXPORTER-fleet-net", None)
            .map(|secret| secret.to_vec())
            .map_err(|error| Error::internal(format!("TLS: {error}")))
    }

    pub(crate) fn read(&mut self, socket: &TcpStream, into: &mut [u8]) -> IoResult<usize> {
        loop {
            match self.connection.reader().read(into) {
                Err(error) if error.kind() == Io::WouldBlock => {}
                // The peer closed the connection without a TLS alert. Messages carry their lengths,
                // so a truncated one is detected.
                Err(error) if error.kind() == Io::UnexpectedEof => return Ok(0),
                other => return other,
            }
            if self.receive(socket)? == 0 {
                return Ok(0);
            }
        }
    }

    /// Fills one slice after the other with the data that has arrived.
    pub(crate) fn read_vectored(
        &mut self,
        socket: &TcpStream,
        into: &mut [IoSliceMut<'_>],
    ) -> IoResult<usize> {
        let mut total = 0;
        for slice in into.iter_mut() {
            let mut done = 0;
            while done < slice.len() {
                match self.read(socket, &mut slice[done..]) {
                    Ok(0) => return Ok(total),
                    Ok(count) => (done, total) = (done + count, total + count),
                    Err(_) if total > 0 => return Ok(total),
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(total)
    }

    /// Encrypts as much as possible. Reports bytes as written once their records have been sent.
    pub(crate) fn write(&mut self, socket: &TcpStream, from: &[IoSlice<'_>]) -> IoResult<usize> {
        self.send(socket)?;
        if self.unreported_bytes > 0 {
            return Ok(std::mem::take(&mut self.unreported_bytes));
        }
        let mut total = 0;
        for slice in from {
            let count = self.connection.writer().write(slice)?;
            total += count;
            if count < slice.len() {
                break;
            }
        }
        match self.send(socket) {
            Ok(()) => Ok(total),
            Err(error) => {
                self.unreported_bytes = total;
                Err(error)
            }
        }
    }

    /// Writes all pending records; `WouldBlock` if the socket is full.
    fn send(&mut self, mut socket: &TcpStream) -> IoResult<()> {
        while self.connection.wants_write() {
            if self.connection.write_tls(&mut socket)? == 0 {
                return Err(Io::WriteZero.into());
            }
        }
        Ok(())
    }

    /// Reads from the socket and decrypts; returns 0 at the end of the stream.
    fn receive(&mut self, mut socket: &TcpStream) -> IoResult<usize> {
        if self.inbox_part.is_empty() {
            if self.was_filled && self.inbox.len() < INBOX_BYTES_MAX {
                self.inbox.resize(self.inbox.len() * 2, 0);
            }
            if self.inbox.is_empty() {
                self.inbox.resize(INBOX_BYTES_MIN, 0);
            }
            let count = socket.read(&mut self.inbox)?;
            self.inbox_part = 0..count;
            self.was_filled = count == self.inbox.len();
        }
        let mut rest = &self.inbox[self.inbox_part.clone()];
        let count = self.connection.read_tls(&mut rest)?;
        self.inbox_part.start += count;
        if let Err(error) = self.connection.process_new_packets() {
            // Send the pending alert to the peer, if there is one.
            let _ = self.send(socket);
            return Err(IoError::new(Io::InvalidData, error));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::Tls;
    use crate::stream::Stream;
    use crate::{Limits, Log, Store, StoreClient, StoreServer, Token, Vigilance, socket};
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    /// Copies the available bytes of one side to the other; false at the end of either.
    fn relay(from: &Stream, to: &Stream, seen: &mut Vec<u8>) -> bool {
        let mut bytes = [0; 4096];
        let mut from = from;
        match from.read(&mut bytes) {
            Ok(0) => false,
            Ok(count) => {
                seen.extend(&bytes[..count]);
                let limits = Limits::within(Duration::from_secs(30));
                socket::write_parts(to, &[&bytes[..count]], &limits).is_ok()
            }
            Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }

    /// A man in the middle with TLS to both ends decrypts everything, and is detected.
    #[test]
    fn who_is_between_is_found_out() {
        let token = Token::generate().unwrap().over_tls().unwrap();
        let server =
            StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::silent()).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (between, real) = (listener.local_addr().unwrap(), server.address());
        let spy = std::thread::spawn(move || {
            let tls = Tls::generate().unwrap();
            let (near, _) = listener.accept().unwrap();
            let far = TcpStream::connect(real).unwrap();
            near.set_nonblocking(true).unwrap();
            far.set_nonblocking(true).unwrap();
            let near = Stream::under(near, tls.server().unwrap());
            let far = Stream::under(far, tls.client().unwrap());
            let mut seen = Vec::new();
            while !(near.tls_handshake().unwrap() & far.tls_handshake().unwrap()) {
                std::thread::yield_now();
            }
            while relay(&near, &far, &mut seen) && relay(&far, &near, &mut seen) {
                std::thread::yield_now();
            }
            seen
        });
        let limits = Limits::within(Duration::from_secs(30));
        let error = StoreClient::connect(between, &token, &limits).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("the peer rejected the job token"), "{error}");
        let seen = spy.join().unwrap();
        assert!(seen.starts_with(b"FLEETNET"), "the relay read the handshake");
        // A direct connection works.
        let store = StoreClient::connect(real, &token, &limits).unwrap();
        store.set("a", b"b", &limits).unwrap();
    }

    /// Memory for an unauthenticated peer grows with the bytes it sends.
    #[test]
    fn memory_grows_with_what_has_come() {
        let tls = Tls::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stranger = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (near, _) = listener.accept().unwrap();
        stranger.write_all(&[0x16, 3, 1, 2, 0, 1]).unwrap();
        drop(stranger);
        let mut session = tls.server().unwrap();
        assert!(session.handshake(&near).is_err());
        assert!(session.inbox.capacity() <= 4096, "{} bytes", session.inbox.capacity());
    }

    /// A write that would block is reported once its records are sent. No byte is lost or repeated.
    #[test]
    fn full_sockets() {
        let tls = Tls::generate().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_nonblocking(true).unwrap();
        let near = Stream::under(near, tls.client().unwrap());
        let far = Stream::under(far, tls.server().unwrap());
        while !(near.tls_handshake().unwrap() & far.tls_handshake().unwrap()) {}
        assert_eq!(near.binding().unwrap(), far.binding().unwrap());
        let data: Vec<u8> = (0..30_000_000u32).map(|i| (i / 7) as u8).collect();
        let (mut sent, mut got, mut refused) = (0, Vec::<u8>::new(), 0);
        let mut room = vec![0; 1 << 20];
        while got.len() < data.len() {
            match (&near).write(&data[sent..]) {
                Ok(count) => sent += count,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                    refused += 1;
                    while let Ok(count) = (&far).read(&mut room) {
                        got.extend(&room[..count]);
                    }
                }
            }
            if sent == data.len() {
                while let Ok(count) = (&far).read(&mut room) {
                    got.extend(&room[..count]);
                }
            }
        }
        assert!(got == data && refused > 0);
        drop(near);
        assert_eq!((&far).read(&mut room).unwrap(), 0);
    }
}
