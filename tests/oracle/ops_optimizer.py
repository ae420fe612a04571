"""Cases of the optimizers and of learning-rate schedules.

The formulas are written out over dense float64 arrays; sparse gradients are cut back to the rows in
use afterwards.
"""
import numpy as np
from make import Rows, Shape, case, f32, fail, i64, rand


def d(x):
    return np.asarray(x, np.float64)


def sgd(w, g, lr, s, a):
    return {"Param": w - lr * g}


def momentum(w, g, lr, s, a):
    v = a.get("mu", 0.9) * s["Velocity"] + g
    step = g + a.get("mu", 0.9) * v if a.get("use_nesterov") else v
    return {"Param": w - lr * step, "Velocity": v}


def adam(w, g, lr, s, a):
    b1, b2, eps = a.get("beta1", 0.9), a.get("beta2", 0.999), a.get("epsilon", 1e-8)
    if a.get("with_decay", "coeff" in a):
        w = w * (1 - lr * a.get("coeff", 0.01))
    m = b1 * s["Moment1"] + (1 - b1) * g
    v = b2 * s["Moment2"] + (1 - b2) * g * g
    root = np.sqrt(1 - s["Beta2Pow"])
    w = w - lr * root / (1 - s["Beta1Pow"]) * m / (np.sqrt(v) + eps * root)
    return {"Param": w, "Moment1": m, "Moment2": v, "Beta1Pow": s["Beta1Pow"] * b1, "Beta2Pow": s["Beta2Pow"] * b2}


def adamax(w, g, lr, s, a):
    b1, b2, eps = a.get("beta1", 0.9), a.get("beta2", 0.999), a.get("epsilon", 1e-8)
    m = b1 * s["Moment"] + (1 - b1) * g
    u = np.maximum(np.abs(g), b2 * s["InfNorm"] + eps)
    return {"Param": w - lr / (1 - s["Beta1Pow"]) * m / u, "Moment": m, "InfNorm": u, "Beta1Pow": s["Beta1Pow"] * b1}


def adagrad(w, g, lr, s, a):
    h = s["Moment"] + g * g
    return {"Param": w - lr * g / (np.sqrt(h) + a.get("epsilon", 1e-6)), "Moment": h}


def adadelta(w, g, lr, s, a):
    rho, eps = a.get("rho", 0.95), a.get("epsilon", 1e-6)
    e = rho * s["AvgSquaredGrad"] + (1 - rho) * g * g
    dx = -np.sqrt((s["AvgSquaredUpdate"] + eps) / (e + eps)) * g
    u = rho * s["AvgSquaredUpdate"] + (1 - rho) * dx * dx
    return {"Param": w + lr * dx, "AvgSquaredGrad": e, "AvgSquaredUpdate": u}


def rmsprop(w, g, lr, s, a):
    rho, eps, mu = a.get("decay", 0.95), a.get("epsilon", 1e-6), a.get("momentum", 0.0)
    ms = rho * s["MeanSquare"] + (1 - rho) * g * g
    out = {"MeanSquare": ms}
    under = ms + eps
    if a.get("centered"):
        mg = rho * s["MeanGrad"] + (1 - rho) * g
        under = under - mg * mg
        out["MeanGrad"] = mg
    mom = mu * s["Moment"] + lr * g / np.sqrt(under)
    return {**out, "Moment": mom, "Param": w - mom}


def lars(w, g, lr, s, a):
    p, q, wd = np.sqrt((w * w).sum()), np.sqrt((g * g).sum()), a.get("lars_weight_decay", 0.0005)
    local = lr
    if wd > 0 and p > 0 and q > 0:
        local = lr * a.get("lars_coeff", 0.001) * p / (q + wd * p + a.get("epsilon", 0.0))
    v = a.get("mu", 0.9) * s["Velocity"] + local * (g + wd * w)
    return {"Param": w - v, "Velocity": v}


def lamb(w, g, lr, s, a):
    b1, b2, eps = a.get("beta1", 0.9), a.get("beta2", 0.999), a.get("epsilon", 1e-6)
    wd = a.get("weight_decay", 0.01)
    m = b1 * s["Moment1"] + (1 - b1) * g
    v = b2 * s["Moment2"] + (1 - b2) * g * g
    r = m / (1 - s["Beta1Pow"]) / (np.sqrt(v / (1 - s["Beta2Pow"])) + eps) + wd * w
    p, q = np.sqrt((w * w).sum()), np.sqrt((r * r).sum())
    trust = p / q if (wd > 0 or a.get("always_adapt")) and p > 0 and q > 0 else 1.0
    return {"Param": w - lr * trust * r, "Moment1": m, "Moment2": v, "Beta1Pow": s["Beta1Pow"] * b1,
            "Beta2Pow": s["Beta2Pow"] * b2}


POWERS = {"Beta1Pow": 0.81, "Beta2Pow": 0.998}
# name: function, state slots, powers
RULES = {
    "sgd": (sgd, [], []),
    "momentum": (momentum, ["Velocity"], []),
    "adam": (adam, ["Moment1", "Moment2"], ["Beta1Pow", "Beta2Pow"]),
    "adamw": (adam, ["Moment1", "Moment2"], ["Beta1Pow", "Beta2Pow"]),
    "adamax": (adamax, ["Moment", "InfNorm"], ["Beta1Pow"]),
    "adagrad": (adagrad, ["Moment"], []),
    "adadelta": (adadelta, ["AvgSquaredGrad", "AvgSquaredUpdate"], []),
    "rmsprop": (rmsprop, ["MeanSquare", "Moment"], []),
    "lars_momentum": (lars, ["Velocity"], []),
    "lamb": (lamb, ["Moment1", "Moment2"], ["Beta1Pow", "Beta2Pow"]),
}
SIGNED = ["Velocity", "Moment1"]


def state_of(name, shape, seed, centered=False):
    _, slots, powers = RULES[name]
    slots = slots + (["MeanGrad"] if centered else [])
    state = {}
    for i, slot in enumerate(slots):
        signed = slot in SIGNED or slot == "Moment" and name in ["adamax", "rmsprop"]
        # A mean square is at least the square of the mean.
        high = 0.1 if slot == "MeanGrad" else 1
        state[slot] = rand(*shape, seed=seed + i, low=-high if signed else (0.1 if high == 1 else 0), high=high)
    state.update({power: f32([POWERS[power]]) for power in powers})
    return state


def gradient(w, g, keys):
    g = g * float(keys.get("GradScale", [1.0])[0])
    method, coeff = keys.get("regularization_method", ""), keys.get("regularization_coeff", 0.0)
    return g + (coeff * w if method == "l2_decay" else coeff * np.sign(w) if method == "l1_decay" else 0)


def expect(name, w, g, state, keys):
    """The outputs of one parameter."""
    lr = 0.1 * keys.get("lr_scale", 1.0)
    s = {slot: d(value) for slot, value in state.items()}
    attrs = dict(keys)
    if name == "adamw":
        attrs.setdefault("coeff", 0.01)
    out = RULES[name][0](d(w), gradient(d(w), g, keys), lr, s, attrs)
    return {slot + "Out": value for slot, value in out.items()}


def only_rows(before, after, ids):
    """Rows that are not in use stay."""
    out = d(before).copy()
    rows = sorted(set(ids))
    out[rows] = after[rows]
    return out


LR = f32([0.1])
TOL = "2e-5 1e-6"


def update(name, shape=(3, 4), prefix="", ids=None, seed=60, moves_all=False, **keys):
    w = rand(*shape, seed=seed)
    state = state_of(name, shape, seed + 2, keys.get("centered", False))
    if ids is None:
        grad = rand(*shape, seed=seed + 1)
        g = d(grad)
    else:
        grad = Rows(ids, rand(len(ids), *shape[1:], seed=seed + 1), shape[0])
        g = grad.dense()
    out = expect(name, w, g, state, keys)
    if ids is not None and not moves_all:
        for slot, before in [("Param", w)] + list(state.items()):
            if d(before).shape == shape:
                out[slot + "Out"] = only_rows(before, out[slot + "Out"], ids)
    same = [f"{slot}Out {slot}" for slot in ["Param"] + list(state)]
    case(prefix + name, Param=w, Grad=grad, LearningRate=LR, **state, **keys, out=out, same=same, tol=TOL)


for name in RULES:
    for keys in [{}, {"lr_scale": 0.5, "GradScale": f32([0.3])},
                 {"regularization_method": "l2_decay", "regularization_coeff": 0.1},
                 {"regularization_method": "l1_decay", "regularization_coeff": 0.05, "GradScale": f32([2.0])}]:
        update(name, **keys)
    # Many pieces, and a tail that fills no register.
    if name in ["sgd", "adam", "lars_momentum", "lamb"]:
        update(name, shape=(40_003,))
update("momentum", mu=0.5, use_nesterov=True)
update("momentum", use_nesterov=True, regularization_method="l2_decay", regularization_coeff=0.1)
update("adam", beta1=0.8, beta2=0.9, epsilon=0.01)
update("adamw", coeff=0.3)
update("adamw", coeff=0.3, with_decay=False)
update("adamw", beta1=0.8, beta2=0.9, epsilon=0.01)
update("adamax", beta1=0.8, beta2=0.9, epsilon=0.01)
update("adagrad", epsilon=0.01)
update("adadelta", rho=0.8, epsilon=0.01)
update("lamb", beta1=0.8, beta2=0.9, epsilon=0.01, weight_decay=0.1)
update("lars_momentum", mu=0.5)
update("rmsprop", momentum=0.9, decay=0.8, epsilon=0.01)
update("rmsprop", momentum=0.9, centered=True)
update("lars_momentum", lars_weight_decay=0.0)
update("lars_momentum", lars_weight_decay=0.1, lars_coeff=0.02, epsilon=1e-3)
update("lamb", weight_decay=0.0)
update("lamb", weight_decay=0.0, always_adapt=True)

# Sparse rows with duplicates.
ids = [4, 1, 4, 0, 1, 4]
for keys in [{}, {"GradScale": f32([0.5])}, {"regularization_method": "l2_decay", "regularization_coeff": 0.1},
             {"regularization_method": "l1_decay", "regularization_coeff": 0.1, "lr_scale": 2.0}]:
    for name in ["sgd", "momentum", "adagrad"]:
        update(name, shape=(6, 3), ids=ids, **keys)
    for name in ["adam", "adamw"]:
        update(name, shape=(6, 3), ids=ids, lazy_mode=True, **keys)
        update(name, shape=(6, 3), ids=ids, moves_all=True, **keys)
update("sgd", shape=(6, 3), ids=[])
update("momentum", shape=(6, 3), ids=[5], use_nesterov=True)
for name in ["adamax", "adadelta", "rmsprop", "lars_momentum", "lamb"]:
    fail(name, f"{name} cannot apply sparse rows", "use sgd, momentum, adam, adamw or adagrad",
         Param=rand(6, 3), Grad=Rows([1], rand(1, 3), 6), LearningRate=LR, **state_of(name, (6, 3), 1))
fail("sgd", "id at position 1 is out of range: expected 0 to 5, got 6",
     Param=rand(6, 3), Grad=Rows([1, 6], rand(2, 3), 6), LearningRate=LR)

# A skipped update leaves everything as it is, whatever the gradient is and also where there is decay.
DECAY = {"regularization_method": "l2_decay", "regularization_coeff": 0.1}
for name in RULES:
    w, state = rand(3, 4, seed=70), state_of(name, (3, 4), 71)
    stays = {slot + "Out": value for slot, value in {"Param": w, **state}.items()}
    overflown = f32([np.inf, -np.inf, np.nan] * 4, (3, 4))
    for grad, keys in [(rand(3, 4, seed=75), {}), (overflown, DECAY)]:
        case(name, Param=w, Grad=grad, LearningRate=LR, **state, **keys, SkipUpdate=np.array([True]), out=stays)
    out = expect(name, w, d(rand(3, 4, seed=75)), state, {})
    case(name, Param=w, Grad=rand(3, 4, seed=75), LearningRate=LR, **state, SkipUpdate=np.array([False]), out=out,
         tol=TOL)
for name in ["sgd", "momentum", "adagrad", "adam", "adamw"]:
    w, state = rand(6, 3, seed=70), state_of(name, (6, 3), 71)
    stays = {slot + "Out": value for slot, value in {"Param": w, **state}.items()}
    rows = Rows(ids, f32([np.nan] * 18, (6, 3)), 6)
    case(name, Param=w, Grad=rows, LearningRate=LR, **state, **DECAY, SkipUpdate=np.array([True]), out=stays)
for name in ["sgd", "momentum", "adam", "adamw"]:
    slots, stays = {}, {}
    for at, shape in enumerate([(3, 4), (5,)]):
        w, state = rand(*shape, seed=70 + at), state_of(name, shape, 72 + at)
        for slot, value in {"Param": w, **state}.items():
            slots.setdefault(slot, []).append(value)
            stays.setdefault(slot + "Out", []).append(value)
        slots.setdefault("Grad", []).append(f32(np.full(shape, np.inf)))
    case("fused_" + name, **slots, LearningRate=LR, **DECAY, SkipUpdate=np.array([True]), out=stays)

# Many parameters at once, of sizes that share tasks and of sizes that need several; one of them with
# sparse rows, and each with its own powers.
for name in ["sgd", "momentum", "adam", "adamw"]:
    for keys in [{}, {"regularization_method": "l2_decay", "regularization_coeff": 0.1, "GradScale": f32([0.5])}]:
        slots, outs = {}, {}
        for at, shape in enumerate([(3, 4), (1,), (20_000,), (6, 3)]):
            w, state = rand(*shape, seed=80 + 10 * at), state_of(name, shape, 82 + 10 * at)
            for power in RULES[name][2]:
                state[power] = f32([POWERS[power] ** (at + 1)])
            grad = rand(*shape, seed=81 + 10 * at)
            g = d(grad)
            if at == 3:
                grad = Rows(ids, rand(len(ids), 3, seed=81 + 10 * at), 6)
                g = grad.dense()
            out = expect(name, w, g, state, keys)
            for slot, before in [("Param", w)] + list(state.items()):
                if at == 3 and d(before).shape == shape and not name.startswith("adam"):
                    out[slot + "Out"] = only_rows(before, out[slot + "Out"], ids)
            for slot, value in {"Param": w, "Grad": grad, **state}.items():
                slots.setdefault(slot, []).append(value)
            for slot, value in out.items():
                outs.setdefault(slot, []).append(value)
        case("fused_" + name, **slots, LearningRate=LR, **keys, out=outs, tol=TOL)

fail("sgd", "input 'Grad' of sgd has the wrong shape: expected [3, 4], got [4, 3]",
     Param=Shape(3, 4), Grad=Shape(4, 3), LearningRate=Shape(1))
fail("momentum", "input 'Velocity' of momentum has the wrong shape: expected [3, 4], got [3]",
     Param=Shape(3, 4), Grad=Shape(3, 4), Velocity=Shape(3), LearningRate=Shape(1))
fail("adam", "input 'Beta2Pow' of adam is not one number: expected [1], got [3, 4]", Param=Shape(3, 4),
     Grad=Shape(3, 4), LearningRate=Shape(1), Moment1=Shape(3, 4), Moment2=Shape(3, 4), Beta1Pow=Shape(1),
     Beta2Pow=Shape(3, 4))
fail("sgd", "input 'LearningRate' of sgd is not one number", Param=Shape(3), Grad=Shape(3), LearningRate=Shape(3))
fail("sgd", "unknown regularization_method of sgd: expected l1_decay or l2_decay, got l2",
     regularization_method="l2", Param=Shape(3), Grad=Shape(3), LearningRate=Shape(1))
fail("fused_sgd", "input 'Grad' of fused_sgd does not have one variable for each parameter: expected 2, got 1",
     Param=[Shape(3), Shape(3)], Grad=[Shape(3)], LearningRate=Shape(1))

# Schedules


def schedule(kind, value, step, params=(), inner=None, **keys):
    named = {} if inner is None else {"Inner": f32([inner])}
    case("lr_schedule", Step=i64([step]), **named, kind=kind, params=[float(p) for p in params],
         out={"Out": np.array([value])}, **keys)


for t in [0, 1, 7, 40]:
    schedule("constant", 0.3, t, [0.3])
    falling = 1.0 if t == 0 else t**-0.5
    schedule("noam", 0.5 * 64**-0.5 * min(falling, t * 20**-1.5), t, [0.5, 64, 20])
    schedule("exponential", 0.1 * 0.9**t, t, [0.1, 0.9])
    schedule("natural_exp", 0.1 * np.exp(-0.1 * t), t, [0.1, 0.1])
    schedule("inverse_time", 0.1 / (1 + 0.5 * t), t, [0.1, 0.5])
    values = [0.1, 0.01, 0.001]
    schedule("piecewise", values[(t >= 1) + (t >= 8)], t, boundaries=[1.0, 8.0], values=values)
    line = (0.1 - 0.01) * (1 - min(t, 20) / 20) ** 2 + 0.01
    schedule("polynomial", line, t, [0.1, 20, 0.01, 2, 0])
    long = 20 * max(np.ceil(t / 20), 1)
    schedule("polynomial", (0.1 - 0.01) * (1 - t / long) ** 0.5 + 0.01, t, [0.1, 20, 0.01, 0.5, 1])
    schedule("cosine", 0.01 + (0.1 - 0.01) * (1 + np.cos(np.pi * t / 30)) / 2, t, [0.1, 30, 0.01])
    schedule("linear_warmup", 0.1 + 0.4 * t / 7 if t < 7 else 0.25, t, [7, 0.1, 0.5], inner=0.25)
    schedule("linear_warmup", 0.1 + 0.4 * t / 7 if t < 7 else 0.5, t, [7, 0.1, 0.5])
    schedule("step", 0.1 * 0.5 ** (t // 3), t, [0.1, 3, 0.5])
    schedule("multi_step", 0.1 * 0.5 ** ((t >= 2) + (t >= 7)), t, [0.1, 0.5], boundaries=[2.0, 7.0])
schedule("exponential", 0.1, -3, [0.1, 0.9])
fail("lr_schedule", "unknown kind of lr_schedule: expected constant, noam, exponential", "got triangle",
     Step=Shape(1, dtype="i64"), kind="triangle")
fail("lr_schedule", "wrong params of cosine lr_schedule: expected 3 numbers, got [0.1]",
     Step=Shape(1, dtype="i64"), kind="cosine", params=[0.1])
fail("lr_schedule", "wrong number of values of a piecewise lr_schedule: expected 2 values, got 1",
     Step=Shape(1, dtype="i64"), kind="piecewise", boundaries=[5.0], values=[0.1])
