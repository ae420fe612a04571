//! Numbers and texts as the text forms write them.
//!
//! Floats are as in protobuf's text form: the shortest digits that parse to the same number, always
//! with a point or an exponent.

use std::fmt::Write;

/// Formats a double like Python's `repr`, which protobuf's text form uses.
pub fn float64(value: f64) -> String {
    if !value.is_finite() {
        return value.to_string().to_lowercase();
    }
    layout(&format!("{value:e}"))
}

/// Formats a float with the fewest digits, from 6 to 9, that parse to the same 32-bit float.
pub fn float32(value: f32) -> String {
    if !value.is_finite() {
        return value.to_string().to_lowercase();
    }
    const DIGITS: std::ops::RangeInclusive<usize> = 6..=9;
    let text = DIGITS
        .map(|digits| format!("{:.*e}", digits - 1, value))
        .find(|text| text.parse() == Ok(value))
        .unwrap_or_else(|| format!("{value:e}"));
    layout(&text)
}

/// Converts `-1.2500e-5` to `-1.25e-05`; numbers of medium size get no exponent.
fn layout(scientific: &str) -> String {
    const WRITTEN_OUT: std::ops::Range<i32> = -4..16;
    let (mantissa, exponent) = scientific.split_once('e').expect("Rust writes an exponent");
    let exponent: i32 = exponent.parse().expect("Rust writes an exponent");
    let (sign, mantissa) = match mantissa.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", mantissa),
    };
    let mut digits: String = mantissa.chars().filter(|c| *c != '.').collect();
    digits.truncate(digits.trim_end_matches('0').len().max(1));
    if !WRITTEN_OUT.contains(&exponent) {
        let point = if digits.len() > 1 { "." } else { "" };
        let (first, rest) = digits.split_at(1);
        let plus = if exponent < 0 { '-' } else { '+' };
        return format!("{sign}{first}{point}{rest}e{plus}{:02}", exponent.abs());
    }
    if exponent < 0 {
        let zeros = "0".repeat(exponent.unsigned_abs() as usize - 1);
        return format!("{sign}0.{zeros}{digits}");
    }
    let whole = exponent as usize + 1;
    if digits.len() <= whole {
        let zeros = "0".repeat(whole - digits.len());
        return format!("{sign}{digits}{zeros}.0");
    }
    format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
}

/// Returns a JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out += "\\\"",
            '\\' => out += "\\\\",
            '\n' => out += "\\n",
            '\r' => out += "\\r",
            '\t' => out += "\\t",
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The output of protobuf 4.25.
    #[test]
    fn floats_are_written_as_protobuf_does() {
        let cases = [
            (0.1, "0.1"),
            (1.0 / 3.0, "0.33333334"),
            (1e-8, "1e-08"),
            (1e20, "1e+20"),
            (1e16, "1e+16"),
            (123456789.0, "123456790.0"),
            (1e10, "10000000000.0"),
            (3.4e38, "3.4e+38"),
            (f32::INFINITY, "inf"),
            (f32::NEG_INFINITY, "-inf"),
            (f32::NAN, "nan"),
            (-0.0, "-0.0"),
            (0.0, "0.0"),
            (1e-5, "1e-05"),
            (1e-4, "0.0001"),
            (16777216.0, "16777216.0"),
            (1e15, "1000000000000000.0"),
            (f32::MIN_POSITIVE, "1.1754944e-38"),
            (1e-45, "1.4013e-45"),
        ];
        for (value, text) in cases {
            assert_eq!(float32(value), text);
        }
        let cases = [
            (1e22, "1e+22"),
            (1.0 / 3.0, "0.3333333333333333"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (0.00055, "0.00055"),
        ];
        for (value, text) in cases {
            assert_eq!(float64(value), text);
        }
    }
}
