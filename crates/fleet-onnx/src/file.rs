//! ONNX files: a graph and its constants, written without a copy of large tensors.
//!
//! A protobuf file has at most 2 GiB. The tensors of a larger model go to a second file beside it,
//! `NAME.data`, as ONNX calls external data.

use crate::graph::type_number;
use crate::proto::{GraphProto, ModelProto, StringStringEntryProto, TensorProto};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result, text};
use fleet_tensor::Tensor;
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use std::io::{BufWriter, Write};
use std::path::Path;

/// A network with its constants, as an ONNX file holds it.
#[derive(Debug)]
pub struct OnnxModel {
    pub(crate) head: ModelProto,
    pub(crate) graph: GraphProto,
    pub(crate) initializers: Vec<(String, Tensor)>,
    pub(crate) opset: i64,
}

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenOnnx {
    /// Names of the inputs.
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Version of the op set.
    pub opset: i64,
    /// Number of nodes.
    pub nodes: usize,
    /// Size of the files.
    pub bytes: u64,
    /// Whether the tensors are in a second file.
    pub has_data_file: bool,
}

/// Limit on a protobuf file, in bytes.
const FILE_BYTES_MAX: u64 = i32::MAX as u64;
/// Size from which tensors go to the second file, in bytes. Smaller ones, such as shapes, are read
/// while a graph is loaded.
const EXTERNAL_BYTES_MIN: usize = 1024;
/// Alignment of tensors in the second file, in bytes: that of a page, so that readers can map them.
const ALIGNMENT: u64 = 4096;
/// Size of writes, in bytes.
const BUFFER_BYTES: usize = 1 << 20;

// Field numbers that are written by hand.
const MODEL_GRAPH: u32 = 7;
const GRAPH_INITIALIZER: u32 = 5;
const TENSOR_RAW_DATA: u32 = 9;

impl OnnxModel {
    /// Returns the size of the file, if it holds the tensors.
    pub fn byte_len(&self) -> u64 {
        let lens = self.lens(&[]);
        lens.0 + field_len(MODEL_GRAPH, lens.1)
    }

    /// Returns the bytes of the file.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, &[])
            .map_err(|error| Error::internal(format!("writing to memory failed: {error}")))?;
        Ok(bytes)
    }

    /// Writes the file atomically. Above 2 GiB, the tensors go to `PATH.data`.
    pub fn save(&self, path: &Path) -> Result<WrittenOnnx> {
        self.save_within(path, FILE_BYTES_MAX)
    }

    /// Like [`OnnxModel::save`], with another limit on the size of the file.
    pub(crate) fn save_within(&self, path: &Path, bytes_max: u64) -> Result<WrittenOnnx> {
        let mut bytes = self.byte_len();
        let has_data_file = bytes > bytes_max;
        let places = if has_data_file { self.places(path)? } else { Vec::new() };
        if has_data_file {
            let lens = self.lens(&places);
            let own = lens.0 + field_len(MODEL_GRAPH, lens.1);
            if own > bytes_max {
                return Err(Error::unsupported("the model does not fit an ONNX file")
                    .expected(format!("at most {} without its tensors", text::bytes(bytes_max)))
                    .got(text::bytes(own))
                    .help("export fewer rows: save the tables in mode 1 (base)"));
            }
            bytes = own + self.save_data(path, &places)?;
        }
        let file = AtomicFile::create(path)?;
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, file);
        let failed = |error: &std::io::Error| Error::io("write", path, error);
        self.write_to(&mut out, &places).map_err(|error| failed(&error))?;
        out.into_inner().map_err(|error| failed(error.error()))?.commit()?;
        let names = |infos: &[crate::proto::ValueInfoProto]| {
            infos.iter().map(|info| info.name.clone()).collect()
        };
        Ok(WrittenOnnx {
            inputs: names(&self.graph.input),
            outputs: names(&self.graph.output),
            opset: self.opset,
            nodes: self.graph.node.len(),
            bytes,
            has_data_file,
        })
    }

    /// Returns the place of each tensor in the second file; `None` if it is small.
    fn places(&self, path: &Path) -> Result<Vec<Option<Place>>> {
        let Some(name) = data_path(path).file_name().map(|it| it.to_string_lossy().into_owned())
        else {
            return Err(Error::invalid(format!("not a file name: {}", path.display())));
        };
        let mut end = 0;
        let place = |(_, tensor): &(String, Tensor)| {
            let length = tensor.as_bytes().len();
            (length >= EXTERNAL_BYTES_MIN).then(|| {
                let offset = u64::next_multiple_of(end, ALIGNMENT);
                end = offset + length as u64;
                Place { file: name.clone(), offset, length: length as u64 }
            })
        };
        Ok(self.initializers.iter().map(place).collect())
    }

    /// Writes the second file, and returns its size.
    fn save_data(&self, path: &Path, places: &[Option<Place>]) -> Result<u64> {
        let path = &data_path(path);
        let mut out = BufWriter::with_capacity(BUFFER_BYTES, AtomicFile::create(path)?);
        let failed = |error: &std::io::Error| Error::io("write", path, error);
        let mut end = 0;
        for ((_, tensor), place) in self.initializers.iter().zip(places) {
            let Some(place) = place else { continue };
            let gap = vec![0; (place.offset - end) as usize];
            out.write_all(&gap).map_err(|error| failed(&error))?;
            out.write_all(tensor.as_bytes()).map_err(|error| failed(&error))?;
            end = place.offset + place.length;
        }
        out.into_inner().map_err(|error| failed(error.error()))?.commit()?;
        Ok(end)
    }

    /// Returns the sizes of the head and of the graph.
    fn lens(&self, places: &[Option<Place>]) -> (u64, u64) {
        let mut graph = self.graph.encoded_len() as u64;
        for at in 0..self.initializers.len() {
            graph += field_len(GRAPH_INITIALIZER, self.initializer(at, places).len());
        }
        (self.head.encoded_len() as u64, graph)
    }

    /// Writes the file. Protobuf allows the fields of a message in any order.
    fn write_to(&self, out: &mut impl Write, places: &[Option<Place>]) -> std::io::Result<()> {
        let (_, graph_len) = self.lens(places);
        let mut bytes = self.head.encode_to_vec();
        begin_field(MODEL_GRAPH, graph_len, &mut bytes);
        bytes.extend(self.graph.encode_to_vec());
        out.write_all(&bytes)?;
        for at in 0..self.initializers.len() {
            let tensor = self.initializer(at, places);
            let mut bytes = Vec::new();
            begin_field(GRAPH_INITIALIZER, tensor.len(), &mut bytes);
            bytes.extend(tensor.head.encode_to_vec());
            if let Some(data) = tensor.data {
                begin_field(TENSOR_RAW_DATA, data.len() as u64, &mut bytes);
            }
            out.write_all(&bytes)?;
            out.write_all(tensor.data.unwrap_or_default())?;
        }
        out.flush()
    }

    fn initializer(&self, at: usize, places: &[Option<Place>]) -> InitializerParts<'_> {
        let (name, tensor) = &self.initializers[at];
        let mut head = TensorProto {
            dims: tensor.shape().to_vec(),
            data_type: type_number(tensor.dtype()),
            name: name.clone(),
            ..TensorProto::default()
        };
        let Some(Some(place)) = places.get(at) else {
            return InitializerParts { head, data: Some(tensor.as_bytes()) };
        };
        let entry = |key: &str, value: String| StringStringEntryProto { key: key.into(), value };
        head.external_data = vec![
            entry("location", place.file.clone()),
            entry("offset", place.offset.to_string()),
            entry("length", place.length.to_string()),
        ];
        head.data_location = Some(EXTERNAL);
        InitializerParts { head, data: None }
    }
}

/// Value of `data_location` for tensors in another file.
const EXTERNAL: i32 = 1;

/// A constant: its message without the elements, and the elements.
struct InitializerParts<'a> {
    head: TensorProto,
    data: Option<&'a [u8]>,
}

impl InitializerParts<'_> {
    fn len(&self) -> u64 {
        let data = self.data.map_or(0, |data| field_len(TENSOR_RAW_DATA, data.len() as u64));
        self.head.encoded_len() as u64 + data
    }
}

/// Place of a tensor in the second file.
struct Place {
    file: String,
    offset: u64,
    length: u64,
}

/// Returns the path of the second file.
fn data_path(path: &Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_os_string();
    name.push(".data");
    name.into()
}

/// Returns the size of a field of bytes.
fn field_len(tag: u32, len: u64) -> u64 {
    key_len(tag) as u64 + encoded_len_varint(len) as u64 + len
}

/// Writes the start of a field of bytes.
fn begin_field(tag: u32, len: u64, out: &mut Vec<u8>) {
    encode_key(tag, WireType::LengthDelimited, out);
    encode_varint(len, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_models_have_two_files() {
        let folder = std::env::temp_dir().join(format!("fleet-onnx-file-{}", std::process::id()));
        fleet_base::file::make_folder(&folder).unwrap();
        let path = folder.join("model.onnx");
        let large = |value: f32| Tensor::from_slice(&[value; 300], [300]).unwrap();
        let initializers = vec![
            ("a".to_string(), large(1.0)),
            ("small".to_string(), Tensor::from_slice(&[7.0f32], [1]).unwrap()),
            ("b".to_string(), large(2.0)),
        ];
        let (head, graph) = (ModelProto::default(), GraphProto::default());
        let model = OnnxModel { head, graph, initializers, opset: 17 };
        let one = model.save_within(&path, u64::MAX).unwrap();
        assert_eq!((one.has_data_file, one.bytes), (false, model.byte_len()));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), one.bytes);
        assert!(!folder.join("model.onnx.data").exists());

        let two = model.save_within(&path, 1000).unwrap();
        let data = std::fs::read(folder.join("model.onnx.data")).unwrap();
        let own = std::fs::read(&path).unwrap();
        assert!(two.has_data_file && two.bytes == (data.len() + own.len()) as u64);
        let graph = ModelProto::decode(&own[..]).unwrap().graph.unwrap();
        let places: Vec<Vec<&str>> = graph
            .initializer
            .iter()
            .map(|it| it.external_data.iter().map(|entry| &entry.value[..]).collect())
            .collect();
        let first = vec!["model.onnx.data", "0", "1200"];
        assert_eq!(places, [first, vec![], vec!["model.onnx.data", "4096", "1200"]]);
        assert_eq!(&data[4096..4100], 2f32.to_le_bytes());
        assert_eq!(graph.initializer[1].raw_data.as_deref(), Some(&7f32.to_le_bytes()[..]));

        let error = model.save_within(&path, 10).unwrap_err().to_string();
        assert!(error.contains("does not fit an ONNX file"), "{error}");
        let names: Vec<_> = std::fs::read_dir(&folder).unwrap().flatten().collect();
        assert_eq!(names.len(), 2, "a temporary file was left");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
