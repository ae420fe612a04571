//! Ranks as threads.

use fleet_base::Result;
use fleet_comm::{Group, GroupOptions, World};

/// Runs `work` on every rank of a job of threads and gives what it gave, by rank.
pub fn each_rank<R: Send>(
    ranks: usize,
    options: &GroupOptions,
    work: impl Fn(&Group, &World) -> R + Sync,
) -> Vec<R> {
    let all: Vec<usize> = (0..ranks).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = World::threads(ranks)
            .into_iter()
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
