//! `DistributedStrategy` by name.

use crate::args::wrong;
use crate::error::OrRaise;
use fleet_config::{DistributedStrategy, Problem, StrategyForm, Value};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

#[pyclass(module = "fleet._fleet", frozen)]
#[derive(Default)]
pub struct StrategyCell {
    strategy: Mutex<DistributedStrategy>,
}

impl StrategyCell {
    fn lock(&self) -> PyResult<MutexGuard<'_, DistributedStrategy>> {
        let busy = |_| PyRuntimeError::new_err("the strategy is in use by another thread");
        self.strategy.try_lock().map_err(busy)
    }

    pub fn strategy(&self) -> PyResult<DistributedStrategy> {
        Ok(self.lock()?.clone())
    }
}

/// Returns the texts of warnings, without the word that Python adds.
fn texts(problems: Vec<Problem>) -> Vec<String> {
    let text = |problem: &Problem| {
        let text = problem.to_string();
        text.strip_prefix("warning: ").unwrap_or(&text).to_string()
    };
    problems.iter().map(text).collect()
}

#[pymethods]
impl StrategyCell {
    #[new]
    fn new() -> StrategyCell {
        StrategyCell::default()
    }

    /// Assigns a field. Returns warnings.
    fn set(&self, key: &str, value: &Bound<'_, PyAny>) -> PyResult<Vec<String>> {
        let value = read(key, value, 0)?;
        Ok(texts(self.lock()?.set(key, value).or_raise()?.into_vec()))
    }

    fn get<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        let value = self.lock()?.get(key).or_raise()?;
        object(py, &value)
    }

    /// Returns the names of the fields.
    #[staticmethod]
    fn names() -> Vec<&'static str> {
        DistributedStrategy::describe().names().collect()
    }

    /// Returns whether the name is a field or another name of one.
    #[staticmethod]
    fn knows(name: &str) -> bool {
        let special = ["sparse_table_configs", "fleet_desc_configs"];
        DistributedStrategy::describe().field(name).is_some()
            || special.contains(&name)
            || fleet_config::other_names()
                .any(|(message, other, _)| message == "DistributedStrategy" && other == name)
    }

    fn prototxt(&self) -> PyResult<String> {
        Ok(self.lock()?.to_prototxt())
    }

    fn save(&self, path: PathBuf) -> PyResult<()> {
        self.lock()?.save_to_prototxt(path).or_raise()
    }

    /// Reads a file; its fields replace those of the strategy. Returns warnings.
    fn load(&self, path: PathBuf) -> PyResult<Vec<String>> {
        Ok(texts(self.lock()?.load_from_prototxt(path).or_raise()?))
    }

    fn overview(&self) -> PyResult<String> {
        Ok(self.lock()?.overview())
    }

    fn copy(&self) -> PyResult<StrategyCell> {
        Ok(StrategyCell { strategy: Mutex::new(self.strategy()?) })
    }

    /// The binary form, for pickles.
    fn bytes(&self) -> PyResult<Vec<u8>> {
        Ok(self.lock()?.to_bytes(StrategyForm::Binary))
    }
}

/// Limit on the nesting of a value: deeper than any message of the schema.
const DEPTH_MAX: usize = 16;

fn read(key: &str, value: &Bound<'_, PyAny>, depth: usize) -> PyResult<Value> {
    if depth > DEPTH_MAX {
        return Err(wrong(key, "a value that is not nested so deeply", value));
    }
    if value.is_none() {
        return Ok(Value::None);
    }
    if let Ok(on) = value.cast::<PyBool>() {
        return Ok(Value::Bool(on.is_true()));
    }
    if let Ok(text) = value.cast::<PyString>() {
        return Ok(Value::Str(text.to_string()));
    }
    if value.is_instance_of::<PyFloat>() {
        return Ok(Value::Float(value.extract()?));
    }
    if value.is_instance_of::<PyInt>() {
        return match value.extract() {
            Ok(number) => Ok(Value::Int(number)),
            Err(_) => Err(wrong(key, "an integer of 128 bits", value)),
        };
    }
    if let Ok(entries) = value.cast::<PyDict>() {
        let entries: PyResult<Vec<(String, Value)>> = entries
            .iter()
            .map(|(name, value)| {
                let name: String =
                    name.extract().map_err(|_| wrong(key, "names of fields as keys", &name))?;
                let value = read(&format!("{key}.{name}"), &value, depth + 1)?;
                Ok((name, value))
            })
            .collect();
        return Ok(Value::Map(entries?));
    }
    if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items: PyResult<Vec<Value>> =
            value.try_iter()?.map(|item| read(key, &item?, depth + 1)).collect();
        return Ok(Value::List(items?));
    }
    // A variable stands for its name, as in a list of checkpoints.
    if value.hasattr("_id")? {
        return Ok(Value::Str(value.getattr("name")?.extract()?));
    }
    // Objects such as numbers of NumPy.
    if let Ok(number) = value.extract::<i128>() {
        return Ok(Value::Int(number));
    }
    if let Ok(number) = value.extract::<f64>() {
        return Ok(Value::Float(number));
    }
    match value.getattr("_assigned") {
        Ok(assigned) => read(key, &assigned, depth + 1),
        Err(_) => Err(wrong(key, "a bool, number, string, list or dict", value)),
    }
}

fn object<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    Ok(match value {
        Value::None => py.None().into_bound(py),
        Value::Bool(on) => PyBool::new(py, *on).to_owned().into_any(),
        Value::Int(number) => number.into_pyobject(py)?.into_any(),
        Value::Float(number) => number.into_pyobject(py)?.into_any(),
        Value::Str(text) => PyString::new(py, text).into_any(),
        Value::List(items) => {
            let items: PyResult<Vec<_>> = items.iter().map(|item| object(py, item)).collect();
            PyList::new(py, items?)?.into_any()
        }
        Value::Map(entries) => {
            let made = PyDict::new(py);
            for (name, value) in entries {
                made.set_item(name, object(py, value)?)?;
            }
            made.into_any()
        }
    })
}
