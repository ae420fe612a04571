//! The pass manager. It runs rewrites of programs one at a time, verifies the result of each, names
//! the pass in errors, and shows the programs to an observer.
//!
//! Strategies and the executor's passes both run through it. A pass of a strategy rewrites several
//! programs at once; [`Rewritten`] lists them.

use crate::options::BuildOptions;
use crate::table::Pass;
use fleet_base::{Error, Result};
use fleet_ir::{Program, VarId};
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
    /// Called before a pass, with the programs that it rewrites and their names.
    fn before(&mut self, pass: &str, programs: &[(&'static str, &Program)]);
    /// Called after the pass, with the rewritten programs.
    fn after(&mut self, pass: &str, programs: &[(&'static str, &Program)]);
}

/// Runs passes.
///
/// Debug builds and managers with an observer verify the programs after every pass. Other managers
/// do not, because that would slow down the start of a job.
pub struct PassManager<'m> {
    registry: &'m Registry,
    observer: Option<&'m mut dyn Observer>,
    verifies_each: bool,
}

impl<'m> PassManager<'m> {
    /// Returns a manager without an observer.
    pub fn new(registry: &'m Registry) -> PassManager<'m> {
        PassManager { registry, observer: None, verifies_each: cfg!(debug_assertions) }
    }

    /// Returns a manager that shows the programs to `observer`.
    pub fn observed(registry: &'m Registry, observer: &'m mut dyn Observer) -> PassManager<'m> {
        PassManager { registry, observer: Some(observer), verifies_each: true }
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
        if self.verifies_each {
            for (_, program) in subject.programs() {
                self.verify(program, &format!("pass '{pass}'"))?;
            }
        }
        if let Some(observer) = &mut self.observer {
            observer.after(pass, &subject.programs());
        }
        Ok(result)
    }

    /// Returns the program, rewritten by the passes that `options` enable. The result is verified
    /// in every build, but a program that is invalid before the first pass is not: planning reports
    /// its errors, which are not those of a pass.
    pub fn run_all(
        &mut self,
        passes: &[Pass],
        program: &Program,
        keep: &[VarId],
        options: &BuildOptions,
    ) -> Result<Program> {
        let registry = self.registry;
        let is_valid = |program: &Program| verify::verify(program, registry).is_ok();
        let verifies_each = self.verifies_each;
        self.verifies_each = verifies_each && is_valid(program);
        let mut rewritten = program.clone();
        let mut changed: Vec<&str> = Vec::new();
        for pass in passes {
            let is_on = pass.option.is_none_or(|option| (option.is_on)(options));
            if !is_on || pass.follows.is_some_and(|other| !changed.contains(&other)) {
                continue;
            }
            let run = |program: &mut Program| (pass.run)(program, registry, keep);
            if self.run(pass.name, &mut rewritten, run)? {
                changed.push(pass.name);
            }
        }
        self.verifies_each = verifies_each;
        if !verifies_each
            && let Err(error) = self.verify(&rewritten, "a pass")
            && is_valid(program)
        {
            return Err(error);
        }
        Ok(rewritten)
    }

    fn verify(&self, program: &Program, blamed: &str) -> Result<()> {
        verify::verify(program, self.registry).map_err(|error| {
            Error::internal(format!("{blamed} produced an invalid program: {error}"))
        })
    }
}
