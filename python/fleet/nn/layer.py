"""Layers as objects: ``fleet.nn.Layer`` and what derives from it.

An object holds parameters of the default programs, which it adds when it is created. Every call
adds ops that use them. Ops and defaults are those of ``fleet.static.nn``.
"""

import math

from fleet._attributes import ParamAttr
from fleet._executor import global_scope
from fleet._framework import Variable, call
from fleet.nn.initializer import Normal
from fleet.utils import unique_name


class Layer:
    """Base of networks and their parts. A subclass assigns parts and parameters to attributes, and
    defines ``forward``."""

    def __init__(self, name_scope=None, dtype="float32"):
        kind = name_scope or type(self).__name__.lower()
        # Not through `__setattr__`, which needs them.
        self.__dict__.update(_sub_layers={}, _parameters={})
        self._dtype = dtype
        self._full_name = unique_name.generate(kind)

    def forward(self, *inputs, **kwargs):
        """Adds the ops of the layer, and returns their result."""
        raise NotImplementedError(f"{type(self).__name__} does not define forward()")

    def __call__(self, *inputs, **kwargs):
        return self.forward(*inputs, **kwargs)

    def __setattr__(self, name, value):
        kinds = {"_sub_layers": isinstance(value, Layer), "_parameters": _is_parameter(value)}
        if any(kinds.values()) and "_parameters" not in self.__dict__:
            raise RuntimeError(
                f"{type(self).__name__}: '{name}' was assigned too early\n  "
                "help: call super().__init__() first"
            )
        for kept, is_kept in kinds.items():
            if is_kept:
                self.__dict__[kept][name] = value
            else:
                self.__dict__.get(kept, {}).pop(name, None)
        object.__setattr__(self, name, value)

    def __repr__(self):
        parts = ", ".join(f"{name}: {part!r}" for name, part in self._sub_layers.items())
        return f"{type(self).__name__}({parts})"

    def full_name(self):
        """Returns the name, from which those of the parameters are made."""
        return self._full_name

    def add_sublayer(self, name, sublayer):
        """Adds a part under a name, and returns it."""
        if not isinstance(sublayer, Layer):
            raise TypeError(f"sublayer: expected a Layer, got {sublayer!r}")
        setattr(self, name, sublayer)
        return sublayer

    def add_parameter(self, name, parameter):
        """Adds a parameter under a name, and returns it. It may be None."""
        if parameter is not None and not isinstance(parameter, Variable):
            raise TypeError(f"parameter: expected a Variable, got {parameter!r}")
        setattr(self, name, parameter)
        return parameter

    def create_parameter(
        self, shape, attr=None, dtype=None, is_bias=False, default_initializer=None
    ):
        """Adds a parameter to the default programs; None if ``attr`` is False."""
        if attr is False:
            return None
        suffix = "b" if is_bias else "w"
        return call(
            "create_parameter",
            {
                "shape": list(shape),
                "dtype": dtype or self._dtype,
                # Without a name of its own: "linear_0.w_0".
                "name": unique_name.generate(f"{self._full_name}.{suffix}"),
                "attr": attr,
                "is_bias": is_bias,
                "default_initializer": default_initializer,
            },
        )

    def named_sublayers(self, prefix="", include_self=False):
        """Yields all parts with their paths."""
        if include_self:
            yield prefix, self
        for name, part in self._sub_layers.items():
            path = f"{prefix}.{name}" if prefix else name
            yield path, part
            yield from part.named_sublayers(path)

    def sublayers(self, include_self=False):
        """Returns all parts, and parts of parts."""
        return [part for _, part in self.named_sublayers(include_self=include_self)]

    def children(self):
        """Yields the parts, without parts of parts."""
        yield from self._sub_layers.values()

    def named_parameters(self, prefix="", include_sublayers=True):
        """Yields the parameters with their paths, such as ``fc.weight``."""
        seen = set()
        layers = [(prefix, self)]
        if include_sublayers:
            layers += self.named_sublayers(prefix)
        for path, layer in layers:
            for name, parameter in layer._parameters.items():
                if parameter not in seen:
                    seen.add(parameter)
                    yield (f"{path}.{name}" if path else name), parameter

    def parameters(self, include_sublayers=True):
        """Returns the parameters."""
        return [parameter for _, parameter in self.named_parameters("", include_sublayers)]

    def state_dict(self, scope=None):
        """Returns copies of the parameters, as arrays by path."""
        scope = global_scope() if scope is None else scope
        return {path: scope[parameter.name] for path, parameter in self.named_parameters()}

    def set_state_dict(self, state_dict, scope=None):
        """Assigns parameters from arrays by path. Nothing changes if a path or a shape is wrong."""
        known = dict(self.named_parameters())
        values = {}
        for path, value in state_dict.items():
            if path not in known:
                raise ValueError(f"there is no parameter '{path}'")
            values[known[path].name] = value
        if values:
            next(iter(known.values())).program.set_state_dict(values, scope)

    set_dict = load_dict = set_state_dict

    def train(self):
        """Does nothing: a program trains unless it is a clone for a test."""

    def eval(self):
        """Not supported: a program for evaluation is a clone."""
        raise NotImplementedError(
            "eval() is not supported: layers write a program\n  "
            "help: evaluate program.clone(for_test=True)"
        )


def _is_parameter(value):
    return isinstance(value, Variable) and value._id in value._cell.parameters()


def _named(parameter):
    """Returns the attribute that makes a layer use a parameter which exists."""
    return False if parameter is None else ParamAttr(name=parameter.name)


class Linear(Layer):
    """``x @ weight + bias`` over the last dimension."""

    def __init__(self, in_features, out_features, weight_attr=None, bias_attr=None, name=None):
        super().__init__(name)
        self._out_features = out_features
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, input):
        """Adds the ops."""
        return call(
            "fc",
            {
                "x": input,
                "size": self._out_features,
                "num_flatten_dims": max(input.ndim - 1, 1),
                "weight_attr": _named(self.weight),
                "bias_attr": _named(self.bias),
                "activation": None,
                "name": self._full_name,
                "split": None,
            },
        )


class Embedding(Layer):
    """Rows of a table by id. With ``sparse``, gradients are the rows that were used.

    ``Embedding(input=ids, size=[rows, width])`` returns the rows themselves, as the documents
    write it.
    """

    def __new__(cls, *args, input=None, size=None, **kwargs):
        if input is None:
            return super().__new__(cls)
        if size is None or len(size) != 2:
            raise ValueError(f"Embedding(): size: expected [rows, width], got {size!r}")
        return Embedding(*size, *args, **kwargs)(input)

    def __init__(
        self,
        num_embeddings,
        embedding_dim,
        padding_idx=None,
        sparse=False,
        weight_attr=None,
        name=None,
    ):
        super().__init__(name)
        self._size = [num_embeddings, embedding_dim]
        self._padding_idx = padding_idx
        self._sparse = sparse
        self.weight = self.create_parameter(self._size, weight_attr)

    def forward(self, x):
        """Adds the op."""
        return call(
            "embedding",
            {
                "x": x,
                "size": self._size,
                "is_sparse": self._sparse,
                "is_distributed": False,
                "padding_idx": self._padding_idx,
                "weight_attr": _named(self.weight),
                "dtype": self._dtype,
                "name": self._full_name,
            },
        )


class Conv2D(Layer):
    """Convolution of images."""

    def __init__(
        self,
        in_channels,
        out_channels,
        kernel_size,
        stride=1,
        padding=0,
        dilation=1,
        groups=1,
        padding_mode="zeros",
        weight_attr=None,
        bias_attr=None,
        data_format="NCHW",
    ):
        super().__init__()
        if padding_mode != "zeros":
            raise NotImplementedError(
                f"padding_mode: only 'zeros' is supported, got {padding_mode!r}"
            )
        size = [kernel_size] * 2 if isinstance(kernel_size, int) else list(kernel_size)
        self._settings = {
            "num_filters": out_channels,
            "filter_size": size,
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
            "activation": None,
            "name": self._full_name,
            "data_format": data_format,
        }
        # The default of `fleet.static.nn.conv2d`.
        default = Normal(0.0, math.sqrt(2.0 / (math.prod(size) * in_channels)))
        shape = [out_channels, in_channels // groups, *size]
        self.weight = self.create_parameter(shape, weight_attr, default_initializer=default)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    def forward(self, x):
        """Adds the ops."""
        weights = {"weight_attr": _named(self.weight), "bias_attr": _named(self.bias)}
        return call("conv2d", {"x": x, **self._settings, **weights})


class ReLU(Layer):
    """``max(x, 0)``."""

    def forward(self, x):
        """Adds the op."""
        return call("relu", {"x": x, "name": None})


class Sequential(Layer):
    """Layers one after the other: layers, or pairs of a name and a layer."""

    def __init__(self, *layers):
        super().__init__()
        for index, layer in enumerate(layers):
            name, layer = layer if isinstance(layer, (list, tuple)) else (str(index), layer)
            self.add_sublayer(name, layer)

    def __getitem__(self, index):
        return list(self.children())[index]

    def __len__(self):
        return len(self._sub_layers)

    def forward(self, input):
        """Calls the layers in order."""
        for layer in self.children():
            input = layer(input)
        return input


class LayerList(Layer):
    """Layers by index, which the network calls itself."""

    def __init__(self, sublayers=None):
        super().__init__()
        for layer in sublayers or []:
            self.append(layer)

    def append(self, sublayer):
        """Adds a layer at the end."""
        self.add_sublayer(str(len(self)), sublayer)

    def __getitem__(self, index):
        return list(self.children())[index]

    def __iter__(self):
        return self.children()

    def __len__(self):
        return len(self._sub_layers)
