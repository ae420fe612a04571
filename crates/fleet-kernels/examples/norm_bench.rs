//! Times the kernels that are bound by memory, and attention, on the shapes of ResNet-50, wide &
//! deep and BERT: `cargo run --release -p fleet-kernels --example norm_bench [filter]`.
//!
//! Prints the median of some runs with 1 and with 2 threads, and the rate it stands for.

use fleet_base::rng::Sequence;
use fleet_kernels::embedding::{self, Grid, Slot, Source};
use fleet_kernels::pool::Pool;
use std::hint::black_box;
use std::time::Instant;

struct Bench {
    filter: Option<String>,
    pools: [Pool; 2],
}

impl Bench {
    /// Runs `body` until half a second is gone (at least 5 times) and prints the median.
    /// `work` is bytes or operations: `unit` says which.
    fn time(&self, name: &str, work: f64, unit: &str, mut body: impl FnMut(&Pool)) {
        if self.filter.as_ref().is_some_and(|filter| !name.contains(filter.as_str())) {
            return;
        }
        let mut line = format!("{name:44}");
        for pool in &self.pools {
            body(pool);
            let begin = Instant::now();
            let mut times = Vec::new();
            while times.len() < 5 || (begin.elapsed().as_secs_f64() < 0.5 && times.len() < 500) {
                let start = Instant::now();
                body(pool);
                times.push(start.elapsed().as_secs_f64());
            }
            times.sort_by(f64::total_cmp);
            let median = times[times.len() / 2];
            line += &format!("  {:9.3} ms {:7.1} {unit}", median * 1e3, work / median / 1e9);
        }
        println!("{line}");
    }
}

fn floats(count: usize, seed: u64) -> Vec<f32> {
    let mut random = Sequence::new(seed, 0);
    let mut out = Vec::with_capacity(count);
    advise_huge_pages(out.as_mut_ptr(), count);
    out.extend((0..count).map(|_| random.unit() as f32 - 0.5));
    out
}

/// As the tensors of Fleet do.
fn advise_huge_pages(start: *mut f32, count: usize) {
    #[cfg(target_os = "linux")]
    {
        unsafe extern "C" {
            fn madvise(start: *mut u8, bytes: usize, advice: i32) -> i32;
        }
        const MADV_HUGEPAGE: i32 = 14;
        let page = (start as usize).next_multiple_of(4096);
        let bytes = (start as usize + count * 4).saturating_sub(page) & !4095;
        // SAFETY: whole pages inside the allocation; the advice changes no byte.
        unsafe { madvise(page as *mut u8, bytes, MADV_HUGEPAGE) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (start, count);
}

fn main() {
    let bench = Bench { filter: std::env::args().nth(1), pools: [Pool::new(1), Pool::new(2)] };
    println!("{:44}  {:>22}  {:>22}", "", "1 thread", "2 threads");
    embeddings(&bench);
}

fn embeddings(bench: &Bench) {
    let (rows, dim, batch, slots) = (1_000_000, 16, 2048, 26);
    let mut random = Sequence::new(1, 0);
    let count = batch * slots;
    let ids: Vec<i64> = (0..count).map(|_| random.below(rows as u64) as i64).collect();
    let mut table = floats(rows * dim, 1);
    let mut moment = vec![0.1; rows * dim];
    let stride = slots * dim + 13;
    let mut out = vec![0.0; batch * stride];
    let bytes = (count * dim * 8) as f64;
    bench.time("embedding gather 53k x 16", bytes, "GB/s", |pool| {
        embedding::lookup(pool, &table, dim, &ids, None, Grid::packed(dim), &mut out).unwrap();
    });
    let grid = Grid { start: 13, group: slots, group_stride: stride, stride: dim };
    bench.time("embedding gather + concat", bytes, "GB/s", |pool| {
        embedding::lookup(pool, &table, dim, &ids, None, grid, &mut out).unwrap();
    });
    let of_slots: Vec<Slot<'_>> = (0..slots)
        .map(|slot| Slot {
            table: &table,
            ids: &ids[slot * batch..(slot + 1) * batch],
            column: 13 + slot * dim,
        })
        .collect();
    bench.time("embedding gather of 26 slots", bytes, "GB/s", |pool| {
        embedding::lookup_slots(pool, &of_slots, dim, None, stride, &mut out).unwrap();
    });
    let mut scratch = vec![0; embedding::group_scratch_len(count)];
    bench.time("embedding group ids", (count * 8) as f64, "GB/s", |pool| {
        black_box(embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap());
    });
    let gradient = floats(out.len(), 2);
    let source = Source::Grid { data: &gradient, grid };
    let mut merged = vec![0.0; count * dim];
    bench.time("embedding group + merge rows", bytes, "GB/s", |pool| {
        let groups = embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap();
        embedding::merge_rows(pool, &groups, &source, dim, &mut merged);
    });
    bench.time("embedding group + merge + sgd", bytes, "GB/s", |pool| {
        let groups = embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap();
        embedding::sgd_rows(pool, &groups, &source, dim, 1e-3, &mut table).unwrap();
    });
    bench.time("embedding group + merge + adagrad", bytes, "GB/s", |pool| {
        let groups = embedding::group(pool, &ids, Some(rows), None, &mut scratch).unwrap();
        let rates = (1e-3, 1e-6);
        embedding::adagrad_rows(pool, &groups, &source, dim, rates, &mut table, &mut moment)
            .unwrap();
    });
    let hashed: Vec<i64> =
        ids.iter().map(|&id| id.wrapping_mul(0x9E37_79B9_7F4A_7C15u64 as i64)).collect();
    bench.time("embedding group 64-bit ids", (count * 8) as f64, "GB/s", |pool| {
        black_box(embedding::group(pool, &hashed, None, None, &mut scratch).unwrap());
    });
}
