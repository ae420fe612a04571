//! Tensors and programs in files: checkpoints, safetensors, npy, npz, program files.
//!
//! Every file is written under a temporary name in the same folder, flushed to disk and then
//! renamed. A reader sees the old file or the new one, even after a crash of the machine.
//! Checkpoints carry checksums over every byte. A torn, truncated, changed or foreign file is
//! rejected with an error that names the file and the fault; none of its content is returned. Sizes
//! claimed by a file are checked against the file's size before memory is allocated for them.
//!
//! Tensors are written row-major. Tensors in other layouts are rejected; the caller must convert
//! them. This crate knows neither executors nor scopes.
//!
//! ```
//! use fleet_format::{Meta, list_tensors, load_tensors, load_vars, save_tensors};
//! use fleet_tensor::Tensor;
//!
//! # fn main() -> fleet_base::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("fleet-format-doc-{}", std::process::id()));
//! let w = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2])?;
//! let b = Tensor::from_slice(&[0.5f32, 0.5], [2])?;
//! let meta = Meta { step: 100, ..Meta::default() };
//! save_tensors(&folder, [("fc_0.w_0", &w), ("fc_0.b_0", &b)], &meta)?;
//!
//! let checkpoint = load_tensors(&folder)?;
//! assert_eq!(checkpoint.meta.step, 100);
//! let some = load_vars(&folder, &["fc_0.b_0"])?;
//! assert_eq!(some.tensors[0].1.to_vec::<f32>()?, [0.5, 0.5]);
//! let (infos, _) = list_tensors(&folder)?; // without reading them
//! let weights = infos.iter().find(|it| it.name == "fc_0.w_0");
//! assert_eq!(weights.map(|it| it.shape), Some([2, 2].into()));
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```
//!
//! Exchange of files with other programs:
//!
//! ```
//! use fleet_format::{read_npy, read_npz, read_safetensors};
//! use fleet_format::{write_npy, write_npz, write_safetensors};
//! use fleet_tensor::Tensor;
//!
//! # fn main() -> fleet_base::Result<()> {
//! # let folder = std::env::temp_dir().join(format!("fleet-exchange-doc-{}", std::process::id()));
//! # std::fs::create_dir_all(&folder).unwrap();
//! let w = Tensor::from_slice(&[1.0f32, 2.0], [2])?;
//! write_npy(folder.join("w.npy"), &w)?;
//! write_npz(folder.join("all.npz"), [("w", &w)])?;
//! let about = [("made by".to_string(), "an example".to_string())].into();
//! write_safetensors(folder.join("all.safetensors"), [("w", &w)], &about)?;
//!
//! assert_eq!(read_npy(folder.join("w.npy"))?.as_bytes(), w.as_bytes());
//! assert_eq!(read_npz(folder.join("all.npz"))?[0].0, "w");
//! let (tensors, found) = read_safetensors(folder.join("all.safetensors"))?;
//! assert_eq!((tensors.len(), found), (1, about));
//! # std::fs::remove_dir_all(&folder).ok();
//! # Ok(())
//! # }
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

// Tensors are written with the machine's byte order, and all formats here are little-endian.
#[cfg(target_endian = "big")]
compile_error!("fleet-format supports little-endian machines only");

mod checkpoint;
mod inspect;
mod model;
mod npy;
mod npz;
mod safetensors;
mod source;

pub use checkpoint::{
    Checkpoint, Meta, SaveState, list_tensors, list_tensors_on, load_tensors, load_tensors_on,
    load_vars, load_where_on, save_state_on, save_streamed_on, save_tensors, save_tensors_on,
};
pub use fleet_base::file::{AtomicFile, write_file};
pub use inspect::{CheckpointIndex, Damage, SavedTensor, find_damage_on};
pub use model::{
    Form, load_model, load_model_on, load_program, save_model, save_model_on, save_program,
};
pub use npy::{read_npy, write_npy};
pub use npz::{read_npz, write_npz};
pub use safetensors::{read_safetensors, write_safetensors};
pub use source::{NamedTensors, TensorInfo};
