//! Builder methods of options.

/// Defines, inside an `impl`, a method for each listed field. It sets the field, has its name and
/// links to its documentation. The kinds of fields:
///
/// * `field: T` takes a value, `field: impl Into<T>` anything that converts to it;
/// * `field: Some(T)` is optional: the method sets it;
/// * `field: true` is a switch: the method takes no argument and turns it on;
/// * `rule.field: T` is a field of the rule of an optimizer. A doc comment before it goes to the
///   method, which cannot link to the field.
macro_rules! setters {
    () => {};
    ($field:ident: true, $($rest:tt)*) => {
        #[doc = concat!(
            "Turns on [`", stringify!($field), "`](field@Self::", stringify!($field), ")."
        )]
        pub fn $field(mut self) -> Self {
            self.$field = true;
            self
        }
        setters!($($rest)*);
    };
    ($field:ident: Some(impl Into<$type:ty>), $($rest:tt)*) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = Some($field.into());
            self
        }
        setters!($($rest)*);
    };
    ($field:ident: Some($type:ty), $($rest:tt)*) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = Some($field);
            self
        }
        setters!($($rest)*);
    };
    ($field:ident: impl Into<$type:ty>, $($rest:tt)*) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = $field.into();
            self
        }
        setters!($($rest)*);
    };
    ($field:ident: $type:ty, $($rest:tt)*) => {
        #[doc = concat!("Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ").")]
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
        setters!($($rest)*);
    };
    ($(#[$doc:meta])* rule.$field:ident: $type:ty, $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, $field: $type) -> Self {
            self.rule.$field = $field;
            self
        }
        setters!($($rest)*);
    };
}

pub(crate) use setters;
