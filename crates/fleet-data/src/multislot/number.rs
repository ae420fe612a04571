//! Parses numbers from text, eight bytes at a time.
//!
//! The length and the value of a run of digits are computed in one 64-bit word, without a branch
//! per digit. The first byte that is not a digit gives the length. A shift moves the digits to the
//! word's upper end, and three multiplications combine them in pairs.
//!
//! Floats of up to 19 digits take one division in `f64`, which is correctly rounded, and a second
//! rounding to `f32`. The second rounding can be wrong only if the quotient lies exactly half-way
//! between two floats. In that case, and for longer numbers and exponents, the standard library's
//! parser decides.

/// Parses the digits at `at`; returns their value and their end. Returns `None` if there is no
/// digit, or if the value exceeds `u64::MAX`.
#[inline(always)]
pub fn unsigned(text: &[u8], at: usize) -> Option<(u64, usize)> {
    let (value, count) = digit_run(load(text, at));
    if count < 8 {
        return if count == 0 { None } else { Some((value, at + count)) };
    }
    more_digits(text, at + 8, value)
}

/// Like [`unsigned`], with a sign. Ids of 2^63 and more wrap to negative numbers with the same
/// bits.
#[inline(always)]
pub fn integer(text: &[u8], at: usize) -> Option<(i64, usize)> {
    if text.get(at) == Some(&b'-') {
        let (value, end) = unsigned(text, at + 1)?;
        return if value <= 1 << 63 { Some(((value as i64).wrapping_neg(), end)) } else { None };
    }
    unsigned(text, at).map(|(value, end)| (value as i64, end))
}

/// Parses a finite float at `at`, correctly rounded; returns it and its end.
#[inline(always)]
pub fn float(text: &[u8], at: usize) -> Option<(f32, usize)> {
    // Fast path for "0.25" and the like, in one word: a digit, a point, at most five digits, and a
    // byte that ends the number.
    let word = load(text, at);
    let first = (word & 0xFF).wrapping_sub(u64::from(b'0'));
    if first <= 9 && word & 0xFF00 == POINT {
        let (fraction, count) = digit_run(word >> 16);
        if (1..=5).contains(&count) && (word >> (16 + 8 * count)) & 0xDF != u64::from(b'E') {
            // A quotient of an integer below 2^24 and a power of ten that is exact in `f32`: one
            // correctly rounded division.
            let mantissa = first * TEN[count] + fraction;
            return Some((mantissa as f32 / TEN[count] as f32, at + 2 + count));
        }
    }
    general(text, at)
}

/// Parses a word that is an integer as a whole.
pub fn whole_integer(word: &[u8]) -> Option<i64> {
    integer(word, 0).filter(|(_, end)| *end == word.len()).map(|it| it.0)
}

/// Parses a word that is a finite float as a whole.
pub fn whole_float(word: &[u8]) -> Option<f32> {
    float(word, 0).filter(|(_, end)| *end == word.len()).map(|it| it.0)
}

#[inline(never)]
fn general(text: &[u8], at: usize) -> Option<(f32, usize)> {
    // Up to seven bytes with a point, such as "83.427", in one word, as in `float`.
    let word = load(text, at);
    let (whole, count) = digit_run(word);
    if (1..=5).contains(&count) && (word >> (8 * count)) & 0xFF == POINT >> 8 {
        let (fraction, decimals) = digit_run(word >> (8 * (count + 1)));
        let end = count + 1 + decimals;
        if decimals > 0 && end < 8 && (word >> (8 * end)) & 0xDF != u64::from(b'E') {
            let mantissa = whole * TEN[decimals] + fraction;
            return Some((mantissa as f32 / TEN[decimals] as f32, at + end));
        }
    }
    longer(text, at)
}

fn longer(text: &[u8], at: usize) -> Option<(f32, usize)> {
    let negative = text.get(at) == Some(&b'-');
    let start = at + usize::from(negative);
    let (mut mantissa, whole) = digit_run(load(text, start));
    let mut end = start + whole;
    let mut decimals = 0;
    if whole == 8 {
        return slow(text, at);
    }
    if text.get(end) == Some(&b'.') {
        end += 1;
        loop {
            let (value, count) = digit_run(load(text, end));
            mantissa = mantissa.wrapping_mul(TEN[count]).wrapping_add(value);
            decimals += count;
            end += count;
            if count < 8 || decimals > DECIMALS_MAX {
                break;
            }
        }
    }
    let digits = whole + decimals;
    let next = text.get(end).copied().unwrap_or(b' ');
    // Exponents, "inf", too many digits or none take the slow path.
    if digits == 0 || digits > DIGITS_MAX || mantissa > MANTISSA_MAX || next | 0x20 == b'e' {
        return slow(text, at);
    }
    let exact = mantissa as f64 / POWERS[decimals];
    let bits = exact.to_bits();
    let half_way = bits & HALF_MASK == HALF;
    if half_way || (exact < NORMAL_MIN && mantissa != 0) {
        return slow(text, at);
    }
    let value = exact as f32;
    Some((if negative { -value } else { value }, end))
}

/// Returns the value and the length of the digits at the front of a word, at most eight.
#[inline(always)]
fn digit_run(word: u64) -> (u64, usize) {
    // A byte is a digit if its upper half is 3, both before and after adding 6. A carry out of a
    // byte only affects bytes after one that is already not a digit.
    let upper = (word & UPPER) ^ ZEROS;
    let above = (word.wrapping_add(SIXES) & UPPER) ^ ZEROS;
    let count = (upper | above).trailing_zeros() as usize / 8;
    let digits = (word & !UPPER).wrapping_shl(64 - 8 * count as u32);
    // A wrapping shift by 64 shifts by 0.
    let digits = if count == 0 { 0 } else { digits };
    let pairs = (digits * 10 + (digits >> 8)) & 0x00FF_00FF_00FF_00FF;
    let fours = (pairs * 100 + (pairs >> 16)) & 0x0000_FFFF_0000_FFFF;
    let value = (fours * 10_000 + (fours >> 32)) & 0xFFFF_FFFF;
    (value, count)
}

/// Loads eight bytes at `at`, with zeros past the end.
#[inline(always)]
pub fn load(text: &[u8], at: usize) -> u64 {
    match text.get(at..).and_then(|rest| rest.first_chunk::<8>()) {
        Some(bytes) => u64::from_le_bytes(*bytes),
        None => load_tail(text, at),
    }
}

#[cold]
fn load_tail(text: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    let tail = text.get(at..).unwrap_or_default();
    let count = tail.len().min(8);
    bytes[..count].copy_from_slice(&tail[..count]);
    u64::from_le_bytes(bytes)
}

/// Parses the digits after the first eight.
#[inline(never)]
fn more_digits(text: &[u8], mut at: usize, mut value: u64) -> Option<(u64, usize)> {
    while let Some(digit) = text.get(at).filter(|byte| byte.is_ascii_digit()) {
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
        at += 1;
    }
    Some((value, at))
}

/// Parses the whole token with the standard library. Infinity, NaN and values too large for an
/// `f32` are rejected.
#[inline(never)]
fn slow(text: &[u8], at: usize) -> Option<(f32, usize)> {
    let rest = text.get(at..)?;
    let numeric =
        |byte: &u8| byte.is_ascii_digit() || matches!(byte, b'.' | b'-' | b'+' | b'e' | b'E');
    let length = rest.iter().position(|byte| !numeric(byte)).unwrap_or(rest.len());
    let token = std::str::from_utf8(&rest[..length]).ok()?;
    let value: f32 = token.parse().ok()?;
    value.is_finite().then_some((value, at + length))
}

/// A decimal point as the second byte of a word.
const POINT: u64 = (b'.' as u64) << 8;
const UPPER: u64 = 0xF0F0_F0F0_F0F0_F0F0;
const ZEROS: u64 = 0x3030_3030_3030_3030;
const SIXES: u64 = 0x0606_0606_0606_0606;

/// Limit of digits; more might overflow the mantissa.
const DIGITS_MAX: usize = 19;
/// Limit of decimals in the loop; more take the slow path anyway.
const DECIMALS_MAX: usize = 22;
/// Integers up to this value, and the powers in `POWERS` that are used, are exact in `f64`.
const MANTISSA_MAX: u64 = 1 << 53;
/// The smallest normal `f32`. Subnormal numbers are rounded at another bit.
const NORMAL_MIN: f64 = f32::MIN_POSITIVE as f64;
/// The 29 mantissa bits that `f64` has and `f32` lacks, and their half-way pattern.
const HALF_MASK: u64 = (1 << 29) - 1;
const HALF: u64 = 1 << 28;

const TEN: [u64; 9] = [1, 10, 100, 1000, 10_000, 100_000, 1_000_000, 10_000_000, 100_000_000];
const POWERS: [f64; 32] = {
    let mut powers = [1.0; 32];
    let mut at = 1;
    // Exact up to 10^22; larger powers are never used, because at most 19 digits are accepted.
    while at < 32 {
        powers[at] = powers[at - 1] * 10.0;
        at += 1;
    }
    powers
};

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    fn is_float(text: &str) {
        let expected: f32 = text.parse().unwrap();
        for padded in [text.to_string(), format!("{text} 123456789"), format!("{text}\n")] {
            let (value, end) = float(padded.as_bytes(), 0).unwrap_or_else(|| panic!("{padded}"));
            assert_eq!((value.to_bits(), end), (expected.to_bits(), text.len()), "{padded}");
        }
    }

    #[test]
    fn integers_of_every_length() {
        let mut text = String::new();
        for digit in 1..=19 {
            text.push_str(&(digit % 10).to_string());
            let value: u64 = text.parse().unwrap();
            for padded in [text.clone(), format!("{text} 99999999"), format!("{text}\n7")] {
                assert_eq!(unsigned(padded.as_bytes(), 0), Some((value, text.len())));
            }
        }
        assert_eq!(unsigned(b"18446744073709551615", 0), Some((u64::MAX, 20)));
        assert_eq!(unsigned(b"18446744073709551616", 0), None);
        assert_eq!(integer(b"18446744073709551615", 0), Some((-1, 20)));
        assert_eq!(integer(b"-9223372036854775808", 0), Some((i64::MIN, 20)));
        assert_eq!(integer(b"-9223372036854775809", 0), None);
        assert_eq!(integer(b"x -12,", 2), Some((-12, 5)));
        for wrong in ["", "-", "a1", " 1", "/", ":", "+1", "\u{1}", "\u{ff}1"] {
            assert_eq!(integer(wrong.as_bytes(), 0), None, "{wrong}");
        }
        // The neighbours of the digits in ASCII end a run.
        assert_eq!(unsigned(b"12:45", 0), Some((12, 2)));
        assert_eq!(unsigned(b"12/45", 0), Some((12, 2)));
    }

    #[test]
    fn floats_are_correctly_rounded() {
        for text in [
            "0",
            "1",
            "-1",
            "0.0",
            "-0.0",
            "0.5",
            "0.007",
            "1.0",
            "13",
            "1.",
            "0.00663349917081",
            "0.004975124378109453",
            "123456789.123",
            "1e-07",
            "1e+22",
            "3.4028235e38",
            "1e-45",
            "16777217",
            "16777217.0",
            "16777219",
            "0.1",
            "0.3",
            "9007199254740993.0",
            "12345678",
            "123456789",
            "0.12345678901234567890123456789",
            "5e-324",
            "1.1754943e-38",
            "0.000000000000000000000000000000000000011754942",
            "33554435.0",
            "00000000.5",
            "+2.5",
        ] {
            is_float(text);
        }
        let mut draws = Sequence::new(7, 0);
        for _ in 0..200_000 {
            let bits = f32::from_bits(draws.next_u64() as u32);
            if bits.is_finite() {
                is_float(&bits.to_string());
            }
            let (whole, part) = (draws.below(1000), draws.below(10_000_000));
            is_float(&format!("{whole}.{part:07}"));
            // Half-way cases: an odd multiple of half a unit in the last place.
            let odd = (1u64 << 20) as f64 + draws.below(1 << 23) as f64 * 0.125 + 0.0625;
            is_float(&odd.to_string());
        }
    }

    #[test]
    fn what_is_no_finite_number_is_refused() {
        for wrong in ["", ".", "-", "nan", "inf", "-inf", "1e39", "e5", "1e", "--1", "-+1"] {
            assert_eq!(float(wrong.as_bytes(), 0), None, "{wrong}");
        }
    }
}
