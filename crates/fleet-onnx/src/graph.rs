//! A graph that is being written: values by number, nodes in order, and constants.
//!
//! Values get their names at the end. A value that a variable of the program holds has the name of
//! the variable, if no other value has it.

use crate::proto::{AttributeProto, GraphProto, NodeProto, TensorProto};
use fleet_base::Result;
use fleet_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;

/// A value of the graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Value(Option<u32>);

impl Value {
    /// An optional input that is not given.
    pub const NONE: Value = Value(None);
}

/// An attribute of a node.
#[derive(Debug)]
pub(crate) enum Attribute {
    Int(i64),
    Float(f64),
    Str(&'static str),
    Ints(Vec<i64>),
    /// A tensor of one element.
    Element(Tensor),
    Graph(Branch),
}

/// Named attributes of a node.
pub(crate) type Attributes = Vec<(&'static str, Attribute)>;

/// A call of an op.
#[derive(Debug)]
struct Node {
    op: &'static str,
    domain: &'static str,
    inputs: Vec<Value>,
    outputs: Vec<Value>,
    attributes: Attributes,
}

/// A graph inside an attribute. It may read the values of the graph around it.
#[derive(Debug)]
pub(crate) struct Branch {
    nodes: Vec<Node>,
    outputs: Vec<Value>,
}

/// A constant.
pub(crate) struct Initializer {
    pub value: Value,
    pub tensor: Tensor,
}

/// The graph.
#[derive(Default)]
pub(crate) struct Graph {
    nodes: Vec<Node>,
    /// Name of each value; `None` if it has none yet.
    names: Vec<Option<String>>,
    taken: HashMap<String, Value>,
    pub initializers: Vec<Initializer>,
    /// Small constants, by type, shape and bytes.
    constants: HashMap<(DType, Shape, Vec<u8>), Value>,
}

/// The op set of standard ops.
pub(crate) const STANDARD: &str = "";
/// The op set of classical machine learning, which has hash tables.
pub(crate) const CLASSICAL: &str = "ai.onnx.ml";

impl Graph {
    /// Returns a new value without a name.
    pub fn value(&mut self) -> Value {
        self.names.push(None);
        Value(Some(self.names.len() as u32 - 1))
    }

    /// Returns a new value of a name, which no other value may have.
    pub fn named(&mut self, name: &str) -> Value {
        let value = self.value();
        self.suggest_name(value, name);
        value
    }

    /// Gives a value a name, unless it has one or another value has this one.
    pub fn suggest_name(&mut self, value: Value, name: &str) {
        let Value(Some(index)) = value else { return };
        let own = &mut self.names[index as usize];
        if own.is_none() && !self.taken.contains_key(name) {
            *own = Some(name.to_string());
            self.taken.insert(name.to_string(), value);
        }
    }

    /// Gives a value a name, and takes it away from another value that has it.
    pub fn force_name(&mut self, value: Value, name: &str) {
        if let Some(Value(Some(other))) = self.taken.remove(name) {
            self.names[other as usize] = None;
        }
        if let Value(Some(index)) = value
            && let Some(old) = self.names[index as usize].take()
        {
            self.taken.remove(&old);
        }
        self.suggest_name(value, name);
    }

    /// Returns the name of a value; `None` if it has none yet.
    pub fn name(&self, value: Value) -> Option<&str> {
        value.0.and_then(|index| self.names[index as usize].as_deref())
    }

    /// Adds a call of a standard op with one output.
    pub fn node(&mut self, op: &'static str, inputs: &[Value], attributes: Attributes) -> Value {
        self.nodes(op, inputs, attributes, 1)[0]
    }

    /// Adds a call of a standard op.
    pub fn nodes(
        &mut self,
        op: &'static str,
        inputs: &[Value],
        attributes: Attributes,
        outputs: usize,
    ) -> Vec<Value> {
        let outputs: Vec<Value> = (0..outputs).map(|_| self.value()).collect();
        self.call(STANDARD, op, inputs, attributes, outputs.clone());
        outputs
    }

    /// Adds a call with given outputs.
    pub fn call(
        &mut self,
        domain: &'static str,
        op: &'static str,
        inputs: &[Value],
        attributes: Attributes,
        outputs: Vec<Value>,
    ) {
        let mut inputs = inputs.to_vec();
        while inputs.last() == Some(&Value::NONE) {
            inputs.pop();
        }
        self.nodes.push(Node { op, domain, inputs, outputs, attributes });
    }

    /// Adds a lookup of integers in a hash table; others give `default`.
    pub fn hash_table(
        &mut self,
        x: Value,
        keys: Vec<i64>,
        values: Vec<i64>,
        default: i64,
    ) -> Value {
        let made = self.value();
        let attributes = vec![
            ("keys_int64s", Attribute::Ints(keys)),
            ("values_int64s", Attribute::Ints(values)),
            ("default_int64", Attribute::Int(default)),
        ];
        self.call(CLASSICAL, "LabelEncoder", &[x], attributes, vec![made]);
        made
    }

    /// Returns a constant. Equal small constants are one value.
    pub fn constant(&mut self, tensor: Tensor) -> Value {
        let key = (tensor.dtype(), *tensor.shape(), tensor.as_bytes().to_vec());
        if key.2.len() > CONSTANT_BYTES_MAX {
            return self.initializer(tensor);
        }
        if let Some(value) = self.constants.get(&key) {
            return *value;
        }
        let value = self.initializer(tensor);
        self.constants.insert(key, value);
        value
    }

    /// Returns a constant that is a value of its own.
    pub fn initializer(&mut self, tensor: Tensor) -> Value {
        let value = self.value();
        self.initializers.push(Initializer { value, tensor });
        value
    }

    /// Returns a constant of integers, with one dimension.
    pub fn ints(&mut self, values: &[i64]) -> Result<Value> {
        let tensor = Tensor::from_slice(values, [values.len() as i64])?;
        Ok(self.constant(tensor))
    }

    /// Starts a branch. Returns the nodes so far, for [`Graph::end_branch`].
    pub fn begin_branch(&mut self) -> Pending {
        Pending(std::mem::take(&mut self.nodes))
    }

    /// Ends a branch and returns it.
    pub fn end_branch(&mut self, pending: Pending, outputs: Vec<Value>) -> Branch {
        let nodes = std::mem::replace(&mut self.nodes, pending.0);
        Branch { nodes, outputs }
    }

    /// Returns whether a node uses this op set.
    pub fn uses(&self, domain: &str) -> bool {
        fn any(nodes: &[Node], domain: &str) -> bool {
            nodes.iter().any(|node| {
                node.domain == domain
                    || node.attributes.iter().any(|(_, attribute)| match attribute {
                        Attribute::Graph(branch) => any(&branch.nodes, domain),
                        _ => false,
                    })
            })
        }
        any(&self.nodes, domain)
    }

    /// Names the values that have no name yet, and returns the nodes as messages.
    pub fn finish(&mut self) -> Vec<NodeProto> {
        for index in 0..self.names.len() {
            if self.names[index].is_none() {
                let mut name = format!("value_{index}");
                while self.taken.contains_key(&name) {
                    name.push('_');
                }
                self.suggest_name(Value(Some(index as u32)), &name);
            }
        }
        self.nodes.iter().enumerate().map(|(at, node)| self.message(node, at)).collect()
    }

    /// Returns the name of a value of a finished graph; empty for [`Value::NONE`].
    pub fn final_name(&self, value: Value) -> String {
        self.name(value).unwrap_or_default().to_string()
    }

    fn message(&self, node: &Node, at: usize) -> NodeProto {
        let names = |values: &[Value]| values.iter().map(|it| self.final_name(*it)).collect();
        NodeProto {
            input: names(&node.inputs),
            output: names(&node.outputs),
            name: format!("{}_{at}", node.op),
            op_type: node.op.to_string(),
            attribute: node.attributes.iter().map(|it| self.attribute(it.0, &it.1)).collect(),
            domain: node.domain.to_string(),
        }
    }

    fn attribute(&self, name: &str, value: &Attribute) -> AttributeProto {
        let made = AttributeProto { name: name.to_string(), ..AttributeProto::default() };
        match value {
            Attribute::Float(it) => AttributeProto { f: Some(*it as f32), r#type: 1, ..made },
            Attribute::Int(it) => AttributeProto { i: Some(*it), r#type: 2, ..made },
            Attribute::Str(it) => {
                AttributeProto { s: Some(it.as_bytes().into()), r#type: 3, ..made }
            }
            Attribute::Element(it) => {
                let tensor = TensorProto {
                    dims: it.shape().to_vec(),
                    data_type: type_number(it.dtype()),
                    raw_data: Some(it.as_bytes().to_vec()),
                    ..TensorProto::default()
                };
                AttributeProto { t: Some(tensor), r#type: 4, ..made }
            }
            Attribute::Graph(it) => AttributeProto { g: Some(self.branch(it)), r#type: 5, ..made },
            Attribute::Ints(it) => AttributeProto { ints: it.clone(), r#type: 7, ..made },
        }
    }

    fn branch(&self, branch: &Branch) -> GraphProto {
        let output = |value: &Value| crate::proto::ValueInfoProto {
            name: self.final_name(*value),
            r#type: None,
        };
        GraphProto {
            node: branch.nodes.iter().enumerate().map(|(at, it)| self.message(it, at)).collect(),
            name: "branch".into(),
            output: branch.outputs.iter().map(output).collect(),
            ..GraphProto::default()
        }
    }
}

/// The nodes around a branch that is being written.
pub(crate) struct Pending(Vec<Node>);

/// Size up to which equal constants are found, in bytes: scalars, shapes and axes.
const CONSTANT_BYTES_MAX: usize = 256;

/// Returns the number of an element type in ONNX files.
pub(crate) fn type_number(dtype: DType) -> i32 {
    match dtype {
        DType::F32 => 1,
        DType::U8 => 2,
        DType::I8 => 3,
        DType::I16 => 5,
        DType::I32 => 6,
        DType::I64 => 7,
        DType::Bool => 9,
        DType::F16 => 10,
        DType::F64 => 11,
        DType::BF16 => 16,
    }
}
