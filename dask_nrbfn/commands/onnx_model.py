"""Models as ONNX files, which run without this package."""

import logging
import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
from dask.utils import format_bytes

from dask_nrbfn.commands.describe import describe_model
from dask_nrbfn.commands.onnx_columns import ColumnInputs
from dask_nrbfn.commands.onnx_graph import Graph
from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.held_out import TIE_STEP
from dask_nrbfn.numeric.kernels import distances_in_place, kernel_named
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.ranks import RankLines
from dask_nrbfn.numeric.rows import dense
from dask_nrbfn.numeric.scaling import CENTRED
from dask_nrbfn.numeric.schema import Column, Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.outputs import check_output_file, new_file
from dask_nrbfn.storage.dataset import check_apart
from dask_nrbfn.storage.group import Location
from dask_nrbfn.storage.model import Model

if TYPE_CHECKING:
    import onnx

logger = logging.getLogger(__name__)

DTYPES = ("float64", "float32")
INPUTS = ("columns", "features")

# The limit of protocol buffers.
_LARGEST_BYTES = 2**31 - 2**20

# Differences between a row and basis rows that a runtime holds at once, for l1 distances.
_DIFFERENCES = 2**16


def export_onnx(
    model: Location | Model,
    path: str | os.PathLike[str],
    *,
    dtype: str = "float64",
    inputs: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Write a model as an ONNX file; return its inputs, outputs, dtype, versions and size.

    Parameters
    ----------
    model : Location or Model
        A model, or the location of a model or a finished run.
    path : path
    dtype : {"float64", "float32"}
        Dtype of the inputs, the computation and the outputs. Plain activations and their weighted
        sums are float64 in both, so that they become 0 as far from the basis as in `Model.scores`.
    inputs : {"columns", "features"}, optional
        The inputs of the graph: each column of the table by its name (rows, 1), or one matrix X of
        features (rows, p). By default columns, if the model makes features of the columns, such as
        those of categories or filled numbers. See Notes.
    overwrite : bool
        Replace a file at `path` once the new one is complete.

    Raises
    ------
    ExistsError, ParameterError, StorageError
        If the file cannot be written, `dtype` or `inputs` has another value, or the columns have no
        names.
    DataError
        If the model has cells, or is too large for the format.

    Notes
    -----
    Numbers and booleans (0 or 1) are inputs of `dtype`, with NaN for a missing value. Dates are
    days since 1970 in UTC, float64, with NaN. Categories are texts as `categories` in the metadata
    spells them: empty text and the markers of missing values of a text table are missing, other
    texts are unknown categories. A row with a missing value has the result NaN, unless the model
    was fitted with `missing` "impute".
    """
    if not isinstance(model, Model):
        check_apart(path, model)
        model = Model.load(model)
    check_output_file(path, overwrite=overwrite)
    proto = onnx_model(model, dtype=dtype, inputs=inputs)
    with new_file(path, overwrite=overwrite) as unfinished:
        unfinished.write_bytes(proto.SerializeToString())
    record = {
        "inputs": [value.name for value in proto.graph.input],
        "outputs": [value.name for value in proto.graph.output],
        "dtype": dtype,
        "n_bytes": proto.ByteSize(),
        "opset": proto.opset_import[0].version,
        "ir_version": proto.ir_version,
    }
    if model.schema is not None and not model.schema.is_plain:
        record["schema"] = model.schema.to_dict()
    return record


def onnx_model(
    model: Model, *, dtype: str = "float64", inputs: str | None = None
) -> "onnx.ModelProto":
    """Return what a model computes as a graph of ONNX operators, with a model card.

    The numbers are those of `Model.scores` up to `rounding` in the card, see `_rounding`, as long
    as the square of a row's distance in widths does not overflow.
    """
    if dtype not in DTYPES:
        raise ParameterError(f"`dtype` is {dtype!r}.", f"Give one of {', '.join(DTYPES)}.")
    if model.cells is not None:
        raise DataError(
            f"the model has networks of {model.n_cells} cells, but an ONNX graph would "
            "compute all of them for every row.",
            "Export a model of one network, fitted with `cells`=1.",
        )
    outputs = _output_names(model)
    columns = _columns(model, inputs, outputs)
    graph, (r, p) = Graph(np.dtype(dtype)), model.basis.shape
    itemsize = graph.dtype.itemsize
    # The weights of plain activations are float64.
    weight_bytes = itemsize if model.params.normalized else 8
    n_bytes = r * (p + 1) * itemsize + r * model.n_targets * weight_bytes
    if n_bytes > _LARGEST_BYTES:
        raise DataError(
            f"the file would have {format_bytes(n_bytes)} of {dtype} numbers, with the zeros of a "
            "sparse basis, but an ONNX file holds at most 2 GiB.",
            "Fit with a smaller `basis_size`, or with `prune`, or write `dtype` float32.",
        )
    logger.info("export: the file will have %s of %s", format_bytes(n_bytes), dtype)
    # ONNX has no rows in CSR.
    basis = dense(model.basis)
    centre = basis.mean(axis=0)
    X = graph.input("X", p) if columns is None else columns.features(graph)
    rows = _scaled_rows(model, X) - centre
    centred = (basis - centre) / model.width
    rounding = _rounding(model, centred, centre / model.width, float(np.finfo(dtype).eps))
    activations_of = _l1_activations if model.l1 else _activations
    scores: Any = activations_of(model, centred, rows / model.width) @ model.weights.T
    if model.intercept is not None:
        scores = scores + model.intercept
    scores = model.clipped(scores)
    if model.target_names is not None:
        graph.output(outputs[0], scores, model.n_targets)
    else:
        kind = np.dtype(object) if model.classes.dtype.kind in "OU" else model.classes.dtype
        places = scores.argmax(axis=1, keepdims=True)
        codes = graph.node("Squeeze", places, graph.constant([1], np.int64))
        labels = graph.node("Gather", graph.constant(model.classes, kind), codes)
        graph.output("label", labels, dtype=kind)
        graph.output("scores", _rounded_scores(scores, places, model.n_targets), model.n_targets)
        graph.output("probabilities", _probabilities(model, scores, places), model.n_targets)
    return graph.model(_card(model, columns, rounding))


def _output_names(model: Model) -> tuple[str, ...]:
    """Return the names of the outputs."""
    if model.target_names is None:
        return "label", "scores", "probabilities"
    return ("coordinates" if model.embeds else "values",)


def _columns(model: Model, inputs: str | None, outputs: tuple[str, ...]) -> ColumnInputs | None:
    """Return the columns that are inputs; None if the features are."""
    schema, names = model.schema, model.feature_names
    if inputs is None:
        inputs = "features" if schema is None or schema.is_plain else "columns"
    if inputs not in INPUTS:
        raise ParameterError(f"`inputs` is {inputs!r}.", f"Give one of {', '.join(INPUTS)}.")
    if inputs == "features":
        return None
    if schema is None and names is None:
        raise ParameterError(
            "`inputs` is 'columns', but the columns of the training rows had no names.",
            "Give features, or fit with a frame or a table whose columns have names.",
        )
    if schema is None:
        schema = Schema(tuple(Column(name, "number") for name in names or ()))
    return ColumnInputs.of(schema, outputs)


def _scaled_rows(model: Model, X: Any) -> Any:
    """Return the rows (rows, p) as `Scaling.apply` does."""
    scaling = model.scaling
    if scaling.kind in CENTRED:
        if scaling.ranks is not None:
            X = _ranked_rows(scaling.ranks, X, model.n_features)
        root = 1.0 if scaling.root is None else scaling.root
        return (X - scaling.shift) * (root / scaling.scale)
    if scaling.kind == "unit":
        length = X.graph.node("ReduceL2", X, axes=[1], keepdims=1)
        return X / np.where(length > 0.0, length, 1.0)
    return X


def _ranked_rows(ranks: RankLines, X: Any, p: int) -> Any:
    """Return the rows (rows, p) as `RankLines.apply_in_place` does.

    The last knot that is not above a value is found by halving. Scores are computed in float64,
    because single precision would merge knots.
    """
    graph, (m, n_knots) = X.graph, ranks.knots.shape
    n_halvings = (n_knots - 1).bit_length()
    size, order = 2**n_halvings, np.arange(p)
    order[ranks.columns] = p + np.arange(m)

    def whole(values: Any) -> Any:
        return graph.constant(values, np.int64)

    def flat(lines: Floats) -> Any:
        filled = np.pad(lines, ((0, 0), (0, size - n_knots)), "edge")
        return graph.constant(filled.ravel(), np.float64)

    def at(lines: Any, places: Any) -> Any:
        return graph.node("Gather", lines, places)

    of_knots, of_scores = flat(ranks.knots), flat(ranks.scores)
    x = graph.cast(graph.node("Gather", X, whole(ranks.columns), axis=1), np.float64)
    zero, one = graph.constant(0.0, np.float64), graph.constant(1.0, np.float64)
    places = firsts = whole(size * np.arange(m))
    for halving in reversed(range(n_halvings)):
        later = places + whole(2**halving)
        places = np.where(np.less(x, at(of_knots, later)), places, later)
    # The last value of a line has no line of its own.
    places = np.minimum(places, firsts + whole(size - 2))
    left, right = (at(of_knots, places + whole(step)) for step in (0, 1))
    low, high = (at(of_scores, places + whole(step)) for step in (0, 1))
    width = right - left
    share = (x - left) / np.where(np.greater(width, zero), width, one)
    scores = low + np.clip(share, zero, one) * (high - low)
    rows = graph.node("Concat", X, graph.cast(scores, graph.dtype), axis=1)
    return graph.node("Gather", rows, whole(order), axis=1)


def _l1_activations(model: Model, basis: Floats, rows: Any) -> Any:
    """Return ``exp(-sum_l |x_l - g_l|)`` (rows, r) in widths about the mean of the basis."""
    graph, (r, p) = rows.graph, basis.shape
    if model.params.normalized:
        # As `CityBlockDistances.shifted_logarithms`: far rows keep the digits of their differences.
        rows = np.clip(rows, basis.min(axis=0), basis.max(axis=0))
    row_axis = graph.node("Unsqueeze", rows, graph.constant([1], np.int64))
    size, sums = max(1, _DIFFERENCES // p), []
    for start in range(0, r, size):
        differences = np.absolute(row_axis - basis[None, start : start + size])
        sums.append(differences.sum(axis=2, keepdims=False))
    logarithms = -graph.node("Concat", *sums, axis=1)
    if model.params.normalized:
        return graph.node("Softmax", logarithms, axis=1)
    return np.exp(graph.widen(logarithms))


def _activations(model: Model, basis: Floats, rows: Any) -> Any:
    """Return a kernel of Euclidean distances (rows, r) in widths about the mean of the basis."""
    graph, kernel = rows.graph, kernel_named(model.params.kernel)
    # (|x|^2 - d^2) / 2: what is left where |x|^2 cancels.
    products = graph.node("Gemm", rows, basis.T, -0.5 * np.einsum("ij,ij->i", basis, basis))

    def exponents() -> Any:
        return products - 0.5 * np.square(rows).sum(axis=1, keepdims=True)

    def gaps() -> tuple[Any, Any]:
        t = distances_in_place(exponents())
        nearest = t.min(axis=1, keepdims=True)
        differences = products - products.max(axis=1, keepdims=True)
        # Beyond a width |x|^2 cancels before it is rounded; within, the quotient may be 0 / 0.
        far = differences / (0.5 * (t + nearest))
        return np.where(nearest > 1.0, far, nearest - t), t

    if model.params.normalized:
        logarithms = kernel.shifted_logarithms(lambda: products, gaps)
        return graph.node("Softmax", logarithms, axis=1)
    return np.exp(graph.widen(kernel.logarithms_in_place(exponents())))


def _probabilities(model: Model, scores: Any, places: Any) -> Any:
    """Return the probabilities (rows, K) of scores whose largest values are at `places`."""
    loss, graph = loss_named(model.params.loss), scores.graph
    if model.calibration is not None:
        shares = graph.node("Softmax", model.calibration.exponents(scores, loss), axis=1)
    else:
        shares = loss.probability(scores)
        totals = shares.sum(axis=1, keepdims=True)
        shares = np.where(np.equal(totals, 0.0), 1.0 / model.n_targets, shares / totals)
    raised = _raised(shares, places, shares.max(axis=1, keepdims=True), model.n_targets)
    return raised / raised.sum(axis=1, keepdims=True)


def _rounded_scores(scores: Any, places: Any, n_values: int) -> Any:
    """Return scores with the digits of an output, the largest of each row still at `places`."""
    graph = scores.graph
    if graph.dtype == graph.outer:
        return scores
    rounded = graph.cast(graph.cast(scores, graph.outer), graph.dtype)
    size = np.absolute(rounded.max(axis=1, keepdims=True))
    return _raised(rounded, places, np.maximum(size, np.finfo(graph.outer).tiny), n_values)


def _raised(values: Any, places: Any, size: Any, n_values: int) -> Any:
    """Return values (rows, K), the largest of each row at `places`; see `keep_largest_in_place`."""
    chosen = np.equal(places, values.graph.constant(np.arange(n_values), np.int64))
    # Runtimes would drop a product with a number that is so close to 1.
    raised = np.where(chosen, values.max(axis=1, keepdims=True) + TIE_STEP * size, values)
    return np.where(np.equal(values.argmax(axis=1, keepdims=True), places), values, raised)


def _rounding(model: Model, basis: Floats, centre: Floats, eps: float) -> float:
    """Return a bound of the difference from `Model.scores`; basis and centre are in widths.

    It is the error of an activation times the sum of absolute weights, for rows that are at most a
    width farther from the centre than every basis row. Plain activations of other rows have smaller
    errors; the error of normalized ones grows in proportion to the distance.
    """
    kernel, (r, p) = kernel_named(model.params.kernel), basis.shape
    normalized = model.params.normalized
    order = 1 if model.l1 else 2
    scaling = model.scaling
    shift = np.abs(scaling.apply(np.zeros((1, p)))[0])
    if scaling.ranks is not None:
        columns = scaling.ranks.columns
        root = 1.0 if scaling.root is None else scaling.root[columns]
        shift[columns] = scaling.ranks.relative_slopes() * root
    # Rounded numbers move a row. Sums of p terms have p rounding errors of both signs.
    reach = float(np.linalg.norm(basis, order, axis=1).max()) + 1.0
    offset = shift / model.width + 4.0 * np.abs(centre)
    moved = eps * (float(np.linalg.norm(offset, order)) + 3.0 * reach)
    # Of t^2 / 2, as a difference of squares; sums of absolute differences are relative to t.
    largest = 1.0 if model.l1 else (2.0 * reach) ** 2 / 2.0
    error = eps * (2.0 + p**0.5 / 2.0) * largest
    if kernel.rate is None:
        if normalized:
            moved *= reach
    elif kernel.log_factor is not None and kernel.slope is not None:
        slope = abs(float(kernel.slope(np.zeros(1))[0]))
        error, moved = 2.0 * error * slope, kernel.rate * moved
    elif not model.l1:
        # At distance 0, where the kernel is not smooth in t^2.
        error = (2.0 * error) ** 0.5
    # A share f of all activations changes by at most f (1 - f) times the largest difference.
    of_activation = (error + moved) * (0.5 if normalized else 1.0) + eps * (4.0 + r**0.5)
    of_weights = of_activation * np.abs(model.weights).sum(axis=1).max()
    largest_intercept = 0.0 if model.intercept is None else np.abs(model.intercept).max()
    return float(of_weights + eps * largest_intercept)


def _card(model: Model, columns: ColumnInputs | None, rounding: float) -> dict[str, Any]:
    """Return the model card."""
    return {
        **{key: each for key, each in describe_model(model).items() if each is not None},
        "classes": model.classes.tolist(),
        "feature_names": model.feature_names,
        **({} if columns is None else {"inputs": columns.to_dict()}),
        "schema": None if model.schema is None else model.schema.to_dict(),
        "digest": model.digest(),
        "versions": {name: version(name) for name in ("dask-nrbfn", "numpy", "onnx")},
        "rounding": rounding,
    }
