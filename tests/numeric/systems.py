"""Ridge systems of given matrices, whose activations and targets are not centred."""

import numpy as np

from dask_nrbfn.numeric import risk
from dask_nrbfn.numeric.ridge import RidgeSystem


def system_of(gram, cross, *, target_norm=0.0, **terms):
    means = np.zeros(len(cross)), np.zeros(len(gram))
    return RidgeSystem(gram, cross, np.array([target_norm]), *means, **terms)


def solve_weights(gram, cross, *, alpha, **terms):
    return system_of(gram, cross, **terms).solve(alpha)


def solve_path(gram, cross, *, alphas, **terms):
    return system_of(gram, cross, **terms).path(alphas)


def ridge_of(gram, *, alpha, **terms):
    return system_of(gram, np.empty((0, len(gram))), **terms).ridge(alpha)


def error_and_risk(weights, gram, cross, *, alpha, **terms):
    return risk.error_and_risk(weights, system_of(gram, cross, **terms), alpha)


def spectral_bounds(weights, gram, cross, *, alpha, eigenvalues=None, **terms):
    system = system_of(gram, cross, **terms)
    return risk.spectral_bounds(weights, system, alpha, eigenvalues=eigenvalues)
