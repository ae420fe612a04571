//! Optimizers, learning rates and the backward pass.

use crate::args::{regularizer, wrong};
use crate::error::{OrRaise, raise_later};
use crate::program::{Place, ProgramCell, index, rewriting, vars};
use fleet::nn::optimizer::*;
use fleet::nn::{GradClip, HostFn, LearningRate, LrSchedule};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::sync::Arc;

/// Settings of an object of Python, by name.
struct Settings<'py>(Bound<'py, PyDict>);

impl<'py> Settings<'py> {
    fn get<T>(&self, name: &str) -> PyResult<T>
    where
        T: for<'a> FromPyObject<'a, 'py>,
    {
        let value = self.0.get_item(name)?;
        let value = value.ok_or_else(|| PyValueError::new_err(format!("{name} is missing")))?;
        value.extract().map_err(|_| wrong(name, "another type", &value))
    }

    fn float(&self, name: &str) -> PyResult<f64> {
        let value = self.0.get_item(name)?;
        let value = value.ok_or_else(|| PyValueError::new_err(format!("{name} is missing")))?;
        let number: f64 = value.extract().map_err(|_| wrong(name, "a number", &value))?;
        match number.is_nan() {
            true => Err(PyValueError::new_err(format!("{name}: expected a number, got nan"))),
            false => Ok(number),
        }
    }

    fn some(&self, name: &str) -> PyResult<Option<Bound<'py, PyAny>>> {
        Ok(self.0.get_item(name)?.filter(|value| !value.is_none()))
    }

    fn names(&self, name: &str) -> PyResult<Vec<String>> {
        self.some(name)?.map_or(Ok(Vec::new()), |names| names.extract())
    }
}

/// Reads an optimizer: `_settings()` is a dictionary of its settings.
pub fn optimizer(given: &Bound<'_, PyAny>) -> PyResult<OptimizerDesc> {
    if !given.hasattr("_settings")? {
        return Err(wrong("optimizer", "one of fleet.optimizer", given));
    }
    let settings = Settings(given.call_method0("_settings")?.cast_into()?);
    let mut desc = rule(&settings)?;
    if let Some(decay) = settings.some("weight_decay")? {
        desc.settings.weight_decay = Some(regularizer(&decay)?);
    }
    if let Some(clip) = settings.some("grad_clip")? {
        desc.settings.grad_clip = Some(grad_clip(&clip)?);
    }
    if let Some(names) = settings.some("parameters")? {
        desc.settings.parameters = Some(names.extract()?);
    }
    desc.settings.no_grad = settings.names("no_grad")?;
    Ok(desc)
}

/// Fails if the settings of an optimizer have a wrong type, or a learning rate that cannot be.
#[pyfunction]
pub fn check_optimizer(given: &Bound<'_, PyAny>) -> PyResult<()> {
    match optimizer(given)?.settings.learning_rate {
        // The check of a schedule may call a function of Python. `minimize` makes it.
        LearningRate::Schedule(_) => Ok(()),
        rate => rate.check().or_raise(),
    }
}

fn rule(s: &Settings<'_>) -> PyResult<OptimizerDesc> {
    let rate = s.0.get_item("learning_rate")?;
    let rate = rate.ok_or_else(|| PyValueError::new_err("learning_rate is missing"))?;
    let rate = learning_rate(&rate)?;
    let kind: String = s.get("rule")?;
    Ok(match kind.as_str() {
        "sgd" => Sgd::new(rate).into(),
        "momentum" => {
            let momentum = Momentum::new(rate, s.float("momentum")?);
            momentum.use_nesterov(s.get("use_nesterov")?).into()
        }
        "adam" => {
            let adam = Adam::new(rate).beta1(s.float("beta1")?).beta2(s.float("beta2")?);
            adam.epsilon(s.float("epsilon")?).lazy_mode(s.get("lazy_mode")?).into()
        }
        "adamw" => {
            let mut adam = AdamW::new(rate);
            adam.rule.beta1 = s.float("beta1")?;
            adam.rule.beta2 = s.float("beta2")?;
            adam.rule.epsilon = s.float("epsilon")?;
            adam.rule.coeff = s.float("coeff")?;
            adam.rule.lazy_mode = s.get("lazy_mode")?;
            adam.into()
        }
        "adamax" => {
            let adamax = Adamax::new(rate).beta1(s.float("beta1")?).beta2(s.float("beta2")?);
            adamax.epsilon(s.float("epsilon")?).into()
        }
        "adagrad" => {
            let adagrad = Adagrad::new(rate).epsilon(s.float("epsilon")?);
            adagrad.initial_accumulator_value(s.float("initial_accumulator_value")?).into()
        }
        "adadelta" => Adadelta::new(rate).rho(s.float("rho")?).epsilon(s.float("epsilon")?).into(),
        "rmsprop" => {
            let rmsprop = RmsProp::new(rate).rho(s.float("rho")?).epsilon(s.float("epsilon")?);
            rmsprop.momentum(s.float("momentum")?).centered(s.get("centered")?).into()
        }
        "lamb" => {
            let mut lamb = Lamb::new(rate);
            lamb.rule.beta1 = s.float("beta1")?;
            lamb.rule.beta2 = s.float("beta2")?;
            lamb.rule.epsilon = s.float("epsilon")?;
            lamb.rule.lamb_weight_decay = s.float("lamb_weight_decay")?;
            lamb.rule.exclude_from_weight_decay = s.names("exclude_from_weight_decay")?;
            lamb.into()
        }
        "lars" => {
            let mut lars = LarsMomentum::new(rate, s.float("momentum")?);
            lars.rule.lars_coeff = s.float("lars_coeff")?;
            lars.rule.lars_weight_decay = s.float("lars_weight_decay")?;
            lars.rule.epsilon = s.float("epsilon")?;
            lars.rule.exclude_from_weight_decay = s.names("exclude_from_weight_decay")?;
            lars.into()
        }
        other => return Err(PyValueError::new_err(format!("unknown optimizer '{other}'"))),
    })
}

/// Reads a clipping rule: `_grad_clip` is its kind and its limits.
fn grad_clip(value: &Bound<'_, PyAny>) -> PyResult<GradClip> {
    let Ok(given) = value.getattr("_grad_clip") else {
        return Err(wrong("grad_clip", "one of fleet.nn.ClipGradBy..", value));
    };
    let (kind, limits): (String, Vec<f64>) = given.extract()?;
    Ok(match (kind.as_str(), &limits[..]) {
        ("value", [min, max]) => GradClip::Value { min: *min, max: *max },
        ("norm", [limit]) => GradClip::Norm(*limit),
        (_, [limit]) => GradClip::GlobalNorm(*limit),
        _ => return Err(wrong("grad_clip", "one limit, or two for ClipGradByValue", value)),
    })
}

/// Reads a number, or a schedule: `_schedule` is its kind and its settings.
fn learning_rate(value: &Bound<'_, PyAny>) -> PyResult<LearningRate> {
    if let Ok(rate) = value.extract::<f64>() {
        return Ok(LearningRate::Constant(rate));
    }
    let Ok(given) = value.getattr("_schedule") else {
        return Err(wrong("learning_rate", "a number or one of fleet.optimizer.lr", value));
    };
    let (kind, settings): (String, Bound<'_, PyDict>) = given.extract()?;
    Ok(LearningRate::Schedule(schedule(&kind, &Settings(settings))?))
}

fn schedule(kind: &str, s: &Settings<'_>) -> PyResult<LrSchedule> {
    let learning_rate = || s.float("learning_rate");
    Ok(match kind {
        "noam" => LrSchedule::Noam {
            learning_rate: learning_rate()?,
            d_model: s.float("d_model")?,
            warmup_steps: s.float("warmup_steps")?,
        },
        "exponential" => LrSchedule::exponential(learning_rate()?, s.float("gamma")?),
        "natural_exp" => LrSchedule::natural_exp(learning_rate()?, s.float("gamma")?),
        "inverse_time" => LrSchedule::inverse_time(learning_rate()?, s.float("gamma")?),
        "piecewise" => {
            let (boundaries, values): (Vec<u64>, Vec<f64>) =
                (s.get("boundaries")?, s.get("values")?);
            LrSchedule::piecewise(boundaries, values)
        }
        "polynomial" => LrSchedule::Polynomial {
            learning_rate: learning_rate()?,
            decay_steps: s.float("decay_steps")?,
            end: s.float("end_lr")?,
            power: s.float("power")?,
            cycle: s.get("cycle")?,
        },
        "cosine" => LrSchedule::Cosine {
            learning_rate: learning_rate()?,
            t_max: s.float("T_max")?,
            eta_min: s.float("eta_min")?,
        },
        "linear_warmup" => {
            let after = s.0.get_item("learning_rate")?;
            let after = after.ok_or_else(|| PyValueError::new_err("learning_rate is missing"))?;
            let (start, end) = (s.float("start_lr")?, s.float("end_lr")?);
            let after = self::learning_rate(&after)?;
            LrSchedule::linear_warmup(after, s.get("warmup_steps")?, start, end)
        }
        "step" => LrSchedule::Step {
            learning_rate: learning_rate()?,
            step_size: s.get("step_size")?,
            gamma: s.float("gamma")?,
        },
        "multi_step" => LrSchedule::MultiStep {
            learning_rate: learning_rate()?,
            milestones: s.get("milestones")?,
            gamma: s.float("gamma")?,
        },
        "lambda" => LrSchedule::Lambda {
            learning_rate: learning_rate()?,
            factor: python_function(s.get("lr_lambda")?),
        },
        other => return Err(PyValueError::new_err(format!("unknown schedule '{other}'"))),
    })
}

/// Wraps a function of Python. After an exception in it, the factor is not a number. The step
/// rejects that, and the call raises the exception.
fn python_function(function: Py<PyAny>) -> HostFn {
    let function = Arc::new(function);
    HostFn::new(move |step| {
        Python::attach(|py| {
            let called = function.call1(py, (step,)).and_then(|factor| factor.extract::<f64>(py));
            called.unwrap_or_else(|exception| {
                raise_later(exception);
                f64::NAN
            })
        })
    })
}

/// Parameters with their gradients.
type Pairs = Vec<(u32, u32)>;

fn indices(pairs: &[ParamGrad]) -> Pairs {
    pairs.iter().map(|(param, grad)| (index(*param), index(*grad))).collect()
}

/// Appends the backward pass. `parameters` are the names of those to train, all by default.
#[pyfunction]
pub fn backward(
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    loss: u32,
    parameters: Option<Vec<String>>,
    no_grad: Vec<String>,
) -> PyResult<Pairs> {
    rewriting(main.get(), startup.get(), &place, |net| {
        let loss = vars(net, &[loss])?[0].id();
        let mut desc = OptimizerDesc::from(Sgd::new(0.0));
        (desc.settings.parameters, desc.settings.no_grad) = (parameters, no_grad);
        let made = net.rewrite_with(|programs, registry| desc.backward(programs, registry, loss));
        Ok(indices(&made.or_raise()?))
    })
}

/// Appends the gradients of `targets` for `inputs`.
#[pyfunction]
pub fn gradients(
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    targets: Vec<u32>,
    inputs: Vec<u32>,
) -> PyResult<Vec<Option<u32>>> {
    rewriting(main.get(), startup.get(), &place, |net| {
        let made = net.gradients(&vars(net, &targets)?, &vars(net, &inputs)?).or_raise()?;
        Ok(made.into_iter().map(|grad| grad.map(|grad| index(grad.id()))).collect())
    })
}

/// Appends clipping and updates. Returns the variable of the learning rate.
#[pyfunction]
pub fn apply_gradients(
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    with: &Bound<'_, PyAny>,
    pairs: Pairs,
) -> PyResult<u32> {
    let desc = optimizer(with)?;
    rewriting(main.get(), startup.get(), &place, |net| {
        let pairs: PyResult<Vec<ParamGrad>> = pairs
            .iter()
            .map(|(param, grad)| {
                let both = vars(net, &[*param, *grad])?;
                Ok((both[0].id(), both[1].id()))
            })
            .collect();
        let pairs = pairs?;
        let made =
            net.rewrite_with(|programs, registry| desc.apply_gradients(programs, registry, &pairs));
        Ok(index(made.or_raise()?))
    })
}

/// Appends the backward pass and the updates. Returns the pairs and the learning rate.
#[pyfunction]
pub fn minimize(
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    with: &Bound<'_, PyAny>,
    loss: u32,
) -> PyResult<(Pairs, u32)> {
    let desc = optimizer(with)?;
    rewriting(main.get(), startup.get(), &place, |net| {
        let loss = vars(net, &[loss])?[0].id();
        let made = net.rewrite_with(|programs, registry| desc.minimize(programs, registry, loss));
        let made = made.or_raise()?;
        Ok((indices(&made.params_grads), index(made.learning_rate)))
    })
}
