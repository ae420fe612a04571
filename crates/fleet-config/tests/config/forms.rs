//! Text, binary, JSON, TOML: comparison with protobuf (recorded with protobuf 4.25), and round
//! trips that preserve presence.

use fleet_config::{DistributedStrategy, StrategyForm};

const MESSAGES: &str = include_str!("../vectors/messages-protobuf.txt");
const TEXTS: &str = include_str!("../vectors/text-protobuf.txt");

fn hex(text: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).expect("hexadecimal");
    (0..text.len()).step_by(2).map(digit).collect()
}

fn read(bytes: &[u8], form: StrategyForm) -> fleet_base::Result<DistributedStrategy> {
    let mut strategy = DistributedStrategy::new();
    strategy.merge_bytes(bytes, form)?;
    Ok(strategy)
}

/// The recorded messages: bytes and text.
fn recorded() -> Vec<(Vec<u8>, &'static str)> {
    let parts = MESSAGES.split("#### ").skip(1);
    let messages = parts.map(|part| part.split_once('\n').expect("bytes, then the text"));
    messages.map(|(bytes, text)| (hex(bytes), text)).collect()
}

#[test]
fn text_and_bytes_are_protobufs() {
    for (bytes, text) in recorded() {
        let strategy = read(&bytes, StrategyForm::Binary).unwrap();
        let written = strategy.to_prototxt();
        for (written, recorded) in written.lines().zip(text.lines()) {
            assert_eq!(written, recorded);
        }
        assert_eq!(written, text);
        assert_eq!(strategy.to_bytes(StrategyForm::Binary), bytes);
        assert_eq!(DistributedStrategy::parse(text).unwrap(), strategy);
    }
}

#[test]
fn every_form_comes_back_as_it_was() {
    for (bytes, _) in recorded() {
        let strategy = read(&bytes, StrategyForm::Binary).unwrap();
        for form in StrategyForm::ALL {
            let written = strategy.to_bytes(form);
            let back = read(&written, form)
                .unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(&written)));
            assert_eq!(back.to_prototxt(), strategy.to_prototxt(), "{form:?}");
            assert_eq!(back.to_bytes(form), written);
        }
        let json = strategy.to_bytes(StrategyForm::Json);
        serde_json::from_slice::<serde_json::Value>(&json).expect("others read it too");
    }
}

#[test]
fn texts_are_taken_as_protobuf_takes_them() {
    for line in TEXTS.lines() {
        let (text, result) = line.rsplit_once(' ').expect("text and result");
        let text: String = serde_json::from_str(text).expect("the text as JSON");
        let found = read(text.as_bytes(), StrategyForm::Prototxt);
        match (result, found) {
            ("refused", Err(_)) => {}
            ("empty", Ok(strategy)) => assert!(strategy.is_empty(), "{text}"),
            ("refused", Ok(strategy)) => panic!("{text} was read as\n{}", strategy.to_prototxt()),
            (bytes, Ok(strategy)) => {
                let expected = read(&hex(bytes), StrategyForm::Binary).unwrap();
                assert_eq!(strategy.to_prototxt(), expected.to_prototxt(), "{text}");
            }
            (_, Err(error)) => panic!("{text}: {error}"),
        }
    }
}
