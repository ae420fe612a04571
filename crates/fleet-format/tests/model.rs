//! Program files and models.

mod common;

use common::*;
use fleet_format::{Form, Meta, load_model, load_program, load_tensors, save_model, save_program};
use fleet_ir::{Dialect, Op, OpSpec, Program, Var, one};
use fleet_tensor::{DType, Tensor};
use std::fs;

struct Words;

impl Dialect for Words {
    fn spec(&self, name: &str) -> Option<&'static OpSpec> {
        (name == COPY.name).then_some(&COPY)
    }

    fn names(&self) -> Vec<&'static str> {
        vec![COPY.name]
    }
}

static COPY: OpSpec =
    OpSpec { name: "copy", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] };

fn program() -> Program {
    let mut p = Program::new();
    let x = p.add_var(Program::ROOT, Var::persistable("x", DType::F32, [2])).unwrap();
    let y = p.add_var(Program::ROOT, Var::new("y", DType::F32, [2])).unwrap();
    p.append_op(Program::ROOT, Op::build(&COPY).input("X", x).output("Out", y).finish().unwrap());
    p
}

#[test]
fn program_files_come_back() {
    let folder = Folder::new("programs");
    for form in [Form::Text, Form::Binary] {
        let path = folder.join("program");
        save_program(&path, &program(), form).unwrap();
        assert_eq!(load_program(&path, &Words).unwrap(), (program(), form));
        let content = fs::read(&path).unwrap();
        fs::write(&path, &content[..content.len() / 2]).unwrap();
        let error = load_program(&path, &Words).unwrap_err().to_string();
        assert!(error.contains("programs") && error.contains("at "), "{error}");
    }
    assert!(load_program(folder.join("none"), &Words).is_err());
    assert!(load_program(folder.join(""), &Words).is_err());
}

#[test]
fn models_come_back() {
    let folder = Folder::new("model");
    let path = folder.join("model");
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2]).unwrap();
    save_model(&path, &program(), [("x", &x)], &Meta::default()).unwrap();
    save_model(&path, &program(), [("x", &x)], &Meta { step: 2, ..Meta::default() }).unwrap();
    assert_eq!(
        files(&path),
        ["checkpoint.json", "program-000002.pb", "tensors-000002-000.safetensors"]
    );
    let (read, checkpoint) = load_model(&path, &Words).unwrap();
    assert_eq!((read, checkpoint.meta.step), (program(), 2));
    assert_eq!(checkpoint.tensors[0].1.to_vec::<f32>().unwrap(), [1.0, 2.0]);
    assert_eq!(load_program(&path, &Words).unwrap().0, program());
    let file = path.join("program-000002.pb");
    let content = fs::read(&file).unwrap();
    for index in 0..content.len() {
        let mut changed = content.clone();
        changed[index] ^= 4;
        fs::write(&file, &changed).unwrap();
        let error = load_model(&path, &Words).unwrap_err().to_string();
        assert!(error.contains("program-000002.pb"), "{error}");
    }
    fleet_format::save_tensors(&path, [("x", &x)], &Meta::default()).unwrap();
    let error = load_model(&path, &Words).unwrap_err().to_string();
    assert!(error.contains("has tensors but no program"), "{error}");
    assert_eq!(load_tensors(&path).unwrap().tensors.len(), 1);
}
