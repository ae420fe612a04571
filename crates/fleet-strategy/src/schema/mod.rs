//! Definitions of all messages of a strategy: numbers, types, defaults, and the effect of each
//! field.
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
//! A field marked `ignored "why"` is accepted and stored, and a check warns once that it has no
//! effect. A field marked `refused "why"` is not supported yet, and requesting it is an error when
//! programs are rewritten. Negative defaults are written as text.

// Documented names such as fuse_grad_size_in_MB.
#![allow(non_snake_case)]

mod collective;
mod execution;
mod hybrid;
mod server;
mod strategy;

pub use collective::*;
pub use execution::*;
pub use hybrid::*;
pub use server::*;
pub use strategy::*;

macro_rules! message {
    ($(
        $(#[doc = $doc:literal])*
        $Message:ident = $proto:literal {
            $(
                $(#[doc = $field_doc:literal])*
                $name:ident($number:tt): $label:ident $([$($option:tt)*])? $kind:ident
                    $([$enumeration:tt])? $(($nested:ident))? $(= $default:tt)?
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
                pub $name: $crate::schema::field_type!($label $kind $(($nested))?),
            )*
        }

        impl $Message {
            $( $crate::schema::accessors!($name $label $kind $(($nested))?); )*

            /// Returns the description of the message: its fields with numbers, types, defaults and
            /// docs.
            pub fn describe() -> &'static $crate::Shape {
                use $crate::{Field, Shape};
                static SHAPE: Shape = Shape {
                    name: $proto,
                    doc: &[$($doc),*],
                    fields: &[$(Field::describe(
                        stringify!($name),
                        $number,
                        $crate::schema::kind!($kind $([$enumeration])? $(($nested))?),
                        $crate::schema::repeated!($label),
                        $crate::schema::option!($(stringify!($default))?),
                        &[$($field_doc),*],
                        [
                            $crate::schema::option!($($why)?),
                            $crate::schema::option!($($missing)?),
                        ],
                    )),*],
                };
                &SHAPE
            }
        }

        impl $crate::Reflect for $Message {
            fn shape(&self) -> &'static $crate::Shape {
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
    (bool) => {
        $crate::Kind::Bool
    };
    (int32) => {
        $crate::Kind::Int32
    };
    (uint32) => {
        $crate::Kind::Uint32
    };
    (uint64) => {
        $crate::Kind::Uint64
    };
    (float) => {
        $crate::Kind::Float
    };
    (double) => {
        $crate::Kind::Double
    };
    (string) => {
        $crate::Kind::Text
    };
    (enumeration["Mode"]) => {
        $crate::Kind::Enum(&$crate::schema::MODE)
    };
    (enumeration["TableType"]) => {
        $crate::Kind::Enum(&$crate::schema::TABLE_TYPE)
    };
    (message($nested:ident)) => {
        $crate::Kind::Message($nested::describe)
    };
}

macro_rules! field_type {
    (optional $kind:ident $(($nested:ident))?) => {
        Option<$crate::schema::value_type!($kind $(($nested))?)>
    };
    (repeated $kind:ident $(($nested:ident))?) => {
        Vec<$crate::schema::value_type!($kind $(($nested))?)>
    };
}

macro_rules! value_type {
    (bool) => {
        bool
    };
    (int32) => {
        i32
    };
    (uint32) => {
        u32
    };
    (uint64) => {
        u64
    };
    (float) => {
        f32
    };
    (double) => {
        f64
    };
    (string) => {
        String
    };
    (enumeration) => {
        i32
    };
    (message($nested:ident)) => {
        $nested
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
        pub fn [<set_ $name>](&mut self, value: $crate::schema::value_type!($kind)) {
            self.$name = Some(value);
        }
        #[doc = concat!("Returns the message with `", stringify!($name), "` assigned.")]
        #[must_use]
        pub fn [<with_ $name>](mut self, value: $crate::schema::value_type!($kind)) -> Self {
            self.$name = Some(value);
            self
        }
    } };
    ($name:ident repeated $kind:ident $(($nested:ident))?) => { pastey::paste! {
        #[doc = concat!("Replaces all values of `", stringify!($name), "`.")]
        pub fn [<set_ $name>]<T>(&mut self, values: impl IntoIterator<Item = T>)
        where
            T: Into<$crate::schema::value_type!($kind $(($nested))?)>,
        {
            self.$name = values.into_iter().map(Into::into).collect();
        }
        #[doc = concat!("Returns the message with other values of `", stringify!($name), "`.")]
        #[must_use]
        pub fn [<with_ $name>]<T>(mut self, values: impl IntoIterator<Item = T>) -> Self
        where
            T: Into<$crate::schema::value_type!($kind $(($nested))?)>,
        {
            self.[<set_ $name>](values);
            self
        }
    } };
}

pub(crate) use {accessors, field_type, kind, message, option, repeated, value_type};

/// Fields with this number or a higher one are Fleet's own.
pub(crate) const OWN_NUMBERS: u32 = 1000;
