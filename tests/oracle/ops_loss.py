"""Cases of the losses."""
import numpy as np
from make import Shape, case, f32, fail, i64, rand


def d(x):
    return np.asarray(x, np.float64)


x, y = rand(3, 4, seed=3), rand(3, 4, seed=4)
case("square_error_cost", X=x, Y=y, out={"Out": (d(x) - d(y)) ** 2}, grad="X Y")
fail("square_error_cost", "input 'Y' of square_error_cost has the wrong shape: expected [3, 4], got [3, 1]",
     X=Shape(3, 4), Y=Shape(3, 1))
fail("square_error_cost", "input 'X' of square_error_cost has the wrong element type: expected f32, got i64",
     X=Shape(3, 4, dtype="i64"), Y=Shape(3, 4))

# Away from the kinks, so that differences are fair.
x = f32([0.1, 0.9, -2.0, 3.0, 0.3, -0.7]).reshape(3, 2)
y = f32([0.0, 0.5, 0.0, 0.5, 0.9, 0.6]).reshape(3, 2)
for delta in [1.0, 0.25]:
    r = d(y) - d(x)
    loss = np.where(np.abs(r) <= delta, r * r / 2, delta * (np.abs(r) - delta / 2))
    case("huber_loss", X=x, Y=y, delta=delta, out={"Out": loss}, grad="X Y")
fail("huber_loss", "input 'Y' of huber_loss has the wrong shape", X=Shape(3, 4), Y=Shape(4, 3))

inside, outside = rand(3, 2, seed=5, low=0.5, high=1.5), rand(3, 2, seed=6, low=0.5, high=1.5)
for sigma in [1.0, 2.0]:
    s = sigma**2
    diff = d(x) - d(y)
    one = np.where(np.abs(diff) < 1 / s, s * diff**2 / 2, np.abs(diff) - 0.5 / s)
    case("smooth_l1_loss", X=x, Y=y, sigma=sigma, out={"Diff": diff, "Out": one.sum(1, keepdims=True)},
         grad="X Y", loss="Out")
diff = d(inside) * (d(x) - d(y))
one = d(outside) * np.where(np.abs(diff) < 1, diff**2 / 2, np.abs(diff) - 0.5)
case("smooth_l1_loss", X=x, Y=y, InsideWeight=inside, OutsideWeight=outside,
     out={"Diff": diff, "Out": one.sum(1, keepdims=True)}, grad="X Y", loss="Out")
fail("smooth_l1_loss", "input 'InsideWeight' of smooth_l1_loss has the wrong shape",
     X=Shape(3, 4), Y=Shape(3, 4), InsideWeight=Shape(3, 1))

p = rand(4, 1, seed=7, low=0.1, high=0.9)
z = f32([1, 0, 1, 0]).reshape(4, 1)
for epsilon in [1e-4, 0.01]:
    loss = -d(z) * np.log(d(p) + epsilon) - (1 - d(z)) * np.log(1 - d(p) + epsilon)
    case("log_loss", Predicted=p, Labels=z, epsilon=epsilon, out={"Loss": loss}, grad="Predicted")
fail("log_loss", "input 'Labels' of log_loss has the wrong element type: expected f32, got i64",
     Predicted=Shape(4, 1), Labels=Shape(4, 1, dtype="i64"))

x = rand(3, 5, seed=8, low=-4, high=4)
z = rand(3, 5, seed=9, low=0, high=1)
loss = np.maximum(d(x), 0) - d(x) * d(z) + np.log1p(np.exp(-np.abs(d(x))))
case("sigmoid_cross_entropy_with_logits", X=x, Label=z, out={"Out": loss}, grad="X")
z = f32([0, 1, -1, 1, 0, 0, -1, 1, 1, 0, 1, 0, 0, -1, 1]).reshape(3, 5)
loss = np.maximum(d(x), 0) - d(x) * d(z) + np.log1p(np.exp(-np.abs(d(x))))
loss = np.where(d(z) == -1, 0, loss)
case("sigmoid_cross_entropy_with_logits", X=x, Label=z, ignore_index=-1, out={"Out": loss}, grad="X")
case("sigmoid_cross_entropy_with_logits", X=x, Label=z, ignore_index=-1, normalize=True,
     out={"Out": loss / 12}, grad="X")
case("sigmoid_cross_entropy_with_logits", X=f32([[-200.0, 200.0]]), Label=f32([[0, 0]]),
     out={"Out": f32([[0, 200]])})
fail("sigmoid_cross_entropy_with_logits",
     "input 'Label' of sigmoid_cross_entropy_with_logits has the wrong shape", X=Shape(3, 4), Label=Shape(3))

x = rand(4, 3, seed=10, low=0.1, high=0.9)
label = i64([2, 0, 1, 1]).reshape(4, 1)
picked = -np.log(d(x)[np.arange(4), label[:, 0]])
case("cross_entropy", X=x, Label=label, out={"Y": picked.reshape(4, 1)}, grad="X")
case("cross_entropy", X=x, Label=label.astype(np.int32).reshape(4), out={"Y": picked.reshape(4, 1)}, grad="X",
     static=True)
ignored = np.where(label[:, 0] == 0, 0, picked)
case("cross_entropy", X=x, Label=label, ignore_index=0, out={"Y": ignored.reshape(4, 1)}, grad="X")
soft = rand(4, 3, seed=11, low=0, high=1)
case("cross_entropy", X=x, Label=soft, soft_label=True,
     out={"Y": -(d(soft) * np.log(d(x))).sum(1, keepdims=True)}, grad="X")
fail("cross_entropy", "input 'Label' of cross_entropy does not fit the predictions: expected [4, 1] or [4], got [3, 1]",
     X=Shape(4, 3), Label=Shape(3, 1, dtype="i64"))
fail("cross_entropy", "input 'Label' of cross_entropy has the wrong element type: expected i64 or i32, got f32",
     X=Shape(4, 3), Label=Shape(4, 1))
fail("cross_entropy", "label at position 2 is not a class: expected 0 to 2, got 3",
     X=x, Label=i64([0, 1, 3, 9]).reshape(4, 1))

x, t = rand(3, 4, seed=12, low=-2, high=0), rand(3, 4, seed=13, low=0.05, high=1)
t[1, 2] = 0
del t.spec
term = np.where(d(t) > 0, d(t) * (np.log(np.maximum(d(t), 1e-30)) - d(x)), 0)
for reduction, value in [("none", term), ("sum", term.sum().reshape(1)), ("mean", term.mean().reshape(1)),
                         ("batchmean", term.sum().reshape(1) / 3)]:
    case("kldiv_loss", X=x, Target=t, reduction=reduction, out={"Loss": value}, grad="X")
fail("kldiv_loss", "unknown reduction of kldiv_loss: expected none, sum, mean or batchmean, got avg",
     X=Shape(3, 4), Target=Shape(3, 4), reduction="avg")

x = rand(4, 3, seed=14, low=-3, high=0)
label = i64([2, 0, 1, 1])
weight = f32([0.5, 2.0, 1.5])
for w, name in [(None, {}), (weight, {"Weight": weight})]:
    each = np.ones(4) if w is None else d(w)[label]
    nll = -each * d(x)[np.arange(4), label]
    total = each.sum().reshape(1)
    case("nll_loss", X=x, Label=label, reduction="none", out={"Out": nll, "Total_weight": total}, grad="X",
         loss="Out", **name)
    case("nll_loss", X=x, Label=label, reduction="sum", out={"Out": nll.sum().reshape(1)}, grad="X", loss="Out",
         **name)
    case("nll_loss", X=x, Label=label, out={"Out": nll.sum().reshape(1) / total}, grad="X", loss="Out", **name)
kept = label != 1
each = d(weight)[label] * kept
nll = -each * d(x)[np.arange(4), label]
case("nll_loss", X=x, Label=label, Weight=weight, ignore_index=1,
     out={"Out": nll.sum().reshape(1) / each.sum(), "Total_weight": each.sum().reshape(1)}, grad="X", loss="Out")
x4 = rand(2, 3, 2, 2, seed=15, low=-3, high=0)
label4 = i64([0, 1, 2, 1, 2, 2, 0, 1], (2, 2, 2))
nll = np.zeros((2, 2, 2))
for n in range(2):
    for h in range(2):
        for w in range(2):
            nll[n, h, w] = -d(x4)[n, label4[n, h, w], h, w]
case("nll_loss", X=x4, Label=label4, reduction="none", out={"Out": nll}, grad="X", loss="Out")
case("nll_loss", X=x4, Label=label4, out={"Out": nll.mean().reshape(1)}, grad="X", loss="Out")
fail("nll_loss", "input 'Label' of nll_loss has the wrong shape: expected [4], got [4, 1]",
     X=Shape(4, 3), Label=Shape(4, 1, dtype="i64"))
fail("nll_loss", "label at position 0 is not a class", X=x, Label=i64([-1, 0, 0, 0]))

hot = f32(np.eye(4)[[1, 3, 0]])
case("label_smooth", X=hot, epsilon=0.1, out={"Out": 0.9 * d(hot) + 0.1 / 4}, grad="X")
prior = f32([[0.1, 0.2, 0.3, 0.4]])
case("label_smooth", X=hot, PriorDist=prior, epsilon=0.2, out={"Out": 0.8 * d(hot) + 0.2 * d(prior)}, grad="X")
fail("label_smooth", "input 'PriorDist' of label_smooth does not have one number per class: expected 4, got 3",
     X=Shape(3, 4), PriorDist=Shape(1, 3))

# Softmax with cross entropy


def softmax(x, axis):
    e = np.exp(d(x) - d(x).max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def cross(x, label, axis, ignore=None):
    log = np.log(softmax(x, axis))
    loss = -np.take_along_axis(log, np.expand_dims(label, axis), axis)
    return loss if ignore is None else np.where(np.expand_dims(label, axis) == ignore, 0, loss)


x = rand(4, 5, seed=20, low=-3, high=3)
label = i64([4, 0, 2, 2])
for given in [label.reshape(4, 1), label, label.astype(np.int32)]:
    case("softmax_with_cross_entropy", inputs={"Logits": x, "Label": given},
         out={"Softmax": softmax(x, 1), "Loss": cross(x, label, 1)}, grad="Logits", static=given.ndim == 1)
case("softmax_with_cross_entropy", Logits=x, Label=label.reshape(4, 1), ignore_index=2,
     out={"Softmax": softmax(x, 1), "Loss": cross(x, label, 1, 2)}, grad="Logits", loss="Loss")
case("softmax_with_cross_entropy", Logits=f32([[1000.0, 0.0], [-1000.0, 0.0]]), Label=i64([1, 0], (2, 1)),
     out={"Loss": f32([[1000.0], [1000.0]])})
soft = rand(4, 5, seed=21, low=0, high=1)
case("softmax_with_cross_entropy", Logits=x, Label=soft, soft_label=True, grad="Logits",
     out={"Softmax": softmax(x, 1), "Loss": -(d(soft) * np.log(softmax(x, 1))).sum(1, keepdims=True)})
x3 = rand(2, 5, 3, seed=22, low=-2, high=2)
label3 = i64([1, 4, 0, 2, 3, 1], (2, 3))
case("softmax_with_cross_entropy", Logits=x3, Label=np.expand_dims(label3, 1), axis=1, grad="Logits", loss="Loss",
     out={"Softmax": softmax(x3, 1), "Loss": cross(x3, label3, 1)})
case("softmax_with_cross_entropy", Logits=x3, Label=label3.astype(np.int32), axis=1, ignore_index=4, grad="Logits",
     loss="Loss", out={"Softmax": softmax(x3, 1), "Loss": cross(x3, label3, 1, 4)}, static=True)
soft3 = rand(2, 5, 3, seed=23, low=0, high=1)
case("softmax_with_cross_entropy", Logits=x3, Label=soft3, soft_label=True, axis=-2, grad="Logits", loss="Loss",
     out={"Softmax": softmax(x3, 1), "Loss": -(d(soft3) * np.log(softmax(x3, 1))).sum(1, keepdims=True)})
big, big_label = rand(70, 130, seed=24, low=-5, high=5), i64(np.arange(70) * 7 % 130)
case("softmax_with_cross_entropy", Logits=big, Label=big_label.reshape(70, 1),
     out={"Softmax": softmax(big, 1), "Loss": cross(big, big_label, 1)})
fail("softmax_with_cross_entropy",
     "input 'Label' of softmax_with_cross_entropy does not fit the predictions: expected [4, 1] or [4], got [4, 2]",
     Logits=Shape(4, 5), Label=Shape(4, 2, dtype="i64"))
fail("softmax_with_cross_entropy", "axis 2 is outside shape [4, 5]", axis=2, Logits=Shape(4, 5),
     Label=Shape(4, 1, dtype="i64"))
fail("softmax_with_cross_entropy", "label out of range: expected 0 to 4 (or -100 to be ignored), got 5",
     Logits=x, Label=i64([0, 1, 5, 2], (4, 1)))
x, label = rand(4, 5, seed=20, low=-3, high=3, dtype="float16"), i64([4, 0, 2, 2])
case("softmax_with_cross_entropy", Logits=x, Label=label.reshape(4, 1), tol="2e-3 1e-3",
     out={"Softmax": softmax(x, 1).astype(np.float16), "Loss": cross(x, label, 1).astype(np.float16)})


def class_losses(x, label, w, margin=0.0, scale=1.0, normalize=False):
    """Losses and probabilities of all classes."""
    x, w = d(x), d(w)
    if normalize:
        x, w = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (x, w))
    logits, at = x @ w.T, np.arange(len(x))
    if margin:
        logits[at, label] = np.cos(np.arccos(logits[at, label]) + margin)
    logits = scale * logits
    logits -= logits.max(1, keepdims=True)
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return -np.log(p[at, label]).reshape(-1, 1), p


x, w = rand(4, 3, seed=31), rand(6, 3, seed=32)
label = i64([5, 0, 2, 2])
for options in [{}, {"scale": 2.5}, {"normalize": True}, {"normalize": True, "margin": 0.5, "scale": 8.0}]:
    loss, p = class_losses(x, label, w, **options)
    plain = {"Loss": loss, "Softmax": p, "Columns": label, "Sampled": i64([0])}
    slots = {"Features": Shape(4, 3), "Slopes": Shape(4)}
    case("class_cross_entropy", X=x, Label=label.reshape(4, 1), W=w, **options, out={**plain, **slots},
         grad="X W", loss="Loss")
    case("c_class_cross_entropy", X=x, Label=label.astype(np.int32), W=w, classes=6, **options,
         out={**plain, **slots}, grad="X W", loss="Loss", static=True)
# A row behind the last class is not used.
loss, p = class_losses(x, label % 5, w[:5])
case("c_class_cross_entropy", X=x, Label=label % 5, W=w, classes=5,
     out={"Loss": loss, "Softmax": np.concatenate([p, np.zeros((4, 1))], axis=1)}, grad="X W", loss="Loss")
# All classes are sampled: gradients of W are rows.
loss, p = class_losses(x, label, w, scale=3.0)
case("class_cross_entropy", X=x, Label=label, W=w, scale=3.0, sample_ratio=1.0, grad="X W", loss="Loss",
     out={"Loss": loss, "Softmax": p, "Columns": label, "Sampled": i64(range(6))})
# A test run uses all classes.
case("class_cross_entropy", X=x, Label=label, W=w, scale=3.0, num_samples=2, is_test=True,
     out={"Loss": loss, "Softmax": np.zeros((4, 4)), "Columns": label, "Sampled": i64([0, 0, 0, 0])})
# As many classes as samples are drawn at least.
case("class_cross_entropy", X=x, Label=i64([1, 1, 1, 1]), W=w, num_samples=2, grad="X", loss="Loss",
     out={"Loss": Shape(4, 1), "Softmax": Shape(4, 4), "Sampled": Shape(4, dtype="i64")},
     stat=["Sampled min 0 1", "Sampled max 3 5"])
for refused, message in [
    ({"scale": 0.0}, "invalid scale of class_cross_entropy: expected a number above 0, got 0"),
    ({"margin": 4.0, "normalize": True}, "invalid margin of class_cross_entropy: expected an angle from 0 to pi"),
    ({"margin": 0.5}, "invalid margin of class_cross_entropy: expected 0 without normalize"),
    ({"sample_ratio": 1.5}, "invalid sample_ratio of class_cross_entropy: expected 0 to 1, got 1.5"),
    ({"num_samples": 2, "sample_ratio": 0.5}, "invalid num_samples of class_cross_entropy"),
]:
    fail("class_cross_entropy", message, X=Shape(4, 3), Label=Shape(4, dtype="i64"), W=Shape(6, 3), **refused)
fail("class_cross_entropy", "input 'W' of class_cross_entropy has the wrong shape: expected [6, 3], got [6, 2]",
     X=Shape(4, 3), Label=Shape(4, dtype="i64"), W=Shape(6, 2))
fail("class_cross_entropy", "input 'Label' of class_cross_entropy does not fit the predictions",
     X=Shape(4, 3), Label=Shape(3, dtype="i64"), W=Shape(6, 3))
fail("class_cross_entropy", "label at position 1 is not a class: expected 0 to 5, got 6",
     X=x, Label=i64([0, 6, 1, 2]), W=w)
fail("c_class_cross_entropy", "invalid classes of c_class_cross_entropy: expected 1 to those of 1 ranks with 6 rows each, got 7",
     X=Shape(4, 3), Label=Shape(4, dtype="i64"), W=Shape(6, 3), classes=7)
fail("c_class_cross_entropy", "missing ring 0 for c_class_cross_entropy",
     X=x, Label=label, W=w, classes=12, nranks=2)
