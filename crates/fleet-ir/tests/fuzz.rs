//! For any bytes, the readers return an error or a program that prints and reads back. They never
//! panic, and never return a program that later code cannot handle. Seeds are fixed, so that a
//! failure can be reproduced; the message gives the number of the case.

mod common;

use common::*;
use fleet_base::rng::Sequence;
use fleet_ir::Program;
use std::collections::HashSet;

const CASES: u64 = 6000;

#[test]
fn mutated_text_is_read_or_refused() {
    let rich = rich().to_string();
    let tokens = [
        "block0",
        "block1",
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        ":",
        ",",
        "=",
        "!",
        "%",
        "%x",
        "\"",
        "\\",
        "-1",
        "1e999",
        "nan",
        "param",
        "data",
        "sub_block",
        "role",
        "#",
        "\n",
        "18446744073709551616",
        "é",
        "\u{0}",
        "mul",
        "cond",
        "at",
        "in",
    ];
    let mut accepted = 0;
    for case in 0..CASES {
        let mut rng = Sequence::new(3, case);
        let source = if case % 4 == 0 { random(&mut rng).to_string() } else { rich.clone() };
        let mut text: Vec<char> = source.chars().collect();
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(text.len() as u64 + 1) as usize;
            let end = (at + rng.below(12) as usize).min(text.len());
            match rng.below(5) {
                0 => drop(text.drain(at..end)),
                1 => {
                    let token = tokens[rng.below(tokens.len() as u64) as usize];
                    drop(text.splice(at..at, token.chars()));
                }
                2 => {
                    let copy = text[at..end].to_vec();
                    let to = rng.below(text.len() as u64 + 1) as usize;
                    drop(text.splice(to..to, copy));
                }
                3 => text.truncate(at),
                _ if at < text.len() => {
                    text[at] = char::from_u32(rng.below(128) as u32).unwrap_or(' ');
                }
                _ => {}
            }
        }
        let text: String = text.into_iter().collect();
        accepted += u64::from(check_reader(text.as_bytes(), case));
    }
    // If this fails, the mutations are too wild to reach the later stages.
    assert!(accepted > CASES / 50, "only {accepted} of {CASES} mutants were read");
}

#[test]
fn mutated_protobuf_is_read_or_refused() {
    let rich = rich().to_bytes();
    let mut accepted = 0;
    for case in 0..CASES {
        let mut rng = Sequence::new(4, case);
        let mut bytes = if case % 4 == 0 { random(&mut rng).to_bytes() } else { rich.clone() };
        for _ in 0..1 + rng.below(4) {
            let at = rng.below(bytes.len() as u64 + 1) as usize;
            let end = (at + rng.below(12) as usize).min(bytes.len());
            match rng.below(6) {
                0 => drop(bytes.drain(at..end)),
                1 => bytes.truncate(at),
                2 => {
                    let copy = bytes[at..end].to_vec();
                    drop(bytes.splice(at..at, copy));
                }
                3 => bytes.insert(at, rng.below(256) as u8),
                4 if at < bytes.len() => bytes[at] = rng.below(256) as u8,
                _ if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
                _ => {}
            }
        }
        accepted += u64::from(check_reader(&bytes, case));
    }
    assert!(accepted > CASES / 50, "only {accepted} of {CASES} mutants were read");
}

#[test]
fn noise_is_refused() {
    for case in 0..2000 {
        let mut rng = Sequence::new(5, case);
        let mut bytes: Vec<u8> = (0..rng.below(64)).map(|_| rng.below(256) as u8).collect();
        if case % 2 == 0 {
            bytes.splice(0..0, [0x08, 0x01]);
        }
        check_reader(&bytes, case);
    }
}

/// Reads a program and runs every operation on the result. Returns whether it was accepted.
fn check_reader(bytes: &[u8], case: u64) -> bool {
    let program = match Program::read(bytes, &TestDialect) {
        Ok(program) => program,
        Err(error) => {
            let text = error.to_string();
            assert!(!text.is_empty() && text.len() < 8000, "case {case}: {text}");
            return false;
        }
    };
    let text = program.to_string();
    let read =
        Program::parse(&text, &TestDialect).unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
    assert_eq!(read.to_string(), text, "case {case}");
    let read = Program::from_bytes(&program.to_bytes(), &TestDialect)
        .unwrap_or_else(|e| panic!("case {case}: {e}\n{text}"));
    assert_eq!(read.to_string(), text, "case {case}");
    let _ = program.errors();
    let _ = program.fingerprint();
    let _ = program.clone_for_test();
    let targets: Vec<_> = program.vars().map(|(id, _)| id).take(2).collect();
    let _ = program.prune(&targets).to_string();
    let mut reads = HashSet::new();
    for (id, _) in program.root_ops() {
        program.reads_of(id, &mut reads);
    }
    true
}
