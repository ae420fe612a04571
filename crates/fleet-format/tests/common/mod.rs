//! Temporary folders, tensors of every type, and comparison.
#![allow(dead_code)] // each test file uses a part

use fleet_base::rng::Sequence;
use fleet_tensor::{DType, Shape, Tensor};
use std::path::{Path, PathBuf};

/// A temporary folder that is removed at the end of the test.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("fleet-format-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&path).expect("the temporary folder can be written");
        Folder(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A tensor of each type, with edge cases of shapes.
pub fn tensors() -> Vec<(String, Tensor)> {
    let mut rng = Sequence::new(7, 0);
    let shapes =
        [Shape::from([3, 5]), Shape::SCALAR, Shape::from([0, 4]), Shape::from([2, 1, 3, 1, 2])];
    let mut out = Vec::new();
    for (index, dtype) in DType::ALL.into_iter().enumerate() {
        let shape = shapes[index % shapes.len()];
        let mut tensor = Tensor::zeros(dtype, shape).unwrap();
        for byte in tensor.as_bytes_mut() {
            *byte = rng.below(if dtype == DType::Bool { 2 } else { 256 }) as u8;
        }
        out.push((format!("layer/{dtype}.w_0@\"quoted\" ü"), tensor));
    }
    out.push(("fc_0.w_0".into(), Tensor::from_slice(&[1.5f32; 40], [4, 10]).unwrap()));
    out
}

pub fn refs(tensors: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
}

/// Checks names, types, shapes and bytes, in any order.
pub fn assert_same(found: &[(String, Tensor)], expected: &[(String, Tensor)]) {
    assert_eq!(found.len(), expected.len());
    for (name, tensor) in expected {
        let (_, other) = found.iter().find(|(other, _)| other == name).expect(name);
        assert_eq!((other.dtype(), other.shape()), (tensor.dtype(), tensor.shape()), "{name}");
        assert_eq!(other.as_bytes(), tensor.as_bytes(), "{name}");
    }
}

/// Returns the names of files in a folder, sorted.
pub fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}
