//! TFRecord files of `tf.train.Example`, in the feature `tfrecord`: frames with checksums
//! (`frames.rs`), whose data is a protobuf message (`example.rs`).

mod example;
mod frames;

pub(crate) use example::{FeatureValue, for_each_feature, for_each_value};
pub(crate) use frames::Frames;

use super::hash_bucket;
use crate::block::Block;
use crate::dataset::RecordFormat;
use crate::lines::{OnError, RecordReader, Skipped};
use crate::pipe::FileSource;
use crate::slot::{Schema, SlotKind};
use fleet_base::{Error, Result};
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// Reads examples: the feature with a slot's name fills it. Integers fill ids and floats, floats
/// fill floats, and bytes fill ids if a number of buckets is set. Other features are ignored. A
/// missing feature leaves a ragged slot empty and is an error for a dense one.
///
/// ```
/// # fn main() -> fleet_base::Result<()> {
/// use fleet_data::{DatasetOptions, QueueDataset, Schema, Slot, TfRecords};
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_floats("x", [13])])?;
/// let files = TfRecords::new(&schema).hash_bytes(1000).pipe_command("zcat");
/// let options = DatasetOptions { batch_size: 32, ..DatasetOptions::new(files)? };
/// let mut dataset = QueueDataset::new(options)?;
/// assert!(dataset.set_filelist(["no/such/file.tfrecord.gz"]).is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct TfRecords {
    schema: Arc<Schema>,
    buckets: Option<u64>,
    origin: FileSource,
    on_error: OnError,
}

impl TfRecords {
    /// Returns a format whose features have the names of the slots. Bytes in slots of ids are an
    /// error.
    pub fn new(schema: &Arc<Schema>) -> TfRecords {
        TfRecords {
            schema: Arc::clone(schema),
            buckets: None,
            origin: FileSource::default(),
            on_error: OnError::Fail,
        }
    }

    /// Hashes bytes in slots of ids into `buckets` ids.
    pub fn hash_bytes(mut self, buckets: u64) -> TfRecords {
        self.buckets = Some(buckets);
        self
    }

    /// Pipes each file through a shell command first, for example `zcat` for compressed files.
    pub fn pipe_command(mut self, command: impl Into<String>) -> TfRecords {
        self.origin.pipe_command = command.into();
        self
    }

    /// Downloads files with a shell command, like
    /// [`TextFiles::download_command`](crate::TextFiles::download_command).
    pub fn download_command(mut self, command: impl Into<String>) -> TfRecords {
        self.origin.download_command = command.into();
        self
    }

    /// Also accepts names of objects, like
    /// [`TextFiles::object_stores`](crate::TextFiles::object_stores).
    #[cfg(feature = "object-store")]
    pub fn object_stores(mut self, stores: &crate::ObjectStores) -> TfRecords {
        self.origin.stores = Some(stores.clone());
        self
    }

    /// Sets whether unreadable records are skipped. A corrupt length always ends the file, because
    /// the start of the next record is then unknown.
    pub fn on_error(mut self, on_error: OnError) -> TfRecords {
        self.on_error = on_error;
        self
    }

    /// Reads records from any byte source; errors call it `name`.
    pub fn read<R: Read + Send>(&self, from: R, name: &str) -> TfRecordReader<R> {
        let frames = Frames::new(from, name);
        TfRecordReader { frames, format: self.clone(), skipped: Skipped::default() }
    }

    /// Appends one record.
    fn take(&self, example: &[u8], block: &mut Block) -> Result<()> {
        let slots = self.schema.slots();
        let mut found = vec![false; slots.len()];
        for_each_feature(example, |name, feature| {
            let Some(slot) = slots.iter().position(|it| it.name.as_bytes() == name) else {
                return Ok(());
            };
            if std::mem::replace(&mut found[slot], true) {
                let name = &slots[slot].name;
                return Err(Error::invalid(format!("duplicate feature '{name}'")));
            }
            for_each_value(feature, |value| self.push(slot, value, block))
        })?;
        let mut slots = slots.iter().zip(found);
        match slots.find(|(slot, found)| !found && slot.width().is_some()) {
            Some((slot, _)) => {
                Err(Error::invalid(format!("example has no feature '{}'", slot.name)))
            }
            None => block.end_record(),
        }
    }

    fn push(&self, slot: usize, value: FeatureValue<'_>, block: &mut Block) -> Result<()> {
        let (name, kind) = (&self.schema.slots()[slot].name, self.schema.slots()[slot].kind);
        match (value, kind) {
            (FeatureValue::Bytes(bytes), SlotKind::Ids) => {
                let buckets = self.buckets.ok_or_else(|| {
                    wrong(name, kind, "bytes")
                        .help("use TfRecords::hash_bytes to hash them into ids")
                })?;
                block.push_ids(slot, &[hash_bucket(name.as_bytes(), bytes, buckets) as i64])
            }
            (FeatureValue::Float(float), SlotKind::Floats) => {
                block.push_floats(slot, &[finite(name, float)?])
            }
            (FeatureValue::Int(int), SlotKind::Ids) => block.push_ids(slot, &[int]),
            (FeatureValue::Int(int), SlotKind::Floats) => block.push_floats(slot, &[int as f32]),
            (FeatureValue::Bytes(_), SlotKind::Floats) => Err(wrong(name, kind, "bytes")),
            (FeatureValue::Float(_), SlotKind::Ids) => Err(wrong(name, kind, "floats")),
        }
    }
}

impl RecordFormat for TfRecords {
    fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        let from = self.origin.open(path)?;
        let from = BufReader::with_capacity(BUFFER_BYTES, from);
        Ok(Box::new(self.read(from, &self.origin.name(path))))
    }

    fn is_local(&self) -> bool {
        self.origin.is_local()
    }
}

/// Reader of the records of one file.
pub struct TfRecordReader<R> {
    frames: Frames<R>,
    format: TfRecords,
    skipped: Skipped,
}

impl<R: Read + Send> RecordReader for TfRecordReader<R> {
    fn schema(&self) -> &Arc<Schema> {
        &self.format.schema
    }

    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let first = block.len();
        while block.len() - first < rows_max {
            let outcome = match self.frames.next_frame().map_err(|error| self.frames.at(error))? {
                Ok(false) => break,
                Ok(true) => self.format.take(self.frames.data(), block),
                Err(error) => Err(error),
            };
            if let Err(error) = outcome.map_err(|error| self.frames.at(error)) {
                block.rollback();
                self.skipped.count(self.format.on_error, "record", error)?;
            }
        }
        Ok(block.len() - first)
    }

    fn skipped(&self) -> Skipped {
        self.skipped.clone()
    }
}

fn finite(name: &str, float: f32) -> Result<f32> {
    if float.is_finite() {
        return Ok(float);
    }
    Err(Error::invalid(format!("feature '{name}' has a value that is not finite")).got(float))
}

fn wrong(name: &str, kind: SlotKind, got: &str) -> Error {
    Error::invalid(format!("feature '{name}' does not match its slot")).expected(kind).got(got)
}

/// Bytes read at once.
const BUFFER_BYTES: usize = 1 << 18;

#[cfg(test)]
mod tests {
    use super::example::{FEATURE_BYTES, FEATURE_FLOATS, FEATURE_INTS, LIST_VALUE};
    use super::frames::masked_crc;
    use super::*;
    use crate::Slot;

    fn message(fields: &[(u64, &[u8])]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, value) in fields {
            bytes.push((number << 3 | 2) as u8);
            put_varint(value.len() as u64, &mut bytes);
            bytes.extend_from_slice(value);
        }
        bytes
    }

    fn put_varint(mut value: u64, bytes: &mut Vec<u8>) {
        while value >= 0x80 {
            bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        bytes.push(value as u8);
    }

    fn ints(values: &[i64]) -> Vec<u8> {
        let mut packed = Vec::new();
        values.iter().for_each(|it| put_varint(*it as u64, &mut packed));
        message(&[(FEATURE_INTS, &message(&[(LIST_VALUE, &packed)]))])
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        let packed: Vec<u8> = values.iter().flat_map(|it| it.to_le_bytes()).collect();
        message(&[(FEATURE_FLOATS, &message(&[(LIST_VALUE, &packed)]))])
    }

    fn example(features: &[(&str, Vec<u8>)]) -> Vec<u8> {
        let entry = |(name, feature): &(&str, Vec<u8>)| {
            let entry = message(&[(1, name.as_bytes()), (2, feature)]);
            message(&[(1, &entry)])
        };
        let entries: Vec<u8> = features.iter().flat_map(entry).collect();
        message(&[(1, &entries)])
    }

    fn frame(data: &[u8]) -> Vec<u8> {
        let length = (data.len() as u64).to_le_bytes();
        let check = |bytes: &[u8]| masked_crc(bytes).to_le_bytes();
        [&length[..], &check(&length), data, &check(data)].concat()
    }

    fn schema() -> Arc<Schema> {
        let (words, x) = (Slot::ragged_ids("words"), Slot::dense_floats("x", [2]));
        Schema::new([words, x, Slot::dense_ids("label", [1])]).unwrap()
    }

    fn good(label: i64) -> Vec<u8> {
        let words = ints(&[7, -1, 1 << 40]);
        let bytes = message(&[(FEATURE_BYTES, &message(&[(LIST_VALUE, b"left alone")]))]);
        let x = floats(&[0.5, -2.0]);
        example(&[("words", words), ("note", bytes), ("x", x), ("label", ints(&[label]))])
    }

    fn read(bytes: &[u8], format: &TfRecords) -> Result<(Block, Skipped)> {
        let mut block = Block::new(&format.schema);
        let mut reader = format.read(bytes, "a.tfrecord");
        while reader.read(2, &mut block)? > 0 {}
        Ok((block, reader.skipped()))
    }

    /// Checks the published check value of CRC-32C and its masked form: rotated by 15 bits, plus a
    /// constant.
    #[test]
    fn checksums_are_those_of_the_format() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(masked_crc(b"123456789"), 0xc78a_b0e5);
    }

    #[test]
    fn examples_fill_slots() {
        let format = TfRecords::new(&schema());
        let second = {
            // Unpacked lists, a float slot that holds integers, and no words.
            let mut list = Vec::new();
            for value in [3.0f32, 4.0] {
                list.push((LIST_VALUE << 3 | 5) as u8);
                list.extend(value.to_le_bytes());
            }
            let x = message(&[(FEATURE_FLOATS, &list)]);
            let label = message(&[(FEATURE_INTS, &[(LIST_VALUE << 3) as u8, 9])]);
            example(&[("label", label), ("x", x)])
        };
        let third = example(&[("x", ints(&[1, 2])), ("label", ints(&[5])), ("words", ints(&[]))]);
        let bytes = [frame(&good(1)), frame(&second), frame(&third)].concat();
        let (block, _) = read(&bytes, &format).unwrap();
        assert_eq!(block.len(), 3);
        assert_eq!(block.column(0).ids(0), Some(&[7, -1, 1 << 40][..]));
        assert_eq!(block.column(0).ids(1), Some(&[][..]));
        assert_eq!(block.column(1).floats(0), Some(&[0.5, -2.0][..]));
        assert_eq!(block.column(1).floats(1), Some(&[3.0, 4.0][..]));
        assert_eq!(block.column(1).floats(2), Some(&[1.0, 2.0][..]));
        assert_eq!(block.column(2).values(), &crate::Values::Ids(vec![1, 9, 5]));
    }

    #[test]
    fn bytes_are_hashed_where_that_is_wanted() {
        let schema = Schema::new([Slot::ragged_ids("city")]).unwrap();
        let cities = message(&[(LIST_VALUE, b"Paris"), (LIST_VALUE, b"Rome")]);
        let bytes = frame(&example(&[("city", message(&[(FEATURE_BYTES, &cities)]))]));
        let error = read(&bytes, &TfRecords::new(&schema)).unwrap_err().to_string();
        assert!(error.contains("hash_bytes") && error.contains("a.tfrecord, record 1"), "{error}");
        let (block, _) = read(&bytes, &TfRecords::new(&schema).hash_bytes(1000)).unwrap();
        let expected = [b"Paris".as_slice(), b"Rome"].map(|it| hash_bucket(b"city", it, 1000));
        assert_eq!(block.column(0).ids(0), Some(&expected.map(|it| it as i64)[..]));
    }

    #[test]
    fn what_is_broken_is_named_or_skipped() {
        let message_of = |bytes: &[u8]| {
            read(bytes, &TfRecords::new(&schema())).map(drop).unwrap_err().to_string()
        };
        let bad_data = {
            let mut bytes = frame(&good(2));
            bytes[20] ^= 1;
            bytes
        };
        let lacking = frame(&example(&[("x", floats(&[1.0, 2.0]))]));
        let long = frame(&example(&[("x", floats(&[1.0; 3])), ("label", ints(&[1]))]));
        let no_number = frame(&example(&[("x", floats(&[f32::NAN, 1.0])), ("label", ints(&[1]))]));
        let twice = example(&[("label", ints(&[1])), ("label", ints(&[1]))]);
        for (bytes, words) in [
            (&bad_data, "wrong checksum"),
            (&lacking, "no feature 'label'"),
            (&long, "slot 'x' has a wrong number of values"),
            (&no_number, "not finite"),
            (&frame(&twice), "duplicate feature 'label'"),
            (&frame(b"\x0a\xff"), "not a tf.train.Example"),
        ] {
            let error = message_of(bytes);
            assert!(error.contains(words) && error.contains("record 1"), "{error}");
        }
        let all = [bad_data, frame(&good(3)), lacking, frame(&good(4))].concat();
        let skip = |lines_max| TfRecords::new(&schema()).on_error(OnError::Skip { lines_max });
        let (block, skipped) = read(&all, &skip(2)).unwrap();
        assert_eq!((block.len(), skipped.lines), (2, 2));
        assert!(skipped.first.unwrap().to_string().contains("checksum"));
        assert!(read(&all, &skip(1)).is_err());
        // A damaged length is an error even when bad records are skipped.
        for end in 1..frame(&good(3)).len() {
            assert!(read(&frame(&good(3))[..end], &skip(9)).is_err(), "{end}");
        }
        let mut length = frame(&good(3));
        length[0] ^= 1;
        assert!(message_of(&length).contains("of the length of a TFRecord"));
        let huge = (u64::MAX >> 1).to_le_bytes();
        let huge = [&huge[..], &masked_crc(&huge).to_le_bytes()].concat();
        assert!(message_of(&huge).contains("too large"));
    }

    /// Any byte of an example may be wrong: the result is an error or other values, never a panic.
    #[test]
    fn changed_bytes_are_no_panic() {
        let whole = good(1);
        let mut block = Block::new(&schema());
        let format = TfRecords::new(&schema());
        for at in 0..whole.len() {
            for flip in [1, 0x80, 0xff] {
                let mut changed = whole.clone();
                changed[at] ^= flip;
                if format.take(&changed, &mut block).is_err() {
                    block.rollback();
                }
            }
        }
    }
}
