//! The export of a program: its inputs, its ops in order, and its results.

use crate::builder::{OnnxBuilder, OnnxInputs};
use crate::context::Context;
use crate::dims::DimNames;
use crate::exporter::Exporter;
use crate::file::OnnxModel;
use crate::graph::{CLASSICAL, Graph, STANDARD, Value, type_number};
use crate::ops::{self, Rule};
use crate::proto::{
    DimensionProto, GraphProto, ModelProto, OperatorSetIdProto, TensorShapeProto, TensorTypeProto,
    TypeProto, ValueInfoProto,
};
use crate::values::{OnnxOptions, Values};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpId, Program, VarId};
use fleet_ops::Registry;
use std::collections::HashMap;

/// Version of the op set with hash tables.
const CLASSICAL_VERSION: i64 = 3;

/// Exports the part of a program that computes `targets`, in evaluation mode and in single
/// precision where possible.
pub fn export(
    program: &Program,
    targets: &[&str],
    values: &mut dyn Values,
    options: &OnnxOptions,
) -> Result<OnnxModel> {
    let (program, ids) = pruned(program, targets, options)?;
    let mut exporter = Exporter::new(&program, values, options);
    let feeds = exporter.inputs()?;
    exporter.block(Program::ROOT)?;
    let names = DimNames::of(&program, &ids);
    let input = |id: &VarId| (exporter.held[id], exporter.type_of(*id, &names));
    let inputs = feeds.iter().map(input).collect();
    let outputs = ids.iter().map(|id| (*id, program.var_name(*id).to_string())).collect();
    exporter.finish(inputs, outputs, &names)
}

/// Exports a program like [`export`], with nodes before it that compute its inputs.
pub fn export_from(
    program: &Program,
    targets: &[&str],
    values: &mut dyn Values,
    options: &OnnxOptions,
    prepare: impl FnOnce(&mut OnnxBuilder<'_>) -> Result<OnnxInputs>,
) -> Result<OnnxModel> {
    let (program, ids) = pruned(program, targets, options)?;
    let mut exporter = Exporter::new(&program, values, options);
    let mut builder = OnnxBuilder::new(&mut exporter.graph);
    let prepared = prepare(&mut builder)?;
    let inputs = std::mem::take(&mut builder.inputs);
    for (id, var) in program.vars().filter(|(_, var)| var.is_data) {
        let value = prepared
            .inputs
            .get(&var.name)
            .ok_or_else(|| Error::invalid(format!("nothing computes the input '{}'", var.name)))?;
        exporter.held.insert(id, *value);
    }
    exporter.block(Program::ROOT)?;
    let names = DimNames::of(&program, &ids);
    let own = |id: &VarId| program.var_name(*id).to_string();
    let given = prepared.outputs.iter().cloned();
    let named = given.chain(ids.iter().skip(prepared.outputs.len()).map(own));
    let outputs = ids.iter().copied().zip(named).collect();
    exporter.finish(inputs, outputs, &names)
}

/// Returns the part of a program that computes some variables, and these.
fn pruned(
    program: &Program,
    targets: &[&str],
    options: &OnnxOptions,
) -> Result<(Program, Vec<VarId>)> {
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
    Ok((pruned, ids))
}

/// Finds a target. Metrics and losses are gone from the evaluation part if they have state.
fn named(test: &Program, name: &str) -> Result<VarId> {
    test.var_named(name).map_err(|error| {
        error.or_help("targets are computed by the forward part of the program, without labels")
    })
}

impl<'a> Exporter<'a> {
    fn new(
        program: &'a Program,
        values: &'a mut dyn Values,
        options: &'a OnnxOptions,
    ) -> Exporter<'a> {
        Exporter { program, values, options, graph: Graph::default(), held: HashMap::new() }
    }

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
    fn block(&mut self, block: BlockId) -> Result<()> {
        let list = self.program.block(block).ops().to_vec();
        let mut at = 0;
        while at < list.len() {
            at += ops::branches(self, &list[at..], |exporter, block| exporter.block(block))?;
            if let Some(id) = list.get(at) {
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

    /// Writes the graph with these inputs and results.
    fn finish(
        mut self,
        inputs: Vec<(Value, TypeProto)>,
        targets: Vec<(VarId, String)>,
        names: &DimNames,
    ) -> Result<OnnxModel> {
        let mut outputs = Vec::new();
        for (id, name) in &targets {
            let value = self.read(*id)?;
            outputs.push(self.output((*id, name), value, &outputs));
        }
        let node = self.graph.finish();
        let info = |value: Value, kind: TypeProto| ValueInfoProto {
            name: self.graph.final_name(value),
            r#type: Some(kind),
        };
        let output =
            |((id, _), value): (&(VarId, String), &Value)| info(*value, self.type_of(*id, names));
        let mut opset_import =
            vec![OperatorSetIdProto { domain: STANDARD.into(), version: self.options.opset }];
        if self.graph.uses(CLASSICAL) {
            let version = CLASSICAL_VERSION;
            opset_import.push(OperatorSetIdProto { domain: CLASSICAL.into(), version });
        }
        let graph = GraphProto {
            node,
            name: "fleet".into(),
            input: inputs.into_iter().map(|(value, kind)| info(value, kind)).collect(),
            output: targets.iter().zip(&outputs).map(output).collect(),
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

    /// Returns the value of a result under its name. A value that is an input, a constant or
    /// another result is copied.
    fn output(&mut self, (id, name): (VarId, &str), value: Value, others: &[Value]) -> Value {
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
