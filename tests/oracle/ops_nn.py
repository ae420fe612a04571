"""Cases of the layers."""
import numpy as np
from make import Packed, Shape, Value, case, f32, fail, i64, rand


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
     "use lookup_table_v2, which supports ids of any shape", W=Shape(7, 3), Ids=Shape(3, 2, dtype="i64"))

# Embedding rows beside other columns, as one op

rest = [rand(3, 2, seed=4), rand(3, 1, seed=5)]
for padding, rows in [(-1, d(table)[ids]), (2, padded)]:
    case("fused_embedding_concat", W=table, Ids=ids, Rest=rest, padding_idx=padding,
         out={"Out": np.concatenate([rows.reshape(3, 6), *rest], 1)}, grad="W Rest", static=True)
case("fused_embedding_concat", W=table, Ids=ids[:, :1], Rest=rest[:1],
     out={"Out": np.concatenate([d(table)[ids[:, 0]], rest[0]], 1)}, grad="W Rest", static=True)
wide = np.concatenate([d(dy).reshape(3, 6), rand(3, 3, seed=6)], 1).astype(np.float32)
for is_sparse in [False, True]:
    for padding, expected in [(-1, dense), (2, without)]:
        case("fused_embedding_concat_grad", is_sparse=is_sparse, padding_idx=padding,
             inputs={"W": table, "Ids": ids, "Rest": rest, "Out@GRAD": wide}, out={"W@GRAD": expected}, static=True)
fail("fused_embedding_concat", "id at position 3 is out of range: expected 0 to 6, got 7", W=table,
     Ids=i64([[0, 1], [2, 7], [0, 0]]), Rest=rest)
fail("fused_embedding_concat", "input 'Rest' of fused_embedding_concat holds a variable of the wrong type or shape",
     "expected f32[3, any], got f32[4, 2]", W=Shape(7, 3), Ids=Shape(3, 2, dtype="i64"), Rest=[Shape(4, 2)])

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
fail("fused_batch_norm_act", "unknown activation of fused_batch_norm_act: expected relu, got tanh", act_type="tanh",
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
    fail(op, f"input 'X' of {op} has the wrong element type: expected f32 or f16 or bf16, got i64",
         X=Shape(3, 4, dtype="i64"))

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
     "input 'Scale' of layer_norm does not have one number per normalized element: expected 12, got [4]",
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

# Convolution


def pads_of(paddings, algorithm, image, kernel, stride):
    if algorithm == "VALID":
        return [[0, 0], [0, 0]]
    if algorithm == "SAME":
        out = []
        for size, k, s in zip(image, kernel, stride):
            total = max((-(-size // s) - 1) * s + k - size, 0)
            out.append([total // 2, total - total // 2])
        return out
    p = paddings
    return [[p[0], p[0]], [p[1], p[1]]] if len(p) == 2 else [[p[0], p[1]], [p[2], p[3]]]


def conv2d(x, w, strides=(1, 1), paddings=(0, 0), dilations=(1, 1), groups=1, padding_algorithm="EXPLICIT",
           data_format="NCHW"):
    x, w = d(x), d(w)
    if data_format == "NHWC":
        x = x.transpose(0, 3, 1, 2)
    if padding_algorithm == "SAME":
        dilations = (1, 1)
    kernel = w.shape[2:]
    pads = pads_of(list(paddings), padding_algorithm, x.shape[2:], kernel, strides)
    x = np.pad(x, [(0, 0), (0, 0)] + [tuple(p) for p in pads])
    size = [(x.shape[2 + i] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1 for i in range(2)]
    co, ci = w.shape[:2]
    y = np.zeros((x.shape[0], co, *size))
    for g in range(groups):
        outs = slice(g * co // groups, (g + 1) * co // groups)
        for a in range(kernel[0]):
            for b in range(kernel[1]):
                r, c = a * dilations[0], b * dilations[1]
                part = x[:, g * ci:(g + 1) * ci, r:r + (size[0] - 1) * strides[0] + 1:strides[0],
                         c:c + (size[1] - 1) * strides[1] + 1:strides[1]]
                y[:, outs] += np.einsum("ncij,oc->noij", part, w[outs, :, a, b])
    return y.transpose(0, 2, 3, 1) if data_format == "NHWC" else y


def channels_last(x):
    return f32(np.ascontiguousarray(np.asarray(x).transpose(0, 2, 3, 1)))


CONVS = [
    ((2, 3, 5, 4), (4, 3, 3, 3), {"paddings": [1, 1]}),
    ((1, 2, 7, 6), (3, 2, 3, 2), {"strides": [2, 1], "paddings": [1, 0, 0, 1]}),
    ((2, 4, 5, 5), (6, 2, 3, 3), {"groups": 2, "paddings": [1, 1], "strides": [2, 2]}),
    ((1, 3, 8, 8), (2, 3, 3, 3), {"dilations": [2, 2], "paddings": [2, 2]}),
    ((1, 2, 6, 5), (2, 2, 4, 3), {"padding_algorithm": "SAME", "strides": [2, 2], "paddings": [9, 9]}),
    ((1, 2, 6, 5), (2, 2, 4, 3), {"padding_algorithm": "VALID", "paddings": [9, 9]}),
    ((2, 5, 3, 3), (7, 5, 1, 1), {}),
]
for xs, ws, keys in CONVS:
    x, w = rand(*xs, seed=60), rand(*ws, seed=61)
    bias = rand(ws[0], seed=62)
    last = channels_last(x)
    y = conv2d(x, w, **keys)
    tol = {"tol": "1e-4 1e-5"}
    case("conv2d", Input=x, Filter=w, **keys, out={"Output": y}, grad="Input Filter", **tol)
    nhwc = conv2d(last, w, data_format="NHWC", **keys)
    rows = nhwc.reshape(-1, ws[0])
    case("conv2d", Input=last, Filter=w, Bias=bias, data_format="NHWC", **keys, out={"Output": nhwc + d(bias)},
         grad="Input Filter Bias", **tol)
    case("conv2d", Input=x, Filter=w, Bias=bias, activation="relu", **keys, **tol,
         out={"Output": np.maximum(y + d(bias).reshape(1, -1, 1, 1), 0)}, grad="Input Filter Bias", diff="0.001 0.04")
    # The packed filter is the same filter.
    if keys.get("groups", 1) == 1:
        case("conv2d", Input=last, Filter=Packed(w), data_format="NHWC", **keys, out={"Output": nhwc}, **tol)
        dy = rand(*nhwc.shape, seed=63)
        dw = np.zeros(ws)
        for index in np.ndindex(*ws):
            hot = np.zeros(ws)
            hot[index] = 1
            dw[index] = (conv2d(last, hot, data_format="NHWC", **keys) * d(dy)).sum()
        inputs = {"Input": last, "Filter": Packed(w), "Output@GRAD": dy}
        case("conv2d_grad", inputs=inputs, data_format="NHWC", **keys, **tol,
             out={"Filter@GRAD": Packed(dw), "Bias@GRAD": d(dy).reshape(-1, ws[0]).sum(0)})
residual = rand(2, 4, 5, 4, seed=63)
x, w = rand(2, 3, 5, 4, seed=60), rand(4, 3, 3, 3, seed=61)
y = conv2d(x, w, paddings=[1, 1]) + d(residual)
case("conv2d", Input=x, Filter=w, ResidualData=residual, paddings=[1, 1], out={"Output": y},
     grad="Input Filter ResidualData", tol="1e-4 1e-5")
case("conv2d", Input=x, Filter=w, ResidualData=residual, paddings=[1, 1], activation="relu",
     out={"Output": np.maximum(y, 0)}, grad="Input Filter ResidualData", tol="1e-4 1e-5", diff="0.001 0.04")
# Wider than a panel of channels, and more pixels than a task.
x, w = rand(2, 20, 20, 16, seed=64), rand(70, 16, 3, 3, seed=65)
case("conv2d", Input=x, Filter=w, data_format="NHWC", paddings=[1, 1], tol="1e-4 1e-4",
     out={"Output": conv2d(x, w, data_format="NHWC", paddings=[1, 1])})
# A 1x1 filter without padding has known sums: Stats are checked in their sum, one block.
x, w = rand(1, 2, 2, 3, seed=66), rand(5, 3, 1, 1, seed=67)
y = conv2d(x, w, data_format="NHWC")
rows = y.reshape(-1, 5)
case("conv2d", Input=x, Filter=w, data_format="NHWC", tol="1e-4 1e-5", static=True,
     out={"Output": y, "Stats": np.stack([rows.sum(0), (rows**2).sum(0)]).reshape(1, 2, 5)})
x, w = rand(1, 4, 3, 3, seed=68), rand(6, 2, 1, 1, seed=69)
y = conv2d(x, w, groups=2)
rows = y.transpose(0, 2, 3, 1).reshape(-1, 6)
case("conv2d", Input=x, Filter=w, groups=2, tol="1e-4 1e-5", static=True,
     out={"Output": y, "Stats": np.stack([rows.sum(0), (rows**2).sum(0)]).reshape(1, 2, 6)})
for fmt in ["NCHW", "NHWC"]:
    for keys in [{"paddings": [1, 1]}, {"strides": [2, 2], "paddings": [1, 1]}]:
        x, w = rand(2, 4, 5, 6, seed=70), rand(4, 1, 3, 3, seed=71)
        x = x if fmt == "NCHW" else channels_last(x)
        case("depthwise_conv2d", Input=x, Filter=w, groups=4, data_format=fmt, **keys, grad="Input Filter",
             out={"Output": conv2d(x, w, groups=4, data_format=fmt, **keys)}, tol="1e-4 1e-5")
        clipped = f32(np.maximum(np.asarray(x), 0))
        case("depthwise_conv2d", Input=x, Filter=w, groups=4, data_format=fmt, **keys, grad="Input Filter",
             fuse_relu_before_depthwise_conv=True, diff="0.001 0.04", tol="1e-4 1e-5",
             out={"Output": conv2d(clipped, w, groups=4, data_format=fmt, **keys)})
fail("conv2d", "input 'Filter' of conv2d does not fit the channels of the input",
     "expected 3 input channels in 1 groups, got 4 per group (shape [8, 4, 3, 3])",
     Input=Shape(2, 3, 8, 8), Filter=Shape(8, 4, 3, 3))
fail("conv2d", "attribute 'groups' of conv2d is wrong: expected a divisor of the 8 output channels, got 3", groups=3,
     Input=Shape(2, 12, 8, 8), Filter=Shape(8, 4, 3, 3))
fail("conv2d", "the window of conv2d does not fit the image: expected at least 5 rows, got 4, padding included",
     Input=Shape(2, 3, 4, 8), Filter=Shape(8, 3, 5, 5))
fail("conv2d", "attribute 'strides' of conv2d is wrong: expected 1 or 2 numbers of 1 to 2147483647, got [0, 1]",
     strides=[0, 1], Input=Shape(2, 3, 4, 8), Filter=Shape(8, 3, 3, 3))
fail("conv2d", "attribute 'paddings' of conv2d is wrong: expected 1, 2 or 4 numbers of 0 to 2147483647, got [1, 2, 3]",
     paddings=[1, 2, 3], Input=Shape(2, 3, 4, 8), Filter=Shape(8, 3, 3, 3))
fail("conv2d", "unknown padding_algorithm of conv2d: expected EXPLICIT, SAME or VALID, got HALF",
     padding_algorithm="HALF", Input=Shape(2, 3, 4, 8), Filter=Shape(8, 3, 3, 3))
fail("conv2d", "input 'Input' of conv2d has the wrong number of dimensions: expected 4, got 3 (shape [2, 3, 4])",
     Input=Shape(2, 3, 4), Filter=Shape(8, 3, 3, 3))
fail("conv2d", "input 'Bias' of conv2d has the wrong shape: expected [8], got [4]",
     Input=Shape(2, 3, 4, 4), Filter=Shape(8, 3, 3, 3), Bias=Shape(4))

# Pooling


def pool2d(x, kind, ksize, strides=(1, 1), paddings=(0, 0), ceil_mode=False, exclusive=True, adaptive=False,
           global_pooling=False, data_format="NCHW", padding_algorithm="EXPLICIT"):
    x = d(x)
    if data_format == "NHWC":
        x = x.transpose(0, 3, 1, 2)
    size = x.shape[2:]
    spans = []
    if not (adaptive or global_pooling):
        pads = pads_of(list(paddings), padding_algorithm, size, ksize, strides)
    for axis in range(2):
        n = size[axis]
        if global_pooling:
            spans.append([(0, n, n)])
        elif adaptive:
            o = ksize[axis]
            spans.append([(i * n // o, -(-(i + 1) * n // o), None) for i in range(o)])
        else:
            k, s, (before, after) = ksize[axis], strides[axis], pads[axis]
            steps = n + before + after - k
            count = (-(-steps // s) if ceil_mode else steps // s) + 1
            spans.append([(max(i * s - before, 0), min(i * s - before + k, n),
                           min(i * s - before + k, n + after) - (i * s - before)) for i in range(count)])
    y = np.zeros((*x.shape[:2], len(spans[0]), len(spans[1])))
    for i, (r0, r1, rows) in enumerate(spans[0]):
        for j, (c0, c1, cols) in enumerate(spans[1]):
            part = x[:, :, r0:r1, c0:c1]
            if kind == "max":
                y[:, :, i, j] = part.max((2, 3))
            elif exclusive or adaptive or global_pooling:
                y[:, :, i, j] = part.mean((2, 3))
            else:
                y[:, :, i, j] = part.sum((2, 3)) / (rows * cols)
    return y.transpose(0, 2, 3, 1) if data_format == "NHWC" else y


POOLS = [
    {"ksize": [2, 2], "strides": [2, 2]},
    {"ksize": [3, 3], "strides": [2, 2], "paddings": [1, 1]},
    {"ksize": [3, 2], "strides": [2, 1], "paddings": [1, 0, 0, 1]},
    {"ksize": [3, 3], "strides": [2, 2], "ceil_mode": True},
    {"ksize": [3, 3], "strides": [2, 2], "padding_algorithm": "SAME"},
    {"ksize": [1, 1], "global_pooling": True},
    {"ksize": [2, 3], "adaptive": True},
]
# All values differ by more than a step of the differences, so that maxima are clear.
order = np.argsort(np.asarray(rand(2 * 3 * 6 * 5, seed=80)), kind="stable")
x = f32(order.reshape(2, 3, 6, 5) * 0.1)
last = channels_last(x)
for keys in POOLS:
    for kind in ["max", "avg"]:
        loss = {"loss": "Out"}
        case("pool2d", X=x, pooling_type=kind, **keys, out={"Out": pool2d(x, kind, **keys)}, grad="X", **loss,
             tol="1e-5 1e-5")
        case("pool2d", X=last, pooling_type=kind, data_format="NHWC", **keys, grad="X", tol="1e-5 1e-5", **loss,
             out={"Out": pool2d(last, kind, data_format="NHWC", **keys)})
for keys in POOLS[1:4]:
    case("pool2d", X=x, pooling_type="avg", exclusive=False, **keys, grad="X", tol="1e-5 1e-5",
         out={"Out": pool2d(x, "avg", exclusive=False, **keys)})
big = rand(2, 20, 17, 40, seed=81)
for kind in ["max", "avg"]:
    keys = {"ksize": [3, 3], "strides": [2, 2], "paddings": [1, 1], "data_format": "NHWC"}
    case("pool2d", X=big, pooling_type=kind, **keys, out={"Out": pool2d(big, kind, **keys)}, tol="1e-5 1e-5")
fail("pool2d", "unknown pooling_type of pool2d: expected max or avg, got mean", pooling_type="mean",
     X=Shape(2, 3, 4, 4), ksize=[2, 2])
fail("pool2d", "the window of pool2d does not fit the image: expected at least 5 columns, got 4, padding included",
     X=Shape(2, 3, 8, 4), ksize=[5, 5])
fail("pool2d", "input 'X' of pool2d has the wrong number of dimensions: expected 4, got 2 (shape [3, 4])",
     X=Shape(3, 4), ksize=[2, 2])

# Dropout

ones = f32(np.ones((100, 100))).view(Value)
ones.spec = "fill 1"
for implementation, kept in [("upscale_in_train", 1 / 0.7), ("downgrade_in_infer", 1.0)]:
    case("dropout", X=ones, dropout_prob=0.3, dropout_implementation=implementation, stream=5, run_step=2,
         out={"Out": Shape(100, 100)}, stat=[f"Out mean {0.69 * kept} {0.71 * kept}", f"Out max {kept - 1e-5} {kept + 1e-5}",
                                            "Out min 0 0"])
    case("dropout", X=rand(5, 7, seed=90), dropout_prob=0.4, dropout_implementation=implementation, seed=11,
         out={"Out": Shape(5, 7)}, grad="X")
x = rand(5, 7, seed=90)
case("dropout", X=x, dropout_prob=0.0, out={"Out": x})
case("dropout", X=x, dropout_prob=1.0, out={"Out": np.zeros((5, 7))})
case("dropout", X=x, dropout_prob=0.25, is_test=True, out={"Out": x})
case("dropout", X=x, dropout_prob=0.25, is_test=True, dropout_implementation="downgrade_in_infer",
     out={"Out": d(x) * 0.75})
fail("dropout", "dropout_prob is not a probability: expected 0 to 1, got 1.5", dropout_prob=1.5, X=Shape(3))
fail("dropout", "unknown dropout_implementation: expected upscale_in_train or downgrade_in_infer, got none",
     dropout_implementation="none", X=Shape(3))

# Half precision goes through f32 and is rounded once.
HALF = "2e-3 1e-3"


def half(x):
    return np.asarray(x).astype(np.float16)


def halves(out, *names):
    return {slot: half(value) if slot in names else value for slot, value in out.items()}


x, n = rand(3, 2, 2, 3, seed=10, dtype="float16"), norm_inputs(2)
z = rand(3, 2, 2, 3, seed=21, dtype="float16")
case("batch_norm", X=x, **n, same=SAME, out=halves(batch_norm(x, *norm_args(n)), "Y"), tol=HALF)
case("fused_bn_add_activation", X=x, Z=z, **n, same=SAME, tol=HALF,
     out=halves(batch_norm(x, *norm_args(n), z=z, relu=True), "Y"))
dy = rand(3, 2, 2, 3, seed=22, dtype="float16")
out, grads = norm_backward(x, n, dy, "NCHW", False, False)
case("batch_norm_grad", tol="5e-3 2e-3", out=halves(grads, "X@GRAD"),
     inputs={"X": x, "Scale": n["Scale"], "Bias": n["Bias"], "SavedMean": f32(out["SavedMean"]),
             "SavedVariance": f32(out["SavedVariance"]), "Y@GRAD": dy})
x, w = rand(2, 3, 5, 4, seed=60, dtype="float16"), rand(4, 3, 3, 3, seed=61, dtype="float16")
bias = rand(4, seed=62, dtype="float16")
y = conv2d(x, w, paddings=[1, 1]) + d(bias).reshape(1, -1, 1, 1)
case("conv2d", Input=x, Filter=w, Bias=bias, paddings=[1, 1], out={"Output": half(y)}, tol=HALF)
fail("conv2d", "input 'Filter' of conv2d has the wrong element type: expected f16, got f32",
     Input=Shape(2, 3, 4, 8, dtype="f16"), Filter=Shape(8, 3, 3, 3))
x = rand(2, 3, 6, 5, seed=81, dtype="float16")
for kind in ["max", "avg"]:
    keys = {"ksize": [3, 3], "strides": [2, 2], "paddings": [1, 1]}
    case("pool2d", X=x, pooling_type=kind, **keys, out={"Out": half(pool2d(x, kind, **keys))}, tol=HALF)
x = rand(5, 7, seed=90, dtype="float16")
case("dropout", X=x, dropout_prob=0.25, is_test=True, dropout_implementation="downgrade_in_infer",
     out={"Out": half(d(x) * 0.75)}, tol=HALF)
case("softmax", X=x, out={"Out": half(softmax(x))}, tol=HALF)
case("log_softmax", X=x, axis=0, out={"Out": half(np.log(softmax(x, 0)))}, tol=HALF)
scale, bias = rand(7, seed=41, low=0.5, high=1.5), rand(7, seed=42)
case("layer_norm", X=x, Scale=scale, Bias=bias, out=halves(layer_norm(x, scale, bias), "Y"), tol=HALF)
q, k, v = [rand(2, 3, 2, 4, seed=50 + i, dtype="float16") for i in range(3)]
case("flash_attn", Q=q, K=k, V=v, causal=True, out=halves(attention(q, k, v, causal=True), "Out"), tol=HALF)
