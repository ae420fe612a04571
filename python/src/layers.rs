//! Every layer that Python can call, by name. A row has the layer's signature, in Python's own
//! syntax, and the call of the Rust layer. The Python side makes its functions from the signatures,
//! with the spellings of the documents (`fleet/_layers.py`).

use crate::args::Args;
use crate::program::{Place, ProgramCell, index, with_net};
use fleet::nn::layers::*;
use fleet::nn::{
    Auc, AucVars, CrossEntropy, Curve, Elementwise, OpCall, Operand, Reduction, Var, models,
};
use fleet::{DType, ir};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyTuple};
use std::collections::HashMap;

/// A layer of the table.
pub struct Layer {
    /// `name(parameters)`, with defaults.
    pub signature: &'static str,
    call: for<'n, 'py> fn(&Args<'n, 'py>) -> PyResult<Made>,
}

impl Layer {
    fn name(&self) -> &'static str {
        self.signature.split('(').next().unwrap_or_default()
    }
}

/// Results of a layer.
pub enum Made {
    One(ir::VarId),
    Tuple(Vec<Made>),
    List(Vec<Made>),
}

impl From<Var<'_>> for Made {
    fn from(var: Var<'_>) -> Made {
        Made::One(var.id())
    }
}

impl From<Vec<Var<'_>>> for Made {
    fn from(vars: Vec<Var<'_>>) -> Made {
        Made::List(vars.into_iter().map(Made::from).collect())
    }
}

impl From<(Var<'_>, Var<'_>)> for Made {
    fn from((one, other): (Var<'_>, Var<'_>)) -> Made {
        Made::Tuple(vec![one.into(), other.into()])
    }
}

impl From<AucVars<'_>> for Made {
    fn from(made: AucVars<'_>) -> Made {
        let stats = [made.batch_stat_pos, made.batch_stat_neg, made.stat_pos, made.stat_neg];
        let stats = Made::List(stats.into_iter().map(Made::from).collect());
        Made::Tuple(vec![made.auc.into(), made.batch_auc.into(), stats])
    }
}

impl Made {
    fn object<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let all = |made: &[Made]| -> PyResult<Vec<Bound<'py, PyAny>>> {
            made.iter().map(|made| made.object(py)).collect()
        };
        Ok(match self {
            Made::One(id) => index(*id).into_pyobject(py)?.into_any(),
            Made::Tuple(made) => PyTuple::new(py, all(made)?)?.into_any(),
            Made::List(made) => PyList::new(py, all(made)?)?.into_any(),
        })
    }
}

/// Returns the signatures of all layers.
#[pyfunction]
pub fn signatures() -> Vec<&'static str> {
    LAYERS.iter().map(|layer| layer.signature).collect()
}

/// The page of the documentation that lists layers with a sentence about each.
const PAGE: &str = include_str!("../../docs/layers.md");

/// Returns the descriptions of the layers on that page, by their Rust names.
#[pyfunction]
pub fn layer_docs() -> HashMap<&'static str, &'static str> {
    let row = |line: &'static str| {
        let (name, text) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((name, text.strip_suffix(" |")?))
    };
    PAGE.lines().filter_map(row).collect()
}

/// Calls a layer. `args` has every argument of its signature, by name. Returns the ids of the
/// results.
#[pyfunction]
pub fn call<'py>(
    main: &Bound<'py, ProgramCell>,
    startup: &Bound<'py, ProgramCell>,
    place: Place,
    name: &str,
    args: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyAny>> {
    let layer = LAYERS.iter().find(|layer| layer.name() == name);
    let layer = layer.ok_or_else(|| PyValueError::new_err(format!("unknown layer '{name}'")))?;
    let made = with_net(main.get(), startup.get(), &place, |net| {
        (layer.call)(&Args { net, layer: name, main, given: args })
    })?;
    made.object(main.py())
}

/// Builds [`LAYERS`]: `"signature" => |args| result;`.
macro_rules! layers {
    ($($signature:literal => |$args:ident| $call:expr;)*) => {
        const LAYERS: &[Layer] = &[$(
            Layer { signature: $signature, call: |$args| Ok(Made::from($call)) },
        )*];
    };
}

layers! {
    // Inputs and parameters
    "data(name, shape, dtype='float32', lod_level=0)" => |a| {
        let lod_level = u8::try_from(a.int("lod_level")?).unwrap_or(u8::MAX);
        a.net.data_lod(&a.text("name")?, a.dims("shape")?, a.dtype("dtype")?, lod_level)
    };
    "create_parameter(shape, dtype, name=None, attr=None, is_bias=False, \
     default_initializer=None)" => |a| create_parameter(a)?;
    "create_global_var(shape, value, dtype, persistable=False, name=None)" => |a| {
        let name = match a.maybe_text("name")? {
            Some(name) => name,
            None => unique(a, "_generated_var")?,
        };
        let dtype = a.dtype("dtype")?;
        a.net.create_global_var(&name, a.dims("shape")?, a.element("value", dtype)?, dtype)
    };
    "full(shape, fill_value, dtype='float32', name=None)" => |a| {
        let call = a.op("fill_constant")?.attr("shape", a.shape("shape")?);
        let dtype = a.dtype("dtype")?;
        call.attr("dtype", dtype).attr("value", a.element("fill_value", dtype)?).one("Out")
    };
    "full_like(x, fill_value, name=None)" => |a| {
        let x = a.var("x")?;
        let call = a.op("fill_any_like")?.input("X", x);
        call.attr("value", a.element("fill_value", x.dtype())?).one("Out")
    };
    "full_batch(x, shape, dtype, value, name=None)" => |a| a.named(|| {
        let dtype = a.dtype("dtype")?;
        Ok(a.var("x")?.full_batch(a.shape("shape")?, a.element("value", dtype)?, dtype))
    })?;
    "arange(start, end, step=1, dtype='int64', name=None)" => |a| a.named(|| {
        let dtype = a.dtype("dtype")?;
        let number = |name| a.element(name, dtype);
        Ok(a.net.range(number("start")?, number("end")?, number("step")?, dtype))
    })?;

    // Layers
    "fc(x, size, num_flatten_dims=1, weight_attr=None, bias_attr=None, activation=None, \
     name=None, split=None)" => |a| a.net.fc_of(&a.var_or_list("x")?, Fc {
        num_flatten_dims: a.int("num_flatten_dims")?,
        act: a.act("activation")?,
        weight: a.param("weight_attr")?,
        bias: a.optional_param("bias_attr")?,
        name: a.maybe_text("name")?,
        split: a.split("split")?,
        ..Fc::new(a.int("size")?)
    });
    "embedding(x, size, is_sparse=False, is_distributed=False, padding_idx=None, \
     weight_attr=None, dtype='float32', name=None)" => |a| {
        let [rows, width] = table_size(a)?;
        a.var("x")?.embedding(Embedding {
            is_sparse: a.bool("is_sparse")?,
            is_distributed: a.bool("is_distributed")?,
            padding_idx: a.maybe_int("padding_idx")?,
            dtype: a.dtype("dtype")?,
            weight: a.param("weight_attr")?,
            name: a.maybe_text("name")?,
            ..Embedding::new(rows, width)
        })
    };
    "sparse_embedding(x, size, padding_idx=None, is_test=False, entry=None, \
     table_class='MemorySparseTable', weight_attr=None, dtype='float32', slot=None, name=None)"
        => |a| sparse_embedding(a)?;
    "batch_norm(x, activation=None, is_test=False, momentum=0.9, epsilon=1e-05, \
     weight_attr=None, bias_attr=None, data_layout='NCHW', name=None, moving_mean_name=None, \
     moving_variance_name=None, use_global_stats=False)" => |a| {
        a.only("is_test", "False", "evaluate program.clone(for_test=True)")?;
        a.var("x")?.batch_norm(BatchNorm {
            act: a.act("activation")?,
            momentum: a.float("momentum")?,
            epsilon: a.float("epsilon")?,
            scale: a.param("weight_attr")?,
            shift: a.param("bias_attr")?,
            moving_mean_name: a.maybe_text("moving_mean_name")?,
            moving_variance_name: a.maybe_text("moving_variance_name")?,
            use_global_stats: a.bool("use_global_stats")?,
            data_format: a.data_format("data_layout")?,
            name: a.maybe_text("name")?,
        })
    };
    "layer_norm(x, scale=True, shift=True, begin_norm_axis=1, epsilon=1e-05, weight_attr=None, \
     bias_attr=None, activation=None, name=None)" => |a| {
        let wanted = |on: &str, attr: &str| match a.bool(on)? {
            true => a.optional_param(attr),
            false => Ok(None),
        };
        a.var("x")?.layer_norm(LayerNorm {
            begin_norm_axis: a.int("begin_norm_axis")?,
            epsilon: a.float("epsilon")?,
            scale: wanted("scale", "weight_attr")?,
            shift: wanted("shift", "bias_attr")?,
            act: a.act("activation")?,
            name: a.maybe_text("name")?,
        })
    };
    "conv2d(x, num_filters, filter_size, stride=1, padding=0, dilation=1, groups=None, \
     weight_attr=None, bias_attr=None, activation=None, name=None, data_format='NCHW')" => |a| {
        a.var("x")?.conv2d(Conv2d {
            stride: a.pair("stride")?,
            padding: a.padding("padding")?,
            dilation: a.pair("dilation")?,
            groups: a.maybe_int("groups")?.unwrap_or(1),
            act: a.act("activation")?,
            weight: a.param("weight_attr")?,
            bias: a.optional_param("bias_attr")?,
            data_format: a.data_format("data_format")?,
            name: a.maybe_text("name")?,
            ..Conv2d::new(a.int("num_filters")?, a.pair("filter_size")?)
        })
    };
    "pool2d(x, pool_size=-1, pool_type='max', pool_stride=1, pool_padding=0, \
     global_pooling=False, ceil_mode=False, name=None, exclusive=True, data_format='NCHW', \
     adaptive=False)" => |a| pool2d(a)?;
    "dropout(x, p=0.5, training=True, mode='upscale_in_train', seed=None, name=None)"
        => |a| a.named(|| {
        let (x, prob) = (a.var("x")?, a.float("p")?);
        let downgrade_in_infer = downgrades(a)?;
        Ok(match (a.bool("training")?, downgrade_in_infer) {
            (true, _) => {
                let seed = a.maybe_int("seed")?.unwrap_or(0);
                x.dropout(Dropout { prob, downgrade_in_infer, seed })
            }
            (false, true) => x.scale(1.0 - prob, 0.0),
            (false, false) => x,
        })
    })?;
    "multi_head_attention(x, heads, key_value=None, causal=False, mask=None, dropout=0.0, \
     initializer=None, name=None, split_heads=False)"
        => |a| a.var("x")?.multi_head_attention(MultiHeadAttention {
        key_value: a.maybe_var("key_value")?,
        causal: a.bool("causal")?,
        mask: a.maybe_var("mask")?,
        dropout: a.float("dropout")?,
        init: a.init("initializer")?,
        name: a.maybe_text("name")?,
        split_heads: a.bool("split_heads")?,
        ..MultiHeadAttention::new(a.int("heads")?)
    });
    "transformer_layer(x, heads, ffn, pre_norm=False, activation='gelu', causal=False, \
     mask=None, dropout=0.0, attention_dropout=0.0, epsilon=1e-05, initializer=None, name=None, \
     split=False)" => |a| transformer_layer(a)?;

    // Losses and metrics
    "class_loss(x, label, classes, normalize=False, margin=0.0, scale=1.0, sample=None, \
     weight_attr=None, reduction='mean', name=None)" => |a| {
        let with = ClassLoss {
            normalize: a.bool("normalize")?,
            margin: a.float("margin")?,
            scale: a.float("scale")?,
            sample: a.class_sample("sample")?,
            weight: a.param("weight_attr")?,
            reduction: a.reduction("reduction")?,
            name: a.maybe_text("name")?,
            ..ClassLoss::softmax(a.int("classes")?)
        };
        a.named(|| Ok(a.var("x")?.class_loss(a.var("label")?, with)))?
    };
    "cross_entropy(x, label, weight=None, ignore_index=-100, reduction='mean', \
     soft_label=False, axis=-1, use_softmax=True, name=None)" => |a| {
        a.named(|| cross_entropy(a))?
    };
    "softmax_with_cross_entropy(x, label, soft_label=False, ignore_index=-100, axis=-1, \
     return_softmax=False)" => |a| {
        let (loss, softmax) =
            a.var("x")?.softmax_with_cross_entropy(a.var("label")?, softmax_options(a)?);
        if a.bool("return_softmax")? { Made::from((loss, softmax)) } else { Made::from(loss) }
    };
    "cross_entropy_of_probabilities(x, label, soft_label=False, ignore_index=-100)" => |a| {
        let ignore_index = Some(a.int("ignore_index")?).filter(|index| *index != -100);
        let with = CrossEntropy { ignore_index, reduction: Reduction::None, ..CrossEntropy::new() };
        let with = CrossEntropy { soft_label: a.bool("soft_label")?, ..with };
        a.var("x")?.cross_entropy_of_probabilities_with(a.var("label")?, with)
    };
    "sigmoid_cross_entropy_with_logits(x, label, name=None)" => |a| {
        let call = a.op("sigmoid_cross_entropy_with_logits")?;
        call.input("X", a.var("x")?).input("Label", a.var("label")?).one("Out")
    };
    "log_loss(x, label, epsilon=0.0001, name=None)" => |a| {
        let call = a.op("log_loss")?.input("Predicted", a.var("x")?);
        call.input("Labels", a.var("label")?).attr("epsilon", a.float("epsilon")?).one("Loss")
    };
    "square_error_cost(x, label)" => |a| a.var("x")?.square_error_cost(a.var("label")?);
    "mse_loss(x, label, reduction='mean', name=None)" => |a| a.named(|| {
        Ok(a.var("x")?.mse_loss(a.var("label")?, a.reduction("reduction")?))
    })?;
    "l1_loss(x, label, reduction='mean', name=None)" => |a| a.named(|| {
        Ok(a.var("x")?.l1_loss(a.var("label")?, a.reduction("reduction")?))
    })?;
    "huber_loss(x, label, delta, reduction='none')" => |a| {
        a.var("x")?.huber_loss(a.var("label")?, a.float("delta")?, a.reduction("reduction")?)
    };
    "kl_div(x, label, reduction='mean', name=None)" => |a| a.named(|| {
        Ok(a.var("x")?.kldiv_loss(a.var("label")?, a.reduction("reduction")?))
    })?;
    "nll_loss(x, label, reduction='mean', name=None)" => |a| a.named(|| {
        Ok(a.var("x")?.nll_loss(a.var("label")?, a.reduction("reduction")?))
    })?;
    "label_smooth(x, epsilon=0.1, name=None)" => |a| {
        a.named(|| Ok(a.var("x")?.label_smooth(a.float("epsilon")?)))?
    };
    "accuracy(x, label, k=1)" => |a| a.var("x")?.accuracy(a.var("label")?, a.int("k")?);
    "auc(x, label, curve='ROC', num_thresholds=4095, topk=1, slide_steps=1)" => |a| {
        a.only("topk", "1", "the area is that of the positive class")?;
        let curve = match a.text("curve")?.as_str() {
            "ROC" => Curve::Roc,
            "PR" => Curve::Pr,
            other => return Err(PyValueError::new_err(format!(
                "auc(): curve: expected 'ROC' or 'PR', got '{other}'"
            ))),
        };
        let thresholds = a.int("num_thresholds")?;
        let with = Auc { curve, num_thresholds: thresholds, slide_steps: a.int("slide_steps")? };
        a.var("x")?.auc(a.var("label")?, with)
    };

    // Models of the zoo, which add their inputs: those that `fleetx` has
    "resnet(layers=50, classes=1000, size=224)" => |a| {
        let layers = u32::try_from(a.int("layers")?).unwrap_or(0);
        if ![18, 34, 50, 101, 152].contains(&layers) {
            return Err(PyValueError::new_err(format!(
                "resnet(): layers: expected 18, 34, 50, 101 or 152, got {layers}"
            )));
        }
        let (classes, size) = (a.int("classes")?, a.int("size")?);
        let made = models::resnet(a.net, &models::ResNetConfig { layers, classes, size });
        let vars = [made.image, made.label, made.logits, made.loss, made.acc1, made.acc5];
        Made::from(vars.to_vec())
    };
    "word2vec(vocabulary, width=128, negatives=5)" => |a| {
        let (vocabulary, width) = (a.int("vocabulary")?, a.int("width")?);
        let config = models::Word2VecConfig { vocabulary, width, negatives: a.int("negatives")? };
        let made = models::word2vec(a.net, &config);
        vec![made.center, made.context, made.negatives, made.logits, made.loss]
    };

    // Functions of elements
    "relu(x, name=None)" => |a| unary(a, "relu")?;
    "relu6(x, name=None)" => |a| unary(a, "relu6")?;
    "sigmoid(x, name=None)" => |a| unary(a, "sigmoid")?;
    "log_sigmoid(x, name=None)" => |a| unary(a, "logsigmoid")?;
    "tanh(x, name=None)" => |a| unary(a, "tanh")?;
    "gelu(x, approximate=False, name=None)" => |a| {
        let call = on_x(a, "gelu")?;
        match a.bool("approximate")? {
            true => call.attr("approximate", true).one("Out"),
            false => call.one("Out"),
        }
    };
    "leaky_relu(x, negative_slope=0.01, name=None)" => |a| {
        on_x(a, "leaky_relu")?.attr("alpha", a.float("negative_slope")?).one("Out")
    };
    "elu(x, alpha=1.0, name=None)" => |a| {
        on_x(a, "elu")?.attr("alpha", a.float("alpha")?).one("Out")
    };
    "selu(x, name=None)" => |a| unary(a, "selu")?;
    "softplus(x, name=None)" => |a| unary(a, "softplus")?;
    "softsign(x, name=None)" => |a| unary(a, "softsign")?;
    "silu(x, name=None)" => |a| unary(a, "silu")?;
    "swish(x, name=None)" => |a| unary(a, "swish")?;
    "hardswish(x, name=None)" => |a| unary(a, "hard_swish")?;
    "hardsigmoid(x, name=None)" => |a| unary(a, "hard_sigmoid")?;
    "softmax(x, axis=-1, name=None)" => |a| along(a, "softmax")?;
    "log_softmax(x, axis=-1, name=None)" => |a| along(a, "log_softmax")?;
    "exp(x, name=None)" => |a| unary(a, "exp")?;
    "log(x, name=None)" => |a| unary(a, "log")?;
    "sqrt(x, name=None)" => |a| unary(a, "sqrt")?;
    "rsqrt(x, name=None)" => |a| unary(a, "rsqrt")?;
    "square(x, name=None)" => |a| unary(a, "square")?;
    "abs(x, name=None)" => |a| unary(a, "abs")?;
    "reciprocal(x, name=None)" => |a| unary(a, "reciprocal")?;
    "sign(x, name=None)" => |a| unary(a, "sign")?;
    "floor(x, name=None)" => |a| unary(a, "floor")?;
    "ceil(x, name=None)" => |a| unary(a, "ceil")?;
    "round(x, name=None)" => |a| unary(a, "round")?;
    "cos(x, name=None)" => |a| unary(a, "cos")?;
    "sin(x, name=None)" => |a| unary(a, "sin")?;
    "erf(x, name=None)" => |a| unary(a, "erf")?;
    "clip(x, min, max, name=None)" => |a| {
        let call = on_x(a, "clip")?.attr("min", a.float("min")?);
        call.attr("max", a.float("max")?).one("Out")
    };
    "scale(x, scale=1.0, bias=0.0, bias_after_scale=True, activation=None, name=None)" => |a| {
        let call = on_x(a, "scale")?.attr("scale", a.float("scale")?);
        let call = call.attr("bias", a.float("bias")?);
        let scaled = match a.bool("bias_after_scale")? {
            true => call.one("Out"),
            false => call.attr("bias_after_scale", false).one("Out"),
        };
        match a.act("activation")? {
            Some(act) => scaled.act(act),
            None => scaled,
        }
    };
    "cast(x, dtype)" => |a| a.var("x")?.cast(a.dtype("dtype")?);

    // Arithmetic of two variables
    "operator_add(x, y)" => |a| operator(a, |x, y| x + y, |x, y| x + y, |x, y| x + y)?;
    "operator_sub(x, y)" => |a| operator(a, |x, y| x - y, |x, y| x - y, |x, y| x - y)?;
    "operator_mul(x, y)" => |a| operator(a, |x, y| x * y, |x, y| x * y, |x, y| x * y)?;
    "operator_div(x, y)" => |a| operator(a, |x, y| x / y, |x, y| x / y, |x, y| x / y)?;
    "elementwise_add(x, y, axis=-1, activation=None, name=None)" => |a| {
        a.var("x")?.elementwise_add(a.var("y")?, elementwise(a)?)
    };
    "elementwise_sub(x, y, axis=-1, activation=None, name=None)" => |a| {
        a.var("x")?.elementwise_sub(a.var("y")?, elementwise(a)?)
    };
    "elementwise_mul(x, y, axis=-1, activation=None, name=None)" => |a| {
        a.var("x")?.elementwise_mul(a.var("y")?, elementwise(a)?)
    };
    "elementwise_div(x, y, axis=-1, activation=None, name=None)" => |a| {
        a.var("x")?.elementwise_div(a.var("y")?, elementwise(a)?)
    };
    "maximum(x, y, name=None)" => |a| with_number(a, "elementwise_max", Var::maximum)?;
    "minimum(x, y, name=None)" => |a| with_number(a, "elementwise_min", Var::minimum)?;
    "pow(x, y, name=None)" => |a| with_number(a, "elementwise_pow", Var::pow)?;
    "remainder(x, y, name=None)" => |a| with_number(a, "elementwise_mod", Var::modulo)?;
    "floor_divide(x, y, name=None)" => |a| {
        with_number(a, "elementwise_floordiv", Var::floor_divide)?
    };
    "equal(x, y, name=None)" => |a| with_number(a, "equal", Var::equal)?;
    "not_equal(x, y, name=None)" => |a| with_number(a, "not_equal", Var::not_equal)?;
    "less_than(x, y, name=None)" => |a| with_number(a, "less_than", Var::less_than)?;
    "less_equal(x, y, name=None)" => |a| with_number(a, "less_equal", Var::less_equal)?;
    "greater_than(x, y, name=None)" => |a| with_number(a, "greater_than", Var::greater_than)?;
    "greater_equal(x, y, name=None)" => |a| with_number(a, "greater_equal", Var::greater_equal)?;
    "logical_and(x, y, name=None)" => |a| {
        on_x(a, "logical_and")?.input("Y", a.var("y")?).one("Out")
    };
    "logical_or(x, y, name=None)" => |a| {
        on_x(a, "logical_or")?.input("Y", a.var("y")?).one("Out")
    };
    "logical_not(x, name=None)" => |a| unary(a, "logical_not")?;
    "where(condition, x, y, name=None)" => |a| {
        a.named(|| Ok(a.var("x")?.where_true(a.var("condition")?, a.var("y")?)))?
    };
    "matmul(x, y, transpose_x=False, transpose_y=False, alpha=1.0, name=None)" => |a| {
        let call = on_x(a, "matmul_v2")?.input("Y", a.var("y")?);
        let call = call.attr("trans_x", a.bool("transpose_x")?);
        let call = call.attr("trans_y", a.bool("transpose_y")?);
        match a.float("alpha")? {
            1.0 => call.one("Out"),
            alpha => call.attr("alpha", alpha).one("Out"),
        }
    };

    // Reductions
    "mean_of_all(x, name=None)" => |a| unary(a, "mean")?;
    "reduce_sum(x, axis=None, keepdim=False, name=None)" => |a| reduced(a, "reduce_sum")?;
    "reduce_mean(x, axis=None, keepdim=False, name=None)" => |a| reduced(a, "reduce_mean")?;
    "reduce_max(x, axis=None, keepdim=False, name=None)" => |a| reduced(a, "reduce_max")?;
    "reduce_min(x, axis=None, keepdim=False, name=None)" => |a| reduced(a, "reduce_min")?;
    "reduce_prod(x, axis=None, keepdim=False, name=None)" => |a| reduced(a, "reduce_prod")?;
    "cumsum(x, axis, name=None)" => |a| a.named(|| Ok(a.var("x")?.cumsum(a.int("axis")?)))?;
    "argmax(x, axis=None, keepdim=False, dtype='int64', name=None)" => |a| extreme(a, "arg_max")?;
    "argmin(x, axis=None, keepdim=False, dtype='int64', name=None)" => |a| extreme(a, "arg_min")?;
    "topk(x, k, axis=None, largest=True, name=None)" => |a| {
        let mut call = on_x(a, "top_k_v2")?.attr("k", a.int("k")?);
        if let Some(axis) = a.maybe_int("axis")? {
            call = call.attr("axis", axis);
        }
        if !a.bool("largest")? {
            call = call.attr("largest", false);
        }
        let made = call.done();
        (made.one("Out"), made.one("Indices"))
    };

    // Shapes and elements
    "concat(x, axis=0, name=None)" => |a| {
        a.op("concat")?.inputs("X", &a.vars("x")?).attr("axis", a.int("axis")?).one("Out")
    };
    "stack(x, axis=0, name=None)" => |a| {
        a.op("stack")?.inputs("X", &a.vars("x")?).attr("axis", a.int("axis")?).one("Y")
    };
    "add_n(x, name=None)" => |a| a.op("sum")?.inputs("X", &a.vars("x")?).one("Out");
    "reshape(x, shape, name=None)" => |a| {
        on_x(a, "reshape2")?.attr("shape", a.shape("shape")?).one("Out")
    };
    "flatten(x, start_axis=0, stop_axis=-1, name=None)" => |a| {
        let call = on_x(a, "flatten_contiguous_range")?;
        let call = call.attr("start_axis", a.int("start_axis")?);
        call.attr("stop_axis", a.int("stop_axis")?).one("Out")
    };
    "squeeze(x, axis=None, name=None)" => |a| {
        let axes = a.axes("axis")?;
        match axes.is_empty() {
            true => a.var("x")?.squeeze(axes),
            false => on_x(a, "squeeze2")?.attr("axes", axes).one("Out"),
        }
    };
    "unsqueeze(x, axis, name=None)" => |a| {
        on_x(a, "unsqueeze2")?.attr("axes", a.ints("axis")?).one("Out")
    };
    "transpose(x, perm, name=None)" => |a| {
        on_x(a, "transpose2")?.attr("axis", a.ints("perm")?).one("Out")
    };
    "split(x, num_or_sections, axis=0, name=None)" => |a| split(a)?;
    "unstack(x, axis=0, name=None)" => |a| unstack(a)?;
    "part(x, axes, starts, ends, strides, dropped, added)" => |a| part(a)?;
    "slice(x, axes, starts, ends)" => |a| {
        a.var("x")?.slice(a.ints("axes")?, a.ints("starts")?, a.ints("ends")?)
    };
    "strided_slice(x, axes, starts, ends, strides)" => |a| {
        let (axes, starts, ends) = (a.ints("axes")?, a.ints("starts")?, a.ints("ends")?);
        a.var("x")?.strided_slice(axes, starts, ends, a.ints("strides")?)
    };
    "gather(x, index, axis=None, name=None)" => |a| {
        let call = on_x(a, "gather")?.input("Index", a.var("index")?);
        match a.maybe_int("axis")? {
            Some(axis) => call.attr("axis", axis).one("Out"),
            None => call.one("Out"),
        }
    };
    "gather_nd(x, index, name=None)" => |a| {
        a.named(|| Ok(a.var("x")?.gather_nd(a.var("index")?)))?
    };
    "scatter(x, index, updates, overwrite=True, name=None)" => |a| a.named(|| {
        Ok(a.var("x")?.scatter(a.var("index")?, a.var("updates")?, a.bool("overwrite")?))
    })?;
    "expand(x, shape, name=None)" => |a| a.named(|| Ok(a.var("x")?.expand(a.shape("shape")?)))?;
    "tile(x, repeat_times, name=None)" => |a| {
        a.named(|| Ok(a.var("x")?.tile(a.ints("repeat_times")?)))?
    };
    "pad(x, paddings, pad_value=0.0, name=None)" => |a| a.named(|| {
        Ok(a.var("x")?.pad(a.ints("paddings")?, a.float("pad_value")?))
    })?;
    "one_hot(x, num_classes, name=None)" => |a| {
        a.named(|| Ok(a.var("x")?.one_hot(a.int("num_classes")?)))?
    };
    "assign(x, output=None)" => |a| match a.maybe_var("output")? {
        Some(output) => a.var("x")?.assign_to(output),
        None => a.var("x")?.assign(),
    };
    "shape(x)" => |a| a.var("x")?.shape_var();
}

/// Starts an op with the input `X`.
fn on_x<'n>(a: &Args<'n, '_>, op: &'static str) -> PyResult<OpCall<'n>> {
    Ok(a.op(op)?.input("X", a.var("x")?))
}

fn unary<'n>(a: &Args<'n, '_>, op: &'static str) -> PyResult<Var<'n>> {
    Ok(on_x(a, op)?.one("Out"))
}

/// An op along an axis, the last one if the program need not say so.
fn along<'n>(a: &Args<'n, '_>, op: &'static str) -> PyResult<Var<'n>> {
    let call = on_x(a, op)?;
    Ok(match a.int("axis")? {
        -1 => call.one("Out"),
        axis => call.attr("axis", axis).one("Out"),
    })
}

fn reduced<'n>(a: &Args<'n, '_>, op: &'static str) -> PyResult<Var<'n>> {
    let axes = a.axes("axis")?;
    let call = on_x(a, op)?;
    let call = match axes.is_empty() {
        true => call.attr("reduce_all", true),
        false => call.attr("dim", axes),
    };
    Ok(match a.bool("keepdim")? {
        true => call.attr("keep_dim", true).one("Out"),
        false => call.one("Out"),
    })
}

/// An op of two variables, or of a variable and a number of its type.
fn with_number<'n>(
    a: &Args<'n, '_>,
    name: &'static str,
    op: fn(Var<'n>, Operand<'n>) -> Var<'n>,
) -> PyResult<Var<'n>> {
    let (x, y) = match a.operand("x")? {
        Operand::Var(x) => (x, a.same_type("y", x)?),
        Operand::Number(x) => {
            let y = a.var("y")?;
            a.same_type("x", y)?;
            (filled(a, x, y.dtype()), Operand::Var(y))
        }
    };
    if a.maybe_text("name")?.is_none() {
        return Ok(op(x, y));
    }
    let y = match y {
        Operand::Var(y) => y,
        Operand::Number(y) => filled(a, y, x.dtype()),
    };
    Ok(a.op(name)?.input("X", x).input("Y", y).one("Out"))
}

/// Returns a number as a variable of one element.
fn filled<'n>(a: &Args<'n, '_>, number: f64, dtype: DType) -> Var<'n> {
    let call = a.net.op("fill_constant").attr("shape", vec![1i64]).attr("dtype", dtype);
    call.attr("value", number).one("Out")
}

/// Part of a variable: slices along `axes`, without the axes `dropped`, and then with new axes of
/// size 1 at `added`.
fn part<'n>(a: &Args<'n, '_>) -> PyResult<Var<'n>> {
    let (x, strides, added) = (a.var("x")?, a.ints("strides")?, a.ints("added")?);
    let axes = a.ints("axes")?;
    let mut made = x;
    if !axes.is_empty() {
        let strided = strides.iter().any(|stride| *stride != 1);
        let call = a.net.op(if strided { "strided_slice" } else { "slice" }).input("Input", x);
        let call = call.attr("axes", axes).attr("starts", a.ints("starts")?);
        let mut call = call.attr("ends", a.ints("ends")?);
        if strided {
            call = call.attr("strides", strides);
        }
        let dropped = a.ints("dropped")?;
        if !dropped.is_empty() {
            call = call.attr("decrease_axis", dropped);
        }
        made = call.one("Out");
    }
    Ok(if added.is_empty() { made } else { made.unsqueeze(added) })
}

/// The operators of Python, between variables and numbers.
fn operator<'n>(
    a: &Args<'n, '_>,
    vars: fn(Var<'n>, Var<'n>) -> Var<'n>,
    right: fn(Var<'n>, f64) -> Var<'n>,
    left: fn(f64, Var<'n>) -> Var<'n>,
) -> PyResult<Var<'n>> {
    match (a.operand("x")?, a.operand("y")?) {
        (Operand::Var(x), Operand::Var(y)) => Ok(vars(x, y)),
        (Operand::Var(x), Operand::Number(y)) => match constant(a, "y", y, x)? {
            Some(y) => Ok(vars(x, y)),
            None => Ok(right(x, y)),
        },
        (Operand::Number(x), Operand::Var(y)) => match constant(a, "x", x, y)? {
            Some(x) => Ok(vars(x, y)),
            None => Ok(left(x, y)),
        },
        _ => Err(PyTypeError::new_err("an operator needs a Variable")),
    }
}

/// Returns a large integer as a variable of the type of the integers `with`: the op `scale`
/// computes them as 64-bit floats.
fn constant<'n>(
    a: &Args<'n, '_>,
    name: &str,
    number: f64,
    with: Var<'n>,
) -> PyResult<Option<Var<'n>>> {
    let dtype = with.dtype();
    if dtype.is_float() || number.fract() != 0.0 || number.abs() < 2f64.powi(31) {
        return Ok(None);
    }
    a.same_type(name, with)?;
    Ok(Some(filled(a, number, dtype)))
}

fn elementwise(a: &Args<'_, '_>) -> PyResult<Elementwise> {
    let axis = Some(a.int("axis")?).filter(|axis| *axis != -1);
    Ok(Elementwise { axis, act: a.act("activation")?, name: a.maybe_text("name")? })
}

fn softmax_options<'n>(a: &Args<'n, '_>) -> PyResult<CrossEntropy<'n>> {
    Ok(CrossEntropy {
        soft_label: a.bool("soft_label")?,
        ignore_index: Some(a.int("ignore_index")?).filter(|index| *index != -100),
        axis: Some(a.int("axis")?).filter(|axis| *axis != -1),
        ..CrossEntropy::new()
    })
}

fn cross_entropy<'n>(a: &Args<'n, '_>) -> PyResult<Var<'n>> {
    let (x, label) = (a.var("x")?, a.var("label")?);
    let (weight, reduction) = (a.maybe_var("weight")?, a.reduction("reduction")?);
    let with = CrossEntropy { weight, reduction, ..softmax_options(a)? };
    Ok(match a.bool("use_softmax")? {
        true => x.cross_entropy_with(label, with),
        false => x.cross_entropy_of_probabilities_with(label, with),
    })
}

/// The index of the largest or smallest element, along an axis or of all elements.
fn extreme<'n>(a: &Args<'n, '_>, op: &'static str) -> PyResult<Var<'n>> {
    a.only("dtype", "'int64'", "convert the result: fleet.cast(indices, dtype)")?;
    let mut call = on_x(a, op)?;
    call = match a.maybe_int("axis")? {
        Some(axis) => call.attr("axis", axis),
        None => call.attr("flatten", true),
    };
    if a.bool("keepdim")? {
        call = call.attr("keepdims", true);
    }
    Ok(call.one("Out"))
}

fn create_parameter<'n>(a: &Args<'n, '_>) -> PyResult<Var<'n>> {
    let mut attr = a.param("attr")?;
    if attr.name.is_none() {
        attr.name = a.maybe_text("name")?;
    }
    if attr.initializer.is_none() {
        attr.initializer = match a.init("default_initializer")? {
            None if a.bool("is_bias")? => Some(fleet::nn::Init::Constant(0.0)),
            given => given,
        };
    }
    Ok(a.net.create_parameter(a.dims("shape")?, a.dtype("dtype")?, attr))
}

fn unique(a: &Args<'_, '_>, key: &str) -> PyResult<String> {
    let name = a.net.rewrite_with(|programs, _| Ok(programs.main.unique_name(key)));
    name.map_err(|error| crate::error::exception(&error))
}

fn table_size(a: &Args<'_, '_>) -> PyResult<[i64; 2]> {
    let size = a.ints("size")?;
    size[..].try_into().map_err(|_| {
        PyValueError::new_err(format!("{}(): size: expected [rows, width], got {size:?}", a.layer))
    })
}

fn sparse_embedding<'n>(a: &Args<'n, '_>) -> PyResult<Var<'n>> {
    let [rows, width] = table_size(a)?;
    let mut with = SparseEmbedding::new(rows, width)
        .is_test(a.bool("is_test")?)
        .table_class(a.text("table_class")?)
        .weight(a.param("weight_attr")?)
        .dtype(a.dtype("dtype")?);
    if let Some(padding) = a.maybe_int("padding_idx")? {
        with = with.padding_idx(padding);
    }
    if let Some(slot) = a.maybe_int("slot")? {
        with = with.slot(u32::try_from(slot).unwrap_or(u32::MAX));
    }
    if let Some(name) = a.maybe_text("name")? {
        with = with.name(name);
    }
    if let Some(entry) = a.entry("entry")? {
        with = with.entry(entry);
    }
    Ok(a.var("x")?.sparse_embedding(with))
}

fn pool2d<'n>(a: &Args<'n, '_>) -> PyResult<Var<'n>> {
    let pool_type = match a.text("pool_type")?.as_str() {
        "max" => "max",
        "avg" => "avg",
        other => {
            return Err(PyValueError::new_err(format!(
                "pool2d(): pool_type: expected 'max' or 'avg', got '{other}'"
            )));
        }
    };
    let global = a.bool("global_pooling")?;
    let pool_size = match (global, a.pair("pool_size")?) {
        (true, Pair([-1, -1])) => Pair([1, 1]),
        (_, size) => size,
    };
    Ok(a.var("x")?.pool2d(Pool2d {
        pool_type,
        pool_size,
        stride: a.pair("pool_stride")?,
        padding: a.padding("pool_padding")?,
        global,
        adaptive: a.bool("adaptive")?,
        ceil_mode: a.bool("ceil_mode")?,
        exclusive: a.bool("exclusive")?,
        data_format: a.data_format("data_format")?,
        name: a.maybe_text("name")?,
    }))
}

fn downgrades(a: &Args<'_, '_>) -> PyResult<bool> {
    match a.text("mode")?.as_str() {
        "upscale_in_train" => Ok(false),
        "downgrade_in_infer" | "downscale_in_infer" => Ok(true),
        other => Err(PyValueError::new_err(format!(
            "dropout(): mode: expected 'upscale_in_train' or 'downscale_in_infer', got '{other}'"
        ))),
    }
}

fn transformer_layer<'n>(a: &Args<'n, '_>) -> PyResult<Var<'n>> {
    let mut with = TransformerLayer::new(a.int("heads")?, a.int("ffn")?);
    with.pre_norm = a.bool("pre_norm")?;
    if let Some(act) = a.act("activation")? {
        with.act = act;
    }
    with.causal = a.bool("causal")?;
    with.mask = a.maybe_var("mask")?;
    with.dropout = a.float("dropout")?;
    with.attention_dropout = a.float("attention_dropout")?;
    with.epsilon = a.float("epsilon")?;
    with.init = a.init("initializer")?;
    with.name = a.maybe_text("name")?;
    with.split = a.bool("split")?;
    Ok(a.var("x")?.transformer_layer(with))
}

fn split<'n>(a: &Args<'n, '_>) -> PyResult<Vec<Var<'n>>> {
    let (x, axis) = (a.var("x")?, a.int("axis")?);
    let call = a.op("split")?.input("X", x).attr("axis", axis);
    match a.int("num_or_sections") {
        Ok(count) => {
            let parts = usize::try_from(count).ok().filter(|parts| (1..=PARTS_MAX).contains(parts));
            let parts = parts.ok_or_else(|| {
                PyValueError::new_err(format!(
                    "split(): num_or_sections: expected 1 to {PARTS_MAX} parts, got {count}"
                ))
            })?;
            Ok(call.attr("num", count).many("Out", parts))
        }
        Err(_) => {
            let sections = a.ints("num_or_sections")?;
            let parts = sections.len();
            Ok(call.attr("sections", sections).many("Out", parts))
        }
    }
}

fn unstack<'n>(a: &Args<'n, '_>) -> PyResult<Vec<Var<'n>>> {
    let (x, axis) = (a.var("x")?, a.int("axis")?);
    let shape = x.shape();
    let size = shape.axis(axis).map(|axis| shape[axis]);
    let size = size.map_err(|error| crate::error::exception(&error))?;
    let parts = usize::try_from(size).ok().filter(|parts| (1..=PARTS_MAX).contains(parts));
    let parts = parts.ok_or_else(|| {
        PyValueError::new_err(format!(
            "unstack(): axis: expected an axis of size 1 to {PARTS_MAX}, got one of size {size}"
        ))
    })?;
    Ok(a.op("unstack")?.input("X", x).attr("axis", axis).attr("num", size).many("Y", parts))
}

/// Maximum number of parts of a variable: more variables than any known network has.
const PARTS_MAX: usize = 1 << 16;
