//! The calls: they read the tables of this server, or call the servers of the job as an operator.

use super::message as m;
use super::message::{
    LOAD, LoadAnswer, LoadRequest, SAVE, SERVICE, SHRINK, STATISTICS, SaveAnswer, SaveRequest,
    ShrinkAnswer, ShrinkRequest, StatisticsAnswer, StatisticsRequest,
};
use crate::{RemoteOptions, RemoteServers, SaveFormat, SaveMode, ServerTables, TableAdmin, Tables};
use fleet_base::sync::try_lock;
use fleet_base::{Error, ErrorKind, Result};
use fleet_net::{Abort, Log, Token};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::{Code, Request, Response, Status};
use tonic_prost::ProstCodec;

/// The service, for one connection.
#[derive(Clone)]
pub(super) struct Control(pub Arc<ControlService>);

pub(super) struct ControlService {
    pub served: OnceLock<Served>,
    pub token: Token,
    pub log: Log,
    /// Ends waits for other servers.
    pub abort: Abort,
    /// Held by a save, load or shrink: one runs at a time.
    pub work: Mutex<()>,
}

/// The tables of this server, and the addresses where all servers of the job accept frames.
pub(super) struct Served {
    pub tables: Arc<ServerTables>,
    pub addresses: Vec<SocketAddr>,
}

/// Limit on a request, in bytes; its longest field is the name of a folder.
const REQUEST_BYTES_MAX: usize = 64 << 10;
/// Limit on the text of a status, which is sent in a header.
const STATUS_CHARS_MAX: usize = 2 << 10;
/// Time limit for reaching the other servers of the job.
const REACH_SPAN: Duration = Duration::from_secs(30);

impl NamedService for Control {
    const NAME: &'static str = SERVICE;
}

impl Service<http::Request<Body>> for Control {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.0.clone();
        match request.uri().path() {
            STATISTICS => answer(service, request, ControlService::statistics),
            SAVE => answer(service, request, ControlService::save),
            LOAD => answer(service, request, ControlService::load),
            SHRINK => answer(service, request, ControlService::shrink),
            path => {
                let status = Status::unimplemented(format!("unknown call {path} of {SERVICE}"));
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
        }
    }
}

fn answer<Q, A>(
    service: Arc<ControlService>,
    request: http::Request<Body>,
    run: fn(&ControlService, Q) -> Result<A>,
) -> BoxFuture<http::Response<Body>, Infallible>
where
    Q: prost::Message + Default + 'static,
    A: prost::Message + Default + 'static,
{
    Box::pin(async move {
        let mut grpc =
            Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(REQUEST_BYTES_MAX);
        Ok(grpc.unary(Call { service, run }, request).await)
    })
}

/// One call, on a thread that may block.
struct Call<Q, A> {
    service: Arc<ControlService>,
    run: fn(&ControlService, Q) -> Result<A>,
}

impl<Q: Send + 'static, A: Send + 'static> Service<Request<Q>> for Call<Q, A> {
    type Response = Response<A>;
    type Error = Status;
    type Future = BoxFuture<Response<A>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let (service, run) = (self.service.clone(), self.run);
        Box::pin(async move {
            let done =
                tokio::task::spawn_blocking(move || run(&service, request.into_inner())).await;
            match done {
                Ok(result) => result.map(Response::new).map_err(|error| status(&error)),
                Err(_) => Err(Status::internal("call panicked; see the server's logs")),
            }
        })
    }
}

impl ControlService {
    fn served(&self) -> Result<&Served> {
        self.served.get().ok_or_else(|| {
            Error::unavailable("this server has no tables yet")
                .help("wait until grpc.health.v1.Health reports SERVING")
        })
    }

    fn statistics(&self, _: StatisticsRequest) -> Result<StatisticsAnswer> {
        self.served()?.tables.statistics()
    }

    fn save(&self, request: SaveRequest) -> Result<SaveAnswer> {
        let mode = SaveMode::parse(request.mode.into())?;
        let format = match m::SaveFormat::try_from(request.format) {
            Ok(m::SaveFormat::Binary) => SaveFormat::Binary,
            Ok(m::SaveFormat::Text) => SaveFormat::Text,
            Err(_) => {
                return Err(Error::invalid("unknown save format")
                    .expected("0 (binary) or 1 (text)")
                    .got(request.format));
            }
        };
        let what = format!("save ({mode:?}, {format:?}) into {}", request.folder);
        let folder = folder(&request.folder)?;
        let saved =
            self.for_all(&what, |servers| servers.save(Tables::All, folder, mode, format))?;
        Ok(SaveAnswer { rows: saved.row_count, bytes: saved.bytes })
    }

    fn load(&self, request: LoadRequest) -> Result<LoadAnswer> {
        let folder = folder(&request.folder)?;
        let what = format!("load {}", request.folder);
        let rows = self.for_all(&what, |servers| servers.load(Tables::All, folder))?;
        Ok(LoadAnswer { rows })
    }

    fn shrink(&self, request: ShrinkRequest) -> Result<ShrinkAnswer> {
        let days = request.unseen_days.map(|days| {
            u8::try_from(days)
                .map_err(|_| Error::invalid("too many unseen days").expected("up to 255").got(days))
        });
        let (table, days) = (request.table, days.transpose()?);
        let what = format!("shrink table {table}");
        let deleted_rows = self.for_all(&what, |servers| servers.shrink(table, days))?;
        Ok(ShrinkAnswer { deleted_rows })
    }

    /// Runs work on all servers of the job, over frames, as workers do.
    fn for_all<R>(&self, what: &str, work: impl FnOnce(&dyn TableAdmin) -> Result<R>) -> Result<R> {
        let Served { tables, addresses } = self.served()?;
        if tables.server() != 0 {
            // Simultaneous work from two servers would conflict.
            return Err(Error::invalid("only server 0 accepts this call")
                .got(format!("a call to server {}", tables.server()))
                .help("use the gRPC address that server 0 logged"));
        }
        let Some(_alone) = try_lock(&self.work) else {
            return Err(Error::unavailable("another save, load or shrink is in progress")
                .help("call again when it has ended"));
        };
        self.log.line(format!("server 0: gRPC request: {what}"));
        let options = RemoteOptions {
            deadline: REACH_SPAN,
            log: self.log.clone(),
            abort: self.abort.clone(),
            ..RemoteOptions::default()
        };
        let servers = RemoteServers::operator(tables.job(), addresses, &self.token, options)?;
        work(&servers)
    }
}

fn folder(name: &str) -> Result<&Path> {
    match name.is_empty() {
        true => Err(Error::invalid("missing folder").expected("`folder`, as the servers see it")),
        false => Ok(Path::new(name)),
    }
}

fn status(error: &Error) -> Status {
    let code = match error.kind() {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Numeric => Code::FailedPrecondition,
        ErrorKind::Internal => Code::Internal,
    };
    let text: String = error.to_string().chars().take(STATUS_CHARS_MAX).collect();
    Status::new(code, text)
}

/// Converts a status back to an error, for clients.
pub(super) fn error_of(status: &Status) -> Error {
    let kind = match status.code() {
        Code::InvalidArgument | Code::Unauthenticated | Code::OutOfRange => ErrorKind::Invalid,
        Code::Unimplemented => ErrorKind::Unsupported,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::FailedPrecondition => ErrorKind::Numeric,
        Code::Internal => ErrorKind::Internal,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, status.message())
}
