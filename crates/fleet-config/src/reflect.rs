//! Reflection of messages: their fields, and the values of fields by number.
//!
//! Text forms, key/value access, the overview, checks and documentation are written once, in terms
//! of [`Reflect`]. Only `schema/` defines the fields.

use crate::allowed::Rule;
use std::fmt;

/// Description of a message.
#[derive(Debug)]
pub struct Shape {
    /// The protobuf name, such as `AMPConfig`.
    pub name: &'static str,
    /// Documentation of the message, line by line.
    pub doc: &'static [&'static str],
    /// In the order of their numbers.
    pub fields: &'static [Field],
}

impl Shape {
    /// Returns the field of a name.
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Returns the names of the fields.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields.iter().map(|field| field.name)
    }

    /// Returns the field of a protobuf number.
    pub fn numbered(&self, number: u32) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.number == number)
    }
}

/// The kinds of jobs, which use different fields of a strategy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobKind {
    /// Ranks that communicate with each other.
    Collective,
    /// Workers and parameter servers.
    Servers,
}

/// Description of a field.
#[derive(Debug)]
pub struct Field {
    /// The name in files and in access by key.
    pub name: &'static str,
    /// The protobuf number.
    pub number: u32,
    /// The type of the values.
    pub kind: Kind,
    /// Whether the field holds a list.
    pub repeated: bool,
    /// As in the schema; see [`Field::default_item`].
    default: Option<&'static str>,
    /// Documentation of the field, line by line.
    pub doc: &'static [&'static str],
    /// Why the field is accepted and stored, but has no effect.
    pub ignored: Option<&'static str>,
    /// Why the field is not supported; values above its default are refused by `minimize`.
    pub refused: Option<&'static str>,
    /// The only kind of job in which the field has an effect, and why it has none in others.
    pub only: Option<(JobKind, &'static str)>,
    /// The values that a check allows.
    pub(crate) rule: Option<Rule>,
}

/// The type of a field's values.
#[derive(Clone, Copy)]
pub enum Kind {
    /// A truth value.
    Bool,
    /// A signed integer of 32 bits.
    Int32,
    /// An unsigned integer of 32 bits.
    Uint32,
    /// An unsigned integer of 64 bits.
    Uint64,
    /// A float of 32 bits.
    Float,
    /// A float of 64 bits.
    Double,
    /// A text.
    Text,
    /// One of several names.
    Enum(&'static EnumShape),
    /// A message, by the function that describes it.
    Message(fn() -> &'static Shape),
}

impl Kind {
    /// Returns the protobuf name of the type.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Bool => "bool",
            Kind::Int32 => "int32",
            Kind::Uint32 => "uint32",
            Kind::Uint64 => "uint64",
            Kind::Float => "float",
            Kind::Double => "double",
            Kind::Text => "string",
            Kind::Enum(shape) => shape.name,
            Kind::Message(shape) => shape().name,
        }
    }
}

impl fmt::Debug for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An enum with the names of its values.
#[derive(Debug)]
pub struct EnumShape {
    /// The protobuf name.
    pub name: &'static str,
    /// Names with their protobuf numbers.
    pub values: &'static [(&'static str, i32)],
}

impl EnumShape {
    /// Returns the number of a name.
    pub fn number(&self, name: &str) -> Option<i32> {
        self.values.iter().find(|(known, _)| *known == name).map(|(_, number)| *number)
    }

    /// Returns the name of a number.
    pub fn name_of(&self, number: i32) -> Option<&'static str> {
        self.values.iter().find(|(_, known)| *known == number).map(|(name, _)| *name)
    }
}

/// One value of a field. Values of enums are `Int32`.
#[derive(Clone, Copy)]
pub enum Item<'a> {
    /// A truth value.
    Bool(bool),
    /// A signed integer of 32 bits, or a value of an enum.
    Int32(i32),
    /// An unsigned integer of 32 bits.
    Uint32(u32),
    /// An unsigned integer of 64 bits.
    Uint64(u64),
    /// A float of 32 bits.
    Float(f32),
    /// A float of 64 bits.
    Double(f64),
    /// A text.
    Text(&'a str),
    /// A message.
    Message(&'a dyn Reflect),
}

/// A value that is not a message.
#[derive(Clone, Debug, PartialEq)]
pub enum Scalar {
    /// A truth value.
    Bool(bool),
    /// A signed integer of 32 bits, or a value of an enum.
    Int32(i32),
    /// An unsigned integer of 32 bits.
    Uint32(u32),
    /// An unsigned integer of 64 bits.
    Uint64(u64),
    /// A float of 32 bits.
    Float(f32),
    /// A float of 64 bits.
    Double(f64),
    /// A text.
    Text(String),
}

impl Field {
    /// Returns whether the values are messages.
    pub fn is_message(&self) -> bool {
        matches!(self.kind, Kind::Message(_))
    }

    /// Returns the value of the field if it is not assigned; `None` for messages.
    pub fn default_item(&self) -> Option<Item<'static>> {
        let text = self.default.map(|text| text.trim_matches('"'));
        let item = match self.kind {
            Kind::Bool => Item::Bool(text == Some("true")),
            Kind::Int32 => Item::Int32(parsed(text)),
            Kind::Uint32 => Item::Uint32(parsed(text)),
            Kind::Uint64 => Item::Uint64(parsed(text)),
            Kind::Float => Item::Float(parsed(text)),
            Kind::Double => Item::Double(parsed(text)),
            Kind::Text => Item::Text(text.unwrap_or_default()),
            Kind::Enum(shape) => {
                let name = text.map(str::to_uppercase);
                let number = name.and_then(|name| shape.number(&name));
                Item::Int32(number.unwrap_or(shape.values[0].1))
            }
            Kind::Message(_) => return None,
        };
        Some(item)
    }

    #[doc(hidden)]
    #[allow(clippy::too_many_arguments, reason = "only the macro of the schema calls it")]
    pub(crate) const fn describe(
        name: &'static str,
        number: u32,
        kind: Kind,
        repeated: bool,
        default: Option<&'static str>,
        doc: &'static [&'static str],
        [ignored, refused]: [Option<&'static str>; 2],
        rule: Option<Rule>,
        only: Option<(JobKind, &'static str)>,
    ) -> Field {
        // `r#type` is called `type` everywhere except in Rust.
        let name = match name.as_bytes() {
            [b'r', b'#', ..] => name.split_at(2).1,
            _ => name,
        };
        Field { name, number, kind, repeated, default, doc, ignored, refused, only, rule }
    }
}

/// Parses a default of the schema. A test checks that all defaults can be parsed.
fn parsed<T: std::str::FromStr + Default>(text: Option<&str>) -> T {
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

/// A message whose fields are accessible by number.
pub trait Reflect {
    /// Returns the description of the message.
    fn shape(&self) -> &'static Shape;
    /// Returns the storage of a field. `number` must be one of the description.
    fn slot(&self, number: u32) -> &dyn Slot;
    /// Like [`Reflect::slot`], for changes.
    fn slot_mut(&mut self, number: u32) -> &mut dyn Slot;
}

/// Storage of a field: no value, one value, or many for repeated fields.
pub trait Slot {
    /// Returns the number of assigned values.
    fn count(&self) -> usize;
    /// Returns an assigned value. `index` is below [`Slot::count`].
    fn item(&self, index: usize) -> Item<'_>;
    /// Sets a scalar, or appends it to a repeated field; returns false if it has another type.
    fn put(&mut self, _: Scalar) -> bool {
        false
    }
    /// Returns the message of the field, created if needed; for a repeated field, appends a new
    /// message and returns it.
    fn open(&mut self) -> Option<&mut dyn Reflect> {
        None
    }
    /// Removes all assigned values.
    fn clear(&mut self);
}

impl dyn Slot + '_ {
    /// Returns the assigned values.
    pub fn items(&self) -> impl Iterator<Item = Item<'_>> {
        (0..self.count()).map(|index| self.item(index))
    }

    /// Returns the first assigned value.
    pub fn first(&self) -> Option<Item<'_>> {
        self.items().next()
    }
}

macro_rules! scalar_slots {
    ($($type:ty, $variant:ident, $item:ident => $view:expr;)*) => { $(
        impl Slot for Option<$type> {
            fn count(&self) -> usize {
                usize::from(self.is_some())
            }
            fn item(&self, _: usize) -> Item<'_> {
                let $item = self.as_ref().expect("the caller counted");
                Item::$variant($view)
            }
            fn put(&mut self, scalar: Scalar) -> bool {
                let Scalar::$variant(value) = scalar else { return false };
                *self = Some(value);
                true
            }
            fn clear(&mut self) {
                *self = None;
            }
        }
        impl Slot for Vec<$type> {
            fn count(&self) -> usize {
                self.len()
            }
            fn item(&self, index: usize) -> Item<'_> {
                let $item = &self[index];
                Item::$variant($view)
            }
            fn put(&mut self, scalar: Scalar) -> bool {
                let Scalar::$variant(value) = scalar else { return false };
                self.push(value);
                true
            }
            fn clear(&mut self) {
                Vec::clear(self);
            }
        }
    )* };
}

scalar_slots! {
    bool, Bool, value => *value;
    i32, Int32, value => *value;
    u32, Uint32, value => *value;
    u64, Uint64, value => *value;
    f32, Float, value => *value;
    f64, Double, value => *value;
    String, Text, value => value.as_str();
}

impl<M: Reflect + Default> Slot for Option<M> {
    fn count(&self) -> usize {
        usize::from(self.is_some())
    }
    fn item(&self, _: usize) -> Item<'_> {
        Item::Message(self.as_ref().expect("the caller counted"))
    }
    fn open(&mut self) -> Option<&mut dyn Reflect> {
        Some(self.get_or_insert_default())
    }
    fn clear(&mut self) {
        *self = None;
    }
}

impl<M: Reflect + Default> Slot for Vec<M> {
    fn count(&self) -> usize {
        self.len()
    }
    fn item(&self, index: usize) -> Item<'_> {
        Item::Message(&self[index])
    }
    fn open(&mut self) -> Option<&mut dyn Reflect> {
        self.push(M::default());
        self.last_mut().map(|message| message as &mut dyn Reflect)
    }
    fn clear(&mut self) {
        Vec::clear(self);
    }
}
