"""Cases of the layers."""
import numpy as np
from make import Rows, Shape, case, f32, fail, i64, rand


def d(x):
    return np.asarray(x, np.float64)


# Embedding

table = rand(7, 3, seed=1)
ids = i64([[2, 0], [6, 2], [5, 5]])
case("lookup_table_v2", W=table, Ids=ids, out={"Out": d(table)[ids]}, grad="W", static=True)
padded = np.where((ids == 2)[..., None], 0, d(table)[ids])
case("lookup_table_v2", W=table, Ids=ids, padding_idx=2, out={"Out": padded}, grad="W", static=True)
case("lookup_table_v2", W=table, Ids=i64([], (0,)), out={"Out": f32([], (0, 3))}, static=True)
case("lookup_table", W=table, Ids=ids.reshape(3, 2, 1), out={"Out": d(table)[ids]}, grad="W", static=True)
dy = rand(3, 2, 3, seed=2)
dense = np.zeros((7, 3))
np.add.at(dense, ids.ravel(), d(dy).reshape(6, 3))
for op, shape in [("lookup_table_v2_grad", (3, 2)), ("lookup_table_grad", (3, 2, 1))]:
    case(op, inputs={"W": table, "Ids": ids.reshape(shape), "Out@GRAD": dy}, out={"W@GRAD": dense}, static=True)
    case(op, inputs={"W": table, "Ids": ids.reshape(shape), "Out@GRAD": dy}, is_sparse=True,
         out={"W@GRAD": dense}, static=True)
    without = dense.copy()
    without[2] = 0
    for is_sparse in [False, True]:
        case(op, inputs={"W": table, "Ids": ids.reshape(shape), "Out@GRAD": dy}, is_sparse=is_sparse,
             padding_idx=2, out={"W@GRAD": without}, static=True)
fail("lookup_table_v2", "id at position 1 is out of range: expected 0 to 6, got 7", W=table, Ids=i64([1, 7]))
fail("lookup_table_v2_grad", "id at position 0 is out of range: expected 0 to 6, got -1", is_sparse=True,
     inputs={"W": table, "Ids": i64([-1, 3]), "Out@GRAD": rand(2, 3)})
fail("lookup_table_v2", "input 'W' of lookup_table_v2 has the wrong number of dimensions: expected 2, got 1 (shape [7])",
     W=Shape(7), Ids=Shape(2, dtype="i64"))
fail("lookup_table_v2", "input 'Ids' of lookup_table_v2 has the wrong element type: expected i64, got f32",
     W=Shape(7, 3), Ids=Shape(2))
fail("lookup_table", "input 'Ids' of lookup_table does not end in a dimension of 1: expected [..., 1], got [3, 2]",
     "lookup_table_v2 takes ids of any shape", W=Shape(7, 3), Ids=Shape(3, 2, dtype="i64"))

# Batch norm


def batch_norm(x, scale, bias, mean, variance, epsilon=1e-5, momentum=0.9, frozen=False, layout="NCHW", z=None,
               relu=False):
    x = d(x)
    axis = 1 if layout == "NCHW" else x.ndim - 1
    axes = tuple(i for i in range(x.ndim) if i != axis)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    m, v = (d(mean), d(variance)) if frozen else (x.mean(axes), x.var(axes))
    y = (x - m.reshape(shape)) / np.sqrt(v.reshape(shape) + epsilon) * d(scale).reshape(shape)
    y = y + d(bias).reshape(shape)
    if z is not None:
        y = y + d(z)
    if relu:
        y = np.maximum(y, 0)
    mo = d(mean) if frozen else d(mean) * momentum + m * (1 - momentum)
    vo = d(variance) if frozen else d(variance) * momentum + v * (1 - momentum)
    return {"Y": y, "MeanOut": mo, "VarianceOut": vo, "SavedMean": m, "SavedVariance": 1 / np.sqrt(v + epsilon)}


SAME = ["MeanOut Mean", "VarianceOut Variance"]


def norm_inputs(c):
    return {"Scale": rand(c, seed=11, low=0.5, high=1.5), "Bias": rand(c, seed=12),
            "Mean": rand(c, seed=13), "Variance": rand(c, seed=14, low=0.5, high=1.5)}


def norm_args(n):
    return (n["Scale"], n["Bias"], n["Mean"], n["Variance"])


for layout, shape in [("NCHW", (3, 2, 2, 3)), ("NHWC", (3, 2, 3, 2)), ("NCHW", (6, 3)), ("NCHW", (4, 3, 5)),
                      ("NHWC", (2, 3, 3, 70))]:
    c = shape[1] if layout == "NCHW" else shape[-1]
    x, n = rand(*shape, seed=10), norm_inputs(c)
    wrt = "X Scale Bias" if np.prod(shape) < 100 else "Scale Bias"
    case("batch_norm", X=x, **n, data_layout=layout, same=SAME, grad=wrt, loss="Y", diff="0.03 0.01",
         out=batch_norm(x, *norm_args(n), layout=layout), tol="1e-4 1e-5")
    for frozen in ["is_test", "use_global_stats"]:
        case("batch_norm", X=x, **n, data_layout=layout, same=SAME, grad=wrt, loss="Y", tol="1e-4 1e-5",
             out=batch_norm(x, *norm_args(n), layout=layout, frozen=True), **{frozen: True})
x, n = rand(5, 2, 2, 2, seed=15, low=2, high=4), norm_inputs(2)
case("batch_norm", X=x, **n, momentum=0.5, epsilon=0.1, out=batch_norm(x, *norm_args(n), 0.1, 0.5), tol="1e-4 1e-5")
# Sums that a convolution took: 20 rows in two blocks of 12 and 8.
rows = d(rand(20, 3, seed=16))
blocks = [rows[:12], rows[12:]]
stats = f32(np.stack([np.stack([b.sum(0), (b * b).sum(0)]) for b in blocks]))
x, n = rand(20, 3, seed=16), norm_inputs(3)
case("batch_norm", X=x, Stats=stats, **n, out=batch_norm(x, *norm_args(n)), tol="1e-4 1e-5", same=SAME)
fail("batch_norm", "input 'Scale' of batch_norm has the wrong shape: expected [3], got [2]",
     X=Shape(2, 3, 4, 4), Scale=Shape(2), Bias=Shape(3), Mean=Shape(3), Variance=Shape(3))
fail("batch_norm", "unknown data_layout of batch_norm: expected NCHW or NHWC, got NHCW", data_layout="NHCW",
     X=Shape(2, 3, 4, 4), Scale=Shape(2), Bias=Shape(3), Mean=Shape(3), Variance=Shape(3))
fail("batch_norm", "input 'X' of batch_norm has the wrong number of dimensions: expected 2 to 5, got 1 (shape [3])",
     X=Shape(3), Scale=Shape(3), Bias=Shape(3), Mean=Shape(3), Variance=Shape(3))

for layout, shape in [("NCHW", (3, 2, 2, 3)), ("NHWC", (3, 2, 3, 2)), ("NHWC", (2, 3, 3, 70))]:
    c = shape[1] if layout == "NCHW" else shape[-1]
    x, z, n = rand(*shape, seed=20), rand(*shape, seed=21), norm_inputs(c)
    # Hundreds of elements have kinks within any step.
    wrt = "X Scale Bias" if np.prod(shape) < 100 else None
    for frozen in [False, True]:
        case("fused_batch_norm_act", X=x, **n, data_layout=layout, is_test=frozen, same=SAME, grad=wrt, loss="Y",
             diff="0.002 0.02", tol="1e-4 1e-5",
             out=batch_norm(x, *norm_args(n), layout=layout, frozen=frozen, relu=True))
        case("fused_bn_add_activation", X=x, Z=z, **n, data_layout=layout, is_test=frozen, same=SAME,
             grad=wrt and wrt + " Z", loss="Y", diff="0.002 0.02", tol="1e-4 1e-5",
             out=batch_norm(x, *norm_args(n), layout=layout, frozen=frozen, z=z, relu=True))
fail("fused_batch_norm_act", "fused_batch_norm_act has no such activation: expected relu, got tanh", act_type="tanh",
     X=Shape(2, 3), Scale=Shape(3), Bias=Shape(3), Mean=Shape(3), Variance=Shape(3))
fail("fused_bn_add_activation", "input 'Z' of fused_bn_add_activation has the wrong shape: expected [2, 3], got [2, 4]",
     X=Shape(2, 3), Z=Shape(2, 4), Scale=Shape(3), Bias=Shape(3), Mean=Shape(3), Variance=Shape(3))


def norm_backward(x, n, dy, layout, frozen, relu, z=None, epsilon=1e-5):
    """Gradients by the chain rule, written out."""
    x, dy = d(x), d(dy)
    axis = 1 if layout == "NCHW" else x.ndim - 1
    axes = tuple(i for i in range(x.ndim) if i != axis)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    out = batch_norm(x, *norm_args(n), epsilon=epsilon, frozen=frozen, layout=layout, z=z, relu=relu)
    g = np.where(out["Y"] > 0, dy, 0) if relu else dy
    inv = out["SavedVariance"].reshape(shape)
    hat = (x - out["SavedMean"].reshape(shape)) * inv
    dscale, dbias = (g * hat).sum(axes), g.sum(axes)
    count = x.size // x.shape[axis]
    dx = g if frozen else g - dbias.reshape(shape) / count - hat * dscale.reshape(shape) / count
    grads = {"X@GRAD": dx * inv * d(n["Scale"]).reshape(shape), "Scale@GRAD": dscale, "Bias@GRAD": dbias}
    if z is not None:
        grads["Z@GRAD"] = g
    return out, grads


for layout, shape in [("NCHW", (3, 2, 2, 3)), ("NHWC", (1, 2, 3, 70))]:
    c = shape[1] if layout == "NCHW" else shape[-1]
    x, z, dy, n = rand(*shape, seed=20), rand(*shape, seed=21), rand(*shape, seed=22), norm_inputs(c)
    more = rand(*shape, seed=23)
    for frozen in [False, True]:
        for op, relu, zz in [("batch_norm", False, None), ("fused_batch_norm_act", True, None),
                             ("fused_bn_add_activation", True, z)]:
            for addend in [None, more]:
                total = d(dy) + (0 if addend is None else d(addend))
                out, grads = norm_backward(x, n, total, layout, frozen, relu, zz)
                inputs = {"X": x, "Scale": n["Scale"], "Bias": n["Bias"], "SavedMean": f32(out["SavedMean"]),
                          "SavedVariance": f32(out["SavedVariance"]), "Y@GRAD": dy}
                if zz is not None:
                    inputs["Y"] = f32(out["Y"])
                if addend is not None:
                    inputs["Addend"] = addend
                case(op + "_grad", inputs=inputs, data_layout=layout, is_test=frozen, out=grads, tol="1e-4 1e-5")
                if addend is None and not frozen:
                    del grads["X@GRAD"]
                    case(op + "_grad", inputs=inputs, data_layout=layout, out=grads, tol="1e-4 1e-5")

# Softmax


def softmax(x, axis=-1):
    e = np.exp(d(x) - d(x).max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


for shape, axis in [((3, 5), -1), ((2, 4, 3), 1), ((2, 3, 4), 0), ((7,), 0)]:
    x = rand(*shape, seed=30, low=-3, high=3)
    case("softmax", X=x, axis=axis, out={"Out": softmax(x, axis)}, grad="X")
    case("log_softmax", X=x, axis=axis, out={"Out": np.log(softmax(x, axis))}, grad="X")
    y, dy = softmax(x, axis), rand(*shape, seed=31)
    dx = (d(dy) - (d(dy) * y).sum(axis, keepdims=True)) * y
    case("softmax_grad", axis=axis, inputs={"Out": f32(y), "Out@GRAD": dy}, out={"X@GRAD": dx})
    dx = d(dy) - y * d(dy).sum(axis, keepdims=True)
    case("log_softmax_grad", axis=axis, inputs={"Out": f32(np.log(y)), "Out@GRAD": dy}, out={"X@GRAD": dx})
x = rand(80, 300, seed=32, low=-9, high=9)
case("softmax", X=x, out={"Out": softmax(x)})
case("log_softmax", X=x, out={"Out": np.log(softmax(x))})
case("softmax", X=f32([[1e4, 0, -1e4]]), out={"Out": f32([[1, 0, 0]])})
for op in ["softmax", "log_softmax"]:
    fail(op, "axis 2 is outside shape [3, 4]", axis=2, X=Shape(3, 4))
    fail(op, f"input 'X' of {op} has the wrong element type: expected f32, got i64", X=Shape(3, 4, dtype="i64"))

# Layer norm


def layer_norm(x, scale=None, bias=None, epsilon=1e-5, begin=1):
    rows = int(np.prod(x.shape[:begin]))
    flat = d(x).reshape(rows, -1)
    mean, var = flat.mean(1), flat.var(1)
    inv = 1 / np.sqrt(var + epsilon)
    y = (flat - mean[:, None]) * inv[:, None]
    y = y * (1 if scale is None else d(scale).ravel()) + (0 if bias is None else d(bias).ravel())
    return {"Y": y.reshape(x.shape), "Mean": mean, "Variance": inv}


for shape, begin in [((4, 6), 1), ((2, 3, 5), 2), ((2, 3, 5), 1), ((3, 7), -1)]:
    x = rand(*shape, seed=40, low=-2, high=2)
    width = int(np.prod(shape[begin:]))
    scale, bias = rand(width, seed=41, low=0.5, high=1.5), rand(width, seed=42)
    at = begin % len(shape)
    tol = {"tol": "1e-4 1e-5"}
    case("layer_norm", X=x, Scale=scale, Bias=bias, begin_norm_axis=begin, grad="X Scale Bias", loss="Y",
         out=layer_norm(x, scale, bias, begin=at), **tol)
    case("layer_norm", X=x, begin_norm_axis=begin, grad="X", loss="Y", out=layer_norm(x, begin=at), **tol)
    case("layer_norm", X=x, Bias=bias, begin_norm_axis=begin, epsilon=0.1, grad="X Bias", loss="Y",
         out=layer_norm(x, None, bias, 0.1, at), **tol)
    other = rand(*shape, seed=43)
    out = layer_norm(d(x) + d(other), scale, bias, begin=at)
    out["Sum"] = d(x) + d(other)
    for loss in ["Y", "Sum", "Y Sum"]:
        case("layer_norm", X=x, Scale=scale, Bias=bias, Residual=other, begin_norm_axis=begin, out=out,
             grad="X Residual Scale Bias" if "Y" in loss else "X Residual", loss=loss, **tol)
x = rand(50, 400, seed=44, low=-2, high=5)
scale, bias = rand(400, seed=41, low=0.5, high=1.5), rand(400, seed=42)
case("layer_norm", X=x, Scale=scale, Bias=bias, out=layer_norm(x, scale, bias), tol="1e-4 1e-5")
dy, flat = rand(50, 400, seed=45), layer_norm(x)
g, hat = d(dy) * d(scale), flat["Y"]
dx = (g - g.mean(1, keepdims=True) - hat * (g * hat).mean(1, keepdims=True)) * flat["Variance"][:, None]
back = {"X@GRAD": dx, "Scale@GRAD": (d(dy) * hat).sum(0), "Bias@GRAD": d(dy).sum(0)}
inputs = {"X": x, "Scale": scale, "Mean": f32(flat["Mean"]), "Variance": f32(flat["Variance"]), "Y@GRAD": dy}
case("layer_norm_grad", inputs=inputs, out=back, tol="1e-4 1e-4")
case("layer_norm_grad", inputs=inputs, out={"Scale@GRAD": back["Scale@GRAD"]}, tol="1e-4 1e-4")
skip = rand(50, 400, seed=46)
case("layer_norm_grad", inputs={**inputs, "Skip": skip}, out={"X@GRAD": dx + d(skip)}, tol="1e-4 1e-4")
fail("layer_norm",
     "input 'Scale' of layer_norm does not have one number for each normalised element: expected 12, got [4]",
     X=Shape(2, 3, 4), Scale=Shape(4))
fail("layer_norm", "axis 3 is outside shape [2, 3, 4]", X=Shape(2, 3, 4), begin_norm_axis=3)
fail("layer_norm", "input 'Residual' of layer_norm has the wrong shape", X=Shape(2, 3, 4), Residual=Shape(2, 3, 1))

# Attention


def attention(q, k, v, mask=None, scale=None, causal=False):
    q, k, v = d(q), d(k), d(v)
    s = np.einsum("bqhd,bkhd->bhqk", q, k) * (scale or 1 / np.sqrt(q.shape[-1]))
    if mask is not None:
        s = s + d(mask)
    if causal:
        tq, tk = s.shape[-2:]
        s = np.where(np.arange(tk)[None, :] <= np.arange(tq)[:, None] + tk - tq, s, -np.inf)
    top = s.max(-1, keepdims=True)
    e = np.exp(s - top)
    total = e.sum(-1, keepdims=True)
    return {"Out": np.einsum("bhqk,bkhd->bqhd", e / total, v), "SoftmaxLse": (top + np.log(total))[..., 0]}


for b, tq, tk, h, dim in [(2, 3, 3, 2, 4), (1, 2, 5, 1, 3)]:
    q, k, v = [rand(b, t, h, dim, seed=50 + i) for i, t in enumerate([tq, tk, tk])]
    mask = rand(b, 1, 1, tk, seed=53, low=-2, high=0)
    for keys in [{}, {"scale": 0.7}, {"causal": True}]:
        for m in [None, mask]:
            named = {} if m is None else {"Mask": m}
            case("flash_attn", Q=q, K=k, V=v, **named, **keys, out=attention(q, k, v, m, **keys), grad="Q K V",
                 loss="Out", tol="1e-4 1e-5", static=True)
# Longer than the tiles of the kernel.
q, k, v = [rand(1, 150, 2, 32, seed=54 + i) for i in range(3)]
for causal in [False, True]:
    case("flash_attn", Q=q, K=k, V=v, causal=causal, out=attention(q, k, v, causal=causal), tol="1e-4 1e-5")
q, k, v = [rand(1, 6, 2, 4, seed=50 + i) for i in range(3)]
case("flash_attn", Q=q, K=k, V=v, dropout_prob=0.5, stream=3, run_step=4, grad="Q K V", loss="Out")
case("flash_attn", Q=q, K=k, V=v, dropout_prob=0.5, is_test=True, out=attention(q, k, v), tol="1e-4 1e-5")
for time, causal in [(4, False), (3, True), (140, True)]:
    qkv = rand(2, time, 3, 2, 4, seed=57)
    parts = [np.asarray(qkv)[:, :, i] for i in range(3)]
    mask = rand(1, 2, time, time, seed=58) if time < 10 else None
    named = {} if mask is None else {"Mask": mask}
    case("flash_attn_qkvpacked", QKV=qkv, **named, causal=causal, out=attention(*parts, mask, causal=causal),
         tol="1e-4 1e-5", static=True, **({"grad": "QKV", "loss": "Out"} if time < 10 else {}))
case("flash_attn_qkvpacked", QKV=rand(2, 5, 3, 2, 4, seed=57), dropout_prob=0.3, seed=9, grad="QKV", loss="Out")
fail("flash_attn", "input 'K' of flash_attn has the wrong shape: expected [2, -1, 4, 8], got [2, 7, 4, 9]",
     Q=Shape(2, 5, 4, 8), K=Shape(2, 7, 4, 9), V=Shape(2, 7, 4, 9))
fail("flash_attn", "input 'Mask' of flash_attn does not broadcast to the scores: expected [2, 4, 5, 7], got [2, 1, 5, 5]",
     Q=Shape(2, 5, 4, 8), K=Shape(2, 7, 4, 8), V=Shape(2, 7, 4, 8), Mask=Shape(2, 1, 5, 5))
fail("flash_attn", "dropout_prob of flash_attn is wrong: expected at least 0 and below 1, got 1", dropout_prob=1.0,
     Q=Shape(2, 5, 4, 8), K=Shape(2, 7, 4, 8), V=Shape(2, 7, 4, 8))
fail("flash_attn_qkvpacked", "input 'QKV' of flash_attn_qkvpacked has the wrong shape: expected [-1, -1, 3, -1, -1]",
     QKV=Shape(2, 5, 2, 4, 8))

