//! The guarantees of [`Mesh`], tested on every implementation.

use fleet_base::rng::Sequence;
use fleet_base::{Error, ErrorKind, Result};
use fleet_net::{Abort, Fabric, Limits, Mesh, Transfer, memory};
use std::sync::Arc;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(60);

/// Runs `work` on one thread per rank and returns the results by rank.
pub fn on_ranks<F: Fabric + 'static, T: Send>(
    fabrics: Vec<F>,
    work: impl Fn(F) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            fabrics.into_iter().map(|fabric| scope.spawn(move || work(fabric))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn all_ok<T>(answers: Vec<Result<T>>) -> Vec<T> {
    answers.into_iter().map(|answer| answer.unwrap()).collect()
}

fn world(fabric: &impl Fabric) -> Result<Arc<dyn Mesh>> {
    fabric.open("world", &(0..fabric.size()).collect::<Vec<_>>())
}

/// The byte at `position` of message `index` between two ranks.
fn pattern(from: usize, to: usize, index: usize, position: usize) -> u8 {
    (from * 7 + to * 13 + index * 31 + position * 11 + position / 251) as u8
}

fn message(from: usize, to: usize, index: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|position| pattern(from, to, index, position)).collect()
}

/// All ranks exchange messages of all `sizes` in one call, with receives and folds.
pub fn exchange_all<F: Fabric + 'static>(fabrics: Vec<F>, sizes: &[usize]) {
    all_ok(on_ranks(fabrics, |fabric| {
        let mesh = world(&fabric)?;
        let (rank, size) = (mesh.rank(), mesh.size());
        let peers: Vec<usize> = (0..size).filter(|peer| *peer != rank).collect();
        let outgoing: Vec<(usize, Vec<u8>)> = peers
            .iter()
            .flat_map(|&to| {
                (0..sizes.len()).map(move |index| (to, message(rank, to, index, sizes[index])))
            })
            .collect();
        let mut incoming: Vec<(usize, usize, Vec<u8>)> = peers
            .iter()
            .flat_map(|&from| {
                (0..sizes.len()).map(move |index| (from, index, vec![0; sizes[index]]))
            })
            .collect();
        let mut sinks: Vec<_> = incoming
            .iter_mut()
            .map(|(from, index, into)| {
                let (from, index, bytes) = (*from, *index, into.len());
                let fold = index % 2 == 1 && bytes % 4 == 0;
                (from, fold, bytes, move |offset: usize, piece: &[u8]| {
                    assert_eq!(piece.as_ptr() as usize % 4, 0, "pieces are aligned");
                    into[offset..offset + piece.len()].copy_from_slice(piece);
                })
            })
            .collect();
        let mut scratch: Vec<Vec<u8>> = sinks.iter().map(|sink| vec![0; sink.2]).collect();
        let mut ops: Vec<Transfer<'_>> =
            outgoing.iter().map(|(to, data)| Transfer::Send { to: *to, data }).collect();
        for ((from, fold, bytes, sink), into) in sinks.iter_mut().zip(&mut scratch) {
            ops.push(match fold {
                true => Transfer::Fold { from: *from, bytes: *bytes, unit: 4, sink },
                false => Transfer::Recv { from: *from, into },
            });
        }
        mesh.transfer(&mut ops, &mesh.limits(LONG, &Abort::new()))?;
        drop(ops);
        for ((_, fold, _, sink), scratch) in sinks.iter_mut().zip(&scratch) {
            if !*fold && !scratch.is_empty() {
                // Only folds check the alignment. This copy starts where a vector starts.
                sink(0, scratch);
            }
        }
        drop(sinks);
        for (from, index, got) in &incoming {
            assert!(
                *got == message(*from, rank, *index, sizes[*index]),
                "{from} -> {rank} {index}"
            );
        }
        Ok(())
    }));
}

/// A chain of random steps. Both ends derive the messages from the seed.
pub fn random_steps<F: Fabric + 'static>(fabrics: Vec<F>, seed: u64, steps: usize) {
    println!("seed {seed}");
    all_ok(on_ranks(fabrics, |fabric| {
        let mesh = world(&fabric)?;
        let (rank, size) = (mesh.rank(), mesh.size());
        let mut random = Sequence::new(seed, 0);
        for step in 0..steps {
            let shift = 1 + random.below(size as u64 - 1) as usize;
            let bits = random.below(18);
            let bytes = random.below(1 << bits) as usize * 4;
            let (to, from) = ((rank + shift) % size, (rank + size - shift) % size);
            let data = message(rank, to, step, bytes);
            let mut got = vec![0; bytes];
            mesh.transfer(
                &mut [Transfer::Recv { from, into: &mut got }, Transfer::Send { to, data: &data }],
                &mesh.limits(LONG, &Abort::new()),
            )?;
            assert!(got == message(from, rank, step, bytes), "step {step} on rank {rank}");
        }
        Ok(())
    }));
}

/// The error of a deadline names the peer. The mesh is broken if a message is incomplete.
pub fn deadline_names_the_peer<F: Fabric + 'static>(fabrics: Vec<F>) {
    let rest = std::sync::Barrier::new(fabrics.len());
    let errors = on_ranks(fabrics, |fabric| {
        let mesh = world(&fabric)?;
        // Connect the ranks first.
        let (peer, mut byte) = (1 - mesh.rank(), [0]);
        mesh.transfer(
            &mut [
                Transfer::Send { to: peer, data: b"x" },
                Transfer::Recv { from: peer, into: &mut byte },
            ],
            &Limits::within(LONG),
        )?;
        let result = if mesh.rank() == 0 {
            let mut into = [0; 100];
            let limits = Limits::within(Duration::from_millis(50));
            mesh.transfer(&mut [Transfer::Recv { from: 1, into: &mut into }], &limits)
        } else {
            Ok(())
        };
        rest.wait();
        result
    });
    let error = errors[0].as_ref().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("100 of 100 bytes from rank 1"), "{error}");
}

/// A token that fires wakes a waiting rank with its reason.
pub fn abort_wakes<F: Fabric + 'static>(fabrics: Vec<F>) {
    let aborts: Vec<Abort> = fabrics.iter().map(|_| Abort::new()).collect();
    let answers = on_ranks(fabrics, |fabric| {
        let mesh = world(&fabric)?;
        if mesh.rank() == 0 {
            for abort in &aborts[1..] {
                abort.fire(Error::unavailable("rank 9 was killed by signal 9"));
            }
            return Ok(());
        }
        let mut into = [0; 8];
        let limits = mesh.limits(LONG, &aborts[mesh.rank()]);
        let error = mesh.transfer(&mut [Transfer::Recv { from: 0, into: &mut into }], &limits);
        assert_eq!(error.unwrap_err().message(), "rank 9 was killed by signal 9");
        Ok(())
    });
    all_ok(answers);
}

/// The error names a rank that leaves; messages sent before still arrive.
pub fn death_is_named<F: Fabric + 'static>(fabrics: Vec<F>) {
    let answers = on_ranks(fabrics, |fabric| {
        let mesh = world(&fabric)?;
        let limits = mesh.limits(LONG, &Abort::new());
        if mesh.rank() == 1 {
            mesh.transfer(&mut [Transfer::Send { to: 0, data: b"last words" }], &limits)?;
            return Ok(());
        }
        let mut words = [0; 10];
        mesh.transfer(&mut [Transfer::Recv { from: 1, into: &mut words }], &limits)?;
        assert_eq!(&words, b"last words");
        let result = mesh.transfer(&mut [Transfer::Recv { from: 1, into: &mut words }], &limits);
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let peer = fabric.member(1);
        assert!(error.message().contains(&peer.to_string()), "{error}");
        let again = mesh.transfer(&mut [Transfer::Recv { from: 1, into: &mut words }], &limits);
        assert!(again.is_err(), "a broken mesh stays broken");
        Ok(())
    });
    all_ok(answers);
}

/// Two meshes with different members, and calls on both at once.
pub fn meshes_are_apart<F: Fabric + 'static>(fabrics: Vec<F>) {
    all_ok(on_ranks(fabrics, |fabric| {
        let (rank, size) = (fabric.rank(), fabric.size());
        let world = world(&fabric)?;
        let backwards = fabric.open("backwards", &(0..size).rev().collect::<Vec<_>>())?;
        assert_eq!(backwards.rank(), size - 1 - rank);
        std::thread::scope(|scope| {
            let threads = [(&world, 1), (&backwards, 2)].map(|(mesh, index)| {
                scope.spawn(move || -> Result<()> {
                    let (rank, size) = (mesh.rank(), mesh.size());
                    let limits = mesh.limits(LONG, &Abort::new());
                    for _ in 0..20 {
                        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
                        let data = message(rank, to, index, 1000);
                        let mut into = vec![0; 1000];
                        mesh.transfer(
                            &mut [
                                Transfer::Send { to, data: &data },
                                Transfer::Recv { from, into: &mut into },
                            ],
                            &limits,
                        )?;
                        assert!(into == message(from, rank, index, 1000));
                    }
                    Ok(())
                })
            });
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        })
    }));
}

pub fn wrong_use_is_refused<F: Fabric + 'static>(fabrics: Vec<F>) {
    all_ok(on_ranks(fabrics, |fabric| {
        let (rank, size) = (fabric.rank(), fabric.size());
        let kind = |result: Result<()>| result.unwrap_err().kind();
        for members in [vec![], vec![rank, size], vec![rank, rank], vec![(rank + 1) % size]] {
            let result = fabric.open("bad", &members).map(|_| ());
            assert_eq!(kind(result), ErrorKind::Invalid, "{members:?}");
        }
        let mesh = world(&fabric)?;
        let limits = mesh.limits(LONG, &Abort::new());
        let peer = (rank + 1) % size;
        let mut sink = |_: usize, _: &[u8]| {};
        let call = |op: Transfer<'_>| kind(mesh.transfer(&mut [op], &limits));
        assert_eq!(call(Transfer::Send { to: size, data: b"x" }), ErrorKind::Invalid);
        assert_eq!(call(Transfer::Send { to: rank, data: b"x" }), ErrorKind::Invalid);
        for (bytes, unit) in [(7, 4), (12, 3), (0, 0), (64, 64)] {
            let op = Transfer::Fold { from: peer, bytes, unit, sink: &mut sink };
            assert_eq!(call(op), ErrorKind::Invalid);
        }
        Ok(())
    }));
}

mod in_memory {
    use super::*;

    #[test]
    fn everybody_with_everybody() {
        for size in [2, 3, 5] {
            exchange_all(memory::fabrics(size), &[1, 4096, 0, 300_000, 12, 64]);
        }
    }

    #[test]
    fn random() {
        random_steps(memory::fabrics(4), 3, 100);
    }

    #[test]
    fn ends() {
        deadline_names_the_peer(memory::fabrics(2));
        abort_wakes(memory::fabrics(3));
        death_is_named(memory::fabrics(2));
    }

    #[test]
    fn several() {
        meshes_are_apart(memory::fabrics(3));
        wrong_use_is_refused(memory::fabrics(3));
    }
}

mod tcp {
    use super::*;
    use fleet_net::{Log, MemoryStore, TcpFabric, TcpOptions, Token};

    fn fabrics_with(size: usize, change: impl Fn(&mut TcpOptions) + Sync) -> Vec<TcpFabric> {
        let (store, token) = (MemoryStore::new(), Token::generate().unwrap());
        std::thread::scope(|scope| {
            let (store, token, change) = (&store, &token, &change);
            let threads: Vec<_> = (0..size)
                .map(|rank| {
                    scope.spawn(move || {
                        let mut options = TcpOptions::new("job/0", rank, size);
                        options.log = Log::silent();
                        change(&mut options);
                        TcpFabric::start(store, token, options, &Limits::within(LONG)).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn fabrics(size: usize) -> Vec<TcpFabric> {
        fabrics_with(size, |_| {})
    }

    #[test]
    fn everybody_with_everybody() {
        for (streams, checksum) in [(1, false), (2, true), (3, false)] {
            let made = fabrics_with(3, |options| {
                (options.streams, options.checksum) = (streams, checksum);
            });
            exchange_all(made, &[1, 4096, 0, 300_000, 12, 3_000_004, 2_000_003, 64]);
        }
    }

    #[test]
    fn ranks_listen_on_the_given_port() {
        // Rank 0 gets the port, so it is taken for rank 1.
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = held.local_addr().unwrap().port();
        drop(held);
        let (log, lines) = fleet_net::Log::collect();
        let made = fabrics_with(2, |options| {
            (options.port, options.log) = (Some(port), log.clone());
        });
        let ports: Vec<u16> = made.iter().map(|fabric| fabric.address().port()).collect();
        assert!(ports.contains(&port) && ports[0] != ports[1], "{port}: {ports:?}");
        let lines = lines();
        assert!(lines[0].contains(&format!("cannot listen on port {port}")), "{lines:?}");
        exchange_all(made, &[64]);
    }

    #[test]
    fn random() {
        random_steps(fabrics(4), 3, 100);
    }

    #[test]
    fn ends() {
        deadline_names_the_peer(fabrics(2));
        abort_wakes(fabrics(3));
        death_is_named(fabrics(2));
    }

    #[test]
    fn several() {
        meshes_are_apart(fabrics(3));
        wrong_use_is_refused(fabrics(3));
    }

    /// Messages sent before a rank closes its end still arrive.
    #[test]
    fn an_end_is_seen_beside_the_mesh() {
        let gate = std::sync::Barrier::new(2);
        let answers = on_ranks(fabrics(2), |fabric| {
            let mesh = world(&fabric)?;
            let limits = mesh.limits(LONG, &Abort::new());
            let mut word = [0; 4];
            if mesh.rank() == 0 {
                mesh.transfer(&mut [Transfer::Recv { from: 1, into: &mut word }], &limits)?;
                gate.wait();
                return mesh.transfer(&mut [Transfer::Send { to: 1, data: &word }], &limits);
            }
            mesh.transfer(&mut [Transfer::Send { to: 0, data: b"last" }], &limits)?;
            assert_eq!(mesh.closed_peer(), None);
            gate.wait();
            let begin = std::time::Instant::now();
            while mesh.closed_peer().is_none() && begin.elapsed() < LONG {
                std::thread::yield_now();
            }
            assert_eq!(mesh.closed_peer(), Some(0));
            mesh.transfer(&mut [Transfer::Recv { from: 0, into: &mut word }], &limits)?;
            assert_eq!(&word, b"last");
            Ok(())
        });
        answers.into_iter().for_each(|answer| answer.unwrap());
    }

    #[test]
    fn ranks_out_of_step_are_told_apart() {
        for (sent, wanted) in [(100, 200), (200, 100), (2_000_000, 10), (0, 4)] {
            let answers = on_ranks(fabrics(2), |fabric| {
                let mesh = world(&fabric)?;
                let limits = mesh.limits(LONG, &Abort::new());
                if mesh.rank() == 0 {
                    let data = vec![1; sent];
                    // The send may complete before the other end detects the mismatch.
                    let _ = mesh.transfer(&mut [Transfer::Send { to: 1, data: &data }], &limits);
                    return Ok(());
                }
                let mut into = vec![0; wanted];
                mesh.transfer(&mut [Transfer::Recv { from: 0, into: &mut into }], &limits)
            });
            let error = answers[1].as_ref().unwrap_err().to_string();
            let words = format!("message 0 of {wanted} bytes, got message 0 of {sent} bytes");
            assert!(error.contains(&words) && error.contains("rank 0 (host "), "{error}");
        }
    }

    #[test]
    fn who_does_not_come_is_named() {
        let (store, token) = (MemoryStore::new(), Token::generate().unwrap());
        let limits = Limits::within(Duration::from_millis(50));
        let options = TcpOptions::new("job/7", 1, 3);
        let error = TcpFabric::start(&store, &token, options, &limits).err().unwrap();
        let text = error.to_string();
        assert!(text.contains("job/7/address/rank 0, job/7/address/rank 2"), "{text}");
        assert!(text.contains("rank 1 (host "), "{text}");
    }

    #[test]
    fn different_options_are_refused() {
        let made = fabrics_with(2, |options| options.streams = 1 + options.rank);
        let rest = std::sync::Barrier::new(2);
        let answers = on_ranks(made, |fabric| {
            let mesh = world(&fabric)?;
            let peer = 1 - mesh.rank();
            let span = if mesh.rank() == 1 { LONG } else { Duration::from_millis(50) };
            let limits = mesh.limits(span, &Abort::new());
            let result = mesh.transfer(&mut [Transfer::Send { to: peer, data: b"x" }], &limits);
            // A rank that has given up still answers the other.
            rest.wait();
            result
        });
        let text = answers[1].as_ref().unwrap_err().to_string();
        assert!(text.contains("(streams, checksum) differs"), "{text}");
        let text = answers[0].as_ref().unwrap_err().to_string();
        assert!(text.contains("waiting for rank 1 (host "), "{text}");
    }

    #[test]
    fn two_jobs_do_not_mix() {
        let (one, two) = (fabrics(2), fabrics(2));
        assert_ne!(one[0].address(), two[0].address());
        exchange_all(one, &[1000]);
        exchange_all(two, &[1000]);
    }

    #[test]
    fn unknown_interfaces_are_refused() {
        let (store, token) = (MemoryStore::new(), Token::generate().unwrap());
        for interface in ["loo", "203.0.113.77"] {
            let options = TcpOptions::new("job", 0, 1).interface(interface);
            let error = TcpFabric::start(&store, &token, options, &Limits::within(LONG)).err();
            let text = error.unwrap().to_string();
            assert!(text.contains("no interface") && text.contains("127.0.0.1"), "{text}");
        }
    }
}
