//! Ranks as threads.

use fleet_base::Result;
use fleet_comm::{Group, GroupOptions, World};
use fleet_net::{Abort, MemoryStore};
use std::sync::Arc;

/// Runs `work` on every rank of a job of threads and gives what it gave, by rank.
pub fn each_rank<R: Send>(
    ranks: usize,
    options: &GroupOptions,
    work: impl Fn(&Group, &World) -> R + Sync,
) -> Vec<R> {
    each_rank_on(&vec!["here"; ranks], options, work)
}

/// The same with the hosts that the ranks pretend to be on.
pub fn each_rank_on<R: Send>(
    hosts: &[&str],
    options: &GroupOptions,
    work: impl Fn(&Group, &World) -> R + Sync,
) -> Vec<R> {
    let all: Vec<usize> = (0..hosts.len()).collect();
    let hosts: Vec<String> = hosts.iter().map(ToString::to_string).collect();
    let store = MemoryStore::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = fleet_net::memory::fabrics_on(&hosts)
            .into_iter()
            .map(|fabric| World::new(Arc::new(fabric), Arc::new(store.clone()), Abort::new()))
            .map(|world| {
                let (work, all) = (&work, &all);
                scope.spawn(move || {
                    let group = world.group("world", all, options).expect("the group opens");
                    work(&group, &world)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

pub fn ok<R>(results: Vec<Result<R>>) -> Vec<R> {
    results.into_iter().map(|result| result.expect("no rank fails")).collect()
}
