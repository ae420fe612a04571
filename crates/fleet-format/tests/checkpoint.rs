//! Checkpoints: they load completely and in part, any damage to their files is detected, and a
//! failed save leaves the previous one intact.

mod common;

use common::*;
use fleet_base::rng::Sequence;
use fleet_format::{Meta, list_tensors, load_tensors, load_vars, save_tensors};
use fleet_tensor::{DType, Layout, Shape, Tensor};
use safetensors::tensor::{Dtype, TensorView};
use std::fs;
use std::path::Path;

fn meta(step: u64) -> Meta {
    let entries = [("optimizer".to_string(), "adam \"x\"\n".to_string())].into();
    Meta { step, entries }
}

#[test]
fn tensors_come_back() {
    let folder = Folder::new("come-back");
    let tensors = tensors();
    for place in ["checkpoint", "one.safetensors"] {
        let path = folder.join(place);
        save_tensors(&path, refs(&tensors), &meta(12)).unwrap();
        let loaded = load_tensors(&path).unwrap();
        assert_same(&loaded.tensors, &tensors);
        assert_eq!(loaded.meta, meta(12));
        let (infos, listed_meta) = list_tensors(&path).unwrap();
        assert_eq!(listed_meta, meta(12));
        assert_eq!(infos.len(), tensors.len());
        for info in infos {
            let (_, tensor) = tensors.iter().find(|(name, _)| *name == info.name).unwrap();
            assert_eq!((info.dtype, info.shape), (tensor.dtype(), *tensor.shape()));
        }
    }
    let none = folder.join("none");
    save_tensors(&none, [], &Meta::default()).unwrap();
    assert_eq!(load_tensors(&none).unwrap().tensors.len(), 0);
}

#[test]
fn selected_tensors_come_back() {
    let folder = Folder::new("selected");
    let tensors = tensors();
    for place in ["checkpoint", "one.safetensors"] {
        let path = folder.join(place);
        save_tensors(&path, refs(&tensors), &meta(3)).unwrap();
        let names = [tensors[8].0.as_str(), "fc_0.w_0"];
        let some = load_vars(&path, &names).unwrap();
        assert_eq!(some.tensors[0].0, names[0]);
        assert_eq!(some.tensors[0].1.as_bytes(), tensors[8].1.as_bytes());
        assert_eq!(some.tensors[1].1.to_vec::<f32>().unwrap(), [1.5; 40]);
        assert_eq!(some.meta.step, 3);
        let error = load_vars(&path, &["fc_0.w_0", "fc_0.w0"]).unwrap_err().to_string();
        assert!(error.contains("no tensor 'fc_0.w0'; did you mean 'fc_0.w_0'?"), "{error}");
        assert!(error.contains(place), "{error}");
    }
}

#[test]
fn a_save_replaces_the_one_before() {
    let folder = Folder::new("replace");
    let path = folder.join("checkpoint");
    let (one, two) = (Tensor::scalar(1.0f32).unwrap(), Tensor::scalar(2.0f32).unwrap());
    save_tensors(&path, [("a", &one)], &meta(1)).unwrap();
    assert_eq!(files(&path), ["checkpoint.json", "tensors-000001-000.safetensors"]);
    // Leftovers of a crash, and unrelated files.
    fs::write(path.join(".tensors-000009-000.safetensors.77-0.tmp"), "x").unwrap();
    fs::write(path.join("tensors-000007-000.safetensors"), "x").unwrap();
    fs::write(path.join("notes.txt"), "mine").unwrap();
    assert_eq!(load_tensors(&path).unwrap().meta.step, 1);
    save_tensors(&path, [("b", &two)], &meta(2)).unwrap();
    assert_eq!(files(&path), ["checkpoint.json", "notes.txt", "tensors-000008-000.safetensors"]);
    let loaded = load_tensors(&path).unwrap();
    assert_eq!((loaded.meta.step, loaded.tensors[0].0.as_str()), (2, "b"));
}

#[test]
fn a_save_that_fails_changes_nothing() {
    let folder = Folder::new("fails");
    let good = Tensor::scalar(1.0f32).unwrap();
    let other = Tensor::zeros_in(DType::F32, Shape::from([3, 2, 1, 1]), Layout::Filter64).unwrap();
    for place in ["checkpoint", "one.safetensors"] {
        let path = folder.join(place);
        save_tensors(&path, [("a", &good)], &meta(1)).unwrap();
        let check = |tensors: &[(&str, &Tensor)], part: &str| {
            let error = save_tensors(&path, tensors.iter().copied(), &meta(2)).unwrap_err();
            assert!(error.to_string().contains(part), "{error}");
            assert_eq!(load_tensors(&path).unwrap().meta, meta(1));
        };
        check(&[("a", &good), ("w", &other)], "tensor 'w' is not row-major");
        check(&[("a", &good), ("a", &good)], "duplicate tensor name 'a'");
        check(&[("__metadata__", &good)], "tensor name '__metadata__' is reserved");
    }
    let path = folder.join("checkpoint");
    assert_eq!(files(&path), ["checkpoint.json", "tensors-000001-000.safetensors"]);
    assert_eq!(files(path.parent().unwrap()), ["checkpoint", "one.safetensors"]);
    let error = save_tensors(folder.join("no/such.safetensors"), [("a", &good)], &meta(1));
    assert!(error.unwrap_err().to_string().contains("such.safetensors"));
}

/// Changes one bit of every byte of every file, truncates files to every length, and adds bytes.
#[test]
fn whatever_is_done_to_a_file_is_noticed() {
    let folder = Folder::new("damage");
    let tensors = tensors();
    for place in ["checkpoint", "one.safetensors"] {
        let path = folder.join(place);
        save_tensors(&path, refs(&tensors), &meta(5)).unwrap();
        let parts: Vec<_> = if path.is_dir() {
            files(&path).iter().map(|name| path.join(name)).collect()
        } else {
            vec![path.clone()]
        };
        assert_eq!(parts.len(), if path.is_dir() { 2 } else { 1 });
        for part in &parts {
            damage(&path, part);
        }
        assert_same(&load_tensors(&path).unwrap().tensors, &tensors);
    }
}

fn damage(checkpoint: &Path, part: &Path) {
    let content = fs::read(part).unwrap();
    let mut rng = Sequence::new(8, content.len() as u64);
    let refused = |changed: &[u8], what: &str| {
        fs::write(part, changed).unwrap();
        let error = match load_tensors(checkpoint) {
            Ok(_) => panic!("{what} of {} was not noticed", part.display()),
            Err(error) => error.to_string(),
        };
        let name = part.file_name().unwrap().to_str().unwrap();
        assert!(error.contains(name), "{what}: the error does not name the file: {error}");
    };
    for index in 0..content.len() {
        let mut changed = content.clone();
        changed[index] ^= 1 << rng.below(8);
        refused(&changed, &format!("a changed bit in byte {index}"));
    }
    for length in 0..content.len() {
        refused(&content[..length], &format!("a cut at {length}"));
    }
    for case in 0..200 {
        let mut changed = content.clone();
        let from = rng.below(content.len() as u64) as usize;
        let to = (from + 1 + rng.below(64) as usize).min(content.len());
        match case % 4 {
            0 => changed.extend((0..1 + rng.below(9)).map(|_| 0)),
            1 => changed[from..to].fill(0),
            2 => drop(changed.drain(from..to)),
            _ => drop(changed.splice(from..from, [rng.below(256) as u8])),
        }
        if changed != content {
            refused(&changed, &format!("damage {case} at {from}..{to}"));
        }
    }
    fs::write(part, &content).unwrap();
}

#[test]
fn selected_tensors_need_only_their_own_bytes() {
    let folder = Folder::new("own-bytes");
    let path = folder.join("one.safetensors");
    let (a, b) = (Tensor::scalar(1i64).unwrap(), Tensor::scalar(2i64).unwrap());
    save_tensors(&path, [("a", &a), ("b", &b)], &meta(1)).unwrap();
    let mut content = fs::read(&path).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(&path, &content).unwrap();
    assert_eq!(load_vars(&path, &["a"]).unwrap().tensors[0].1.item::<i64>().unwrap(), 1);
    let error = load_vars(&path, &["b"]).unwrap_err().to_string();
    assert!(error.starts_with("tensor 'b' is damaged: its checksum does not match"), "{error}");
}

#[test]
fn foreign_files_are_refused() {
    let folder = Folder::new("foreign");
    let check = |path: &Path, part: &str| {
        let error = load_tensors(path).unwrap_err().to_string();
        assert!(error.contains(part), "{}: {error}", path.display());
    };
    let empty = folder.join("empty");
    fs::create_dir(&empty).unwrap();
    check(&empty, "the folder has no checkpoint: no checkpoint.json in it");
    check(&folder.join("nothing"), "cannot open");
    let path = folder.join("file.safetensors");
    fs::write(&path, "").unwrap();
    check(&path, "too short");
    fs::write(&path, "PK\x03\x04 this is a zip file").unwrap();
    check(&path, "not a safetensors file\n");
    fs::write(&path, [&[99, 0, 0, 0, 0, 0, 0, 0], &b"{}"[..]].concat()).unwrap();
    check(&path, "is truncated: its header is too long: expected at most 2 bytes, got 99");
    fs::write(&path, [&[9, 0, 0, 0, 0, 0, 0, 0], &b"[1, 2, 3]"[..]].concat()).unwrap();
    check(&path, "is not an object");
    fs::write(&path, [&[2, 0, 0, 0, 0, 0, 0, 0], &b"{}"[..]].concat()).unwrap();
    assert!(load_tensors(&path).unwrap().tensors.is_empty(), "a safetensors file without tensors");
    // Checksums of tensors alone are those of a damaged file of Fleet.
    let header = br#"{"__metadata__":{"fleet.step":"1"}}"#;
    fs::write(&path, [&(header.len() as u64).to_le_bytes(), &header[..]].concat()).unwrap();
    check(&path, "the header of the safetensors file is damaged");
    let npz = folder.join("file.npz");
    fs::write(&npz, "not a zip file").unwrap();
    check(&npz, "not a valid npz file");
    // A manifest entry that points outside its folder is rejected, even with a correct checksum.
    let scalar = Tensor::scalar(1.0f32).unwrap();
    let other = folder.join("other");
    save_tensors(&other, [("a", &scalar)], &meta(1)).unwrap();
    check(&other.join("checkpoint.json"), "help: pass the folder that contains it");
    let list = fs::read_to_string(other.join("checkpoint.json")).unwrap();
    let list = list.replace("tensors-000001-000.safetensors", "tensors-1-../x.safetensors");
    let sum = list.find("\"crc32\": \"").unwrap() + 10;
    let zeros = format!("{}00000000{}", &list[..sum], &list[sum + 8..]);
    let list =
        format!("{}{:08x}{}", &list[..sum], crc32fast::hash(zeros.as_bytes()), &list[sum + 8..]);
    fs::write(other.join("checkpoint.json"), list).unwrap();
    check(&other, "the checkpoint's manifest has no valid file entries");
}

/// The ending of the path chooses the format. Files without a step load as step 0, and files of
/// other programs load like those of Fleet.
#[test]
fn one_file_in_the_format_of_its_ending() {
    let folder = Folder::new("endings");
    let tensors = tensors();
    for (ending, step) in [("safetensors", 7), ("npz", 0)] {
        let path = folder.join(&format!("all.{ending}"));
        // NumPy has no bf16.
        let known = |tensor: &Tensor| ending != "npz" || tensor.dtype() != DType::BF16;
        let saved = || refs(&tensors).into_iter().filter(|(_, tensor)| known(tensor));
        save_tensors(&path, saved(), &meta(7)).unwrap();
        assert!(path.is_file());
        let loaded = load_tensors(&path).unwrap();
        assert_eq!((loaded.tensors.len(), loaded.meta.step), (saved().count(), step), "{ending}");
        for (name, tensor) in saved() {
            let one = &load_vars(&path, &[name]).unwrap().tensors[0];
            assert_eq!((&*one.0, one.1.as_bytes()), (name, tensor.as_bytes()));
        }
        let (infos, _) = list_tensors(&path).unwrap();
        assert!(infos.iter().any(|it| it.name == "fc_0.w_0" && it.shape == [4, 10].into()));
        let error = load_vars(&path, &["fc_0.w_1"]).unwrap_err().to_string();
        assert!(error.contains("no tensor 'fc_0.w_1'; did you mean 'fc_0.w_0'?"), "{error}");
    }
    let path = folder.join("theirs.safetensors");
    let data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![2], &data).unwrap();
    let about = [("format".to_string(), "pt".to_string())].into_iter().collect();
    fs::write(&path, safetensors::serialize([("w", &view)], Some(about)).unwrap()).unwrap();
    let loaded = load_tensors(&path).unwrap();
    assert_eq!(loaded.tensors[0].1.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(loaded.meta, Meta::default());
}

/// Files that are intact on their own but do not belong together.
#[test]
fn mixed_checkpoints_are_refused() {
    let folder = Folder::new("mixed");
    let (one, two) = (folder.join("one"), folder.join("two"));
    save_tensors(&one, [("a", &Tensor::scalar(1.0f32).unwrap())], &meta(1)).unwrap();
    save_tensors(&two, [("a", &Tensor::scalar(2.0f32).unwrap())], &meta(1)).unwrap();
    let part = "tensors-000001-000.safetensors";
    fs::copy(two.join(part), one.join(part)).unwrap();
    let error = load_tensors(&one).unwrap_err().to_string();
    assert!(error.contains("file does not match checkpoint.json"), "{error}");
}
