//! Values of the key/value form, as passed by bindings, command lines and files.

use crate::form::literal::{float64, quoted};
use crate::reflect::{Field, Item, Kind, Reflect, Scalar};
use fleet_base::Error;
use fleet_base::text::did_you_mean;
use std::fmt;

/// A value of the key/value form.
///
/// ```
/// use fleet_config::Value;
/// let configs = Value::map([("lr", Value::from(1024.0)), ("list", ["conv2d"].into())]);
/// assert_eq!(configs.to_string(), r#"{"lr": 1024.0, "list": ["conv2d"]}"#);
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Value {
    /// No value: `None` in Python.
    #[default]
    None,
    /// A truth value.
    Bool(bool),
    /// Wide enough for every integer type of the schema.
    Int(i128),
    /// A floating-point number.
    Float(f64),
    /// A text.
    Str(String),
    /// A list of values.
    List(Vec<Value>),
    /// Entries in the given order.
    Map(Vec<(String, Value)>),
}

impl Value {
    /// Returns a map of these entries.
    pub fn map<K: Into<String>>(entries: impl IntoIterator<Item = (K, Value)>) -> Value {
        Value::Map(entries.into_iter().map(|(key, value)| (key.into(), value)).collect())
    }

    /// Returns the name of the type in Python, which most users know.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::List(_) => "list",
            Value::Map(_) => "dict",
        }
    }

    /// Converts this value to a field's type. Integers convert to floats, booleans to 0 and 1, and
    /// 0 and 1 to booleans; no other conversions are made. Returns `None` if the value does not
    /// fit.
    pub fn scalar(&self, kind: Kind) -> Option<Scalar> {
        let scalar = match (kind, self) {
            (Kind::Bool, Value::Bool(value)) => Scalar::Bool(*value),
            (Kind::Bool, Value::Int(value @ (0 | 1))) => Scalar::Bool(*value == 1),
            (Kind::Int32, value) => Scalar::Int32(value.int()?.try_into().ok()?),
            (Kind::Uint32, value) => Scalar::Uint32(value.int()?.try_into().ok()?),
            (Kind::Uint64, value) => Scalar::Uint64(value.int()?.try_into().ok()?),
            (Kind::Float, value) => {
                let (wide, narrow) = (value.float()?, value.float()? as f32);
                // A finite value that overflows the type.
                if narrow.is_infinite() && wide.is_finite() {
                    return None;
                }
                Scalar::Float(narrow)
            }
            (Kind::Double, value) => Scalar::Double(value.float()?),
            (Kind::Text, Value::Str(value)) => Scalar::Text(value.clone()),
            (Kind::Enum(shape), Value::Str(name)) => Scalar::Int32(shape.number(name)?),
            (Kind::Enum(shape), Value::Int(number)) => {
                let number = i32::try_from(*number).ok()?;
                shape.name_of(number)?;
                Scalar::Int32(number)
            }
            _ => return None,
        };
        Some(scalar)
    }

    fn int(&self) -> Option<i128> {
        match self {
            Value::Int(value) => Some(*value),
            Value::Bool(value) => Some(i128::from(*value)),
            _ => None,
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Value::Float(value) => Some(*value),
            Value::Int(value) => Some(*value as f64),
            _ => None,
        }
    }

    /// Returns the value of a field in the key/value form.
    pub fn of(kind: Kind, item: Item<'_>) -> Value {
        match (kind, item) {
            (Kind::Enum(shape), Item::Int32(number)) => match shape.name_of(number) {
                Some(name) => Value::Str(name.into()),
                None => Value::Int(number.into()),
            },
            (_, Item::Bool(value)) => Value::Bool(value),
            (_, Item::Int32(value)) => Value::Int(value.into()),
            (_, Item::Uint32(value)) => Value::Int(value.into()),
            (_, Item::Uint64(value)) => Value::Int(value.into()),
            (_, Item::Float(value)) => Value::Float(value.into()),
            (_, Item::Double(value)) => Value::Float(value),
            (_, Item::Text(value)) => Value::Str(value.into()),
            (_, Item::Message(message)) => {
                let all = message.shape().fields.iter();
                Value::map(all.map(|field| (field.name, effective(message, field))))
            }
        }
    }
}

/// Returns the value in effect: the assigned one, or the default.
pub(crate) fn effective(message: &dyn Reflect, field: &Field) -> Value {
    let slot = message.slot(field.number);
    let mut values = slot.items().map(|item| Value::of(field.kind, item));
    match field.repeated {
        true => Value::List(values.collect()),
        false => values.next().unwrap_or_else(|| default_of(field)),
    }
}

pub(crate) fn default_of(field: &Field) -> Value {
    match (field.repeated, field.default_item(), field.kind) {
        (true, ..) => Value::List(Vec::new()),
        (false, Some(item), kind) => Value::of(kind, item),
        (false, None, Kind::Message(shape)) => {
            Value::map(shape().fields.iter().map(|field| (field.name, default_of(field))))
        }
        (false, None, _) => Value::None,
    }
}

/// Returns the error for a value that a field cannot hold.
pub fn wrong_value(path: &str, expected: impl Into<String>, value: &Value) -> Error {
    Error::invalid(format!("invalid value of {path}"))
        .expected(expected.into())
        .got(format!("{value} ({})", value.type_name()))
}

/// Adds the nearest known name, if any, to the error of an unknown one.
pub fn with_hint<'n>(error: Error, name: &str, known: impl Iterator<Item = &'n str>) -> Error {
    match did_you_mean(name, known).strip_prefix("; ") {
        Some(hint) => error.help(hint),
        None => error,
    }
}

/// Returns the expected values of a kind of field, for messages.
pub fn expected_type(kind: Kind) -> String {
    match kind {
        Kind::Bool => "true or false".into(),
        Kind::Int32 => "a 32-bit integer".into(),
        Kind::Uint32 => "a non-negative 32-bit integer".into(),
        Kind::Uint64 => "a non-negative 64-bit integer".into(),
        Kind::Float => "a 32-bit float".into(),
        Kind::Double => "a number".into(),
        Kind::Text => "a string".into(),
        Kind::Enum(shape) => {
            let names: Vec<&str> = shape.values.iter().map(|(name, _)| *name).collect();
            format!("one of {}", names.join(", "))
        }
        Kind::Message(shape) => format!("a message of type {}", shape().name),
    }
}

/// Formats the value as JSON.
impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Int(value) => write!(f, "{value}"),
            Value::Float(value) => f.write_str(&float64(*value)),
            Value::Str(value) => f.write_str(&quoted(value)),
            Value::List(values) => {
                f.write_str("[")?;
                for (i, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Value::Map(entries) => {
                f.write_str("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    let comma = if i > 0 { ", " } else { "" };
                    write!(f, "{comma}{}: {value}", quoted(key))?;
                }
                f.write_str("}")
            }
        }
    }
}

macro_rules! from {
    ($($type:ty, $variant:ident;)*) => { $(
        impl From<$type> for Value {
            fn from(value: $type) -> Value {
                Value::$variant(value.into())
            }
        }
    )* };
}

from! {
    bool, Bool;
    i32, Int;
    i64, Int;
    u32, Int;
    u64, Int;
    f32, Float;
    f64, Float;
    &str, Str;
    String, Str;
    Vec<Value>, List;
}

impl<T: Into<Value>, const N: usize> From<[T; N]> for Value {
    fn from(values: [T; N]) -> Value {
        Value::List(values.into_iter().map(Into::into).collect())
    }
}
