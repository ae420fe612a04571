//! Counted costs of a step: bytes at the sockets of a process.

use crate::launch::{assert_success, run_with};
use crate::strategies::{feed, session_of};
use fleet::prelude::*;
use fleet::strategy::{DgcConfig, DistributedStrategy};

/// Elements of the one large parameter.
const ELEMENTS: u64 = 6 * 65_536;

fn wide(net: &Net) -> Var<'_> {
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    x.fc(Fc::new(65_536).no_bias()).square().mean() + y.mean() * 0.0
}

/// Runs in a rank process: prints the number of bytes sent in a step, the smallest of three.
pub fn count(fleet: &Fleet, name: &str) -> Result<()> {
    let plain = DistributedStrategy::new();
    let strategy = match name {
        "fp16_allreduce" => plain.with_fp16_allreduce(true),
        "bf16_allreduce" => plain.with_fp16_allreduce(true).with_fp16_allreduce_dtype("bfloat16"),
        "dgc" => {
            let configs = DgcConfig::default().with_rampup_begin_step(1).with_rampup_step(1);
            plain.use_dgc(configs.with_sparsity([0.999f32]))
        }
        _ => plain,
    };
    let mut session = session_of(fleet, &strategy, Momentum::new(0.1, 0.9).into(), wide)?;
    let (x, y) = feed(&session, fleet, 0)?;
    let mut sent = Vec::new();
    for _ in 0..4 {
        // No other rank's step is in progress when this rank counts.
        fleet.barrier_worker()?;
        let before = sockets::bytes_sent();
        session.run(&[("x", &x), ("y", &y)], &[])?;
        // All bytes have arrived, and none waits in the kernel for a slow rank.
        fleet.barrier_worker()?;
        sent.push(sockets::bytes_sent() - before);
    }
    println!("bytes {}", sent.iter().skip(1).min().unwrap());
    fleet.finish()
}

mod sockets {
    use std::os::fd::RawFd;

    /// Offset of `tcpi_bytes_sent` in `struct tcp_info` (Linux 4.19).
    const BYTES_SENT_AT: usize = 200;

    /// Returns the bytes that the kernel has sent for all TCP connections of this process.
    pub fn bytes_sent() -> u64 {
        let open = std::fs::read_dir("/proc/self/fd").unwrap();
        let numbers = open.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        numbers.filter_map(of_socket).sum()
    }

    fn of_socket(fd: RawFd) -> Option<u64> {
        let mut info = [0u8; 256];
        let mut len = info.len() as libc::socklen_t;
        // SAFETY: the kernel writes at most `len` bytes to `info`; other descriptors are an error.
        let outcome = unsafe {
            let (level, option) = (libc::IPPROTO_TCP, libc::TCP_INFO);
            libc::getsockopt(fd, level, option, info.as_mut_ptr().cast(), &mut len)
        };
        let field = info.get(BYTES_SENT_AT..BYTES_SENT_AT + 8)?;
        let known = outcome == 0 && len as usize >= BYTES_SENT_AT + 8;
        known.then(|| u64::from_ne_bytes(field.try_into().unwrap()))
    }
}

#[test]
fn bytes_at_the_sockets_are_what_strategies_promise() {
    let bytes = |name: &str| -> u64 {
        let outputs = run_with("count bytes", 2, name, &[("FLEET_SHARED_MEMORY", "0")]);
        assert_success(&outputs);
        let text = String::from_utf8_lossy(&outputs[0].stdout).into_owned();
        let line = text.lines().find_map(|line| line.split("bytes ").nth(1));
        line.and_then(|number| number.trim().parse().ok()).expect(&text)
    };
    let plain = bytes("plain");
    // With two ranks, a rank sends its whole payload; the rest of a message is small.
    let payload = 4 * ELEMENTS;
    assert!((payload..payload + payload / 50).contains(&plain), "{plain} for {payload}");
    for name in ["fp16_allreduce", "bf16_allreduce"] {
        let half = bytes(name);
        assert!(half * 100 <= plain * 51 && half >= payload / 2, "{name}: {half} of {plain}");
    }
    let compressed = bytes("dgc");
    assert!(compressed * 1000 <= plain * 3, "{compressed} of {plain}");
}
