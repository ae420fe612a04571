//! Admission: limits on connections in number and in time, and credentials of calls.

use super::slots::{CONNECTIONS_MAX, Slot, Slots, UNAUTHENTICATED_MAX};
use fleet_net::{Log, Time, Verifier};
use std::io::Result as IoResult;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};
use tonic::codegen::tokio_stream::Stream;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::server::Connected;
use tonic::transport::server::TlsConnectInfo;
use tonic::{Code, Request, Status};

/// Pause after a failed accept.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// The authorization with which a client requests a challenge, and the start of the challenge.
pub(super) const SCHEME: &str = "Fleet";
pub(super) const CHALLENGE_KEY: &str = "www-authenticate";

/// Accepts connections.
pub(super) struct Acceptor {
    listener: TcpListener,
    slots: Arc<Slots>,
    pause: Option<Pin<Box<Sleep>>>,
    log: Log,
}

impl Acceptor {
    pub fn new(listener: TcpListener, log: Log) -> Acceptor {
        Acceptor { listener, slots: Arc::default(), pause: None, log }
    }
}

impl Stream for Acceptor {
    type Item = IoResult<Connection>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<IoResult<Connection>>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((socket, peer)) => {
                    let (slot, evicts) = Slots::take(&self.slots);
                    if evicts {
                        self.log.line(format!(
                            "closed the oldest connection without a credential for control over \
                             gRPC: {peer} connected, and the limit is {UNAUTHENTICATED_MAX}"
                        ));
                    }
                    return Poll::Ready(Some(Ok(Connection::new(socket, peer, slot))));
                }
                Err(error) => {
                    self.log.line(format!("cannot accept a connection over gRPC: {error}"));
                    self.pause = Some(Box::pin(sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

/// A connection. It fails when its slot has expired.
pub(super) struct Connection {
    socket: TcpStream,
    info: ConnectionInfo,
    expired: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Data of a connection for its calls.
#[derive(Clone)]
pub(super) struct ConnectionInfo {
    peer: SocketAddr,
    slot: Arc<Slot>,
}

impl Connection {
    fn new(socket: TcpStream, peer: SocketAddr, slot: Arc<Slot>) -> Connection {
        Connection {
            socket,
            expired: Box::pin(slot.clone().expired()),
            info: ConnectionInfo { peer, slot },
        }
    }

    /// Checked before every read and write, so that a peer that does not read is closed too.
    fn check(&mut self, cx: &mut Context<'_>) -> IoResult<()> {
        match self.expired.as_mut().poll(cx) {
            Poll::Ready(()) => {
                // The future has completed and must not be polled again.
                self.expired = Box::pin(std::future::ready(()));
                Err(std::io::ErrorKind::TimedOut.into())
            }
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<IoResult<()>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<IoResult<usize>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Connected for Connection {
    type ConnectInfo = ConnectionInfo;

    fn connect_info(&self) -> ConnectionInfo {
        self.info.clone()
    }
}

/// Returns the connection of a call.
fn connection_info(request: &Request<()>) -> Option<&ConnectionInfo> {
    if let Some(info) = request.extensions().get::<TlsConnectInfo<ConnectionInfo>>() {
        return Some(info.get_ref());
    }
    request.extensions().get()
}

/// Admits calls that show a credential; others get a challenge to make one from.
#[derive(Clone)]
pub(super) struct Authenticator {
    verifier: Arc<Verifier>,
    log: Log,
}

impl Authenticator {
    pub fn new(verifier: Verifier, log: Log) -> Authenticator {
        Authenticator { verifier: Arc::new(verifier), log }
    }

    fn refusal(&self, message: &str) -> Status {
        let challenge = format!("{SCHEME} {}", self.verifier.challenge(Time::now()));
        let mut metadata = MetadataMap::new();
        if let Ok(challenge) = AsciiMetadataValue::try_from(challenge) {
            metadata.insert(CHALLENGE_KEY, challenge);
        }
        Status::with_metadata(Code::Unauthenticated, message, metadata)
    }
}

impl tonic::service::Interceptor for Authenticator {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let value = request.metadata().get("authorization").map(AsciiMetadataValue::to_str);
        let refused = match value {
            None => "no credential".to_string(),
            Some(Ok(SCHEME)) => {
                return Err(self.refusal("credential required: answer the challenge"));
            }
            Some(Ok(text)) => match text.strip_prefix("Bearer ") {
                None => "expected 'authorization: Bearer CREDENTIAL'".to_string(),
                Some(credential) => match self.verifier.verify(credential, Time::now()) {
                    Ok(()) => return admitted(request),
                    Err(error) => error.to_string(),
                },
            },
            Some(Err(_)) => "the credential is not text".to_string(),
        };
        let peer =
            connection_info(&request).map_or("a peer".to_string(), |info| info.peer.to_string());
        self.log.line(format!("rejected control over gRPC from {peer}: {refused}"));
        Err(self
            .refusal(&format!("{refused}; `fleet ps credential` creates one from the job's token")))
    }
}

/// Admits a call with a valid credential if its connection gets a slot.
fn admitted(request: Request<()>) -> Result<Request<()>, Status> {
    match connection_info(&request).is_none_or(|info| info.slot.authenticate()) {
        true => Ok(request),
        false => Err(Status::resource_exhausted(format!(
            "all {CONNECTIONS_MAX} connections for control over gRPC are in use"
        ))),
    }
}
