//! The executor: plans a program once and runs it many times.

use crate::bind::{Binding, Block};
use crate::lanes::{Lanes, RunContext};
use crate::plan::{Outline, Plan, PlanRequest, PlanSummary, ScopeVar, StepKind};
use crate::spill::FileSpill;
use crate::trace::{Times, Trace};
use crate::{Device, ExecOptions, Scope};
use fleet_base::file::write_file;
use fleet_base::{Error, Result, text};
use fleet_ir::{Program, VarId};
use fleet_kernels::pool::Pool;
use fleet_ops::{Meta, Registry, Services};
use fleet_tensor::{Buffer, DType, Layout, Shape, Tensor};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

/// Plans programs and runs the plans.
///
/// The first run of a program with given shapes plans it. Later runs with the same shapes allocate
/// memory only for fetched tensors. [`Executor::run_into`] reuses even those.
///
/// ```
/// use fleet_exec::{Device, ExecOptions, Executor, PlanSummary, Scope};
/// use fleet_ir::Program;
/// use fleet_ops::Registry;
/// use fleet_tensor::{DType, Tensor};
///
/// # fn main() -> fleet_base::Result<()> {
/// let text = "fleet program 1
/// block0 {
///   %x: f32[-1, 2] data
///   %y: f32[-1, 2]
///   %z: f32[-1, 2]
///   (Out: %y) = scale(X: %x) {scale: 2.0}
///   (Out: %z) = relu(X: %y)
/// }";
/// let program = Program::parse(text, Registry::standard())?;
/// let mut scope = Scope::new();
/// let mut executor = Executor::new(ExecOptions { profile: true, ..ExecOptions::threads(1) });
/// assert!(executor.options().profile && executor.threads() == 1);
/// let x = Tensor::from_slice(&[1.0f32, -2.0], [1, 2])?;
/// let mut out = Vec::new();
/// for _ in 0..3 {
///     executor.run_into(&program, &mut scope, &[("x", &x)], &["z"], &mut out)?;
/// }
/// assert_eq!((out[0].to_vec::<f32>()?, executor.plan_count()), (vec![2.0, 0.0], 1));
/// assert_eq!((executor.profile().len(), executor.profile_ops().len()), (2, 2));
/// let trace = executor.trace(); // of the last run
/// assert!(trace.duration_us() > 0.0 && trace.exposed_us() == 0.0);
///
/// // Plan for other shapes on a device without memory, to see what a run needs.
/// let feed = [("x", DType::F32, [1000, 2].into())];
/// let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(1) };
/// let mut planner = Executor::new(options);
/// let summary: PlanSummary = planner.plan(&program, &scope, &feed, &["z"])?;
/// assert_eq!((summary.feed_bytes, summary.arena_bytes), (8000, 8000)); // y and z share memory
/// let planned = planner.planned_program(&program, &scope, &feed, &["z"])?;
/// assert_eq!(planned.root_ops().count(), summary.op_count);
/// # Ok(())
/// # }
/// ```
pub struct Executor {
    registry: &'static Registry,
    options: ExecOptions,
    pool: Pool,
    arena: Buffer,
    lanes: Lanes,
    plans: HashMap<u128, Planned>,
    runs: u64,
    services: Services,
    spill: Arc<FileSpill>,
}

struct Planned {
    plan: Plan,
    binding: Binding,
    /// The allocations of [`Memory::Separate`](crate::Memory::Separate).
    separate: Vec<Buffer>,
    /// By fed tensor of the plan: its position in the feeds of the call.
    order: Vec<usize>,
    last_run: u64,
    /// Present if profiling is on.
    times: Option<Times>,
    /// Start of the last run, on the clock of `times`.
    last_begin: u64,
}

impl Executor {
    /// Creates an executor with the ops of [`Registry::standard`].
    pub fn new(options: ExecOptions) -> Executor {
        Self::with_registry(options, Registry::standard())
    }

    /// Returns an executor with a registry other than the standard one.
    pub fn with_registry(options: ExecOptions, registry: &'static Registry) -> Executor {
        let pool = Pool::new(options.thread_count());
        let spill = Arc::new(FileSpill::new(options.offload_folder.as_deref()));
        Executor {
            registry,
            pool,
            options,
            arena: Buffer::empty(),
            lanes: Lanes::default(),
            plans: HashMap::new(),
            runs: 0,
            services: Services::none().with_spill(spill.clone()),
            spill,
        }
    }

    /// Sets the connections to other processes, with a ring for each `ring_id` in the programs.
    /// Without services, only programs of one rank run.
    pub fn services(mut self, services: Services) -> Executor {
        self.plans.clear();
        self.services = services.with_spill(self.spill.clone());
        self
    }

    /// Returns the options.
    pub fn options(&self) -> &ExecOptions {
        &self.options
    }

    /// Returns the number of threads in use.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Runs `program` on `scope` and returns the fetched variables in row-major layout.
    pub fn run(
        &mut self,
        program: &Program,
        scope: &mut Scope,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
    ) -> Result<Vec<Tensor>> {
        let mut out = Vec::with_capacity(fetch.len());
        self.run_into(program, scope, feed, fetch, &mut out)?;
        Ok(out)
    }

    /// Like [`Executor::run`], but reuses the tensors in `out` that have the right type and shape.
    pub fn run_into(
        &mut self,
        program: &Program,
        scope: &mut Scope,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        if self.options.device == Device::Null {
            return Err(Error::unsupported("the null device cannot run programs")
                .help("use Executor::plan, or another device"));
        }
        let key = request_key(
            program,
            feed.iter().map(|(name, tensor)| (*name, tensor.dtype(), *tensor.shape())),
            fetch,
        );
        if !self.plans.contains_key(&key) {
            let metas: Vec<(&str, DType, Shape)> =
                feed.iter().map(|(name, t)| (*name, t.dtype(), *t.shape())).collect();
            let planned = self.make_plan(program, scope, &metas, fetch)?;
            self.write_graph(&planned.plan.program)?;
            self.plans.insert(key, planned);
        }
        for _ in 0..self.options.num_iteration_per_run.max(1) {
            self.run_planned(key, scope, feed)?;
        }
        self.fetch(key, out)?;
        self.drop_unused_plans();
        Ok(())
    }

    /// Plans without running, and returns the resources that a program needs for these feeds.
    pub fn plan(
        &mut self,
        program: &Program,
        scope: &Scope,
        feed: &[(&str, DType, Shape)],
        fetch: &[&str],
    ) -> Result<PlanSummary> {
        Ok(self.make_plan(program, scope, feed, fetch)?.plan.summary)
    }

    /// Plans without running, and returns the work of each step and what it waits for.
    ///
    /// ```
    /// use fleet_exec::{Device, ExecOptions, Executor, Scope};
    /// use fleet_ir::Program;
    /// use fleet_ops::Registry;
    /// use fleet_tensor::DType;
    /// let text = "fleet program 1
    /// block0 {
    ///   %x: f32[-1, 2] data
    ///   %y: f32[-1, 2]
    ///   (Out: %y) = relu(X: %x)
    /// }";
    /// let program = Program::parse(text, Registry::standard())?;
    /// let feed = [("x", DType::F32, [1000, 2].into())];
    /// let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(1) };
    /// let outline = Executor::new(options).outline(&program, &Scope::new(), &feed, &["y"])?;
    /// assert_eq!((outline.steps[0].op.as_str(), outline.steps[0].cost.flops), ("relu", 2000.0));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn outline(
        &self,
        program: &Program,
        scope: &Scope,
        feed: &[(&str, DType, Shape)],
        fetch: &[&str],
    ) -> Result<Outline> {
        Ok(self.plan_for(program, scope, feed, fetch, true)?.0.outline())
    }

    /// Returns the program as planned, after the executor's rewrites.
    pub fn planned_program(
        &mut self,
        program: &Program,
        scope: &Scope,
        feed: &[(&str, DType, Shape)],
        fetch: &[&str],
    ) -> Result<Program> {
        Ok(self.make_plan(program, scope, feed, fetch)?.plan.program)
    }

    /// Returns how long the compute lane has waited for messages of other ranks, as the stages of a
    /// pipeline send them, over all runs. After its last op, it waits for the other lanes.
    pub fn message_wait(&self) -> Duration {
        self.lanes.message_wait()
    }

    /// Returns the number of cached plans.
    pub fn plan_count(&self) -> usize {
        self.plans.len()
    }

    /// Returns the time spent in each kind of op, longest first: (op, number of such ops in the
    /// cached plans, seconds over all runs). Needs [`ExecOptions::profile`].
    pub fn profile(&self) -> Vec<(String, usize, f64)> {
        let mut by_op: HashMap<String, (usize, f64)> = HashMap::new();
        for planned in self.plans.values() {
            let Some(times) = &planned.times else { continue };
            for (at, step) in planned.plan.steps.iter().enumerate() {
                if let StepKind::Run(_) = step.kind {
                    let name = planned.plan.program.op(step.op).name().to_string();
                    let entry = by_op.entry(name).or_default();
                    entry.0 += 1;
                    entry.1 += times.total_seconds(at);
                }
            }
        }
        let mut rows: Vec<_> =
            by_op.into_iter().map(|(name, (count, seconds))| (name, count, seconds)).collect();
        rows.sort_by(|a, b| b.2.total_cmp(&a.2));
        rows
    }

    /// Like [`Executor::profile`], for each op: (description of the op as in errors, seconds).
    pub fn profile_ops(&self) -> Vec<(String, f64)> {
        let mut rows: Vec<(String, f64)> =
            self.plans
                .values()
                .filter_map(|planned| planned.times.as_ref().map(|times| (&planned.plan, times)))
                .flat_map(|(plan, times)| {
                    plan.steps.iter().enumerate().map(|(at, step)| {
                        (plan.program.describe_op(step.op), times.total_seconds(at))
                    })
                })
                .collect();
        rows.sort_by(|a, b| b.1.total_cmp(&a.1));
        rows
    }

    /// Returns when and on which lane each op of the last run ran. Needs [`ExecOptions::profile`].
    pub fn trace(&self) -> Trace {
        let last = self.plans.values().max_by_key(|planned| planned.last_run);
        last.and_then(|planned| {
            planned.times.as_ref().map(|times| times.trace(&planned.plan, planned.last_begin))
        })
        .unwrap_or_default()
    }

    fn make_plan(
        &self,
        program: &Program,
        scope: &Scope,
        feed: &[(&str, DType, Shape)],
        fetch: &[&str],
    ) -> Result<Planned> {
        let (plan, order) = self.plan_for(program, scope, feed, fetch, false)?;
        let times = self.options.profile.then(|| Times::new(plan.steps.len()));
        let (binding, separate, last_run) = (Binding::default(), Vec::new(), self.runs);
        Ok(Planned { plan, binding, separate, order, last_run, times, last_begin: 0 })
    }

    /// Returns a plan, and by fed tensor of the plan its position in the feeds.
    fn plan_for(
        &self,
        program: &Program,
        scope: &Scope,
        feed: &[(&str, DType, Shape)],
        fetch: &[&str],
        counts_scratch: bool,
    ) -> Result<(Plan, Vec<usize>)> {
        let fetches: Vec<VarId> =
            fetch.iter().map(|name| find_fetch(program, name)).collect::<Result<_>>()?;
        let feeds: Vec<(VarId, Meta)> =
            feed.iter().map(|fed| find_feed(program, fed)).collect::<Result<_>>()?;
        check_no_duplicates(feed)?;
        check_row_major(program)?;
        let rewritten = fleet_passes::optimize(
            program,
            self.registry,
            &fetches,
            &self.options.build_options(),
        )?;
        let plan = Plan::build(PlanRequest {
            program: rewritten,
            registry: self.registry,
            feeds: &feeds,
            fetches: &fetches,
            scope_meta: &|name| scope.meta(name),
            options: &self.options,
            services: &self.services,
            counts_scratch,
        })?;
        self.check_memory(&plan, scope)?;
        let order = plan
            .feeds
            .iter()
            .map(|slot| {
                feed.iter().position(|(name, ..)| *name == slot.name).ok_or_else(|| {
                    Error::invalid(format!("no value was fed for '{}'", slot.name))
                        .expected(format!("{}{}", slot.meta.dtype, slot.meta.shape))
                })
            })
            .collect::<Result<_>>()?;
        Ok((plan, order))
    }

    /// Checks that the variables of a plan fit into the memory that the options grant.
    fn check_memory(&self, plan: &Plan, scope: &Scope) -> Result<()> {
        let Some(limit) = self.options.memory_limit else { return Ok(()) };
        let missing = plan.scope_vars.iter().filter(|var| scope.meta(&var.name).is_none());
        let held = scope.bytes() + missing.map(ScopeVar::bytes).sum::<usize>();
        let temporaries = plan.block_bytes + plan.separate_bytes.iter().sum::<usize>();
        let fed = plan.summary.feed_bytes;
        let needed = (held + temporaries + fed) as u64;
        if needed <= limit {
            return Ok(());
        }
        let bytes = |bytes: usize| text::bytes(bytes as u64);
        Err(Error::exhausted("the program does not fit into the memory of this process")
            .expected(format!("at most {}", text::bytes(limit)))
            .got(format!(
                "{}: {} of parameters and other variables that stay, {} of temporaries, {} of fed \
                 tensors",
                text::bytes_over(needed, limit),
                bytes(held),
                bytes(temporaries),
                bytes(fed)
            ))
            .help(
                "divide the model among more ranks (strategy.sharding, pipeline, mp_degree; \
                 `fleet plan` compares them), make batches smaller, or grant more memory",
            ))
    }

    /// Writes a planned training program as a graph, if the options ask for it.
    fn write_graph(&self, program: &Program) -> Result<()> {
        match &self.options.build.debug_graphviz_path {
            Some(path) if trains(program) => {
                let written = write_file(path, program.to_dot().as_bytes());
                written.map_err(|error| error.at("debug_graphviz_path"))
            }
            _ => Ok(()),
        }
    }

    fn run_planned(
        &mut self,
        key: u128,
        scope: &mut Scope,
        feed: &[(&str, &Tensor)],
    ) -> Result<()> {
        let Some(planned) = self.plans.get_mut(&key) else {
            return Err(Error::internal("plan not found"));
        };
        let wanted = planned.plan.block_bytes;
        if self.arena.bytes() < wanted {
            self.arena = Buffer::empty();
            self.arena = Buffer::zeroed(wanted)?;
        }
        if planned.separate.len() < planned.plan.separate_bytes.len() {
            let bytes = planned.plan.separate_bytes.iter();
            planned.separate = bytes.map(|bytes| Buffer::zeroed(*bytes)).collect::<Result<_>>()?;
        }
        self.runs += 1;
        planned.last_run = self.runs;
        planned.last_begin = planned.times.as_ref().map_or(0, Times::now);
        let block = Block { packed: self.arena.as_ptr(), separate: &planned.separate };
        let mut fed: [&Tensor; FEEDS_MAX];
        let ordered: &[&Tensor] = match feed.first() {
            None => &[],
            Some((_, any)) => {
                fed = [any; FEEDS_MAX];
                for (slot, index) in fed.iter_mut().zip(&planned.order) {
                    *slot = feed[*index].1;
                }
                &fed[..planned.order.len()]
            }
        };
        planned.binding.bind(&mut planned.plan, scope, &block, ordered)?;
        let context = RunContext {
            pool: &self.pool,
            step: scope.step(),
            check_nan_inf: self.options.check_nan_inf,
            times: planned.times.as_ref(),
            services: &self.services,
        };
        scope.set_step(scope.step() + 1);
        self.lanes.run(&planned.plan, &planned.binding, context)
    }

    fn fetch(&self, key: u128, out: &mut Vec<Tensor>) -> Result<()> {
        let Some(planned) = self.plans.get(&key) else {
            return Err(Error::internal("plan not found"));
        };
        let fetches = &planned.plan.fetches;
        out.truncate(fetches.len());
        for (index, fetch) in fetches.iter().enumerate() {
            let place = |error: Error| error.at(format!("fetching '{}'", fetch.name));
            if index < out.len() {
                // Take the old tensor out, and put it back with the new values.
                let old = std::mem::replace(&mut out[index], Tensor::empty());
                out[index] = planned.binding.fetch(fetch, Some(old)).map_err(place)?;
            } else {
                out.push(planned.binding.fetch(fetch, None).map_err(place)?);
            }
        }
        Ok(())
    }

    fn drop_unused_plans(&mut self) {
        let limit = self.options.num_iteration_per_drop_scope as u64;
        let runs = self.runs;
        if limit > 0 && self.plans.values().any(|planned| planned.last_run + limit <= runs) {
            self.plans.retain(|_, planned| planned.last_run + limit > runs);
        }
    }
}

/// Limit on the tensors fed to one program: far more than any known network has.
const FEEDS_MAX: usize = 256;

fn request_key<'a>(
    program: &Program,
    feed: impl Iterator<Item = (&'a str, DType, Shape)> + Clone,
    fetch: &[&str],
) -> u128 {
    let half = |salt: u64| {
        let mut hasher = DefaultHasher::new();
        (salt, program.fingerprint()).hash(&mut hasher);
        feed.clone().for_each(|fed| fed.hash(&mut hasher));
        fetch.hash(&mut hasher);
        u128::from(hasher.finish())
    };
    half(1) << 64 | half(2)
}

pub(crate) fn find_fetch(program: &Program, name: &str) -> Result<VarId> {
    program.var_named(name).map_err(|error| error.at("the fetch list"))
}

/// Returns the variable for a fed value, with the value's type and shape.
pub(crate) fn find_feed(
    program: &Program,
    (name, dtype, shape): &(&str, DType, Shape),
) -> Result<(VarId, Meta)> {
    let data = || program.vars().filter(|(_, var)| var.is_data).map(|(_, var)| var.name.as_str());
    let id = program.find_var(name).filter(|id| program.var(*id).is_data).ok_or_else(|| {
        let hint = text::did_you_mean(name, data());
        Error::invalid(format!("the program has no input '{name}'{hint}"))
            .expected(format!("one of {}", data().collect::<Vec<_>>().join(", ")))
    })?;
    let var = program.var(id);
    if var.dtype != *dtype || !var.shape.agrees(shape) {
        return Err(Error::invalid(format!(
            "the value fed for '{name}' has the wrong type or shape"
        ))
        .expected(format!("{}{}", var.dtype, var.shape))
        .got(format!("{dtype}{shape}")));
    }
    // Ragged inputs, such as the ids of a slot, may have no rows.
    let has_no_rows = var.shape.first() == Some(&-1) && shape.first() == Some(&0);
    if has_no_rows && var.lod_level == 0 && trains(program) {
        return Err(Error::invalid(format!("the batch fed for '{name}' is empty"))
            .expected("1 row or more, as the mean over no rows is not a number")
            .got(format!("{dtype}{shape}"))
            .help("skip steps without data"));
    }
    Ok((id, Meta::dense(*dtype, *shape)))
}

/// Returns whether the program has a backward pass.
fn trains(program: &Program) -> bool {
    let mut ops = program.block_ids().flat_map(|block| program.block_ops(block));
    ops.any(|(_, op)| op.role.is_backward())
}

/// Rejects programs that state layouts. Only the executor's own passes may choose layouts, because
/// kernels trust them.
fn check_row_major(program: &Program) -> Result<()> {
    match program.vars().find(|(_, var)| var.layout != Layout::RowMajor) {
        None => Ok(()),
        Some((_, var)) => Err(Error::invalid(format!("'{}' has an explicit layout", var.name))
            .expected(Layout::RowMajor)
            .got(var.layout)
            .help("leave layouts to the executor (choose_layout)")),
    }
}

pub(crate) fn check_no_duplicates(feed: &[(&str, DType, Shape)]) -> Result<()> {
    if feed.len() > FEEDS_MAX {
        return Err(Error::exhausted("too many feeds").expected(FEEDS_MAX).got(feed.len()));
    }
    for (index, (name, ..)) in feed.iter().enumerate() {
        if feed[..index].iter().any(|(other, ..)| other == name) {
            return Err(Error::invalid(format!("duplicate feed '{name}'")));
        }
    }
    Ok(())
}
