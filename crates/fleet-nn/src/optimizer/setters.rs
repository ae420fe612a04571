//! Builder methods of optimizers.

/// Adds to an optimizer one method for each listed field of its rule. The method sets the field and
/// has its name. A doc comment before a field goes to the method.
macro_rules! setters {
    ($optimizer:ident { $($(#[$doc:meta])* $field:ident: $type:ty),* $(,)? }) => {
        impl $optimizer {
            $($(#[$doc])*
            pub fn $field(mut self, $field: $type) -> Self {
                self.rule.$field = $field;
                self
            })*
        }
    };
}

pub(super) use setters;
