//! The macro `message!`, which defines messages.
//!
//! A description such as
//!
//! ```text
//! /// Scaling of the loss and choice of ops.
//! LocalSgdConfig = "LocalSGDConfig" {
//!     /// Steps between two averagings.
//!     k_steps(1): optional int32 = 1;
//! }
//! ```
//!
//! generates the following:
//!
//! * the protobuf message;
//! * a getter, `k_steps()`, which returns the value or the default (the field itself is an
//!   `Option`);
//! * a setter, `set_k_steps`, and a builder, `with_k_steps`;
//! * the [`Shape`](crate::Shape), on which text forms, key/value access, the overview and the
//!   documentation are based.
//!
//! `allowed [values, "why", "help"]` after the default limits the values: the check of a strategy
//! reports why other values are not allowed, and which to use instead.
//!
//! A field marked `only Collective "why"` or `only Servers "why"` has an effect in jobs of that
//! kind ([`JobKind`](crate::JobKind)). The report on a job of the other kind warns about it.
//!
//! A field marked `ignored "why"` is accepted and stored, and a check warns once that it has no
//! effect. A field marked `refused "why"` is not supported yet, and requesting it is an error when
//! programs are rewritten. Negative defaults are written as text.

macro_rules! message {
    ($(
        $(#[doc = $doc:literal])*
        $Message:ident = $proto:literal {
            $(
                $(#[doc = $field_doc:literal])*
                $name:ident($number:tt): $label:ident $([$($option:tt)*])? $kind:ident
                    $([$enumeration:tt])? $(($nested:ident))? $(= $default:tt)?
                    $(, allowed [$allowed:expr, $not:expr, $help:expr])?
                    $(, only $job:ident $elsewhere:literal)?
                    $(, ignored $why:literal)? $(, refused $missing:literal)? ;
            )*
        }
    )*) => { $(
        $(#[doc = $doc])*
        #[derive(Clone, PartialEq, ::prost::Message)]
        pub struct $Message {
            $(
                $(#[doc = $field_doc])*
                #[prost(
                    $kind $(= $enumeration)?, $label $(, $($option)*)?, tag = $number
                    $(, default = $default)?
                )]
                pub $name: $crate::schema::define::field_type!($label $kind $(($nested))?),
            )*
        }

        impl $Message {
            $( $crate::schema::define::accessors!($name $label $kind $(($nested))?); )*

            /// Returns the description of the message: its fields with numbers, types, defaults and
            /// docs.
            pub fn describe() -> &'static $crate::reflect::Shape {
                #[allow(unused_imports, reason = "not every message has rules")]
                use $crate::allowed::*;
                use $crate::reflect::{Field, Shape};
                static SHAPE: Shape = Shape {
                    name: $proto,
                    doc: &[$($doc),*],
                    fields: &[$(Field::describe(
                        stringify!($name),
                        $number,
                        $crate::schema::define::kind!($kind $([$enumeration])? $(($nested))?),
                        $crate::schema::define::repeated!($label),
                        $crate::schema::define::option!($(stringify!($default))?),
                        &[$($field_doc),*],
                        [
                            $crate::schema::define::option!($($why)?),
                            $crate::schema::define::option!($($missing)?),
                        ],
                        $crate::schema::define::option!($(
                            Rule { allowed: $allowed, why: $not, help: $help }
                        )?),
                        $crate::schema::define::option!($(
                            ($crate::reflect::JobKind::$job, $elsewhere)
                        )?),
                    )),*],
                };
                &SHAPE
            }
        }

        impl $crate::reflect::Reflect for $Message {
            fn shape(&self) -> &'static $crate::reflect::Shape {
                $Message::describe()
            }
            fn slot(&self, number: u32) -> &dyn $crate::reflect::Slot {
                match number {
                    $( $number => &self.$name, )*
                    _ => unreachable!("the numbers come from the shape"),
                }
            }
            fn slot_mut(&mut self, number: u32) -> &mut dyn $crate::reflect::Slot {
                match number {
                    $( $number => &mut self.$name, )*
                    _ => unreachable!("the numbers come from the shape"),
                }
            }
        }
    )* };
}

macro_rules! option {
    () => {
        None
    };
    ($value:expr) => {
        Some($value)
    };
}

macro_rules! repeated {
    (optional) => {
        false
    };
    (repeated) => {
        true
    };
}

macro_rules! kind {
    (enumeration["Mode"]) => {
        $crate::reflect::Kind::Enum(&MODE)
    };
    (enumeration["TableType"]) => {
        $crate::reflect::Kind::Enum(&TABLE_TYPE)
    };
    (message($nested:ident)) => {
        $crate::reflect::Kind::Message($nested::describe)
    };
    ($kind:ident) => {
        $crate::schema::define::kinds::$kind
    };
}

macro_rules! value_type {
    (message($nested:ident)) => {
        $nested
    };
    ($kind:ident) => {
        $crate::schema::define::types::$kind
    };
}

macro_rules! field_type {
    (optional $kind:ident $(($nested:ident))?) => {
        Option<$crate::schema::define::value_type!($kind $(($nested))?)>
    };
    (repeated $kind:ident $(($nested:ident))?) => {
        Vec<$crate::schema::define::value_type!($kind $(($nested))?)>
    };
}

/// Setters, builders, and getters of messages. prost generates the getters of scalars, and getters
/// and setters of enums.
macro_rules! accessors {
    // Assigning `a_sync` has side effects, so its accessors are written by hand.
    (a_sync optional bool) => {};
    ($name:ident optional enumeration) => {};
    ($name:ident optional message($nested:ident)) => { pastey::paste! {
        #[doc = concat!("Returns the message `", stringify!($name), "`, or an empty one.")]
        pub fn $name(&self) -> &$nested {
            static EMPTY: std::sync::LazyLock<$nested> = std::sync::LazyLock::new($nested::default);
            self.$name.as_ref().unwrap_or(&EMPTY)
        }
        #[doc = concat!("Returns the message `", stringify!($name), "`, created if needed.")]
        pub fn [<$name _mut>](&mut self) -> &mut $nested {
            self.$name.get_or_insert_default()
        }
        #[doc = concat!("Replaces `", stringify!($name), "`.")]
        pub fn [<set_ $name>](&mut self, value: $nested) {
            self.$name = Some(value);
        }
        #[doc = concat!("Returns the message with `", stringify!($name), "` replaced.")]
        #[must_use]
        pub fn [<with_ $name>](mut self, value: $nested) -> Self {
            self.$name = Some(value);
            self
        }
    } };
    ($name:ident optional string) => { pastey::paste! {
        #[doc = concat!("Assigns `", stringify!($name), "`.")]
        pub fn [<set_ $name>](&mut self, value: impl Into<String>) {
            self.$name = Some(value.into());
        }
        #[doc = concat!("Returns the message with `", stringify!($name), "` assigned.")]
        #[must_use]
        pub fn [<with_ $name>](mut self, value: impl Into<String>) -> Self {
            self.$name = Some(value.into());
            self
        }
    } };
    ($name:ident optional $kind:ident) => { pastey::paste! {
        #[doc = concat!("Assigns `", stringify!($name), "`.")]
        pub fn [<set_ $name>](&mut self, value: $crate::schema::define::value_type!($kind)) {
            self.$name = Some(value);
        }
        #[doc = concat!("Returns the message with `", stringify!($name), "` assigned.")]
        #[must_use]
        pub fn [<with_ $name>](
            mut self,
            value: $crate::schema::define::value_type!($kind),
        ) -> Self {
            self.$name = Some(value);
            self
        }
    } };
    ($name:ident repeated $kind:ident $(($nested:ident))?) => { pastey::paste! {
        #[doc = concat!("Replaces all values of `", stringify!($name), "`.")]
        pub fn [<set_ $name>]<T>(&mut self, values: impl IntoIterator<Item = T>)
        where
            T: Into<$crate::schema::define::value_type!($kind $(($nested))?)>,
        {
            self.$name = values.into_iter().map(Into::into).collect();
        }
        #[doc = concat!("Returns the message with other values of `", stringify!($name), "`.")]
        #[must_use]
        pub fn [<with_ $name>]<T>(mut self, values: impl IntoIterator<Item = T>) -> Self
        where
            T: Into<$crate::schema::define::value_type!($kind $(($nested))?)>,
        {
            self.[<set_ $name>](values);
            self
        }
    } };
}

/// Rust's types of fields, by their names in protobuf.
#[allow(non_camel_case_types, reason = "names of protobuf")]
pub(crate) mod types {
    pub type bool = std::primitive::bool;
    pub type int32 = i32;
    pub type uint32 = u32;
    pub type uint64 = u64;
    pub type float = f32;
    pub type double = f64;
    pub type string = String;
    pub type enumeration = i32;
}

/// Kinds of scalar fields, by their names in protobuf.
#[allow(non_upper_case_globals, reason = "names of protobuf")]
pub(crate) mod kinds {
    use crate::reflect::Kind;
    pub const bool: Kind = Kind::Bool;
    pub const int32: Kind = Kind::Int32;
    pub const uint32: Kind = Kind::Uint32;
    pub const uint64: Kind = Kind::Uint64;
    pub const float: Kind = Kind::Float;
    pub const double: Kind = Kind::Double;
    pub const string: Kind = Kind::Text;
}

pub(crate) use {accessors, field_type, kind, message, option, repeated, value_type};
