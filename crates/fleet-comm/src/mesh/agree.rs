//! Agreement: every rank verifies that all ranks are in the same call.
//!
//! In round k rank r sends its summary to rank r + 2^k and receives that of r - 2^k. After log2(n)
//! rounds every rank's claim has reached every other rank. A summary keeps the claim of the lowest
//! rank, and that of the lowest rank whose claim differs: two claims are enough to name both sides.

use super::Step;
use crate::call::{SIGNATURE_BYTES, Signature, mismatch};
use fleet_base::{Error, ErrorKind, Result};
use fleet_net::Transfer;

/// The call that a rank is in.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Claim([u8; SIGNATURE_BYTES]);

/// Marks an error in place of a kind; the rest is the text of an error.
const ERROR: u8 = 0xff;
/// Offset of the kind in a signature.
const KIND_AT: usize = 8;
const TEXT_AT: usize = 9;

impl Claim {
    pub fn call(signature: &Signature) -> Claim {
        Claim(signature.encode())
    }

    /// A claim that this rank's arguments are invalid.
    pub fn error(error: &Error) -> Claim {
        let mut bytes = [0; SIGNATURE_BYTES];
        bytes[KIND_AT] = ERROR;
        let text = error.to_string();
        let buffer = &mut bytes[TEXT_AT..];
        let mut end = text.len().min(buffer.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        buffer[..end].copy_from_slice(&text.as_bytes()[..end]);
        Claim(bytes)
    }

    /// A claim without an error, for rounds that only check for errors.
    pub fn ok() -> Claim {
        Claim([0; SIGNATURE_BYTES])
    }

    fn error_text(&self) -> Option<String> {
        (self.0[KIND_AT] == ERROR).then(|| {
            let text = &self.0[TEXT_AT..];
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            String::from_utf8_lossy(&text[..end]).into_owned()
        })
    }
}

/// A summary of claims: that of the lowest rank, and that of the lowest rank that differs from it.
#[derive(Clone, Copy)]
struct Summary {
    first: (u32, Claim),
    other: Option<(u32, Claim)>,
}

const ENTRY_BYTES: usize = 4 + SIGNATURE_BYTES;
const SUMMARY_BYTES: usize = 1 + 2 * ENTRY_BYTES;

impl Summary {
    fn encode(&self) -> [u8; SUMMARY_BYTES] {
        let mut bytes = [0; SUMMARY_BYTES];
        bytes[0] = u8::from(self.other.is_some());
        for (index, (rank, claim)) in [Some(self.first), self.other].iter().flatten().enumerate() {
            let entry = &mut bytes[1 + index * ENTRY_BYTES..][..ENTRY_BYTES];
            entry[..4].copy_from_slice(&rank.to_le_bytes());
            entry[4..].copy_from_slice(&claim.0);
        }
        bytes
    }

    fn decode(bytes: &[u8; SUMMARY_BYTES]) -> Summary {
        let entry = |index: usize| {
            let entry = &bytes[1 + index * ENTRY_BYTES..][..ENTRY_BYTES];
            let (mut rank, mut claim) = ([0; 4], [0; SIGNATURE_BYTES]);
            rank.copy_from_slice(&entry[..4]);
            claim.copy_from_slice(&entry[4..]);
            (u32::from_le_bytes(rank), Claim(claim))
        };
        Summary { first: entry(0), other: (bytes[0] != 0).then(|| entry(1)) }
    }

    fn merge(&self, more: &Summary) -> Summary {
        let all = [Some(self.first), self.other, Some(more.first), more.other];
        let lowest = |skip: Option<&Claim>| {
            all.iter()
                .flatten()
                .filter(|(_, claim)| skip.is_none_or(|skip| skip != claim))
                .min_by_key(|(rank, _)| *rank)
                .copied()
        };
        let first = lowest(None).unwrap_or(self.first);
        Summary { first, other: lowest(Some(&first.1)) }
    }
}

impl Step<'_> {
    /// Returns `Ok` when every rank has made the same claim, and an error if two claims differ.
    pub(crate) fn agree(&self, claim: &Claim) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let mut summary = Summary { first: (rank as u32, *claim), other: None };
        let mut reach = 1;
        while reach < size {
            let own = summary.encode();
            let mut theirs = [0; SUMMARY_BYTES];
            self.mesh.transfer(
                &mut [
                    Transfer::Send { to: (rank + reach) % size, data: &own },
                    Transfer::Recv { from: (rank + size - reach) % size, into: &mut theirs },
                ],
                self.limits,
            )?;
            summary = summary.merge(&Summary::decode(&theirs));
            reach *= 2;
            self.joined.set(reach.min(size));
        }
        match summary.other {
            None => Ok(()),
            Some(other) => Err(self.disagreement(summary.first, other)),
        }
    }

    fn disagreement(&self, a: (u32, Claim), b: (u32, Claim)) -> Error {
        let who = |rank: u32| match (rank as usize) < self.size() {
            true => self.mesh.member(rank as usize).to_string(),
            false => format!("rank {rank} (which is not in the group)"),
        };
        for (rank, claim) in [a, b] {
            if let Some(text) = claim.error_text() {
                return Error::new(ErrorKind::Invalid, text).at(who(rank));
            }
        }
        match (Signature::decode(&a.1.0), Signature::decode(&b.1.0)) {
            (Some(x), Some(y)) => mismatch(self.group, (&who(a.0), &x), (&who(b.0), &y)),
            _ => Error::internal(format!("{} or {} sent an invalid signature", who(a.0), who(b.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_claims_are_enough() {
        let claim = |byte| Claim([byte; SIGNATURE_BYTES]);
        let one = |rank, byte| Summary { first: (rank, claim(byte)), other: None };
        let summary = one(5, 1).merge(&one(2, 2)).merge(&one(1, 1)).merge(&one(7, 3));
        let summary = Summary::decode(&summary.encode());
        assert!(summary.first == (1, claim(1)) && summary.other == Some((2, claim(2))));
        assert!(one(3, 1).merge(&one(0, 1)).other.is_none());
        let text = "x".repeat(500);
        assert_eq!(
            Claim::error(&Error::invalid(&text)).error_text(),
            Some(text[..119].to_string())
        );
    }
}
