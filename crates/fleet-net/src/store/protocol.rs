//! Requests and answers of the store on the wire.

use super::{Change, Changes, Swap};
use crate::wire::{Reader, Writer, put_error, take_error};
use fleet_base::{Error, Result};

/// Size limit of a request: one value with its key, or the keys of a wait.
pub(crate) const REQUEST_BYTES_MAX: usize = 4 << 20;
/// Size limit of an answer: a list of all keys of a large job.
pub(crate) const ANSWER_BYTES_MAX: usize = 128 << 20;
/// Maximum number of keys in a wait.
pub(crate) const WAIT_KEYS_MAX: usize = 1 << 17;

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Set { key: String, value: Vec<u8> },
    Get { key: String },
    Wait { keys: Vec<String>, span_ms: u64 },
    Add { key: String, delta: i64 },
    Swap { key: String, expected: Option<Vec<u8>>, value: Vec<u8> },
    Delete { key: String },
    List { prefix: String },
    Watch { prefix: String, revision: u64, span_ms: u64 },
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Done,
    Value(Option<Vec<u8>>),
    Values(Vec<Vec<u8>>),
    Count(i64),
    Swap(Swap),
    Existed(bool),
    Entries(Vec<(String, Vec<u8>)>),
    Changes(Changes),
}

impl Request {
    /// Whether the request must not be applied twice.
    pub(crate) fn is_change(&self) -> bool {
        use Request::*;
        matches!(self, Set { .. } | Add { .. } | Swap { .. } | Delete { .. })
    }

    /// Encodes a request. `open` is the oldest request that this client still waits for.
    pub(crate) fn encode(&self, open: u64) -> (u8, Vec<u8>) {
        let w = Writer::new().u64(open);
        let (kind, w) = match self {
            Request::Set { key, value } => (1, w.text(key).bytes(value)),
            Request::Get { key } => (2, w.text(key)),
            Request::Wait { keys, span_ms } => {
                let w = w.u64(*span_ms).u32(keys.len() as u32);
                (3, keys.iter().fold(w, |w, key| w.text(key)))
            }
            Request::Add { key, delta } => (4, w.text(key).u64(*delta as u64)),
            Request::Swap { key, expected, value } => {
                (5, w.text(key).option(expected.as_deref()).bytes(value))
            }
            Request::Delete { key } => (6, w.text(key)),
            Request::List { prefix } => (7, w.text(prefix)),
            Request::Watch { prefix, revision, span_ms } => {
                (8, w.text(prefix).u64(*revision).u64(*span_ms))
            }
        };
        (kind, w.0)
    }

    pub(crate) fn decode(kind: u8, payload: &[u8]) -> Result<(Request, u64)> {
        let mut r = Reader::new(payload);
        let open = r.u64()?;
        let request = match kind {
            1 => Request::Set { key: r.text()?.into(), value: r.bytes()?.into() },
            2 => Request::Get { key: r.text()?.into() },
            3 => {
                let span_ms = r.u64()?;
                let count = r.u32()? as usize;
                if count > WAIT_KEYS_MAX {
                    return Err(Error::exhausted("too many keys in a wait on the store")
                        .expected(format!("up to {WAIT_KEYS_MAX}"))
                        .got(count));
                }
                let keys = (0..count).map(|_| r.text().map(String::from)).collect::<Result<_>>()?;
                Request::Wait { keys, span_ms }
            }
            4 => Request::Add { key: r.text()?.into(), delta: r.u64()? as i64 },
            5 => Request::Swap {
                key: r.text()?.into(),
                expected: r.option()?.map(<[u8]>::to_vec),
                value: r.bytes()?.into(),
            },
            6 => Request::Delete { key: r.text()?.into() },
            7 => Request::List { prefix: r.text()?.into() },
            8 => Request::Watch { prefix: r.text()?.into(), revision: r.u64()?, span_ms: r.u64()? },
            other => {
                return Err(Error::unsupported("unknown kind of store request").got(other));
            }
        };
        r.end()?;
        Ok((request, open))
    }
}

pub(crate) fn encode_answer(answer: &Result<Answer>) -> Vec<u8> {
    let w = Writer::new();
    let answer = match answer {
        Err(error) => return put_error(w.u8(0), error).0,
        Ok(answer) => answer,
    };
    let w = match answer {
        Answer::Done => w.u8(1),
        Answer::Value(value) => w.u8(2).option(value.as_deref()),
        Answer::Values(values) => {
            let w = w.u8(3).u32(values.len() as u32);
            values.iter().fold(w, |w, value| w.bytes(value))
        }
        Answer::Count(count) => w.u8(4).u64(*count as u64),
        Answer::Swap(Swap::Done) => w.u8(5),
        Answer::Swap(Swap::Lost(value)) => w.u8(6).option(value.as_deref()),
        Answer::Existed(was) => w.u8(7).u8(u8::from(*was)),
        Answer::Entries(entries) => {
            let w = w.u8(8).u32(entries.len() as u32);
            entries.iter().fold(w, |w, (key, value)| w.text(key).bytes(value))
        }
        Answer::Changes(changes) => {
            let w = w.u8(9).u64(changes.revision).u8(u8::from(changes.complete));
            let w = w.u32(changes.changes.len() as u32);
            changes.changes.iter().fold(w, |w, change| {
                w.text(&change.key).option(change.value.as_deref()).u64(change.revision)
            })
        }
    };
    w.0
}

pub(crate) fn decode_answer(payload: &[u8]) -> Result<Result<Answer>> {
    let mut r = Reader::new(payload);
    let answer = match r.u8()? {
        0 => return Ok(Err(take_error(&mut r)?)),
        1 => Answer::Done,
        2 => Answer::Value(r.option()?.map(<[u8]>::to_vec)),
        3 => {
            let count = r.u32()?;
            Answer::Values(
                (0..count).map(|_| r.bytes().map(<[u8]>::to_vec)).collect::<Result<_>>()?,
            )
        }
        4 => Answer::Count(r.u64()? as i64),
        5 => Answer::Swap(Swap::Done),
        6 => Answer::Swap(Swap::Lost(r.option()?.map(<[u8]>::to_vec))),
        7 => Answer::Existed(r.u8()? != 0),
        8 => {
            let count = r.u32()?;
            let entry = |_| Ok((r.text()?.to_string(), r.bytes()?.to_vec()));
            Answer::Entries((0..count).map(entry).collect::<Result<_>>()?)
        }
        9 => {
            let (revision, complete, count) = (r.u64()?, r.u8()? != 0, r.u32()?);
            let change = |_| {
                Ok(Change {
                    key: r.text()?.to_string(),
                    value: r.option()?.map(<[u8]>::to_vec),
                    revision: r.u64()?,
                })
            };
            let changes = (0..count).map(change).collect::<Result<_>>()?;
            Answer::Changes(Changes { revision, complete, changes })
        }
        other => return Err(Error::unavailable("unknown kind of store answer").got(other)),
    };
    r.end()?;
    Ok(Ok(answer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    fn requests() -> Vec<Request> {
        let (key, value) = (String::from("k/ü"), vec![0, 255]);
        vec![
            Request::Set { key: key.clone(), value: value.clone() },
            Request::Get { key: key.clone() },
            Request::Wait { keys: vec![key.clone(), "b".into()], span_ms: 5 },
            Request::Add { key: key.clone(), delta: -3 },
            Request::Swap { key: key.clone(), expected: Some(vec![]), value: value.clone() },
            Request::Swap { key: key.clone(), expected: None, value: value.clone() },
            Request::Delete { key: key.clone() },
            Request::List { prefix: "k".into() },
            Request::Watch { prefix: "k".into(), revision: u64::MAX, span_ms: 1 },
        ]
    }

    #[test]
    fn round_trips_and_changed_bytes() {
        let mut random = Sequence::new(1, 0);
        for request in requests() {
            let (kind, bytes) = request.encode(9);
            assert_eq!(Request::decode(kind, &bytes).unwrap(), (request, 9));
            for _ in 0..300 {
                let mut bytes = bytes.clone();
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.next_u64() as u8;
                bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
                // Any bytes give a result and no panic; truncated messages are rejected.
                let _ = Request::decode(random.below(10) as u8, &bytes);
                let _ = decode_answer(&bytes);
            }
            assert!(Request::decode(kind, &bytes[..bytes.len() - 1]).is_err());
        }
    }

    #[test]
    fn answers() {
        let change = Change { key: "k".into(), value: None, revision: 4 };
        let changes = Changes { revision: 5, complete: true, changes: vec![change] };
        for answer in [
            Answer::Done,
            Answer::Value(None),
            Answer::Value(Some(vec![1])),
            Answer::Values(vec![vec![], vec![2]]),
            Answer::Count(-1),
            Answer::Swap(Swap::Done),
            Answer::Swap(Swap::Lost(Some(vec![3]))),
            Answer::Existed(true),
            Answer::Entries(vec![("a".into(), vec![1])]),
            Answer::Changes(changes),
        ] {
            let bytes = encode_answer(&Ok(answer));
            let again = encode_answer(&decode_answer(&bytes).unwrap());
            assert_eq!(bytes, again);
        }
        let error = Error::exhausted("full").expected("less").help("tidy up");
        let got = decode_answer(&encode_answer(&Err(error.clone()))).unwrap().unwrap_err();
        assert_eq!((got.kind(), got.to_string()), (error.kind(), error.to_string()));
    }
}
