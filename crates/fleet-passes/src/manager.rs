//! The pass manager. It runs rewrites of programs one at a time, verifies the result of each, names
//! the pass in errors, and shows the programs to an observer.
//!
//! Strategies and the executor's passes both run through it. A pass of a strategy rewrites several
//! programs at once; [`Rewritten`] lists them.

use fleet_base::{Error, Result};
use fleet_ir::Program;
use fleet_ops::{Registry, verify};

/// The subject of a pass: one or more programs.
pub trait Rewritten {
    /// Returns the programs with their names.
    fn programs(&self) -> Vec<(&'static str, &Program)>;
}

impl Rewritten for Program {
    fn programs(&self) -> Vec<(&'static str, &Program)> {
        vec![("main", self)]
    }
}

/// Sees the programs before and after each pass.
pub trait Observer {
    fn before(&mut self, pass: &str, programs: &[(&'static str, &Program)]);
    fn after(&mut self, pass: &str, programs: &[(&'static str, &Program)]);
}

/// Runs passes.
///
/// Debug builds and managers with an observer verify the programs after every pass. Otherwise, only
/// the result of the last pass is verified, by [`PassManager::finish`]: verifying after every pass
/// would slow down the start of a job.
pub struct PassManager<'m> {
    registry: &'m Registry,
    observer: Option<&'m mut dyn Observer>,
}

impl<'m> PassManager<'m> {
    pub fn new(registry: &'m Registry) -> PassManager<'m> {
        PassManager { registry, observer: None }
    }

    /// Returns a manager that shows the programs to `observer`.
    pub fn observed(registry: &'m Registry, observer: &'m mut dyn Observer) -> PassManager<'m> {
        PassManager { registry, observer: Some(observer) }
    }

    pub(crate) fn registry(&self) -> &'m Registry {
        self.registry
    }

    /// Runs one pass. Errors name it.
    pub fn run<S: Rewritten, T>(
        &mut self,
        pass: &str,
        subject: &mut S,
        rewrite: impl FnOnce(&mut S) -> Result<T>,
    ) -> Result<T> {
        if let Some(observer) = &mut self.observer {
            observer.before(pass, &subject.programs());
        }
        let result = rewrite(subject).map_err(|error| error.at(format!("pass '{pass}'")))?;
        if self.verifies_each() {
            self.verify(subject, &format!("pass '{pass}'"))?;
        }
        if let Some(observer) = &mut self.observer {
            observer.after(pass, &subject.programs());
        }
        Ok(result)
    }

    /// Verifies the result of all passes, unless each has been verified.
    pub fn finish<S: Rewritten>(&self, subject: &S) -> Result<()> {
        match self.verifies_each() {
            true => Ok(()),
            false => self.verify(subject, "a pass"),
        }
    }

    fn verifies_each(&self) -> bool {
        cfg!(debug_assertions) || self.observer.is_some()
    }

    fn verify<S: Rewritten>(&self, subject: &S, blamed: &str) -> Result<()> {
        subject.programs().into_iter().try_for_each(|(_, program)| {
            verify::verify(program, self.registry).map_err(|error| {
                Error::internal(format!("{blamed} produced an invalid program: {error}"))
            })
        })
    }
}
