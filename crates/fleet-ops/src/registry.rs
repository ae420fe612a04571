//! The list of ops, looked up by name.

use crate::OpDef;
use fleet_base::{Error, Result, text};
use fleet_ir::{Dialect, OpSpec};
use std::collections::HashMap;
use std::sync::OnceLock;

/// Ops by name.
pub struct Registry {
    defs: HashMap<&'static str, &'static OpDef>,
    /// Forward ops by the name of their gradient op.
    forwards: HashMap<&'static str, &'static OpDef>,
}

impl Registry {
    /// Returns the registry of all built-in ops.
    pub fn standard() -> &'static Registry {
        static STANDARD: OnceLock<Registry> = OnceLock::new();
        STANDARD.get_or_init(|| Registry::with(&[]))
    }

    /// Returns a registry of the standard ops and some more, for tests and extensions.
    pub fn with(more: &[&'static OpDef]) -> Registry {
        let all = || crate::OPS.iter().chain(more);
        Registry {
            defs: all().map(|def| (def.spec.name, *def)).collect(),
            forwards: all().filter_map(|def| Some((def.grad.op()?.spec.name, *def))).collect(),
        }
    }

    pub fn find(&self, name: &str) -> Option<&'static OpDef> {
        self.defs.get(name).copied()
    }

    /// Like [`Registry::find`]; the error suggests the nearest op.
    pub fn get(&self, name: &str) -> Result<&'static OpDef> {
        self.find(name).ok_or_else(|| {
            let hint = text::did_you_mean(name, self.defs.keys().copied());
            Error::invalid(format!("unknown op '{name}'{hint}"))
        })
    }

    /// Returns the op whose gradient op has this name.
    pub fn forward_of(&self, gradient: &str) -> Option<&'static OpDef> {
        self.forwards.get(gradient).copied()
    }

    pub fn defs(&self) -> impl Iterator<Item = &'static OpDef> + '_ {
        self.defs.values().copied()
    }
}

impl Dialect for Registry {
    fn spec(&self, name: &str) -> Option<&'static OpSpec> {
        self.find(name).map(|def| &def.spec)
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.defs.keys().copied().collect();
        names.sort_unstable();
        names
    }
}
