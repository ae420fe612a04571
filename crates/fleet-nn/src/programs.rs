//! The programs of a model.

use crate::HostRate;
use fleet_base::Result;
use fleet_ir::Program;

/// The two programs of a model.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let y = net.data("x", [-1, 13], DType::F32).fc(1);
/// let programs = net.build()?;
/// assert_eq!(programs.main.parameters().count(), 2);
/// assert_eq!(programs.startup.root_ops().count(), 2);
/// # let _ = y;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Programs {
    /// Training program: forward, backward, updates.
    pub main: Program,
    /// Startup program, which fills parameters and optimizer state. It runs once.
    pub startup: Program,
    /// Learning rates that the host computes before each step.
    pub host_rates: Vec<HostRate>,
    /// The evaluation program, if it is not the forward part of `main`: a stage of a pipeline
    /// trains on micro-batches and evaluates whole batches.
    pub test: Option<Program>,
}

impl Programs {
    /// Returns two empty programs.
    pub fn new() -> Programs {
        let (main, startup) = (Program::new(), Program::new());
        Programs { main, startup, host_rates: Vec::new(), test: None }
    }

    /// Returns the evaluation program: forward ops only, with dropout off and batch norm on moving
    /// averages.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let y = net.data("x", [-1, 13], DType::F32).dropout(0.5);
    /// let test = net.build()?.for_test()?;
    /// assert!(test.root_ops().all(|(_, op)| op.attr_bool("is_test")));
    /// # let _ = y;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn for_test(&self) -> Result<Program> {
        match &self.test {
            Some(test) => Ok(test.clone()),
            None => self.main.clone_for_test(),
        }
    }
}

impl Default for Programs {
    fn default() -> Self {
        Programs::new()
    }
}
