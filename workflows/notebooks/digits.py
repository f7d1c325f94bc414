# %% [markdown]
# # Embeddings and images: the digits
# A network for images, coordinates without labels, and the images that it gets wrong.

# %%
import numpy as np
from sklearn.datasets import load_digits
from sklearn.neighbors import KNeighborsClassifier

from dask_nrbfn import DiffusionMap, NRBFNClassifier

X, y = load_digits(return_X_y=True)
train, test = slice(0, 1200), slice(1200, None)

# %% [markdown]
# Fit. Pixels have one unit, so the kernel is of their Euclidean distances. A fitted network shows
# its basis, width and classes below the diagram.

# %%
pixels = {"kernel": "gaussian", "scale": "none"}
network = NRBFNClassifier(basis_size=250, alpha=1e-8, **pixels).fit(X[train], y[train])
print(f"{1 - network.score(X[test], y[test]):.2%} errors")
network

# %% [markdown]
# Look at the errors: the images with the largest probability of a wrong label.

# %%
probabilities, labels = network.predict_proba(X[test]), network.predict(X[test])
wrong = np.flatnonzero(labels != y[test])
worst = wrong[np.argsort(-probabilities[wrong].max(axis=1))][:3]
for row in worst:
    print(f"row {row}: {y[test][row]}, predicted {labels[row]}")
    for line in X[test][row].reshape(8, 8):
        print("".join(" .:*#"[int(value // 4)] for value in line))

# %% [markdown]
# Find coordinates without labels, and see how well neighbours in them agree.

# %%
embedding = DiffusionMap(n_components=10, basis_size=300).fit(X[train])
nearest = KNeighborsClassifier(5).fit(embedding.transform(X[train]), y[train])
print(f"{1 - nearest.score(embedding.transform(X[test]), y[test]):.2%} errors in 10 coordinates")
embedding
