//! Measures the link between two members of a mesh: latency, bandwidth and clock offset.

use crate::{Limits, Mesh, Transfer};
use fleet_base::{Error, Result};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Measurements of the link between two ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Link {
    /// Half the time of the shortest round trip of 8 bytes.
    pub latency: Duration,
    /// Bytes per second in one direction, with messages of [`MESSAGE_BYTES`].
    pub bandwidth: f64,
    /// Offset of the second rank's clock from the first one's, in seconds; positive if it is ahead.
    pub clock_offset: f64,
}

/// Number of round trips measured.
const ROUNDS: u32 = 200;
/// Message size in bytes, large enough to use every stream of a connection.
pub const MESSAGE_BYTES: usize = 4 << 20;
/// Duration of the bandwidth measurement.
const SPAN: Duration = Duration::from_millis(300);

/// Measures the link between this rank and `peer`, which must call this function at the same time.
/// The lower rank measures, and both ranks return its result.
pub fn link(mesh: &dyn Mesh, peer: usize, limits: &Limits) -> Result<Link> {
    let first = mesh.rank() < peer;
    let send = |data: &[u8]| mesh.transfer(&mut [Transfer::Send { to: peer, data }], limits);
    let recv = |into: &mut [u8]| mesh.transfer(&mut [Transfer::Recv { from: peer, into }], limits);
    let mut best = (Duration::MAX, 0.0);
    for _ in 0..ROUNDS {
        let mut word = [0; 8];
        if first {
            let (start, sent) = (Instant::now(), clock()?);
            send(&word)?;
            recv(&mut word)?;
            let trip = start.elapsed();
            let theirs = f64::from_le_bytes(word);
            if trip < best.0 {
                // The peer read its clock half-way, with an error of at most half of the trip.
                best = (trip, theirs - (sent + trip.as_secs_f64() / 2.0));
            }
        } else {
            recv(&mut word)?;
            send(&clock()?.to_le_bytes())?;
        }
    }
    let mut message = vec![1; MESSAGE_BYTES];
    let (start, mut bytes) = (Instant::now(), 0);
    loop {
        // The first rank tells the peer whether another message follows.
        let mut more = [u8::from(start.elapsed() < SPAN)];
        if first {
            send(&more)?;
        } else {
            recv(&mut more)?;
        }
        if more[0] == 0 {
            break;
        }
        if first {
            send(&message)?;
        } else {
            recv(&mut message)?;
        }
        bytes += MESSAGE_BYTES;
    }
    let mut word = [0; 8];
    if !first {
        // Acknowledges that everything has arrived.
        send(&word)?;
    } else {
        recv(&mut word)?;
    }
    let mut answer =
        [best.0.as_secs_f64() / 2.0, bytes as f64 / start.elapsed().as_secs_f64(), best.1]
            .map(f64::to_le_bytes)
            .concat();
    if first {
        send(&answer)?;
    } else {
        recv(&mut answer)?;
    }
    let number = |index: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&answer[index * 8..index * 8 + 8]);
        f64::from_le_bytes(word)
    };
    let latency = Duration::try_from_secs_f64(number(0))
        .map_err(|_| Error::unavailable("invalid time measured by a peer"))?;
    Ok(Link { latency, bandwidth: number(1), clock_offset: number(2) })
}

/// Seconds since 1970.
fn clock() -> Result<f64> {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map(|since| since.as_secs_f64())
        .map_err(|_| Error::invalid("the clock of this machine is set before 1970"))
}

#[cfg(test)]
mod tests {
    use crate::{Fabric, Limits, memory};
    use std::time::Duration;

    #[test]
    fn both_get_the_same() {
        let links: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = memory::fabrics(2)
                .into_iter()
                .map(|fabric| {
                    scope.spawn(move || {
                        let mesh = fabric.open("m", &[0, 1]).unwrap();
                        let limits = Limits::within(Duration::from_secs(60));
                        super::link(&*mesh, 1 - mesh.rank(), &limits).unwrap()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(links[0], links[1]);
        assert!(links[0].bandwidth > 0.0 && links[0].latency > Duration::ZERO);
        // Both threads read the same clock.
        assert!(links[0].clock_offset.abs() < 1.0);
    }
}
