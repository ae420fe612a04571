//! Joining: the first rank of a host creates a segment and publishes its location, the others open
//! it, and it is used once all have opened it.

use super::engine::{Engine, Tuning};
use super::segment::{Layout, Segment};
use super::sys::SharedFile;
use fleet_base::{Error, Result};
use fleet_net::{Abort, Limits, Member, Store};

/// The ranks of a group on this host.
pub(crate) struct Local {
    /// Name of the group.
    pub name: String,
    /// In the order of the group.
    pub members: Vec<Member>,
    /// Index of this rank in `members`.
    pub rank: usize,
}

/// Returns an engine, or `None`, on all ranks alike, if the ranks of this host cannot share memory.
pub(crate) fn join(
    local: Local,
    slot_bytes: usize,
    tuning: Tuning,
    store: &dyn Store,
    limits: &Limits,
    abort: &Abort,
) -> Result<Option<Engine>> {
    let layout = Layout { ranks: local.members.len(), slot_bytes };
    for (attempt, fallback) in [false, true].into_iter().enumerate() {
        let prefix = format!("comm/{}/shm/{}/{attempt}", local.name, local.members[0].rank);
        if let Some(segment) = attempt_join(&local, layout, fallback, &prefix, store, limits)? {
            let Local { name, members, rank } = local;
            return Ok(Some(Engine::new(segment, rank, &name, members, tuning, abort)));
        }
    }
    Ok(None)
}

fn attempt_join(
    local: &Local,
    layout: Layout,
    fallback: bool,
    prefix: &str,
    store: &dyn Store,
    limits: &Limits,
) -> Result<Option<Segment>> {
    let key = format!("{prefix}/file");
    let mut file: Option<SharedFile> = None;
    let segment = if local.rank == 0 {
        let nonce = nonce(local);
        let made = Segment::create(layout, nonce, fallback);
        let path = made.as_ref().map(|(_, file)| file.path()).unwrap_or_default();
        store.set(&key, format!("{nonce} {path}").as_bytes(), limits)?;
        made.map(|(segment, made)| {
            file = Some(made);
            segment
        })
    } else {
        let value = store.wait(&[&key], limits)?.pop().unwrap_or_default();
        let text = String::from_utf8_lossy(&value).into_owned();
        let (nonce, path) = text.split_once(' ').unwrap_or_default();
        let nonce = nonce.parse().map_err(|_| {
            Error::invalid(format!("invalid shared memory entry '{key}' in the store")).got(&text)
        })?;
        match path.is_empty() {
            true => {
                Err(Error::unavailable("the first rank of the host could not create shared memory"))
            }
            false => Segment::open(layout, nonce, path),
        }
    };
    let vote: &[u8] = if segment.is_ok() { b"yes" } else { b"no" };
    let opened = format!("{prefix}/opened/");
    let votes = store.exchange(&opened, (local.rank, vote), 0..layout.ranks, limits)?;
    // The name and the descriptor of the file are not needed any longer.
    file.take();
    Ok(segment.ok().filter(|_| votes.iter().all(|vote| vote == b"yes")))
}

/// A number unique to this group's memory. It detects a path that leads to another process, which
/// reuses the id of a dead one.
fn nonce(local: &Local) -> u64 {
    use std::hash::BuildHasher;
    std::collections::hash_map::RandomState::new().hash_one(&local.name)
}
