//! Dates and times as tables in text have them.

use super::super::time::{DAY, DAYS_OF_400_YEARS, HOUR, MINUTE, days_of_month};

/// Returns a date as text from the days since 1970.
pub(super) fn date_text(days: i64) -> String {
    let mut year = 1970 + 400 * days.div_euclid(DAYS_OF_400_YEARS);
    let mut rest = days.rem_euclid(DAYS_OF_400_YEARS);
    let year_days = |year| 337 + days_of_month(year, 2);
    while rest >= year_days(year) {
        rest -= year_days(year);
        year += 1;
    }
    let mut month = 1;
    while month < 12 && rest >= days_of_month(year, month) {
        rest -= days_of_month(year, month);
        month += 1;
    }
    let day = rest + 1;
    format!("{year:04}-{month:02}-{day:02}")
}

/// Returns a date and a time as text, from the seconds since 1970 and a fraction in billionths.
pub(super) fn time_text(seconds: i64, nanos: u32) -> String {
    let clock = seconds.rem_euclid(DAY);
    let (hour, minute, second) = (clock / HOUR, clock / MINUTE % 60, clock % MINUTE);
    let date = date_text(seconds.div_euclid(DAY));
    let fraction = match nanos {
        0 => String::new(),
        nanos if nanos % 1000 == 0 => format!(".{:06}", nanos / 1000),
        nanos => format!(".{nanos:09}"),
    };
    format!("{date} {hour:02}:{minute:02}:{second:02}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::time_of_text;

    #[test]
    fn texts_are_read_back() {
        for day in (-800_000..800_000).step_by(97) {
            if (-719_162..2_932_896).contains(&day) {
                assert_eq!(time_of_text(date_text(day).as_bytes()), Some(day * DAY), "{day}");
            }
        }
        assert_eq!(time_text(1_709_296_205, 0), "2024-03-01 12:30:05");
        assert_eq!(time_text(-1, 500_000_000), "1969-12-31 23:59:59.500000");
        assert_eq!(time_text(0, 1), "1970-01-01 00:00:00.000000001");
    }
}
