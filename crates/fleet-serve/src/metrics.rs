//! Counters of the server, as text for Prometheus.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Counters since the start.
#[derive(Default)]
pub struct Metrics {
    /// By protocol and code; the last code is that of all others.
    requests: [[AtomicU64; CODES.len() + 1]; 2],
    rows: AtomicU64,
    latency: [AtomicU64; LATENCY_MS.len() + 1],
    latency_us: AtomicU64,
    reloads: AtomicU64,
    reload_failures: AtomicU64,
}

/// A protocol of requests.
#[derive(Clone, Copy, Debug)]
pub enum Protocol {
    /// HTTP with JSON.
    Http,
    /// gRPC.
    #[cfg_attr(not(feature = "grpc"), allow(dead_code, reason = "built without gRPC"))]
    Grpc,
}

/// Values that are read when the text is written.
pub struct Gauges {
    /// Requests that wait.
    pub queue: usize,
    /// Version of the model.
    pub version: u64,
}

/// Codes that are counted: of HTTP, to which those of gRPC are mapped.
const CODES: [u16; 11] = [200, 400, 401, 404, 405, 408, 411, 413, 500, 501, 503];
/// Upper limits of the intervals of latencies, in milliseconds.
const LATENCY_MS: [f64; 12] =
    [0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 250.0, 1000.0, 10_000.0];

impl Metrics {
    /// Counts a request.
    pub fn count(&self, protocol: Protocol, code: u16) {
        let at = CODES.iter().position(|known| *known == code).unwrap_or(CODES.len());
        self.requests[protocol as usize][at].fetch_add(1, Relaxed);
    }

    /// Counts the rows or users of a request that was answered, and its time.
    pub fn scored(&self, rows: usize, span: Duration) {
        self.rows.fetch_add(rows as u64, Relaxed);
        let ms = span.as_secs_f64() * 1e3;
        let at = LATENCY_MS.iter().position(|limit| ms <= *limit).unwrap_or(LATENCY_MS.len());
        self.latency[at].fetch_add(1, Relaxed);
        self.latency_us.fetch_add(span.as_micros() as u64, Relaxed);
    }

    /// Counts a reload.
    pub fn reloaded(&self, is_ok: bool) {
        let counter = if is_ok { &self.reloads } else { &self.reload_failures };
        counter.fetch_add(1, Relaxed);
    }

    /// Returns the text that Prometheus reads.
    pub fn text(&self, gauges: &Gauges) -> String {
        let mut text = String::new();
        let head = |text: &mut String, name: &str, kind: &str, help: &str| {
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        };
        head(&mut text, "fleet_requests_total", "counter", "Requests by protocol and code.");
        for (protocol, codes) in ["http", "grpc"].iter().zip(&self.requests) {
            for (at, count) in codes.iter().enumerate().filter(|(_, it)| it.load(Relaxed) > 0) {
                let code = CODES.get(at).map_or("other".to_string(), u16::to_string);
                let count = count.load(Relaxed);
                let _ = writeln!(
                    text,
                    "fleet_requests_total{{protocol=\"{protocol}\",code=\"{code}\"}} {count}"
                );
            }
        }
        let name = "fleet_request_seconds";
        head(&mut text, name, "histogram", "Time from a request's last byte to its answer.");
        let mut sum = 0;
        for (at, count) in self.latency.iter().enumerate() {
            sum += count.load(Relaxed);
            let limit = LATENCY_MS.get(at).map_or("+Inf".to_string(), |ms| (ms / 1e3).to_string());
            let _ = writeln!(text, "{name}_bucket{{le=\"{limit}\"}} {sum}");
        }
        let seconds = self.latency_us.load(Relaxed) as f64 / 1e6;
        let _ = writeln!(text, "{name}_sum {seconds}\n{name}_count {sum}");
        for (name, kind, value, help) in [
            ("fleet_rows_total", "counter", self.rows.load(Relaxed), "Rows scored, and users."),
            ("fleet_queue_length", "gauge", gauges.queue as u64, "Requests that wait."),
            ("fleet_model_version", "gauge", gauges.version, "Version of the model."),
            ("fleet_reloads_total", "counter", self.reloads.load(Relaxed), "Models reloaded."),
            (
                "fleet_reload_failures_total",
                "counter",
                self.reload_failures.load(Relaxed),
                "New versions that could not be loaded.",
            ),
        ] {
            head(&mut text, name, kind, help);
            let _ = writeln!(text, "{name} {value}");
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_text() {
        let metrics = Metrics::default();
        metrics.count(Protocol::Http, 200);
        metrics.count(Protocol::Http, 418);
        metrics.scored(50, Duration::from_millis(3));
        metrics.scored(1, Duration::from_secs(60));
        metrics.reloaded(false);
        let text = metrics.text(&Gauges { queue: 3, version: 7 });
        for line in [
            "fleet_requests_total{protocol=\"http\",code=\"200\"} 1",
            "fleet_requests_total{protocol=\"http\",code=\"other\"} 1",
            "fleet_request_seconds_bucket{le=\"0.002\"} 0",
            "fleet_request_seconds_bucket{le=\"0.005\"} 1",
            "fleet_request_seconds_bucket{le=\"+Inf\"} 2",
            "fleet_request_seconds_sum 60.003",
            "fleet_request_seconds_count 2",
            "fleet_rows_total 51",
            "fleet_queue_length 3",
            "fleet_model_version 7",
            "fleet_reload_failures_total 1",
        ] {
            assert!(text.lines().any(|it| it == line), "no '{line}' in:\n{text}");
        }
    }
}
