//! Files of other programs: safetensors are compared with the format's own crate, npy and npz with
//! the output of NumPy. Broken files are rejected without a panic.

mod common;

use common::*;
use fleet_base::rng::Sequence;
use fleet_format::{read_npy, read_npz, read_safetensors, write_npy, write_npz, write_safetensors};
use fleet_tensor::{DType, Shape, Tensor};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::fs;
use std::io::Write;
use std::path::Path;
use zip::write::SimpleFileOptions;

#[test]
fn others_read_our_safetensors() {
    let folder = Folder::new("ours");
    let path = folder.join("a.safetensors");
    let tensors = tensors();
    let meta = [("format".to_string(), "pt".to_string())].into();
    write_safetensors(&path, refs(&tensors), &meta).unwrap();
    let content = fs::read(&path).unwrap();
    let read = SafeTensors::deserialize(&content).unwrap();
    assert_eq!(read.len(), tensors.len());
    for (name, tensor) in &tensors {
        let view = read.tensor(name).unwrap();
        assert_eq!(view.data(), tensor.as_bytes());
        let dims: Vec<i64> = view.shape().iter().map(|dim| *dim as i64).collect();
        assert_eq!(dims, tensor.shape().dims());
        let offset = view.data().as_ptr() as usize - content.as_ptr() as usize;
        assert_eq!(offset % tensor.dtype().size(), 0, "elements are aligned in a mapped file");
    }
    let (_, header) = SafeTensors::read_metadata(&content).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    let (back, back_meta) = read_safetensors(&path).unwrap();
    assert_same(&back, &tensors);
    assert_eq!(back_meta, meta);
    let key = [("fleet.crc32".to_string(), String::new())].into();
    assert!(write_safetensors(&path, [], &key).is_err());
}

#[test]
fn we_read_their_safetensors() {
    let folder = Folder::new("theirs");
    let path = folder.join("a.safetensors");
    let data: Vec<u8> = [1.0f32, 2.0, 3.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![3, 1], &data).unwrap();
    let bools = TensorView::new(Dtype::BOOL, vec![2], &[1, 0]).unwrap();
    let meta = [("format".to_string(), "pt".to_string())].into_iter().collect();
    let bytes = safetensors::serialize([("w", &view), ("b", &bools)], Some(meta)).unwrap();
    fs::write(&path, &bytes).unwrap();
    let (read, meta) = read_safetensors(&path).unwrap();
    assert_eq!(meta["format"], "pt");
    let expected = [
        ("w".to_string(), Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3, 1]).unwrap()),
        ("b".to_string(), Tensor::from_bools(&[true, false], [2]).unwrap()),
    ];
    assert_same(&read, &expected);

    let check = |bytes: &[u8], part: &str| {
        fs::write(&path, bytes).unwrap();
        let error = read_safetensors(&path).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("a.safetensors"), "{error}");
    };
    let complex = TensorView::new(Dtype::U64, vec![1], &[0; 8]).unwrap();
    let bytes = safetensors::serialize([("w", &complex)], None).unwrap();
    check(&bytes, "tensor 'w' in the header is invalid: element type 'U64' is not one of BOOL");
    let bad = TensorView::new(Dtype::BOOL, vec![2], &[1, 7]).unwrap();
    check(&safetensors::serialize([("b", &bad)], None).unwrap(), "element 1 is not a boolean");
    let with = |header: &str, data: usize| {
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + data, 0);
        bytes
    };
    let one = |shape: &str, offsets: &str| {
        format!("{{\"w\":{{\"dtype\":\"F32\",\"shape\":[{shape}],\"data_offsets\":[{offsets}]}}}}")
    };
    check(&with(&one("2", "0,4"), 4), "data_offsets are 0 to 4, but its shape needs 8");
    check(&with(&one("1", "4,8"), 8), "have an unexpected offset");
    check(&with(&one("1", "0,4"), 8), "file size does not match its header");
    check(&with(&one("1", "0,4"), 3), "file size does not match its header");
    check(&with(&one("4611686018427387904,4", "0,0"), 0), "the shape is too large");
    check(&with(&one("1,1,1,1,1,1,1,1,1", "0,4"), 4), "9 dimensions exceed the limit of 8");
    check(&with(&one("-1", "0,4"), 4), "a dimension is not a non-negative integer");
    check(&with(&one("1", "0,4,5"), 4), "data_offsets are not two numbers");
    check(&with(&one("1", "18446744073709551612,18446744073709551615"), 4), "needs 4 bytes");
    check(&with("{\"w\": 1}", 0), "no element type");
    check(&with("{\"__metadata__\": 1}", 0), "the metadata of the safetensors header is invalid");
    check(
        &with("{\"__metadata__\": {\"crc32:w\": \"0\"}}", 0),
        "header of the safetensors file is damaged",
    );
    // A terabyte that is only claimed allocates no memory.
    check(&with(&one("274877906944", "0,1099511627776"), 16), "file size does not match");
}

/// Returns NumPy's output, byte for byte.
fn numpy_file(version: u8, dict: &str, data: &[u8]) -> Vec<u8> {
    let before = if version == 1 { 10 } else { 12 };
    let length = (before + dict.len() + 1).next_multiple_of(64) - before;
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    bytes.extend(&(length as u32).to_le_bytes()[..before - 8]);
    bytes.extend(format!("{dict:<width$}\n", width = length - 1).as_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn npy_is_what_numpy_writes() {
    let folder = Folder::new("npy");
    let path = folder.join("a.npy");
    let tensor = Tensor::from_slice(&[1i32, -2, 3, 4, 5, 6], [2, 3]).unwrap();
    write_npy(&path, &tensor).unwrap();
    let dict = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3), }";
    assert_eq!(fs::read(&path).unwrap(), numpy_file(1, dict, tensor.as_bytes()));
    for (name, tensor) in tensors() {
        if tensor.dtype() == DType::BF16 {
            let error = write_npy(&path, &tensor).unwrap_err().to_string();
            assert!(error.contains("NumPy has no element type bf16"), "{error}");
            continue;
        }
        write_npy(&path, &tensor).unwrap();
        assert_same(&[(name.clone(), read_npy(&path).unwrap())], &[(name, tensor)]);
    }
    let check = |content: &[u8], expected: &Tensor| {
        fs::write(&path, content).unwrap();
        let found = read_npy(&path).unwrap();
        assert_same(&[(String::new(), found)], &[(String::new(), expected.try_clone().unwrap())]);
    };
    let column_major: Vec<u8> =
        [1i32, 4, -2, 5, 3, 6].iter().flat_map(|v| v.to_le_bytes()).collect();
    check(&numpy_file(2, &dict.replace("False", "True"), &column_major), &tensor);
    let big: Vec<u8> = [1i32, -2, 3, 4, 5, 6].iter().flat_map(|v| v.to_be_bytes()).collect();
    check(&numpy_file(3, &dict.replace('<', ">"), &big), &tensor);
    let scalar = "{\"shape\": (), 'fortran_order': True, 'descr': '|b1'}";
    check(&numpy_file(1, scalar, &[1]), &Tensor::from_bools(&[true], Shape::SCALAR).unwrap());
    let row = dict.replace("(2, 3)", "(6,)");
    check(
        &numpy_file(1, &row, tensor.as_bytes()),
        &tensor.try_clone().unwrap().reshaped([6]).unwrap(),
    );
}

#[test]
fn broken_npy_is_refused() {
    let folder = Folder::new("broken-npy");
    let path = folder.join("a.npy");
    let check = |content: &[u8], part: &str| {
        fs::write(&path, content).unwrap();
        let error = read_npy(&path).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("a.npy"), "{error}, without {part}");
    };
    let dict = |descr: &str, shape: &str| {
        format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}")
    };
    check(b"", "ends too early");
    check(b"PK\x03\x04....", "not npy data");
    check(b"\x93NUMPY\x09\x00....", "unknown npy version: expected 1, 2 or 3, got 9");
    check(b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "the npy header is too long");
    check(&numpy_file(1, &dict("<f4", "(2,)"), &[0; 7]), "expected 8 bytes for f32[2], got 7");
    check(&numpy_file(1, &dict("<f4", "(2,)"), &[0; 9]), "expected 8 bytes for f32[2], got 9");
    check(
        &numpy_file(1, &dict("<f4", "(4294967296, 4294967296)"), &[0; 8]),
        "the shape is too large",
    );
    check(&numpy_file(1, &dict("<f4", "(99999999999999999999,)"), &[]), "a dimension");
    check(&numpy_file(1, &dict("<f4", "(1,1,1,1,1,1,1,1,1)"), &[0; 4]), "at most 8 dimensions");
    check(&numpy_file(1, &dict("<c8", "(1,)"), &[0; 8]), "element type '<c8'");
    check(&numpy_file(1, &dict("|O", "(1,)"), &[0; 8]), "element type '|O'");
    check(&numpy_file(1, &dict("", "(1,)"), &[0; 8]), "element type ''");
    check(&numpy_file(1, &dict("|b1", "(1,)"), &[2]), "element 0 is not a boolean");
    check(&numpy_file(1, "{'descr': [('a', '<f4')]}", &[]), "a quoted string");
    check(&numpy_file(1, "{'descr': '<f4'}", &[]), "descr, fortran_order and shape");
    check(&numpy_file(1, "{'other': '<f4'}", &[]), "descr, fortran_order or shape");
    check(&numpy_file(1, "{'descr': '<f4', 'descr': '<f4'}", &[]), "each key once");
    check(&numpy_file(1, "import os", &[]), "expected {");
}

#[test]
fn npz_goes_both_ways() {
    let folder = Folder::new("npz");
    let path = folder.join("a.npz");
    let mut tensors = tensors();
    let error = write_npz(&path, refs(&tensors)).unwrap_err().to_string();
    assert!(error.contains("NumPy has no element type bf16"), "{error}");
    assert!(files(path.parent().unwrap()).is_empty(), "nothing is left of a failed write");
    tensors.retain(|(_, tensor)| tensor.dtype() != DType::BF16);
    write_npz(&path, refs(&tensors)).unwrap();
    assert_same(&read_npz(&path).unwrap(), &tensors);
    // Like numpy.savez_compressed.
    let mut compressed = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let deflated =
        SimpleFileOptions::default().compression_method(zip::CompressionMethod::Deflated);
    for (name, tensor) in &tensors {
        let part = folder.join("part.npy");
        write_npy(&part, tensor).unwrap();
        compressed.start_file(format!("{name}.npy"), deflated).unwrap();
        compressed.write_all(&fs::read(&part).unwrap()).unwrap();
    }
    compressed.finish().unwrap();
    assert_same(&read_npz(&path).unwrap(), &tensors);
    let scalar = Tensor::scalar(1.0f32).unwrap();
    let twice = write_npz(&path, [("a", &scalar), ("a", &scalar)]).unwrap_err();
    assert!(twice.to_string().contains("duplicate tensor name 'a'"));
    assert!(write_npz(&path, [("n".repeat(70_000).as_str(), &scalar)]).is_err());
    fs::write(&path, "no zip").unwrap();
    let error = read_npz(&path).unwrap_err().to_string();
    assert!(error.contains("not a valid npz file") && error.contains("a.npz"), "{error}");
}

/// Files of every format with changed bytes: they are read or rejected, and always rejected where a
/// checksum covers the change.
#[test]
fn mutants_never_panic() {
    let folder = Folder::new("mutants");
    let mut tensors = tensors();
    tensors.retain(|(_, tensor)| tensor.dtype() != DType::BF16);
    write_npz(folder.join("a.npz"), refs(&tensors)).unwrap();
    write_npy(folder.join("a.npy"), &tensors[0].1).unwrap();
    let view = TensorView::new(Dtype::U8, vec![3], &[1, 2, 3]).unwrap();
    let plain = safetensors::serialize([("w", &view)], None).unwrap();
    fs::write(folder.join("a.safetensors"), plain).unwrap();
    let read = |path: &Path| match path.extension().unwrap().to_str().unwrap() {
        "npz" => read_npz(path).map(drop),
        "npy" => read_npy(path).map(drop),
        _ => read_safetensors(path).map(drop),
    };
    for name in ["a.npz", "a.npy", "a.safetensors"] {
        let path = folder.join(name);
        let content = fs::read(&path).unwrap();
        for case in 0..1500 {
            let mut rng = Sequence::new(9, case);
            let mut changed = content.clone();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(changed.len() as u64) as usize;
                match rng.below(5) {
                    0 => changed.truncate(at.max(1)),
                    1 => changed.insert(at, rng.below(256) as u8),
                    2 => drop(changed.remove(at)),
                    3 => changed[at] = [0, 0xff][rng.below(2) as usize],
                    _ => changed[at] ^= 1 << rng.below(8),
                }
                if changed.is_empty() {
                    changed.push(0);
                }
            }
            fs::write(&path, &changed).unwrap();
            if let Err(error) = read(&path) {
                let text = error.to_string();
                assert!(text.contains(name) && text.len() < 4000, "case {case}: {text}");
            }
        }
    }
}
