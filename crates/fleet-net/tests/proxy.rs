//! A proxy between a client and a server. It cuts connections at byte counts drawn from a seed, and
//! records the bytes that it forwards.

use fleet_base::rng::Sequence;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// Maximum number of bytes recorded.
const SEEN_BYTES_MAX: usize = 1 << 20;

pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    target: Mutex<SocketAddr>,
    stop: AtomicBool,
    cuts: AtomicUsize,
    seen: Mutex<Vec<u8>>,
    open: Mutex<Vec<TcpStream>>,
}

impl Proxy {
    /// Each connection carries up to `bytes_max` bytes, in both directions together.
    pub fn start(target: SocketAddr, seed: u64, bytes_max: usize) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared {
            target: Mutex::new(target),
            stop: AtomicBool::new(false),
            cuts: AtomicUsize::new(0),
            seen: Mutex::default(),
            open: Mutex::default(),
        });
        let inside = shared.clone();
        let thread = std::thread::spawn(move || {
            let mut random = Sequence::new(seed, 0);
            let mut pumps = Vec::new();
            for client in listener.incoming() {
                if inside.stop.load(Ordering::SeqCst) {
                    break;
                }
                let client = client.unwrap();
                // Nothing listens there: the client sees its connection closed.
                let target = *inside.target.lock().unwrap();
                let Ok(server) = TcpStream::connect(target) else { continue };
                // Handshakes take about 200 bytes, so most connections get past them.
                let life = random.below(bytes_max as u64) as usize;
                let left = Arc::new(AtomicUsize::new(life));
                inside.open.lock().unwrap().push(client.try_clone().unwrap());
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let (left, inside) = (left.clone(), inside.clone());
                    pumps.push(std::thread::spawn(move || pump(from, to, &left, &inside)));
                }
            }
            pumps.into_iter().for_each(|pump| pump.join().unwrap());
        });
        Proxy { address, shared, thread: Some(thread) }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn cuts(&self) -> usize {
        self.shared.cuts.load(Ordering::SeqCst)
    }

    /// The recorded bytes of all connections, in both directions.
    pub fn recorded(&self) -> Vec<u8> {
        self.shared.seen.lock().unwrap().clone()
    }

    /// Cuts all open connections.
    pub fn cut_all(&self) {
        for stream in self.shared.open.lock().unwrap().drain(..) {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    pub fn redirect(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap() = target;
    }
}

/// Stops accepting. Clients and servers of a test end before their proxy.
impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        drop(TcpStream::connect(self.address));
        // The pumps end with their connections, which others hold, so do not wait for them here.
        drop(self.thread.take());
    }
}

fn pump(mut from: TcpStream, mut to: TcpStream, left: &AtomicUsize, shared: &Shared) {
    let mut bytes = [0; 4096];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        let had = left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            Some(left.saturating_sub(count))
        });
        let pass = had.unwrap_or(0).min(count);
        let mut seen = shared.seen.lock().unwrap();
        if seen.len() < SEEN_BYTES_MAX {
            seen.extend(&bytes[..pass]);
        }
        drop(seen);
        if to.write_all(&bytes[..pass]).is_err() {
            break;
        }
        if pass < count {
            shared.cuts.fetch_add(1, Ordering::SeqCst);
            break;
        }
    }
    for stream in [&from, &to] {
        // It may be closed already.
        let _ = stream.shutdown(Shutdown::Both);
    }
}
