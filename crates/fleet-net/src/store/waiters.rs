//! Requests that wait for keys or changes, and the selection of those that a change affects.

use super::protocol::Answer;
use super::table::{Table, missing_error};
use crate::{Changes, Deadline, Time};
use fleet_base::Result;
use std::collections::{BTreeMap, HashMap};

/// The destination of an answer: a connection and its request.
pub(crate) type RequestId = (u64, u64);

#[derive(Default)]
pub(crate) struct Waiters {
    waits: BTreeMap<u64, Wait>,
    next: u64,
    /// Waits by the first of their keys that is missing.
    by_key: HashMap<String, Vec<u64>>,
}

struct Wait {
    request: RequestId,
    deadline: Deadline,
    condition: Condition,
}

enum Condition {
    /// Waits for all `keys`. The key at `first` is missing; those before it have existed.
    Keys {
        keys: Vec<String>,
        first: usize,
    },
    Changes {
        prefix: String,
        revision: u64,
    },
}

pub(crate) type Answers = Vec<(RequestId, Result<Answer>)>;

impl Waiters {
    pub(crate) fn len(&self) -> usize {
        self.waits.len()
    }

    pub(crate) fn wait(
        &mut self,
        request: RequestId,
        keys: Vec<String>,
        deadline: Deadline,
        table: &Table,
    ) -> Option<Result<Answer>> {
        self.advance(
            Wait { request, deadline, condition: Condition::Keys { keys, first: 0 } },
            table,
        )
    }

    pub(crate) fn watch(
        &mut self,
        request: RequestId,
        prefix: String,
        revision: u64,
        deadline: Deadline,
        table: &Table,
    ) -> Option<Result<Answer>> {
        self.advance(
            Wait { request, deadline, condition: Condition::Changes { prefix, revision } },
            table,
        )
    }

    /// Answers a wait that is complete, or keeps it.
    fn advance(&mut self, mut wait: Wait, table: &Table) -> Option<Result<Answer>> {
        match &mut wait.condition {
            Condition::Keys { keys, first } => {
                while keys.get(*first).is_some_and(|key| table.get(key).is_some()) {
                    *first += 1;
                }
                if *first == keys.len() {
                    // An earlier key may have been deleted since; continue with that one.
                    match keys.iter().position(|key| table.get(key).is_none()) {
                        Some(missing) => *first = missing,
                        None => {
                            let values = keys.iter().filter_map(|key| table.get(key));
                            return Some(Ok(Answer::Values(values.map(<[u8]>::to_vec).collect())));
                        }
                    }
                }
                self.by_key.entry(keys[*first].clone()).or_default().push(self.next);
            }
            Condition::Changes { prefix, revision } => {
                if let Some(changes) = table.changes(prefix, *revision) {
                    return Some(Ok(Answer::Changes(changes)));
                }
            }
        }
        self.waits.insert(self.next, wait);
        self.next += 1;
        None
    }

    /// Handles a change of `key`. Returns the answers to the waits that it completes.
    pub(crate) fn changed(&mut self, key: &str, table: &Table) -> Answers {
        let mut answers = Vec::new();
        let mut affected = match table.get(key) {
            Some(_) => self.by_key.remove(key).unwrap_or_default(),
            None => Vec::new(),
        };
        affected.extend(self.waits.iter().filter_map(|(id, wait)| match &wait.condition {
            Condition::Changes { prefix, .. } if key.starts_with(prefix) => Some(*id),
            _ => None,
        }));
        for id in affected {
            let Some(wait) = self.waits.remove(&id) else { continue };
            let request = wait.request;
            if let Some(answer) = self.advance(wait, table) {
                answers.push((request, answer));
            }
        }
        answers
    }

    /// Answers the waits whose deadline has passed. Returns the answers and the next deadline.
    pub(crate) fn expire(&mut self, now: Time, table: &Table) -> (Answers, Option<Deadline>) {
        let over: Vec<u64> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.deadline.is_past(now))
            .map(|(id, _)| *id)
            .collect();
        let mut answers = Vec::new();
        for id in over {
            let Some(wait) = self.remove(id) else { continue };
            let answer = match wait.condition {
                Condition::Keys { keys, .. } => {
                    let missing = table.missing(keys.iter().map(String::as_str));
                    Err(missing_error(&missing, keys.len()))
                }
                Condition::Changes { revision, .. } => {
                    Ok(Answer::Changes(Changes { revision, ..Changes::default() }))
                }
            };
            answers.push((wait.request, answer));
        }
        (answers, self.waits.values().map(|wait| wait.deadline).min())
    }

    /// Removes the waits of a closed connection.
    pub(crate) fn forget(&mut self, connection: u64) {
        let closed: Vec<u64> = self
            .waits
            .iter()
            .filter(|(_, wait)| wait.request.0 == connection)
            .map(|(id, _)| *id)
            .collect();
        closed.into_iter().for_each(|id| drop(self.remove(id)));
    }

    fn remove(&mut self, id: u64) -> Option<Wait> {
        let wait = self.waits.remove(&id)?;
        if let Condition::Keys { keys, first } = &wait.condition
            && let Some(ids) = self.by_key.get_mut(&keys[*first])
        {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_key.remove(&keys[*first]);
            }
        }
        Some(wait)
    }
}
