//! The network under construction: two programs, a name scope, a device label and the first error.
//!
//! Only this file uses interior mutability, because handles share a [`Net`] and layers are calls on
//! handles. The result ([`Programs`]) is plain data.

use crate::build::Build;
use crate::optimizer::OptimizerDesc;
use crate::{HostRate, Init, OpCall, ParamAttr, Var};
use fleet_base::{EntityRef, Error, Result};
use fleet_ir::{BlockId, OpRole, Program, VarId};
use fleet_ops::{Emit, Registry};
use fleet_tensor::{DType, Shape};
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;

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
}

impl Programs {
    pub fn new() -> Programs {
        Programs { main: Program::new(), startup: Program::new(), host_rates: Vec::new() }
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
        self.main.clone_for_test()
    }
}

impl Default for Programs {
    fn default() -> Self {
        Programs::new()
    }
}

/// A network under construction. See the [crate's page](crate).
pub struct Net {
    registry: &'static Registry,
    state: RefCell<State>,
}

struct State {
    programs: Programs,
    error: Option<Error>,
    /// Prefix of automatic names. Each level ends with a slash.
    scope: String,
    device: Option<Arc<str>>,
    fp16_guard: bool,
    /// Block of new ops: the root, or the branch being written. Variables are always in the root.
    block: BlockId,
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
        let state = State { programs, error: None, scope, device, fp16_guard, block };
        Net { registry, state: RefCell::new(state) }
    }

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

    // Inputs, parameters and other variables

    /// Adds an input variable, which is fed. Dimension -1 is the batch.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// assert_eq!(x.shape(), Shape::from([-1, 13]));
    /// ```
    #[track_caller]
    pub fn data(&self, name: &str, shape: impl Into<Shape>, dtype: DType) -> Var<'_> {
        self.data_lod(name, shape, dtype, 0)
    }

    /// Like [`Net::data`], for ragged rows with `lod_level` levels of nesting.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let words = net.data_lod("words", [-1, 1], DType::I64, 1);
    /// assert_eq!(net.build().unwrap().main.var(words.id()).lod_level, 1);
    /// ```
    #[track_caller]
    pub fn data_lod(
        &self,
        name: &str,
        shape: impl Into<Shape>,
        dtype: DType,
        lod_level: u8,
    ) -> Var<'_> {
        let shape = shape.into();
        self.try_emit_var(Location::caller(), |b| {
            let shape = Shape::new(&shape)?;
            let var = fleet_ir::Var { lod_level, ..fleet_ir::Var::data(name, dtype, shape) };
            b.main.program.add_var(Program::ROOT, var)
        })
    }

    /// Returns a variable of the main program by name.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// net.data("x", [-1, 13], DType::F32).fc(1);
    /// assert_eq!(net.var("fc_0.w_0").shape(), Shape::from([13, 1]));
    /// ```
    #[track_caller]
    pub fn var(&self, name: &str) -> Var<'_> {
        self.try_emit_var(Location::caller(), |b| b.main.program.var_named(name))
    }

    /// Adds a parameter. If a parameter with the attribute's name exists, it is shared.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let table = net.create_parameter([1000, 16], DType::F32, Init::normal(0.0, 0.1));
    /// assert_eq!(table.name(), "create_parameter_0.w_0");
    /// let same = net.create_parameter([1000, 16], DType::F32, "create_parameter_0.w_0");
    /// assert_eq!(same.id(), table.id());
    /// ```
    #[track_caller]
    pub fn create_parameter(
        &self,
        shape: impl Into<Shape>,
        dtype: DType,
        attr: impl Into<ParamAttr>,
    ) -> Var<'_> {
        let (shape, attr) = (shape.into(), attr.into());
        self.try_emit_var(Location::caller(), |b| {
            let layer = b.layer_name("create_parameter", None);
            b.parameter(&layer, "w", &attr, shape, dtype, &Init::XAVIER_UNIFORM)
        })
    }

    /// Adds a variable that persists across steps and starts as `value`, such as a counter or a
    /// running sum.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let total = net.create_global_var("total_cnt", [1], 0.0, DType::F32);
    /// (total + 32.0).assign_to(total);
    /// # net.build()?;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn create_global_var(
        &self,
        name: &str,
        shape: impl Into<Shape>,
        value: f64,
        dtype: DType,
    ) -> Var<'_> {
        let shape = shape.into();
        self.try_emit_var(Location::caller(), |b| b.global_var(name, shape, dtype, value))
    }

    /// Returns a tensor filled with one value, created in each step.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let ones = net.full([2, 3], 1.0, DType::F32);
    /// assert_eq!(ones.shape(), Shape::from([2, 3]));
    /// ```
    #[track_caller]
    pub fn full(&self, shape: impl Into<Shape>, value: f64, dtype: DType) -> Var<'_> {
        self.op("fill_constant")
            .attr("shape", shape.into().to_vec())
            .attr("dtype", dtype)
            .attr("value", value)
            .one("Out")
    }

    /// Starts any op of the registry by name.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 13], DType::F32);
    /// let y = net.op("scale").input("X", x).attr("scale", 2.0).one("Out");
    /// assert_eq!(y.name(), "scale_0.tmp_0");
    /// ```
    #[track_caller]
    pub fn op(&self, name: &'static str) -> OpCall<'_> {
        OpCall::new(self, name, Location::caller())
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
        self.try_emit(Location::caller(), |_| check_device(device));
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

    // Training

    /// Appends the training ops: the backward pass of `loss`, the learning-rate schedule, gradient
    /// clipping, and an update of each parameter.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 13], DType::F32), net.data("y", [-1, 1], DType::F32));
    /// let loss = x.fc(1).mse_loss(y, Reduction::Mean);
    /// let training = net.minimize(loss, Sgd::new(0.01))?;
    /// assert_eq!(training.learning_rate.name(), "learning_rate_0");
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn minimize(&self, loss: Var<'_>, with: impl Into<OptimizerDesc>) -> Result<Minimized<'_>> {
        let desc = with.into();
        let at = Location::caller();
        let (params_grads, rate) = self.rewrite(at, |net, programs| {
            let loss = loss.of(net)?;
            let minimized = desc.minimize(programs, net.registry, loss)?;
            Ok((minimized.params_grads, minimized.learning_rate))
        })?;
        let pairs = params_grads.iter().map(|(p, g)| (self.handle(*p), self.handle(*g))).collect();
        Ok(Minimized { params_grads: pairs, learning_rate: self.handle(rate) })
    }

    /// Appends only the backward pass, the first half of [`Net::minimize`]. Different parameters
    /// can then use different optimizers.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let ids = net.data("ids", [-1, 26], DType::I64);
    /// let rows = ids.embedding(Embedding::new(1000, 16).sparse().weight("table"));
    /// let loss = rows.flatten(1).fc(1).mean();
    /// let (table, rest) = net.backward(loss)?.partition(|name| name == "table");
    /// net.apply_gradients(Sgd::new(0.01), table)?;
    /// net.apply_gradients(Adam::new(1e-3), rest)?;
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn backward<'n>(&'n self, loss: Var<'n>) -> Result<Gradients<'n>> {
        let desc: OptimizerDesc = crate::optimizer::Sgd::new(0.0).into();
        let pairs = self.rewrite(Location::caller(), |net, programs| {
            desc.backward(programs, net.registry, loss.of(net)?)
        })?;
        let pairs = pairs.iter().map(|(p, g)| (self.handle(*p), self.handle(*g))).collect();
        Ok(Gradients { pairs })
    }

    /// Appends clipping and updates for existing gradients, the second half of [`Net::minimize`].
    #[track_caller]
    pub fn apply_gradients<'n>(
        &'n self,
        with: impl Into<OptimizerDesc>,
        gradients: Gradients<'n>,
    ) -> Result<Minimized<'n>> {
        let desc = with.into();
        let rate = self.rewrite(Location::caller(), |net, programs| {
            let pairs = gradients.pairs.iter().map(|(p, g)| Ok((p.of(net)?, g.of(net)?)));
            desc.apply_gradients(programs, net.registry, &pairs.collect::<Result<Vec<_>>>()?)
        })?;
        Ok(Minimized { params_grads: gradients.pairs, learning_rate: self.handle(rate) })
    }

    /// Returns the gradients of `targets` with respect to `inputs`; `None` for inputs without
    /// influence.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.create_parameter([3], DType::F32, Init::Constant(2.0));
    /// let dx = net.gradients(&[x.square()], &[x])?;
    /// assert_eq!(dx[0].unwrap().shape(), Shape::from([3]));
    /// # Ok::<(), fleet_nn::Error>(())
    /// ```
    #[track_caller]
    pub fn gradients(
        &self,
        targets: &[Var<'_>],
        inputs: &[Var<'_>],
    ) -> Result<Vec<Option<Var<'_>>>> {
        let found = self.rewrite(Location::caller(), |net, programs| {
            let ids = |vars: &[Var<'_>]| vars.iter().map(|v| v.of(net)).collect::<Result<Vec<_>>>();
            let (targets, inputs) = (ids(targets)?, ids(inputs)?);
            fleet_passes::gradients(&mut programs.main, net.registry, &targets, &inputs, &[])
        })?;
        Ok(found.into_iter().map(|id| id.map(|id| self.handle(id))).collect())
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

    // Helpers for layers

    /// Runs `layer` on the programs, unless an error occurred before. Stores its error in the
    /// network.
    pub(crate) fn try_emit<T>(
        &self,
        at: &Location<'_>,
        layer: impl FnOnce(&mut Build<'_>) -> Result<T>,
    ) -> Option<T> {
        let state = &mut *self.state.borrow_mut();
        if state.error.is_some() {
            return None;
        }
        let source: Arc<str> = format!("{}:{}", at.file(), at.line()).into();
        let emit = |program| {
            let mut emit = Emit::new(program, self.registry, OpRole::FORWARD);
            emit.source = Some(source.clone());
            emit
        };
        let mut main = emit(&mut state.programs.main);
        let startup = emit(&mut state.programs.startup);
        main.device = state.device.clone();
        main.fp16_guard = state.fp16_guard;
        let block = state.block;
        let mut build = Build { net: self, main, startup, scope: &state.scope, block };
        match layer(&mut build) {
            Ok(made) => {
                build.main.block = block;
                build.main.append();
                build.startup.append();
                Some(made)
            }
            Err(error) => {
                state.error = Some(error.at_line(&source));
                None
            }
        }
    }

    /// Like [`Net::try_emit`], for a layer with one result.
    pub(crate) fn try_emit_var(
        &self,
        at: &Location<'_>,
        layer: impl FnOnce(&mut Build<'_>) -> Result<VarId>,
    ) -> Var<'_> {
        self.try_emit(at, layer).map_or_else(|| self.invalid_var(), |id| self.handle(id))
    }

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
        self.rewrite(Location::caller(), |net, programs| rewrite(programs, net.registry))
    }

    /// Like [`rewrite_with`](Self::rewrite_with), for rewrites configured by a file. An error names
    /// the file instead of the caller's line.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # use fleet_nn::Error;
    /// let net = Net::new();
    /// let wrong = net.rewrite_for("job.prototxt", |_, _| Err::<(), _>(Error::invalid("no such op")));
    /// assert_eq!(wrong.unwrap_err().to_string(), "no such op\n  at job.prototxt");
    /// ```
    pub fn rewrite_for<T>(
        &self,
        file: &str,
        rewrite: impl FnOnce(&mut Programs, &'static Registry) -> Result<T>,
    ) -> Result<T> {
        self.rewrite_at(file, |net, programs| rewrite(programs, net.registry))
    }

    /// Runs a rewrite of both programs. Returns its error and stores it in the network.
    fn rewrite<T>(
        &self,
        at: &Location<'_>,
        rewrite: impl FnOnce(&Net, &mut Programs) -> Result<T>,
    ) -> Result<T> {
        self.rewrite_at(&format!("{}:{}", at.file(), at.line()), rewrite)
    }

    fn rewrite_at<T>(
        &self,
        place: &str,
        rewrite: impl FnOnce(&Net, &mut Programs) -> Result<T>,
    ) -> Result<T> {
        let state = &mut *self.state.borrow_mut();
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let is_branch = state.block != Program::ROOT;
        let rewrite = |net: &Net, programs: &mut Programs| match is_branch {
            true => Err(Error::invalid("cannot rewrite the network inside a branch of cond")
                .help("call gradients and minimize after cond, not in its branches")),
            false => rewrite(net, programs),
        };
        rewrite(self, &mut state.programs).map_err(|error| {
            let error = error.at_line(place);
            state.error = Some(error.clone());
            error
        })
    }

    /// Writes ops to `block` while `write` runs.
    pub(crate) fn in_block<T>(&self, block: BlockId, write: impl FnOnce() -> T) -> T {
        let before = std::mem::replace(&mut self.state.borrow_mut().block, block);
        let made = write();
        self.state.borrow_mut().block = before;
        made
    }

    pub(crate) fn handle(&self, id: VarId) -> Var<'_> {
        Var { net: self, id }
    }

    /// Returns the result of a layer after an error: a handle without a variable, accepted by all
    /// calls.
    pub(crate) fn invalid_var(&self) -> Var<'_> {
        self.handle(invalid_id())
    }

    /// Reads a variable of the main program.
    pub(crate) fn read<T>(&self, id: VarId, read: impl FnOnce(&fleet_ir::Var) -> T) -> Option<T> {
        let state = self.state.borrow();
        let program = &state.programs.main;
        (id != invalid_id() && program.has_var(id)).then(|| read(program.var(id)))
    }

    /// Returns the outputs of an op in a slot.
    pub(crate) fn outputs_of(&self, op: fleet_ir::OpId, slot: &str) -> Vec<VarId> {
        self.state.borrow().programs.main.op(op).output(slot).to_vec()
    }
}

fn invalid_id() -> VarId {
    VarId::from_index(u32::MAX as usize - 1)
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

/// Guard that ends a scope, a device label or a region when dropped. Bind it to a name:
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
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let mut state = self.net.state.borrow_mut();
        match &mut self.before {
            Previous::Scope(scope) => state.scope = std::mem::take(scope),
            Previous::Device(device) => state.device = device.take(),
            Previous::Fp16Guard(inside) => state.fp16_guard = *inside,
        }
    }
}

/// Results of [`Net::minimize`].
pub struct Minimized<'n> {
    /// Each parameter with its gradient before clipping.
    pub params_grads: Vec<(Var<'n>, Var<'n>)>,
    /// Learning rate of the step, `learning_rate_0`: one number, which can be fetched or set.
    pub learning_rate: Var<'n>,
}

/// Parameters with their gradients, to be passed to an optimizer.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 13], DType::F32).fc(1).mean();
/// let gradients = net.backward(loss)?;
/// assert_eq!(gradients.pairs.len(), 2);
/// let (weights, biases) = gradients.partition(|name| name.contains(".w_"));
/// assert_eq!((weights.pairs.len(), biases.pairs.len()), (1, 1));
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub struct Gradients<'n> {
    pub pairs: Vec<(Var<'n>, Var<'n>)>,
}

impl<'n> Gradients<'n> {
    /// Splits by parameter name: those for which `first` holds, and the rest.
    pub fn partition(self, first: impl Fn(&str) -> bool) -> (Gradients<'n>, Gradients<'n>) {
        let (a, b) = self.pairs.into_iter().partition(|(param, _)| first(&param.name()));
        (Gradients { pairs: a }, Gradients { pairs: b })
    }
}
