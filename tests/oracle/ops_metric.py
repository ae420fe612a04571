"""Cases of the metrics."""
import numpy as np
from make import Shape, case, f32, fail, i64, rand

indices = i64([[3, 1], [0, 2], [2, 3], [1, 0], [0, 1]])
for label, right in [([3, 2, 0, 1, 4], 3), ([1, 0, 3, 0, 1], 5), ([0, 1, 0, 2, 4], 0)]:
    for given in [i64(label, (5, 1)), i64(label), i64(label).astype(np.int32)]:
        case("accuracy", Out=rand(5, 2), Indices=indices, Label=given, static=True,
             out={"Accuracy": f32([right / 5]), "Correct": np.array([right], np.int32), "Total": np.array([5], np.int32)})
fail("accuracy", "input 'Label' of accuracy does not fit the predictions: expected [5, 1] or [5], got [4, 1]",
     Out=Shape(5, 2), Indices=Shape(5, 2, dtype="i64"), Label=Shape(4, 1, dtype="i64"))


def area(positive, negative):
    pos = neg = total = 0.0
    for p, n in zip(positive[::-1], negative[::-1]):
        total += n * (pos + pos + p) / 2
        pos, neg = pos + p, neg + n
    return 0.5 if pos * neg == 0 else total / (pos * neg)


SAME = ["StatPosOut StatPos", "StatNegOut StatNeg"]
p = rand(40, 1, seed=5, low=0, high=1)
label = i64(np.asarray(rand(40, seed=6, low=0, high=1)) < np.asarray(p)[:, 0])
for n in [7, 4095]:
    bucket = np.floor(np.asarray(p, np.float64)[:, 0] * n).astype(int)
    before = np.zeros((2, n + 1), np.int64)
    before[0, n // 2], before[1, 1] = 3, 2
    after = before.copy()
    np.add.at(after[0], bucket, label)
    np.add.at(after[1], bucket, 1 - label)
    two = f32(np.concatenate([1 - np.asarray(p), np.asarray(p)], 1))
    for predict in [p, two]:
        case("auc", Predict=predict, Label=label.reshape(40, 1), StatPos=before[:1], StatNeg=before[1:],
             num_thresholds=n, slide_steps=0, same=SAME, out_dtype_of={"AUC": "f64"}, tol="1e-12",
             out={"AUC": np.array([area(*after)]), "StatPosOut": after[:1], "StatNegOut": after[1:]})
case("auc", Predict=p, Label=i64(np.ones(40)).astype(np.int32), StatPos=i64(np.zeros(8)), StatNeg=i64(np.zeros(8)),
     num_thresholds=7, slide_steps=0, out={"AUC": np.array([0.5])}, out_dtype_of={"AUC": "f64"}, static=True)



def average_precision(scores, labels):
    """The mean, over the positive samples, of the precision where their score is the threshold."""
    return np.mean([labels[scores >= score].mean() for score in scores[labels == 1]])


# The area of precision over recall, from samples; the documented defaults are those of the attributes.
for seed in [8, 9]:
    p = rand(60, 1, seed=seed, low=0, high=1)
    label = i64(np.asarray(rand(60, seed=seed + 2, low=0, high=1.5)) < np.asarray(p)[:, 0])
    for n in [7, 4095]:
        bucket = np.floor(np.asarray(p, np.float64)[:, 0] * n).astype(int)
        counts = np.zeros((2, n + 1), np.int64)
        np.add.at(counts[0], bucket, label)
        np.add.at(counts[1], bucket, 1 - label)
        expected = np.array([average_precision(bucket, label)])
        zeros = lambda *shape: rand(*shape, low=0, high=1, dtype="int64")
        case("auc", Predict=p, Label=label, StatPos=zeros(1, n + 1), StatNeg=zeros(1, n + 1), curve="PR",
             num_thresholds=n, slide_steps=0, same=SAME, out_dtype_of={"AUC": "f64"}, tol="2e-9 0",
             out={"AUC": expected, "StatPosOut": counts[:1], "StatNegOut": counts[1:]})
        window = zeros(2 * (n + 1) + 1)
        defaults = {} if n == 4095 else {"num_thresholds": n}
        after = [np.concatenate([c, c, [1]]) for c in counts]
        case("auc", Predict=p, Label=label, StatPos=window, StatNeg=window, curve="PR", same=SAME,
             out_dtype_of={"AUC": "f64"}, tol="2e-9 0", static=True, **defaults,
             out={"AUC": expected, "StatPosOut": after[0], "StatNegOut": after[1]})
for given, expected in [(0, 0.0), (1, 1.0)]:
    case("auc", Predict=p, Label=i64(np.full(60, given)), StatPos=i64(np.zeros(8)), StatNeg=i64(np.zeros(8)), curve="PR",
         num_thresholds=7, slide_steps=0, out={"AUC": np.array([expected])}, out_dtype_of={"AUC": "f64"}, static=True)

# Windows of the last two batches: [window 0, window 1, sum, counter].
n = 7
p = rand(40, 1, seed=5, low=0, high=1)
label = i64(np.asarray(rand(40, seed=6, low=0, high=1)) < np.asarray(p)[:, 0])
bucket = np.floor(np.asarray(p, np.float64)[:, 0] * n).astype(int)
new = np.zeros((2, n + 1), np.int64)
np.add.at(new[0], bucket, label)
np.add.at(new[1], bucket, 1 - label)
old = np.arange(2 * 2 * (n + 1)).reshape(2, 2, n + 1) % 5
for counter in [2, 3]:
    stats, after = [], []
    for c in range(2):
        stats.append(i64(np.concatenate([old[c].ravel(), old[c].sum(0), [counter]])))
        windows = old[c].copy()
        windows[counter % 2] = new[c]
        after.append(i64(np.concatenate([windows.ravel(), windows.sum(0), [counter + 1]])))
    sums = [a[2 * (n + 1):3 * (n + 1)] for a in after]
    case("auc", Predict=p, Label=label, StatPos=stats[0], StatNeg=stats[1], num_thresholds=n, slide_steps=2,
         same=SAME, static=True, out_dtype_of={"AUC": "f64"}, tol="1e-12",
         out={"AUC": np.array([area(*sums)]), "StatPosOut": after[0], "StatNegOut": after[1]})
stat = {"StatPos": Shape(1, 8, dtype="i64"), "StatNeg": Shape(1, 8, dtype="i64")}
fail("auc", "input 'StatPos' of auc has the wrong number of counters: expected 17, got [1, 8]", num_thresholds=7,
     Predict=Shape(5, 1), Label=Shape(5, 1, dtype="i64"), **stat)
fail("auc", "input 'Predict' of auc has the wrong number of columns: expected 1 or 2, got [5, 3]",
     num_thresholds=7, slide_steps=0, Predict=Shape(5, 3), Label=Shape(5, 1, dtype="i64"), **stat)
fail("auc", "prediction of sample 1 is not a probability: expected a number in 0 to 1, got 1.5", num_thresholds=7,
     slide_steps=0, Predict=f32([[0.5], [1.5]]), Label=i64([[0], [1]]), StatPos=i64(np.zeros(8)),
     StatNeg=i64(np.zeros(8)))
fail("auc", "unknown curve of auc: expected ROC or PR, got PCR", curve="PCR", num_thresholds=7, slide_steps=0,
     Predict=Shape(5, 1), Label=Shape(5, 1, dtype="i64"), **stat)
