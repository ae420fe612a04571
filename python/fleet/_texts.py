"""Texts of `help()` for the layers: what they compute, and the meanings of their parameters."""

import textwrap

#: Longest line of a text.
_COLUMNS = 88

#: Layers whose description on the page of layers is about the spelling of Rust, or is missing.
LAYERS = {
    "arange": "Returns the numbers ``start``, ``start + step`` and so on below ``end``.",
    "auc": "Returns the area under the ROC or PR curve over all batches, the area over the last "
    "batches, and the list of the counters. Probabilities are ``[N, 1]``, or ``[N, 2]`` with the "
    "positive class in the second column.",
    "assign": "Returns a copy, or copies into ``output``.",
    "cross_entropy": "Returns the softmax cross entropy of logits and class numbers, reduced: by "
    "default the mean of all rows.",
    "data": "Adds an input variable, which is fed. A size of None or -1 is the batch.",
    "elu": "``x`` if x is positive, else ``alpha * (exp(x) - 1)``.",
    "fc": "Applies a fully connected layer: ``activation(x @ weight + bias)``.",
    "flatten": "Flattens the dimensions from ``start_axis`` to ``stop_axis`` into one.",
    "gelu": "``x * Phi(x)``, exact or approximated by ``tanh``.",
    "leaky_relu": "``x`` if x is positive, else ``negative_slope * x``.",
    "log_loss": "Returns ``-y log(p + epsilon) - (1 - y) log(1 - p + epsilon)`` of each "
    "probability.",
    "log_sigmoid": "The logarithm of the sigmoid of x, finite for any x.",
    "log_softmax": "Returns the logarithm of the softmax along an axis.",
    "matmul": "Returns the matrix product over the last two dimensions, of either operand "
    "transposed. Leading dimensions are broadcast.",
    "scatter": "Returns a copy in which ``updates`` replace the rows ``index``. Without "
    "``overwrite``, these rows are the sums of all of their updates.",
    "shape": "Returns the shape at run time, as int32.",
    "softmax": "Returns the softmax along an axis.",
    "split": "Splits along an axis, into a number of equal parts or parts of the given sizes.",
    "strided_slice": "Returns every ``strides``-th element from ``starts`` up to ``ends`` along "
    "``axes``.",
    "swish": "``x * sigmoid(x)``.",
    "where": "Selects elements of ``x`` where the condition holds, and elements of ``y`` elsewhere.",
}

#: Meanings of parameters, by their names in the layers.
PARAMETERS = {
    "activation": "name of a function that is applied to the result, such as 'relu'",
    "adaptive": "whether pool_size is the size of the result",
    "alpha": "factor for negative x",
    "approximate": "whether to use the approximation by tanh",
    "attention_dropout": "probability of zeroing an attention weight",
    "attr": "ParamAttr or name of the parameter",
    "axes": "dimensions, one for each start",
    "axis": "dimension, or dimensions; negative ones count from the end",
    "begin_norm_axis": "first dimension of the normalized ones",
    "bias": "number that is added",
    "bias_after_scale": "whether the bias is added after the product",
    "bias_attr": "ParamAttr or name of the bias; False omits it",
    "causal": "whether a position sees earlier ones only",
    "ceil_mode": "whether the size of the result is rounded up",
    "classes": "number of classes",
    "condition": "boolean variable",
    "curve": "'ROC' or 'PR'",
    "data_format": "'NCHW' or 'NHWC'",
    "data_layout": "'NCHW' or 'NHWC'",
    "default_initializer": "initializer, if attr has none",
    "delta": "largest error of the quadratic part",
    "dilation": "distance of the elements of a filter: one number or two",
    "dropout": "probability of zeroing an element",
    "dtype": "type of the elements, such as 'float32'",
    "end": "number that ends the range and is not in it",
    "ends": "end of each slice, which is not in it",
    "entry": "rule for new rows, such as CountFilterEntry",
    "epsilon": "small number for stability, or the share that is smoothed",
    "exclusive": "whether a mean ignores padded elements",
    "ffn": "width of the inner layer",
    "fill_value": "number of all elements",
    "filter_size": "size of the filters: one number or two",
    "global_pooling": "whether the window is the whole image",
    "groups": "number of groups of channels, which are convolved apart",
    "heads": "number of attention heads",
    "ignore_index": "class number whose rows have no loss",
    "index": "numbers of rows, or coordinates",
    "initializer": "initializer of the parameters",
    "is_bias": "whether the parameter starts as zeros",
    "is_distributed": "whether the table is on parameter servers",
    "is_sparse": "whether gradients are of the rows that were read only",
    "is_test": "whether the network is for evaluation",
    "k": "number of the largest elements",
    "keepdim": "whether reduced dimensions stay, with size 1",
    "key_value": "variable that is attended to; x itself by default",
    "label": "true classes or values",
    "largest": "whether the largest elements are taken, and not the smallest",
    "layers": "number of layers",
    "lod_level": "levels of ragged rows; 0 for a plain tensor",
    "margin": "angle that is added to that of the label's class; needs ``normalize``",
    "mask": "variable that is added to the attention scores",
    "max": "upper limit",
    "min": "lower limit",
    "mode": "'upscale_in_train' or 'downscale_in_infer'",
    "momentum": "share of the old value in moving averages",
    "moving_mean_name": "name of the moving mean",
    "moving_variance_name": "name of the moving variance",
    "name": "prefix of the names of new variables",
    "negative_slope": "factor for negative x",
    "negatives": "number of negative samples",
    "normalize": "whether features and class weights are divided by their norms",
    "normalized_shape": "sizes of the normalized dimensions",
    "num_classes": "length of a row",
    "num_filters": "number of filters, the channels of the result",
    "num_flatten_dims": "number of leading dimensions that stay",
    "num_or_sections": "number of equal parts, or the size of each part",
    "num_thresholds": "number of thresholds of the curve",
    "output": "variable that the value is copied into",
    "overwrite": "whether updates replace rows instead of being summed",
    "p": "probability of zeroing an element",
    "pad_value": "number of the new elements",
    "padding": "'SAME', 'VALID', or elements that are added at the borders",
    "padding_idx": "id whose row is zeros and is not trained",
    "paddings": "new elements before and after, for each dimension",
    "perm": "the dimensions in their new order",
    "persistable": "whether the variable stays from one run to the next",
    "pool_padding": "'SAME', 'VALID', or elements that are added at the borders",
    "pool_size": "size of the windows: one number or two",
    "pool_stride": "distance of windows: one number or two",
    "pool_type": "'max' or 'avg'",
    "pre_norm": "whether normalization comes before each part",
    "reduction": "'mean', 'sum', or 'none' for a loss of each row",
    "repeat_times": "number of copies, for each dimension",
    "return_softmax": "whether to return the softmax too",
    "sample": "share or number of the classes that a training step uses; all by default",
    "scale": "factor, or whether a factor is trained",
    "seed": "seed of the random numbers; that of the program by default",
    "shape": "sizes; -1 for one that follows from the others, or the batch",
    "shift": "whether a bias is trained",
    "size": "width of the result; [rows, width] of a table; height and width of an image",
    "slide_steps": "number of the last batches that have an area of their own",
    "slot": "number of the slot in click tables",
    "split": "how workers may divide the layer (`mp_degree`): 'columns' or 'rows' of fc, whether of "
    "others",
    "split_heads": "whether workers may divide the heads (`mp_degree`)",
    "soft_label": "whether labels are distributions instead of class numbers",
    "start": "first number",
    "start_axis": "first dimension that is flattened",
    "starts": "start of each slice",
    "step": "distance of two numbers",
    "stop_axis": "last dimension that is flattened",
    "stride": "distance of windows: one number or two",
    "strides": "step of each slice",
    "table_class": "class of the table on the servers",
    "topk": "1: the area is that of the positive class",
    "training": "whether elements are zeroed; if not, x is returned or scaled",
    "transpose_x": "whether x is transposed",
    "transpose_y": "whether y is transposed",
    "updates": "new rows",
    "use_global_stats": "whether to normalize by moving averages in training too",
    "use_softmax": "whether x are logits and not probabilities",
    "value": "number of all elements",
    "vocabulary": "number of words",
    "weight": "not supported",
    "weight_attr": "ParamAttr or name of the weight: its initializer, decay and others",
    "width": "length of a row",
    "x": "input variable",
    "y": "other variable or number",
}

#: Parameters that choose a kernel or its memory.
IGNORED = "has no meaning here"


def help_of(layer, text, parameters):
    """Returns the docstring of a layer. ``parameters`` has the names of a spelling, and the names
    that the layer has for them, or None."""
    text = LAYERS.get(layer, text).replace("`self`", "`x`").replace("`otherwise`", "`y`")
    meanings = {
        name: IGNORED if meant is None else PARAMETERS.get(meant)
        for name, meant in parameters.items()
    }
    return _joined(text, meanings)

#: Meanings of the parameters of optimizers.
SETTINGS = {
    "beta1": "decay of the average of gradients",
    "beta2": "decay of the average of squared gradients",
    "centered": "whether to divide by the variance",
    "epsilon": "small number for stability",
    "exclude_from_weight_decay": "parts of the names of parameters without decay",
    "grad_clip": "fleet.nn.ClipGradByGlobalNorm, ClipGradByNorm or ClipGradByValue",
    "initial_accumulator_value": "first value of the sum of squares",
    "lamb_weight_decay": "factor of the weight decay",
    "lars_coeff": "factor of the local rate",
    "lars_weight_decay": "factor of the weight decay",
    "lazy_mode": "whether rows without a gradient keep their state",
    "learning_rate": "number, or schedule of fleet.optimizer.lr",
    "momentum": "share of the last step in the next one",
    "name": "has no meaning here",
    "parameters": "parameters to train; all of the program by default",
    "rho": "decay of the average of squared gradients",
    "use_nesterov": "whether to use the momentum of Nesterov",
    "weight_decay": "number or fleet.regularizer.L2Decay or L1Decay; for AdamW a number",
}


def help_of_optimizer(formula, parameters):
    """Returns the docstring of an optimizer, from its formula on the page of layers."""
    return _joined(formula, {name: SETTINGS.get(name) for name in parameters})


def _joined(text, meanings):
    lines = [textwrap.fill(text.replace("\\|", "|"), _COLUMNS), ""]
    lines += [f"* ``{name}``: {meaning}." for name, meaning in meanings.items() if meaning]
    return "\n".join(lines)
