//! Commands that inspect programs and run nothing: print, verify, stats, convert.

use super::models::Models;
use clap::Args;
use fleet_base::output::{ExitReason, Output};
pub use fleet_base::text::counted;
use fleet_base::{Error, Result, text};
use fleet_exec::{Device, ExecOptions, Executor, PlanSummary, Scope};
use fleet_format::{Form, save_program};
use fleet_ir::{OpRole, Program, Var, VarId};
use fleet_tensor::{DType, Shape};
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

pub fn print(program: &Path, models: &Models, out: &mut Output) -> Result<(), ExitReason> {
    out.text(models.read(program)?.0)
}

pub fn verify(path: &Path, models: &Models, out: &mut Output) -> Result<(), ExitReason> {
    let program = models.load(path)?;
    out.line(format!(
        "{}: ok, {}, {}",
        path.display(),
        counted(op_count(&program), "op"),
        counted(program.vars().count(), "variable"),
    ))
}

pub fn convert(
    input: &Path,
    output: &Path,
    to: Option<Form>,
    models: &Models,
) -> Result<(), ExitReason> {
    let (program, form) = models.read(input)?;
    let other = match form {
        Some(Form::Text) => Form::Binary,
        Some(Form::Binary) | None => Form::Text,
    };
    Ok(save_program(output, &program, to.unwrap_or(other))?)
}

#[derive(Args)]
pub struct StatsArgs {
    /// Program: a file, the folder of a saved model, or model:NAME
    program: PathBuf,
    /// Plan for fed tensors whose unknown dimensions are N
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(1..1 << 40))]
    batch: Option<i64>,
    /// Plan for a tensor of this shape, such as x=32,128; repeatable
    #[arg(long, value_name = "NAME=SHAPE")]
    shape: Vec<String>,
    /// Threads to plan for
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1024),
    )]
    threads: u16,
}

pub fn stats(args: &StatsArgs, models: &Models, out: &mut Output) -> Result<(), ExitReason> {
    let program = models.load(&args.program)?;
    // Everything that can fail runs before the first line is printed.
    let feeds = feeds(&program, args)?;
    let plan = feeds.as_ref().map(|feeds| plan(&program, feeds, args)).transpose()?;
    op_lines(&program, out)?;
    variable_lines(&program, out)?;
    match (plan, feeds) {
        (Some(plan), Some(feeds)) => plan_lines(&plan, &feeds, out),
        _ => out.line("\nplan: use --batch N (or --shape) to see work and memory"),
    }
}

fn op_lines(program: &Program, out: &mut Output) -> Result<(), ExitReason> {
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    let mut roles: BTreeMap<u32, usize> = BTreeMap::new();
    for (_, op) in program.block_ids().flat_map(|block| program.block_ops(block)) {
        *kinds.entry(op.name()).or_default() += 1;
        *roles.entry(op.role.base().0).or_default() += 1;
    }
    let roles: Vec<String> =
        roles.iter().map(|(role, count)| format!("{count} {}", role_name(OpRole(*role)))).collect();
    out.line(format!("ops: {} ({})", op_count(program), roles.join(", ")))?;
    let width = kinds.keys().map(|name| name.len()).max().unwrap_or(0);
    let mut kinds: Vec<_> = kinds.into_iter().collect();
    kinds.sort_by_key(|(name, count)| (std::cmp::Reverse(*count), *name));
    for (name, count) in kinds {
        out.line(format!("  {name:<width$}  {count:>6}"))?;
    }
    if program.block_count() > 1 {
        out.line(format!("blocks: {}", program.block_count()))?;
    }
    Ok(())
}

fn role_name(role: OpRole) -> String {
    match role {
        OpRole::FORWARD => "forward".into(),
        OpRole::BACKWARD => "backward".into(),
        OpRole::OPTIMIZE => "optimizer".into(),
        OpRole::RPC => "remote".into(),
        OpRole::DIST => "communication".into(),
        OpRole::LR_SCHED => "learning rate".into(),
        OpRole(other) => format!("of role {other}"),
    }
}

fn variable_lines(program: &Program, out: &mut Output) -> Result<(), ExitReason> {
    let vars = || program.vars().map(|(_, var)| var);
    let fed = vars().filter(|var| var.is_data).count();
    let kept = vars().filter(|var| var.persistable).count();
    out.line(format!("variables: {} ({fed} fed, {kept} kept between runs)", vars().count()))?;
    let (count, elements, bytes) = sizes(vars().filter(|var| var.is_parameter()));
    out.line(format!(
        "parameters: {count} with {} elements, {}",
        text::count(elements),
        text::bytes(bytes as u64)
    ))?;
    let trained = |var: &&Var| var.param.as_ref().is_some_and(|param| param.trainable);
    let (_, elements, _) = sizes(vars().filter(trained));
    out.line(format!("  trainable: {} elements", text::count(elements)))?;
    let others = vars().filter(|var| var.persistable && !var.is_parameter());
    let (count, elements, bytes) = sizes(others);
    out.line(format!(
        "other kept: {count} with {} elements, {}",
        text::count(elements),
        text::bytes(bytes as u64)
    ))
}

/// Returns the count of variables, their elements and their bytes. Unknown dimensions count as 1.
/// The sums are floats, since a program may declare sizes that no machine has.
fn sizes<'v>(vars: impl Iterator<Item = &'v Var>) -> (usize, f64, f64) {
    vars.fold((0, 0.0, 0.0), |(count, elements, bytes), var| {
        let len: f64 = var.shape.iter().map(|dim| dim.unsigned_abs() as f64).product();
        (count + 1, elements + len, bytes + len * var.dtype.size() as f64)
    })
}

/// Name, type and shape of a tensor to feed.
type Feed<'p> = (&'p str, DType, Shape);

/// Returns the feeds to plan for, or `None` if a size is unknown.
fn feeds<'p>(program: &'p Program, args: &StatsArgs) -> Result<Option<Vec<Feed<'p>>>> {
    let mut shapes = BTreeMap::new();
    for given in &args.shape {
        let (name, shape) = parse_shape(given)?;
        let var = program.var(program.var_named(name)?);
        if !shape.agrees(&var.shape) || !var.is_data {
            let error = Error::invalid(format!("invalid shape for feed '{name}'"));
            return Err(error.expected(var.shape).got(shape));
        }
        if shapes.insert(name, shape).is_some() {
            return Err(Error::invalid(format!("duplicate shape for feed '{name}'")));
        }
    }
    let mut used = HashSet::new();
    for (id, _) in program.root_ops() {
        program.reads_of(id, &mut used);
    }
    let mut feeds = Vec::new();
    for (id, var) in program.vars().filter(|(_, var)| var.is_data) {
        if !used.contains(&id) {
            continue;
        }
        let mut shape = shapes.get(var.name.as_str()).copied().unwrap_or(var.shape);
        for dim in shape.dims_mut().iter_mut().filter(|dim| **dim < 0) {
            match args.batch {
                Some(batch) => *dim = batch,
                None => return Ok(None),
            }
        }
        feeds.push((var.name.as_str(), var.dtype, shape));
    }
    Ok(Some(feeds))
}

/// Returns the needs of a rank's program for fed tensors whose unknown dimensions are `batch`.
pub fn plan_of_rank(program: &Program, batch: i64) -> Result<PlanSummary> {
    let args = StatsArgs { program: PathBuf::new(), batch: Some(batch), shape: vec![], threads: 1 };
    let feeds = feeds(program, &args)?.unwrap_or_default();
    let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(1) };
    Executor::new(options).plan(program, &Scope::new(), &feeds, &[])
}

/// Parses `x=32,128`.
fn parse_shape(given: &str) -> Result<(&str, Shape)> {
    let wrong =
        || Error::invalid("invalid --shape").expected("NAME=SHAPE, such as x=32,128").got(given);
    let (name, dims) = given.rsplit_once('=').ok_or_else(wrong)?;
    let dims: Option<Vec<i64>> = dims
        .split(',')
        .filter(|dim| !dim.is_empty())
        .map(|dim| dim.trim().parse().ok().filter(|dim| *dim >= 0))
        .collect();
    Ok((name, Shape::new(&dims.ok_or_else(wrong)?)?))
}

fn plan(program: &Program, feeds: &[Feed<'_>], args: &StatsArgs) -> Result<PlanSummary> {
    let options =
        ExecOptions { device: Device::Null, ..ExecOptions::threads(usize::from(args.threads)) };
    let results = results(program);
    Executor::new(options).plan(program, &Scope::new(), feeds, &results)
}

/// Returns the results of a program besides its persistable variables: outputs of ops whose outputs
/// no op reads. Without them, an inference program would be planned as empty.
pub fn results(program: &Program) -> Vec<&str> {
    let mut used = HashSet::new();
    for (id, _) in program.root_ops() {
        program.reads_of(id, &mut used);
    }
    let unread = |var: &VarId| !used.contains(var) && !program.var(*var).persistable;
    let last = program.root_ops().filter(|(_, op)| op.all_outputs().all(|var| unread(&var)));
    last.flat_map(|(_, op)| op.all_outputs()).map(|var| program.var_name(var)).collect()
}

fn plan_lines(plan: &PlanSummary, feeds: &[Feed<'_>], out: &mut Output) -> Result<(), ExitReason> {
    let feeds: Vec<String> =
        feeds.iter().map(|(name, dtype, shape)| format!("{name}: {dtype}{shape}")).collect();
    let fed = if feeds.is_empty() { "nothing fed".to_string() } else { feeds.join(", ") };
    let bytes = |count: usize| text::bytes(count as u64);
    let total = plan.arena_bytes + plan.scratch_bytes + plan.persistable_bytes + plan.feed_bytes;
    out.line(format!("\nplan for {fed}"))?;
    out.line(format!("  steps            {}", plan.op_count))?;
    out.line(format!("  work             {}", unit(plan.flops, "flop")))?;
    out.line(format!("  memory traffic   {}", text::bytes(plan.bytes_moved as u64)))?;
    out.line(format!("  planned memory   {}", bytes(total)))?;
    let (live, unshared) = (bytes(plan.arena_bytes_live), bytes(plan.arena_bytes_unshared));
    let packed = bytes(plan.arena_bytes);
    out.line(format!("    temporaries    {packed} ({live} live at once, {unshared} unshared)"))?;
    if plan.offload_bytes > 0 {
        let beside = bytes(plan.offload_bytes);
        out.line(format!("    offloaded      {beside} per step, in a file, not in the total"))?;
    }
    out.line(format!("    scratch        {}", bytes(plan.scratch_bytes)))?;
    out.line(format!("    kept           {}", bytes(plan.persistable_bytes)))?;
    out.line(format!("    fed            {}", bytes(plan.feed_bytes)))
}

fn op_count(program: &Program) -> usize {
    program.block_ids().map(|block| program.block(block).ops().len()).sum()
}

/// Formats `3.86 Gflop`.
fn unit(value: f64, unit: &str) -> String {
    let text = text::count(value);
    let space = if text.contains(' ') { "" } else { " " };
    format!("{text}{space}{unit}")
}
