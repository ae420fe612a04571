//! An operator's side of control over gRPC.

use super::accept::{CHALLENGE_KEY, SCHEME};
use super::message::{
    LOAD, LoadRequest, SAVE, SHRINK, STATISTICS, SaveAnswer, SaveRequest, ShrinkRequest,
    StatisticsAnswer, StatisticsRequest,
};
use super::message::{LoadAnswer, ShrinkAnswer};
use super::service::error_of;
use super::tls::{ClientTls, cause};
use fleet_base::{Error, Result};
use fleet_net::Token;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// Calls a [`ControlServer`](super::ControlServer); see there for an example.
pub struct ControlClient {
    runtime: Runtime,
    grpc: Grpc<Channel>,
    token: Token,
    address: String,
    has_tls: bool,
}

const CONNECT_SPAN: Duration = Duration::from_secs(10);
/// Validity of a credential, which is made for each call.
const CREDENTIAL_SPAN: Duration = Duration::from_secs(60);

impl ControlClient {
    /// Connects to `HOST:PORT`.
    pub fn connect(address: &str, token: &Token) -> Result<ControlClient> {
        ControlClient::open(address, token, None)
    }

    /// Like [`ControlClient::connect`], over TLS.
    pub fn connect_under(address: &str, token: &Token, tls: ClientTls) -> Result<ControlClient> {
        ControlClient::open(address, token, Some(tls))
    }

    fn open(address: &str, token: &Token, tls: Option<ClientTls>) -> Result<ControlClient> {
        let failed = |error: &dyn std::error::Error| {
            let cause = cause(error);
            Error::unavailable(format!("cannot reach {address} over gRPC: {error}{cause}"))
                .help("use the address that the server logged, HOST:PORT")
        };
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
        let has_tls = tls.is_some();
        let scheme = if has_tls { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| failed(&error))?
            .connect_timeout(CONNECT_SPAN);
        let endpoint = match tls {
            Some(tls) => tls.apply(endpoint)?,
            None => endpoint,
        };
        let channel = runtime.block_on(endpoint.connect()).map_err(|error| failed(&error))?;
        let (token, address) = (token.clone(), address.to_string());
        Ok(ControlClient { runtime, grpc: Grpc::new(channel), token, address, has_tls })
    }

    /// Returns the contents and the activity of this server alone.
    pub fn statistics(&mut self) -> Result<StatisticsAnswer> {
        self.call(STATISTICS, StatisticsRequest {})
    }

    /// Saves all tables of all servers while training continues: all servers or none. Only server 0
    /// accepts this call.
    pub fn save(&mut self, request: SaveRequest) -> Result<SaveAnswer> {
        self.call(SAVE, request)
    }

    /// Loads the latest complete save over the present contents. Only server 0 accepts this call.
    pub fn load(&mut self, request: LoadRequest) -> Result<LoadAnswer> {
        self.call(LOAD, request)
    }

    /// Deletes unused rows of a sparse table, on all servers. Only server 0 accepts this call.
    pub fn shrink(&mut self, request: ShrinkRequest) -> Result<ShrinkAnswer> {
        self.call(SHRINK, request)
    }

    /// Returns a credential for other tools, to be sent to this server as
    /// `authorization: Bearer ...`. It is valid for `span`.
    pub fn credential(&mut self, span: Duration) -> Result<String> {
        let answer: Result<StatisticsAnswer, Status> =
            self.send(STATISTICS, StatisticsRequest {}, SCHEME);
        let refused = match answer {
            Err(status) if status.code() == Code::Unauthenticated => status,
            // A server without TLS would answer at least with a refusal.
            Err(status)
                if !self.has_tls
                    && matches!(
                        status.code(),
                        Code::Internal | Code::Unavailable | Code::Unknown
                    ) =>
            {
                let error = Error::unavailable("no answer over gRPC without TLS");
                return Err(self.place(error.got(status.message()).help(
                    "for a server with TLS, pass its certificate or that of its issuer: --ca FILE",
                )));
            }
            Err(status) => return Err(self.place(error_of(&status))),
            Ok(_) => return Err(self.place(Error::invalid("server does not request a credential"))),
        };
        let challenge = refused.metadata().get(CHALLENGE_KEY).and_then(|it| it.to_str().ok());
        let challenge = challenge.and_then(|text| text.strip_prefix(SCHEME)).ok_or_else(|| {
            self.place(Error::invalid("server rejected the call without a challenge").got(&refused))
        })?;
        self.token.credential(challenge.trim(), span).map_err(|error| self.place(error))
    }

    fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        let credential = self.credential(CREDENTIAL_SPAN)?;
        let answer = self.send(path, request, &format!("Bearer {credential}"));
        answer.map_err(|status| self.place(error_of(&status)))
    }

    fn send<Q, A>(
        &mut self,
        path: &'static str,
        request: Q,
        authorization: &str,
    ) -> Result<A, Status>
    where
        Q: prost::Message + Default + 'static,
        A: prost::Message + Default + 'static,
    {
        let mut request = Request::new(request);
        let value = AsciiMetadataValue::try_from(authorization)
            .map_err(|error| Status::internal(error.to_string()))?;
        request.metadata_mut().insert("authorization", value);
        let grpc = &mut self.grpc;
        self.runtime.block_on(async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let path = PathAndQuery::from_static(path);
            let answer = grpc.unary(request, path, ProstCodec::<Q, A>::default()).await?;
            Ok(answer.into_inner())
        })
    }

    fn place(&self, error: Error) -> Error {
        error.at(format!("{} over gRPC", self.address))
    }
}
