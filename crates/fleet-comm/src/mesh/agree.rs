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

/// Marks a refusal in place of a kind; the rest is the text of an error.
const REFUSAL: u8 = 0xff;
/// Offset of the kind in a signature.
const KIND_AT: usize = 8;
const TEXT_AT: usize = 9;

impl Claim {
    pub fn call(signature: &Signature) -> Claim {
        Claim(signature.encode())
    }

    /// A claim that this rank's arguments are invalid.
    pub fn refusal(error: &Error) -> Claim {
        let mut bytes = [0; SIGNATURE_BYTES];
        bytes[KIND_AT] = REFUSAL;
        let text = error.to_string();
        let room = &mut bytes[TEXT_AT..];
        let mut end = text.len().min(room.len());
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        room[..end].copy_from_slice(&text.as_bytes()[..end]);
        Claim(bytes)
    }

    /// A claim without an error, for rounds that only check for errors.
    pub fn fine() -> Claim {
        Claim([0; SIGNATURE_BYTES])
    }

    fn refused(&self) -> Option<String> {
        (self.0[KIND_AT] == REFUSAL).then(|| {
            let text = &self.0[TEXT_AT..];
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            String::from_utf8_lossy(&text[..end]).into_owned()
        })
    }
}

/// A summary of claims: that of the lowest rank, and that of the lowest rank that differs from it.
#[derive(Clone, Copy)]
struct Heard {
    first: (u32, Claim),
    other: Option<(u32, Claim)>,
}

const ENTRY_BYTES: usize = 4 + SIGNATURE_BYTES;
const HEARD_BYTES: usize = 1 + 2 * ENTRY_BYTES;

impl Heard {
    fn encode(&self) -> [u8; HEARD_BYTES] {
        let mut bytes = [0; HEARD_BYTES];
        bytes[0] = u8::from(self.other.is_some());
        for (index, (rank, claim)) in [Some(self.first), self.other].iter().flatten().enumerate() {
            let entry = &mut bytes[1 + index * ENTRY_BYTES..][..ENTRY_BYTES];
            entry[..4].copy_from_slice(&rank.to_le_bytes());
            entry[4..].copy_from_slice(&claim.0);
        }
        bytes
    }

    fn decode(bytes: &[u8; HEARD_BYTES]) -> Heard {
        let entry = |index: usize| {
            let entry = &bytes[1 + index * ENTRY_BYTES..][..ENTRY_BYTES];
            let (mut rank, mut claim) = ([0; 4], [0; SIGNATURE_BYTES]);
            rank.copy_from_slice(&entry[..4]);
            claim.copy_from_slice(&entry[4..]);
            (u32::from_le_bytes(rank), Claim(claim))
        };
        Heard { first: entry(0), other: (bytes[0] != 0).then(|| entry(1)) }
    }

    fn merge(&self, more: &Heard) -> Heard {
        let all = [Some(self.first), self.other, Some(more.first), more.other];
        let lowest = |skip: Option<&Claim>| {
            all.iter()
                .flatten()
                .filter(|(_, claim)| skip.is_none_or(|skip| skip != claim))
                .min_by_key(|(rank, _)| *rank)
                .copied()
        };
        let first = lowest(None).unwrap_or(self.first);
        Heard { first, other: lowest(Some(&first.1)) }
    }
}

impl Step<'_> {
    /// Returns `Ok` when every rank has made the same claim, and an error if two claims differ.
    pub(crate) fn agree(&self, claim: &Claim) -> Result<()> {
        let (rank, size) = (self.rank(), self.size());
        let mut heard = Heard { first: (rank as u32, *claim), other: None };
        let mut reach = 1;
        while reach < size {
            let own = heard.encode();
            let mut theirs = [0; HEARD_BYTES];
            self.mesh.transfer(
                &mut [
                    Transfer::Send { to: (rank + reach) % size, data: &own },
                    Transfer::Recv { from: (rank + size - reach) % size, into: &mut theirs },
                ],
                self.limits,
            )?;
            heard = heard.merge(&Heard::decode(&theirs));
            reach *= 2;
            self.joined.set(reach.min(size));
        }
        match heard.other {
            None => Ok(()),
            Some(other) => Err(self.disagreement(heard.first, other)),
        }
    }

    fn disagreement(&self, a: (u32, Claim), b: (u32, Claim)) -> Error {
        let who = |rank: u32| match (rank as usize) < self.size() {
            true => self.mesh.member(rank as usize).to_string(),
            false => format!("rank {rank} (which is not in the group)"),
        };
        for (rank, claim) in [a, b] {
            if let Some(text) = claim.refused() {
                return Error::new(ErrorKind::Invalid, text).at(who(rank));
            }
        }
        match (Signature::decode(&a.1.0), Signature::decode(&b.1.0)) {
            (Some(x), Some(y)) => mismatch(self.group, (&who(a.0), &x), (&who(b.0), &y)),
            _ => Error::internal(format!("{} or {} sent no signature", who(a.0), who(b.0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_claims_are_enough() {
        let claim = |byte| Claim([byte; SIGNATURE_BYTES]);
        let one = |rank, byte| Heard { first: (rank, claim(byte)), other: None };
        let heard = one(5, 1).merge(&one(2, 2)).merge(&one(1, 1)).merge(&one(7, 3));
        let heard = Heard::decode(&heard.encode());
        assert!(heard.first == (1, claim(1)) && heard.other == Some((2, claim(2))));
        assert!(one(3, 1).merge(&one(0, 1)).other.is_none());
        let text = "x".repeat(500);
        assert_eq!(Claim::refusal(&Error::invalid(&text)).refused(), Some(text[..119].to_string()));
    }
}
