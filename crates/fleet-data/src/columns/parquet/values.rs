//! The values of a Parquet column: how they are stored, and what they mean.

use super::super::cells::{Cells, Scalar, wrong_number, wrong_time};
use super::super::{ColumnKind, ColumnSpec, time};
use super::times::{date_text, time_text};
use crate::block::Values;
use crate::formats::parquet_files::read_records;
use ::parquet::basic::{ConvertedType, LogicalType, TimeUnit, Type as Physical};
use ::parquet::column::reader::ColumnReader;
use ::parquet::data_type::{ByteArray, FixedLenByteArray, Int96};
use ::parquet::errors::ParquetError;
use ::parquet::schema::types::ColumnDescriptor;
use fleet_base::{Error, Result};
use std::ops::Range;

/// Meaning of the stored values of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Meaning {
    /// Numbers, booleans or text.
    Plain,
    /// Integers without a sign.
    Unsigned,
    /// Days since 1970.
    Date,
    /// Times since 1970, in parts of a second.
    Timestamp { per_second: i64 },
    /// Integers of a number without its decimal point.
    Decimal { scale: u32 },
    /// 16-bit floats in bytes.
    Float16,
    /// 128 bits, written in hexadecimal.
    Uuid,
}

impl Meaning {
    /// Returns the meaning of a column's values. Fails if it is not supported.
    pub fn of(column: &ColumnDescriptor) -> Result<Meaning> {
        let decimal = |scale: i32| match u32::try_from(scale) {
            Ok(scale) if scale <= SCALE_MAX => Ok(Meaning::Decimal { scale }),
            _ => Err(Error::unsupported("decimal numbers of this scale are not supported")
                .expected(format!("0 to {SCALE_MAX}"))
                .got(scale)),
        };
        let meaning = match column.logical_type_ref() {
            Some(LogicalType::Decimal(it)) => decimal(it.scale)?,
            Some(LogicalType::Date) => Meaning::Date,
            Some(LogicalType::Timestamp(it)) => Meaning::Timestamp {
                per_second: match it.unit {
                    TimeUnit::MILLIS => 1_000,
                    TimeUnit::MICROS => 1_000_000,
                    TimeUnit::NANOS => 1_000_000_000,
                },
            },
            Some(LogicalType::Integer(it)) if !it.is_signed => Meaning::Unsigned,
            Some(LogicalType::Float16) => Meaning::Float16,
            Some(LogicalType::Uuid) => Meaning::Uuid,
            _ => match column.converted_type() {
                ConvertedType::DECIMAL => decimal(column.type_scale())?,
                ConvertedType::DATE => Meaning::Date,
                ConvertedType::TIMESTAMP_MILLIS => Meaning::Timestamp { per_second: 1_000 },
                ConvertedType::TIMESTAMP_MICROS => Meaning::Timestamp { per_second: 1_000_000 },
                ConvertedType::UINT_8
                | ConvertedType::UINT_16
                | ConvertedType::UINT_32
                | ConvertedType::UINT_64 => Meaning::Unsigned,
                _ if column.physical_type() == Physical::INT96 => {
                    Meaning::Timestamp { per_second: 1_000_000_000 }
                }
                _ => Meaning::Plain,
            },
        };
        match (column.physical_type(), meaning) {
            (Physical::FIXED_LEN_BYTE_ARRAY, Meaning::Plain) => {
                Err(Error::unsupported("values are bytes of a fixed length without a meaning")
                    .expected("numbers, text, dates, times or decimals"))
            }
            _ => Ok(meaning),
        }
    }

    /// Returns the meaning if such values can be read as a column of this kind.
    pub fn fits(self, spec: &ColumnSpec) -> Result<Meaning> {
        let is_number = matches!(spec.kind, ColumnKind::Number | ColumnKind::Numbers { .. });
        match self {
            Meaning::Date | Meaning::Timestamp { .. } if is_number => {
                Err(Error::invalid("values are dates or times")
                    .expected("numbers")
                    .help("read the column as `time` or `category`"))
            }
            meaning => Ok(meaning),
        }
    }
}

/// Some records of one column.
pub(super) struct Decoded {
    /// End of each record's values.
    ends: Vec<usize>,
    values: Stored,
}

/// Values as the file stores them.
enum Stored {
    Bools(Vec<bool>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<f32>),
    Doubles(Vec<f64>),
    Bytes(Vec<ByteArray>),
    FixedBytes(Vec<FixedLenByteArray>),
    Times(Vec<Int96>),
}

impl Decoded {
    /// Decodes the next `count` records of a column.
    pub fn read(
        reader: &mut ColumnReader,
        column: &ColumnDescriptor,
        count: usize,
    ) -> Result<Decoded, ParquetError> {
        macro_rules! stored {
            ($reader:expr, $kind:path) => {{
                let (ends, values) = read_records($reader, column, count)?;
                Decoded { ends, values: $kind(values) }
            }};
        }
        Ok(match reader {
            ColumnReader::BoolColumnReader(it) => stored!(it, Stored::Bools),
            ColumnReader::Int32ColumnReader(it) => stored!(it, Stored::Ints),
            ColumnReader::Int64ColumnReader(it) => stored!(it, Stored::Longs),
            ColumnReader::FloatColumnReader(it) => stored!(it, Stored::Floats),
            ColumnReader::DoubleColumnReader(it) => stored!(it, Stored::Doubles),
            ColumnReader::ByteArrayColumnReader(it) => stored!(it, Stored::Bytes),
            ColumnReader::FixedLenByteArrayColumnReader(it) => stored!(it, Stored::FixedBytes),
            ColumnReader::Int96ColumnReader(it) => stored!(it, Stored::Times),
        })
    }

    fn range(&self, row: usize) -> Range<usize> {
        let start = if row == 0 { 0 } else { self.ends[row - 1] };
        start..self.ends[row]
    }

    /// Returns a limit of the values that a record gives: each may be a text with separators.
    pub fn count(&self, row: usize) -> usize {
        let range = self.range(row);
        match &self.values {
            Stored::Bytes(texts) => texts[range].iter().map(|text| text.len() + 1).sum(),
            _ => range.len(),
        }
    }

    /// Appends the values of a record.
    pub fn push(
        &self,
        row: usize,
        meaning: &Meaning,
        index: usize,
        cells: &Cells,
        values: &mut Values,
    ) -> Result<()> {
        let range = self.range(row);
        let mut scalar = |value| cells.push(index, value, values);
        match &self.values {
            Stored::Bools(all) => all[range].iter().try_for_each(|it| scalar(Scalar::Bool(*it))),
            Stored::Floats(all) => {
                all[range].iter().try_for_each(|it| scalar(Scalar::Float32(*it)))
            }
            Stored::Doubles(all) => all[range].iter().try_for_each(|it| scalar(Scalar::Float(*it))),
            Stored::Ints(all) => all[range].iter().try_for_each(|it| {
                let value = match meaning {
                    Meaning::Unsigned => i64::from(*it as u32),
                    _ => i64::from(*it),
                };
                push_integer(value, meaning, index, cells, values)
            }),
            Stored::Longs(all) => all[range]
                .iter()
                .try_for_each(|it| push_integer(*it, meaning, index, cells, values)),
            Stored::Times(all) => all[range]
                .iter()
                .try_for_each(|it| push_time(it.to_seconds(), nanos_of(it), index, cells, values)),
            Stored::Bytes(all) => all[range]
                .iter()
                .try_for_each(|it| push_bytes(it.data(), meaning, index, cells, values)),
            Stored::FixedBytes(all) => all[range]
                .iter()
                .try_for_each(|it| push_bytes(it.data(), meaning, index, cells, values)),
        }
    }
}

fn push_integer(
    value: i64,
    meaning: &Meaning,
    index: usize,
    cells: &Cells,
    values: &mut Values,
) -> Result<()> {
    match *meaning {
        Meaning::Unsigned if value < 0 => {
            cells.push_text(index, (value as u64).to_string().as_bytes(), values)
        }
        Meaning::Date => {
            let seconds = value.checked_mul(time::DAY);
            let seconds = seconds.ok_or_else(|| wrong_time(&cells.columns[index]))?;
            match cells.columns[index].kind {
                ColumnKind::Time => cells.push(index, Scalar::Int(seconds), values),
                _ => cells.push_text(index, date_text(value).as_bytes(), values),
            }
        }
        Meaning::Timestamp { per_second } => {
            let (seconds, part) = (value.div_euclid(per_second), value.rem_euclid(per_second));
            let nanos = part * (1_000_000_000 / per_second);
            push_time(seconds, nanos as u32, index, cells, values)
        }
        Meaning::Decimal { scale } => {
            let text = decimal_text(i128::from(value), scale);
            cells.push_text(index, text.as_bytes(), values)
        }
        _ => cells.push(index, Scalar::Int(value), values),
    }
}

fn push_time(
    seconds: i64,
    nanos: u32,
    index: usize,
    cells: &Cells,
    values: &mut Values,
) -> Result<()> {
    match cells.columns[index].kind {
        ColumnKind::Time => cells.push(index, Scalar::Int(seconds), values),
        _ => cells.push_text(index, time_text(seconds, nanos).as_bytes(), values),
    }
}

fn push_bytes(
    bytes: &[u8],
    meaning: &Meaning,
    index: usize,
    cells: &Cells,
    values: &mut Values,
) -> Result<()> {
    match *meaning {
        Meaning::Decimal { scale } => {
            let value = big_endian(bytes).ok_or_else(|| wrong_number(&cells.columns[index]))?;
            cells.push_text(index, decimal_text(value, scale).as_bytes(), values)
        }
        Meaning::Float16 => match bytes {
            [low, high] => {
                let float = float16(u16::from_le_bytes([*low, *high]));
                cells.push(index, Scalar::Float32(float), values)
            }
            _ => Err(wrong_number(&cells.columns[index])),
        },
        Meaning::Uuid => cells.push_text(index, uuid_text(bytes).as_bytes(), values),
        _ => cells.push_text(index, bytes, values),
    }
}

/// Returns the value of big-endian bytes in two's complement; `None` beyond 128 bits.
fn big_endian(bytes: &[u8]) -> Option<i128> {
    let negative = bytes.first().is_some_and(|byte| byte & 0x80 != 0);
    let mut whole = [if negative { 0xff } else { 0 }; 16];
    let start = whole.len().checked_sub(bytes.len())?;
    whole[start..].copy_from_slice(bytes);
    Some(i128::from_be_bytes(whole))
}

/// Returns a number with `scale` digits after the point, as tables in text have it.
fn decimal_text(value: i128, scale: u32) -> String {
    if scale == 0 {
        return value.to_string();
    }
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = scale as usize + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale as usize);
    format!("{}{whole}.{fraction}", if value < 0 { "-" } else { "" })
}

fn float16(bits: u16) -> f32 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f32::from(bits & 0x3ff));
    sign * match exponent {
        0 => fraction * 2f32.powi(-24),
        31 if fraction == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        _ => (1024.0 + fraction) * 2f32.powi(exponent - 25),
    }
}

/// Returns bytes in hexadecimal, in groups of 8, 4, 4, 4 and 12 digits.
fn uuid_text(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (at, byte) in bytes.iter().enumerate() {
        if matches!(at, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// Returns the billionths of a second of a time, which is a day and billionths since midnight.
fn nanos_of(time: &Int96) -> u32 {
    let [low, high, _] = time.data() else { return 0 };
    ((u64::from(*high) << 32 | u64::from(*low)) % 1_000_000_000) as u32
}

/// Digits of the largest decimal numbers, which have 128 bits.
const SCALE_MAX: u32 = 38;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_texts() {
        assert_eq!(decimal_text(1250, 2), "12.50");
        assert_eq!(decimal_text(-5, 3), "-0.005");
        assert_eq!(decimal_text(7, 0), "7");
        assert_eq!(big_endian(&[0xff, 0x38]), Some(-200));
        assert_eq!(big_endian(&[0, 0xc8]), Some(200));
        assert_eq!(big_endian(&[]), Some(0));
        assert_eq!(big_endian(&[1; 17]), None);
    }

    #[test]
    fn small_floats() {
        let cases =
            [(0x3c00, 1.0), (0xc000, -2.0), (0x3555, 0.333_251_95), (0x0001, 5.960_464_5e-8)];
        for (bits, value) in cases {
            assert_eq!(float16(bits), value);
        }
        assert!(float16(0x7c00).is_infinite() && float16(0x7e00).is_nan());
    }

    #[test]
    fn uuids_are_texts() {
        let bytes: Vec<u8> = (0..16).collect();
        assert_eq!(uuid_text(&bytes), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
