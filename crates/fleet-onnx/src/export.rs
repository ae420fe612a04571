//! The export of a program: its inputs, its ops in order, and its results.

use crate::context::Context;
use crate::control;
use crate::dims::DimNames;
use crate::file::OnnxModel;
use crate::graph::{CLASSICAL, Graph, STANDARD, Value, type_number};
use crate::ops::{self, Rule};
use crate::proto::{
    DimensionProto, GraphProto, ModelProto, OperatorSetIdProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};
use fleet_base::{Error, Result, text};
use fleet_ir::{BlockId, OpId, Program, VarId, VarKind};
use fleet_ops::Registry;
use fleet_tensor::Tensor;
use std::collections::HashMap;
use std::ops::RangeInclusive;

/// Options of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxOptions {
    /// Version of the op set, 17 to 23.
    pub opset: i64,
    /// Limit on the rows of an embedding table.
    pub table_rows_max: u64,
    /// The inputs, in order; those that the results do not need are left out. If empty, all inputs
    /// that are needed, in the order of the program.
    pub feeds: Vec<String>,
}

impl Default for OnnxOptions {
    fn default() -> Self {
        OnnxOptions {
            opset: *OnnxOptions::OPSETS.start(),
            table_rows_max: TABLE_ROWS_MAX,
            feeds: Vec::new(),
        }
    }
}

impl OnnxOptions {
    /// The supported op sets.
    pub const OPSETS: RangeInclusive<i64> = 17..=23;
}

/// Default limit on rows: a table of width 50 then has 2 GB.
const TABLE_ROWS_MAX: u64 = 10_000_000;
/// Version of the op set with hash tables.
const CLASSICAL_VERSION: i64 = 3;

/// The rows of a table on parameter servers.
#[derive(Debug)]
pub struct TableRows {
    /// The ids that have a row, in any order.
    pub ids: Vec<i64>,
    /// A row for each id: `[ids, width]`, f32.
    pub rows: Tensor,
}

/// Where an export gets values from.
pub trait Values {
    /// Returns the value of a variable that the program keeps between runs.
    fn variable(&mut self, name: &str) -> Result<Tensor>;
    /// Returns the rows of a table on parameter servers, or an error if it has more than
    /// `row_count_max`.
    fn table(&mut self, id: u32, row_count_max: u64) -> Result<TableRows>;
}

/// Returns the error for a table with more rows than [`OnnxOptions::table_rows_max`].
pub fn too_many_rows(table: &str, count: u64, limit: u64) -> Error {
    Error::unsupported(format!("table {table} has too many rows for an ONNX file"))
        .expected(format!("at most {}", text::counted(limit as usize, "row")))
        .got(count)
        .help(
            "raise the limit with --max-table-rows (max_table_rows in Python, table_rows_max in \
             Rust), or save fewer rows: mode 1 (base) has those that serving needs",
        )
}

/// Exports the part of a program that computes `targets`, in evaluation mode and in single
/// precision where possible.
pub fn export(
    program: &Program,
    targets: &[&str],
    values: &mut dyn Values,
    options: &OnnxOptions,
) -> Result<OnnxModel> {
    let known = OnnxOptions::OPSETS;
    if !known.contains(&options.opset) {
        return Err(Error::unsupported("unsupported ONNX op set")
            .expected(format!("{} to {}", known.start(), known.end()))
            .got(options.opset));
    }
    if targets.is_empty() {
        return Err(Error::invalid("no variable to export").help("name one result or more"));
    }
    let test = program.clone_for_test()?;
    let ids = targets.iter().map(|name| named(&test, name)).collect::<Result<Vec<_>>>()?;
    let pruned = fleet_passes::in_single_precision(&test, &ids, Registry::standard())?;
    let mut exporter = Exporter {
        program: &pruned,
        values,
        options,
        graph: Graph::default(),
        held: HashMap::new(),
    };
    let feeds = exporter.inputs()?;
    exporter.block(Program::ROOT)?;
    exporter.finish(&feeds, &ids)
}

/// Finds a target. Metrics and losses are gone from the evaluation part if they have state.
fn named(test: &Program, name: &str) -> Result<VarId> {
    test.var_named(name).map_err(|error| {
        error.or_help("targets are computed by the forward part of the program, without labels")
    })
}

/// An export in progress.
pub(crate) struct Exporter<'a> {
    pub program: &'a Program,
    pub values: &'a mut dyn Values,
    pub options: &'a OnnxOptions,
    pub graph: Graph,
    /// The current value of each variable.
    pub held: HashMap<VarId, Value>,
}

impl Exporter<'_> {
    /// Adds the inputs, and returns their variables.
    fn inputs(&mut self) -> Result<Vec<VarId>> {
        let data = self.program.vars().filter(|(_, var)| var.is_data);
        let mut feeds: Vec<VarId> = data.map(|(id, _)| id).collect();
        let wanted = &self.options.feeds;
        if !wanted.is_empty() {
            let place = |id: &VarId| {
                let name = self.program.var_name(*id);
                wanted.iter().position(|it| it == name).ok_or_else(|| {
                    Error::invalid(format!("the results need the input '{name}'"))
                        .got(format!("only {}", wanted.join(", ")))
                        .help("add it to the inputs, or export results that do not need it")
                })
            };
            let places = feeds.iter().map(place).collect::<Result<Vec<_>>>()?;
            let mut order: Vec<(usize, VarId)> = places.into_iter().zip(feeds).collect();
            order.sort_unstable();
            feeds = order.into_iter().map(|(_, id)| id).collect();
        }
        for id in &feeds {
            let value = self.graph.named(self.program.var_name(*id));
            self.held.insert(*id, value);
        }
        Ok(feeds)
    }

    /// Translates the ops of a block.
    pub fn block(&mut self, block: BlockId) -> Result<()> {
        let ops = self.program.block(block).ops().to_vec();
        let mut at = 0;
        while at < ops.len() {
            at += control::branches(self, &ops[at..])?;
            if let Some(id) = ops.get(at) {
                self.op(*id).map_err(|error| error.at(self.program.describe_op(*id)))?;
            }
            at += 1;
        }
        Ok(())
    }

    fn op(&mut self, id: OpId) -> Result<()> {
        let op = self.program.op(id);
        let reason = match ops::rule(op.name()) {
            Some(Rule::Nodes(translate)) => return translate(&mut Context::new(self, op)),
            Some(Rule::Refused(reason)) => reason,
            None => "ONNX and this export do not know it",
        };
        let outputs: Vec<&str> = op.all_outputs().map(|var| self.program.var_name(var)).collect();
        Err(Error::unsupported(format!("op '{}' has no translation to ONNX: {reason}", op.name()))
            .got(match &outputs[..] {
                [] => "an op without outputs".to_string(),
                names => format!("the op that computes {}", names.join(", ")),
            })
            .help(
                "export variables that do not depend on it, or write this part of the network \
                 with other layers",
            ))
    }

    /// Returns the value that a variable holds now.
    pub fn read(&mut self, id: VarId) -> Result<Value> {
        if let Some(value) = self.held.get(&id) {
            return Ok(*value);
        }
        let var = self.program.var(id);
        if !var.persistable {
            return Err(Error::invalid(format!("'{}' is read before it is written", var.name))
                .help("it may be an output that ONNX does not compute"));
        }
        let tensor = self.values.variable(&var.name)?;
        if tensor.dtype() != var.dtype || !var.shape.agrees(tensor.shape()) {
            return Err(Error::invalid(format!("'{}' has another type or shape", var.name))
                .expected(format!("{}{}", var.dtype, var.shape))
                .got(format!("{}{}", tensor.dtype(), tensor.shape())));
        }
        let value = self.graph.initializer(tensor);
        self.graph.suggest_name(value, &var.name);
        self.held.insert(id, value);
        Ok(value)
    }

    fn finish(mut self, feeds: &[VarId], targets: &[VarId]) -> Result<OnnxModel> {
        let names = DimNames::of(self.program, targets);
        let mut outputs = Vec::new();
        for id in targets {
            let value = self.read(*id)?;
            outputs.push(self.output(*id, value, &outputs));
        }
        let node = self.graph.finish();
        let info = |id: &VarId, value: Value| ValueInfoProto {
            name: self.graph.final_name(value),
            r#type: Some(self.type_of(*id, &names)),
        };
        let mut opset_import =
            vec![OperatorSetIdProto { domain: STANDARD.into(), version: self.options.opset }];
        if self.graph.uses(CLASSICAL) {
            let version = CLASSICAL_VERSION;
            opset_import.push(OperatorSetIdProto { domain: CLASSICAL.into(), version });
        }
        let graph = GraphProto {
            node,
            name: "fleet".into(),
            input: feeds.iter().map(|id| info(id, self.held[id])).collect(),
            output: targets.iter().zip(&outputs).map(|(id, value)| info(id, *value)).collect(),
            ..GraphProto::default()
        };
        let head = ModelProto {
            ir_version: ir_version(self.options.opset),
            producer_name: "fleet".into(),
            producer_version: env!("CARGO_PKG_VERSION").into(),
            graph: None,
            opset_import,
        };
        let initializers = std::mem::take(&mut self.graph.initializers);
        let named = |it: crate::graph::Initializer| (self.graph.final_name(it.value), it.tensor);
        let initializers = initializers.into_iter().map(named).collect();
        Ok(OnnxModel { head, graph, initializers, opset: self.options.opset })
    }

    /// Returns the value of a result under the name of its variable. A value that is an input, a
    /// constant or another result is copied.
    fn output(&mut self, id: VarId, value: Value, others: &[Value]) -> Value {
        let name = self.program.var_name(id);
        let is_own = self.held.iter().any(|(held, it)| {
            *it == value && (self.program.var(*held).is_data || self.program.var(*held).persistable)
        });
        let is_constant = self.graph.initializers.iter().any(|it| it.value == value);
        let mut made = value;
        if is_own || is_constant || others.contains(&value) {
            made = self.graph.node("Identity", &[value], Vec::new());
        }
        let var = self.program.var(id);
        if !var.is_data && self.graph.name(made) != Some(name) {
            self.graph.force_name(made, name);
        }
        made
    }

    fn type_of(&self, id: VarId, names: &DimNames) -> TypeProto {
        let var = self.program.var(id);
        let dim = |(axis, dim): (usize, &i64)| match *dim {
            size if size >= 0 => DimensionProto { dim_value: Some(size), dim_param: None },
            _ => DimensionProto { dim_value: None, dim_param: names.name(id, axis) },
        };
        let shape = TensorShapeProto { dim: var.shape.iter().enumerate().map(dim).collect() };
        let elem_type = type_number(var.dtype);
        TypeProto { tensor_type: Some(TensorTypeProto { elem_type, shape: Some(shape) }) }
    }

    /// Returns whether a variable is a dense tensor.
    pub fn is_dense(&self, id: VarId) -> bool {
        self.program.var(id).kind == VarKind::Dense
    }
}

/// Returns the version of the file format that belongs to an op set.
fn ir_version(opset: i64) -> i64 {
    match opset {
        ..=18 => 8,
        19..=20 => 9,
        21..=22 => 10,
        _ => 11,
    }
}
