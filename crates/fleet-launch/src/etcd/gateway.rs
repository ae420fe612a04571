//! Client of the etcd v3 API over etcd's JSON gateway (HTTP), with one request per connection. TLS
//! and users are not supported.

use fleet_base::{Error, Result};
use fleet_topology::Endpoint;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};
use std::fmt::Display;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Gateway {
    pub endpoint: Endpoint,
}

/// A key with its value and the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entry {
    #[serde(deserialize_with = "base64_text")]
    pub key: String,
    #[serde(default, deserialize_with = "base64")]
    pub value: Vec<u8>,
    #[serde(rename = "mod_revision", deserialize_with = "number")]
    pub revision: i64,
}

impl Gateway {
    /// Returns the entries whose key equals `key`, or starts with it, and the revision of the whole
    /// etcd.
    pub fn range(&self, key: &str, is_prefix: bool, time: Duration) -> Result<(Vec<Entry>, u64)> {
        let mut body = json!({ "key": encoded(key.as_bytes()) });
        if is_prefix {
            body["range_end"] = json!(encoded(&after(key)));
        }
        let Range { header, kvs } = self.call("kv/range", &body, time)?;
        let revision = u64::try_from(header.revision);
        let revision = revision.map_err(|error| self.malformed("kv/range", &error))?;
        Ok((kvs, revision))
    }

    pub fn put(&self, key: &str, value: &[u8], lease: i64, time: Duration) -> Result<()> {
        self.call::<IgnoredAny>("kv/put", &put(key, value, lease), time).map(drop)
    }

    /// Sets `to` if `key` has the expected value (`None`: if `key` does not exist). Returns whether
    /// it did.
    pub fn put_if(
        &self,
        (key, expected): (&str, Option<&[u8]>),
        (to, value, lease): (&str, &[u8], i64),
        time: Duration,
    ) -> Result<bool> {
        let key = encoded(key.as_bytes());
        let compare = match expected {
            None => {
                json!({ "key": key, "target": "CREATE", "result": "EQUAL", "create_revision": "0" })
            }
            Some(value) => {
                json!({ "key": key, "target": "VALUE", "result": "EQUAL", "value": encoded(value) })
            }
        };
        let body =
            json!({ "compare": [compare], "success": [{ "request_put": put(to, value, lease) }] });
        Ok(self.call::<Transaction>("kv/txn", &body, time)?.succeeded)
    }

    pub fn delete(&self, key: &str, time: Duration) -> Result<bool> {
        let body = json!({ "key": encoded(key.as_bytes()) });
        Ok(self.call::<Deletion>("kv/deleterange", &body, time)?.deleted > 0)
    }

    /// Creates a lease that expires when it is not kept alive for `ttl`.
    pub fn grant(&self, ttl: Duration, time: Duration) -> Result<i64> {
        let body = json!({ "TTL": ttl.as_secs().max(1) });
        Ok(self.call::<Grant>("lease/grant", &body, time)?.id)
    }

    /// Keeps a lease alive. Returns false if it has expired.
    pub fn keep_alive(&self, lease: i64, time: Duration) -> Result<bool> {
        let body = json!({ "ID": lease.to_string() });
        Ok(self.call::<KeepAlive>("lease/keepalive", &body, time)?.result.ttl > 0)
    }

    pub fn revoke(&self, lease: i64, time: Duration) -> Result<()> {
        let body = json!({ "ID": lease.to_string() });
        self.call::<IgnoredAny>("lease/revoke", &body, time).map(drop)
    }

    fn call<T: DeserializeOwned>(&self, path: &str, body: &Value, time: Duration) -> Result<T> {
        let (status, text) = self.ask(path, &body.to_string(), time).map_err(|error| {
            Error::unavailable(format!("etcd at {} cannot be asked: {error}", self.endpoint))
        })?;
        let line = text.lines().next().unwrap_or("");
        if status == 200 && serde_json::from_str::<IgnoredAny>(line).is_ok() {
            return serde_json::from_str(line).map_err(|error| self.malformed(path, &error));
        }
        let refusal = serde_json::from_str::<Refusal>(line).ok();
        let why = refusal.and_then(|it| it.message.or(it.error));
        let why = why.unwrap_or_else(|| text.chars().take(WHY_CHARS_MAX).collect());
        Err(Error::unavailable(format!("etcd at {} refused {path}", self.endpoint))
            .expected("an etcd of version 3.4 or newer, without TLS and users")
            .got(format!("status {status}: {why}")))
    }

    fn ask(&self, path: &str, body: &str, time: Duration) -> std::io::Result<(u16, String)> {
        let Endpoint { host, port } = &self.endpoint;
        let address = (host.as_str(), *port).to_socket_addrs()?.next();
        let address = address.ok_or_else(|| std::io::Error::other("the host has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, time)?;
        stream.set_read_timeout(Some(time))?;
        stream.set_write_timeout(Some(time))?;
        stream.set_nodelay(true)?;
        let request = format!(
            "POST /v3/{path} HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.endpoint,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        let mut bytes = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes)?;
        answer(&bytes).ok_or_else(|| std::io::Error::other("its answer is not HTTP"))
    }

    fn malformed(&self, path: &str, why: &dyn Display) -> Error {
        let text = format!("malformed answer of etcd at {} to {path} ({why})", self.endpoint);
        Error::unavailable(text)
    }
}

/// Answers of the gateway. It omits fields that are empty, zero or false.
#[derive(Deserialize)]
struct Range {
    header: Header,
    #[serde(default)]
    kvs: Vec<Entry>,
}

#[derive(Deserialize)]
struct Header {
    #[serde(deserialize_with = "number")]
    revision: i64,
}

#[derive(Deserialize)]
struct Transaction {
    #[serde(default)]
    succeeded: bool,
}

#[derive(Deserialize)]
struct Deletion {
    #[serde(default, deserialize_with = "number")]
    deleted: i64,
}

#[derive(Deserialize)]
struct Grant {
    #[serde(rename = "ID", deserialize_with = "number")]
    id: i64,
}

#[derive(Deserialize)]
struct KeepAlive {
    result: Lease,
}

#[derive(Deserialize)]
struct Lease {
    /// 0 if the lease has expired.
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    ttl: i64,
}

#[derive(Deserialize)]
struct Refusal {
    message: Option<String>,
    error: Option<String>,
}

/// Parses an HTTP response into status and body.
fn answer(bytes: &[u8]) -> Option<(u16, String)> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).ok()?;
    let body = &bytes[end + 4..];
    let status = head.strip_prefix("HTTP/1.")?.split(' ').nth(1)?.parse().ok()?;
    let head = head.to_ascii_lowercase();
    let is_chunked = head.lines().any(|line| {
        line.strip_prefix("transfer-encoding:").is_some_and(|value| value.trim() == "chunked")
    });
    let body = if is_chunked { unchunked(body)? } else { body.to_vec() };
    Some((status, String::from_utf8(body).ok()?))
}

fn unchunked(mut bytes: &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = bytes.windows(2).position(|window| window == b"\r\n")?;
        let size = std::str::from_utf8(&bytes[..line]).ok()?.split(';').next()?.trim();
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        let from = line + 2;
        body.extend_from_slice(bytes.get(from..from.checked_add(size)?)?);
        bytes = bytes.get(from + size + 2..)?;
    }
}

fn put(key: &str, value: &[u8], lease: i64) -> Value {
    json!({ "key": encoded(key.as_bytes()), "value": encoded(value), "lease": lease.to_string() })
}

/// Reads a number; the gateway writes 64-bit numbers as texts.
fn number<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<i64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Number {
        Number(i64),
        Text(String),
    }
    match Number::deserialize(from)? {
        Number::Number(number) => Ok(number),
        Number::Text(text) => text.parse().map_err(D::Error::custom),
    }
}

fn base64<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<Vec<u8>, D::Error> {
    decoded(&String::deserialize(from)?).ok_or_else(|| D::Error::custom("expected Base64"))
}

fn base64_text<'de, D: Deserializer<'de>>(from: D) -> std::result::Result<String, D::Error> {
    String::from_utf8(base64(from)?).map_err(D::Error::custom)
}

/// Returns the end of the range of keys that start with `prefix`, which must not end with byte 255.
fn after(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last = last.saturating_add(1);
    }
    end
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as Base64.
fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let word = group.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte));
        let word = word << (8 * (3 - group.len()));
        for place in 0..4 {
            text.push(match place <= group.len() {
                true => char::from(DIGITS[(word >> (18 - 6 * place)) as usize & 63]),
                false => '=',
            });
        }
    }
    text
}

fn decoded(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    for group in digits.chunks(4) {
        let mut word = 0u32;
        for digit in group {
            word = word << 6 | DIGITS.iter().position(|known| known == digit)? as u32;
        }
        word <<= 6 * (4 - group.len());
        bytes.extend_from_slice(&word.to_be_bytes()[1..group.len().max(1)]);
    }
    Some(bytes)
}

/// Limit on a response; enough for a job of thousands of machines.
const ANSWER_BYTES_MAX: u64 = 64 << 20;
/// Limit on characters of a non-JSON response in an error message.
const WHY_CHARS_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_there_and_back() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg==")]
        {
            assert_eq!(encoded(bytes.as_bytes()), text);
            assert_eq!(decoded(text).unwrap(), bytes.as_bytes());
        }
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(decoded(&encoded(&all)).unwrap(), all);
        assert_eq!(decoded("a?"), None);
    }

    #[test]
    fn answers_omit_empty_fields() {
        let range = r#"{"header":{"revision":"7"},"kvs":[{"key":"Zg==","mod_revision":"3"}]}"#;
        let range: Range = serde_json::from_str(range).unwrap();
        let entry = Entry { key: "f".into(), value: Vec::new(), revision: 3 };
        assert_eq!((range.header.revision, range.kvs), (7, vec![entry]));
        let empty: Range = serde_json::from_str(r#"{"header":{"revision":9}}"#).unwrap();
        assert!(empty.header.revision == 9 && empty.kvs.is_empty());
        assert!(!serde_json::from_str::<Transaction>("{}").unwrap().succeeded);
        assert_eq!(serde_json::from_str::<KeepAlive>(r#"{"result":{}}"#).unwrap().result.ttl, 0);
        for wrong in [r#"{"kvs":[]}"#, r#"{"header":{"revision":"x"}}"#, "[]"] {
            assert!(serde_json::from_str::<Range>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn answers_are_read_whole_or_not_at_all() {
        let plain = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(answer(plain), Some((200, "{}".into())));
        let chunked =
            b"HTTP/1.1 404 No\r\nTransfer-Encoding: Chunked\r\n\r\n1\r\n{\r\n1;x\r\n}\r\n0\r\n\r\n";
        assert_eq!(answer(chunked), Some((404, "{}".into())));
        for wrong in [
            &b""[..],
            b"HTTP/1.1",
            b"SSH-2.0-x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
        ] {
            assert_eq!(answer(wrong), None, "{}", String::from_utf8_lossy(wrong));
        }
    }
}
