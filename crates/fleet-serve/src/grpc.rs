//! gRPC: `fleet.serve.v1.Predictor` (`proto/serve.proto`) and the standard health service.

use crate::app::{App, code_of};
use crate::http::{GRACE, stopped};
use crate::message::{
    MODEL, ModelAnswer, ModelRequest, PREDICT, PredictAnswer, PredictRequest, RECOMMEND,
    RecommendAnswer, RecommendRequest, SERVICE,
};
use crate::metrics::Protocol;
use crate::queue::{Items, Rows, Users};
use fleet_base::output::note;
use fleet_base::{Error, ErrorKind};
use fleet_job::serving::RequestError;
use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Code, Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_prost::ProstCodec;

/// Limit on the calls of one connection at the same time.
const STREAMS_MAX: u32 = 256;
const HEADER_BYTES_MAX: u32 = 16 << 10;
/// Time after which a client that does not answer is gone.
const KEEPALIVE: Duration = Duration::from_secs(20);
/// Limit on the text of a status, which is sent in a header.
const STATUS_CHARS_MAX: usize = 2 << 10;

/// Answers calls until the server stops, and then those that run.
pub async fn serve(app: Arc<App>, listener: TcpListener, stop: watch::Receiver<bool>) {
    let (reporter, health) = tonic_health::server::health_reporter();
    for name in ["", SERVICE] {
        reporter.set_service_status(name, ServingStatus::Serving).await;
    }
    let (mut told, mut ended) = (stop.clone(), stop);
    let serving = Server::builder()
        .max_concurrent_streams(STREAMS_MAX)
        .http2_max_header_list_size(HEADER_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE))
        .add_service(health)
        .add_service(Predictor(app))
        .serve_with_incoming_shutdown(
            TcpIncoming::from(listener).with_nodelay(Some(true)),
            async move { stopped(&mut told).await },
        );
    let late = async {
        stopped(&mut ended).await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        outcome = serving => if let Err(error) = outcome {
            note(format!("gRPC has ended: {error}"));
        },
        () = late => {}
    }
}

/// The service, for one connection.
#[derive(Clone)]
struct Predictor(Arc<App>);

impl NamedService for Predictor {
    const NAME: &'static str = SERVICE;
}

impl Service<http::Request<Body>> for Predictor {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<http::Response<Body>, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let app = Arc::clone(&self.0);
        let header = request.headers().get(http::header::AUTHORIZATION);
        if !app.admits(header.map(http::HeaderValue::as_bytes)) {
            app.metrics.count(Protocol::Grpc, 401);
            let status =
                Status::unauthenticated("the call has no valid token: authorization: Bearer TOKEN");
            return Box::pin(std::future::ready(Ok(status.into_http())));
        }
        match request.uri().path() {
            PREDICT => Box::pin(async move {
                let codec = ProstCodec::<PredictAnswer, PredictRequest>::default();
                let mut grpc = Grpc::new(codec).max_decoding_message_size(app.body_max);
                Ok(grpc.unary(Predict(app), request).await)
            }),
            RECOMMEND => Box::pin(async move {
                let codec = ProstCodec::<RecommendAnswer, RecommendRequest>::default();
                let mut grpc = Grpc::new(codec).max_decoding_message_size(app.body_max);
                Ok(grpc.unary(Recommend(app), request).await)
            }),
            MODEL => Box::pin(async move {
                let mut grpc = Grpc::new(ProstCodec::<ModelAnswer, ModelRequest>::default());
                Ok(grpc.unary(Model(app), request).await)
            }),
            path => {
                let status = Status::unimplemented(format!("unknown call {path} of {SERVICE}"));
                Box::pin(std::future::ready(Ok(status.into_http())))
            }
        }
    }
}

/// The call that scores rows.
struct Predict(Arc<App>);

impl Service<Request<PredictRequest>> for Predict {
    type Response = Response<PredictAnswer>;
    type Error = Status;
    type Future = BoxFuture<Response<PredictAnswer>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<PredictRequest>) -> Self::Future {
        let app = Arc::clone(&self.0);
        Box::pin(async move {
            let outcome = app.score(Rows::Table(request.into_inner())).await;
            let code = outcome.as_ref().map_or_else(|error| code_of(&error.error), |_| 200);
            app.metrics.count(Protocol::Grpc, code);
            let scores = outcome.map_err(status)?;
            Ok(Response::new(PredictAnswer {
                scores_per_row: scores.model.width() as u32,
                version: scores.model.version(),
                scores: scores.values,
            }))
        })
    }
}

/// The call that recommends items.
struct Recommend(Arc<App>);

impl Service<Request<RecommendRequest>> for Recommend {
    type Response = Response<RecommendAnswer>;
    type Error = Status;
    type Future = BoxFuture<Response<RecommendAnswer>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RecommendRequest>) -> Self::Future {
        let app = Arc::clone(&self.0);
        Box::pin(async move {
            let outcome = app.recommend(Users::Table(request.into_inner())).await;
            let code = outcome.as_ref().map_or_else(|error| code_of(&error.error), |_| 200);
            app.metrics.count(Protocol::Grpc, code);
            outcome.map(|items| Response::new(items_message(&items))).map_err(status)
        })
    }
}

fn items_message(items: &Items) -> RecommendAnswer {
    let (model, users) = (&items.model, &items.found.users);
    RecommendAnswer {
        items: users.iter().flatten().map(|(place, _)| model.item(*place).to_string()).collect(),
        scores: users.iter().flatten().map(|(_, score)| *score).collect(),
        lengths: users.iter().map(|found| found.len() as u32).collect(),
        version: model.version(),
    }
}

/// The call that describes the model.
struct Model(Arc<App>);

impl Service<Request<ModelRequest>> for Model {
    type Response = Response<ModelAnswer>;
    type Error = Status;
    type Future = BoxFuture<Response<ModelAnswer>, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<ModelRequest>) -> Self::Future {
        let model = self.0.workers.model();
        self.0.metrics.count(Protocol::Grpc, 200);
        let answer = ModelAnswer {
            version: model.version(),
            classes: model.classes().to_vec(),
            json: model.info().to_string(),
            labels: model.labels().to_vec(),
        };
        Box::pin(std::future::ready(Ok(Response::new(answer))))
    }
}

fn status(error: RequestError) -> Status {
    let error = Error::from(error);
    let code = match error.kind() {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::Unsupported => Code::Unimplemented,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Exhausted => Code::ResourceExhausted,
        ErrorKind::Numeric | ErrorKind::Internal => Code::Internal,
    };
    let text: String = error.to_string().chars().take(STATUS_CHARS_MAX).collect();
    Status::new(code, text)
}
