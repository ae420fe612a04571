"""The recorded values of crates/fleet-metrics/tests/recorded.rs, by scikit-learn.

    python3 -m venv ~/oracle && ~/oracle/bin/pip install scikit-learn
    ~/oracle/bin/python tests/oracle/metrics.py
"""

import numpy as np
from sklearn import metrics

at = np.arange(240, dtype=np.int64)
scores = ((at * 7919 % 1009 + 1) / 1011.0).astype(np.float32).astype(np.float64)
draws = (at * 104729 % 997) / 997.0
labels = (draws < 0.15 + 0.6 * scores).astype(np.int64)
users = at * 31 % 7

print("auc", metrics.roc_auc_score(labels, scores))
print("log_loss", metrics.log_loss(labels, scores))
print("calibration", scores.sum() / labels.sum())
print("mae", metrics.mean_absolute_error(labels, scores))
print("rmse", metrics.root_mean_squared_error(labels, scores))

areas = [metrics.roc_auc_score(labels[users == user], scores[users == user]) for user in range(7)]
print("group_auc", np.average(areas, weights=np.bincount(users)))

taken = (scores >= 0.5).astype(int)
print("precision", metrics.precision_score(labels, taken))
print("recall", metrics.recall_score(labels, taken))
print("f1", metrics.f1_score(labels, taken))
print("accuracy", metrics.accuracy_score(labels, taken))

guesses = at * 13 % 5
classes = np.where(draws < 0.5, guesses, at * 17 % 5)
print("confusion", metrics.confusion_matrix(classes, guesses).tolist())
print("accuracy", metrics.accuracy_score(classes, guesses))
print("macro_f1", metrics.f1_score(classes, guesses, average="macro"))
print("precisions", metrics.precision_score(classes, guesses, average=None).tolist())
print("recalls", metrics.recall_score(classes, guesses, average=None).tolist())

targets = (at * 53 % 89 / 89.0).astype(np.float32).astype(np.float64)
print("regression", metrics.mean_absolute_error(targets, scores),
      metrics.mean_squared_error(targets, scores), metrics.r2_score(targets, scores))
