//! Builder methods of options.

/// Defines, inside an `impl`, a method for each listed field. It sets the field and has its name. A
/// doc comment before a field goes to the method. The kinds of fields:
///
/// * `field: T` takes a value, `field: impl Into<T>` anything that converts to it;
/// * `field: Some(T)` is optional: the method sets it;
/// * `field: true` is a switch: the method takes no argument and turns it on;
/// * `rule.field: T` is a field of the rule of an optimizer.
macro_rules! setters {
    () => {};
    ($(#[$doc:meta])* $field:ident: true, $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self) -> Self {
            self.$field = true;
            self
        }
        setters!($($rest)*);
    };
    ($(#[$doc:meta])* $field:ident: Some(impl Into<$type:ty>), $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = Some($field.into());
            self
        }
        setters!($($rest)*);
    };
    ($(#[$doc:meta])* $field:ident: Some($type:ty), $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, $field: $type) -> Self {
            self.$field = Some($field);
            self
        }
        setters!($($rest)*);
    };
    ($(#[$doc:meta])* $field:ident: impl Into<$type:ty>, $($rest:tt)*) => {
        $(#[$doc])*
        pub fn $field(mut self, $field: impl Into<$type>) -> Self {
            self.$field = $field.into();
            self
        }
        setters!($($rest)*);
    };
    ($(#[$doc:meta])* $field:ident: $type:ty, $($rest:tt)*) => {
        $(#[$doc])*
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
