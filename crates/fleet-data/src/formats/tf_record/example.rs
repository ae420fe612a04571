//! `tf.train.Example`, a protobuf message: features by name, each with a list of bytes, floats or
//! integers. Its few fields are parsed without a copy.

use fleet_base::{Error, Result};

/// A value of a feature.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FeatureValue<'a> {
    Bytes(&'a [u8]),
    Float(f32),
    Int(i64),
}

/// Calls a function with the name and the encoded value of each feature.
pub(crate) fn for_each_feature<'a>(
    example: &'a [u8],
    mut work: impl FnMut(&'a [u8], &'a [u8]) -> Result<()>,
) -> Result<()> {
    for features in Fields(example) {
        let (EXAMPLE_FEATURES, Wire::Bytes(features)) = features? else { continue };
        for entry in Fields(features) {
            let (FEATURES_ENTRY, Wire::Bytes(entry)) = entry? else { continue };
            let (name, feature) = map_entry(entry)?;
            work(name, feature)?;
        }
    }
    Ok(())
}

/// Calls a function with each value of a feature.
pub(crate) fn for_each_value<'a>(
    feature: &'a [u8],
    mut work: impl FnMut(FeatureValue<'a>) -> Result<()>,
) -> Result<()> {
    for list in Fields(feature) {
        let (list_kind, Wire::Bytes(list)) = list? else { return Err(damaged()) };
        for value in Fields(list) {
            let (LIST_VALUE, value) = value? else { continue };
            match (list_kind, value) {
                (FEATURE_BYTES, Wire::Bytes(bytes)) => work(FeatureValue::Bytes(bytes))?,
                (FEATURE_FLOATS, Wire::Bytes(packed)) => {
                    let (floats, rest) = packed.as_chunks::<4>();
                    if !rest.is_empty() {
                        return Err(damaged());
                    }
                    for float in floats {
                        work(FeatureValue::Float(f32::from_le_bytes(*float)))?;
                    }
                }
                (FEATURE_FLOATS, Wire::Fixed32(float)) => {
                    work(FeatureValue::Float(f32::from_le_bytes(float)))?;
                }
                (FEATURE_INTS, Wire::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        work(FeatureValue::Int(varint(&mut packed)? as i64))?;
                    }
                }
                (FEATURE_INTS, Wire::Varint(int)) => work(FeatureValue::Int(int as i64))?,
                _ => return Err(damaged()),
            }
        }
    }
    Ok(())
}

fn damaged() -> Error {
    Error::invalid("TFRecord is not a tf.train.Example")
}

/// Returns the key and the value of a map entry.
fn map_entry(entry: &[u8]) -> Result<(&[u8], &[u8])> {
    let (mut key, mut value): (&[u8], &[u8]) = (&[], &[]);
    for field in Fields(entry) {
        match field? {
            (1, Wire::Bytes(bytes)) => key = bytes,
            (2, Wire::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Ok((key, value))
}

/// A value in its wire format.
enum Wire<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Fixed32([u8; 4]),
    Fixed64,
}

/// Iterator over the fields of a protobuf message: numbers and values.
struct Fields<'a>(&'a [u8]);

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Wire<'a>)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = field(&mut self.0);
        if field.is_err() {
            self.0 = &[];
        }
        Some(field)
    }
}

fn field<'a>(rest: &mut &'a [u8]) -> Result<(u64, Wire<'a>)> {
    let tag = varint(rest)?;
    let wire = match tag & 7 {
        0 => Wire::Varint(varint(rest)?),
        1 => {
            let (_, behind) = rest.split_first_chunk::<8>().ok_or_else(damaged)?;
            *rest = behind;
            Wire::Fixed64
        }
        2 => {
            let length = varint(rest)?;
            let length = usize::try_from(length).ok().filter(|it| *it <= rest.len());
            let (bytes, behind) = rest.split_at(length.ok_or_else(damaged)?);
            *rest = behind;
            Wire::Bytes(bytes)
        }
        5 => {
            let (fixed, behind) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
            *rest = behind;
            Wire::Fixed32(*fixed)
        }
        _ => return Err(damaged()),
    };
    Ok((tag >> 3, wire))
}

fn varint(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0u64;
    for (at, byte) in rest.iter().enumerate().take(VARINT_BYTES_MAX) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *rest = &rest[at + 1..];
            return Ok(value);
        }
    }
    Err(damaged())
}

const EXAMPLE_FEATURES: u64 = 1;
const FEATURES_ENTRY: u64 = 1;
pub(super) const FEATURE_BYTES: u64 = 1;
pub(super) const FEATURE_FLOATS: u64 = 2;
pub(super) const FEATURE_INTS: u64 = 3;
pub(super) const LIST_VALUE: u64 = 1;
/// 64 bits, seven bits a byte.
const VARINT_BYTES_MAX: usize = 10;
