//! Prints one line per result.

use super::benches::Bench;
use super::is_comm;
use serde_json::{Map, Value, json};

fn medians(values: &[Value], key: &str) -> Vec<f64> {
    let mut list: Vec<f64> = values.iter().filter_map(|value| value[key].as_f64()).collect();
    list.sort_by(f64::total_cmp);
    list
}

/// Returns the ratio, rounded to three decimals.
pub fn ratio(ours: f64, theirs: f64) -> f64 {
    (ours / theirs * 1000.0).round() / 1000.0
}

pub fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

pub fn summary(bench: &Bench, threads: usize, runs: &[Value]) -> Map<String, Value> {
    let list = medians(runs, "median");
    let peak = medians(runs, "peak_rss_mb");
    let line = json!({
        "bench": bench.name,
        "unit": bench.unit,
        "median": median(&list),
        "min": list.first(),
        "max": list.last(),
        "runs": list.len(),
        "threads": threads,
        "peak_rss_mb": median(&peak),
        "loss": median(&medians(runs, "loss")),
    });
    line.as_object().cloned().unwrap_or_default()
}

pub fn against(ours: &Map<String, Value>, framework: &str, theirs: &[Value]) -> Map<String, Value> {
    let mut line = ours.clone();
    let list = medians(theirs, "median");
    let peak = medians(theirs, "peak_rss_mb");
    let mine = ours["median"].as_f64().unwrap_or(f64::NAN);
    if is_comm(ours["bench"].as_str().unwrap_or("")) {
        let name = format!("{}_vs_{framework}", ours["bench"].as_str().unwrap_or(""));
        line.insert("bench".into(), json!(name));
    }
    line.insert("peer".into(), json!(framework));
    line.insert("peer_median".into(), json!(median(&list)));
    // The ratio is relative to the peer of this run.
    line.remove("target");
    line.insert("peer_min".into(), json!(list.first()));
    line.insert("peer_max".into(), json!(list.last()));
    line.insert("peer_peak_rss_mb".into(), json!(median(&peak)));
    line.insert("peer_loss".into(), json!(median(&medians(theirs, "loss"))));
    line.insert("ratio".into(), json!(ratio(mine, median(&list))));
    line
}

pub fn show(json: bool, line: &Map<String, Value>) {
    if json {
        println!("{}", Value::Object(line.clone()));
        return;
    }
    let number = |key: &str| line.get(key).and_then(Value::as_f64);
    let text = |key: &str| line.get(key).and_then(Value::as_str).unwrap_or("");
    let memory = |key: &str| number(key).map(|mb| format!("{mb:.0} MB"));
    let mut row = format!(
        "{:<26} {:>10.2} {} ({:.2} .. {:.2}, {} runs, {} threads{})",
        text("bench"),
        number("median").unwrap_or(f64::NAN),
        text("unit"),
        number("min").unwrap_or(f64::NAN),
        number("max").unwrap_or(f64::NAN),
        number("runs").unwrap_or(0.0),
        number("threads").unwrap_or(0.0),
        memory("peak_rss_mb").map_or_else(String::new, |mb| format!(", {mb}")),
    );
    if let (Some(target), Some(ratio)) = (number("target"), number("ratio")) {
        row += &format!("   target {target:.1}   ratio {ratio:.2}");
    } else if let (Some(peer), Some(ratio)) = (number("peer_median"), number("ratio")) {
        row += &format!(
            "   {} {peer:.2}{}   ratio {ratio:.2}",
            text("peer"),
            memory("peer_peak_rss_mb").map_or_else(String::new, |mb| format!(" ({mb})")),
        );
    }
    if let Some(loss) = number("loss") {
        row += &format!("   loss {loss:.4}");
    }
    if let Some(loss) = number("peer_loss") {
        row += &format!(", {} {loss:.4}", text("peer"));
    }
    println!("{row}");
}
