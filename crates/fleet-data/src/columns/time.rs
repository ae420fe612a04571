//! Times as seconds since 1970, from texts in the form of ISO 8601.

/// Parses a date or a date with a time: `2024-03-01`, `2024-03-01T12:30`,
/// `2024-03-01 12:30:05.25Z`, `2024-03-01T12:30:05+01:00`. Without a zone it is UTC. Returns the
/// seconds since 1970, rounded down.
pub(crate) fn parse(text: &[u8]) -> Option<i64> {
    let (date, rest) = text.split_at_checked(10)?;
    let [year @ .., m, _, _, d, _, _] = date else { return None };
    if m != d || !b"-/".contains(m) {
        return None;
    }
    let (year, month, day) = (digits(year)?, digits(&date[5..7])?, digits(&date[8..])?);
    let is_date = (1..=12).contains(&month) && (1..=days_of_month(year, month)).contains(&day);
    let midnight = is_date.then(|| days(year, month, day) * DAY)?;
    match rest.split_first() {
        None => Some(midnight),
        Some((b'T' | b't' | b' ', time)) => Some(midnight + parse_time(time)?),
        Some(_) => None,
    }
}

/// Returns the seconds of a time since midnight in UTC.
fn parse_time(text: &[u8]) -> Option<i64> {
    let zone = text.iter().position(|byte| b"Zz+- ".contains(byte)).unwrap_or(text.len());
    let (clock, zone) = text.split_at(zone);
    let (clock, fraction) = match clock.iter().position(|byte| *byte == b'.' || *byte == b',') {
        Some(point) => (&clock[..point], Some(&clock[point + 1..])),
        None => (clock, None),
    };
    let mut parts = clock.split(|byte| *byte == b':');
    let hour = two_digits(parts.next()?).filter(|hour| *hour < 24)?;
    let minute = two_digits(parts.next()?).filter(|minute| *minute < 60)?;
    // A leap second counts as the next one.
    let second = match parts.next() {
        Some(second) => two_digits(second).filter(|second| *second <= 60)?,
        None if fraction.is_some() => return None,
        None => 0,
    };
    let is_fraction = |digits: &[u8]| !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    if parts.next().is_some() || !fraction.is_none_or(is_fraction) {
        return None;
    }
    Some(hour * HOUR + minute * MINUTE + second - zone_seconds(zone)?)
}

/// Returns the seconds by which the clocks of a zone are ahead of UTC.
fn zone_seconds(zone: &[u8]) -> Option<i64> {
    let zone = zone.trim_ascii();
    let (sign, clock) = match zone.split_first() {
        None | Some((b'Z' | b'z', [])) => return Some(0),
        Some((b'+', clock)) => (1, clock),
        Some((b'-', clock)) => (-1, clock),
        Some(_) if zone == b"UTC" || zone == b"GMT" => return Some(0),
        Some(_) => return None,
    };
    let (hour, minute) = match clock {
        [_, _] => (clock, &b"00"[..]),
        [_, _, b':', minute @ ..] => (&clock[..2], minute),
        [_, _, minute @ ..] => (&clock[..2], minute),
        _ => return None,
    };
    let hour = two_digits(hour).filter(|hour| *hour < 24)?;
    let minute = two_digits(minute).filter(|minute| *minute < 60)?;
    Some(sign * (hour * HOUR + minute * MINUTE))
}

fn two_digits(text: &[u8]) -> Option<i64> {
    if text.len() == 2 { digits(text) } else { None }
}

fn digits(text: &[u8]) -> Option<i64> {
    text.iter().try_fold(0, |value, byte| {
        byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0'))
    })
}

pub(super) fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        _ => 31,
    }
}

/// Returns the days from 1970-01-01 to a date. Years start in March here, so that the day that
/// leap years add is the last one.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    let (century, year) = (year.div_euclid(400), year.rem_euclid(400));
    let day_of_centuries = year * 365 + year / 4 - year / 100 + day_of_year;
    century * DAYS_OF_400_YEARS + day_of_centuries - DAYS_TO_1970
}

pub(super) const MINUTE: i64 = 60;
pub(super) const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;
pub(super) const DAYS_OF_400_YEARS: i64 = 146_097;
/// Days from 1 March of the year 0 to 1 January 1970.
const DAYS_TO_1970: i64 = 719_468;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_and_times() {
        for (text, seconds) in [
            ("1970-01-01", 0),
            ("1970-01-01T00:00:01Z", 1),
            ("1969-12-31 23:59:59.5", -1),
            ("2024-02-29", 1_709_164_800),
            ("2024/03/01", 1_709_251_200),
            ("2024-03-01T12:30", 1_709_296_200),
            ("2024-03-01 12:30:05,25", 1_709_296_205),
            ("2024-03-01T12:30:05+01:00", 1_709_292_605),
            ("2024-03-01T12:30:05-0130", 1_709_301_605),
            ("2024-03-01 12:30:05 UTC", 1_709_296_205),
            ("2000-02-29", 951_782_400),
            ("1900-03-01", -2_203_891_200),
            ("0001-01-01", -62_135_596_800),
        ] {
            assert_eq!(parse(text.as_bytes()), Some(seconds), "{text}");
        }
        for text in [
            "",
            "2024",
            "2024-13-01",
            "2023-02-29",
            "1900-02-29",
            "2024-03/01",
            "2024-03-01T",
            "2024-03-01T24:00",
            "2024-03-01T12",
            "2024-03-01T12:30.5",
            "2024-03-01T12:30:05.",
            "2024-03-01X12:30",
            "2024-03-01T12:30:05+1",
            "2024-03-01T12:30:05 CET",
            "a024-03-01",
            "2024-03-01T1:30:00",
            "\u{ff}\u{ff}\u{ff}\u{ff}\u{ff}",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
