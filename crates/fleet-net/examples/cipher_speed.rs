//! Lower bound on the cost of TLS: the cipher of its records, on one core, sealing and opening.
//!
//! `cargo run --release -p fleet-net --example cipher_speed`

use ring::aead::{AES_128_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use std::time::Instant;

/// Size of a full TLS record.
const RECORD_BYTES: usize = 16 << 10;
const RECORDS: usize = 1 << 16;

fn main() -> Result<(), ring::error::Unspecified> {
    for algorithm in [&AES_128_GCM, &CHACHA20_POLY1305] {
        let key = LessSafeKey::new(UnboundKey::new(algorithm, &vec![7; algorithm.key_len()])?);
        let nonce = || Nonce::assume_unique_for_key([1; 12]);
        let mut record = vec![0u8; RECORD_BYTES];
        let begun = Instant::now();
        for _ in 0..RECORDS {
            let _ = key.seal_in_place_separate_tag(nonce(), Aad::empty(), &mut record)?;
        }
        let sealed = begun.elapsed();
        key.seal_in_place_append_tag(nonce(), Aad::empty(), &mut record)?;
        let mut room = vec![0u8; record.len()];
        let begun = Instant::now();
        for _ in 0..RECORDS {
            // Opening a record overwrites it, so each round starts from a fresh copy.
            room.copy_from_slice(&record);
            key.open_in_place(nonce(), Aad::empty(), &mut room)?;
        }
        let opened = begun.elapsed();
        let rate =
            |span: std::time::Duration| (RECORD_BYTES * RECORDS) as f64 / span.as_nanos() as f64;
        println!("{algorithm:?}: {:.2} GB/s sealed, {:.2} opened", rate(sealed), rate(opened));
    }
    Ok(())
}
