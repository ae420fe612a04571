//! Arithmetic on handles: elementwise functions, comparisons, reductions, matrix products.

use crate::operators::number;
use crate::setters::setters;
use crate::{Act, Operand, Var};
use fleet_tensor::DType;
use std::panic::Location;

/// Defines methods for ops with one input, one output and no attributes.
macro_rules! unary {
    ($($(#[$meta:meta])* $name:ident => $op:literal;)*) => {
        impl<'n> Var<'n> {
            $(
                $(#[$meta])*
                ///
                /// ```
                /// # use fleet_nn::prelude::*;
                /// # let net = Net::new();
                /// let x = net.data("x", [-1, 4], DType::F32);
                #[doc = concat!("let y = x.", stringify!($name), "();")]
                /// # assert_eq!(y.shape(), Shape::from([-1, 4]));
                /// ```
                #[track_caller]
                pub fn $name(self) -> Var<'n> {
                    self.net.op($op).input("X", self).one("Out")
                }
            )*
        }
    };
}

unary! {
    /// `max(x, 0)`.
    relu => "relu";
    /// `min(max(x, 0), 6)`.
    relu6 => "relu6";
    /// `1 / (1 + exp(-x))`.
    sigmoid => "sigmoid";
    /// The logarithm of [`Var::sigmoid`], finite for any x.
    logsigmoid => "logsigmoid";
    /// The hyperbolic tangent.
    tanh => "tanh";
    /// `x * Phi(x)`, in the exact form.
    gelu => "gelu";
    /// `e` raised to the power of x.
    exp => "exp";
    /// The natural logarithm.
    log => "log";
    /// The square root.
    sqrt => "sqrt";
    /// `1 / sqrt(x)`.
    rsqrt => "rsqrt";
    /// `x * x`.
    square => "square";
    /// `|x|`.
    abs => "abs";
    /// `1 / x`.
    reciprocal => "reciprocal";
    /// `log(1 + exp(x))`, finite for any x.
    softplus => "softplus";
    /// `x / (1 + |x|)`.
    softsign => "softsign";
    /// `x * sigmoid(x)`.
    silu => "silu";
    /// `x * sigmoid(x)`. Use the op directly to set its factor `beta`.
    swish => "swish";
    /// `x * min(max(x + 3, 0), 6) / 6`.
    hard_swish => "hard_swish";
    /// `min(max(0.2 * x + 0.5, 0), 1)`.
    hard_sigmoid => "hard_sigmoid";
    /// `1.0507 * x` if x is positive, else `1.0507 * 1.6733 * (exp(x) - 1)`.
    selu => "selu";
    /// 1, 0 or -1.
    sign => "sign";
    /// The largest integer that is not above x.
    floor => "floor";
    /// The smallest integer that is not below x.
    ceil => "ceil";
    /// The nearest integer, halves away from zero.
    round => "round";
    /// The cosine of x in radians.
    cos => "cos";
    /// The sine of x in radians.
    sin => "sin";
    /// The error function.
    erf => "erf";
    /// Softmax along the last axis.
    softmax => "softmax";
    /// Logarithm of the softmax along the last axis.
    log_softmax => "log_softmax";
}

/// Defines methods for ops on two variables, or on a variable and a number.
macro_rules! binary {
    ($($(#[$meta:meta])* $name:ident => $op:literal;)*) => {
        impl<'n> Var<'n> {
            $(
                $(#[$meta])*
                ///
                /// ```
                /// # use fleet_nn::prelude::*;
                /// # let net = Net::new();
                /// # let x = net.data("x", [-1, 4], DType::F32);
                /// # let other = net.data("other", [4], DType::F32);
                #[doc = concat!("let y = x.", stringify!($name), "(other);")]
                #[doc = concat!("let z = x.", stringify!($name), "(2.0);")]
                /// # assert_eq!((y.shape(), z.shape()), (x.shape(), x.shape()));
                /// ```
                #[track_caller]
                pub fn $name(self, other: impl Into<Operand<'n>>) -> Var<'n> {
                    self.binary($op, other.into(), Location::caller())
                }
            )*
        }
    };
}

binary! {
    /// The larger of the two.
    maximum => "elementwise_max";
    /// The smaller of the two.
    minimum => "elementwise_min";
    /// `x` raised to the power of the other operand.
    pow => "elementwise_pow";
    /// The remainder, with the sign of the divisor.
    modulo => "elementwise_mod";
    /// The quotient, rounded down.
    floor_divide => "elementwise_floordiv";
    /// Whether the two are equal.
    equal => "equal";
    /// Whether the two differ.
    not_equal => "not_equal";
    /// Whether x is below the other operand.
    less_than => "less_than";
    /// Whether x is below the other operand or equal.
    less_equal => "less_equal";
    /// Whether x is above the other operand.
    greater_than => "greater_than";
    /// Whether x is above the other operand or equal.
    greater_equal => "greater_equal";
}

/// Defines methods for reductions over axes.
macro_rules! reductions {
    ($($(#[$meta:meta])* $name:ident;)*) => {
        impl<'n> Var<'n> {
            $(
                $(#[$meta])*
                ///
                /// ```
                /// # use fleet_nn::prelude::*;
                /// # let net = Net::new();
                /// let x = net.data("x", [-1, 4, 3], DType::F32);
                #[doc = concat!("let y = x.", stringify!($name), "([1], false);")]
                #[doc = concat!("let kept = x.", stringify!($name), "([-1], true);")]
                /// assert_eq!(y.shape(), Shape::from([-1, 3]));
                /// assert_eq!(kept.shape(), Shape::from([-1, 4, 1]));
                /// ```
                #[track_caller]
                pub fn $name(self, axes: impl AsRef<[i64]>, keep_dim: bool) -> Var<'n> {
                    let call = self.net.op(stringify!($name)).input("X", self);
                    call.attr("dim", axes.as_ref()).attr("keep_dim", keep_dim).one("Out")
                }
            )*
        }
    };
}

reductions! {
    /// Returns sums over axes.
    reduce_sum;
    /// Returns means over axes.
    reduce_mean;
    /// Returns the largest elements over axes.
    reduce_max;
    /// Returns the smallest elements over axes.
    reduce_min;
    /// Returns products over axes.
    reduce_prod;
}

/// Options of a binary operation: the axis where the right operand's dimensions align, an
/// activation of the result, and a name.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 8, 4, 4], DType::F32);
/// let y = net.data("y", [8], DType::F32);
/// let sum = x.elementwise_add(y, Elementwise::new().axis(1).act(Act::Relu).name("join"));
/// assert_eq!(sum.name(), "join.tmp_1");
/// ```
#[derive(Clone, Debug, Default)]
pub struct Elementwise {
    /// Axis of the left operand at which the right operand's dimensions begin. By default the last
    /// dimensions align.
    pub axis: Option<i64>,
    /// Activation of the result; none by default.
    pub act: Option<Act>,
    /// Name of the result's layer: `join` names it `join.tmp_0`.
    pub name: Option<String>,
}

impl Elementwise {
    /// Returns the defaults: last dimensions align, no activation.
    pub fn new() -> Elementwise {
        Elementwise::default()
    }

    setters! {
        axis: Some(i64),
        act: Some(Act),
        name: Some(impl Into<String>),
    }
}

impl<'n> Var<'n> {
    /// Returns `x + y`, with options.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.elementwise_add(x, Elementwise::new().act(Act::Relu));
    /// assert_eq!(y.name(), "elementwise_add_0.tmp_1");
    /// ```
    #[track_caller]
    pub fn elementwise_add(self, other: Var<'n>, with: Elementwise) -> Var<'n> {
        self.elementwise("elementwise_add", other, with, Location::caller())
    }

    /// Returns `x - y`, with options.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// # let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.elementwise_sub(x, Elementwise::new().name("difference"));
    /// assert_eq!(y.name(), "difference.tmp_0");
    /// ```
    #[track_caller]
    pub fn elementwise_sub(self, other: Var<'n>, with: Elementwise) -> Var<'n> {
        self.elementwise("elementwise_sub", other, with, Location::caller())
    }

    /// Returns `x * y`, with options.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// # let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.elementwise_mul(x, Elementwise::new().act(Act::Tanh));
    /// assert_eq!(y.shape(), x.shape());
    /// ```
    #[track_caller]
    pub fn elementwise_mul(self, other: Var<'n>, with: Elementwise) -> Var<'n> {
        self.elementwise("elementwise_mul", other, with, Location::caller())
    }

    /// Returns `x / y`, with options.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// # let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.elementwise_div(x, Elementwise::new());
    /// assert_eq!(y.shape(), x.shape());
    /// ```
    #[track_caller]
    pub fn elementwise_div(self, other: Var<'n>, with: Elementwise) -> Var<'n> {
        self.elementwise("elementwise_div", other, with, Location::caller())
    }

    fn elementwise(
        self,
        op: &'static str,
        other: Var<'n>,
        with: Elementwise,
        at: &Location<'_>,
    ) -> Var<'n> {
        self.net.try_emit_var(at, |b| {
            let (x, y) = (b.id(self)?, b.id(other)?);
            let layer = b.layer_name(op, with.name.as_deref());
            let call = b.op(op)?.input("X", x).input("Y", y).named(format!("{layer}.tmp"));
            let sum = call.attr("axis", with.axis.unwrap_or(-1)).one("Out")?;
            b.act(sum, with.act.as_ref(), &layer)
        })
    }

    fn binary(self, op: &'static str, other: Operand<'n>, at: &Location<'_>) -> Var<'n> {
        self.net.try_emit_var(at, |b| {
            let x = b.id(self)?;
            let y = match other {
                Operand::Var(other) => b.id(other)?,
                Operand::Number(value) => number(b, value, x)?,
            };
            let layer = b.layer_name(op, None);
            b.op(op)?.input("X", x).input("Y", y).named(format!("{layer}.tmp")).one("Out")
        })
    }

    /// Applies an activation.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// # let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.act(Act::LeakyRelu(0.1));
    /// assert_eq!(y.shape(), x.shape());
    /// ```
    #[track_caller]
    pub fn act(self, act: Act) -> Var<'n> {
        self.layer(|b, x| act.emit(&mut b.main, x, None))
    }

    /// Returns the softmax along an axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("x", [-1, 4, 3], DType::F32).softmax_axis(1);
    /// assert_eq!(p.shape(), Shape::from([-1, 4, 3]));
    /// ```
    #[track_caller]
    pub fn softmax_axis(self, axis: i64) -> Var<'n> {
        self.net.op("softmax").input("X", self).attr("axis", axis).one("Out")
    }

    /// Returns `scale * x + bias`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 4], DType::F32).scale(2.0, 1.0);
    /// assert_eq!(y.shape(), Shape::from([-1, 4]));
    /// ```
    #[track_caller]
    pub fn scale(self, scale: f64, bias: f64) -> Var<'n> {
        self.net.op("scale").input("X", self).attr("scale", scale).attr("bias", bias).one("Out")
    }

    /// Limits each element to the range `min` to `max`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 4], DType::F32).clip(0.0, 1.0);
    /// assert_eq!(y.shape(), Shape::from([-1, 4]));
    /// ```
    #[track_caller]
    pub fn clip(self, min: f64, max: f64) -> Var<'n> {
        self.net.op("clip").input("X", self).attr("min", min).attr("max", max).one("Out")
    }

    /// Returns the mean of all elements, with shape `[1]`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 4], DType::F32).mean();
    /// assert_eq!(y.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn mean(self) -> Var<'n> {
        self.net.op("mean").input("X", self).one("Out")
    }

    /// Returns the sum of all elements, with shape `[1]`.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 4], DType::F32).sum();
    /// assert_eq!(y.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn sum(self) -> Var<'n> {
        self.net.op("reduce_sum").input("X", self).attr("reduce_all", true).one("Out")
    }

    /// Returns the matrix product over the last two dimensions. Leading dimensions are broadcast.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.matmul(net.data("y", [4, 5], DType::F32));
    /// assert_eq!(y.shape(), Shape::from([-1, 5]));
    /// ```
    #[track_caller]
    pub fn matmul(self, other: Var<'n>) -> Var<'n> {
        self.matmul_transposed(other, false, false)
    }

    /// Like [`Var::matmul`], with either operand transposed.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.matmul_transposed(net.data("y", [5, 4], DType::F32), false, true);
    /// assert_eq!(y.shape(), Shape::from([-1, 5]));
    /// ```
    #[track_caller]
    pub fn matmul_transposed(self, other: Var<'n>, trans_x: bool, trans_y: bool) -> Var<'n> {
        let call = self.net.op("matmul_v2").input("X", self).input("Y", other);
        call.attr("trans_x", trans_x).attr("trans_y", trans_y).one("Out")
    }

    /// Returns the cumulative sum along an axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 4], DType::F32).cumsum(-1);
    /// assert_eq!(y.shape(), Shape::from([-1, 4]));
    /// ```
    #[track_caller]
    pub fn cumsum(self, axis: i64) -> Var<'n> {
        self.net.op("cumsum").input("X", self).attr("axis", axis).one("Out")
    }

    /// Returns the index of the largest element along an axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 4], DType::F32).argmax(-1);
    /// assert_eq!((y.dtype(), y.shape()), (DType::I64, Shape::from([-1])));
    /// ```
    #[track_caller]
    pub fn argmax(self, axis: i64) -> Var<'n> {
        self.net.op("arg_max").input("X", self).attr("axis", axis).one("Out")
    }

    /// Returns the index of the smallest element along an axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 4], DType::F32).argmin(-1);
    /// assert_eq!((y.dtype(), y.shape()), (DType::I64, Shape::from([-1])));
    /// ```
    #[track_caller]
    pub fn argmin(self, axis: i64) -> Var<'n> {
        self.net.op("arg_min").input("X", self).attr("axis", axis).one("Out")
    }

    /// Returns the `k` largest elements along the last axis, and their indices.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let (values, indices) = net.data("x", [-1, 10], DType::F32).top_k(5);
    /// assert_eq!((values.shape(), indices.dtype()), (Shape::from([-1, 5]), DType::I64));
    /// ```
    #[track_caller]
    pub fn top_k(self, k: i64) -> (Var<'n>, Var<'n>) {
        let made = self.net.op("top_k_v2").input("X", self).attr("k", k).done();
        (made.one("Out"), made.one("Indices"))
    }

    /// Selects elements of `self` where the condition holds, and elements of `otherwise` elsewhere.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let y = x.where_true(x.greater_than(0.0), x * 0.1);
    /// assert_eq!(y.shape(), Shape::from([-1, 4]));
    /// ```
    #[track_caller]
    pub fn where_true(self, condition: Var<'n>, otherwise: Var<'n>) -> Var<'n> {
        let call = self.net.op("where").input("Condition", condition);
        call.input("X", self).input("Y", otherwise).one("Out")
    }

    /// Returns the logical and of two boolean variables.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let inside = x.greater_than(0.0).logical_and(x.less_than(1.0));
    /// assert_eq!(inside.dtype(), DType::Bool);
    /// ```
    #[track_caller]
    pub fn logical_and(self, other: Var<'n>) -> Var<'n> {
        self.net.op("logical_and").input("X", self).input("Y", other).one("Out")
    }

    /// Returns the logical or of two boolean variables.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let outside = x.less_than(0.0).logical_or(x.greater_than(1.0));
    /// assert_eq!(outside.dtype(), DType::Bool);
    /// ```
    #[track_caller]
    pub fn logical_or(self, other: Var<'n>) -> Var<'n> {
        self.net.op("logical_or").input("X", self).input("Y", other).one("Out")
    }

    /// Returns the negation of a boolean variable.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// assert_eq!(x.less_than(0.0).logical_not().dtype(), DType::Bool);
    /// ```
    #[track_caller]
    pub fn logical_not(self) -> Var<'n> {
        self.net.op("logical_not").input("X", self).one("Out")
    }

    /// Converts the elements to another type.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 1], DType::I64).cast(DType::F32);
    /// assert_eq!(y.dtype(), DType::F32);
    /// ```
    #[track_caller]
    pub fn cast(self, dtype: DType) -> Var<'n> {
        if self.dtype() == dtype {
            return self;
        }
        self.net.op("cast").input("X", self).attr("out_dtype", dtype).one("Out")
    }
}
