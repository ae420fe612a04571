//! Measures requests over loopback, with server and client in one process: `cargo run --release -p
//! fleet-net --example call_speed`.

use fleet_base::Result;
use fleet_net::calls::{CallClient, CallOptions, CallServer, Conversation};
use fleet_net::{Limits, Log, Token};
use std::time::{Duration, Instant};

/// Method 0 pushes and gets an empty answer. Method 1 pulls as many bytes as the request asks for.
struct Rows(Vec<u8>);

impl Conversation for Rows {
    fn call(&mut self, method: u8, request: &[u8], answer: &mut Vec<u8>) -> Result<()> {
        if method == 1 {
            let mut word = [0; 4];
            word.copy_from_slice(&request[..4]);
            answer.extend(&self.0[..u32::from_le_bytes(word) as usize]);
        }
        Ok(())
    }
}

fn main() -> Result<()> {
    let token = Token::generate()?;
    let options = CallOptions::default();
    let open = |_: &[u8], _| Ok(Box::new(Rows(vec![1; 4 << 20])) as Box<dyn Conversation>);
    let server = CallServer::bind("127.0.0.1:0", &token, options, Log::stderr(), open)?;
    let limits = Limits::within(Duration::from_secs(120));
    for in_flight in [1, 2, 4] {
        let mut client = CallClient::connect(server.address(), &token, b"", options, &limits)?;
        for (name, method, bytes) in [
            ("pull", 1, 6400),
            ("pull", 1, 128_000),
            ("pull", 1, 3_200_000),
            ("push", 0, 3_200_000),
        ] {
            let rows = vec![1; bytes];
            let count = (bytes as u32).to_le_bytes();
            let payload: [&[u8]; 1] = if method == 1 { [&count] } else { [&rows] };
            let mut times = Vec::new();
            let (start, rounds) = (Instant::now(), 20 + 40_000_000 / bytes);
            for _ in 0..rounds {
                let round = Instant::now();
                while client.in_flight() < in_flight {
                    client.send(method, &payload, &limits)?;
                }
                client.receive(&limits)?.1?;
                times.push(round.elapsed());
            }
            let rate = (rounds * bytes) as f64 / start.elapsed().as_secs_f64() / 1e6;
            while client.in_flight() > 0 {
                client.receive(&limits)?.1?;
            }
            times.sort();
            let p50 = times[times.len() / 2].as_secs_f64() * 1e6;
            println!(
                "{name} {bytes:>8} bytes, {in_flight} in flight: {p50:>7.1} us {rate:>7.0} MB/s"
            );
        }
    }
    Ok(())
}
