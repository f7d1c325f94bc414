"""Eigenfunctions of a basis: functions that vary little in dense regions.

Lee & Izbicki, *A Spectral Series Approach to High-Dimensional Nonparametric Regression*, 2016.
"""

from dataclasses import dataclass

import numpy as np

from dask_nrbfn.numeric.products import add_products
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.types import Floats

# Coefficients are divided by the eigenvalues, which have an error near 1e-16. Coefficients of
# smaller eigenvalues would be mostly rounding.
LEAST_EIGENVALUE = 1e-12


@dataclass(frozen=True, eq=False)
class Eigenfunctions:
    """The first eigenfunctions ``B' phi(x)`` of a basis: B is `coefficients` (r, J)."""

    coefficients: Floats
    eigenvalues: Floats


def eigenfunctions(features: RadialFeatures, n_components: int) -> Eigenfunctions:
    """Return the eigenfunctions of the largest eigenvalues above 1e-12; the first is constant, 1.

    K is the kernel between the basis rows, d its row sums, ``D = diag(d)`` and ``s = d / sum(d)``.
    The eigenfunctions are those of ``A = D^-1 K``, which averages over the basis rows as `features`
    do: ``A psi_j = l_j psi_j`` and ``sum_i s_i psi_j(g_i) psi_k(g_i) = delta_jk`` (Lee & Izbicki,
    eq. 6; the 1/n of eqs. 9 and 12 belongs to an s that sums to n). They are the eigenvectors of
    ``D^-1/2 K D^-1/2``, each divided by ``sqrt(s)``, with a positive entry of largest magnitude.
    At a row, ``psi_j(x) = sum_i phi_i(x) psi_j(g_i) / l_j`` (eq. 11), so ``B = Psi L^-1``.
    """
    kernel = features.between_basis_rows()
    roots = np.sqrt(kernel.sum(axis=1))
    kernel /= roots
    kernel /= roots[:, None]
    # The eigenvector sqrt(s) has the eigenvalue 1, and so have others if groups of basis rows lie
    # far apart. The eigenvalue of sqrt(s) is raised to 2, which separates it from the others.
    constant = roots / np.linalg.norm(roots)
    add_products(kernel, constant[None], constant[None])
    # numpy releases the interpreter lock and has 64-bit sizes, scipy does neither.
    eigenvalues, vectors = np.linalg.eigh(kernel)
    eigenvalues[-1] = 1.0
    kept = eigenvalues[::-1][:n_components]
    kept = kept[kept > LEAST_EIGENVALUE]
    psi = vectors[:, ::-1][:, : len(kept)] / constant[:, None]
    largest = np.abs(psi).argmax(axis=0)
    psi *= np.sign(psi[largest, np.arange(len(kept))]) / kept
    return Eigenfunctions(psi, kept)


def eigenfunctions_flops(n_basis: int) -> int:
    """Return the flops of `eigenfunctions`, at the rate of a Cholesky factorization."""
    return 10 * n_basis**3


def eigenfunctions_bytes(n_basis: int) -> int:
    """Return the bytes of `eigenfunctions`: K, its eigenvectors and LAPACK's workspace."""
    return 8 * 5 * n_basis**2
