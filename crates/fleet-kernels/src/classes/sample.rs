//! The classes of a step: those of its labels, and random other ones.
//!
//! Numbers are drawn until enough different classes are found, which are marked in a bitmap. If
//! most classes are wanted, those to leave out are drawn. So the expected number of draws is below
//! twice the number of classes found, and time grows with the classes of the step, not with all.
//!
//! ```
//! use fleet_kernels::{classes::sample::{bits_len, sample}, fill::Draw};
//! let mut bits = vec![0; bits_len(1000)];
//! let mut rows = [0; 20];
//! sample(&[700, 5, 700, -1], 1000, Draw::default(), &mut bits, &mut rows);
//! assert!(rows.contains(&5) && rows.contains(&700));
//! assert!(rows.is_sorted_by(|a, b| a < b));
//! ```

use crate::fill::Draw;
use fleet_base::rng::Philox;

const BITS: usize = u64::BITS as usize;
/// Draws for a class before the rest is filled in order. Half of the draws find one, unless almost
/// all classes are those of labels.
const DRAWS_MAX: usize = 64;

/// Returns the words of scratch for [`sample`] of so many classes.
pub fn bits_len(classes: usize) -> usize {
    2 * classes.div_ceil(BITS)
}

/// Writes the classes of a step in ascending order: all of `labels` (negative ones are those of
/// other ranks), and random other ones. Numbers from `classes` on, which are no classes, fill the
/// end if there are not enough.
///
/// # Panics
/// If a label is not a class, `bits` is shorter than [`bits_len`], or there are more labels than
/// places.
pub fn sample(labels: &[i64], classes: usize, draw: Draw, bits: &mut [u64], out: &mut [i64]) {
    if out.len() >= classes {
        out.iter_mut().enumerate().for_each(|(at, to)| *to = at as i64);
        return;
    }
    let (labelled, chosen) = bits.split_at_mut(classes.div_ceil(BITS));
    let chosen = &mut chosen[..classes.div_ceil(BITS)];
    labelled.fill(0);
    chosen.fill(0);
    let own = labels.iter().filter_map(|label| usize::try_from(*label).ok());
    let positives: usize = own.map(|label| usize::from(mark(labelled, label))).sum();
    assert!(positives <= out.len(), "more labels than places");
    let (wanted, free) = (out.len() - positives, classes - positives);
    let inverts = wanted > free / 2;
    draw_classes(if inverts { free - wanted } else { wanted }, classes, draw, labelled, chosen);
    let mut at = 0;
    for (index, (labelled, drawn)) in labelled.iter().zip(chosen.iter()).enumerate() {
        let drawn = if inverts { !drawn } else { *drawn };
        let mut word = (labelled | drawn) & valid_bits(classes - index * BITS);
        while word != 0 {
            out[at] = (index * BITS) as i64 + i64::from(word.trailing_zeros());
            at += 1;
            word &= word - 1;
        }
    }
    debug_assert_eq!(at, out.len(), "every place has a class");
}

/// Marks `count` random classes that are not labelled.
fn draw_classes(count: usize, classes: usize, draw: Draw, labelled: &[u64], chosen: &mut [u64]) {
    let random = Philox::new(draw.seed, draw.stream);
    let mut found = 0;
    let words = (0..).flat_map(|block| random.block(draw.offset.wrapping_add(block)));
    for word in words.take(count.saturating_mul(DRAWS_MAX)) {
        if found == count {
            return;
        }
        let class = ((u64::from(word) * classes as u64) >> 32) as usize;
        if !is_marked(labelled, class) && mark(chosen, class) {
            found += 1;
        }
    }
    for class in 0..classes {
        if found < count && !is_marked(labelled, class) && mark(chosen, class) {
            found += 1;
        }
    }
}

/// Sets a bit, and returns whether it was not set.
fn mark(bits: &mut [u64], at: usize) -> bool {
    let is_new = !is_marked(bits, at);
    bits[at / BITS] |= 1 << (at % BITS);
    is_new
}

fn is_marked(bits: &[u64], at: usize) -> bool {
    (bits[at / BITS] >> (at % BITS)) & 1 == 1
}

/// Returns a word in which the first `count` bits are set.
fn valid_bits(count: usize) -> u64 {
    if count >= BITS { u64::MAX } else { (1 << count) - 1 }
}
