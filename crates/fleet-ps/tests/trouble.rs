//! Connections that break at every byte of a conversation: every push is applied exactly once.

use crate::common::{DENSE, Fleet, SPARSE, dense, job, options, pull};
use fleet_ps::{JobTables, Push, RemoteServers, TableAccess, TableConfig};
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Direction of bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    ToServer,
    ToClient,
}

/// A proxy between a worker and a server. It breaks a connection after the number of bytes in its
/// plan.
struct Cutter {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    target: SocketAddr,
    /// For each connection in order: the direction, and the number of bytes after which it breaks.
    plan: Mutex<Vec<(Way, usize)>>,
    stop: AtomicBool,
    cuts: AtomicUsize,
}

impl Cutter {
    fn start(target: SocketAddr, mut plan: Vec<(Way, usize)>) -> Cutter {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        plan.reverse();
        let shared = Arc::new(Shared {
            target,
            plan: Mutex::new(plan),
            stop: AtomicBool::new(false),
            cuts: AtomicUsize::new(0),
        });
        let inside = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if inside.stop.load(Ordering::SeqCst) {
                    break;
                }
                let client = client.unwrap();
                let Ok(server) = TcpStream::connect(inside.target) else { continue };
                let cut = inside.plan.lock().unwrap().pop();
                for (way, from, to) in
                    [(Way::ToServer, &client, &server), (Way::ToClient, &server, &client)]
                {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let left = cut.and_then(|(cut, bytes)| (cut == way).then_some(bytes));
                    let inside = inside.clone();
                    std::thread::spawn(move || pump(from, to, left, &inside.cuts));
                }
            }
        });
        Cutter { address, shared }
    }

    fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }
}

impl Drop for Cutter {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, mut left: Option<usize>, cuts: &AtomicUsize) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let pass = left.map_or(count, |left| left.min(count));
        if to.write_all(&bytes[..pass]).is_err() {
            break;
        }
        if let Some(left) = &mut left {
            *left -= pass;
            if pass < count || *left == 0 {
                cuts.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
    }
    for stream in [&from, &to] {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

/// Small, so that a conversation has few bytes.
fn tiny() -> JobTables {
    let tables = vec![TableConfig::Dense {
        table_id: DENSE,
        params: vec![("weight".into(), 5)],
        rule: fleet_ps::Rule::Sgd(fleet_ps::rule::Sgd { lr: 0.5 }),
        non_finite: fleet_ps::NonFinite::Refuse,
        options: Default::default(),
    }];
    JobTables { tables, ..job(1, 1, false) }
}

#[test]
fn a_connection_that_breaks_at_any_byte_changes_nothing() {
    let fleet = Fleet::start(&tiny());
    let mut pushes = 0;
    let mut run = |plan: Vec<(Way, usize)>| {
        let cutter = Cutter::start(fleet.addresses()[0], plan);
        let addresses = [cutter.address];
        let worker =
            RemoteServers::connect(&fleet.job, 0, &addresses, &fleet.token, options()).unwrap();
        for _ in 0..3 {
            worker.push_dense(DENSE, None, &[0.5; 5]).unwrap();
            pushes += 1;
        }
        assert_eq!(dense(&worker), [-0.25 * pushes as f32; 5]);
        cutter.cuts()
    };
    assert_eq!(run(vec![]), 0);
    let mut cuts = 0;
    // A conversation has some 600 bytes to the server and 400 back. It is cut at every third byte
    // of the pushes at the end, and at every 29th before that.
    for way in [Way::ToServer, Way::ToClient] {
        for bytes in (1..300).step_by(29).chain((300..760).step_by(3)) {
            cuts += run(vec![(way, bytes)]);
        }
    }
    assert!(cuts > 150, "{cuts} connections were cut");
    for bytes in (200..700).step_by(50) {
        run(vec![(Way::ToServer, bytes), (Way::ToClient, bytes), (Way::ToServer, bytes)]);
    }
}

/// Several threads of two workers, with connections that keep breaking.
#[test]
fn many_threads_over_connections_that_keep_breaking() {
    let fleet = Fleet::start(&job(2, 2, false));
    let mut rng = fleet_base::rng::Sequence::new(11, 0);
    let mut plan = || -> Vec<(Way, usize)> {
        (0..40)
            .map(|at| {
                let way = if at % 2 == 0 { Way::ToServer } else { Way::ToClient };
                (way, 2500 + rng.below(6000) as usize)
            })
            .collect()
    };
    let cutters: Vec<Cutter> =
        fleet.addresses().into_iter().map(|address| Cutter::start(address, plan())).collect();
    let addresses: Vec<SocketAddr> = cutters.iter().map(|cutter| cutter.address).collect();
    let workers: Vec<RemoteServers> = (0..2)
        .map(|worker| {
            RemoteServers::connect(&fleet.job, worker, &addresses, &fleet.token, options()).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for worker in workers.iter().chain(&workers) {
            scope.spawn(move || {
                for step in 0..200u64 {
                    let ids = [step % 10, 1000];
                    worker.push_sparse(SPARSE, None, Push::new(&ids, &[0.5; 4])).unwrap();
                    worker.push_dense(DENSE, None, &[0.5; 5]).unwrap();
                    pull(worker, &ids);
                }
            });
        }
    });
    let worker = fleet.worker(0);
    assert_eq!(pull(&worker, &[3, 1000]), [-19.0, -19.0, -199.0, -199.0]);
    assert_eq!(dense(&worker), [-200.0; 5]);
    let cuts: usize = cutters.iter().map(Cutter::cuts).sum();
    // The number depends on how threads share connections; this many bytes cause some cuts in any
    // case.
    assert!(cuts >= 4, "{cuts} connections were cut");
}
