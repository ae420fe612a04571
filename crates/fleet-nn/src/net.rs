//! The network under construction: two programs, a name scope, a device label and the first error.
//!
//! Only this file uses interior mutability, because handles share a [`Net`] and layers are calls on
//! handles. The result ([`Programs`]) is plain data.
//!
//! This file knows neither handles nor layers. `variables.rs`, `call.rs`, `build.rs`, `cond.rs` and
//! `training.rs` add the methods that do.

use crate::Programs;
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, OpId, OpRole, Program, VarId};
use fleet_ops::Registry;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

/// A network under construction. See the [crate's page](crate).
pub struct Net {
    registry: &'static Registry,
    state: RefCell<State>,
}

pub(crate) struct State {
    pub programs: Programs,
    error: Option<Error>,
    /// Prefix of automatic names. Each level ends with a slash.
    pub scope: String,
    pub device: Option<Arc<str>>,
    pub fp16_guard: bool,
    /// Name of new layers, instead of automatic names.
    pub layer: Option<Arc<str>>,
    /// Source of new ops and of errors, instead of the caller's line.
    source: Option<Arc<str>>,
    /// Role of new ops of the main program.
    pub role: OpRole,
    /// Block of new ops: the root, or the branch being written. Variables are always in the root.
    pub block: BlockId,
}

impl Default for Net {
    fn default() -> Self {
        Net::new()
    }
}

impl Net {
    /// Creates an empty network with the standard ops.
    ///
    /// ```
    /// let net = fleet_nn::Net::new();
    /// assert!(net.error().is_none());
    /// ```
    pub fn new() -> Net {
        Net::with_registry(Registry::standard())
    }

    /// Creates an empty network with other ops, for extensions that define their own.
    pub fn with_registry(registry: &'static Registry) -> Net {
        Net::continued(Programs::new(), registry)
    }

    /// Continues with existing programs.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// net.data("x", [-1, 13], DType::F32).fc(1);
    /// let net = Net::from_programs(net.build()?);
    /// let loss = net.var("fc_0.tmp_1").mean();
    /// assert_eq!(loss.shape(), Shape::from([1]));
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn from_programs(programs: Programs) -> Net {
        Net::continued(programs, Registry::standard())
    }

    fn continued(programs: Programs, registry: &'static Registry) -> Net {
        let (scope, block) = (String::new(), Program::ROOT);
        let (device, fp16_guard) = (None, false);
        let (layer, source, role) = (None, None, OpRole::FORWARD);
        let error = None;
        let state =
            State { programs, error, scope, device, fp16_guard, layer, source, role, block };
        Net { registry, state: RefCell::new(state) }
    }

    /// Returns the registry in which the network looks up its ops.
    pub fn registry(&self) -> &'static Registry {
        self.registry
    }

    /// Sets the seed of all random numbers of the model, including initial parameters.
    ///
    /// ```
    /// let net = fleet_nn::Net::new();
    /// net.set_seed(7);
    /// assert_eq!(net.build().unwrap().startup.seed(), 7);
    /// ```
    pub fn set_seed(&self, seed: u64) {
        let mut state = self.state.borrow_mut();
        state.programs.main.set_seed(seed);
        state.programs.startup.set_seed(seed);
    }

    // Scopes

    /// Prefixes automatic names (`encoder/fc_0.w_0`) while the guard is alive.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// {
    ///     let _scope = net.name_scope("encoder");
    ///     x.fc(1);
    /// }
    /// assert_eq!(net.var("encoder/fc_0.w_0").shape(), Shape::from([13, 1]));
    /// ```
    pub fn name_scope(&self, name: &str) -> Guard<'_> {
        let mut state = self.state.borrow_mut();
        let before = state.scope.clone();
        state.scope.push_str(name);
        state.scope.push('/');
        Guard { net: self, before: Previous::Scope(before) }
    }

    /// Names the layers that are written while the guard is alive: their results are `<name>.tmp_0`
    /// and so on. It is for layers whose options have no name. A name in the options of a layer
    /// takes precedence.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// let name = net.name_guard("error");
    /// let loss = x.mse_loss(x, Reduction::Mean);
    /// drop(name);
    /// assert_eq!(loss.name(), "error.tmp_1");
    /// assert_eq!(x.mean().name(), "mean_0.tmp_0");
    /// ```
    pub fn name_guard(&self, name: &str) -> Guard<'_> {
        let before = self.state.borrow_mut().layer.replace(name.into());
        Guard { net: self, before: Previous::Layer(before) }
    }

    /// Labels ops with a device (`cpu`, `gpu`, `gpu:1`, `gpu:all`) while the guard is alive.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// let gpu = net.device_guard("gpu:0");
    /// let hidden = x.relu();
    /// drop(gpu);
    /// let (_, op) = net.build()?.main.root_ops().next().map(|(id, op)| (id, op.clone())).unwrap();
    /// assert_eq!(op.device.as_deref(), Some("gpu:0"));
    /// # let _ = hidden;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn device_guard(&self, device: &str) -> Guard<'_> {
        // An error stays in the network.
        let _ = self.update(&self.source(Location::caller()), |_| check_device(device));
        let mut state = self.state.borrow_mut();
        let before = state.device.replace(device.into());
        Guard { net: self, before: Previous::Device(before) }
    }

    /// Marks ops created while the guard is alive. With `use_pure_fp16` (or `use_pure_bf16`) and
    /// `use_fp16_guard`, only marked ops compute in 16 bits. The op lists of mixed precision still
    /// apply.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// let region = net.fp16_guard();
    /// let hidden = x.fc(8);
    /// drop(region);
    /// hidden.fc(1);
    /// let main = net.build()?.main;
    /// let guarded: Vec<bool> = main.root_ops().map(|(_, op)| op.fp16_guard).collect();
    /// assert_eq!(guarded, [true, true, false, false]);
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn fp16_guard(&self) -> Guard<'_> {
        let before = std::mem::replace(&mut self.state.borrow_mut().fp16_guard, true);
        Guard { net: self, before: Previous::Fp16Guard(before) }
    }

    /// Marks ops created while the guard is alive as parts of the update. They run in training
    /// only: test programs and exported models do not have them.
    ///
    /// Use it to write an update with layers, for one process. In a job of several ranks,
    /// strategies insert ops between gradients and updates, so write a rule
    /// ([`Optimizer::custom`](crate::optimizer::Optimizer::custom)) instead.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
    /// let gradients = net.backward(loss)?;
    /// let update = net.update_guard();
    /// for (param, grad) in &gradients.pairs {
    ///     (*param - grad.sign() * 0.01).assign_to(*param);
    /// }
    /// drop(update);
    /// let test = net.build()?.for_test()?;
    /// let ops: Vec<&str> = test.root_ops().map(|(_, op)| op.name()).collect();
    /// assert_eq!(ops, ["mul", "elementwise_add", "mean"]);
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn update_guard(&self) -> Guard<'_> {
        let before = std::mem::replace(&mut self.state.borrow_mut().role, OpRole::OPTIMIZE);
        Guard { net: self, before: Previous::Role(before) }
    }

    /// Names the source of ops, and of errors, while the guard is alive. Without a guard, it is the
    /// line of the Rust code that calls the layer. Bindings for other languages and readers of
    /// model files pass the place in the user's file.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// let source = net.source_guard("train.py:12");
    /// x.fc(1);
    /// x.fc(0);
    /// drop(source);
    /// let error = net.build().unwrap_err().to_string();
    /// assert!(error.ends_with("\n  at train.py:12"), "{error}");
    /// ```
    pub fn source_guard(&self, source: &str) -> Guard<'_> {
        let before = self.state.borrow_mut().source.replace(source.into());
        Guard { net: self, before: Previous::Source(before) }
    }

    // Changes

    /// Runs a rewrite of both programs, such as a strategy. Returns its error and stores it in the
    /// network. Handles stay valid if the rewrite keeps their variables.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// net.data("x", [-1, 13], DType::F32).fc(1);
    /// let ops = net.rewrite_with(|programs, _| Ok(programs.main.root_ops().count()))?;
    /// assert_eq!(ops, 2);
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn rewrite_with<T>(
        &self,
        rewrite: impl FnOnce(&mut Programs, &'static Registry) -> Result<T>,
    ) -> Result<T> {
        self.rewrite_for(&self.source(Location::caller()), rewrite)
    }

    /// Like [`rewrite_with`](Self::rewrite_with), for rewrites configured by a file. An error names
    /// the file instead of the caller's line.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # use fleet_nn::Error;
    /// let net = Net::new();
    /// let wrong = |_: &mut _, _| Err::<(), _>(Error::invalid("no such op"));
    /// let error = net.rewrite_for("job.prototxt", wrong).unwrap_err();
    /// assert_eq!(error.to_string(), "no such op\n  at job.prototxt");
    /// ```
    pub fn rewrite_for<T>(
        &self,
        file: &str,
        rewrite: impl FnOnce(&mut Programs, &'static Registry) -> Result<T>,
    ) -> Result<T> {
        self.update(file, |state| match state.block {
            Program::ROOT => rewrite(&mut state.programs, self.registry),
            _ => Err(Error::invalid("cannot rewrite the network inside a branch of cond")
                .help("call gradients and minimize after cond, not in its branches")),
        })
    }

    /// Runs a change, unless an error occurred before. Returns its error, with its source line or
    /// file, and stores it in the network.
    pub(crate) fn update<T>(
        &self,
        source: &str,
        change: impl FnOnce(&mut State) -> Result<T>,
    ) -> Result<T> {
        let state = &mut *self.state.borrow_mut();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        change(state).map_err(|error| {
            let error = error.at_line(source);
            state.error = Some(error.clone());
            error
        })
    }

    // Results

    /// Returns the first error in the network, if any.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// net.data("x", [-1, 4], DType::F32).reshape([-1, 3, 5]);
    /// net.data("x", [-1, 4], DType::F32);
    /// assert!(net.error().is_some());
    /// ```
    pub fn error(&self) -> Option<Error> {
        self.state.borrow().error.clone()
    }

    /// Returns a copy of the current programs. The network's handles stay valid.
    pub fn build(&self) -> Result<Programs> {
        let state = self.state.borrow();
        match &state.error {
            Some(error) => Err(error.clone()),
            None => Ok(state.programs.clone()),
        }
    }

    /// Returns the programs themselves.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// net.data("x", [-1, 13], DType::F32).fc(1);
    /// let programs = net.finish()?;
    /// assert_eq!(programs.main.root_ops().count(), 2);
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    pub fn finish(self) -> Result<Programs> {
        let state = self.state.into_inner();
        match state.error {
            Some(error) => Err(error),
            None => Ok(state.programs),
        }
    }

    /// Returns the programs as far as they were written, and the first error, if any. The programs
    /// have the complete layers before the error, and may have variables of the layer that failed.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// x.fc(1).fc(0);
    /// let (programs, error) = net.into_parts();
    /// assert!(error.is_some());
    /// assert_eq!(programs.main.root_ops().count(), 2);
    /// ```
    pub fn into_parts(self) -> (Programs, Option<Error>) {
        let state = self.state.into_inner();
        (state.programs, state.error)
    }

    /// Returns the source of ops that a call at this place in Rust code adds.
    pub(crate) fn source(&self, at: &Location<'_>) -> Arc<str> {
        match &self.state.borrow().source {
            Some(source) => Arc::clone(source),
            None => source_line(at).into(),
        }
    }

    /// Writes ops to a block of the main program while the guard is alive.
    pub(crate) fn block_guard(&self, block: BlockId) -> Guard<'_> {
        let before = std::mem::replace(&mut self.state.borrow_mut().block, block);
        Guard { net: self, before: Previous::Block(before) }
    }

    /// Reads a variable of the main program.
    pub(crate) fn read<T>(&self, id: VarId, read: impl FnOnce(&fleet_ir::Var) -> T) -> Option<T> {
        let program = &self.state.borrow().programs.main;
        program.has_var(id).then(|| read(program.var(id)))
    }

    /// Returns whether the main program has a variable. A removed one keeps its id and its name.
    pub(crate) fn has(&self, id: VarId) -> bool {
        let program = &self.state.borrow().programs.main;
        program.has_var(id) && program.find_var(program.var_name(id)) == Some(id)
    }

    /// Returns the outputs of an op in a slot.
    pub(crate) fn outputs_of(&self, op: OpId, slot: &str) -> Vec<VarId> {
        self.state.borrow().programs.main.op(op).output(slot).to_vec()
    }
}

/// Returns `file:line`.
fn source_line(at: &Location<'_>) -> String {
    format!("{}:{}", at.file(), at.line())
}

fn check_device(device: &str) -> Result<()> {
    let known = match device.split_once(':') {
        None => matches!(device, "cpu" | "gpu"),
        Some(("gpu", "all")) => true,
        Some(("gpu", index)) => index.parse::<u16>().is_ok(),
        Some(_) => false,
    };
    if known {
        return Ok(());
    }
    Err(Error::invalid("unknown device label")
        .expected("cpu, gpu, gpu:<number> or gpu:all")
        .got(format!("'{device}'")))
}

/// Guard that ends a scope, a name, a label, a branch or a region when dropped. Bind it to a name:
/// `let _scope = ..`.
///
/// ```
/// let net = fleet_nn::Net::new();
/// let guard = net.name_scope("tower");
/// drop(guard);
/// ```
#[must_use = "the scope ends when the guard is dropped"]
pub struct Guard<'n> {
    net: &'n Net,
    before: Previous,
}

enum Previous {
    Scope(String),
    Device(Option<Arc<str>>),
    Fp16Guard(bool),
    Layer(Option<Arc<str>>),
    Block(BlockId),
    Source(Option<Arc<str>>),
    Role(OpRole),
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut state = self.net.state.borrow_mut();
        match &mut self.before {
            Previous::Scope(scope) => state.scope = std::mem::take(scope),
            Previous::Device(device) => state.device = device.take(),
            Previous::Fp16Guard(inside) => state.fp16_guard = *inside,
            Previous::Layer(layer) => state.layer = layer.take(),
            Previous::Block(block) => state.block = *block,
            Previous::Source(source) => state.source = source.take(),
            Previous::Role(role) => state.role = *role,
        }
    }
}
