//! Columns out of TFRecord files: the same records as from other formats.
#![cfg(feature = "tfrecord")]

use super::columns::{EncodeBits, Files, expected, load, table_columns};
use fleet_data::{BadRows, ColumnFiles, ColumnSpec, DataFormat, Survey, SurveyOptions};

/// A field of a protobuf message: its number and bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut message = vec![number << 3 | 2];
    let mut length = bytes.len();
    while length >= 0x80 {
        message.push(length as u8 | 0x80);
        length >>= 7;
    }
    message.push(length as u8);
    [&message[..], bytes].concat()
}

fn texts(texts: &[&str]) -> Vec<u8> {
    field(1, &texts.iter().flat_map(|text| field(1, text.as_bytes())).collect::<Vec<u8>>())
}

fn floats(floats: &[f32]) -> Vec<u8> {
    field(2, &field(1, &floats.iter().flat_map(|it| it.to_le_bytes()).collect::<Vec<u8>>()))
}

fn int(mut value: u64) -> Vec<u8> {
    let mut packed = Vec::new();
    while value >= 0x80 {
        packed.push(value as u8 | 0x80);
        value >>= 7;
    }
    packed.push(value as u8);
    field(3, &field(1, &packed))
}

fn frame(features: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let entry = |(name, feature): &(&str, Vec<u8>)| {
        field(1, &[field(1, name.as_bytes()), field(2, feature)].concat())
    };
    let data = field(1, &features.iter().flat_map(entry).collect::<Vec<u8>>());
    let crc = |bytes: &[u8]| {
        let crc = crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8);
        crc.to_le_bytes()
    };
    let length = (data.len() as u64).to_le_bytes();
    [&length[..], &crc(&length), &data, &crc(&data)].concat()
}

fn table() -> Vec<u8> {
    [
        frame(&[
            ("price", floats(&[1.5])),
            ("city", texts(&["Paris"])),
            ("tags", texts(&["a", "b"])),
            ("scores", floats(&[0.5, -2.0])),
            ("day", int(86_400)),
            ("unused", texts(&["x"])),
        ]),
        frame(&[("city", int(7)), ("day", int(0)), ("tags", texts(&[]))]),
        frame(&[
            ("price", texts(&["1e-7"])),
            ("tags", texts(&["Tromsø \"x\""])),
            ("scores", int(3)),
            ("day", texts(&["2024-03-01"])),
        ]),
    ]
    .concat()
}

#[test]
fn tf_records_give_the_same_records() {
    let files = Files::new();
    let path = files.write("table.tfrecord", &table());
    let format = ColumnFiles::new(DataFormat::TfRecord, table_columns()).unwrap();
    assert_eq!(load(&format, &path).unwrap().0.encode_bits(), expected());
    let survey = Survey::of(&[path], &SurveyOptions::default()).unwrap();
    let names: Vec<&str> = survey.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["city", "day", "price", "scores", "tags", "unused"]);
}

#[test]
fn wrong_records_are_errors_or_bad_rows() {
    let files = Files::new();
    let path = files.write("table.tfrecord", &table());
    let format = ColumnFiles::new(DataFormat::TfRecord, [ColumnSpec::number("scores")]).unwrap();
    let error = load(&format, &path).unwrap_err().to_string();
    assert!(error.contains("list of values") && error.contains("table.tfrecord, record 1"));
    let (block, skipped) = load(&format.bad_rows(BadRows::at_most(1)), &path).unwrap();
    assert_eq!((block.len(), skipped.lines), (2, 1));
}
