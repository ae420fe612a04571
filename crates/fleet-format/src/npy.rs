//! Single tensors in NumPy's `.npy` format: reads versions 1 to 3, writes version 1.
//!
//! Supports Fleet's element types, little- and big-endian, row-major and column-major. NumPy has no
//! bfloat16, so such a tensor must be cast before it is written.

use crate::source::{Source, check_bools, row_major_bytes, tensor_bytes};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use fleet_tensor::{DType, RANK_MAX, Shape, Tensor};
use std::io::{Read, Write};
use std::path::Path;

/// Reads a tensor from a `.npy` file.
pub fn read_npy(path: impl AsRef<Path>) -> Result<Tensor> {
    let mut source = Source::open(path.as_ref())?;
    let mut reader = std::io::BufReader::new(&mut source.file);
    read(&mut reader, source.bytes).map_err(|error| error.at(source.path.display()))
}

/// Writes a tensor to a `.npy` file.
pub fn write_npy(path: impl AsRef<Path>, tensor: &Tensor) -> Result<()> {
    let path = path.as_ref();
    let (header, bytes) = parts(&path.display().to_string(), tensor)?;
    let mut file = AtomicFile::create(path)?;
    for part in [&header, bytes] {
        file.write_all(part).map_err(|error| file.error("write", &error))?;
    }
    file.commit()
}

const MAGIC: &[u8] = b"\x93NUMPY";

/// Limit of a header's bytes; by default NumPy rejects longer headers too.
const HEADER_BYTES_MAX: usize = 10_000;

/// The header ends at a multiple of this, so that elements are aligned in a mapped file.
const ALIGN: usize = 64;

/// Returns the two parts of a file for a tensor: header and data.
pub(crate) fn parts<'t>(name: &str, tensor: &'t Tensor) -> Result<(Vec<u8>, &'t [u8])> {
    let bytes = row_major_bytes(name, tensor)?;
    let descr = descr_of(name, tensor.dtype())?;
    let dims: Vec<String> = tensor.shape().iter().map(|dim| dim.to_string()).collect();
    // In Python, a tuple of one element has a trailing comma.
    let comma = if dims.len() == 1 { "," } else { "" };
    let dict = format!(
        "{{'descr': '{descr}', 'fortran_order': False, 'shape': ({}{comma}), }}",
        dims.join(", ")
    );
    let before = MAGIC.len() + 4;
    let length = (before + dict.len() + 1).next_multiple_of(ALIGN) - before;
    let mut header = MAGIC.to_vec();
    header.extend_from_slice(&[1, 0]);
    // With at most eight dimensions, the header is far below 64 KiB.
    header.extend_from_slice(&(length as u16).to_le_bytes());
    header.extend_from_slice(dict.as_bytes());
    header.resize(before + length - 1, b' ');
    header.push(b'\n');
    Ok((header, bytes))
}

/// Returns NumPy's name of a tensor's type.
pub(crate) fn descr_of(name: &str, dtype: DType) -> Result<&'static str> {
    descr(dtype).ok_or_else(|| {
        Error::unsupported(format!("NumPy has no element type {dtype}"))
            .help("cast the tensor to f32, or save it as safetensors")
            .at(format!("tensor '{name}'"))
    })
}

fn descr(dtype: DType) -> Option<&'static str> {
    Some(match dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::BF16 => return None,
    })
}

/// Reads a tensor from a stream of `total` bytes.
pub(crate) fn read(reader: &mut impl Read, total: u64) -> Result<Tensor> {
    let (header, length) = read_header(reader)?;
    let expected = tensor_bytes(header.dtype, &header.shape)
        .ok_or_else(|| Error::invalid("the shape is too large").got(header.shape))?;
    let available = total.saturating_sub(length);
    if available != expected {
        return Err(Error::invalid("size of the npy data does not match its header")
            .expected(format!("{expected} bytes for {}{}", header.dtype, header.shape))
            .got(available));
    }
    let mut tensor = Tensor::zeros(header.dtype, header.shape)?;
    reader.read_exact(tensor.as_bytes_mut()).map_err(failed)?;
    // Reading to the end makes a stream check its own checksum.
    if reader.read(&mut [0]).map_err(failed)? != 0 {
        return Err(Error::invalid("the npy data has trailing bytes"));
    }
    if header.big_endian {
        let size = header.dtype.size();
        tensor.as_bytes_mut().chunks_exact_mut(size).for_each(<[u8]>::reverse);
    }
    check_bools(&tensor)?;
    if header.fortran_order { to_row_major(&tensor) } else { Ok(tensor) }
}

struct Header {
    dtype: DType,
    big_endian: bool,
    fortran_order: bool,
    shape: Shape,
}

fn failed(error: std::io::Error) -> Error {
    match error.kind() {
        std::io::ErrorKind::UnexpectedEof => Error::invalid("the npy data ends too early"),
        _ => Error::invalid(format!("cannot read the npy data: {error}")),
    }
}

/// Returns the header and the number of bytes before the elements.
fn read_header(reader: &mut impl Read) -> Result<(Header, u64)> {
    let mut start = [0; 8];
    reader.read_exact(&mut start).map_err(failed)?;
    if &start[..6] != MAGIC {
        return Err(Error::invalid("not npy data: it does not start with \\x93NUMPY"));
    }
    let length_bytes = match start[6] {
        1 => 2,
        2 | 3 => 4,
        other => {
            return Err(Error::unsupported("unknown npy version").expected("1, 2 or 3").got(other));
        }
    };
    let mut length = [0; 4];
    reader.read_exact(&mut length[..length_bytes]).map_err(failed)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > HEADER_BYTES_MAX {
        return Err(Error::invalid("the npy header is too long")
            .expected(format!("at most {HEADER_BYTES_MAX} bytes"))
            .got(length));
    }
    let mut text = vec![0; length];
    reader.read_exact(&mut text).map_err(failed)?;
    let text =
        std::str::from_utf8(&text).map_err(|_| Error::invalid("the npy header is not text"))?;
    let header = Dict { rest: text.trim() }.header()?;
    Ok((header, (8 + length_bytes + length) as u64))
}

/// Parser of the header's Python dictionary, which may have only the three known keys.
struct Dict<'t> {
    rest: &'t str,
}

impl<'t> Dict<'t> {
    fn header(mut self) -> Result<Header> {
        let (mut descr, mut fortran_order, mut shape) = (None, None, None);
        self.expect("{")?;
        while !self.accept("}") {
            let key = self.text()?;
            self.expect(":")?;
            let again = match key {
                "descr" => descr.replace(self.text()?).is_some(),
                "fortran_order" => fortran_order.replace(self.boolean()?).is_some(),
                "shape" => shape.replace(self.shape()?).is_some(),
                _ => return Err(self.invalid("descr, fortran_order or shape")),
            };
            if again {
                return Err(self.invalid("each key once"));
            }
            if !self.accept(",") {
                self.expect("}")?;
                break;
            }
        }
        let (Some(descr), Some(fortran_order), Some(shape)) = (descr, fortran_order, shape) else {
            return Err(self.invalid("descr, fortran_order and shape"));
        };
        if !self.rest.is_empty() {
            return Err(self.invalid("the end of the header"));
        }
        let (dtype, big_endian) = parse_descr(descr)?;
        Ok(Header { dtype, big_endian, fortran_order, shape })
    }

    fn invalid(&self, expected: &str) -> Error {
        let got: String = self.rest.chars().take(20).collect();
        Error::invalid("invalid npy header").expected(expected).got(format!("'{got}'"))
    }

    fn accept(&mut self, mark: &str) -> bool {
        let rest = self.rest.strip_prefix(mark);
        self.rest = rest.unwrap_or(self.rest).trim_start();
        rest.is_some()
    }

    fn expect(&mut self, mark: &str) -> Result<()> {
        if self.accept(mark) { Ok(()) } else { Err(self.invalid(mark)) }
    }

    fn text(&mut self) -> Result<&'t str> {
        let quote = if self.rest.starts_with('"') { '"' } else { '\'' };
        let inner = self.rest.strip_prefix(quote).and_then(|rest| rest.split_once(quote));
        let (text, rest) = inner.ok_or_else(|| self.invalid("a quoted string"))?;
        self.rest = rest.trim_start();
        Ok(text)
    }

    fn boolean(&mut self) -> Result<bool> {
        if self.accept("False") {
            return Ok(false);
        }
        self.expect("True").map(|()| true)
    }

    fn shape(&mut self) -> Result<Shape> {
        let mut dims = Vec::new();
        self.expect("(")?;
        while !self.accept(")") {
            let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
            let dim = self.rest[..digits].parse::<i64>();
            dims.push(dim.map_err(|_| self.invalid("a dimension"))?);
            self.rest = self.rest[digits..].trim_start();
            if dims.len() > RANK_MAX {
                return Err(self.invalid(&format!("at most {RANK_MAX} dimensions")));
            }
            if !self.accept(",") {
                self.expect(")")?;
                break;
            }
        }
        Shape::new(&dims)
    }
}

fn parse_descr(descr: &str) -> Result<(DType, bool)> {
    let (order, kind) = descr.split_at_checked(1).unwrap_or(("", ""));
    let found = DType::ALL
        .into_iter()
        .find(|dtype| self::descr(*dtype).is_some_and(|known| known[1..] == *kind));
    match (found, order) {
        (Some(dtype), "<" | "|" | "=") => Ok((dtype, false)),
        (Some(dtype), ">") => Ok((dtype, true)),
        _ => {
            let shown: String = descr.chars().take(20).collect();
            Err(Error::unsupported(format!(
                "element type '{shown}' of the npy data is not supported"
            ))
            .expected("b1, u1, i1, i2, i4, i8, f2, f4 or f8"))
        }
    }
}

/// Converts column-major elements (the first index varies fastest) to row-major.
fn to_row_major(tensor: &Tensor) -> Result<Tensor> {
    let (shape, size) = (*tensor.shape(), tensor.dtype().size());
    let mut out = Tensor::zeros(tensor.dtype(), shape)?;
    let rank = shape.rank();
    let mut index = [0usize; RANK_MAX];
    let source = tensor.as_bytes();
    for element in out.as_bytes_mut().chunks_exact_mut(size) {
        let from = (0..rank).rev().fold(0, |from, axis| from * shape.at(axis) + index[axis]);
        element.copy_from_slice(&source[from * size..(from + 1) * size]);
        for axis in (0..rank).rev() {
            index[axis] += 1;
            if index[axis] < shape.at(axis) {
                break;
            }
            index[axis] = 0;
        }
    }
    Ok(out)
}
