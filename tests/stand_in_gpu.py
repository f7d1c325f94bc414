"""A stand-in for a GPU: numpy arrays that, like CuPy's, cannot be mixed with arrays of the host."""

from types import SimpleNamespace

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin
from scipy.linalg import LinAlgError, cho_solve, cholesky

from dask_nrbfn.numeric.device import Gpu


class GpuArray(NDArrayOperatorsMixin):
    """An array that only `StandInGpu.download` copies to the host."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **options):
        options = on_host(options) | ({"out": on_host(out)} if out else {})
        result = getattr(ufunc, method)(*on_host(inputs), **options)
        return out[0] if out else on_gpu(result)

    def __array_function__(self, function, types, arguments, options):
        return on_gpu(function(*on_host(arguments), **on_host(options)))

    def __getitem__(self, key):
        return on_gpu(self.values[on_host(key)])

    def __setitem__(self, key, values):
        self.values[on_host(key)] = on_host(values)

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return map(on_gpu, self.values)

    def __float__(self):
        return float(self.values)

    def __int__(self):
        return int(self.values)

    def __bool__(self):
        return bool(self.values)

    def __getattr__(self, name):
        if name.startswith("__"):
            # Such as __array_interface__, by which numpy would copy.
            raise AttributeError(name)
        found = getattr(self.values, name)
        if callable(found):
            return lambda *given, **options: on_gpu(found(*on_host(given), **on_host(options)))
        return on_gpu(found)


def on_host(value):
    """Return the arguments of a numpy function; arrays of the host are refused."""
    match value:
        case GpuArray():
            return value.values
        case np.ndarray() if value.ndim:
            raise TypeError(f"Unsupported type {type(value)}: an array {value.shape} of the host.")
        case tuple() | list():
            return type(value)(map(on_host, value))
        case dict():
            return {name: on_host(each) for name, each in value.items()}
    return value


def on_gpu(value):
    """Return the result of a numpy function; scalars of numpy are arrays of a GPU too."""
    if isinstance(value, tuple) and any(isinstance(each, np.ndarray) for each in value):
        return tuple(map(on_gpu, value))
    return GpuArray(value) if isinstance(value, np.ndarray | np.generic) else value


class _Module:
    """The functions of numpy on arrays of the GPU."""

    ndarray = GpuArray
    linalg = SimpleNamespace(norm=lambda values: on_gpu(np.linalg.norm(on_host(values))))

    def __getattr__(self, name):
        function = getattr(np, name)
        return lambda *given, **options: on_gpu(function(*on_host(given), **on_host(options)))


class OutOfMemoryError(MemoryError):
    pass


class StandInGpu(Gpu):
    """Records the shapes of all copies to and from the host, and counts factorizations."""

    out_of_memory_error, free_bytes, total_bytes = OutOfMemoryError, 2**30, 2**31

    def __init__(self):
        self.xp, self.downloads, self.uploads = _Module(), [], []
        self.n_factors = 0

    def release(self):
        pass

    def upload(self, array):
        array = array.toarray() if hasattr(array, "toarray") else array
        assert isinstance(array, np.ndarray)
        self.uploads.append(array.shape)
        return GpuArray(array.copy(order="C"))

    def download(self, array):
        self.downloads.append(array.shape)
        return array.values.copy()

    def row_products(self, A, B, out):
        np.matmul(contiguous(A), contiguous(B).T, out=contiguous(out))

    def add_products(self, sums, A, B):
        contiguous(sums)[...] += contiguous(A).T @ contiguous(B)

    def add_gram(self, sums, A):
        contiguous(sums)[...] += np.triu(contiguous(A).T @ contiguous(A))

    def factor(self, matrix):
        self.n_factors += 1
        upper = np.triu(contiguous(matrix))
        try:
            factor = cholesky(upper + np.triu(upper, 1).T)
        except LinAlgError:
            return False
        # The lower triangle stays as it is.
        matrix.values[np.triu_indices(len(upper))] = factor[np.triu_indices(len(upper))]
        return True

    def solve(self, factor, right):
        contiguous(right)[...] = cho_solve((np.triu(contiguous(factor)), False), right.values.T).T

    def absolute_sums(self, rows, columns, out, factor):
        sums = np.abs(contiguous(rows)[:, :, None] - contiguous(columns)).sum(axis=1)
        contiguous(out)[...] = factor * sums**2 if factor else sums

    def pack(self, matrix):
        return matrix.values[np.triu_indices(len(matrix))]

    def unpack(self, packed, r):
        matrix = np.zeros((r, r))
        matrix[np.triu_indices(r)] = packed.values
        return GpuArray(matrix + np.triu(matrix, 1).T)

    def least(self, values, count):
        places = np.argsort(values.values, axis=1, kind="stable")[:, :count]
        known = np.take_along_axis(values.values, places, axis=1) < np.inf
        return GpuArray(np.where(known, places, -1))


def contiguous(array):
    assert array.values.flags.c_contiguous
    assert array.values.dtype == np.float64
    return array.values
