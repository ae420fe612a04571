//! Runs tests with ranks as threads.

use fleet_base::Result;
use fleet_comm::{Group, GroupOptions, World};
use fleet_net::{Abort, Limits, MemoryStore, TcpFabric, TcpOptions, Token};
use std::sync::Arc;
use std::time::Duration;

/// Runs `work` on every rank of a job of threads and returns the results by rank.
pub fn each_rank<R: Send>(
    ranks: usize,
    options: &GroupOptions,
    work: impl Fn(&Group, &World) -> R + Sync,
) -> Vec<R> {
    each_rank_on(&vec!["here"; ranks], options, work)
}

/// Like [`each_rank`], with the simulated host of each rank.
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

/// Like [`each_rank`], over TCP on the loopback.
pub fn each_rank_over_tcp<R: Send>(
    ranks: usize,
    options: &GroupOptions,
    work: impl Fn(&Group, &World) -> R + Sync,
) -> Vec<R> {
    let all: Vec<usize> = (0..ranks).collect();
    let (store, token) = (MemoryStore::new(), Token::generate().expect("random bytes"));
    let options = GroupOptions { shared_memory: false, ..options.clone() };
    std::thread::scope(|scope| {
        let start = |rank| {
            let (store, token, work, all, options) = (&store, &token, &work, &all, &options);
            scope.spawn(move || {
                let limits = Limits::within(Duration::from_secs(60));
                let tcp = TcpOptions::new("job", rank, ranks).interface("127.0.0.1");
                let fabric = TcpFabric::start(store, token, tcp, &limits).expect("all ranks start");
                let world = World::new(Arc::new(fabric), Arc::new(store.clone()), Abort::new());
                let group = world.group("world", all, options).expect("the group opens");
                work(&group, &world)
            })
        };
        let threads: Vec<_> = (0..ranks).map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

pub fn ok<R>(results: Vec<Result<R>>) -> Vec<R> {
    results.into_iter().map(|result| result.expect("no rank fails")).collect()
}
