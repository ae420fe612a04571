//! The key/value form.
