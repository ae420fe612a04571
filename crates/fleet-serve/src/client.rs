//! A client for predictions over gRPC.

use crate::message::{
    MODEL, ModelAnswer, ModelRequest, PREDICT, PredictAnswer, PredictRequest, RECOMMEND,
    RecommendAnswer, RecommendRequest,
};
use fleet_base::{Error, ErrorKind, Result};
use prost::Message;
use std::time::Duration;
use tokio::runtime::{Builder, Runtime};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::AsciiMetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// Calls a server, one request after the other.
pub struct PredictClient {
    runtime: Runtime,
    grpc: Grpc<Channel>,
    authorization: Option<AsciiMetadataValue>,
}

const CONNECT_SPAN: Duration = Duration::from_secs(10);

impl PredictClient {
    /// Connects to `HOST:PORT`.
    pub fn connect(address: &str, token: Option<&str>) -> Result<PredictClient> {
        let failed = |error: &dyn std::error::Error| {
            Error::unavailable(format!("cannot reach {address} over gRPC: {error}"))
                .help("use the address that the server printed, HOST:PORT")
        };
        let wrong = |_| Error::invalid("the token is not text");
        let authorization = token.map(|token| format!("Bearer {token}").parse().map_err(wrong));
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| failed(&error))?;
        let endpoint = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|error| failed(&error))?
            .connect_timeout(CONNECT_SPAN)
            .tcp_nodelay(true);
        let channel = runtime.block_on(endpoint.connect()).map_err(|error| failed(&error))?;
        Ok(PredictClient {
            runtime,
            grpc: Grpc::new(channel),
            authorization: authorization.transpose()?,
        })
    }

    /// Scores rows.
    pub fn predict(&mut self, request: PredictRequest) -> Result<PredictAnswer> {
        self.call(PREDICT, request)
    }

    /// Recommends items to users.
    pub fn recommend(&mut self, request: RecommendRequest) -> Result<RecommendAnswer> {
        self.call(RECOMMEND, request)
    }

    /// Describes the model.
    pub fn model(&mut self) -> Result<ModelAnswer> {
        self.call(MODEL, ModelRequest {})
    }

    fn call<Q, A>(&mut self, path: &'static str, request: Q) -> Result<A>
    where
        Q: Message + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut request = Request::new(request);
        if let Some(authorization) = &self.authorization {
            request.metadata_mut().insert("authorization", authorization.clone());
        }
        let grpc = &mut self.grpc;
        let called = async {
            grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let codec = ProstCodec::<Q, A>::default();
            grpc.unary(request, PathAndQuery::from_static(path), codec).await
        };
        match self.runtime.block_on(called) {
            Ok(answer) => Ok(answer.into_inner()),
            Err(status) => Err(error_of(&status)),
        }
    }
}

fn error_of(status: &Status) -> Error {
    let kind = match status.code() {
        Code::InvalidArgument | Code::Unauthenticated => ErrorKind::Invalid,
        Code::Unimplemented => ErrorKind::Unsupported,
        Code::ResourceExhausted => ErrorKind::Exhausted,
        Code::Internal => ErrorKind::Internal,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, status.message())
}
