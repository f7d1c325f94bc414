"""Lin: *Machine Learning Techniques*, lecture 14, Radial Basis Function Network.

The lecture prints no figures; its statements are looked at on the splits of a set of two classes,
-1 and 1. Z are plain Gaussians of all training rows, sigma is 0.1 for the network that
interpolates and 0.5 else.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from comparators.neighbours import MajorityOfNeighbors
from comparators.smoothing import kernel_votes
from lines import Line, Spread, Table
from numpy.typing import NDArray
from sets import DataSet, Split
from sklearn.cluster import KMeans

from dask_nrbfn.numeric.radial import RadialFeatures

Floats = NDArray[np.float64]

NARROW, WIDE = 0.1, 0.5
# So narrow that the nearest row outvotes all others.
NARROWEST = 0.01
RIDGE = 1.0
CENTRES = (5, 20, 50)
PENALTIES = (1e-6, 1.0)


@dataclass(frozen=True, eq=False)
class Lecture:
    """What the lecture does with a split."""

    split: Split

    @cached_property
    def rows(self) -> Floats:
        """The training rows that differ: Z of equal ones is singular, as the lecture says."""
        return self.split.X_train[self._firsts].astype(np.float64)

    @cached_property
    def signs(self) -> Floats:
        """Their labels, -1 and 1."""
        return 2.0 * self.split.y_train[self._firsts] - 1.0

    @cached_property
    def _firsts(self) -> NDArray[np.intp]:
        return np.unique(self.split.X_train, axis=0, return_index=True)[1]

    def error(self, scores: Floats) -> float:
        """Return the test error of scores (b,) in percent."""
        return 100.0 * float(((scores > 0) != self.split.y_test).mean())

    def votes(self, width: float) -> Floats:
        """Return the scores of uniform influence."""
        T = self.signs[:, None]
        X = self.split.X_test
        return kernel_votes(self.rows, T, X, width=width, normalized=False)[:, 0]

    @cached_property
    def nearest(self) -> Floats:
        """Labels of the nearest rows."""
        return MajorityOfNeighbors(1).fit(self.rows, self.signs).predict(self.split.X_test)

    @cached_property
    def interpolation(self) -> tuple[float, float]:
        """Largest error of a training row, and the test error, of ``Z^-1 y``."""
        features, Z = self._full(NARROW)
        beta = np.linalg.solve(Z, self.signs)
        scores = features.activations(self.split.X_test) @ beta
        return float(np.abs(Z @ beta - self.signs).max()), self.error(scores)

    def full_ridge(self, *, of_kernel: bool) -> float:
        """Return the test error of ``(Z'Z + lambda I)^-1 Z'y``, or of ``(Z + lambda I)^-1 y``."""
        features, Z = self._full(WIDE)
        ridge = RIDGE * np.eye(len(Z))
        beta = np.linalg.solve(
            Z + ridge if of_kernel else Z @ Z + ridge, (self.signs if of_kernel else Z @ self.signs)
        )
        return self.error(features.activations(self.split.X_test) @ beta)

    def clustered(self, count: int, penalty: float) -> tuple[float, float]:
        """Return mean square of the scores of the training rows, and test error, with k-means."""
        centres = KMeans(count, n_init=1, random_state=0).fit(self.rows).cluster_centers_
        features = RadialFeatures.from_basis(centres, WIDE, normalized=False)
        Phi = features.activations(self.rows)
        beta = np.linalg.solve(Phi.T @ Phi + penalty * np.eye(count), Phi.T @ self.signs)
        error = self.error(features.activations(self.split.X_test) @ beta)
        return float(((Phi @ beta) ** 2).mean()), error

    def lost_ranks(self) -> int:
        """Return by how much the rank of Z is below its size when one row is there twice."""
        twice = self.rows[[*range(len(self.rows)), 0]]
        features = RadialFeatures.from_basis(twice, NARROW, normalized=False)
        return len(twice) - int(np.linalg.matrix_rank(features.activations(twice)))

    def _full(self, width: float) -> tuple[RadialFeatures, Floats]:
        features = RadialFeatures.from_basis(self.rows, width, normalized=False)
        return features, features.activations(self.rows)


def statements(data: DataSet) -> Iterator[Line]:
    """Yield errors, and what the lecture says of them."""
    lectures = [Lecture(split) for split in data.official()]
    yield _errors("uniform vote", [own.error(own.votes(NARROW)) for own in lectures])
    yield _errors("nearest neighbour", [own.error(own.nearest) for own in lectures])
    same = np.mean([((own.votes(NARROWEST) > 0) == (own.nearest > 0)).mean() for own in lectures])
    yield Line.claim(
        "vote with a narrow kernel",
        "the nearest often dominates",
        f"{100 * same:.1f} % alike",
        holds=same > 0.95,
    )
    inside, outside = zip(*(own.interpolation for own in lectures), strict=True)
    yield Line.claim("full network, E_in", "0", f"{max(inside):.0e}", holds=max(inside) < 1e-9)
    lost = {own.lost_ranks() for own in lectures}
    yield Line.claim(
        "full network, x_1 = x_2", "Z singular", f"rank r - {max(lost)}", holds=lost == {1}
    )
    yield _errors("full network", outside)
    ridge = [own.full_ridge(of_kernel=False) for own in lectures]
    yield _errors("full network, ridge", ridge)
    yield _errors("kernel ridge", [own.full_ridge(of_kernel=True) for own in lectures])
    yield _better("ridge", "less overfitting", ridge, outside)
    fits = {
        (M, lam): [own.clustered(M, lam) for own in lectures] for M in CENTRES for lam in PENALTIES
    }
    for M in CENTRES:
        yield _errors(f"k-means network, M = {M}", [error for _, error in fits[M, PENALTIES[0]]])
    sizes = {key: np.mean([size for size, _ in found]) for key, found in fits.items()}
    least = min(sizes, key=sizes.__getitem__)
    yield Line.claim(
        "most regularized",
        "small M, large lambda",
        f"M = {least[0]}, lambda = {least[1]:g}",
        holds=least == (CENTRES[0], PENALTIES[-1]),
    )
    proper = [error for _, error in fits[CENTRES[-1], PENALTIES[0]]]
    yield _better("full network", "generally less useful", proper, outside)


def _errors(what: str, errors: Sequence[float]) -> Line:
    spread = Spread.of(errors)
    return Line.ours(f"{what}, error %", f"{spread.mean:.1f}", spread.note)


def _better(what: str, claim: str, less: Sequence[float], more: Sequence[float]) -> Line:
    small, large = Spread.of(less).mean, Spread.of(more).mean
    return Line.claim(what, claim, f"{small:.1f} against {large:.1f}", holds=small < large)


TABLES = [Table("statements", "what the lecture says", ("raetsch_banana",), statements)]
