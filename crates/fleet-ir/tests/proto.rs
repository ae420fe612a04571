//! The protobuf form: round trips, errors, and that the messages match their documentation.

mod common;

use common::*;
use fleet_base::rng::Sequence;
use fleet_ir::Program;
use std::collections::BTreeMap;

#[test]
fn everything_comes_back() {
    let program = rich();
    let bytes = program.to_bytes();
    assert_eq!(Program::from_bytes(&bytes, &TestDialect).expect("a valid program"), program);
    assert_eq!(Program::read(&bytes, &TestDialect).expect("a valid program"), program);
    assert_eq!(Program::read(program.to_string().as_bytes(), &TestDialect).unwrap(), program);
    assert!(bytes.len() < program.to_string().len(), "the binary form is not smaller");
}

#[test]
fn random_programs_come_back() {
    for case in 0..2000 {
        let program = random(&mut Sequence::new(2, case));
        let read = Program::from_bytes(&program.to_bytes(), &TestDialect);
        let read = read.unwrap_or_else(|e| panic!("case {case}: {e}\n{program}"));
        assert_eq!(read.to_string(), program.to_string(), "case {case}");
    }
}

#[test]
fn broken_bytes_are_refused() {
    let check = |bytes: &[u8], part: &str| {
        let error = Program::read(bytes, &TestDialect).expect_err("broken").to_string();
        assert!(error.contains(part), "{bytes:?}: '{part}' is not in: {error}");
    };
    check(b"", "expected 'fleet'");
    check(&[0xff, 0xfe], "not a program");
    check(&[0x08], "malformed protobuf program");
    check(&[0x08, 9], "unsupported version of the binary format: expected 1, got 9");
    let beyond_32_bits = [0x08, 0x81, 0x80, 0x80, 0x80, 0x10];
    check(&beyond_32_bits, "unsupported version of the binary format: expected 1, got 4294967297");
    let largest = [[0x08].as_slice(), &[0xff; 9], &[1]].concat();
    check(&largest, "binary format: expected 1, got 18446744073709551615");
    check(&[0x08, 1], "the program has no blocks");
    // The root block with a parent; then a second block without a parent.
    check(&[0x08, 1, 0x22, 2, 0x08, 0], "does not precede it");
    check(&[0x08, 1, 0x22, 0, 0x22, 0], "block without a parent");
    // A variable without a name; then one of an unknown type.
    check(&[0x08, 1, 0x22, 4, 0x12, 2, 0x10, 9], "empty variable name");
    check(&[0x08, 1, 0x22, 5, 0x12, 3, 0x0a, 1, b'a'], "unknown element type");
    // A list that declares more bytes than follow.
    check(&[0x08, 1, 0x22, 0xff, 0xff, 0xff, 0xff, 0x0f], "malformed protobuf program");
    // An op that is not in the dialect.
    check(
        &[0x08, 1, 0x22, 6, 0x1a, 4, 0x0a, 2, b'm', b'u'],
        "unknown op 'mu'; did you mean 'mul'?",
    );
    let bytes = rich().to_bytes();
    for end in 0..bytes.len() {
        // A cut between two blocks leaves a program with fewer blocks, which its ops refer to.
        assert!(Program::read(&bytes[..end], &TestDialect).is_err(), "cut at {end}");
    }
}

/// (message, field number) -> label, type, name; enums with values as fields.
type Schema = BTreeMap<(String, u32), (String, String, String)>;

#[test]
fn the_documented_messages_are_the_written_ones() {
    let documented = documented(include_str!("../proto/program.proto"));
    let written = written(include_str!("../src/proto.rs"));
    assert!(documented.len() > 50, "{documented:#?}");
    assert_eq!(documented, written);
}

/// Reads the schema from `program.proto`.
fn documented(source: &str) -> Schema {
    let mut schema = Schema::new();
    let mut messages = Vec::new();
    for line in source.lines().map(|line| line.split("//").next().unwrap_or("").trim()) {
        let words: Vec<&str> = line.trim_end_matches([';', '{']).split_whitespace().collect();
        match words[..] {
            ["message" | "enum", name] => messages.push(name),
            ["oneof", _] => messages.push(messages[messages.len() - 1]),
            ["}"] => drop(messages.pop()),
            [name, "=", number] if !messages.is_empty() => {
                insert(&mut schema, messages[0], number, "", "", name);
            }
            [ty, name, "=", number] => insert(&mut schema, messages[0], number, "", ty, name),
            [label, ty, name, "=", number] => {
                insert(&mut schema, messages[0], number, label, ty, name);
            }
            _ => {}
        }
    }
    schema
}

/// Reads the schema from the derive attributes in `proto.rs`.
fn written(source: &str) -> Schema {
    let mut schema = Schema::new();
    let lines: Vec<&str> = source.lines().map(str::trim).collect();
    let start = lines.iter().position(|line| *line == "mod message {").expect("the messages");
    // The fields of a oneof belong to the message that contains it.
    let owner = |name: &str| match name {
        "Regularizer" => "Param".to_string(),
        "Value" => "Attr".to_string(),
        other => other.to_string(),
    };
    let mut message = String::new();
    for (index, line) in lines.iter().enumerate().skip(start) {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let ["pub", "struct" | "enum", name, ..] = words[..] {
            message = owner(name);
        } else if let [name, "=", number] = words[..] {
            let name =
                if name == "DtypeUnspecified" { "DTYPE_UNSPECIFIED".into() } else { upper(name) };
            insert(&mut schema, &message, number.trim_end_matches(','), "", "", &name);
        } else if let Some(field) =
            line.strip_prefix("#[prost(").and_then(|it| it.strip_suffix(")]"))
            && let Some((kind, tag)) = field.split_once(", tag = ")
        {
            let next = lines[index + 1].trim_start_matches("pub ");
            let name = next.split([':', '(']).next().unwrap_or_default();
            let inner = next.rsplit(['<', '(', ' ']).next().unwrap_or_default();
            let inner = inner.trim_end_matches(['>', ')', ',']);
            let mut parts = kind.split(", ");
            let ty = match parts.next() {
                Some("message") => inner.to_string(),
                Some(ty) => ty.trim_start_matches("enumeration = ").trim_matches('"').to_string(),
                None => String::new(),
            };
            let label = parts.next().unwrap_or_default();
            insert(&mut schema, &message, tag.trim_matches('"'), label, &ty, &lower(name));
        }
    }
    schema
}

fn insert(schema: &mut Schema, message: &str, number: &str, label: &str, ty: &str, name: &str) {
    let number = number.parse().expect("a number of a field");
    let entry = (label.to_string(), ty.to_string(), name.to_string());
    let before = schema.insert((message.to_string(), number), entry);
    assert_eq!(before, None, "duplicate field {number} of {message}");
}

/// Converts `IntValue` to `int_value`; leaves names of fields as they are.
fn lower(name: &str) -> String {
    let mut out = String::new();
    for (index, c) in name.chars().enumerate() {
        if c.is_uppercase() && index > 0 {
            out.push('_');
        }
        out.extend(c.to_lowercase());
    }
    out
}

/// Converts `SparseRows` to `SPARSE_ROWS`.
fn upper(name: &str) -> String {
    lower(name).to_uppercase()
}
