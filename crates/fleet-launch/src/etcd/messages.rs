//! Requests and answers of etcd's JSON gateway. It writes bytes as Base64 and 64-bit numbers as
//! text, and omits fields that are empty, zero or false.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A key with its value and the revision of its last change.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entry {
    #[serde(deserialize_with = "key")]
    pub key: String,
    #[serde(default)]
    pub value: Bytes,
    #[serde(rename = "mod_revision", deserialize_with = "number")]
    pub revision: i64,
}

/// Bytes, which are Base64 in JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

impl<T: AsRef<[u8]> + ?Sized> From<&T> for Bytes {
    fn from(bytes: &T) -> Bytes {
        Bytes(bytes.as_ref().to_vec())
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        let text = String::deserialize(from)?;
        STANDARD.decode(text).map(Bytes).map_err(D::Error::custom)
    }
}

#[derive(Serialize)]
pub struct RangeRequest {
    pub key: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<Bytes>,
}

#[derive(Deserialize)]
pub struct Range {
    pub header: Header,
    #[serde(default)]
    pub kvs: Vec<Entry>,
}

#[derive(Deserialize)]
pub struct Header {
    #[serde(deserialize_with = "number")]
    pub revision: i64,
}

#[derive(Serialize)]
pub struct Put {
    pub key: Bytes,
    pub value: Bytes,
    #[serde(serialize_with = "text")]
    pub lease: i64,
}

/// A change under one condition.
#[derive(Serialize)]
pub struct TransactionRequest {
    pub compare: [Condition; 1],
    pub success: [Change; 1],
}

#[derive(Serialize)]
pub struct Condition {
    pub key: Bytes,
    pub result: &'static str,
    #[serde(flatten)]
    pub target: Target,
}

#[derive(Serialize)]
#[serde(tag = "target")]
pub enum Target {
    #[serde(rename = "CREATE")]
    Created { create_revision: &'static str },
    #[serde(rename = "VALUE")]
    Value { value: Bytes },
}

#[derive(Serialize)]
pub enum Change {
    #[serde(rename = "request_put")]
    Put(Put),
}

impl Condition {
    /// The key has a value, or does not exist if that is `None`.
    pub fn new(key: &str, value: Option<&[u8]>) -> Condition {
        let target = match value {
            None => Target::Created { create_revision: "0" },
            Some(value) => Target::Value { value: value.into() },
        };
        Condition { key: key.into(), result: "EQUAL", target }
    }
}

#[derive(Deserialize)]
pub struct Transaction {
    #[serde(default)]
    pub succeeded: bool,
}

#[derive(Serialize)]
pub struct DeletionRequest {
    pub key: Bytes,
}

#[derive(Deserialize)]
pub struct Deletion {
    #[serde(default, deserialize_with = "number")]
    pub deleted: i64,
}

#[derive(Serialize)]
pub struct GrantRequest {
    #[serde(rename = "TTL")]
    pub ttl_s: u64,
}

#[derive(Deserialize)]
pub struct Grant {
    #[serde(rename = "ID", deserialize_with = "number")]
    pub id: i64,
}

/// A request about a lease.
#[derive(Serialize)]
pub struct LeaseRequest {
    #[serde(rename = "ID", serialize_with = "text")]
    pub id: i64,
}

#[derive(Deserialize)]
pub struct KeepAlive {
    pub result: Lease,
}

#[derive(Deserialize)]
pub struct Lease {
    /// 0 if the lease has expired.
    #[serde(rename = "TTL", default, deserialize_with = "number")]
    pub ttl: i64,
}

#[derive(Serialize)]
pub struct AuthenticateRequest<'a> {
    pub name: &'a str,
    pub password: &'a str,
}

#[derive(Deserialize)]
pub struct Authenticated {
    pub token: String,
}

/// The gateway names the reason `message` or `error`, by version.
#[derive(Default, Deserialize)]
pub struct Refusal {
    pub message: Option<String>,
    pub error: Option<String>,
    #[serde(default)]
    pub code: u32,
}

fn number<'de, D: Deserializer<'de>>(from: D) -> Result<i64, D::Error> {
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

fn text<S: Serializer>(number: &i64, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(number)
}

fn key<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    String::from_utf8(Bytes::deserialize(from)?.0).map_err(D::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(request: &impl Serialize) -> String {
        serde_json::to_string(request).unwrap()
    }

    #[test]
    fn requests_are_those_of_the_gateway() {
        let range = RangeRequest { key: "foo".into(), range_end: None };
        assert_eq!(written(&range), r#"{"key":"Zm9v"}"#);
        let range = RangeRequest { key: "".into(), range_end: Some(Bytes(vec![255, 0])) };
        assert_eq!(written(&range), r#"{"key":"","range_end":"/wA="}"#);
        let put = || Put { key: "f".into(), value: "fo".into(), lease: 7 };
        let change = |value| TransactionRequest {
            compare: [Condition::new("k", value)],
            success: [Change::Put(put())],
        };
        let success = r#""success":[{"request_put":{"key":"Zg==","value":"Zm8=","lease":"7"}}]"#;
        for (value, compare) in [
            (None, r#""target":"CREATE","create_revision":"0""#),
            (Some(&b"v"[..]), r#""target":"VALUE","value":"dg==""#),
        ] {
            let compare = format!(r#""compare":[{{"key":"aw==","result":"EQUAL",{compare}}}]"#);
            assert_eq!(written(&change(value)), format!("{{{compare},{success}}}"));
        }
        assert_eq!(written(&GrantRequest { ttl_s: 3 }), r#"{"TTL":3}"#);
        assert_eq!(written(&LeaseRequest { id: i64::MAX }), format!(r#"{{"ID":"{}"}}"#, i64::MAX));
    }

    #[test]
    fn answers_omit_empty_fields() {
        let range = r#"{"header":{"revision":"7"},"kvs":[{"key":"Zg==","mod_revision":"3"}]}"#;
        let range: Range = serde_json::from_str(range).unwrap();
        let entry = Entry { key: "f".into(), value: Bytes::default(), revision: 3 };
        assert_eq!((range.header.revision, range.kvs), (7, vec![entry]));
        let empty: Range = serde_json::from_str(r#"{"header":{"revision":9}}"#).unwrap();
        assert!(empty.header.revision == 9 && empty.kvs.is_empty());
        assert!(!serde_json::from_str::<Transaction>("{}").unwrap().succeeded);
        assert_eq!(serde_json::from_str::<KeepAlive>(r#"{"result":{}}"#).unwrap().result.ttl, 0);
        for wrong in [
            r#"{"kvs":[]}"#,
            r#"{"header":{"revision":"x"}}"#,
            "[]",
            r#"{"header":{"revision":1},"kvs":[{"key":"a?","mod_revision":1}]}"#,
        ] {
            assert!(serde_json::from_str::<Range>(wrong).is_err(), "{wrong}");
        }
    }
}
