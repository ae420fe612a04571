//! HTTP with JSON: `POST /v1/predict`, `POST /v1/recommend`, `GET /v1/model`, `GET /health` and
//! `GET /metrics`.

use crate::app::{App, RETRY_AFTER, code_of};
use crate::metrics::Protocol;
use crate::queue::{Items, Rows, Scores, Users};
use bytes::Bytes;
use fleet_base::output::note;
use fleet_base::{Error, text};
use fleet_job::serving::RequestError;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{sleep, timeout};

/// Limit on connections; further ones wait until one is closed.
const CONNECTIONS_MAX: usize = 512;
/// Time for the headers of a request, also on a connection that was idle.
const HEADER_TIME: Duration = Duration::from_secs(20);
/// Time for the body of a request.
const BODY_TIME: Duration = Duration::from_secs(20);
/// Limit on the headers of a request, which are in one buffer.
const HEADER_BYTES_MAX: usize = 64 << 10;
/// Pause after a failed accept, as when there are too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Time for requests that run when the server stops.
pub const GRACE: Duration = Duration::from_secs(20);

/// Accepts connections until the server stops, and then waits for their last answers.
pub async fn serve(app: Arc<App>, listener: TcpListener, mut stop: watch::Receiver<bool>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let slot = tokio::select! {
            slot = Arc::clone(&slots).acquire_owned() => slot,
            () = stopped(&mut stop) => break,
        };
        // The semaphore is never closed.
        let Ok(slot) = slot else { break };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stopped(&mut stop) => break,
        };
        match accepted {
            Ok((stream, _)) => {
                let (app, stop) = (Arc::clone(&app), stop.clone());
                tokio::spawn(async move {
                    connection(app, stream, stop).await;
                    drop(slot);
                });
            }
            Err(error) => {
                note(format!("cannot accept a connection: {error}"));
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
    drop(listener);
    // All slots are free when all connections are closed.
    let _ = timeout(GRACE, slots.acquire_many(CONNECTIONS_MAX as u32)).await;
}

async fn connection(app: Arc<App>, stream: TcpStream, mut stop: watch::Receiver<bool>) {
    // Answers are small and must not wait for more.
    let _ = stream.set_nodelay(true);
    let service = service_fn(move |request| {
        let app = Arc::clone(&app);
        async move { Ok::<_, Infallible>(answer(&app, request).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIME)
        .max_buf_size(HEADER_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    tokio::pin!(serving);
    // A client that breaks a connection is no fault of the server.
    tokio::select! {
        _ = serving.as_mut() => {}
        () = stopped(&mut stop) => {
            serving.as_mut().graceful_shutdown();
            let _ = serving.await;
        }
    }
}

/// Waits until the server stops.
pub async fn stopped(stop: &mut watch::Receiver<bool>) {
    // The sender is gone when the server is.
    let _ = stop.wait_for(|stop| *stop).await;
}

type Answer = Response<Full<Bytes>>;

async fn answer(app: &App, request: Request<Incoming>) -> Answer {
    let answer = route(app, request).await;
    app.metrics.count(Protocol::Http, answer.status().as_u16());
    answer
}

async fn route(app: &App, request: Request<Incoming>) -> Answer {
    let path = request.uri().path();
    let wanted = match path {
        "/v1/predict" | "/v1/recommend" => Method::POST,
        "/v1/model" | "/health" | "/metrics" => Method::GET,
        _ => {
            let known = ["/v1/predict", "/v1/recommend", "/v1/model", "/health", "/metrics"];
            let near = text::did_you_mean(path, known);
            let shown: String = path.chars().take(PATH_SHOWN).collect();
            return refused(404, &Error::invalid(format!("nothing is at {shown}{near}")));
        }
    };
    // Probes of the system have no token.
    let header = request.headers().get(header::AUTHORIZATION);
    if path != "/health" && !app.admits(header.map(HeaderValue::as_bytes)) {
        let error = Error::invalid("the request has no valid token")
            .expected("the header 'authorization: Bearer TOKEN'");
        let mut answer = refused(401, &error);
        let value = HeaderValue::from_static("Bearer");
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        return answer;
    }
    if request.method() != wanted && !(wanted == Method::GET && request.method() == Method::HEAD) {
        let error = Error::invalid("wrong method").expected(&wanted).got(request.method());
        let mut answer = refused(405, &error);
        if let Ok(value) = HeaderValue::from_str(wanted.as_str()) {
            answer.headers_mut().insert(header::ALLOW, value);
        }
        return answer;
    }
    match path {
        "/health" => json(200, "{\"status\":\"ready\"}\n".to_string()),
        "/metrics" => with_type(200, app.metrics_text(), "text/plain; version=0.0.4"),
        "/v1/model" => json(200, format!("{:#}\n", app.workers.model().info())),
        _ => work(app, request).await,
    }
}

/// Characters of a path that an error shows.
const PATH_SHOWN: usize = 100;

/// Scores rows, or recommends items.
async fn work(app: &App, request: Request<Incoming>) -> Answer {
    let recommends = request.uri().path() == "/v1/recommend";
    let too_long = || {
        let error = Error::exhausted("the body is too long")
            .expected(format!("at most {}", text::bytes(app.body_max as u64)))
            .help("divide the rows among several requests");
        refused(413, &error)
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|length| length > app.body_max as u64) {
        return too_long();
    }
    let body = Limited::new(request.into_body(), app.body_max);
    let body = match timeout(BODY_TIME, body.collect()).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => return too_long(),
        Ok(Err(error)) => {
            return refused(400, &Error::invalid(format!("cannot read the body: {error}")));
        }
        Err(_) => {
            let limit = format!("within {} s", BODY_TIME.as_secs());
            return refused(408, &Error::unavailable("the body is late").expected(limit));
        }
    };
    let answered = match recommends {
        true => app.recommend(Users::Json(body)).await.map(|items| items_json(&items)),
        false => app.score(Rows::Json(body)).await.map(|scores| scores_json(&scores)),
    };
    answered.map_or_else(|error| failed(&error), |text| json(200, text))
}

/// Writes scores: a number for each row, or a list with a number for each class or label.
fn scores_json(scores: &Scores) -> String {
    let (model, width) = (&scores.model, scores.model.width());
    let mut text = format!("{{\"version\":{},", model.version());
    let names = [("classes", model.classes()), ("labels", model.labels())];
    let names = names.into_iter().find(|(_, names)| !names.is_empty());
    let is_list = names.is_some();
    if let Some((key, names)) = names {
        let _ = write!(text, "\"{key}\":{},", serde_json::json!(names));
    }
    text.push_str("\"scores\":[");
    for (index, row) in scores.values.chunks(width).enumerate() {
        text.push_str(if index == 0 { "" } else { "," });
        text.push_str(if is_list { "[" } else { "" });
        for (index, score) in row.iter().enumerate() {
            text.push_str(if index == 0 { "" } else { "," });
            push_score(&mut text, *score);
        }
        text.push_str(if is_list { "]" } else { "" });
    }
    text.push_str("]}\n");
    text
}

fn push_score(text: &mut String, score: f32) {
    let _ = match score.is_finite() {
        true => write!(text, "{score}"),
        // JSON has no other numbers.
        false => write!(text, "null"),
    };
}

/// Writes the names of each user's items, and then their scores.
fn items_json(items: &Items) -> String {
    let (model, users) = (&items.model, &items.found.users);
    let mut text = format!("{{\"version\":{},\"items\":", model.version());
    let lists = |text: &mut String, push: &dyn Fn(&mut String, &(usize, f32))| {
        for (index, found) in users.iter().enumerate() {
            text.push_str(if index == 0 { "[[" } else { ",[" });
            for (index, item) in found.iter().enumerate() {
                text.push_str(if index == 0 { "" } else { "," });
                push(text, item);
            }
            text.push(']');
        }
        text.push_str(if users.is_empty() { "[]" } else { "]" });
    };
    lists(&mut text, &|text, (place, _)| {
        let _ = write!(text, "{}", serde_json::Value::from(model.item(*place)));
    });
    text.push_str(",\"scores\":");
    lists(&mut text, &|text, (_, score)| push_score(text, *score));
    text.push_str("}\n");
    text
}

fn failed(error: &RequestError) -> Answer {
    let code = code_of(&error.error);
    let mut json = error_json(&error.error);
    if let Some(row) = error.row {
        json["row"] = row.into();
    }
    if let Some(column) = &error.column {
        json["column"] = column.as_str().into();
    }
    let mut answer = self::json(code, format!("{json}\n"));
    if code == 503 {
        let value = HeaderValue::from_static(RETRY_AFTER);
        answer.headers_mut().insert(header::RETRY_AFTER, value);
    }
    answer
}

fn refused(code: u16, error: &Error) -> Answer {
    json(code, format!("{}\n", error_json(error)))
}

fn error_json(error: &Error) -> serde_json::Value {
    let mut json = serde_json::json!({ "error": error.message() });
    for (name, value) in ["expected", "got", "help"].iter().zip(error.details()) {
        if let Some(value) = value {
            json[name] = value.into();
        }
    }
    if let Some(place) = error.places().first() {
        json["at"] = place.as_str().into();
    }
    json
}

fn json(code: u16, body: String) -> Answer {
    with_type(code, body, "application/json")
}

fn with_type(code: u16, body: String, kind: &'static str) -> Answer {
    let mut answer = Response::new(Full::new(Bytes::from(body)));
    *answer.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}
