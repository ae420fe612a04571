//! The messages of ONNX files that an export needs, with the field numbers of `onnx.proto`.
//!
//! A field whose default value has a meaning of its own is optional here, because readers tell an
//! absent field from a zero. Initializers are not part of [`GraphProto`]: `file.rs` writes them, so
//! that large tensors are never copied.

use prost::Message;

/// A whole file.
#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    /// Version of the file format.
    #[prost(int64, tag = "1")]
    pub ir_version: i64,
    /// The program that wrote the file.
    #[prost(string, tag = "2")]
    pub producer_name: String,
    /// Its version.
    #[prost(string, tag = "3")]
    pub producer_version: String,
    /// The network.
    #[prost(message, optional, tag = "7")]
    pub graph: Option<GraphProto>,
    /// Versions of the op sets.
    #[prost(message, repeated, tag = "8")]
    pub opset_import: Vec<OperatorSetIdProto>,
}

/// The version of an op set.
#[derive(Clone, PartialEq, Message)]
pub struct OperatorSetIdProto {
    /// Name of the op set; empty for the standard one.
    #[prost(string, tag = "1")]
    pub domain: String,
    /// The version.
    #[prost(int64, tag = "2")]
    pub version: i64,
}

/// A network, or a branch of one.
#[derive(Clone, PartialEq, Message)]
pub struct GraphProto {
    /// Calls of ops, in order.
    #[prost(message, repeated, tag = "1")]
    pub node: Vec<NodeProto>,
    /// Name of the network.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Constants. Empty in a model that is being written.
    #[prost(message, repeated, tag = "5")]
    pub initializer: Vec<TensorProto>,
    /// Values that are fed.
    #[prost(message, repeated, tag = "11")]
    pub input: Vec<ValueInfoProto>,
    /// Results.
    #[prost(message, repeated, tag = "12")]
    pub output: Vec<ValueInfoProto>,
}

/// A call of an op.
#[derive(Clone, PartialEq, Message)]
pub struct NodeProto {
    /// Names of the inputs; empty for an optional input that is not given.
    #[prost(string, repeated, tag = "1")]
    pub input: Vec<String>,
    /// Names of the outputs.
    #[prost(string, repeated, tag = "2")]
    pub output: Vec<String>,
    /// Name of the call.
    #[prost(string, tag = "3")]
    pub name: String,
    /// Name of the op.
    #[prost(string, tag = "4")]
    pub op_type: String,
    /// Attributes.
    #[prost(message, repeated, tag = "5")]
    pub attribute: Vec<AttributeProto>,
    /// The op set; empty for the standard one.
    #[prost(string, tag = "7")]
    pub domain: String,
}

/// An attribute of a call. One of the values is given, as `type` says.
#[derive(Clone, PartialEq, Message)]
pub struct AttributeProto {
    /// Name of the attribute.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Value of type 1.
    #[prost(float, optional, tag = "2")]
    pub f: Option<f32>,
    /// Value of type 2.
    #[prost(int64, optional, tag = "3")]
    pub i: Option<i64>,
    /// Value of type 3.
    #[prost(bytes = "vec", optional, tag = "4")]
    pub s: Option<Vec<u8>>,
    /// Value of type 4.
    #[prost(message, optional, tag = "5")]
    pub t: Option<TensorProto>,
    /// Value of type 5.
    #[prost(message, optional, tag = "6")]
    pub g: Option<GraphProto>,
    /// Value of type 7.
    #[prost(int64, repeated, tag = "8")]
    pub ints: Vec<i64>,
    /// Type of the value.
    #[prost(int32, tag = "20")]
    pub r#type: i32,
}

/// A tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorProto {
    /// Sizes of the dimensions.
    #[prost(int64, repeated, tag = "1")]
    pub dims: Vec<i64>,
    /// Number of the element type.
    #[prost(int32, tag = "2")]
    pub data_type: i32,
    /// Name of the value.
    #[prost(string, tag = "8")]
    pub name: String,
    /// The elements, little-endian.
    #[prost(bytes = "vec", optional, tag = "9")]
    pub raw_data: Option<Vec<u8>>,
    /// Place of the elements in another file: location, offset and length.
    #[prost(message, repeated, tag = "13")]
    pub external_data: Vec<StringStringEntryProto>,
    /// 1 if the elements are in another file.
    #[prost(int32, optional, tag = "14")]
    pub data_location: Option<i32>,
}

/// A key and its value.
#[derive(Clone, PartialEq, Message)]
pub struct StringStringEntryProto {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// Name and type of an input or output.
#[derive(Clone, PartialEq, Message)]
pub struct ValueInfoProto {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The type.
    #[prost(message, optional, tag = "2")]
    pub r#type: Option<TypeProto>,
}

/// The type of a value.
#[derive(Clone, PartialEq, Message)]
pub struct TypeProto {
    /// That of a tensor.
    #[prost(message, optional, tag = "1")]
    pub tensor_type: Option<TensorTypeProto>,
}

/// Element type and shape of a tensor.
#[derive(Clone, PartialEq, Message)]
pub struct TensorTypeProto {
    /// Number of the element type.
    #[prost(int32, tag = "1")]
    pub elem_type: i32,
    /// The shape.
    #[prost(message, optional, tag = "2")]
    pub shape: Option<TensorShapeProto>,
}

/// A shape.
#[derive(Clone, PartialEq, Message)]
pub struct TensorShapeProto {
    /// The dimensions.
    #[prost(message, repeated, tag = "1")]
    pub dim: Vec<DimensionProto>,
}

/// A dimension: a size, a name of an unknown size, or neither.
#[derive(Clone, PartialEq, Message)]
pub struct DimensionProto {
    /// The size.
    #[prost(int64, optional, tag = "1")]
    pub dim_value: Option<i64>,
    /// The name. Dimensions of one name have the same size.
    #[prost(string, optional, tag = "2")]
    pub dim_param: Option<String>,
}
