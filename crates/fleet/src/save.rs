//! Saves and loads the variables of a scope, and models for inference.
//!
//! All variables that a program keeps between runs (parameters, optimizer state, statistics,
//! counters) are saved by name. Loading checks every variable against the program before the scope
//! changes. A file that lacks one or holds another shape changes nothing.
//!
//! The ending of the path chooses the format: `.safetensors` and `.npz` are one file, which other
//! programs read and write, any other path is a folder with checksums over every byte. A `.npz`
//! file, and a file of another program, has no step; loading it sets the step to 0.
//!
//! Floats of another width are converted to the type of the variable, and a note on the standard
//! error names the file, the variable and the types: NumPy computes in f64 unless told otherwise.
//! Integers are not converted, since they are rarely meant as parameters.

use crate::saved_tables::{SavedTables, model_folders, reads_tables};
use crate::slices::{divisions, load_parts};
use fleet_base::disk::RealDisk;
use fleet_base::output::note;
use fleet_base::{Error, Result, text};
use fleet_exec::Scope;
use fleet_format::{Checkpoint, Meta, list_tensors, load_vars as read_vars, save_tensors};
use fleet_ir::{Program, Var};
use fleet_ops::{Registry, Tables};
use fleet_passes::in_single_precision;
use fleet_strategy::{RECEIVED, Spread, local_state};
use fleet_tensor::{DType, Tensor};
use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

/// Saves every variable of `program` that lives in the scope, and the scope's step.
///
/// ```
/// # use fleet::prelude::*;
/// # let dir = std::env::temp_dir().join(format!("fleet-save-doc-{}", std::process::id()));
/// let net = Net::new();
/// let x = net.data("x", [-1, 2], DType::F32);
/// net.minimize(x.fc(1).mean(), Adam::new(0.1))?;
/// let mut session = Session::new(net.build()?, ExecOptions::default())?;
/// fleet::save_persistables(&dir, &session.programs.main, &session.scope)?;
/// fleet::load_persistables(&dir, &session.programs.main, &mut session.scope)?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn save_persistables(path: impl AsRef<Path>, program: &Program, scope: &Scope) -> Result<()> {
    save_where(path.as_ref(), program, scope, |var| var.persistable)
}

/// Saves the parameters alone: enough for inference, or to train on with another optimizer.
///
/// In a file that NumPy reads:
///
/// ```
/// # use fleet::prelude::*;
/// # let file = std::env::temp_dir().join(format!("fleet-npz-doc-{}.npz", std::process::id()));
/// let net = Net::new();
/// let x = net.data("x", [-1, 2], DType::F32);
/// net.minimize(x.fc(1).mean(), Adam::new(0.1))?;
/// let mut session = Session::new(net.build()?, ExecOptions::default())?;
/// // Here `file` ends in .npz.
/// fleet::save_params(&file, &session.programs.main, &session.scope)?;
/// assert!(fleet::format::read_npz(&file)?.iter().any(|(name, _)| name == "fc_0.w_0"));
/// // A file of numpy.savez with these names and shapes loads the same way.
/// fleet::load_params(&file, &session.programs.main, &mut session.scope)?;
/// # std::fs::remove_file(&file).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
///
/// In a folder:
///
/// ```
/// # use fleet::prelude::*;
/// # let dir = std::env::temp_dir().join(format!("fleet-params-doc-{}", std::process::id()));
/// let model = |optimizer: OptimizerDesc| {
///     let net = Net::new();
///     net.minimize(net.data("x", [-1, 2], DType::F32).fc(1).mean(), optimizer)?;
///     Session::new(net.build()?, ExecOptions::default())
/// };
/// let first = model(Adam::new(0.1).into())?;
/// fleet::save_params(&dir, &first.programs.main, &first.scope)?;
///
/// let mut second = model(Sgd::new(0.1).into())?;
/// fleet::load_params(&dir, &second.programs.main, &mut second.scope)?;
/// # let w = |session: &Session| session.scope.tensor("fc_0.w_0")?.to_vec::<f32>();
/// # assert_eq!(w(&first)?, w(&second)?);
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn save_params(path: impl AsRef<Path>, program: &Program, scope: &Scope) -> Result<()> {
    save_where(path.as_ref(), program, scope, Var::is_parameter)
}

/// Saves the persistable variables for which `which` returns true.
///
/// ```
/// # use fleet::prelude::*;
/// # let dir = std::env::temp_dir().join(format!("fleet-vars-doc-{}", std::process::id()));
/// let net = Net::new();
/// let x = net.data("x", [-1, 2], DType::F32);
/// net.minimize(x.fc(1).mean(), Adam::new(0.1))?;
/// let mut session = Session::new(net.build()?, ExecOptions::default())?;
/// let main = &session.programs.main;
/// fleet::save_vars(&dir, main, &session.scope, |var| var.name.starts_with("fc_0"))?;
/// fleet::load_vars_where(&dir, main, &mut session.scope, |var| var.name.ends_with("moment1_0"))?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn save_vars(
    path: impl AsRef<Path>,
    program: &Program,
    scope: &Scope,
    which: impl Fn(&Var) -> bool,
) -> Result<()> {
    save_where(path.as_ref(), program, scope, |var| var.persistable && which(var))
}

/// Loads every variable that [`save_persistables`] saved.
pub fn load_persistables(
    path: impl AsRef<Path>,
    program: &Program,
    scope: &mut Scope,
) -> Result<()> {
    // A rank of a sharded job has a part of the state, and must not read all of it.
    let names: HashSet<&str> = persistables(program, |var| var.persistable).into_iter().collect();
    let divided = divisions(program);
    let is_wanted = |name: &str| names.contains(name);
    let checkpoint = load_parts(&RealDisk, path.as_ref(), is_wanted, &divided)?;
    put_all(path.as_ref(), program, scope, checkpoint)
}

/// Loads every persistable variable of `program`, and the step.
pub(crate) fn put_all(
    path: &Path,
    program: &Program,
    scope: &mut Scope,
    checkpoint: Checkpoint,
) -> Result<()> {
    let wanted: Vec<&str> = persistables(program, |var| var.persistable);
    let step = checkpoint.meta.step;
    put(path, program, scope, checkpoint, &wanted)?;
    scope.set_step(step);
    Ok(())
}

/// Loads every parameter, and leaves optimizer state and all else unchanged.
pub fn load_params(path: impl AsRef<Path>, program: &Program, scope: &mut Scope) -> Result<()> {
    load_vars_where(path, program, scope, Var::is_parameter)
}

/// Loads the persistable variables for which `which` returns true. All of them must be in the
/// checkpoint.
pub fn load_vars_where(
    path: impl AsRef<Path>,
    program: &Program,
    scope: &mut Scope,
    which: impl Fn(&Var) -> bool,
) -> Result<()> {
    load_vars(path, program, scope, &persistables(program, |var| var.persistable && which(var)))
}

/// Loads the named variables and leaves all others unchanged.
pub fn load_vars(
    path: impl AsRef<Path>,
    program: &Program,
    scope: &mut Scope,
    names: &[&str],
) -> Result<()> {
    for name in names {
        program.var_named(name)?;
    }
    let divided = divisions(program);
    let checkpoint = match divided.is_empty() {
        true => read_vars(&path, names)?,
        false => load_parts(&RealDisk, path.as_ref(), |name| names.contains(&name), &divided)?,
    };
    put(path.as_ref(), program, scope, checkpoint, names)
}

/// A model for inference: the part of a program that computes the targets, and its parameters. See
/// [`save_inference_model`] for an example.
pub struct InferenceModel {
    /// The forward part, pruned to the targets.
    pub program: Program,
    /// The parameters and statistics of the program.
    pub scope: Scope,
    /// Names to feed.
    pub feeds: Vec<String>,
    /// Names to fetch.
    pub targets: Vec<String>,
    /// The saved rows that lookups of the program read, for
    /// [`Services::with_tables`](fleet_ops::Services::with_tables): those of a save of servers.
    pub tables: Option<Arc<dyn Tables>>,
}

/// Precision of an exported model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32, without the casts of mixed precision. Results differ by rounding from those of the
    /// trained program.
    #[default]
    Single,
    /// That of the trained program: f16 or bf16 with mixed precision.
    Trained,
}

/// Saves the forward part of `program` that computes `targets`, with the variables that it reads. A
/// model that was trained in half precision is saved in f32: see [`save_inference_model_as`].
///
/// ```
/// # use fleet::prelude::*;
/// # let dir = std::env::temp_dir().join(format!("fleet-infer-doc-{}", std::process::id()));
/// let net = Net::new();
/// let x = net.data("x", [-1, 2], DType::F32);
/// let y = x.fc(1);
/// net.minimize(y.mean(), Sgd::new(0.1))?;
/// let y = y.name();
/// let session = Session::new(net.build()?, ExecOptions::default())?;
/// fleet::save_inference_model(&dir, &session.programs.main, &[&y], &session.scope)?;
///
/// let mut model = fleet::load_inference_model(&dir)?;
/// assert_eq!((&*model.feeds[0], &*model.targets[0]), ("x", &*y));
/// let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2])?;
/// let mut exe = Executor::new(ExecOptions::default());
/// let out = exe.run(&model.program, &mut model.scope, &[("x", &x)], &[&y])?;
/// assert_eq!(out[0].shape(), &Shape::from([1, 1]));
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn save_inference_model(
    path: impl AsRef<Path>,
    program: &Program,
    targets: &[&str],
    scope: &Scope,
) -> Result<()> {
    save_inference_model_as(path, program, targets, scope, Precision::Single)
}

/// Like [`save_inference_model`], in a precision.
///
/// ```
/// # use fleet::prelude::*;
/// # use fleet::{Precision, load_inference_model, save_inference_model_as};
/// # let dir = std::env::temp_dir().join(format!("fleet-half-doc-{}", std::process::id()));
/// let net = Net::new();
/// let y = net.data("x", [-1, 2], DType::F32).fc(1);
/// let mut strategy = DistributedStrategy::new().with_amp(true);
/// strategy.amp_configs_mut().set_use_pure_bf16(true);
/// let fleet = Fleet::collective()?;
/// let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, y.mean())?;
/// let y = y.name();
/// let session = fleet.session(net.build()?, &job, ExecOptions::default())?;
/// for (precision, dtype) in [(Precision::Single, DType::F32), (Precision::Trained, DType::BF16)] {
///     let main = &session.programs.main;
///     save_inference_model_as(&dir, main, &[&y], &session.scope, precision)?;
///     let model = load_inference_model(&dir)?;
///     assert_eq!(model.program.var(model.program.var_named(&y)?).dtype, dtype);
/// }
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn save_inference_model_as(
    path: impl AsRef<Path>,
    program: &Program,
    targets: &[&str],
    scope: &Scope,
    precision: Precision,
) -> Result<()> {
    let test = program.clone_for_test()?;
    let ids = targets.iter().map(|name| test.var_named(name)).collect::<Result<Vec<_>>>()?;
    let pruned = match precision {
        Precision::Single => in_single_precision(&test, &ids, Registry::standard())?,
        Precision::Trained => test.prune(&ids),
    };
    let names = persistables(&pruned, |var| var.persistable);
    check_whole(program, &names)?;
    let tensors = collect_named(scope, &names)?;
    let entries = [(TARGETS.to_string(), targets.join("\n"))].into();
    let meta = Meta { step: scope.step(), entries };
    let pairs = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor));
    fleet_format::save_model(path, &pruned, pairs, &meta)
}

/// Key of the entry of a saved model that lists its targets, one per line.
const TARGETS: &str = "targets";

/// Loads a model that [`save_inference_model`] saved, or one of
/// [`Worker::save_inference_model`](crate::servers::Worker::save_inference_model), with the rows of
/// its tables.
pub fn load_inference_model(path: impl AsRef<Path>) -> Result<InferenceModel> {
    let (folder, tables) = model_folders(path.as_ref());
    let mut model = read_model(&folder)?;
    if let Some(dir) = tables.filter(|_| reads_tables(&model.program)) {
        model.tables = Some(Arc::new(SavedTables::read(&dir, &model.program)?));
    }
    Ok(model)
}

/// Loads a model without tables.
pub(crate) fn read_model(path: &Path) -> Result<InferenceModel> {
    let (program, checkpoint) = fleet_format::load_model(path, Registry::standard())?;
    let Some(targets) = checkpoint.meta.entries.get(TARGETS) else {
        return Err(Error::invalid("the saved model lists no targets").at(path.display()));
    };
    let targets: Vec<String> = targets.lines().map(str::to_string).collect();
    let feeds =
        program.vars().filter(|(_, var)| var.is_data).map(|(_, var)| var.name.clone()).collect();
    let mut scope = Scope::new();
    let wanted = persistables(&program, |var| var.persistable);
    put(path, &program, &mut scope, checkpoint, &wanted)?;
    Ok(InferenceModel { program, scope, feeds, targets, tables: None })
}

pub(crate) fn persistables(program: &Program, which: impl Fn(&Var) -> bool) -> Vec<&str> {
    program.vars().filter(|(_, var)| which(var)).map(|(_, var)| var.name.as_str()).collect()
}

/// Returns copies of these variables.
pub(crate) fn collect_named(scope: &Scope, names: &[&str]) -> Result<Vec<(String, Tensor)>> {
    names.iter().map(|name| Ok((name.to_string(), scope.tensor(name)?))).collect()
}

fn save_where(
    path: &Path,
    program: &Program,
    scope: &Scope,
    which: impl Fn(&Var) -> bool,
) -> Result<()> {
    let names = persistables(program, which);
    check_whole(program, &names)?;
    save_named(path, scope, &names)
}

/// Rejects variables of which this rank has only a part.
fn check_whole(program: &Program, names: &[&str]) -> Result<()> {
    let local = local_state(program);
    let own = local.iter().find(|var| var.spread == Spread::Owner && names.contains(&&*var.name));
    let parts = divisions(program);
    let part = names.iter().find(|name| parts.contains_key(**name));
    let received = || program.vars().find(|(_, var)| var.name.contains(RECEIVED));
    let got = match (own, received()) {
        _ if part.is_some() => {
            format!("'{}', of which this rank has a part", part.unwrap_or(&""))
        }
        (Some(own), _) => format!("'{}', which only this rank has", own.name),
        (None, Some((_, var))) => format!("'{}', which another rank has sent", var.name),
        (None, None) => return Ok(()),
    };
    Err(Error::invalid("the ranks of this job divide its state")
        .expected("the program and the scope of a whole model")
        .got(got)
        .help("save the model that Fleet::whole returns; checkpoints need no whole model"))
}

/// Saves these variables, and the scope's step.
pub(crate) fn save_named(path: &Path, scope: &Scope, names: &[&str]) -> Result<()> {
    let tensors = collect_named(scope, names)?;
    let meta = Meta { step: scope.step(), ..Meta::default() };
    save_tensors(path, tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)), &meta)
}

/// Checks that a file has all variables of a program, each with a type and shape that fits.
pub(crate) fn check_fit(path: &Path, program: &Program, checkpoint: &Checkpoint) -> Result<()> {
    check_wanted(path, program, checkpoint, &persistables(program, |var| var.persistable))
}

fn check_wanted(
    path: &Path,
    program: &Program,
    checkpoint: &Checkpoint,
    wanted: &[&str],
) -> Result<()> {
    let held: HashSet<&str> = checkpoint.tensors.iter().map(|(name, _)| name.as_str()).collect();
    if let Some(name) = wanted.iter().find(|name| !held.contains(*name)) {
        let all = list_tensors(path).map_or(Vec::new(), |(all, _)| all);
        let hint = text::did_you_mean(name, all.iter().map(|it| it.name.as_str()));
        return Err(Error::invalid(format!("the checkpoint has no variable '{name}'{hint}"))
            .at(path.display()));
    }
    checkpoint.tensors.iter().try_for_each(|(name, tensor)| match program.find_var(name) {
        Some(id) => check(program.var(id), tensor).map_err(|error| error.at(path.display())),
        None => Ok(()),
    })
}

/// Checks all of `wanted`, converts floats, and then puts them into the scope.
fn put(
    path: &Path,
    program: &Program,
    scope: &mut Scope,
    mut checkpoint: Checkpoint,
    wanted: &[&str],
) -> Result<()> {
    check_wanted(path, program, &checkpoint, wanted)?;
    let mut converted = Vec::new();
    for (name, tensor) in &mut checkpoint.tensors {
        let Some(id) = program.find_var(name) else { continue };
        let var = program.var(id);
        if tensor.dtype() != var.dtype && wanted.contains(&name.as_str()) {
            let made = convert(var, tensor).map_err(|error| error.at(path.display()))?;
            converted.push((name.clone(), tensor.dtype(), var.dtype));
            *tensor = made;
        }
    }
    if let Some(text) = conversion_note(path, &converted) {
        note(text);
    }
    for (name, tensor) in checkpoint.tensors {
        if wanted.contains(&name.as_str()) {
            match scope.meta(&name) {
                // Plans hold the variable's address, so assign in place.
                Some(meta) if meta == (tensor.dtype(), *tensor.shape()) => {
                    scope.assign(&name, &tensor)?;
                }
                _ => scope.set(name, tensor),
            }
        }
    }
    Ok(())
}

/// Checks that a tensor of a file can be the value of a variable.
fn check(var: &Var, tensor: &Tensor) -> Result<()> {
    let (dtype, name) = (tensor.dtype(), &var.name);
    let fits = dtype == var.dtype || dtype.is_float() && var.dtype.is_float();
    if fits && var.shape.agrees(tensor.shape()) {
        return Ok(());
    }
    let error =
        Error::invalid(format!("variable '{name}' of the checkpoint has another type or shape"))
            .expected(format!("{}{}", var.dtype, var.shape))
            .got(format!("{dtype}{}", tensor.shape()));
    Err(match fits {
        true => error,
        false => error.help(
            "convert it before it is saved, in NumPy by astype: only floats are converted at load",
        ),
    })
}

/// Converts the floats of a file to the type of a variable.
fn convert(var: &Var, tensor: &Tensor) -> Result<Tensor> {
    let made = tensor.cast(var.dtype)?;
    let (before, after) = (tensor.cast(DType::F64)?, made.cast(DType::F64)?);
    let (before, after) = (before.as_slice::<f64>()?, after.as_slice::<f64>()?);
    let mut pairs = before.iter().zip(after);
    match pairs.position(|(before, after)| before.is_finite() && !after.is_finite()) {
        None => Ok(made),
        Some(index) => Err(Error::invalid(format!(
            "element {index} of variable '{}' is out of range of {}",
            var.name, var.dtype
        ))
        .got(format!("{:e}", before[index]))),
    }
}

/// Returns the note about variables that were converted: (name, type in the file, new type).
fn conversion_note(path: &Path, converted: &[(String, DType, DType)]) -> Option<String> {
    let ((name, from, to), others) = converted.split_first()?;
    let more = match others.len() {
        0 => String::new(),
        count => format!(", and {}", text::counted(count, "more variable")),
    };
    Some(format!("{}: converted variable '{name}' from {from} to {to}{more}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Session;
    use fleet_exec::ExecOptions;
    use fleet_nn::Net;
    use fleet_nn::optimizer::Sgd;

    const NAMES: [&str; 2] = ["fc_0.b_0", "fc_0.w_0"];

    fn session() -> Session {
        let net = Net::new();
        let x = net.data("x", [-1, 2], DType::F32);
        net.minimize(x.fc(1).mean(), Sgd::new(0.1)).unwrap();
        Session::new(net.build().unwrap(), ExecOptions::default()).unwrap()
    }

    /// Loads a bias and weights of a type from a file with this ending; returns both as f32.
    fn load(ending: &str, dtype: DType, values: [f64; 3]) -> Result<Vec<f32>> {
        let file = format!("fleet-convert-{}-{dtype}.{ending}", std::process::id());
        let file = std::env::temp_dir().join(file);
        let (bias, weights) = values.split_at(1);
        let tensors = [
            Tensor::from_slice(bias, [1])?.cast(dtype)?,
            Tensor::from_slice(weights, [2, 1])?.cast(dtype)?,
        ];
        save_tensors(&file, NAMES.into_iter().zip(&tensors), &Meta::default())?;
        let mut session = session();
        let before = NAMES.map(|name| session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap());
        let loaded = load_params(&file, &session.programs.main, &mut session.scope);
        std::fs::remove_file(&file).ok();
        let after = NAMES.map(|name| session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap());
        loaded.inspect_err(|error| {
            assert!(error.to_string().contains(ending), "{error}");
            assert_eq!(before, after, "a failed load changes nothing");
        })?;
        Ok(after.concat())
    }

    #[test]
    fn floats_of_other_widths_are_converted() {
        for ending in ["npz", "safetensors"] {
            let values = [0.1, -2.5, 0.0];
            assert_eq!(load(ending, DType::F64, values).unwrap(), [0.1f32, -2.5, 0.0]);
            let half = load(ending, DType::F16, values).unwrap();
            assert_eq!(half, [fleet_tensor::f16::from_f64(0.1).to_f32(), -2.5, 0.0]);
            let infinite = load(ending, DType::F64, [f64::INFINITY, 0.0, 0.0]).unwrap();
            assert_eq!(infinite[0], f32::INFINITY);
        }
    }

    #[test]
    fn numbers_out_of_range_and_integers_are_refused() {
        let error = load("npz", DType::F64, [0.0, 1.0, 1e39]).unwrap_err().to_string();
        assert!(
            error.contains("element 1 of variable 'fc_0.w_0' is out of range of f32"),
            "{error}"
        );
        for dtype in [DType::I64, DType::U8, DType::Bool] {
            let error = load("safetensors", dtype, [1.0; 3]).unwrap_err().to_string();
            assert!(error.contains("expected f32["), "{error}");
            assert!(error.contains("help: ") && error.contains("astype"), "{error}");
        }
    }

    #[test]
    fn one_note_names_file_variable_and_types() {
        let one = ("w".to_string(), DType::F64, DType::F32);
        let note = |converted: &[_]| conversion_note(Path::new("p.npz"), converted);
        assert_eq!(note(&[]), None);
        let text = "p.npz: converted variable 'w' from f64 to f32";
        assert_eq!(note(std::slice::from_ref(&one)).unwrap(), text);
        let more = [one.clone(), one.clone(), one];
        assert_eq!(note(&more).unwrap(), format!("{text}, and 2 more variables"));
    }
}
