//! The protobuf form of programs, for files and connections. It is smaller than the text form and
//! faster to read. `proto/program.proto` documents it. The messages below mirror that file by hand,
//! so that the build needs no protobuf compiler.
//!
//! The reader accepts untrusted bytes. The length of the input bounds every allocation. Names and
//! numbers are checked, ops go through the usual builder, and blocks must form a tree.

use crate::limits::{BLOCK_DEPTH_MAX, BlockOwners, check_bytes, depth};
use crate::names::NAME_BYTES_MAX;
use crate::scan::check_counts;
use crate::text::VERSION;
use crate::{
    Attr, BlockId, Dialect, Division, Op, OpRole, OpSpec, Param, Program, Regularizer, Var, VarId,
    VarKind,
};
use fleet_base::{EntityRef, Error, Result, text};
use fleet_tensor::{DType, Layout, Shape};
use message as pb;
use prost::Message;
use std::collections::HashMap;
use std::sync::Arc;

impl Program {
    /// Encodes the program in the protobuf form.
    pub fn to_bytes(&self) -> Vec<u8> {
        let numbers: HashMap<VarId, u32> = self.vars().map(|(id, _)| id).zip(0..).collect();
        let block = |id: BlockId| {
            let block = self.block(id);
            pb::Block {
                parent: block.parent.map(number),
                vars: block.vars().iter().map(|id| write_var(self.var(*id))).collect(),
                ops: self.block_ops(id).map(|(_, op)| write_op(op, &numbers)).collect(),
            }
        };
        let program = pb::Program {
            version: VERSION.into(),
            seed: self.seed(),
            streams: self.streams(),
            blocks: self.block_ids().map(block).collect(),
        };
        program.encode_to_vec()
    }

    /// Decodes the protobuf form. `dialect` provides the specs of ops.
    pub fn from_bytes(bytes: &[u8], dialect: &dyn Dialect) -> Result<Program> {
        check_bytes(bytes.len())?;
        if Program::is_text(bytes) {
            return Err(Error::invalid("not a program").expected(
                "text that starts with 'fleet program', or protobuf that starts with a version",
            ));
        }
        check_counts(bytes)?;
        let message = pb::Program::decode(bytes)
            .map_err(|error| Error::invalid(format!("malformed protobuf program: {error}")))?;
        if message.version != u64::from(VERSION) {
            return Err(Error::unsupported("unsupported version of the binary format")
                .expected(VERSION)
                .got(message.version));
        }
        read_program(message, dialect)
    }

    /// Whether these bytes are to be read as the text form.
    pub fn is_text(bytes: &[u8]) -> bool {
        bytes.first() != Some(&VERSION_TAG)
    }

    /// Reads either form. The first byte distinguishes them.
    pub fn read(bytes: &[u8], dialect: &dyn Dialect) -> Result<Program> {
        if !Program::is_text(bytes) {
            return Program::from_bytes(bytes, dialect);
        }
        match std::str::from_utf8(bytes) {
            Ok(text) => Program::parse(text, dialect),
            Err(_) => Err(Error::invalid("not a program").expected(
                "text that starts with 'fleet program', or protobuf that starts with a version",
            )),
        }
    }
}

/// The key of field 1 (a varint): the first byte of every program in protobuf form, and never the
/// first byte of a text.
const VERSION_TAG: u8 = 0x08;

fn number(id: impl EntityRef) -> u32 {
    id.index() as u32
}

fn write_var(var: &Var) -> pb::Var {
    pb::Var {
        name: var.name.clone(),
        dtype: dtype_number(var.dtype),
        shape: var.shape.to_vec(),
        kind: match var.kind {
            VarKind::Dense => pb::VarKind::Dense,
            VarKind::SparseRows => pb::VarKind::SparseRows,
            VarKind::TensorArray => pb::VarKind::TensorArray,
        }
        .into(),
        persistable: var.persistable,
        stop_gradient: var.stop_gradient,
        is_data: var.is_data,
        lod_level: u32::from(var.lod_level),
        param: var.param.as_ref().map(|param| pb::Param {
            trainable: param.trainable,
            learning_rate: param.learning_rate,
            regularizer: param.regularizer.map(|it| match it {
                Regularizer::L1(coeff) => pb::Regularizer::L1(coeff),
                Regularizer::L2(coeff) => pb::Regularizer::L2(coeff),
            }),
            need_clip: param.need_clip,
            is_distributed: param.is_distributed,
        }),
        layout: Layout::ALL.iter().position(|it| *it == var.layout).unwrap_or_default() as i32,
        division: var.division.map(|it| pb::Division {
            axis: it.axis as u64,
            groups: it.groups as u64,
            part: it.part as u64,
            parts: it.parts as u64,
            padding: it.padding as u64,
        }),
    }
}

fn write_op(op: &Op, numbers: &HashMap<VarId, u32>) -> pb::Op {
    // A variable that is in no block gets a number that every reader rejects.
    let vars = |ids: &[VarId]| ids.iter().map(|id| *numbers.get(id).unwrap_or(&u32::MAX)).collect();
    let slots = |names: &[crate::SlotSpec], slots: &[Vec<VarId>]| {
        let used = names.iter().zip(slots).filter(|(_, ids)| !ids.is_empty());
        used.map(|(slot, ids)| pb::Slot { name: slot.name.into(), vars: vars(ids) }).collect()
    };
    let attrs = op.spec.attrs.iter().zip(&op.attrs);
    pb::Op {
        name: op.name().into(),
        inputs: slots(op.spec.inputs, &op.inputs),
        outputs: slots(op.spec.outputs, &op.outputs),
        attrs: attrs
            .map(|(spec, value)| pb::Attr {
                name: spec.name.into(),
                value: Some(write_value(value)),
            })
            .collect(),
        role: op.role.0,
        device: op.device.as_deref().map(str::to_string),
        source: op.source.as_deref().map(str::to_string),
        fp16_guard: op.fp16_guard,
    }
}

fn write_value(value: &Attr) -> pb::Value {
    match value {
        Attr::Int(value) => pb::Value::IntValue(*value),
        Attr::Float(value) => pb::Value::FloatValue(*value),
        Attr::Bool(value) => pb::Value::BoolValue(*value),
        Attr::Str(value) => pb::Value::StrValue(value.clone()),
        Attr::Ints(values) => pb::Value::IntsValue(pb::Ints { values: values.clone() }),
        Attr::Floats(values) => pb::Value::FloatsValue(pb::Floats { values: values.clone() }),
        Attr::Strs(values) => pb::Value::StrsValue(pb::Strs { values: values.clone() }),
        Attr::DType(value) => pb::Value::DtypeValue(dtype_number(*value)),
        Attr::Block(value) => pb::Value::BlockValue(number(*value)),
    }
}

fn read_program(message: pb::Program, dialect: &dyn Dialect) -> Result<Program> {
    let mut program = Program::new();
    program.set_seed(message.seed);
    program.set_streams(message.streams);
    let mut vars = Vec::new();
    let mut blocks = Vec::with_capacity(message.blocks.len());
    if message.blocks.is_empty() {
        return Err(Error::invalid("the program has no blocks"));
    }
    for (index, block) in message.blocks.into_iter().enumerate() {
        let id = read_block(&mut program, index, block.parent)
            .map_err(|error| error.at(format!("block{index}")))?;
        for var in block.vars {
            let name = clipped(&var.name);
            let var = read_var(var).and_then(|var| program.add_var(id, var));
            vars.push(var.map_err(|error| error.at(format!("variable '{name}' of {id}")))?);
        }
        blocks.push((id, block.ops));
    }
    let mut reader = OpReader {
        dialect,
        specs: HashMap::new(),
        vars,
        labels: HashMap::new(),
        owners: BlockOwners::default(),
    };
    for (block, ops) in blocks {
        for (index, message) in ops.into_iter().enumerate() {
            let place = |error: Error, name: &str| {
                let place =
                    if block == Program::ROOT { String::new() } else { format!("{block} ") };
                error.at(format!("{place}op {index} {name}"))
            };
            let name = clipped(&message.name);
            let op = reader.op(&program, block, message).map_err(|error| place(error, &name))?;
            program.append_op(block, op);
        }
    }
    Ok(program)
}

fn read_block(program: &mut Program, index: usize, parent: Option<u32>) -> Result<BlockId> {
    let Some(parent) = parent else {
        return match index {
            0 => Ok(Program::ROOT),
            _ => Err(Error::invalid("block without a parent")
                .expected("a parent for every block but block0")),
        };
    };
    if parent as usize >= index {
        return Err(Error::invalid("the parent of a block does not precede it")
            .expected(format!("a block below {index}"))
            .got(parent));
    }
    let parent = BlockId::from_index(parent as usize);
    if depth(program, parent) >= BLOCK_DEPTH_MAX {
        return Err(Error::invalid("blocks are nested too deeply")
            .expected(format!("at most {BLOCK_DEPTH_MAX} levels")));
    }
    Ok(program.add_block(parent))
}

fn read_var(var: pb::Var) -> Result<Var> {
    Ok(Var {
        name: var.name,
        block: Program::ROOT,
        dtype: read_dtype(var.dtype)?,
        shape: Shape::new(&var.shape)?,
        kind: match pb::VarKind::try_from(var.kind) {
            Ok(pb::VarKind::Dense) => VarKind::Dense,
            Ok(pb::VarKind::SparseRows) => VarKind::SparseRows,
            Ok(pb::VarKind::TensorArray) => VarKind::TensorArray,
            Err(_) => return Err(Error::invalid("unknown kind of variable").got(var.kind)),
        },
        layout: Layout::ALL
            .get(var.layout as usize)
            .copied()
            .ok_or_else(|| Error::invalid("unknown layout").got(var.layout))?,
        persistable: var.persistable,
        stop_gradient: var.stop_gradient,
        is_data: var.is_data,
        lod_level: u8::try_from(var.lod_level).map_err(|_| {
            Error::invalid("too many lod levels").expected("at most 255").got(var.lod_level)
        })?,
        division: var.division.map(read_division).transpose()?,
        param: var.param.map(|param| Param {
            trainable: param.trainable,
            learning_rate: param.learning_rate,
            regularizer: param.regularizer.map(|it| match it {
                pb::Regularizer::L1(coeff) => Regularizer::L1(coeff),
                pb::Regularizer::L2(coeff) => Regularizer::L2(coeff),
            }),
            need_clip: param.need_clip,
            is_distributed: param.is_distributed,
        }),
    })
}

fn read_division(division: pb::Division) -> Result<Division> {
    let count = |number: u64| {
        usize::try_from(number)
            .map_err(|_| Error::invalid("division of a variable into too many parts").got(number))
    };
    Ok(Division {
        axis: count(division.axis)?,
        groups: count(division.groups)?,
        part: count(division.part)?,
        parts: count(division.parts)?,
        padding: count(division.padding)?,
    })
}

/// Reads ops once every variable is known.
struct OpReader<'d> {
    dialect: &'d dyn Dialect,
    specs: HashMap<String, &'static OpSpec>,
    /// Variables by their number in the file.
    vars: Vec<VarId>,
    /// Labels repeat; each text is stored once.
    labels: HashMap<String, Arc<str>>,
    owners: BlockOwners,
}

impl OpReader<'_> {
    fn op(&mut self, program: &Program, block: BlockId, message: pb::Op) -> Result<Op> {
        let spec = self.spec(message.name)?;
        let mut builder = Op::build(spec);
        let mut seen = Vec::new();
        for slot in message.inputs {
            check_unique_name(&mut seen, "input slot", &slot.name)?;
            builder = builder.inputs(&slot.name, &self.find(&slot.vars)?);
        }
        seen.clear();
        for slot in message.outputs {
            check_unique_name(&mut seen, "output slot", &slot.name)?;
            builder = builder.outputs(&slot.name, &self.find(&slot.vars)?);
        }
        seen.clear();
        for attr in message.attrs {
            check_unique_name(&mut seen, "attribute", &attr.name)?;
            let value = read_value(attr.value)
                .map_err(|error| error.at(format!("attribute '{}'", attr.name)))?;
            if let Attr::Block(inner) = value {
                self.owners.claim(program, block, inner)?;
            }
            builder = builder.attr(&attr.name, value);
        }
        builder
            .role(OpRole(message.role))
            .device(message.device.map(|label| self.label(label)))
            .fp16_guard(message.fp16_guard)
            .source(message.source.map(|label| self.label(label)))
            .finish()
    }

    fn spec(&mut self, name: String) -> Result<&'static OpSpec> {
        if let Some(spec) = self.specs.get(&name) {
            return Ok(spec);
        }
        let spec = self.dialect.spec(&name).ok_or_else(|| {
            let name = clipped(&name);
            let hint = text::did_you_mean(&name, self.dialect.names());
            Error::invalid(format!("unknown op '{name}'{hint}"))
        })?;
        self.specs.insert(name, spec);
        Ok(spec)
    }

    fn find(&self, numbers: &[u32]) -> Result<Vec<VarId>> {
        let find = |number: &u32| {
            self.vars.get(*number as usize).copied().ok_or_else(|| {
                Error::invalid("an op refers to an unknown variable")
                    .expected(format!("a number below {}", self.vars.len()))
                    .got(number)
            })
        };
        numbers.iter().map(find).collect()
    }

    fn label(&mut self, label: String) -> Arc<str> {
        self.labels.entry(label).or_insert_with_key(|label| Arc::from(label.as_str())).clone()
    }
}

/// Rejects a repeated slot or attribute name, and names that are too long to search for. An op has
/// a bounded number of each (see `scan.rs`), so a linear search suffices.
fn check_unique_name(seen: &mut Vec<String>, what: &str, name: &str) -> Result<()> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid(format!("the name of an {what} is too long"))
            .expected(format!("at most {NAME_BYTES_MAX} bytes"))
            .got(name.len()));
    }
    if seen.iter().any(|other| other == name) {
        return Err(Error::invalid(format!("duplicate {what} '{name}'")));
    }
    seen.push(name.to_string());
    Ok(())
}

fn read_value(value: Option<pb::Value>) -> Result<Attr> {
    Ok(match value {
        None => return Err(Error::invalid("an attribute has no value")),
        Some(pb::Value::IntValue(value)) => Attr::Int(value),
        Some(pb::Value::FloatValue(value)) => Attr::Float(value),
        Some(pb::Value::BoolValue(value)) => Attr::Bool(value),
        Some(pb::Value::StrValue(value)) => Attr::Str(value),
        Some(pb::Value::IntsValue(list)) => Attr::Ints(list.values),
        Some(pb::Value::FloatsValue(list)) => Attr::Floats(list.values),
        Some(pb::Value::StrsValue(list)) => Attr::Strs(list.values),
        Some(pb::Value::DtypeValue(value)) => Attr::DType(read_dtype(value)?),
        Some(pb::Value::BlockValue(u32::MAX)) => {
            return Err(Error::invalid("invalid block id in an attribute"));
        }
        Some(pb::Value::BlockValue(value)) => Attr::Block(BlockId::from_index(value as usize)),
    })
}

/// The number of an element type is its index in [`DType::ALL`] plus 1.
fn dtype_number(dtype: DType) -> i32 {
    DType::ALL.iter().position(|other| *other == dtype).map_or(0, |index| index as i32 + 1)
}

fn read_dtype(number: i32) -> Result<DType> {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    index
        .and_then(|index| DType::ALL.get(index).copied())
        .ok_or_else(|| Error::invalid("unknown element type").got(number))
}

fn clipped(name: &str) -> String {
    crate::lex::clipped(name).into_owned()
}

/// The messages of `proto/program.proto`.
mod message {
    use prost::{Enumeration, Message, Oneof};

    #[derive(Clone, PartialEq, Message)]
    pub struct Program {
        #[prost(uint64, tag = "1")]
        pub version: u64,
        #[prost(uint64, tag = "2")]
        pub seed: u64,
        #[prost(uint64, tag = "3")]
        pub streams: u64,
        #[prost(message, repeated, tag = "4")]
        pub blocks: Vec<Block>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Block {
        #[prost(uint32, optional, tag = "1")]
        pub parent: Option<u32>,
        #[prost(message, repeated, tag = "2")]
        pub vars: Vec<Var>,
        #[prost(message, repeated, tag = "3")]
        pub ops: Vec<Op>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Var {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(enumeration = "DType", tag = "2")]
        pub dtype: i32,
        #[prost(sint64, repeated, tag = "3")]
        pub shape: Vec<i64>,
        #[prost(enumeration = "VarKind", tag = "4")]
        pub kind: i32,
        #[prost(bool, tag = "5")]
        pub persistable: bool,
        #[prost(bool, tag = "6")]
        pub stop_gradient: bool,
        #[prost(bool, tag = "7")]
        pub is_data: bool,
        #[prost(uint32, tag = "8")]
        pub lod_level: u32,
        #[prost(message, optional, tag = "9")]
        pub param: Option<Param>,
        #[prost(enumeration = "Layout", tag = "10")]
        pub layout: i32,
        #[prost(message, optional, tag = "11")]
        pub division: Option<Division>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Division {
        #[prost(uint64, tag = "1")]
        pub axis: u64,
        #[prost(uint64, tag = "2")]
        pub groups: u64,
        #[prost(uint64, tag = "3")]
        pub part: u64,
        #[prost(uint64, tag = "4")]
        pub parts: u64,
        #[prost(uint64, tag = "5")]
        pub padding: u64,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Param {
        #[prost(bool, tag = "1")]
        pub trainable: bool,
        #[prost(double, tag = "2")]
        pub learning_rate: f64,
        #[prost(oneof = "Regularizer", tags = "3, 4")]
        pub regularizer: Option<Regularizer>,
        #[prost(bool, tag = "5")]
        pub need_clip: bool,
        #[prost(bool, tag = "6")]
        pub is_distributed: bool,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub enum Regularizer {
        #[prost(double, tag = "3")]
        L1(f64),
        #[prost(double, tag = "4")]
        L2(f64),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Op {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(message, repeated, tag = "2")]
        pub inputs: Vec<Slot>,
        #[prost(message, repeated, tag = "3")]
        pub outputs: Vec<Slot>,
        #[prost(message, repeated, tag = "4")]
        pub attrs: Vec<Attr>,
        #[prost(uint32, tag = "5")]
        pub role: u32,
        #[prost(string, optional, tag = "6")]
        pub device: Option<String>,
        #[prost(string, optional, tag = "7")]
        pub source: Option<String>,
        #[prost(bool, tag = "8")]
        pub fp16_guard: bool,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Slot {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(uint32, repeated, tag = "2")]
        pub vars: Vec<u32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Attr {
        #[prost(string, tag = "1")]
        pub name: String,
        #[prost(oneof = "Value", tags = "2, 3, 4, 5, 6, 7, 8, 9, 10")]
        pub value: Option<Value>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    #[allow(clippy::enum_variant_names)] // as in the schema
    pub enum Value {
        #[prost(sint64, tag = "2")]
        IntValue(i64),
        #[prost(double, tag = "3")]
        FloatValue(f64),
        #[prost(bool, tag = "4")]
        BoolValue(bool),
        #[prost(string, tag = "5")]
        StrValue(String),
        #[prost(message, tag = "6")]
        IntsValue(Ints),
        #[prost(message, tag = "7")]
        FloatsValue(Floats),
        #[prost(message, tag = "8")]
        StrsValue(Strs),
        #[prost(enumeration = "DType", tag = "9")]
        DtypeValue(i32),
        #[prost(uint32, tag = "10")]
        BlockValue(u32),
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Ints {
        #[prost(sint64, repeated, tag = "1")]
        pub values: Vec<i64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Floats {
        #[prost(double, repeated, tag = "1")]
        pub values: Vec<f64>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub struct Strs {
        #[prost(string, repeated, tag = "1")]
        pub values: Vec<String>,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
    #[repr(i32)]
    pub enum DType {
        DtypeUnspecified = 0,
        Bool = 1,
        U8 = 2,
        I8 = 3,
        I16 = 4,
        I32 = 5,
        I64 = 6,
        F16 = 7,
        Bf16 = 8,
        F32 = 9,
        F64 = 10,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
    #[repr(i32)]
    pub enum VarKind {
        Dense = 0,
        SparseRows = 1,
        TensorArray = 2,
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Enumeration)]
    #[repr(i32)]
    pub enum Layout {
        RowMajor = 0,
        Filter64 = 1,
    }
}
