//! Properties of random strategies. A failure prints its seed.

use fleet_base::rng::Sequence;
use fleet_strategy::{DistributedStrategy, Item, Kind, Reflect, Scalar, StrategyForm, Value};

/// Number of strategies for each property.
const SEEDS: u64 = 200;

fn random(seed: u64) -> DistributedStrategy {
    let mut strategy = DistributedStrategy::new();
    let mut dice = Sequence::new(seed, 0);
    // Some have all fields, most only a few.
    let one_in = [1, 2, 5, 20][dice.below(4) as usize];
    fill(&mut strategy, one_in, &mut dice);
    strategy
}

fn fill(message: &mut dyn Reflect, one_in: u64, dice: &mut Sequence) {
    for field in message.shape().fields {
        if dice.below(one_in) > 0 {
            continue;
        }
        let count = if field.repeated { 1 + dice.below(3) } else { 1 };
        for _ in 0..count {
            let slot = message.slot_mut(field.number);
            match slot.open() {
                Some(nested) => fill(nested, one_in, dice),
                None => assert!(slot.put(scalar(field.kind, dice))),
            }
        }
    }
}

fn scalar(kind: Kind, dice: &mut Sequence) -> Scalar {
    const TEXTS: [&str; 8] = [
        "",
        "x",
        "a b",
        "quote\" ' \\",
        "line\nbreak\ttab\r",
        "ünïcode 日本 😀",
        "\u{1}\u{7f}",
        "#{}<>",
    ];
    let bits = dice.next_u64();
    match kind {
        Kind::Bool => Scalar::Bool(bits & 1 == 1),
        Kind::Int32 => {
            Scalar::Int32([bits as i32, i32::MIN, i32::MAX, 0][(bits >> 60) as usize % 4])
        }
        Kind::Uint32 => Scalar::Uint32([bits as u32, u32::MAX, 0][(bits >> 60) as usize % 3]),
        Kind::Uint64 => Scalar::Uint64([bits, u64::MAX, 0][(bits >> 60) as usize % 3]),
        // NaN is not equal to itself, so it has its own test.
        Kind::Float => {
            let value = f32::from_bits(bits as u32);
            Scalar::Float(if value.is_nan() { -0.0 } else { value })
        }
        Kind::Double => {
            let value = f64::from_bits(bits);
            Scalar::Double(if value.is_nan() { f64::NEG_INFINITY } else { value })
        }
        Kind::Text => Scalar::Text(TEXTS[bits as usize % TEXTS.len()].into()),
        Kind::Enum(shape) => Scalar::Int32(shape.values[bits as usize % shape.values.len()].1),
        Kind::Message(_) => unreachable!("messages are opened"),
    }
}

fn read(bytes: &[u8], form: StrategyForm) -> DistributedStrategy {
    let mut strategy = DistributedStrategy::new();
    let result = strategy.merge_bytes(bytes, form);
    result.unwrap_or_else(|error| panic!("{error}\n{}", String::from_utf8_lossy(bytes)));
    strategy
}

/// Values and presence survive a round trip in every form.
#[test]
fn what_is_written_is_read() {
    for seed in 0..SEEDS {
        let strategy = random(seed);
        for form in StrategyForm::ALL {
            let back = read(&strategy.to_bytes(form), form);
            assert_eq!(back, strategy, "seed {seed}, {form:?}");
            assert_eq!(back.to_prototxt(), strategy.to_prototxt(), "seed {seed}, {form:?}");
        }
    }
    for form in StrategyForm::ALL {
        let strategy = DistributedStrategy::new().with_fuse_grad_size_in_TFLOPS(f32::NAN);
        assert!(read(&strategy.to_bytes(form), form).fuse_grad_size_in_TFLOPS().is_nan());
        assert_eq!(
            read(&DistributedStrategy::new().to_bytes(form), form),
            DistributedStrategy::new()
        );
    }
}

/// The second file's scalars win, lists are concatenated, and messages merge, equally in every
/// form.
#[test]
fn merging_is_the_same_in_every_form() {
    for seed in 0..SEEDS {
        let (first, second) = (random(seed), random(seed + SEEDS));
        let merged = |form| {
            let mut merged = first.clone();
            merged.merge_bytes(&second.to_bytes(form), form).unwrap();
            merged
        };
        let expected = merged(StrategyForm::Binary);
        let joined = [first.to_bytes(StrategyForm::Binary), second.to_bytes(StrategyForm::Binary)];
        assert_eq!(read(&joined.concat(), StrategyForm::Binary), expected, "seed {seed}");
        for form in StrategyForm::ALL {
            assert_eq!(merged(form), expected, "seed {seed}, {form:?}");
        }
        merged_rightly(&first, &second, &expected);
    }
}

fn merged_rightly(first: &dyn Reflect, second: &dyn Reflect, merged: &dyn Reflect) {
    for field in merged.shape().fields {
        let [one, two, both] = [first, second, merged].map(|message| message.slot(field.number));
        let expected =
            if field.repeated { one.count() + two.count() } else { one.count().max(two.count()) };
        assert_eq!(both.count(), expected, "{}", field.name);
        if field.repeated || both.count() == 0 {
            continue;
        }
        match (one.count(), two.count(), both.item(0)) {
            (1, 1, Item::Message(both)) => {
                if let (Item::Message(one), Item::Message(two)) = (one.item(0), two.item(0)) {
                    merged_rightly(one, two, both);
                }
            }
            (_, two_count, both) => {
                let from = if two_count == 1 { two } else { one };
                assert_eq!(Value::of(field.kind, both), Value::of(field.kind, from.item(0)));
            }
        }
    }
}

/// Values from `get` are valid for `set`.
#[test]
fn what_is_got_can_be_set() {
    for seed in 0..SEEDS {
        let strategy = random(seed);
        for field in strategy.shape().fields {
            let special = ["a_sync", "last_comm_group_size_MB"].contains(&field.name);
            if special || strategy.slot(field.number).count() == 0 {
                continue;
            }
            let value = strategy.get(field.name).unwrap();
            let mut other = DistributedStrategy::new();
            other
                .set_strictly(field.name, value.clone())
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            assert_eq!(other.get(field.name).unwrap(), value, "seed {seed}, {}", field.name);
        }
    }
}

/// Any file is read or rejected; a strategy that was read can be checked, shown and written.
#[test]
fn changed_bytes_never_panic() {
    for seed in 0..SEEDS {
        let strategy = random(seed);
        let mut dice = Sequence::new(seed, 1);
        for form in StrategyForm::ALL {
            let mut bytes = strategy.to_bytes(form);
            for _ in 0..20 {
                change(&mut bytes, &mut dice);
                let mut other = DistributedStrategy::new();
                if other.merge_bytes(&bytes, form).is_ok() {
                    assert!(other.overview().ends_with("+\n"));
                    other.to_prototxt();
                }
                if let Ok(found) = fleet_strategy::inspect(&bytes, form) {
                    found
                        .problems
                        .iter()
                        .for_each(|problem| assert!(!problem.to_string().is_empty()));
                }
            }
        }
    }
}

/// Changes, removes or inserts a byte, or inserts a token of one of the forms.
fn change(bytes: &mut Vec<u8>, dice: &mut Sequence) {
    const PIECES: [&str; 14] =
        ["{", "}", "[", "]", "<", ">", "\"", "\\", "\n", "#", "-inf", "0x", "\\u12", "[[a]]\n"];
    let at = dice.below(bytes.len() as u64 + 1) as usize;
    match dice.below(4) {
        0 if at < bytes.len() => bytes[at] = dice.next_u64() as u8,
        1 if at < bytes.len() => {
            bytes.remove(at);
        }
        2 => bytes.truncate(at),
        _ => {
            let piece = PIECES[dice.below(PIECES.len() as u64) as usize];
            bytes.splice(at..at, piece.bytes());
        }
    }
}

/// Nesting is limited by a constant, not by the stack.
#[test]
fn deep_files_are_refused() {
    let refused = |text: String, form| {
        let mut strategy = DistributedStrategy::new();
        let error = strategy.merge_bytes(text.as_bytes(), form).unwrap_err().to_string();
        assert!(error.len() < 100_000, "{}", error.len());
    };
    refused("amp_configs {".repeat(100_000), StrategyForm::Prototxt);
    refused("a: [".repeat(100_000), StrategyForm::Prototxt);
    refused("[".repeat(100_000), StrategyForm::Json);
    refused("{\"a\":".repeat(100_000), StrategyForm::Json);
    refused(format!("a = {}", "[".repeat(100_000)), StrategyForm::Toml);
}
