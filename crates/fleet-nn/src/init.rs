//! Initial values of parameters and of other variables that persist. Each takes one op in the
//! startup program.

use fleet_base::{Error, Result};
use fleet_ir::{Program, Var, VarId};
use fleet_ops::Emit;
use fleet_tensor::{DType, Shape};

/// Initial value of a parameter.
///
/// The Xavier and Kaiming kinds scale with the number of inputs (fan-in) and outputs (fan-out) of a
/// weight. A matrix is `[in, out]`. A filter is `[out, in, kh, kw]`, where the window size
/// multiplies both.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 13], DType::F32);
/// x.fc(Fc::new(4).weight(Init::kaiming_normal()).bias(Init::Constant(0.1)));
/// let (_, op) = net.build()?.startup.root_ops().next().map(|(i, op)| (i, op.clone())).unwrap();
/// assert_eq!((op.name(), op.attr_float("std")), ("gaussian_random", (2.0f64 / 13.0).sqrt()));
/// # Ok::<(), fleet_nn::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub enum Init {
    /// The same value for each element.
    Constant(f64),
    /// Random numbers with equal probability in a range.
    Uniform {
        /// Start of the range.
        low: f64,
        /// End of the range.
        high: f64,
    },
    /// Random numbers of a normal distribution.
    Normal {
        /// Mean of the distribution.
        mean: f64,
        /// Standard deviation of the distribution.
        std: f64,
    },
    /// Normal, with values beyond two standard deviations redrawn.
    TruncatedNormal {
        /// Mean of the distribution before the cut.
        mean: f64,
        /// Standard deviation of the distribution before the cut.
        std: f64,
    },
    /// Uniform in `±sqrt(6 / (fan_in + fan_out))`.
    XavierUniform {
        /// Number of inputs per output; by default that of the parameter's shape.
        fan_in: Option<f64>,
        /// Number of outputs per input; by default that of the parameter's shape.
        fan_out: Option<f64>,
    },
    /// Normal with standard deviation `sqrt(2 / (fan_in + fan_out))`.
    XavierNormal {
        /// Number of inputs per output; by default that of the parameter's shape.
        fan_in: Option<f64>,
        /// Number of outputs per input; by default that of the parameter's shape.
        fan_out: Option<f64>,
    },
    /// Uniform in `±sqrt(6 / fan_in)`.
    KaimingUniform {
        /// Number of inputs per output; by default that of the parameter's shape.
        fan_in: Option<f64>,
    },
    /// Normal with standard deviation `sqrt(2 / fan_in)`.
    KaimingNormal {
        /// Number of inputs per output; by default that of the parameter's shape.
        fan_in: Option<f64>,
    },
    /// The given values, in row-major order.
    Assign(Vec<f64>),
}

impl Init {
    pub(crate) const XAVIER_UNIFORM: Init = Init::XavierUniform { fan_in: None, fan_out: None };

    /// Returns a uniform distribution over `low` to `high`.
    pub fn uniform(low: f64, high: f64) -> Init {
        Init::Uniform { low, high }
    }

    /// Returns a normal distribution.
    pub fn normal(mean: f64, std: f64) -> Init {
        Init::Normal { mean, std }
    }

    /// Returns a normal distribution whose values beyond two standard deviations are redrawn.
    pub fn truncated_normal(mean: f64, std: f64) -> Init {
        Init::TruncatedNormal { mean, std }
    }

    /// Returns a uniform distribution in `±sqrt(6 / (fan_in + fan_out))`, with the sizes of the
    /// parameter.
    pub fn xavier_uniform() -> Init {
        Init::XAVIER_UNIFORM
    }

    /// Returns a normal distribution with deviation `sqrt(2 / (fan_in + fan_out))`, with the sizes
    /// of the parameter.
    pub fn xavier_normal() -> Init {
        Init::XavierNormal { fan_in: None, fan_out: None }
    }

    /// Returns a uniform distribution in `±sqrt(6 / fan_in)`, with the sizes of the parameter.
    pub fn kaiming_uniform() -> Init {
        Init::KaimingUniform { fan_in: None }
    }

    /// Returns a normal distribution with deviation `sqrt(2 / fan_in)`, with the sizes of the
    /// parameter.
    pub fn kaiming_normal() -> Init {
        Init::KaimingNormal { fan_in: None }
    }

    /// Returns the same distribution with an explicit scale for a weight of this shape.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let bound = (6.0f64 / 1128.0).sqrt();
    /// let scaled = Init::xavier_uniform().scaled(&Shape::from([1000, 128]));
    /// assert_eq!(scaled, Init::uniform(-bound, bound));
    /// ```
    pub fn scaled(&self, shape: &Shape) -> Init {
        let (ins, outs) = fans(shape);
        let xavier = |fan_in: &Option<f64>, fan_out: &Option<f64>| {
            fan_in.unwrap_or(ins) + fan_out.unwrap_or(outs)
        };
        match self {
            Init::XavierUniform { fan_in, fan_out } => {
                let bound = (6.0 / xavier(fan_in, fan_out)).sqrt();
                Init::uniform(-bound, bound)
            }
            Init::XavierNormal { fan_in, fan_out } => {
                Init::normal(0.0, (2.0 / xavier(fan_in, fan_out)).sqrt())
            }
            Init::KaimingUniform { fan_in } => {
                let bound = (6.0 / fan_in.unwrap_or(ins)).sqrt();
                Init::uniform(-bound, bound)
            }
            Init::KaimingNormal { fan_in } => {
                Init::normal(0.0, (2.0 / fan_in.unwrap_or(ins)).sqrt())
            }
            plain => plain.clone(),
        }
    }

    /// Emits the op that fills `var`.
    pub(crate) fn emit(&self, startup: &mut Emit<'_>, var: VarId) -> Result<()> {
        let meta = startup.meta(var);
        let shape = meta.shape.to_vec();
        let (name, attrs): (&str, Vec<(&str, f64)>) = match self.scaled(&meta.shape) {
            Init::Constant(value) => ("fill_constant", vec![("value", value)]),
            Init::Uniform { low, high } => ("uniform_random", vec![("min", low), ("max", high)]),
            Init::Normal { mean, std } => ("gaussian_random", vec![("mean", mean), ("std", std)]),
            Init::TruncatedNormal { mean, std } => {
                ("truncated_gaussian_random", vec![("mean", mean), ("std", std)])
            }
            Init::Assign(values) => return assign(startup, var, &values),
            _ => return Err(Error::internal("unscaled initializer")),
        };
        let random = name != "fill_constant";
        let stream = if random { startup.program.next_stream() } else { 0 };
        let mut call = startup.named_op(name)?.attr("shape", shape).attr("dtype", meta.dtype);
        for (attr, value) in attrs {
            call = call.attr(attr, value);
        }
        if random {
            call = call.attr("stream", stream as i64);
        }
        call.output("Out", var).done()?;
        Ok(())
    }
}

fn assign(startup: &mut Emit<'_>, var: VarId, values: &[f64]) -> Result<()> {
    let meta = startup.meta(var);
    if meta.shape.numel() != Some(values.len()) {
        let name = startup.program.var_name(var);
        return Err(Error::invalid(format!("wrong number of initial values for '{name}'"))
            .expected(format!("one per element of shape {}", meta.shape))
            .got(values.len()));
    }
    let call = startup.named_op("assign_value")?.attr("shape", meta.shape.to_vec());
    call.attr("dtype", meta.dtype).attr("values", values.to_vec()).output("Out", var).done()?;
    Ok(())
}

/// Adds a persistable variable to both programs. The startup program fills it with `value`.
pub(crate) fn global_var(
    main: &mut Emit<'_>,
    startup: &mut Emit<'_>,
    name: &str,
    shape: Shape,
    dtype: DType,
    value: f64,
) -> Result<VarId> {
    let shape = Shape::new(&shape)?;
    if !shape.is_known() {
        return Err(Error::invalid(format!("the shape of '{name}' must be known")).got(shape));
    }
    let var = Var::persistable(name, dtype, shape);
    initialize(startup, &var, &Init::Constant(value))?;
    main.program.add_var(Program::ROOT, var)
}

/// Adds a variable to the startup program, which fills it. A variable of this name that another
/// network with the same startup program has added is shared.
pub(crate) fn initialize(startup: &mut Emit<'_>, var: &Var, init: &Init) -> Result<()> {
    let Some(found) = startup.program.find_var(&var.name) else {
        let filled = startup.program.add_var(Program::ROOT, var.clone())?;
        return init.emit(startup, filled);
    };
    let held = startup.program.var(found);
    let is_same = held.is_parameter() == var.is_parameter();
    if is_same && held.dtype == var.dtype && held.shape == var.shape {
        return Ok(());
    }
    let kind = |var: &Var| if var.is_parameter() { "parameter" } else { "variable" };
    Err(Error::invalid(format!("cannot share '{}' of the startup program", var.name))
        .expected(format!("a {} {}{}", kind(var), var.dtype, var.shape))
        .got(format!("a {} {}{}", kind(held), held.dtype, held.shape)))
}

/// Returns fan-in and fan-out of a weight.
fn fans(shape: &Shape) -> (f64, f64) {
    let dims: Vec<f64> = shape.iter().map(|dim| *dim as f64).collect();
    match dims.as_slice() {
        [] => (1.0, 1.0),
        [only] => (*only, *only),
        [ins, outs] => (*ins, *outs),
        [outs, ins, window @ ..] => {
            let window: f64 = window.iter().product();
            (ins * window, outs * window)
        }
    }
}
