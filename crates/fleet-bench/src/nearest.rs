//! The index of nearest neighbours of `fleet recommend`, beside comparing all items: 32 numbers a
//! vector, around a thousand centres, and of different lengths.
//!
//! The result is queries a second of one thread by the index. Beside it: the share of the ten best
//! items that it finds, the speed of the exact search, and the time of building with one thread and
//! with several, which make the same index.

use crate::measure::{Options, peak_rss_mb, print_rates};
use fleet::Result;
use fleet::rng::Sequence;
use fleet_job::nearest::{Index, Scratch, Texts, Vectors};
use std::time::Instant;

const DIM: usize = 32;
const CENTRES: usize = 1000;
/// Spread around a centre, whose numbers have a spread of 1.
const SPREAD: f32 = 0.7;
const QUERIES: usize = 2000;
/// Queries whose best items are searched exactly.
const QUERIES_CHECKED: usize = 200;
const COUNT: usize = 10;

/// Builds an index of some items, and searches it.
pub fn run(options: &Options, items: usize) -> Result<()> {
    let items = vectors(items, 2);
    let queries = vectors(QUERIES, 3);
    let before = peak_rss_mb();
    let begin = Instant::now();
    let index = Index::build(&items, options.threads)?;
    let built = begin.elapsed().as_secs_f64();
    let memory = peak_rss_mb() - before;
    let begin = Instant::now();
    assert!(Index::build(&items, 1)? == index, "threads change the index");
    let alone = begin.elapsed().as_secs_f64();

    let begin = Instant::now();
    let exact: Vec<Vec<(usize, f32)>> = (0..QUERIES_CHECKED)
        .map(|query| items.nearest(queries.vector(query), COUNT, |_| false))
        .collect();
    let exact_rate = QUERIES_CHECKED as f64 / begin.elapsed().as_secs_f64();
    let mut scratch = Scratch::default();
    let mut nearest =
        |query: usize| index.nearest(queries.vector(query), (COUNT, 0), |_| false, &mut scratch);
    let found = exact.iter().enumerate().map(|(query, exact)| {
        let found = nearest(query);
        exact.iter().filter(|it| found.contains(it)).count()
    });
    let recall = found.sum::<usize>() as f64 / (QUERIES_CHECKED * COUNT) as f64;
    let (rounds, warmup) = options.counts(5, 1);
    let mut rates = Vec::new();
    for round in 0..warmup + rounds {
        let begin = Instant::now();
        (0..QUERIES).for_each(|query| drop(nearest(query)));
        if round >= warmup {
            rates.push(QUERIES as f64 / begin.elapsed().as_secs_f64());
        }
    }
    eprintln!(
        "{} items: built in {built:.1} s by {} threads, {alone:.1} s by one, {memory:.0} MB at its \
         peak; recall@{COUNT} {recall:.4}; exact search: {exact_rate:.0} queries/s",
        items.len(),
        options.threads
    );
    print_rates(options, "queries/s", rates);
    Ok(())
}

fn vectors(count: usize, seed: u64) -> Vectors {
    let mut random = Sequence::new(1, 0);
    let centres: Vec<f32> = (0..CENTRES * DIM).map(|_| random.normal() as f32).collect();
    let mut random = Sequence::new(seed, 0);
    let mut values = Vec::with_capacity(count * DIM);
    for _ in 0..count {
        let centre = &centres[random.below(CENTRES as u64) as usize * DIM..][..DIM];
        let length = random.unit() as f32 + 0.2;
        let vector = centre.iter().map(|at| length * (at + SPREAD * random.normal() as f32));
        values.extend(vector);
    }
    let names = (0..count).map(|at| at.to_string()).collect();
    Vectors { texts: Texts { column: "item".to_string(), values: names }, dim: DIM, values }
}
