//! Client of the etcd v3 API over etcd's JSON gateway (HTTP), with one request per connection: on a
//! kept connection, a request fails if etcd has just closed it, and a change must not be repeated.

use super::access::EtcdAccess;
use super::messages::{
    AuthenticateRequest, Authenticated, Bytes, Change, Condition, Deletion, DeletionRequest, Entry,
    Grant, GrantRequest, KeepAlive, LeaseRequest, Put, Range, RangeRequest, Refusal, Transaction,
    TransactionRequest,
};
use super::tls;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::{Deadline, Time};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use std::fmt::Display;
use std::io::ErrorKind::ConnectionRefused;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use ureq::Agent;

/// Clones share the token.
#[derive(Clone)]
pub struct Gateway {
    access: Arc<EtcdAccess>,
    agent: Agent,
    /// Proof of the user's login. etcd forgets it after some minutes without a request, and when
    /// it starts again.
    token: Arc<Mutex<Option<String>>>,
}

/// An answer before its body is parsed.
struct Answer {
    status: u16,
    /// The first line of the body. An answer of a stream has one message a line.
    line: Vec<u8>,
}

impl Gateway {
    pub fn new(access: &EtcdAccess) -> Gateway {
        // No proxy: the one of the environment is for other servers.
        let config = Agent::config_builder()
            .http_status_as_error(false)
            .max_idle_connections(0)
            .max_redirects(0)
            .proxy(None);
        let config = match &access.tls {
            Some(tls) => tls.apply(config),
            None => config,
        };
        Gateway {
            access: Arc::new(access.clone()),
            agent: config.build().new_agent(),
            token: Arc::default(),
        }
    }

    /// Returns the entries whose key equals `key`, or starts with it, and the revision of the whole
    /// etcd.
    pub fn range(&self, key: &str, is_prefix: bool, time: Duration) -> Result<(Vec<Entry>, u64)> {
        let request = RangeRequest { key: key.into(), range_end: is_prefix.then(|| after(key)) };
        let Range { header, kvs } = self.call("kv/range", &request, time)?;
        let revision = u64::try_from(header.revision);
        let revision = revision.map_err(|error| self.malformed("kv/range", &error))?;
        Ok((kvs, revision))
    }

    pub fn put(&self, key: &str, value: &[u8], lease: i64, time: Duration) -> Result<()> {
        let request = Put { key: key.into(), value: value.into(), lease };
        self.call::<IgnoredAny>("kv/put", &request, time).map(drop)
    }

    /// Sets `to` if `key` has the expected value (`None`: if `key` does not exist). Returns whether
    /// it did.
    pub fn put_if(
        &self,
        (key, expected): (&str, Option<&[u8]>),
        (to, value, lease): (&str, &[u8], i64),
        time: Duration,
    ) -> Result<bool> {
        let put = Put { key: to.into(), value: value.into(), lease };
        let request = TransactionRequest {
            compare: [Condition::new(key, expected)],
            success: [Change::Put(put)],
        };
        Ok(self.call::<Transaction>("kv/txn", &request, time)?.succeeded)
    }

    pub fn delete(&self, key: &str, time: Duration) -> Result<bool> {
        let request = DeletionRequest { key: key.into() };
        Ok(self.call::<Deletion>("kv/deleterange", &request, time)?.deleted > 0)
    }

    /// Creates a lease that expires when it is not kept alive for `ttl`.
    pub fn grant(&self, ttl: Duration, time: Duration) -> Result<i64> {
        let request = GrantRequest { ttl_s: ttl.as_secs().max(1) };
        Ok(self.call::<Grant>("lease/grant", &request, time)?.id)
    }

    /// Keeps a lease alive. Returns false if it has expired.
    pub fn keep_alive(&self, lease: i64, time: Duration) -> Result<bool> {
        let request = LeaseRequest { id: lease };
        Ok(self.call::<KeepAlive>("lease/keepalive", &request, time)?.result.ttl > 0)
    }

    pub fn revoke(&self, lease: i64, time: Duration) -> Result<()> {
        self.call::<IgnoredAny>("lease/revoke", &LeaseRequest { id: lease }, time).map(drop)
    }

    /// Calls a method within `time`, which includes a login if one is due.
    fn call<T: DeserializeOwned>(
        &self,
        method: &str,
        request: &impl Serialize,
        time: Duration,
    ) -> Result<T> {
        let deadline = Deadline::within(time);
        let token = self.login(deadline)?;
        let mut answer = self.post(method, request, token.as_deref(), deadline)?;
        if let Some(token) = token
            && matches!(answer.refusal().code, UNAUTHENTICATED | INVALID_ARGUMENT)
        {
            // The token has expired, or is from before a change of etcd's users.
            let mut known = lock(&self.token);
            *known = known.take().filter(|known| *known != token);
            drop(known);
            let token = self.login(deadline)?;
            answer = self.post(method, request, token.as_deref(), deadline)?;
        }
        self.parsed(method, &answer)
    }

    /// Returns the token of the user, if there is a user. Threads do not wait for each other here:
    /// two tokens at a time are as good as one.
    fn login(&self, deadline: Deadline) -> Result<Option<String>> {
        let Some(user) = &self.access.user else { return Ok(None) };
        let known = lock(&self.token).clone();
        if known.is_some() {
            return Ok(known);
        }
        let request = AuthenticateRequest { name: &user.name, password: &user.password };
        let answer = self.post(AUTHENTICATE, &request, None, deadline)?;
        let Authenticated { token } = self.parsed(AUTHENTICATE, &answer)?;
        *lock(&self.token) = Some(token.clone());
        Ok(Some(token))
    }

    fn post(
        &self,
        method: &str,
        request: &impl Serialize,
        token: Option<&str>,
        deadline: Deadline,
    ) -> Result<Answer> {
        let body = serde_json::to_vec(request);
        let body = body.map_err(|error| Error::internal("a request to etcd").caused(error))?;
        let time = deadline.remaining(Time::now()).unwrap_or_default();
        let mut request = self.agent.post(self.access.url(method)).content_type(JSON);
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let request = request.config().timeout_global(Some(time)).build();
        let answer = request.send(&body[..]).and_then(|answer| {
            let status = answer.status().as_u16();
            let body = answer.into_body().into_with_config().limit(ANSWER_BYTES_MAX);
            let mut line = body.read_to_vec()?;
            line.truncate(line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len()));
            Ok(Answer { status, line })
        });
        answer.map_err(|error| self.unreachable(&error))
    }

    fn parsed<T: DeserializeOwned>(&self, method: &str, answer: &Answer) -> Result<T> {
        if answer.status == 200 && serde_json::from_slice::<IgnoredAny>(&answer.line).is_ok() {
            return serde_json::from_slice(&answer.line)
                .map_err(|error| self.malformed(method, &error));
        }
        Err(self.refused(method, answer))
    }

    fn unreachable(&self, error: &ureq::Error) -> Error {
        if let Some(why) = tls::fault(error) {
            let text = format!("no TLS with etcd at {}: {why}", self.access);
            return Error::invalid(text).help(
                "--etcd_ca names the authority of its certificate, which must be for this address; \
                 with --client-cert-auth etcd also demands --etcd_cert and --etcd_key",
            );
        }
        let why = match error {
            // The alert of a server that demands a certificate comes after the handshake, and a
            // closed connection may hide it.
            ureq::Error::Io(error) if self.is_anonymous() && error.kind() != ConnectionRefused => {
                format!("{error}; an etcd with --client-cert-auth demands --etcd_cert")
            }
            ureq::Error::Io(error) => error.to_string(),
            ureq::Error::Timeout(_) => "no answer in time".to_string(),
            ureq::Error::Protocol(_) => "its answer is not HTTP".to_string(),
            other => other.to_string(),
        };
        Error::unavailable(format!("cannot reach etcd at {}: {why}", self.access))
    }

    /// Whether connections have TLS without a certificate of this launcher.
    fn is_anonymous(&self) -> bool {
        self.access.tls.as_ref().is_some_and(|tls| !tls.has_own())
    }

    /// Returns the error of a refused request: invalid where no retry can help.
    fn refused(&self, method: &str, answer: &Answer) -> Error {
        let (refusal, user) = (answer.refusal(), self.access.user.as_ref());
        let code = refusal.code;
        let why = refusal.message.or(refusal.error).unwrap_or_else(|| {
            String::from_utf8_lossy(&answer.line).chars().take(WHY_CHARS_MAX).collect()
        });
        let got = format!("status {}: {why}", answer.status);
        let name = user.map_or(String::new(), |user| format!(" '{}'", user.name));
        let at = &self.access;
        match (code, user.is_some()) {
            (INVALID_ARGUMENT | FAILED_PRECONDITION, _) if method == AUTHENTICATE => {
                Error::invalid(format!("etcd at {at} refused the user{name}"))
                    .got(got)
                    .help("--etcd_user names the user, --etcd_password_file has its password")
            }
            (PERMISSION_DENIED, _) => {
                Error::invalid(format!("etcd at {at} denies the user{name} a key of the job"))
                    .expected("a role that may read and write keys below /paddle/")
                    .got(got)
            }
            (UNAUTHENTICATED | INVALID_ARGUMENT, false) => {
                Error::invalid(format!("etcd at {at} refused {method}"))
                    .got(got)
                    .help("an etcd with users needs --etcd_user and --etcd_password_file")
            }
            _ => Error::unavailable(format!("etcd at {at} refused {method}"))
                .expected("an etcd of version 3.4 or newer, with https:// if it uses TLS")
                .got(got),
        }
    }

    fn malformed(&self, method: &str, why: &dyn Display) -> Error {
        let text = format!("malformed answer of etcd at {} to {method} ({why})", self.access);
        Error::unavailable(text)
    }
}

impl Answer {
    /// Returns the reason of a refusal; an empty one if there is none.
    fn refusal(&self) -> Refusal {
        match self.status {
            200 => Refusal::default(),
            _ => serde_json::from_slice(&self.line).unwrap_or_default(),
        }
    }
}

/// Returns the end of the range of keys that start with `prefix`, which must not end with byte 255.
fn after(prefix: &str) -> Bytes {
    let mut end = Bytes::from(prefix);
    if let Some(last) = end.0.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

const AUTHENTICATE: &str = "auth/authenticate";
const JSON: &str = "application/json";
/// Codes of refusals, which are gRPC's.
const INVALID_ARGUMENT: u32 = 3;
const PERMISSION_DENIED: u32 = 7;
const FAILED_PRECONDITION: u32 = 9;
const UNAUTHENTICATED: u32 = 16;
/// Limit on a response; enough for a job of thousands of machines.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Limit on characters of a non-JSON response in an error message.
const WHY_CHARS_MAX: usize = 200;
