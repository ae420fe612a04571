//! `c_check_batch`: fails unless all ranks of a ring have equal X. Ranks that share layers must
//! feed the same samples; otherwise they would train a mixture without an error.
//!
//! Ranks exchange a digest of each X: of its size, and of at most 4,096 of its words at equal
//! distances.

use super::{LABEL, NRANKS, RING_ID, USE_CALC_STREAM, label, nranks};
use crate::Lane;
use crate::prelude::*;
use fleet_ir::AttrSpec;

const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL, attr("names", Strs(&[]))];

/// The op `c_check_batch`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "c_check_batch", inputs: &[many("X")], outputs: &[], attrs: ATTRS },
    infer: |i| nranks(i).map(drop),
    grad: Grad::None,
    cpu: |p| {
        let ring = p.services.ring_of(p.op)?;
        let (label, count) = (label(p.op), p.inputs[0].len());
        let names = p.op.attr_strs("names").to_vec();
        Ok(Kernel::new(move |k| {
            let (own, all) = k.scratch::<u64>().split_at_mut(count);
            own.iter_mut().zip(k.inputs(0)).for_each(|(to, x)| *to = digest(x.bytes()));
            ring.all_gather(&label, view_as_mut(own), view_as_mut(all))?;
            let differs = |at: &usize| all.chunks_exact(count).any(|rank| rank[*at] != all[*at]);
            match (0..count).find(differs) {
                None => Ok(()),
                Some(at) => Err(Error::invalid("ranks that share layers feed different samples")
                    .expected("the same batch on all of them")
                    .got(format!("different '{}'", names.get(at).map_or("", String::as_str)))
                    .help("give them the samples of their copy of the model")),
            }
        })
        .scratch::<u64>(count * (1 + p.op.attr_usize("nranks"))))
    },
    traits: OpTraits {
        effect: true,
        lane: Lane::Ring,
        traffic: |c| {
            let bytes = size_of::<u64>() * c.inputs[0].len();
            Some(Traffic::copies(bytes as f64, c.ranks()))
        },
        cost: |_| Cost::default(),
        ..OpTraits::plain()
    },
};

/// Words of a tensor that its digest reads.
const WORDS_MAX: usize = 4096;
/// Odd, with bits all over: 2^64 divided by the golden ratio.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// Returns a number that differs for tensors of different sizes, and very likely for different
/// samples.
fn digest(bytes: &[u8]) -> u64 {
    let words = bytes.len().div_ceil(WORD);
    let step = words.div_ceil(WORDS_MAX).max(1);
    (0..words).step_by(step).fold(bytes.len() as u64, |digest, word| {
        let from = &bytes[word * WORD..((word + 1) * WORD).min(bytes.len())];
        let mut own = [0; WORD];
        own[..from.len()].copy_from_slice(from);
        (digest ^ u64::from_le_bytes(own)).wrapping_mul(FACTOR).rotate_left(29)
    })
}

const WORD: usize = size_of::<u64>();
