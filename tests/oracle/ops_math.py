"""Elementwise ops, activations, products, reductions, norms."""
import math

import numpy as np
from make import Rows, Shape, case, f32, fail, i64, rand

d = lambda x: np.asarray(x, np.float64)
vec = np.vectorize
erf = vec(math.erf)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# elementwise: every function, at the shapes that take different paths
away = rand(3, 5, seed=3, low=1.5, high=4.0)
near = rand(3, 5, seed=4, low=0.5, high=1.4)
functions = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum,
    "min": np.minimum, "pow": np.power,
}
for name, function in functions.items():
    case(f"elementwise_{name}", X=away, Y=near, out={"Out": function(d(away), d(near))}, grad="X Y")
    row = rand(5, seed=5, low=0.5, high=1.4)
    case(f"elementwise_{name}", X=away, Y=row, out={"Out": function(d(away), d(row))}, grad="X Y")
    fail(f"elementwise_{name}", f"input 'Y' of elementwise_{name} does not broadcast with X",
         "got [4]", X=Shape(3, 5), Y=Shape(4))
mid = rand(3, 1, seed=6, low=0.5, high=1.4)
high = rand(2, 3, 4, 5, seed=7, low=1.5, high=4.0)
channel = rand(3, seed=8, low=0.5, high=1.4)
for name in ["add", "mul", "div", "max"]:
    function = functions[name]
    case(f"elementwise_{name}", axis=1, X=high, Y=channel, grad="X Y",
         out={"Out": function(d(high), d(channel).reshape(3, 1, 1))})
    case(f"elementwise_{name}", X=away, Y=mid, out={"Out": function(d(away), d(mid))}, grad="X Y")
    case(f"elementwise_{name}", X=mid, Y=row, out={"Out": function(d(mid), d(row))}, grad="X Y")
    one = f32([0.75])
    case(f"elementwise_{name}", X=away, Y=one, out={"Out": function(d(away), 0.75)}, grad="X Y")
case("elementwise_add", axis=0, X=away, Y=rand(3, 1, seed=6), out={"Out": d(away) + d(rand(3, 1, seed=6))})
big, wide = rand(300, 401, seed=9), rand(401, seed=10)
case("elementwise_add", X=big, Y=wide, out={"Out": d(big) + d(wide)}, grad="Y", tol="1e-5 1e-5")
case("elementwise_mul", X=big, Y=rand(300, 401, seed=11), out={"Out": d(big) * d(rand(300, 401, seed=11))}, grad="X Y")
ints, divisors = i64([[7, -7, 8], [-9, 5, 0]]), i64([2, -2, 3])
case("elementwise_mod", X=ints, Y=divisors, out={"Out": np.mod(ints, divisors)})
case("elementwise_floordiv", X=ints, Y=divisors, out={"Out": np.floor_divide(ints, divisors)})
case("elementwise_add", X=ints, Y=divisors, out={"Out": ints + divisors})
x, y = f32([5.5, -5.5, 3.25]), f32([2, 2, -2])
case("elementwise_mod", X=x, Y=y, out={"Out": np.mod(x, y)}, grad="X Y")
case("elementwise_floordiv", X=x, Y=y, out={"Out": np.floor_divide(x, y)})
halves = rand(4, 33, seed=12).astype(np.float16)
case("elementwise_add", X=halves, Y=halves, out={"Out": (halves + halves).astype(np.float16)})
case("elementwise_sub", X=np.float64([1.5, 2]), Y=np.float64([1, 4]), out={"Out": np.float64([0.5, -2])},
     out_dtype_of={"Out": "f64"})
fail("elementwise_add", "input 'Y' of elementwise_add has the wrong element type", "expected f32, got i64",
     X=Shape(2), Y=Shape(2, dtype="i64"))
fail("elementwise_add", "at axis 2", axis=2, X=Shape(2, 3), Y=Shape(2, 3))

# unary: away from kinks by more than the step of the differences
smooth = rand(4, 9, seed=20, low=-3.0, high=3.0)
positive = rand(4, 9, seed=21, low=0.5, high=3.0)
kinks = f32([-4.0, -2.5, -1.2, -0.6, -0.1, 0.1, 0.4, 1.3, 2.2, 4.0, 5.5, 7.0])
xs = d(smooth)
softplus = lambda v: np.log1p(np.exp(-np.abs(v))) + np.maximum(v, 0)
table = [
    ("relu", kinks, {}, lambda v: np.maximum(v, 0)),
    ("relu6", kinks, {}, lambda v: np.clip(v, 0, 6)),
    ("leaky_relu", kinks, {"alpha": 0.1}, lambda v: np.where(v > 0, v, 0.1 * v)),
    ("sigmoid", smooth, {}, sigmoid),
    ("logsigmoid", smooth, {}, lambda v: -softplus(-v)),
    ("tanh", smooth, {}, np.tanh),
    ("gelu", smooth, {}, lambda v: 0.5 * v * (1 + erf(v / math.sqrt(2)))),
    ("gelu", smooth, {"approximate": True},
     lambda v: 0.5 * v * (1 + np.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3)))),
    ("exp", smooth, {}, np.exp),
    ("log", positive, {}, np.log),
    ("sqrt", positive, {}, np.sqrt),
    ("rsqrt", positive, {}, lambda v: 1 / np.sqrt(v)),
    ("square", smooth, {}, np.square),
    ("abs", kinks, {}, np.abs),
    ("reciprocal", positive, {}, lambda v: 1 / v),
    ("softplus", smooth, {}, softplus),
    ("softplus", smooth, {"beta": 2.0, "threshold": 15.0}, lambda v: softplus(2 * v) / 2),
    ("softplus", kinks, {"threshold": 2.0}, lambda v: np.where(v > 2, v, softplus(v))),
    ("softsign", smooth, {}, lambda v: v / (1 + np.abs(v))),
    ("hard_sigmoid", kinks, {}, lambda v: np.clip(0.2 * v + 0.5, 0, 1)),
    ("hard_sigmoid", kinks, {"slope": 0.3, "offset": 0.45}, lambda v: np.clip(0.3 * v + 0.45, 0, 1)),
    ("hard_swish", kinks, {}, lambda v: v * np.clip(v + 3, 0, 6) / 6),
    ("hard_swish", kinks, {"threshold": 5.0, "scale": 4.0, "offset": 2.0}, lambda v: v * np.clip(v + 2, 0, 5) / 4),
    ("swish", smooth, {"beta": 1.5}, lambda v: v * sigmoid(1.5 * v)),
    ("silu", smooth, {}, lambda v: v * sigmoid(v)),
    ("elu", kinks, {"alpha": 0.7}, lambda v: np.where(v > 0, v, 0.7 * np.expm1(v))),
    ("selu", kinks, {}, lambda v: 1.0507009873554805 * np.where(v > 0, v, 1.6732632423543772 * np.expm1(v))),
    ("sign", kinks, {}, np.sign),
    ("floor", kinks, {}, np.floor),
    ("ceil", kinks, {}, np.ceil),
    ("round", f32([-2.5, -1.4, -0.6, 0.5, 1.49, 2.5]), {}, lambda v: np.sign(v) * np.floor(np.abs(v) + 0.5)),
    ("sin", smooth, {}, np.sin),
    ("cos", smooth, {}, np.cos),
    ("erf", smooth, {}, erf),
    ("pow", positive, {"factor": 2.5}, lambda v: v**2.5),
    ("clip", kinks, {"min": -1.0, "max": 2.0}, lambda v: np.clip(v, -1, 2)),
]
steps = {"floor", "ceil", "round", "sign"}
for name, x, attrs, function in table:
    # Differences do not see a step; rounding is tested away from them elsewhere.
    case(name, X=x, out={"Out": function(d(x))}, grad=None if name in steps else "X", **attrs)
for name in ["sign", "floor", "ceil", "round"]:
    x = f32([-1.7, -0.3, 0.2, 2.6])
    case(name, X=x, out={}, grad="X")
for name in ["relu", "tanh", "gelu", "exp"]:
    function = [row for row in table if row[0] == name][0][3]
    big = rand(50, 1003, seed=22, low=-3.0, high=3.0)
    case(name, X=big, out={"Out": function(d(big))})
    small = rand(3, 40, seed=23).astype(np.float16)
    case(name, X=small, out={"Out": function(d(small)).astype(np.float16)}, tol="2e-3 1e-3")
case("relu", X=i64([-3, 0, 4]), out={"Out": i64([0, 0, 4])})
case("abs", X=i64([-3, 0, 4]), out={"Out": i64([3, 0, 4])})
case("square", X=np.int32([-3, 4]), out={"Out": np.int32([9, 16])})
for name in sorted({row[0] for row in table}):
    fail(name, f"input 'X' of {name} has the wrong element type: expected numbers, got bool", X=Shape(2, dtype="bool"))
fail("exp", "exp has no CPU kernel for element type i64", X=Shape(2, dtype="i64"))

# scale, cast, increment
x = rand(3, 7, seed=30)
case("scale", X=x, scale=2.0, bias=0.5, out={"Out": 2 * d(x) + 0.5}, grad="X")
case("scale", X=x, scale=2.0, bias=0.5, bias_after_scale=False, out={"Out": 2 * (d(x) + 0.5)}, grad="X")
case("scale", X=i64([1, -2, 3]), scale=1.5, out={"Out": i64([1, -3, 4])})
case("scale", X=Rows([3, 0, 3], rand(3, 2, seed=31), 5), scale=-2.0,
     out={"Out": Rows([3, 0, 3], -2 * rand(3, 2, seed=31), 5)})
case("scale", X=np.float16([1, 2]), scale=0.5, out={"Out": np.float16([0.5, 1])})
x = f32([0.0, 1.9, -1.9, 300.5])
case("cast", X=x, out_dtype="i64", out={"Out": i64([0, 1, -1, 300])})
case("cast", X=x, out_dtype="bool", out={"Out": np.array([False, True, True, True])})
case("cast", X=x, out_dtype="f16", out={"Out": x.astype(np.float16)})
case("cast", X=x, out_dtype="f64", out={"Out": x.astype(np.float64)}, out_dtype_of={"Out": "f64"}, grad="X")
case("cast", X=x, out_dtype="f32", out={"Out": x}, grad="X")
case("cast", X=x.astype(np.float16), out_dtype="f32", out={"Out": x.astype(np.float16).astype(np.float32)})
case("cast", X=i64([0, 5, -7]), out_dtype="f32", out={"Out": f32([0, 5, -7])})
case("cast", X=np.array([True, False]), out_dtype="i32", out={"Out": np.int32([1, 0])})
case("cast", X=i64([2**40 + 3]), out_dtype="i32", out={"Out": np.int32([3])})
fail("cast", "missing attribute 'out_dtype'", X=Shape(2))
case("increment", X=i64([41]), step=2.0, out={"Out": i64([43])})
case("increment", X=f32([1.5]), out={"Out": f32([2.5])})
fail("increment", "increment has no CPU kernel for element type bool", X=Shape(1, dtype="bool"))
fail("isfinite_v2", "input slot 'X' of op 'isfinite_v2' has the wrong size")
for name in ["mod", "floordiv"]:
    fail(f"elementwise_{name}", f"input 'Y' of elementwise_{name} does not broadcast with X", X=Shape(3, 5), Y=Shape(4))

# compare, logic, where
a, b = f32([[1, 2, 3], [4, 5, 6]]), f32([1, 5, 3])
for name, function in [("equal", np.equal), ("not_equal", np.not_equal), ("less_than", np.less),
                       ("less_equal", np.less_equal), ("greater_than", np.greater),
                       ("greater_equal", np.greater_equal)]:
    case(name, X=a, Y=b, out={"Out": function(a, b)})
    case(name, X=a, Y=f32([1, 5]), axis=0, out={"Out": function(a, f32([[1], [5]]))})
    case(name, X=a.astype(np.int64), Y=b.astype(np.int64), out={"Out": function(a, b)})
    case(name, X=a.astype(np.uint8), Y=b.astype(np.uint8), out={"Out": function(a, b)})
    fail(name, f"input 'Y' of {name} does not broadcast with X", X=Shape(2, 3), Y=Shape(2))
p, q = np.array([[True, False], [True, True]]), np.array([True, False])
for name, function in [("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)]:
    case(f"logical_{name}", X=p, Y=q, out={"Out": function(p, q)})
    fail(f"logical_{name}", f"input 'X' of logical_{name} has the wrong element type: expected bool, got f32",
         X=Shape(2), Y=Shape(2))
case("logical_not", X=p, out={"Out": ~p})
fail("logical_not", "input 'X' of logical_not has the wrong element type", X=Shape(2))
case("isfinite_v2", X=f32([1, np.inf, -np.inf, np.nan, 0]), out={"Out": np.array([True, False, False, False, True])})
case("isfinite_v2", X=i64([1]), out={"Out": np.array([True])})
c = np.array([[True, False, True], [False, False, True]])
x, y = rand(2, 3, seed=40), rand(3, seed=41)
case("where", Condition=c, X=x, Y=y, out={"Out": np.where(c, x, y)}, grad="X Y", static=True)
case("where", Condition=c, X=x, Y=rand(2, 3, seed=42), out={"Out": np.where(c, x, rand(2, 3, seed=42))}, grad="X Y")
case("where", Condition=c[0], X=i64([1, 2, 3]), Y=i64([[9], [8]]), out={"Out": np.where(c[0], i64([1, 2, 3]), i64([[9], [8]]))}, static=True)
fail("where", "input 'Condition' of where has the wrong element type", Condition=Shape(2), X=Shape(2), Y=Shape(2))
fail("where", "input 'Y' of where does not broadcast", Condition=Shape(2, dtype="bool"), X=Shape(2), Y=Shape(3))

# products
x, y = rand(5, 7, seed=50), rand(7, 3, seed=51)
case("mul", X=x, Y=y, out={"Out": d(x) @ d(y)}, grad="X Y")
x, y = rand(2, 3, 4, 5, seed=52), rand(4, 5, 6, seed=53)
case("mul", X=x, Y=y, x_num_col_dims=2, y_num_col_dims=2, grad="X Y",
     out={"Out": (d(x).reshape(6, 20) @ d(y).reshape(20, 6)).reshape(2, 3, 6)})
x, y = rand(130, 257, seed=54), rand(257, 70, seed=55)
case("mul", X=x, Y=y, out={"Out": d(x) @ d(y)}, grad="X Y", tol="1e-4 1e-4")
x = rand(4, 6, seed=56).astype(np.float16)
case("mul", X=x, Y=x.T.copy(), out={"Out": (d(x) @ d(x).T).astype(np.float16)}, tol="2e-3 1e-3")
fail("mul", "input 'Y' of mul has the wrong height", "expected 3 rows, the width of X [2, 3]", "got 4",
     X=Shape(2, 3), Y=Shape(4, 5))
fail("mul", "attribute 'x_num_col_dims' of mul is out of range", X=Shape(2, 3), Y=Shape(3, 5), x_num_col_dims=2)
fail("mul", "input 'Y' of mul has the wrong element type", X=Shape(2, 3), Y=Shape(3, 5, dtype="i64"))

for tx in [False, True]:
    for ty in [False, True]:
        x, y = rand(2, 3, 4, 5, seed=60), rand(2, 3, 5, 6, seed=61)
        product = 0.5 * (d(x) @ d(y))
        case("matmul_v2", trans_x=tx, trans_y=ty, alpha=0.5, X=np.swapaxes(x, -1, -2).copy() if tx else x,
             Y=np.swapaxes(y, -1, -2).copy() if ty else y, out={"Out": product}, grad="X Y")
        # Broadcast on both sides, three batch dimensions.
        x, y = rand(2, 1, 3, 4, 5, seed=62), rand(3, 1, 5, 2, seed=63)
        case("matmul_v2", trans_x=tx, trans_y=ty, X=np.swapaxes(x, -1, -2).copy() if tx else x,
             Y=np.swapaxes(y, -1, -2).copy() if ty else y, out={"Out": d(x) @ d(y)}, grad="X Y")
        # A weight without batch dimensions.
        x, y = rand(3, 2, 4, 5, seed=64), rand(5, 6, seed=65)
        case("matmul_v2", trans_x=tx, trans_y=ty, X=np.swapaxes(x, -1, -2).copy() if tx else x,
             Y=y.T.copy() if ty else y, out={"Out": d(x) @ d(y)}, grad="X Y")
        x, y = rand(4, 5, seed=64), rand(3, 5, 6, seed=65)
        case("matmul_v2", trans_x=tx, trans_y=ty, X=x.T.copy() if tx else x, static=True,
             Y=np.swapaxes(y, -1, -2).copy() if ty else y, out={"Out": d(x) @ d(y)}, grad="X Y")
x, y = rand(5, seed=66), rand(5, seed=67)
case("matmul_v2", X=x, Y=y, out={"Out": (d(x) @ d(y)).reshape(1)}, grad="X Y")
x = rand(2, 3, 5, seed=68)
case("matmul_v2", X=x, Y=y, out={"Out": d(x) @ d(y)}, grad="X Y")
case("matmul_v2", X=y, Y=rand(2, 5, 3, seed=69), out={"Out": d(y) @ d(rand(2, 5, 3, seed=69))}, grad="X Y")
fail("matmul_v2", "input 'Y' of matmul_v2 has the wrong height", X=Shape(2, 3), Y=Shape(4, 5))
fail("matmul_v2", "batch dimensions that do not broadcast", X=Shape(2, 3, 4), Y=Shape(3, 4, 5))
fail("matmul_v2", "wrong element type", X=Shape(2, 3, dtype="i32"), Y=Shape(3, 4, dtype="i32"))

activations = {"": lambda v: v, "relu": lambda v: np.maximum(v, 0), "tanh": np.tanh, "sigmoid": sigmoid}
x, y, b = rand(6, 5, seed=70), rand(5, 9, seed=71), rand(9, seed=72)
for name, function in activations.items():
    pre = d(x) @ d(y) + d(b)
    # relu: keep sums away from the kink
    if name == "relu":
        assert np.abs(pre).min() > 1e-3
    case("fused_gemm_epilogue", activation=name, X=x, Y=y, Bias=b, out={"Out": function(pre)},
         grad="X Y Bias", diff="0.002 0.01" if name == "relu" else None)
    case("fused_gemm_epilogue", activation=name, X=x, Y=y, out={"Out": function(d(x) @ d(y))},
         grad="X Y", diff="0.002 0.01" if name == "relu" else None)
pre = d(x) @ d(y) + d(b)
case("fused_gemm_epilogue", activation="gelu", X=x, Y=y, Bias=b, loss="Out", grad="X Y Bias",
     out={"Out": 0.5 * pre * (1 + erf(pre / math.sqrt(2))), "PreAct": pre})
x, y, b = rand(2, 33, 64, seed=73), rand(64, 130, seed=74), rand(130, seed=75)
pre = (d(x).reshape(66, 64) @ d(y) + d(b)).reshape(2, 33, 130)
case("fused_gemm_epilogue", activation="tanh", x_num_col_dims=2, X=x, Y=y, Bias=b, out={"Out": np.tanh(pre)},
     grad="Bias", tol="1e-4 1e-5")
relu_x, upper = np.maximum(rand(5, 3, seed=41), 0), rand(5, 4, seed=42)
weight = rand(3, 4, seed=43)
case("fused_gemm_epilogue_grad", x_is_relu=True,
     inputs={"X": f32(relu_x), "Y": weight, "Bias": rand(4, seed=44), "Out@GRAD": upper},
     out={"X@GRAD": (d(upper) @ d(weight).T) * (relu_x > 0), "Y@GRAD": d(relu_x).T @ d(upper),
          "Bias@GRAD": d(upper).sum(0)})
fail("fused_gemm_epilogue", "unknown activation of fused_gemm_epilogue", "got 'relu7'",
     activation="relu7", X=Shape(2, 3), Y=Shape(3, 4))
fail("fused_gemm_epilogue", "input 'Bias' of fused_gemm_epilogue has the wrong shape: expected [4], got [5]",
     X=Shape(2, 3), Y=Shape(3, 4), Bias=Shape(5))

for shape, axis in [((5, 6), -1), ((6,), -1), ((5, 1), -1), ((5,), 0), ((1,), -1)]:
    x, y = rand(5, 6, seed=80, low=-2, high=2), rand(*shape, seed=81)
    total = d(x) + d(y if axis == -1 else y.reshape(5, 1))
    case("fused_elemwise_activation", functor_list=["tanh", "elementwise_add"], axis=axis, X=x, Y=y,
         out={"Out": np.tanh(total)}, grad="X Y")
x, y = rand(5, 6, seed=80, low=-2, high=2), rand(5, 6, seed=84)
case("fused_elemwise_activation", functor_list=["sigmoid", "elementwise_add"], X=x, Y=y,
     out={"Out": sigmoid(d(x) + d(y))}, grad="Y")
x, y = rand(40, 5000, seed=82, low=-2, high=2), rand(5000, seed=83)
case("fused_elemwise_activation", X=x, Y=y, out={"Out": np.maximum(d(x) + d(y), 0)})
x, y = f32([[1, -2, 3], [-0.5, 2, -1]]), f32([0.25, 0.5, -0.25])
case("fused_elemwise_activation", X=x, Y=y, out={"Out": np.maximum(d(x) + d(y), 0)}, grad="X Y")
fail("fused_elemwise_activation", "unsupported attribute 'functor_list' of fused_elemwise_activation",
     functor_list=["exp", "elementwise_add"], X=Shape(2, 3), Y=Shape(3))
fail("fused_elemwise_activation", "input 'X' of fused_elemwise_activation has the wrong shape", X=Shape(1, 3), Y=Shape(2, 3),
     )

# reductions
x = rand(2, 3, 4, 5, seed=90, low=0.5, high=1.5)
folds = {"sum": np.sum, "mean": np.mean, "prod": np.prod}
for name, function in folds.items():
    for dim, keep in [([0], False), ([-1], True), ([1, 2], False), ([0, 1, 2, 3], False), ([0, 2], True)]:
        value = function(d(x), axis=tuple(dim), keepdims=keep)
        case(f"reduce_{name}", X=x, dim=dim, keep_dim=keep, out={"Out": value.reshape(value.shape or (1,))},
             grad="X")
    case(f"reduce_{name}", X=x, reduce_all=True, out={"Out": function(d(x)).reshape(1)}, grad="X")
    fail(f"reduce_{name}", "axis 4 is outside shape [2, 3, 4, 5]", X=Shape(2, 3, 4, 5), dim=[4])
order = np.random.default_rng(1).permutation(24)
x = (order.reshape(2, 3, 4) * 0.5).astype(np.float32)
for name, function in [("max", np.max), ("min", np.min)]:
    for dim, keep in [([0], False), ([2], True), ([0, 1], False)]:
        case(f"reduce_{name}", X=x, dim=dim, keep_dim=keep, out={"Out": function(x, axis=tuple(dim), keepdims=keep)},
             grad="X")
    case(f"reduce_{name}", X=x.astype(np.int64), dim=[1], out={"Out": function(x.astype(np.int64), axis=1)})
    fail(f"reduce_{name}", "axis 3 is outside", X=Shape(2, 3, 4), dim=[3])
case("reduce_sum", X=i64([[1, 2], [3, 4]]), dim=[1], out={"Out": i64([3, 7])})
x = rand(300, 700, seed=91)
case("reduce_sum", X=x, dim=[0], out={"Out": d(x).sum(0)}, tol="1e-5 1e-4")
case("reduce_mean", X=x, dim=[1], out={"Out": d(x).mean(1)})
case("mean", X=x, out={"Out": d(x).mean().reshape(1)}, grad="X", diff="0.5 0.01")
case("mean", X=rand(4, 3, seed=92), out={"Out": d(rand(4, 3, seed=92)).mean().reshape(1)}, grad="X")
case("mean", X=np.float16([1, 2, 4.5]), out={"Out": np.float16([2.5])})
fail("mean", "input slot 'X' of op 'mean' has the wrong size")

# sum
a, b, c = rand(2, 3, seed=100), rand(2, 3, seed=101), rand(2, 3, seed=102)
case("sum", X=[a, b, c], out={"Out": d(a) + d(b) + d(c)}, grad="X")
case("sum", X=[a], out={"Out": d(a)}, grad="X")
big = [rand(70, 300, seed=s) for s in (1, 2, 3)]
case("sum", X=big, out={"Out": sum(d(x) for x in big)})
r, s = Rows([1, 3, 1], rand(3, 2, seed=103), 4), Rows([0, 3], rand(2, 2, seed=104), 4)
case("sum", X=[r, s], out={"Out": r.dense() + s.dense()}, static=True)
dense = rand(4, 2, seed=105)
case("sum", X=[dense, r, s], out={"Out": d(dense) + r.dense() + s.dense()}, static=True)
case("sum", X=[r, dense], out={"Out": d(dense) + r.dense()}, static=True)
fail("sum", "input 'X' of sum holds variables that cannot be added", "expected f32[2, 3], got f32[3, 2]",
     X=[Shape(2, 3), Shape(3, 2)])
fail("sum", "missing input 'X' of op 'sum'")

# norms
x = rand(30, 41, seed=110)
case("squared_l2_norm", X=x, out={"Out": np.square(d(x)).sum().reshape(1)}, grad="X")
case("squared_l2_norm", X=r, out={"Out": np.square(r.dense()).sum().reshape(1)}, static=True)
fail("squared_l2_norm", "wrong element type", X=Shape(3, dtype="i64"))
x = f32([3, 4])
case("clip_by_norm", X=x, max_norm=1.0, out={"Out": f32([0.6, 0.8])})
case("clip_by_norm", X=x, max_norm=6.0, out={"Out": x})
norm = np.sqrt(np.square(r.dense()).sum())
case("clip_by_norm", X=r, max_norm=0.5, out={"Out": r.dense() * 0.5 / norm}, static=True)
# Of a batch without ids.
none = Rows([], np.zeros((0, 2), np.float32), 4)
case("squared_l2_norm", X=none, out={"Out": f32([0])}, static=True)
for name, keys in [("clip_by_norm", {"max_norm": 0.5}), ("scale", {"scale": 2.0}), ("assign", {})]:
    case(name, X=none, out={"Out": Shape(4, 2)}, static=True, **keys)
fail("clip_by_norm", "attribute 'max_norm' of clip_by_norm is out of range", X=Shape(3), max_norm=0.0)
case("global_norm_scale", X=[f32([9]), f32([16])], clip_norm=2.0, out={"Out": f32([0.4]), "Norm": f32([5])}, static=True)
case("global_norm_scale", X=[f32([9]), f32([16])], clip_norm=7.0, out={"Out": f32([1]), "Norm": f32([5])}, static=True)
fail("global_norm_scale", "input 'X' of global_norm_scale does not hold squared norms", X=[Shape(2)], clip_norm=1.0)

# order
x = (np.random.default_rng(2).permutation(60).reshape(3, 4, 5)).astype(np.float32)
for name, function in [("arg_max", np.argmax), ("arg_min", np.argmin)]:
    for axis in [0, 1, -1]:
        case(name, X=x, axis=axis, out={"Out": function(x, axis=axis)})
    case(name, X=x, axis=1, keepdims=True, out={"Out": np.expand_dims(function(x, axis=1), 1)})
    case(name, X=x.astype(np.int64), flatten=True, out={"Out": i64([function(x)])})
    case(name, X=f32([2, 1, 1, 2]), out={"Out": i64([function(f32([2, 1, 1, 2]))])})
    fail(name, "axis 3 is outside shape [2, 3]", X=Shape(2, 3), axis=3)
    fail(name, "over an empty dimension", X=Shape(2, 0))
x = rand(3, 4, 5, seed=120)
for axis in [0, 1, -1]:
    case("cumsum", X=x, axis=axis, out={"Out": np.cumsum(d(x), axis)}, grad="X")
flipped = np.flip(np.cumsum(np.flip(d(x), 1), 1), 1)
case("cumsum", X=x, axis=1, reverse=True, out={"Out": flipped}, grad="X")
case("cumsum", X=x, axis=1, reverse=True, exclusive=True, out={"Out": flipped - d(x)}, grad="X")
case("cumsum", X=x, axis=0, exclusive=True, out={"Out": np.cumsum(d(x), 0) - d(x)}, grad="X")
case("cumsum", X=i64([1, 2, 3]), out={"Out": i64([1, 3, 6])})
fail("cumsum", "axis 2 is outside", X=Shape(2, 3), axis=2)
x = (np.random.default_rng(3).permutation(60).reshape(3, 4, 5) * 0.5).astype(np.float32)
for k, axis, largest in [(1, -1, True), (3, -1, True), (2, 1, False), (2, 0, True)]:
    index = np.argsort(-x if largest else x, axis=axis, kind="stable")
    index = np.take(index, range(k), axis=axis)
    case("top_k_v2", X=x, k=k, axis=axis, largest=largest, static=axis == 0, grad="X",
         out={"Out": np.take_along_axis(x, index, axis), "Indices": index.astype(np.int64)})
case("top_k_v2", X=f32([1, 3, 3, 2, 3]), k=4, out={"Out": f32([3, 3, 3, 2]), "Indices": i64([1, 2, 4, 3])}, static=True)
case("top_k_v2", X=f32([3, np.nan, 5]), k=3, out={"Out": f32([np.nan, 5, 3]), "Indices": i64([1, 2, 0])}, static=True)
case("top_k_v2", X=f32([[3], [np.nan], [5]]), k=3, axis=0, out={"Out": f32([[np.nan], [5], [3]]), "Indices": i64([[1], [2], [0]])}, static=True)
fail("top_k_v2", "attribute 'k' of top_k_v2 is out of range", "got 4", X=Shape(2, 3), k=4)
