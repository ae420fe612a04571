//! Who may come in: connections in number and in time, and calls that show a credential.

use fleet_net::{HANDSHAKE_SPAN, Log, Time, Verifier};
use std::io::Result as IoResult;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tonic::codegen::tokio_stream::Stream;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tonic::{Code, Request, Status};

/// Operators and probes are few.
const CONNECTIONS_MAX: usize = 64;
/// How long nobody is let in after a failed accept.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// What a connection under HTTP/2 begins with.
const PREFACE_BYTES: usize = 24;
/// What a client says who wants a challenge, and what a challenge begins with.
pub(super) const SCHEME: &str = "Fleet";
pub(super) const CHALLENGE_KEY: &str = "www-authenticate";

/// Connections as they come.
pub(super) struct Door {
    listener: TcpListener,
    seats: Arc<Semaphore>,
    rest: Option<Pin<Box<Sleep>>>,
    log: Log,
}

impl Door {
    pub fn new(listener: TcpListener, log: Log) -> Door {
        Door { listener, seats: Arc::new(Semaphore::new(CONNECTIONS_MAX)), rest: None, log }
    }
}

impl Stream for Door {
    type Item = IoResult<Guest>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<IoResult<Guest>>> {
        loop {
            if let Some(rest) = &mut self.rest {
                ready!(rest.as_mut().poll(cx));
                self.rest = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((socket, peer)) => match self.seats.clone().try_acquire_owned() {
                    Ok(seat) => {
                        let patience = Some(Box::pin(sleep(HANDSHAKE_SPAN)));
                        return Poll::Ready(Some(Ok(Guest { socket, seat, patience, seen: 0 })));
                    }
                    Err(_) => self.log.line(format!(
                        "{peer} was turned away: {CONNECTIONS_MAX} connections are open for control \
                         over gRPC, which is the limit"
                    )),
                },
                Err(error) => {
                    self.log.line(format!("cannot accept a connection over gRPC: {error}"));
                    self.rest = Some(Box::pin(sleep(ACCEPT_REST)));
                }
            }
        }
    }
}

/// A connection, and its place among the few. One that does not begin is closed.
pub(super) struct Guest {
    socket: TcpStream,
    #[expect(dead_code, reason = "held, not used")]
    seat: OwnedSemaphorePermit,
    patience: Option<Pin<Box<Sleep>>>,
    seen: usize,
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<IoResult<()>> {
        if let Some(patience) = &mut self.patience
            && patience.as_mut().poll(cx).is_ready()
        {
            return Poll::Ready(Err(std::io::ErrorKind::TimedOut.into()));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.socket).poll_read(cx, into))?;
        self.seen = self.seen.saturating_add(into.filled().len() - before);
        if self.seen >= PREFACE_BYTES {
            self.patience = None;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Guest {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<IoResult<usize>> {
        Pin::new(&mut self.socket).poll_write(cx, from)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<IoResult<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

impl Connected for Guest {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.socket.connect_info()
    }
}

/// Lets calls through that show a credential; others get a challenge to make one from.
#[derive(Clone)]
pub(super) struct Guard {
    verifier: Arc<Verifier>,
    log: Log,
}

impl Guard {
    pub fn new(verifier: Verifier, log: Log) -> Guard {
        Guard { verifier: Arc::new(verifier), log }
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

impl tonic::service::Interceptor for Guard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let shown = request.metadata().get("authorization").map(AsciiMetadataValue::to_str);
        let refused = match shown {
            None => "no credential was shown".to_string(),
            Some(Ok(SCHEME)) => return Err(self.refusal("here is a challenge")),
            Some(Ok(text)) => match text.strip_prefix("Bearer ") {
                None => "expected 'authorization: Bearer CREDENTIAL'".to_string(),
                Some(credential) => match self.verifier.verify(credential, Time::now()) {
                    Ok(()) => return Ok(request),
                    Err(error) => error.to_string(),
                },
            },
            Some(Err(_)) => "the credential is no text".to_string(),
        };
        let peer = request.remote_addr().map_or("somebody".to_string(), |peer| peer.to_string());
        self.log.line(format!("{peer} was refused control over gRPC: {refused}"));
        Err(self
            .refusal(&format!("{refused}; `fleet ps credential` makes one from the job's token")))
    }
}
