//! Safetensors files, read and written piece by piece.
//!
//! The format: the length of a header as 8 bytes, the header as JSON (element type, shape and data
//! offsets of each tensor), the data. Fleet's files add checksums to the header's metadata: a CRC32
//! of each tensor (`crc32:NAME`) and one of the header itself (`fleet.crc32`, computed with eight
//! zeros in its place). Every byte of the file is thus covered by a checksum, and a single tensor
//! can be read and checked without the others. Other programs read these files like any safetensors
//! file.
//!
//! The crate `safetensors` is used in tests only. It reads from one block of memory that holds the
//! whole file, and its writer neither syncs before the rename nor leaves room for checksums.

use crate::source::{
    DAMAGED_FILE_HELP, NamedTensors, Source, TensorInfo, check_bools, check_distinct, describe,
    described_bytes, finder, info_bytes, tensor_bytes,
};
use crc32fast::Hasher;
use fleet_base::disk::{Disk, RealDisk};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result, text};
use fleet_tensor::{DType, RANK_MAX, Shape, Tensor};
use serde_json::{Map, Value};
use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

/// Writes tensors to a file that any reader of safetensors accepts. `meta` becomes the header's
/// metadata.
pub fn write_safetensors<'t>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'t str, &'t Tensor)>,
    meta: &BTreeMap<String, String>,
) -> Result<()> {
    if let Some(key) = meta.keys().find(|key| is_reserved(key)) {
        return Err(Error::invalid(format!("'{key}' is a reserved key in safetensors files")));
    }
    let tensors: Vec<_> = tensors.into_iter().collect();
    let infos = describe(&tensors)?;
    write(&RealDisk::handle(), path.as_ref(), &infos, meta, finder(&tensors)).map(drop)
}

/// Reads the tensors and the metadata of a file. Checks checksums if the file has them.
pub fn read_safetensors(
    path: impl AsRef<Path>,
) -> Result<(NamedTensors, BTreeMap<String, String>)> {
    let mut reader = Reader::open(&RealDisk, path.as_ref())?;
    let tensors = reader.read_all()?;
    let mut meta = reader.meta;
    meta.retain(|key, _| !is_reserved(key));
    Ok((tensors, meta))
}

/// Limit of a header's bytes, the same as in the format's own implementation.
const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Bytes per read or write. A chunk stays in the cache between the transfer and its checksum.
const CHUNK_BYTES: usize = 256 << 10;

/// The key of the metadata in the header; no tensor may have this name.
const META: &str = "__metadata__";

/// The key of the header's own checksum, which is the first entry of the header.
const HEADER_SUM: &str = "fleet.crc32";
const HEADER_SUM_START: &str = r#"{"__metadata__":{"fleet.crc32":""#;
const HEADER_SUM_ZEROS: &str = "00000000";

/// Prefix of the keys of tensors' checksums.
const SUM: &str = "crc32:";

fn is_reserved(key: &str) -> bool {
    key.starts_with("fleet.") || key.starts_with(SUM)
}

/// Size and checksum of a whole file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileSum {
    pub bytes: u64,
    pub crc32: u32,
}

/// Writes a file with checksums. `read` returns one tensor at a time.
pub(crate) fn write<T: Borrow<Tensor>>(
    disk: &Arc<dyn Disk>,
    path: &Path,
    infos: &[TensorInfo],
    meta: &BTreeMap<String, String>,
    mut read: impl FnMut(&TensorInfo) -> Result<T>,
) -> Result<FileSum> {
    check_distinct(infos.iter().map(|info| info.name.as_str()))?;
    if infos.iter().any(|info| info.name == META) {
        return Err(Error::invalid(format!(
            "tensor name '{META}' is reserved in safetensors files"
        )));
    }
    // Wide elements first, so that all are aligned.
    let mut infos: Vec<&TensorInfo> = infos.iter().collect();
    infos.sort_by_key(|info| std::cmp::Reverse(info.dtype.size()));
    let mut sums = vec![0; infos.len()];
    let header = header(&infos, &sums, meta)?;
    let mut file = AtomicFile::replace_on(disk, path)?;
    let failed = |file: &AtomicFile, error| file.error("write", &error);
    // The header is rewritten when the checksums are known; its length does not change.
    file.write_all(&header).map_err(|error| failed(&file, error))?;
    let mut bytes = header.len() as u64;
    let mut data_sum = Hasher::new();
    for (info, sum) in infos.iter().zip(&mut sums) {
        let tensor = read(info)?;
        let mut hasher = Hasher::new();
        for chunk in described_bytes(info, tensor.borrow())?.chunks(CHUNK_BYTES) {
            hasher.update(chunk);
            file.write_all(chunk).map_err(|error| failed(&file, error))?;
            bytes += chunk.len() as u64;
        }
        data_sum.combine(&hasher);
        *sum = hasher.finalize();
    }
    let header = self::header(&infos, &sums, meta)?;
    file.seek(SeekFrom::Start(0)).map_err(|error| failed(&file, error))?;
    file.write_all(&header).map_err(|error| failed(&file, error))?;
    file.commit()?;
    let mut sum = Hasher::new();
    sum.update(&header);
    sum.combine(&data_sum);
    Ok(FileSum { bytes, crc32: sum.finalize() })
}

/// Returns the length and the header, with the header's checksum.
fn header(infos: &[&TensorInfo], sums: &[u32], meta: &BTreeMap<String, String>) -> Result<Vec<u8>> {
    let mut json = format!("{HEADER_SUM_START}{HEADER_SUM_ZEROS}\"");
    for (key, value) in meta {
        json += &format!(",{}:{}", quoted(key), quoted(value));
    }
    for (info, sum) in infos.iter().zip(sums) {
        json += &format!(",{}:\"{sum:08x}\"", quoted(&format!("{SUM}{}", info.name)));
    }
    json.push('}');
    let mut start = 0u64;
    for info in infos {
        let end = start.saturating_add(info_bytes(info)?);
        let dims: Vec<String> = info.shape.iter().map(|dim| dim.to_string()).collect();
        json += &format!(
            ",{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{start},{end}]}}",
            quoted(&info.name),
            dtype_name(info.dtype),
            dims.join(","),
        );
        start = end;
    }
    json.push('}');
    json += &" ".repeat(json.len().next_multiple_of(8) - json.len());
    if json.len() as u64 > HEADER_BYTES_MAX {
        return Err(Error::exhausted("too many tensors for one safetensors file")
            .expected(format!("a header of at most {}", text::bytes(HEADER_BYTES_MAX)))
            .got(text::bytes(json.len() as u64)));
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(json.as_bytes());
    let sum = format!("{:08x}", crc32fast::hash(&header));
    let place = 8 + HEADER_SUM_START.len();
    header[place..place + sum.len()].copy_from_slice(sum.as_bytes());
    Ok(header)
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// A tensor in a file.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    /// Offset from the start of the file.
    pub start: u64,
    pub bytes: u64,
    pub sum: Option<u32>,
}

/// An open file whose header has been checked.
pub(crate) struct Reader {
    pub source: Source,
    /// In the order of the file, whose data they cover without gaps.
    pub entries: Vec<Entry>,
    pub meta: BTreeMap<String, String>,
    /// Size and checksum of the whole file, as computed from its header; only for files with
    /// checksums.
    pub sum: Option<FileSum>,
}

impl Reader {
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<Reader> {
        let mut source = Source::open_on(disk, path)?;
        if source.bytes < 8 {
            return Err(source.damaged("the file is too short to be a safetensors file"));
        }
        let mut header = vec![0; 8];
        source.read_exact(&mut header)?;
        let length = u64::from_le_bytes([0, 1, 2, 3, 4, 5, 6, 7].map(|index| header[index]));
        if length > HEADER_BYTES_MAX || length > source.bytes - 8 {
            let mut first = [0];
            source.read_exact(&mut first[..usize::from(source.bytes > 8)])?;
            // A truncated safetensors file still starts with JSON; other files do not.
            if first != *b"{" {
                return Err(source.damaged("not a safetensors file"));
            }
            return Err(source
                .damaged("the safetensors file is truncated: its header is too long")
                .expected(format!("at most {} bytes", HEADER_BYTES_MAX.min(source.bytes - 8)))
                .got(length));
        }
        header.resize(8 + length as usize, 0);
        source.read_exact(&mut header[8..])?;
        let json: Value = serde_json::from_slice(&header[8..]).map_err(|error| {
            source.damaged(format!("the header of the safetensors file is invalid: {error}"))
        })?;
        let Value::Object(mut json) = json else {
            return Err(source.damaged("the header of the safetensors file is not an object"));
        };
        let meta = read_meta(json.remove(META)).map_err(|error| damaged(error, path))?;
        let has_sums =
            check_header_sum(&mut header, &meta).map_err(|error| damaged(error, path))?;
        let mut reader = Reader { source, entries: Vec::new(), meta, sum: None };
        reader.entries(json, header.len() as u64)?;
        if has_sums {
            reader.sums(&header)?;
        }
        Ok(reader)
    }

    /// Reads the tensors of the header, and checks their offsets against the file.
    fn entries(&mut self, json: Map<String, Value>, start: u64) -> Result<()> {
        for (name, value) in json {
            let entry = read_entry(&name, &value, start).map_err(|what| {
                self.source.damaged(format!("tensor '{name}' in the header is invalid: {what}"))
            })?;
            self.entries.push(entry);
        }
        self.entries.sort_by_key(|entry| (entry.start, entry.bytes));
        let mut end = start;
        for entry in &self.entries {
            if entry.start != end {
                return Err(self
                    .source
                    .damaged(format!(
                        "the bytes of tensor '{}' have an unexpected offset",
                        entry.name
                    ))
                    .expected(end)
                    .got(entry.start));
            }
            end = entry.start.saturating_add(entry.bytes);
        }
        let bytes = self.source.bytes;
        if end != bytes {
            let ends_in = |it: &&Entry| it.start.saturating_add(it.bytes) > bytes;
            let got = match self.entries.iter().find(ends_in) {
                Some(cut) => format!("{bytes}, which end in tensor '{}'", cut.name),
                None => bytes.to_string(),
            };
            return Err(self
                .source
                .damaged("file size does not match its header (truncated?)")
                .expected(format!("{end} bytes"))
                .got(got));
        }
        Ok(())
    }

    /// Reads the tensors' checksums from the header.
    fn sums(&mut self, header: &[u8]) -> Result<()> {
        let mut whole = Hasher::new();
        whole.update(header);
        for entry in &mut self.entries {
            let sum = self.meta.get(&format!("{SUM}{}", entry.name));
            let Some(sum) = sum.and_then(|sum| u32::from_str_radix(sum, 16).ok()) else {
                let what = format!("tensor '{}' has no checksum", entry.name);
                return Err(self.source.damaged(what));
            };
            entry.sum = Some(sum);
            whole.combine(&Hasher::new_with_initial_len(sum, entry.bytes));
        }
        self.sum = Some(FileSum { bytes: self.source.bytes, crc32: whole.finalize() });
        Ok(())
    }

    /// Rejects a file without checksums.
    pub fn require_checksums(self) -> Result<Reader> {
        if self.sum.is_some() {
            return Ok(self);
        }
        Err(self
            .source
            .damaged("the safetensors file has no checksums, so it is not a Fleet checkpoint")
            .help(
                "read files of other programs in Rust with \
                 fleet_format::read_safetensors, and write checkpoints with save_tensors",
            ))
    }

    pub fn read_all(&mut self) -> Result<NamedTensors> {
        self.read_where(&|_| true)
    }

    /// Reads the tensors for whose names `which` returns true.
    pub fn read_where(&mut self, which: &dyn Fn(&str) -> bool) -> Result<NamedTensors> {
        let entries = self.entries.clone();
        let wanted = entries.iter().filter(|entry| which(&entry.name));
        wanted.map(|entry| Ok((entry.name.clone(), self.read(entry)?))).collect()
    }

    /// Reads and checks one tensor.
    pub fn read(&mut self, entry: &Entry) -> Result<Tensor> {
        read_tensor(&mut self.source, entry)
    }

    /// Checks the bytes of one tensor without keeping them.
    pub fn check(&mut self, entry: &Entry) -> Result<()> {
        self.source.seek(entry.start)?;
        let (mut hasher, mut buffer) = (Hasher::new(), vec![0; CHUNK_BYTES]);
        let mut left = entry.bytes;
        while left > 0 {
            let chunk = &mut buffer[..left.min(CHUNK_BYTES as u64) as usize];
            self.source.read_exact(chunk)?;
            hasher.update(chunk);
            left -= chunk.len() as u64;
        }
        check_tensor_sum(&self.source, entry, hasher.finalize())
    }
}

/// Reads and checks one tensor of an open file.
pub(crate) fn read_tensor(source: &mut Source, entry: &Entry) -> Result<Tensor> {
    let mut tensor = Tensor::zeros(entry.dtype, entry.shape)
        .map_err(|error| error.at(format!("tensor '{}'", entry.name)))?;
    source.seek(entry.start)?;
    let mut hasher = Hasher::new();
    for chunk in tensor.as_bytes_mut().chunks_mut(CHUNK_BYTES) {
        source.read_exact(chunk)?;
        if entry.sum.is_some() {
            hasher.update(chunk);
        }
    }
    check_tensor_sum(source, entry, hasher.finalize())?;
    check_bools(&tensor)
        .map_err(|error| damaged(error.at(format!("tensor '{}'", entry.name)), &source.path))?;
    Ok(tensor)
}

/// Compares the checksum of a tensor's bytes with that of the header, if it has one.
fn check_tensor_sum(source: &Source, entry: &Entry, found: u32) -> Result<()> {
    match entry.sum.filter(|sum| *sum != found) {
        None => Ok(()),
        Some(sum) => Err(source
            .damaged(format!("tensor '{}' is damaged: its checksum does not match", entry.name))
            .expected(format!("{sum:08x}"))
            .got(format!("{found:08x}"))),
    }
}

fn damaged(error: Error, path: &Path) -> Error {
    error.at(path.display()).or_help(DAMAGED_FILE_HELP)
}

fn read_meta(value: Option<Value>) -> Result<BTreeMap<String, String>> {
    let invalid = || Error::invalid("the metadata of the safetensors header is invalid");
    match value {
        None => Ok(BTreeMap::new()),
        Some(Value::Object(meta)) => meta
            .into_iter()
            .map(|(key, value)| match value {
                Value::String(value) => Ok((key, value)),
                _ => Err(invalid().expected("string values")),
            })
            .collect(),
        Some(_) => Err(invalid().expected("an object")),
    }
}

/// Returns whether the header has a checksum; fails if it does not match. Leaves the header as it
/// is in the file.
fn check_header_sum(header: &mut [u8], meta: &BTreeMap<String, String>) -> Result<bool> {
    let Some(sum) = meta.get(HEADER_SUM) else {
        if meta.keys().any(|key| is_reserved(key)) {
            return Err(Error::invalid("the header of the safetensors file is damaged")
                .expected("its checksum")
                .got("only checksums of tensors"));
        }
        return Ok(false);
    };
    let place = 8 + HEADER_SUM_START.len();
    let damaged = Error::invalid("the header of the safetensors file is damaged");
    let written = header.get(place..place + HEADER_SUM_ZEROS.len()).map(<[u8]>::to_vec);
    let Some(written) = written.filter(|it| {
        header[8..].starts_with(HEADER_SUM_START.as_bytes()) && it.as_slice() == sum.as_bytes()
    }) else {
        return Err(damaged.expected("its checksum first"));
    };
    let place = place..place + HEADER_SUM_ZEROS.len();
    header[place.clone()].copy_from_slice(HEADER_SUM_ZEROS.as_bytes());
    let found = format!("{:08x}", crc32fast::hash(header));
    header[place].copy_from_slice(&written);
    if found != *sum {
        return Err(damaged.expected(format!("checksum {sum}")).got(found));
    }
    Ok(true)
}

fn read_entry(name: &str, value: &Value, data_start: u64) -> Result<Entry, String> {
    let dtype = value.get("dtype").and_then(Value::as_str).ok_or("no element type")?;
    let dtype =
        DType::ALL.into_iter().find(|known| dtype_name(*known) == dtype).ok_or_else(|| {
            let known = DType::ALL.map(dtype_name).join(", ");
            format!(
                "element type '{}' is not one of {known}",
                dtype.chars().take(20).collect::<String>()
            )
        })?;
    let dims = value.get("shape").and_then(Value::as_array).ok_or("no shape")?;
    if dims.len() > RANK_MAX {
        return Err(format!("{} dimensions exceed the limit of {RANK_MAX}", dims.len()));
    }
    let dims: Option<Vec<i64>> =
        dims.iter().map(|dim| dim.as_i64().filter(|dim| *dim >= 0)).collect();
    let shape = Shape::of(&dims.ok_or("a dimension is not a non-negative integer")?);
    let bytes = tensor_bytes(dtype, &shape).ok_or("the shape is too large")?;
    let offsets = value.get("data_offsets").and_then(Value::as_array).ok_or("no data_offsets")?;
    let offsets: Option<Vec<u64>> = offsets.iter().map(Value::as_u64).collect();
    let [from, to] = offsets.ok_or("data_offsets are not numbers")?[..] else {
        return Err("data_offsets are not two numbers".into());
    };
    if from.checked_add(bytes) != Some(to) {
        return Err(format!("data_offsets are {from} to {to}, but its shape needs {bytes} bytes"));
    }
    let start = data_start.checked_add(from).ok_or("its offset is out of range")?;
    Ok(Entry { name: name.to_string(), dtype, shape, start, bytes, sum: None })
}

fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "BOOL",
        DType::U8 => "U8",
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F32 => "F32",
        DType::F64 => "F64",
    }
}
