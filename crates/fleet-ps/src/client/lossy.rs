//! A network that loses, repeats and reorders messages under a seed. Every push is applied exactly
//! once.

use super::tests::{SPARSE, job};
use super::*;
use crate::request::{Message, Method};
use crate::server::Caller;
use crate::{Arrival, Barriers, PullMode, Push, ServerTables, TableAccess};
use fleet_base::rng::Sequence;
use std::sync::Arc;

/// Delivers requests. Loses some of them and of their answers, and delivers copies later, in any
/// order.
struct Lossy {
    servers: Vec<Arc<ServerTables>>,
    caller: Caller,
    state: Mutex<State>,
}

struct State {
    rng: Sequence,
    /// Copies in flight: server, method, bytes.
    late: Vec<(usize, Method, Vec<u8>)>,
    lost: usize,
    copies: usize,
}

/// One in `LOSS` requests and answers is lost, and one in `REPEAT` requests is repeated.
const LOSS: u64 = 4;
const REPEAT: u64 = 3;

impl Lossy {
    fn deliver(&self, server: usize, method: Method, bytes: &[u8]) -> Result<Vec<u8>> {
        let mut answer = Vec::new();
        let served = self.servers[server].call(self.caller, method as u8, bytes, &mut answer);
        served.map(|()| answer)
    }

    fn try_once(&self, request: &Message<'_>, bytes: &[u8]) -> Option<Result<Vec<u8>>> {
        let mut state = self.state.lock().unwrap();
        let loses = state.rng.below(LOSS) == 0;
        let loses_answer = state.rng.below(LOSS) == 0;
        if state.rng.below(REPEAT) == 0 {
            state.late.push((request.server, request.method, bytes.to_vec()));
        }
        if !state.late.is_empty() && state.rng.below(2) == 0 {
            let count = state.late.len() as u64;
            let at = state.rng.below(count) as usize;
            let (server, method, bytes) = state.late.swap_remove(at);
            state.copies += 1;
            // The answer is discarded.
            let _ = self.deliver(server, method, &bytes);
        }
        state.lost += usize::from(loses) + usize::from(!loses && loses_answer);
        let served = (!loses).then(|| self.deliver(request.server, request.method, bytes));
        served.filter(|_| !loses_answer)
    }
}

impl Transport for Lossy {
    fn exchange(&self, requests: &[Message<'_>]) -> Vec<Result<Vec<u8>>> {
        let exchange = |request: &Message<'_>| {
            let bytes = request.bytes();
            std::iter::repeat_with(|| self.try_once(request, &bytes)).flatten().next().unwrap()
        };
        requests.iter().map(exchange).collect()
    }
}

#[test]
fn every_push_is_applied_once_whatever_the_network_does() {
    for seed in 0..20 {
        let servers = ServerTables::all(&job(3, 2, seed % 2 == 0)).unwrap();
        let workers: Vec<Client<Lossy>> = (0..2)
            .map(|worker| {
                let state = State {
                    rng: Sequence::new(seed, worker as u64),
                    late: Vec::new(),
                    lost: 0,
                    copies: 0,
                };
                let caller = Caller { worker, client: 70 + worker as u64 };
                let state = Mutex::new(state);
                let lossy = Lossy { servers: servers.clone(), caller, state };
                Client::over(servers[0].job(), worker, lossy).unwrap()
            })
            .collect();
        std::thread::scope(|scope| {
            for (number, worker) in workers.iter().enumerate() {
                scope.spawn(move || {
                    for step in 0..30u64 {
                        let ids = [step % 7, 100 + number as u64];
                        // Sums of powers of two are exact in any order.
                        worker.push_sparse(SPARSE, None, Push::new(&ids, &[0.5; 4])).unwrap();
                        worker.push_dense(super::tests::DENSE, None, &[0.5; 5]).unwrap();
                        worker.push_steps(super::tests::STEPS, None, 1).unwrap();
                        worker
                            .push_geo(super::tests::GEO, None, (&[number as u64]).into(), &[1.0; 2])
                            .unwrap();
                        if worker.job().sync {
                            worker.arrive(Arrival::Sent).unwrap();
                            worker.arrive(Arrival::Received).unwrap();
                        }
                    }
                });
            }
        });
        let shares = if workers[0].job().sync { 2.0 } else { 1.0 };
        let mut rows = [0.0; 6];
        workers[1]
            .pull_sparse(SPARSE, (&[0, 100, 101]).into(), &mut rows, PullMode::Infer)
            .unwrap();
        // Id 0 is in steps 0, 7, 14, 21, 28 of both workers; the rate is a half.
        let (shared, own) = (1.0 - 10.0 * 0.25 / shares, 1.0 - 30.0 * 0.25 / shares);
        assert_eq!(rows, [shared, shared, own, own, own, own], "seed {seed}");
        let mut values = [0.0; 5];
        workers[0].pull_dense(super::tests::DENSE, &mut values).unwrap();
        assert_eq!(values, [-60.0 * 0.25 / shares; 5], "seed {seed}");
        assert_eq!(workers[0].push_steps(super::tests::STEPS, None, 0).unwrap(), 60);
        let changed = workers[0].pull_geo(super::tests::GEO).unwrap();
        assert_eq!(changed, (vec![1], vec![31.0; 2]), "nothing that changed is lost, seed {seed}");
        for worker in &workers {
            let state = worker.transport.state.lock().unwrap();
            assert!(state.lost > 50 && state.copies > 20, "{} {}", state.lost, state.copies);
        }
    }
}
