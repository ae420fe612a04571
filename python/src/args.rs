//! Arguments of a layer, as Python passes them: by name, all of them present.

use crate::arrays::long_name;
use crate::error::{exception, spelled};
use crate::program::ProgramCell;
use fleet::nn::layers::Split;
use fleet::nn::layers::{ClassSample, DataFormat, Entry, Padding, Pair};
use fleet::nn::{Act, Guard, Init, Net, OpCall, Operand, ParamAttr, Reduction, Regularizer, Var};
use fleet::{DType, Shape, ir};
use fleet_base::EntityRef;
use pyo3::exceptions::{PyNotImplementedError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyTuple};

/// The arguments of one call.
pub struct Args<'n, 'py> {
    pub net: &'n Net,
    pub layer: &'n str,
    /// The cell of the main program, whose variables are accepted.
    pub main: &'n Bound<'py, ProgramCell>,
    pub given: &'n Bound<'py, PyDict>,
}

impl<'n, 'py> Args<'n, 'py> {
    fn get(&self, name: &str) -> PyResult<Bound<'py, PyAny>> {
        self.given.get_item(name)?.ok_or_else(|| {
            PyTypeError::new_err(format!("{}() misses the argument '{name}'", self.layer))
        })
    }

    /// Returns an argument, unless it is `None`.
    fn some(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(Some(self.get(name)?).filter(|value| !value.is_none()))
    }

    fn wrong(&self, name: &str, expected: &str, got: &Bound<'py, PyAny>) -> PyErr {
        wrong(&format!("{}(): {name}", self.layer), expected, got)
    }

    fn of<T>(&self, name: &str, expected: &str) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let value = self.get(name)?;
        value.extract().map_err(|_| self.wrong(name, expected, &value))
    }

    fn maybe<T>(&self, name: &str, expected: &str) -> PyResult<Option<T>>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        match self.some(name)? {
            Some(_) => self.of(name, expected).map(Some),
            None => Ok(None),
        }
    }

    // Plain values

    pub fn int(&self, name: &str) -> PyResult<i64> {
        self.of(name, "an integer of 64 bits")
    }

    pub fn maybe_int(&self, name: &str) -> PyResult<Option<i64>> {
        self.maybe(name, "an integer of 64 bits")
    }

    pub fn float(&self, name: &str) -> PyResult<f64> {
        number(&format!("{}(): {name}", self.layer), &self.get(name)?)
    }

    /// A number that becomes an element of this type. Fractions of integers are cut.
    pub fn element(&self, name: &str, dtype: DType) -> PyResult<f64> {
        let value = self.float(name)?;
        match fits(value.trunc(), dtype) {
            true => Ok(value),
            false => {
                Err(self.invalid(name, &format!("a number that {} has", long_name(dtype)), None))
            }
        }
    }

    /// The error for a number without the meaning that it would have.
    fn invalid(&self, name: &str, expected: &str, help: Option<&str>) -> PyErr {
        let text = match self.get(name) {
            Ok(got) => unfit(&format!("{}(): {name}", self.layer), expected, &got),
            Err(error) => return error,
        };
        PyValueError::new_err(match help {
            Some(help) => format!("{text}\n  help: {help}"),
            None => text,
        })
    }

    pub fn bool(&self, name: &str) -> PyResult<bool> {
        self.of(name, "True or False")
    }

    pub fn text(&self, name: &str) -> PyResult<String> {
        self.of(name, "a string")
    }

    pub fn maybe_text(&self, name: &str) -> PyResult<Option<String>> {
        self.maybe(name, "a string")
    }

    /// One integer or several.
    pub fn ints(&self, name: &str) -> PyResult<Vec<i64>> {
        let value = self.get(name)?;
        match value.extract::<i64>() {
            Ok(one) => Ok(vec![one]),
            Err(_) => value.extract().map_err(|_| self.wrong(name, "integers", &value)),
        }
    }

    /// Like `ints`; `None` is an empty list.
    pub fn axes(&self, name: &str) -> PyResult<Vec<i64>> {
        match self.some(name)? {
            Some(_) => self.ints(name),
            None => Ok(Vec::new()),
        }
    }

    /// A shape, in which `None` is an unknown dimension.
    pub fn shape(&self, name: &str) -> PyResult<Vec<i64>> {
        let value = self.get(name)?;
        if let Ok(one) = value.extract::<i64>() {
            return Ok(vec![one]);
        }
        let dims: Vec<Option<i64>> =
            value.extract().map_err(|_| self.wrong(name, "a list of sizes", &value))?;
        Ok(dims.into_iter().map(|dim| dim.unwrap_or(-1)).collect())
    }

    /// The shape of a new variable.
    pub fn dims(&self, name: &str) -> PyResult<Shape> {
        Shape::new(&self.shape(name)?).map_err(|error| exception(&error.at(self.layer)))
    }

    pub fn pair(&self, name: &str) -> PyResult<Pair> {
        match self.ints(name)?[..] {
            [one] => Ok(Pair::from(one)),
            [height, width] => Ok(Pair::from([height, width])),
            _ => Err(self.wrong(name, "one or two integers", &self.get(name)?)),
        }
    }

    pub fn padding(&self, name: &str) -> PyResult<Padding> {
        if let Ok(text) = self.get(name)?.extract::<String>() {
            return match text.to_ascii_uppercase().as_str() {
                "SAME" => Ok(Padding::Same),
                "VALID" => Ok(Padding::Valid),
                _ => Err(self.wrong(name, "'SAME', 'VALID' or integers", &self.get(name)?)),
            };
        }
        match self.ints(name)?[..] {
            [one] => Ok(Padding::from(one)),
            ref all => Ok(Padding::Explicit(all.to_vec())),
        }
    }

    pub fn dtype(&self, name: &str) -> PyResult<DType> {
        dtype(&self.get(name)?)
    }

    pub fn data_format(&self, name: &str) -> PyResult<DataFormat> {
        match self.text(name)?.as_str() {
            "NCHW" => Ok(DataFormat::Nchw),
            "NHWC" => Ok(DataFormat::Nhwc),
            _ => Err(self.wrong(name, "'NCHW' or 'NHWC'", &self.get(name)?)),
        }
    }

    pub fn reduction(&self, name: &str) -> PyResult<Reduction> {
        match self.text(name)?.as_str() {
            "none" => Ok(Reduction::None),
            "mean" => Ok(Reduction::Mean),
            "sum" => Ok(Reduction::Sum),
            _ => Err(self.wrong(name, "'mean', 'sum' or 'none'", &self.get(name)?)),
        }
    }

    pub fn act(&self, name: &str) -> PyResult<Option<Act>> {
        let Some(text) = self.maybe_text(name)? else { return Ok(None) };
        text.parse().map(Some).map_err(|error| exception(&error))
    }

    pub fn split(&self, name: &str) -> PyResult<Option<Split>> {
        match self.maybe_text(name)?.as_deref() {
            None => Ok(None),
            Some("columns") => Ok(Some(Split::Columns)),
            Some("rows") => Ok(Some(Split::Rows)),
            _ => Err(self.wrong(name, "'columns', 'rows' or None", &self.get(name)?)),
        }
    }

    /// The classes of a step: None for all, a share, or a number.
    pub fn class_sample(&self, name: &str) -> PyResult<ClassSample> {
        let Some(value) = self.some(name)? else { return Ok(ClassSample::All) };
        match value.is_instance_of::<PyFloat>() {
            true => self.float(name).map(ClassSample::Ratio),
            false => self.of(name, "a share, an integer or None").map(ClassSample::Count),
        }
    }

    /// Fails for a value other than `only`, with the alternative.
    pub fn only(&self, name: &str, only: &str, help: &str) -> PyResult<()> {
        let value = self.get(name)?;
        // A variable cannot show itself while a call has its program.
        let got = match value.repr() {
            Ok(text) => text.to_string(),
            Err(_) => value.get_type().name()?.to_string(),
        };
        if got == only {
            return Ok(());
        }
        let text = format!("{}(): {name}={got} is not supported: expected {only}", self.layer);
        Err(PyNotImplementedError::new_err(spelled(format!("{text}\n  help: {help}"))))
    }

    // Variables

    fn as_var(&self, name: &str, value: &Bound<'py, PyAny>) -> PyResult<Var<'n>> {
        let Ok(id) = value.getattr("_id").and_then(|id| id.extract::<u32>()) else {
            return Err(self.wrong(name, "a Variable", value));
        };
        let cell = value.getattr("_cell")?;
        if !cell.is(self.main) {
            let text = format!("'{}' belongs to another program", shown(value));
            return Err(PyValueError::new_err(format!(
                "{}(): {name}: {text}\n  help: build the network in one program_guard",
                self.layer
            )));
        }
        let id = ir::VarId::from_index(id as usize);
        self.net.var_with_id(id).map_err(|error| exception(&error))
    }

    pub fn var(&self, name: &str) -> PyResult<Var<'n>> {
        self.as_var(name, &self.get(name)?)
    }

    pub fn maybe_var(&self, name: &str) -> PyResult<Option<Var<'n>>> {
        self.some(name)?.map(|value| self.as_var(name, &value)).transpose()
    }

    /// Several variables, or one.
    pub fn vars(&self, name: &str) -> PyResult<Vec<Var<'n>>> {
        let value = self.get(name)?;
        if value.hasattr("_id")? {
            return Ok(vec![self.as_var(name, &value)?]);
        }
        let items = value.try_iter().map_err(|_| self.wrong(name, "variables", &value))?;
        items.map(|item| self.as_var(name, &item?)).collect()
    }

    /// A variable, or a list of variables.
    pub fn var_or_list(&self, name: &str) -> PyResult<Vec<Var<'n>>> {
        let value = self.get(name)?;
        match value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
            true => self.vars(name),
            false => Ok(vec![self.as_var(name, &value)?]),
        }
    }

    /// A variable or a number.
    pub fn operand(&self, name: &str) -> PyResult<Operand<'n>> {
        let value = self.get(name)?;
        if value.hasattr("_id")? {
            return Ok(Operand::Var(self.as_var(name, &value)?));
        }
        match value.extract::<f64>() {
            Err(_) if !value.is_instance_of::<PyInt>() => {
                Err(self.wrong(name, "a Variable or a number", &value))
            }
            _ => Ok(Operand::Number(self.float(name)?)),
        }
    }

    /// Like `operand`, for an op that converts a number to the type of the variable `with`.
    pub fn same_type(&self, name: &str, with: Var<'n>) -> PyResult<Operand<'n>> {
        let operand = self.operand(name)?;
        let dtype = with.dtype();
        if let Operand::Number(number) = operand
            && !dtype.is_float()
            && (number.fract() != 0.0 || !fits(number, dtype))
        {
            let expected = format!("a number of the variable's type {}", long_name(dtype));
            let help = "use another type: astype('float32')";
            return Err(self.invalid(name, &expected, Some(help)));
        }
        Ok(operand)
    }

    // Attributes of parameters

    /// The attributes of a parameter that the layer always has.
    pub fn param(&self, name: &str) -> PyResult<ParamAttr> {
        match param_attr(&self.get(name)?)? {
            Some(attr) => Ok(attr),
            None => Err(self.wrong(name, "attributes, a name or None", &self.get(name)?)),
        }
    }

    /// The attributes of a parameter that `False` omits.
    pub fn optional_param(&self, name: &str) -> PyResult<Option<ParamAttr>> {
        param_attr(&self.get(name)?)
    }

    pub fn init(&self, name: &str) -> PyResult<Option<Init>> {
        self.some(name)?.map(|value| initializer(&value)).transpose()
    }

    /// The entry rule of a sparse table: its attribute `_entry` is its kind and its arguments.
    pub fn entry(&self, name: &str) -> PyResult<Option<Entry>> {
        let Some(value) = self.some(name)? else { return Ok(None) };
        let Ok(given) = value.getattr("_entry") else {
            return Err(self.wrong(name, "an entry such as CountFilterEntry", &value));
        };
        let kind: String = given.get_item(0)?.extract()?;
        Ok(Some(match kind.as_str() {
            "count" => Entry::Count(given.get_item(1)?.extract()?),
            "probability" => Entry::Probability(given.get_item(1)?.extract()?),
            _ => Entry::ShowClick {
                show: given.get_item(1)?.extract()?,
                click: given.get_item(2)?.extract()?,
            },
        }))
    }

    /// Names the layers that are written while the guard is alive, if the call has a name: for
    /// layers whose options have none.
    pub fn name_guard(&self) -> PyResult<Option<Guard<'n>>> {
        Ok(self.maybe_text("name")?.map(|name| self.net.name_guard(&name)))
    }

    /// Writes a layer whose options have no name under a `name_guard`.
    pub fn named<T>(&self, write: impl FnOnce() -> PyResult<T>) -> PyResult<T> {
        let _name = self.name_guard()?;
        write()
    }

    /// Starts an op with the layer's name, if it has one.
    pub fn op(&self, op: &'static str) -> PyResult<OpCall<'n>> {
        let call = self.net.op(op);
        Ok(match self.given.get_item("name")?.filter(|name| !name.is_none()) {
            Some(name) => match name.extract::<String>() {
                Ok(name) => call.named(name),
                Err(_) => return Err(self.wrong("name", "a string", &name)),
            },
            None => call,
        })
    }
}

/// Returns the `TypeError` for a value.
pub fn wrong(what: &str, expected: &str, got: &Bound<'_, PyAny>) -> PyErr {
    PyTypeError::new_err(spelled(format!("{what}: expected {expected}, got {}", shown(got))))
}

/// Returns the text of a `ValueError` for a value.
fn unfit(what: &str, expected: &str, got: &Bound<'_, PyAny>) -> String {
    format!("{what}: expected {expected}, got {}", shown(got))
}

/// Reads a number. Attributes of ops are floats of 64 bits, so integers must be exact in them.
pub fn number(what: &str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    if let Ok(float) = value.cast::<PyFloat>() {
        return Ok(float.value());
    }
    let number = value.extract::<f64>();
    let exact = match (&number, value.call_method0("__index__")) {
        (Ok(number), Ok(integer)) => integer.eq(number)?,
        (_, given) => given.is_err(),
    };
    if exact {
        return number.map_err(|_| wrong(what, "a number", value));
    }
    let text = unfit(what, "an integer that is exact as a 64-bit float", value);
    Err(PyValueError::new_err(format!("{text}\n  help: integers up to 2**53 are")))
}

/// Returns whether an element type has this whole number, or any number if it is a float.
fn fits(number: f64, dtype: DType) -> bool {
    let bits = match dtype {
        DType::Bool => return number == 0.0 || number == 1.0,
        DType::U8 => return (0.0..=255.0).contains(&number),
        DType::I8 => 7,
        DType::I16 => 15,
        DType::I32 => 31,
        DType::I64 => 63,
        _ => return true,
    };
    let limit = 2f64.powi(bits);
    (-limit..limit).contains(&number)
}

/// Returns a value as errors show it: its start, and its type.
fn shown(value: &Bound<'_, PyAny>) -> String {
    const CHARS_MAX: usize = 60;
    let kind = value.get_type().name().map(|name| name.to_string()).unwrap_or_default();
    let Ok(text) = value.repr().map(|text| text.to_string()) else { return kind };
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}.. ({kind})", &text[..end]),
        None => format!("{text} ({kind})"),
    }
}

/// Reads an element type: a name, or a type of NumPy.
pub fn dtype(value: &Bound<'_, PyAny>) -> PyResult<DType> {
    let name: String = match value.extract::<String>() {
        Ok(name) => name,
        Err(_) => ["name", "__name__"]
            .iter()
            .find_map(|key| value.getattr(*key).ok()?.extract::<String>().ok())
            .ok_or_else(|| wrong("dtype", "a type such as 'float32'", value))?,
    };
    DType::parse(&name).map_err(|error| exception(&error))
}

/// Reads `None`, `True`, `False`, a name, an initializer or a `ParamAttr`; `False` is `None`.
fn param_attr(value: &Bound<'_, PyAny>) -> PyResult<Option<ParamAttr>> {
    if value.is_none() {
        return Ok(Some(ParamAttr::new()));
    }
    if let Ok(on) = value.cast::<PyBool>() {
        return Ok(on.is_true().then(ParamAttr::new));
    }
    if let Ok(name) = value.extract::<String>() {
        return Ok(Some(ParamAttr::from(name)));
    }
    if value.hasattr("_initializer")? {
        return Ok(Some(ParamAttr::from(initializer(value)?)));
    }
    if !value.hasattr("_param_attr")? {
        return Err(wrong("attributes of a parameter", "a ParamAttr, a name or False", value));
    }
    let some = |name: &str| -> PyResult<Option<Bound<'_, PyAny>>> {
        Ok(Some(value.getattr(name)?).filter(|value| !value.is_none()))
    };
    let attr = match some("split")? {
        None => ParamAttr::new(),
        Some(axis) => match axis.extract() {
            Ok(axis) => ParamAttr::new().split(axis),
            Err(_) => return Err(wrong("split of a ParamAttr", "an axis, from 0, or None", &axis)),
        },
    };
    Ok(Some(ParamAttr {
        name: some("name")?.map(|name| name.extract()).transpose()?,
        initializer: some("initializer")?.map(|init| initializer(&init)).transpose()?,
        learning_rate: value.getattr("learning_rate")?.extract()?,
        regularizer: some("regularizer")?.map(|it| regularizer(&it)).transpose()?,
        trainable: value.getattr("trainable")?.extract()?,
        need_clip: value.getattr("need_clip")?.extract()?,
        ..attr
    }))
}

/// Reads an initializer: its attribute `_initializer` is its kind and its numbers.
fn initializer(value: &Bound<'_, PyAny>) -> PyResult<Init> {
    let Ok(given) = value.getattr("_initializer") else {
        return Err(wrong("initializer", "one of fleet.nn.initializer", value));
    };
    let (kind, numbers): (String, Vec<Option<f64>>) = given.extract()?;
    let at = |index: usize| numbers.get(index).copied().flatten();
    let number = |index: usize| at(index).unwrap_or(0.0);
    Ok(match kind.as_str() {
        "constant" => Init::Constant(number(0)),
        "uniform" => Init::uniform(number(0), number(1)),
        "normal" => Init::normal(number(0), number(1)),
        "truncated_normal" => Init::truncated_normal(number(0), number(1)),
        "xavier_uniform" => Init::XavierUniform { fan_in: at(0), fan_out: at(1) },
        "xavier_normal" => Init::XavierNormal { fan_in: at(0), fan_out: at(1) },
        "kaiming_uniform" => Init::KaimingUniform { fan_in: at(0) },
        "kaiming_normal" => Init::KaimingNormal { fan_in: at(0) },
        "assign" => Init::Assign(numbers.iter().map(|value| value.unwrap_or(0.0)).collect()),
        _ => return Err(PyValueError::new_err(format!("unknown initializer '{kind}'"))),
    })
}

/// Reads a regularizer: its attribute `_regularizer` is its kind and its coefficient. A plain
/// number is L2 decay.
pub fn regularizer(value: &Bound<'_, PyAny>) -> PyResult<Regularizer> {
    if let Ok(coeff) = value.extract::<f64>() {
        return Ok(Regularizer::L2(coeff));
    }
    let Ok(given) = value.getattr("_regularizer") else {
        return Err(wrong("regularizer", "L1Decay, L2Decay or a number", value));
    };
    let (kind, coeff): (String, f64) = given.extract()?;
    Ok(if kind == "l1" { Regularizer::L1(coeff) } else { Regularizer::L2(coeff) })
}
