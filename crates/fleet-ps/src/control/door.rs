//! Admission: limits on connections in number and in time, and credentials of calls.

use super::seats::{SEATS_MAX, Seat, Seats, WAITING_MAX};
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
#[cfg(feature = "tls")]
use tonic::transport::server::TlsConnectInfo;
use tonic::{Code, Request, Status};

/// Pause after a failed accept.
const ACCEPT_REST: Duration = Duration::from_millis(100);
/// The authorization with which a client requests a challenge, and the start of the challenge.
pub(super) const SCHEME: &str = "Fleet";
pub(super) const CHALLENGE_KEY: &str = "www-authenticate";

/// Accepts connections.
pub(super) struct Door {
    listener: TcpListener,
    seats: Arc<Seats>,
    rest: Option<Pin<Box<Sleep>>>,
    log: Log,
}

impl Door {
    pub fn new(listener: TcpListener, log: Log) -> Door {
        Door { listener, seats: Arc::default(), rest: None, log }
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
                Ok((socket, peer)) => {
                    let (seat, evicts) = Seats::take(&self.seats);
                    if evicts {
                        self.log.line(format!(
                            "dropped the oldest connection for control over gRPC that has shown no \
                             credential: {WAITING_MAX} of them is the limit, and {peer} connected"
                        ));
                    }
                    return Poll::Ready(Some(Ok(Guest::new(socket, peer, seat))));
                }
                Err(error) => {
                    self.log.line(format!("cannot accept a connection over gRPC: {error}"));
                    self.rest = Some(Box::pin(sleep(ACCEPT_REST)));
                }
            }
        }
    }
}

/// A connection. It fails when its seat has expired.
pub(super) struct Guest {
    socket: TcpStream,
    info: GuestInfo,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
}

/// Data of a connection for its calls.
#[derive(Clone)]
pub(super) struct GuestInfo {
    peer: SocketAddr,
    seat: Arc<Seat>,
}

impl Guest {
    fn new(socket: TcpStream, peer: SocketAddr, seat: Arc<Seat>) -> Guest {
        Guest { socket, over: Box::pin(seat.clone().is_over()), info: GuestInfo { peer, seat } }
    }

    /// Checked before every read and write, so that a peer that does not read is closed too.
    fn check(&mut self, cx: &mut Context<'_>) -> IoResult<()> {
        match self.over.as_mut().poll(cx) {
            Poll::Ready(()) => {
                // The future has completed and must not be polled again.
                self.over = Box::pin(std::future::ready(()));
                Err(std::io::ErrorKind::TimedOut.into())
            }
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncRead for Guest {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<IoResult<()>> {
        self.check(cx)?;
        Pin::new(&mut self.socket).poll_read(cx, into)
    }
}

impl AsyncWrite for Guest {
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

impl Connected for Guest {
    type ConnectInfo = GuestInfo;

    fn connect_info(&self) -> GuestInfo {
        self.info.clone()
    }
}

/// Returns the connection of a call.
fn guest(request: &Request<()>) -> Option<&GuestInfo> {
    #[cfg(feature = "tls")]
    if let Some(info) = request.extensions().get::<TlsConnectInfo<GuestInfo>>() {
        return Some(info.get_ref());
    }
    request.extensions().get()
}

/// Admits calls that show a credential; others get a challenge to make one from.
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
                    Ok(()) => return admitted(request),
                    Err(error) => error.to_string(),
                },
            },
            Some(Err(_)) => "the credential is no text".to_string(),
        };
        let peer = guest(&request).map_or("a peer".to_string(), |guest| guest.peer.to_string());
        self.log.line(format!("{peer} was refused control over gRPC: {refused}"));
        Err(self
            .refusal(&format!("{refused}; `fleet ps credential` makes one from the job's token")))
    }
}

/// Admits a call with a valid credential if its connection gets a seat.
fn admitted(request: Request<()>) -> Result<Request<()>, Status> {
    match guest(&request).is_none_or(|guest| guest.seat.prove()) {
        true => Ok(request),
        false => Err(Status::resource_exhausted(format!(
            "all {SEATS_MAX} seats are taken: connections for control over gRPC"
        ))),
    }
}
