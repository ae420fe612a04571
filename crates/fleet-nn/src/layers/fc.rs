//! Fully connected layer.

use crate::build::Build;
use crate::layers::Split;
use crate::setters::setters;
use crate::{Act, Init, Net, ParamAttr, Var};
use fleet_base::{Error, Result};
use fleet_ir::VarId;
use std::panic::Location;

/// Options of a fully connected layer: `act(x * w + b)`. A plain number is its size.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 13], DType::F32);
/// let hidden = x.fc(Fc::new(400).act(Act::Relu).weight(Init::normal(0.0, 0.1)));
/// let logit = hidden.fc(Fc::new(1).no_bias().name("head"));
/// assert_eq!(logit.name(), "head.tmp_0");
/// assert_eq!(net.var("fc_0.w_0").shape(), Shape::from([13, 400]));
/// let words = net.data("words", [-1, 32, 8], DType::F32);
/// assert_eq!(words.fc(Fc::new(4).num_flatten_dims(2)).shape(), Shape::from([-1, 32, 4]));
/// ```
#[derive(Clone, Debug)]
pub struct Fc {
    /// Number of outputs.
    pub size: i64,
    /// Number of leading dimensions to keep. The others are flattened into the input width.
    /// Negative counts from the end.
    pub num_flatten_dims: i64,
    /// Activation of the output; none by default.
    pub act: Option<Act>,
    /// The weight, `[input width, size]`.
    pub weight: ParamAttr,
    /// The bias, `[size]`, 0 at first; `None` for no bias.
    pub bias: Option<ParamAttr>,
    /// How ranks divide the layer (tensor parallelism); not at all by default.
    pub split: Option<Split>,
    /// Name of the layer, which begins the names of its variables; `fc_0` and so on by default.
    pub name: Option<String>,
}

impl Fc {
    /// Returns a layer of `size` outputs with a bias, over all dimensions but the first.
    pub fn new(size: impl TryInto<i64>) -> Fc {
        Fc {
            // A size out of range becomes -1, which is rejected like any negative size.
            size: size.try_into().unwrap_or(-1),
            num_flatten_dims: 1,
            act: None,
            weight: ParamAttr::new(),
            bias: Some(ParamAttr::new()),
            split: None,
            name: None,
        }
    }

    setters! {
        num_flatten_dims: i64,
        act: Some(Act),
        weight: impl Into<ParamAttr>,
        bias: Some(impl Into<ParamAttr>),
        split: Some(Split),
        name: Some(impl Into<String>),
    }

    /// Leaves out the bias.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    pub(crate) fn emit(&self, b: &mut Build<'_>, x: VarId, kind: &str) -> Result<VarId> {
        self.emit_sum(b, &[x], kind)
    }

    /// Emits the layer on the sum of the products of all inputs.
    fn emit_sum(&self, b: &mut Build<'_>, inputs: &[VarId], kind: &str) -> Result<VarId> {
        if self.size <= 0 {
            return Err(Error::invalid(format!("wrong size of {kind}"))
                .expected("1 or more")
                .got(self.size));
        }
        let layer = b.layer_name(kind, self.name.as_deref());
        let stem = format!("{layer}.tmp");
        let mut products = Vec::with_capacity(inputs.len());
        for x in inputs {
            products.push(self.product(b, *x, kind, &layer)?);
        }
        let Some((mut out, kept)) = products.first().copied() else {
            return Err(Error::invalid(format!("{kind} has no inputs")).expected("1 or more"));
        };
        if products.len() > 1 {
            if self.split.is_some() {
                return Err(Error::unsupported(format!("split of {kind} with several inputs"))
                    .help("apply the layer to their concatenation"));
            }
            let all: Vec<VarId> = products.iter().map(|(product, _)| *product).collect();
            check_alike(b, &all, kind)?;
            out = b.op("sum")?.inputs("X", &all).named(&stem).one("Out")?;
        }
        if let Some(bias) = &self.bias {
            let (init, dtype) = (Init::Constant(0.0), b.meta(out).dtype);
            let bias = bias.clone().or_split(self.split.and_then(Split::bias));
            let bias = b.parameter(&layer, "b", &bias, [self.size], dtype, &init)?;
            let call = b.op("elementwise_add")?.input("X", out).input("Y", bias);
            out = call.attr("axis", kept).named(&stem).one("Out")?;
        }
        b.act(out, self.act.as_ref(), &layer)
    }

    /// Emits the product of an input and its weight. Returns it with its number of kept dimensions.
    fn product(
        &self,
        b: &mut Build<'_>,
        x: VarId,
        kind: &str,
        layer: &str,
    ) -> Result<(VarId, i64)> {
        let meta = b.meta(x);
        let rank = meta.shape.rank() as i64;
        let kept = self.num_flatten_dims + if self.num_flatten_dims < 0 { rank } else { 0 };
        if kept < 1 || kept >= rank {
            return Err(Error::invalid(format!("wrong num_flatten_dims of {kind}"))
                .expected(format!("1 to {} for an input of shape {}", rank - 1, meta.shape))
                .got(self.num_flatten_dims));
        }
        let width = b.known_tail(kind, &meta.shape, kept as usize)?;
        let shape = [width, self.size];
        let weight = self.weight.clone().or_split(self.split.map(Split::weight));
        let w = b.parameter(layer, "w", &weight, shape, meta.dtype, &Init::XAVIER_UNIFORM)?;
        let call = b.op("mul")?.input("X", x).input("Y", w).attr("x_num_col_dims", kept);
        Ok((call.named(format!("{layer}.tmp")).one("Out")?, kept))
    }
}

/// Fails if products cannot be summed.
fn check_alike(b: &Build<'_>, products: &[VarId], kind: &str) -> Result<()> {
    let first = b.meta(products[0]);
    for (number, product) in products.iter().enumerate() {
        let meta = b.meta(*product);
        if meta.dtype != first.dtype || !meta.shape.agrees(&first.shape) {
            return Err(Error::invalid(format!("input {number} of {kind} does not fit the first"))
                .expected(format!("a result {}{}", first.dtype, first.shape))
                .got(format!("{}{}", meta.dtype, meta.shape)));
        }
    }
    Ok(())
}

impl From<usize> for Fc {
    fn from(size: usize) -> Fc {
        Fc::new(size)
    }
}

impl From<i64> for Fc {
    fn from(size: i64) -> Fc {
        Fc::new(size)
    }
}

impl From<i32> for Fc {
    fn from(size: i32) -> Fc {
        Fc::new(size)
    }
}

impl<'n> Var<'n> {
    /// Applies a fully connected layer: `x.fc(400)`, or with options
    /// `x.fc(Fc::new(400).act(Act::Relu))`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 13], DType::F32).fc(400).relu();
    /// assert_eq!(y.shape(), Shape::from([-1, 400]));
    /// ```
    #[track_caller]
    pub fn fc(self, with: impl Into<Fc>) -> Var<'n> {
        let fc = with.into();
        self.layer(|b, x| fc.emit(b, x, "fc"))
    }
}

impl Net {
    /// Applies one fully connected layer to several inputs: `act(x * w_0 + y * w_1 + .. + b)`. Each
    /// input has a weight of its own. With a name for the weight, inputs of the same width share
    /// it.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 13], DType::F32), net.data("y", [-1, 3], DType::F32));
    /// assert_eq!(net.fc_of(&[x, y], Fc::new(8).act(Act::Relu)).shape(), Shape::from([-1, 8]));
    /// assert_eq!(net.var("fc_0.w_1").shape(), Shape::from([3, 8]));
    /// ```
    #[track_caller]
    pub fn fc_of<'n>(&'n self, inputs: &[Var<'n>], with: impl Into<Fc>) -> Var<'n> {
        let fc = with.into();
        self.try_emit_var(Location::caller(), |b| {
            let inputs = b.ids(inputs)?;
            fc.emit_sum(b, &inputs, "fc")
        })
    }
}
