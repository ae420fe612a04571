//! Ops, looked up by name.

use super::{OpDef, Registry};
use fleet_base::{Error, Result, text};
use fleet_ir::{Dialect, OpSpec};
use std::collections::HashMap;

impl Registry {
    /// Returns a registry of ops and their gradient ops. Of two ops of one name, it has the last.
    pub(crate) fn new(ops: impl Iterator<Item = &'static OpDef>) -> Registry {
        let mut registry =
            Registry { defs: Vec::new(), places: HashMap::new(), forwards: HashMap::new() };
        for def in ops {
            registry.add(def);
            if let Some(gradient) = def.grad.op() {
                registry.add(gradient);
                registry.forwards.insert(gradient.spec.name, def);
            }
        }
        registry
    }

    fn add(&mut self, def: &'static OpDef) {
        match self.places.get(def.spec.name) {
            Some(place) => self.defs[*place] = def,
            None => {
                self.places.insert(def.spec.name, self.defs.len());
                self.defs.push(def);
            }
        }
    }

    /// Returns whether this very definition is in the registry.
    pub(crate) fn has(&self, def: &OpDef) -> bool {
        self.find(def.spec.name).is_some_and(|found| std::ptr::eq(found, def))
    }

    /// Returns the op of a name.
    pub fn find(&self, name: &str) -> Option<&'static OpDef> {
        self.places.get(name).map(|place| self.defs[*place])
    }

    /// Like [`Registry::find`]; the error suggests the nearest op.
    pub fn get(&self, name: &str) -> Result<&'static OpDef> {
        self.find(name).ok_or_else(|| {
            let hint = text::did_you_mean(name, self.defs.iter().map(|def| def.spec.name));
            Error::invalid(format!("unknown op '{name}'{hint}"))
        })
    }

    /// Returns the op whose gradient op has this name.
    pub fn forward_of(&self, gradient: &str) -> Option<&'static OpDef> {
        self.forwards.get(gradient).copied()
    }

    /// Returns all ops, grouped by family. A gradient op follows its op.
    pub fn defs(&self) -> &[&'static OpDef] {
        &self.defs
    }
}

impl Dialect for Registry {
    fn spec(&self, name: &str) -> Option<&'static OpSpec> {
        self.find(name).map(|def| &def.spec)
    }

    fn names(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.defs.iter().map(|def| def.spec.name).collect();
        names.sort_unstable();
        names
    }
}
