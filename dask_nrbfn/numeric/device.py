"""The GPU of a task: copies to and from the GPU, and operations that numpy does not have.

Within `on_gpu`, blocks of rows, sums and systems can be CuPy arrays. numpy's operators, elementwise
functions and reductions also work on CuPy arrays, so `numeric` is written once; code that makes an
array uses `array_module`. Only this file imports CuPy, and only for a task that runs on a GPU.

All numbers stay float64, except in the products that find candidates of neighbours. Results are
those of the CPU up to rounding. "Host" is the memory of the CPU.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from functools import cache
from threading import Lock
from typing import Any, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import MemoryBudgetError, ParameterError
from dask_nrbfn.numeric.types import Floats

Result = TypeVar("Result")
Device = Literal["cpu", "gpu"]

# Most rows of a matrix in one launch of threads; CUDA allows 2^16 - 1.
_MOST_BLOCKS = 2**15

_NO_GPU = "Leave `device` out to use the CPU, or "

# Arrays are copied through pinned memory of the host, which is ten times as fast as without. Arrays
# up to `_PINNED_BYTES` go to the GPU through CuPy's own buffers, while the GPU still computes.
_STAGED_BYTES = 2**25
_PINNED_BYTES = 2**26
_COPIERS = 8

_SOURCE = r"""
// Sums of |x - g| of a tile of 64 rows and 64 columns; every thread adds 4 x 4 of them.
extern "C" __global__ void absolute_sums(
    const double* rows, const double* columns, double* out, int n, int r, int p, double factor) {
  __shared__ double a[16][65], b[16][65];
  int tx = threadIdx.x, ty = threadIdx.y, t = ty * 16 + tx;
  int i0 = blockIdx.y * 64, j0 = blockIdx.x * 64;
  double sums[4][4] = {};
  for (int k0 = 0; k0 < p; k0 += 16) {
    for (int e = t; e < 64 * 16; e += 256) {
      int i = e / 16, k = e % 16;
      a[k][i] = (i0 + i < n && k0 + k < p) ? rows[(size_t)(i0 + i) * p + k0 + k] : 0.0;
      int j = e % 64, l = e / 64;
      b[l][j] = (j0 + j < r && k0 + l < p) ? columns[(size_t)(k0 + l) * r + j0 + j] : 0.0;
    }
    __syncthreads();
    for (int k = 0; k < 16; k++)
      for (int v = 0; v < 4; v++)
        for (int w = 0; w < 4; w++) sums[v][w] += fabs(a[k][ty + 16 * v] - b[k][tx + 16 * w]);
    __syncthreads();
  }
  for (int v = 0; v < 4; v++)
    for (int w = 0; w < 4; w++) {
      int i = i0 + ty + 16 * v, j = j0 + tx + 16 * w;
      double s = sums[v][w];
      if (i < n && j < r) out[(size_t)i * r + j] = factor == 0.0 ? s : factor * (s * s);
    }
}

// The place of an element of an upper triangle: earlier rows have r, r - 1, ... elements.
__device__ size_t place_of(size_t row, size_t column, size_t r) {
  return row * r - row * (row - 1) / 2 + column - row;
}
extern "C" __global__ void unpack(const double* packed, double* matrix, int r, int first) {
  size_t i = first + blockIdx.y, j = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (j < r) matrix[i * r + j] = packed[i < j ? place_of(i, j, r) : place_of(j, i, r)];
}
extern "C" __global__ void pack(const double* matrix, double* packed, int r, int first) {
  size_t i = first + blockIdx.y, j = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i <= j && j < r) packed[place_of(i, j, r) - place_of(first, first, r)] = matrix[i * r + j];
}

// Places of the k least finite values of a row, by value and place; one block of threads a row.
// Each thread keeps its least value that is left; when it is taken, the thread finds the next one.
template <typename T> __device__ void least_of_row(
    const T* values, long long* places, int n, int k, T infinite) {
  const T* row = values + (size_t)blockIdx.x * n;
  __shared__ T group_value[32];
  __shared__ int group_place[32];
  int t = threadIdx.x, place = -1, n_groups = blockDim.x / 32;
  T value = infinite;
  for (int j = t; j < n; j += blockDim.x)
    if (row[j] < value) { value = row[j]; place = j; }
  for (int q = 0; q < k; q++) {
    T v = value;
    int at = place;
    for (int round = 0; round < 2; round++) {
      for (int step = 16; step; step /= 2) {
        T other = __shfl_down_sync(0xffffffffu, v, step);
        int other_at = __shfl_down_sync(0xffffffffu, at, step);
        if (other < v || (other == v && (unsigned)other_at < (unsigned)at)) {
          v = other;
          at = other_at;
        }
      }
      if (round == 0) {
        if (t % 32 == 0) { group_value[t / 32] = v; group_place[t / 32] = at; }
        __syncthreads();
        v = t < n_groups ? group_value[t % 32] : infinite;
        at = t < n_groups ? group_place[t % 32] : -1;
      } else if (t == 0) {
        places[(size_t)blockIdx.x * k + q] = at;
        group_value[0] = v;
        group_place[0] = at;
      }
    }
    __syncthreads();
    T won = group_value[0];
    int won_at = group_place[0];
    __syncthreads();
    if (won_at >= 0 && won_at % blockDim.x == t) {
      value = infinite;
      place = -1;
      for (int j = t; j < n; j += blockDim.x) {
        T next = row[j];
        if ((next > won || (next == won && j > won_at)) && next < value) {
          value = next;
          place = j;
        }
      }
    }
  }
}
extern "C" __global__ void least_float32(const float* v, long long* out, int n, int k) {
  least_of_row<float>(v, out, n, k, __int_as_float(0x7f800000));
}
extern "C" __global__ void least_float64(const double* v, long long* out, int n, int k) {
  least_of_row<double>(v, out, n, k, __longlong_as_double(0x7ff0000000000000ll));
}
"""


class Gpu:
    """One GPU by CuPy. Arrays of its methods are contiguous and on the GPU, most of them float64.

    A copy to the GPU waits for the copy before, so a reader is at most one block ahead of the GPU.
    """

    def __init__(self) -> None:
        import cupy
        import cupyx
        from cupy.cuda import cublas, cusolver, device

        self.xp: Any = cupy
        self._cublas, self._cusolver, self._handles = cublas, cusolver, device
        self._staging = cupyx.empty_pinned(_STAGED_BYTES, np.uint8)
        self._one_copy = Lock()
        self._copiers = ThreadPoolExecutor(_COPIERS, thread_name_prefix="copy")
        self._kernels = cupy.RawModule(code=_SOURCE)
        self._copied: Any = None

    @property
    def out_of_memory_error(self) -> type[Exception]:
        """The error of an allocation that does not fit."""
        return self.xp.cuda.memory.OutOfMemoryError  # type: ignore[no-any-return]

    @property
    def free_bytes(self) -> int:
        """Bytes of memory that this process could still allocate."""
        unused = self.xp.get_default_memory_pool().free_bytes()
        return int(self.xp.cuda.runtime.memGetInfo()[0]) + int(unused)

    @property
    def total_bytes(self) -> int:
        """Bytes of memory of the GPU."""
        return int(self.xp.cuda.runtime.memGetInfo()[1])

    def release(self) -> None:
        """Give memory back that no array uses."""
        self.xp.get_default_memory_pool().free_all_blocks()

    def upload(self, array: NDArray[Any]) -> Any:
        """Return a copy of an array on the GPU; rows in CSR become an array."""
        if hasattr(array, "toarray"):
            array = array.toarray()
        if self._copied is not None:
            self._copied.synchronize()
        stream = self.xp.cuda.get_current_stream()
        if array.nbytes <= _PINNED_BYTES:
            copy = self.xp.asarray(array, order="C")
        else:
            copy = self.xp.empty(array.shape, array.dtype)
            here = np.ascontiguousarray(array).reshape(-1)
            there = copy.reshape(-1)
            size = _STAGED_BYTES // here.itemsize
            for start in range(0, len(here), size):
                part = here[start : start + size]
                with self._one_copy:
                    staged = self._staging[: part.nbytes].view(part.dtype)
                    self._copy(part, staged)
                    there[start : start + size].set(staged)
                    stream.synchronize()
        self._copied = stream.record()
        return copy

    def download(self, array: Any) -> NDArray[Any]:
        """Return a copy on the host."""
        copy = np.empty(array.shape, array.dtype)
        self._fetch(self.xp.ascontiguousarray(array).reshape(-1), copy.reshape(-1))
        return copy

    def _fetch(self, array: Any, copy: NDArray[Any]) -> None:
        """Fill an array (m,) of the host through pinned memory."""
        size = _STAGED_BYTES // copy.itemsize
        for start in range(0, len(copy), size):
            part = copy[start : start + size]
            with self._one_copy:
                staged = self._staging[: part.nbytes].view(part.dtype)
                array[start : start + size].get(out=staged)
                self._copy(staged, part)

    def _copy(self, source: NDArray[Any], target: NDArray[Any]) -> None:
        """Copy an array (m,) in threads: new memory is slow until it has been touched."""
        size = -(-len(source) // _COPIERS)
        parts = [slice(a, a + size) for a in range(0, len(source), max(size, 1))]
        list(self._copiers.map(lambda part: np.copyto(target[part], source[part]), parts))

    def row_products(self, A: Any, B: Any, out: Any) -> None:
        """Write ``A @ B.T`` (m, n) to `out`."""
        # In Fortran's order all arrays are transposed: out.T = B A.T.
        self._gemm(B, self._cublas.CUBLAS_OP_T, A, self._cublas.CUBLAS_OP_N, 0.0, out)

    def add_products(self, sums: Any, A: Any, B: Any) -> None:
        """Add ``A.T @ B`` to `sums` (m, n)."""
        self._gemm(B, self._cublas.CUBLAS_OP_N, A, self._cublas.CUBLAS_OP_T, 1.0, sums)

    def _gemm(self, B: Any, first: int, A: Any, second: int, beta: float, sums: Any) -> None:
        """Set Fortran's ``sums' = beta sums' + op(B') op(A')``; `first`, `second` name each op."""
        m, n = sums.shape
        inner = B.shape[1] if first == self._cublas.CUBLAS_OP_T else B.shape[0]
        if not sums.size or not inner:
            sums *= beta
            return
        handle = self._handles.get_cublas_handle()
        factors = np.array([1.0, beta])
        one, scale = factors.ctypes.data, factors[1:].ctypes.data
        a, b, c = _pointer(A), _pointer(B), _pointer(sums)
        a_columns, b_columns = A.shape[1], B.shape[1]
        self._cublas.dgemm(
            handle, first, second, n, m, inner, one, b, b_columns, a, a_columns, scale, c, n
        )

    def add_gram(self, sums: Any, A: Any) -> None:
        """Add the upper triangle of ``A.T @ A`` to `sums` (r, r)."""
        n_rows, r = A.shape
        handle = self._handles.get_cublas_handle()
        lower, plain = self._cublas.CUBLAS_FILL_MODE_LOWER, self._cublas.CUBLAS_OP_N
        factor = np.array(1.0)
        one = factor.ctypes.data
        a, c = _pointer(A), _pointer(sums)
        self._cublas.dsyrk(handle, lower, plain, r, n_rows, one, a, r, one, c, r)

    def factor(self, matrix: Any) -> bool:
        """Replace the upper triangle of a matrix (r, r) by its Cholesky factor; False if none."""
        r = len(matrix)
        handle = self._handles.get_cusolver_handle()
        lower = self._cublas.CUBLAS_FILL_MODE_LOWER
        a = _pointer(matrix)
        size = self._cusolver.dpotrf_bufferSize(handle, lower, r, a, r)
        space = self.xp.empty(size)
        failed = self.xp.empty(1, np.int32)
        self._cusolver.dpotrf(handle, lower, r, a, r, _pointer(space), size, failed.data.ptr)
        return int(failed[0]) == 0

    def solve(self, factor: Any, right: Any) -> None:
        """Replace `right` (K, r) by ``right @ matrix^-1``."""
        n_right, r = right.shape
        handle = self._handles.get_cusolver_handle()
        lower = self._cublas.CUBLAS_FILL_MODE_LOWER
        a, b = _pointer(factor), _pointer(right)
        failed = self.xp.empty(1, np.int32)
        self._cusolver.dpotrs(handle, lower, r, n_right, a, r, b, r, failed.data.ptr)

    def absolute_sums(self, rows: Any, columns: Any, out: Any, factor: float) -> None:
        """Write ``sum_l |x_l - g_l|`` of rows (b, p) and columns (p, r), or ``f s^2``, to `out`."""
        n, p = rows.shape
        r = columns.shape[1]
        blocks = (-(-r // 64), -(-n // 64))
        assert all(_pointer(array) or not array.size for array in (rows, columns, out))
        sizes = (np.int32(n), np.int32(r), np.int32(p))
        arguments = (rows, columns, out, *sizes, np.float64(factor))
        self._kernels.get_function("absolute_sums")(blocks, (16, 16), arguments)

    def pack(self, matrix: Any) -> Floats:
        """Return the upper triangle of a matrix (r, r), row by row, on the host."""
        r = len(matrix)
        packed = np.empty(r * (r + 1) // 2)
        n_rows = max(1, _STAGED_BYTES // (8 * r))
        start = 0
        for first in range(0, r, n_rows):
            rows = range(first, min(first + n_rows, r))
            triangle = self.xp.empty(sum(r - row for row in rows))
            blocks = (-(-r // 256), len(rows))
            arguments = (matrix, triangle, np.int32(r), np.int32(first))
            self._kernels.get_function("pack")(blocks, (256,), arguments)
            self._fetch(triangle, packed[start : start + triangle.size])
            start += triangle.size
        return packed

    def unpack(self, packed: Any, r: int) -> Any:
        """Return the symmetric matrix (r, r) whose upper triangle, row by row, is `packed`."""
        matrix = self.xp.empty((r, r))
        for first in range(0, r, _MOST_BLOCKS):
            blocks = (-(-r // 256), min(r - first, _MOST_BLOCKS))
            arguments = (packed, matrix, np.int32(r), np.int32(first))
            self._kernels.get_function("unpack")(blocks, (256,), arguments)
        return matrix

    def least(self, values: Any, count: int) -> Any:
        """Return the places of the least values of each row, (b, count), by value; -1 for none."""
        places = self.xp.empty((len(values), count), np.int64)
        arguments = (values, places, np.int32(values.shape[1]), np.int32(count))
        kernel = self._kernels.get_function(f"least_{values.dtype}")
        kernel((len(values),), (512,), arguments)
        return places


def _pointer(array: Any) -> int:
    if array.dtype != np.float64 or not array.flags.c_contiguous:
        raise TypeError(f"cuBLAS needs contiguous float64, not {array.dtype} {array.strides}.")
    return int(array.data.ptr)


@cache
def open_gpu() -> Gpu:
    """Return the GPU of this process, or raise ParameterError."""
    try:
        import cupy
        from cupy.cuda.runtime import CUDARuntimeError, getDevice
    except ImportError as error:
        raise _not_installed(error) from error
    try:
        getDevice()
    except CUDARuntimeError as error:
        raise ParameterError(
            f"`device` is gpu, but CUDA finds no GPU ({error}).",
            f"{_NO_GPU}start the workers where nvidia-smi lists one.",
        ) from error
    try:
        gpu = Gpu()
        # Needs the compiler and the libraries of CUDA, which a driver alone does not have.
        gpu.least(cupy.zeros((1, 1)), 1)
    except (ImportError, RuntimeError) as error:
        raise _not_installed(error) from error
    return gpu


def _not_installed(error: Exception) -> ParameterError:
    return ParameterError(
        f"`device` is gpu, but CuPy or a library of CUDA cannot be loaded ({error}).",
        f'{_NO_GPU}run pip install "dask-nrbfn[cuda13]" (cuda12 for CUDA 12).',
    )


_gpu_of_task: ContextVar[Gpu | None] = ContextVar("gpu", default=None)


def on_gpu(task: Callable[..., Result], *arguments: Any) -> Result:
    """Return ``task(*arguments)``, whose blocks may be computed on the GPU."""
    gpu = open_gpu()
    before = _gpu_of_task.set(gpu)
    try:
        return task(*arguments)
    except gpu.out_of_memory_error as error:
        raise MemoryBudgetError(
            f"the GPU has {gpu.total_bytes / 2**30:.1f} GiB, which is too little ({error}).",
            "Lower `basis_size` in a new fit, or repeat this fit without `device`: a run goes on "
            "where it stopped.",
        ) from None
    finally:
        _gpu_of_task.reset(before)
        gpu.release()


def compute_on(device: Device, task: Callable[..., Result], *arguments: Any) -> Result:
    """Return ``task(*arguments)``, computed on a device."""
    return on_gpu(task, *arguments) if device == "gpu" else task(*arguments)


def active_gpu() -> Gpu | None:
    """Return the GPU of this task, None on the CPU."""
    return _gpu_of_task.get()


def gpu_of(array: Any) -> Gpu | None:
    """Return the GPU that holds an array; None for other arrays and rows in CSR."""
    if isinstance(array, np.ndarray):
        return None
    gpu = active_gpu()
    if gpu is not None and isinstance(array, gpu.xp.ndarray):
        return gpu
    return None


def array_module(array: Any) -> Any:
    """Return the module of an array: numpy, or CuPy for an array on the GPU."""
    gpu = gpu_of(array)
    return np if gpu is None else gpu.xp


def beside(array: Any, other: Any) -> Any:
    """Return an array, or None, copied to the GPU if the other array is there."""
    gpu = gpu_of(other)
    if gpu is None or array is None or gpu_of(array) is not None:
        return array
    return gpu.upload(array)


def to_device(array: Any) -> Any:
    """Return a copy of an array on the GPU of this task; without a GPU the array itself."""
    gpu = active_gpu()
    if gpu is None or array is None:
        return array
    return gpu.upload(array)


def to_host(array: Any) -> NDArray[Any]:
    """Return a copy on the host of an array on the GPU; any other array itself."""
    gpu = gpu_of(array)
    return array if gpu is None else gpu.download(array)


def bytes_of_square(n_sums: int, *, full_penalty: bool = False) -> int:
    """Return the bytes of sums and of a solution, over the squared number of basis rows.

    One sum is solved in place, next to its packed half. Several sums are those of folds: the
    solution without a fold takes two more copies of the gram matrix. A full penalty (r, r) is not
    solved in place.
    """
    if n_sums == 1:
        return 24 if full_penalty else 12
    return max(8 * n_sums, 32 if full_penalty else 24)


def largest_basis_of_gpu(square_bytes: int) -> int | None:
    """Return the most basis rows that the GPU of this process holds; None without a GPU.

    square_bytes: see `bytes_of_square`. A tenth of the memory is for blocks of rows.
    """
    try:
        gpu = open_gpu()
    except ParameterError:
        return None
    return int((0.9 * gpu.free_bytes / square_bytes) ** 0.5)


def check_sums_fit(basis: Any, n_folds: int, block_bytes: int) -> None:
    """Raise MemoryBudgetError if the GPU that holds a basis (r, p) cannot hold its sums too."""
    gpu = gpu_of(basis)
    if gpu is None:
        return
    n_basis = basis.shape[0]
    square_bytes = bytes_of_square(n_folds)
    needed = square_bytes * n_basis**2 + block_bytes
    free = gpu.free_bytes
    if needed > free:
        most = int((max(free - block_bytes, 0) / square_bytes) ** 0.5)
        folds = f" in {n_folds} folds" if n_folds > 1 else ""
        raise MemoryBudgetError(
            f"the sums of {n_basis:,} basis rows{folds} take {needed / 2**30:.1f} GiB "
            f"({square_bytes} bytes times their square) with a block of rows, and the GPU has "
            f"{free / 2**30:.1f} GiB.",
            f"Lower `basis_size` to at most {most:,}, or leave `device` out.",
        )
