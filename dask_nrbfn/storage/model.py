"""The model: one Zarr group with everything that prediction needs, as plain arrays."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from dask_nrbfn.errors import DamagedDataError, ParameterError
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.cell_networks import CellNetworks
from dask_nrbfn.numeric.device import to_host
from dask_nrbfn.numeric.gradients import heaviest_columns
from dask_nrbfn.numeric.held_out import normalize_in_place
from dask_nrbfn.numeric.intervals import Intervals, RowScale
from dask_nrbfn.numeric.kernels import kernel_named
from dask_nrbfn.numeric.losses import loss_named
from dask_nrbfn.numeric.radial import RadialFeatures
from dask_nrbfn.numeric.ranks import RankLines
from dask_nrbfn.numeric.rows import Rows
from dask_nrbfn.numeric.scaling import Scaling
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams
from dask_nrbfn.storage.array import get_stored, read_rows, update_digest, write_array
from dask_nrbfn.storage.dataset import check_columns
from dask_nrbfn.storage.group import (
    attributes_of,
    check_identity,
    mark_complete,
    metadata_named,
    open_group,
    replacing_group,
)
from dask_nrbfn.storage.location import Location, join, normalize
from dask_nrbfn.storage.run import latest_place, model_name

# Fields of a model that are attributes as they are.
_RECORDED = ("width", "fitting_error", "spectral_risk", "feature_names", "target_names", "read_as")

# Arrays of a model and of its scaling, with the names of their dimensions.
_ARRAYS = {
    "basis": ("basis", "feature"),
    "weights": ("target", "basis"),
    "classes": ("class",),
    "intercept": ("target",),
    "target_range": ("end", "target"),
    "places": ("basis",),
}
_SCALING = {"shift": ("feature",), "scale": ("feature",), "root": ("feature",)}
_SCALE = {"offsets": ("cell", "target"), "least": ("target",), "weights": ("target", "basis")}
_RANKS = {"columns": ("ranked",), "knots": ("ranked", "knot"), "scores": ("ranked", "knot")}


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A trained network.

    Attributes
    ----------
    basis : float64 (r, p), or in CSR
        Scaled basis rows.
    width : float
        Sigma of the kernel.
    weights : float64 (q, r)
    classes : int64, bool, float64 or str (K,)
        Labels, in the order of the scores; empty for numeric targets.
    scaling : Scaling
        Applied to rows before distances are computed.
    params : FitParams
    fitting_error, spectral_risk : float or None
        None for an embedding, which learns no targets.
    calibration : Calibration or None
        How scores become probabilities. None: not calibrated.
    feature_names, target_names : tuple of str or None
        Names of the features, and of numeric targets; None for classes.
    intercept : float64 (q,) or None
        Added to the products of activations and weights; None: 0.
    places : int64 (r,) or None
        Ascending indices of the basis rows in the basis of the run; None: all are used.
    schema, read_as : Schema or None, mapping of str or None
        As in `Dataset`, of the training rows.
    target_range : float64 (2, q) or None
        Smallest and largest training target. Predictions are clipped to it; None: not clipped.
    cells : CellNetworks or None
        Cells with a network each. `basis` and `weights` then hold one cell after another, and
        `width` is the median over the cells. None: one network.
    intervals : Intervals or None
        What held-out rows say about the errors of predictions. None: no rows were held out.
    """

    basis: Rows
    width: float
    weights: Floats
    classes: NDArray[Any]
    scaling: Scaling
    params: FitParams
    fitting_error: float | None = None
    spectral_risk: float | None = None
    calibration: Calibration | None = None
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    intercept: Floats | None = None
    places: NDArray[np.int64] | None = None
    schema: Schema | None = None
    read_as: Mapping[str, str] | None = None
    target_range: Floats | None = None
    cells: CellNetworks | None = None
    intervals: Intervals | None = None

    def __repr__(self) -> str:
        return f"<dask_nrbfn.Model of {self.n_basis} basis rows and {self.n_features} features>"

    @property
    def n_basis(self) -> int:
        """Number of basis rows r."""
        return int(self.basis.shape[0])

    @property
    def n_active(self) -> int:
        """Largest number of activations of a row: all basis rows, or those of the largest cell."""
        return self.n_basis if self.cells is None else self.cells.most_basis_rows

    @property
    def n_cells(self) -> int:
        """Number of cells that have a network each; 1 for one network."""
        return 1 if self.cells is None else self.cells.n_cells

    @property
    def l1(self) -> bool:
        """Whether the kernel is one of l1 distances."""
        return kernel_named(self.params.kernel).l1

    @property
    def n_features(self) -> int:
        """Number of features p that rows must have."""
        return int(self.basis.shape[1])

    @property
    def embeds(self) -> bool:
        """Whether the model is an embedding: scores are coordinates, and there are no targets."""
        return self.fitting_error is None

    @property
    def n_targets(self) -> int:
        """Number of classes K, or of numeric targets q."""
        return len(self.classes if self.target_names is None else self.target_names)

    def scores(
        self,
        X: Rows,
        *,
        buffer: Floats | None = None,
        scratch: Floats | None = None,
        features: RadialFeatures | None = None,
        extended: bool = False,
    ) -> Floats:
        """Return the class scores of rows, float64 (b, K), or the predicted numbers (b, q).

        With the squared loss and normalized activations, the scores of a row sum to about 1. With
        the other losses, a positive score speaks for the class.

        Parameters
        ----------
        X : (b, p)
        buffer, scratch : float64 (b, n_active), (b, p + 2), optional
            Memory for the activations and the centred rows. With cells, the length of `buffer`
            limits the number of rows that are scored together.
        features : RadialFeatures, optional
            `self.features` on another device, where `buffer` and `scratch` are too. Without cells.
        extended : bool
            Also return what `intervals` needs: for numbers the raw scales (b, q) of the rows, and
            last the distance to the nearest basis row in widths.

        Returns
        -------
        float64 (b, K), (b, q), (b, K + 1) or (b, 2 q + 1)

        Raises
        ------
        DataError
            If X has another number of columns than the training rows.
        """
        check_columns(X.shape[1], self.n_features)
        if self.cells is None:
            if features is None:
                features = self.features
            weights = self._extended_weights if extended else self.weights
            distances = features.xp.empty(X.shape[0]) if extended else None
            sums = features.weighted_sums(
                X, weights, buffer=buffer, scratch=scratch, distances=distances
            )
            scores: Floats = to_host(sums)
            if distances is not None:
                scores = np.column_stack([scores, to_host(distances)])
        else:
            scores = self._scores_of_cells(self.cells, X, buffer=buffer, extended=extended)
        q = len(self.weights)
        if self.intercept is not None:
            scores[:, :q] += self.intercept
        if extended and self.cells is None:
            scores[:, q:-1] += self._scale_offsets(0)
        return scores

    @cached_property
    def _extended_weights(self) -> Floats:
        """The weights of scores, and for numbers those of the scales of rows, (q + q, r)."""
        assert self.intervals is not None
        if self.target_names is None:
            return self.weights
        scale = self.intervals.scale
        assert scale is not None
        of_scales = np.zeros_like(self.weights) if scale.weights is None else scale.weights
        return np.vstack([self.weights, of_scales])

    @property
    def n_extended(self) -> int:
        """Number of values of a row with `extended`."""
        return len(self.weights) * (1 if self.target_names is None else 2) + 1

    def _scores_of_cells(
        self, cells: CellNetworks, X: Rows, *, buffer: Floats | None, extended: bool
    ) -> Floats:
        """Return the scores of rows, each by the network of its cell."""
        scaled = np.asarray(self.scaling.apply(X))
        q = len(self.weights)
        scores = np.empty((len(scaled), self.n_extended if extended else q))
        most_rows = max(len(scaled), 1) if buffer is None else len(buffer)
        for cell, rows, basis in cells.of_rows(scaled, most_rows):
            space = None
            if buffer is not None:
                # Reuse the buffer for a basis of any size.
                size = len(rows) * (basis.stop - basis.start)
                space = buffer.reshape(-1)[:size].reshape(len(rows), -1)
            weights = np.ascontiguousarray(self.weights[:, basis])
            features = self.features_of_cell(cell)
            distances = np.empty(len(rows)) if extended else None
            sums = features.weighted_sums(scaled[rows], weights, buffer=space, distances=distances)
            scores[rows, :q] = sums + cells.intercepts[cell]
            if distances is not None:
                scores[rows, q:-1] = self._scale_offsets(cell)
                # A constant network has one basis row, which says nothing about the cell.
                scores[rows, -1] = distances if weights.any() else 0.0
        return scores

    def _scale_offsets(self, cell: int) -> Floats | float:
        """Return the offsets (q,) of the scales of the rows of a cell; classes have no scales."""
        assert self.intervals is not None
        scale = self.intervals.scale
        return 0.0 if scale is None else scale.offsets[cell]

    def check_intervals(self, coverages: Iterable[float] = ()) -> None:
        """Raise ParameterError if held-out rows do not give intervals of these coverages."""
        if self.intervals is None:
            raise ParameterError(
                "the model has no held-out rows, which intervals and distances need.",
                "Tune, or fit with `alpha` auto, the squared loss and without `prune`.",
            )
        for coverage in coverages:
            self.intervals.check(coverage)

    def clipped(self, numbers: Floats) -> Floats:
        """Return predicted numbers (b, q), clipped to the range of the training targets."""
        return numbers if self.target_range is None else np.clip(numbers, *self.target_range)

    def range_with(self, further: Floats | None) -> Floats | None:
        """Return the range (2, q) of the training and further targets; None for classes."""
        if self.target_range is None or further is None:
            return self.target_range
        low, high = self.target_range
        further_low, further_high = further
        return np.stack([np.fmin(low, further_low), np.fmax(high, further_high)])

    def features_of_cell(self, cell: int) -> RadialFeatures:
        """Return the radial basis functions of a cell, for rows that are scaled as the basis is."""
        cells = self.cells
        assert cells is not None
        if cell not in self._features_of_cells:
            root = cells.roots[cell]
            basis = self.basis[cells.starts[cell] : cells.starts[cell + 1]] * root
            scaling = Scaling("learned", np.zeros_like(root), np.ones_like(root), root)
            self._features_of_cells[cell] = self._radial(basis, cells.widths[cell], scaling)
        return self._features_of_cells[cell]

    @cached_property
    def _features_of_cells(self) -> dict[int, RadialFeatures]:
        """The radial basis functions of the cells that were used so far."""
        return {}

    @cached_property
    def features(self) -> RadialFeatures:
        """The radial basis functions."""
        return self._radial(self.basis, self.width, self.scaling)

    def _radial(self, basis: Rows, width: float, scaling: Scaling) -> RadialFeatures:
        kernel, normalized = self.params.kernel, self.params.normalized
        return RadialFeatures.from_basis(
            basis, width, scaling, kernel=kernel, normalized=normalized
        )

    def probabilities(self, scores: Floats) -> Floats:
        """Return the class probabilities of scores, float64 (b, K).

        Without a calibration, a probability is `Loss.probability` of the score, divided by the sum
        over the row. The class of the largest score always gets the largest probability, even
        where biases, clipping or rounding would favour another class.
        """
        loss = loss_named(self.params.loss)
        if self.calibration is not None:
            return self.calibration.probabilities(scores, loss)
        return normalize_in_place(loss.probability(scores), scores)

    def digest(self) -> str:
        """Return a digest of everything that affects the predictions of the model."""
        scaling = self.scaling
        calibrated: Iterable[Any] = (None,)
        if self.calibration is not None:
            calibrated = self.calibration.to_dict().values()
        kind = (scaling.kind, *self.params.predicting, *calibrated)
        content = hashlib.blake2b(repr((self.width, kind)).encode(), digest_size=16)
        names = [self.classes.tolist(), self.feature_names, self.target_names]
        content.update(json.dumps(names).encode())
        if self.schema is not None:
            content.update(self.schema.digest.encode())
        arrays = [self.basis, self.weights, scaling.shift, scaling.scale, scaling.root]
        arrays.append(self.intercept)
        if scaling.ranks is not None:
            arrays += vars(scaling.ranks).values()
        if self.cells is not None:
            arrays += self.cells.arrays().values()
        arrays.append(self.target_range)
        if self.intervals is not None:
            arrays += [np.float64(self.intervals.far), *self._interval_arrays().values()]
        for array in arrays:
            if array is not None:
                update_digest(content, array)
        return content.hexdigest()

    @property
    def feature_weights(self) -> Floats | None:
        """Learned column weights, float64 (p,), of cells the mean over rows; None: not learned."""
        if self.cells is None or (self.cells.roots == 1.0).all():
            return self.scaling.feature_weights
        return self.cells.feature_weights(self.scaling.root)

    @property
    def heaviest_columns(self) -> dict[str, float] | None:
        """Learned weights of the source columns by name, the largest first; None: not learned."""
        weights = self.feature_weights
        if weights is None:
            return None
        names, n_features = self.feature_names, len(weights)
        return heaviest_columns(weights, self.scaling, self.schema, names, n_features)

    def save(self, location: Location, *, overwrite: bool = False) -> None:
        """Write the model as a group at `location`, where an old model stays until the end."""
        with replacing_group(location, kind="model", overwrite=overwrite) as group:
            self.write(group)

    def write(self, group: zarr.Group) -> None:
        """Write the model into an empty group."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        if self.classes.dtype.kind in "OU":
            # Labels of a pandas column are Python objects; text may be in another byte order.
            arrays["classes"] = np.array(self.classes.tolist(), dtype=np.str_)
        arrays |= {name: getattr(self.scaling, name) for name in _SCALING}
        arrays |= {f"rank_{name}": getattr(self.scaling.ranks, name, None) for name in _RANKS}
        if self.cells is not None:
            arrays |= self.cells.arrays()
        arrays |= self._interval_arrays()
        arrays = {name: values for name, values in arrays.items() if values is not None}
        dimensions = _ARRAYS | _SCALING | CellNetworks.array_names()
        dimensions |= {f"rank_{name}": axes for name, axes in _RANKS.items()}
        dimensions |= {f"scale_{name}": axes for name, axes in _SCALE.items()}
        dimensions["quantiles"] = ("level", "target")
        attributes = {
            "scaling": self.scaling.kind,
            "arrays": list(arrays),
            **{name: getattr(self, name) for name in _RECORDED},
            "params": self.params.to_dict(),
            "far": None if self.intervals is None else self.intervals.far,
            "schema": None if self.schema is None else self.schema.to_dict(),
            "calibration": None if self.calibration is None else self.calibration.to_dict(),
        }
        for name, values in arrays.items():
            write_array(group, name, values, *dimensions[name])
        mark_complete(group, kind="model", attributes=attributes)

    def _interval_arrays(self) -> dict[str, Any]:
        """Return the arrays of the intervals by the names under which they are stored."""
        if self.intervals is None:
            return {}
        scale = self.intervals.scale
        arrays = {f"scale_{name}": getattr(scale, name, None) for name in _SCALE}
        return {"quantiles": self.intervals.quantiles} | arrays

    @classmethod
    def load(cls, location: Location) -> Self:
        """Read a model, or the latest model of a run.

        Raises
        ------
        MissingDataError, DamagedDataError
            If there is no model, or it is damaged.
        """
        return cls.read(open_model_group(location))

    @classmethod
    def read(cls, group: zarr.Group) -> Self:
        """Read the model from its open group."""
        attributes = attributes_of(group)
        arrays: dict[str, Any] = {
            name: read_rows(get_stored(group, name)) for name in attributes["arrays"]
        }
        if arrays["classes"].dtype.kind == "T":
            arrays["classes"] = np.asarray(arrays["classes"].tolist())
        own: dict[str, Any] = {name: arrays.get(name) for name in _ARRAYS}
        scaling: dict[str, Any] = {name: arrays.get(name) for name in _SCALING}
        if "rank_columns" in arrays:
            scaling["ranks"] = RankLines(**{name: arrays[f"rank_{name}"] for name in _RANKS})
        recorded = {name: attributes[name] for name in _RECORDED}
        for name in ("feature_names", "target_names"):
            recorded[name] = None if recorded[name] is None else tuple(recorded[name])
        intervals = None
        if attributes["far"] is not None:
            scale = None
            if "scale_offsets" in arrays:
                of_rows: dict[str, Any] = {name: arrays.get(f"scale_{name}") for name in _SCALE}
                scale = RowScale(**of_rows)
            intervals = Intervals(arrays["quantiles"], attributes["far"], scale)
        schema = Schema.of_record(attributes["schema"])
        if schema is not None and not schema.is_plain:
            recorded["feature_names"] = schema.feature_names
        return cls(
            **recorded,
            **own,
            scaling=Scaling(attributes["scaling"], **scaling),
            params=FitParams(**attributes["params"]),
            calibration=Calibration.of(attributes["calibration"] or {}),
            schema=schema,
            intervals=intervals,
            cells=CellNetworks.from_arrays(arrays) if "cell_starts" in arrays else None,
        )


def open_model_group(location: Location) -> zarr.Group:
    """Open the group of a model, or the latest model inside a run."""
    group = open_group(location, kind="run or model")
    attributes = attributes_of(group)
    if attributes["kind"] == "dask_nrbfn.model":
        return group
    return open_version(group, latest_place(attributes))


def open_version(run: zarr.Group, place: str) -> zarr.Group:
    """Return the group of the model of the version of a run at `place`."""
    name = model_name(place)
    with metadata_named(f"{run.store_path}/{name}"):
        model = run.get(name)
    if not isinstance(model, zarr.Group) or "kind" not in model.attrs:
        problem = f"the run {run.store_path} has no model yet."
        remedy = "Finish the run by its first command, or delete it."
        if place:
            problem = f"the run {run.store_path} has no model in {place}."
            remedy = "Refresh the run, or restore the missing group from a copy."
        raise DamagedDataError(problem, remedy)
    check_identity(model, "model")
    return model


class PinnedModel(NamedTuple):
    """A model that tasks will read, with the checksum of its attributes.

    The run may get another model meanwhile. `clip`: whether predicted numbers are clipped.
    """

    location: Location
    checksum: str
    clip: bool = True

    @classmethod
    def at(cls, location: Location, *, clip: bool = True) -> Self:
        """Pin the model, or the latest one of a run, at `location`."""
        group = open_model_group(location)
        if not isinstance(normalize(location), zarr.abc.store.Store) and group.path:
            location = join(location, group.path)
        return cls(normalize(location), attributes_of(group)["checksum"], clip)

    def open(self) -> Model:
        """Read the model; raise DamagedDataError if it was replaced."""
        group = open_model_group(self.location)
        if attributes_of(group)["checksum"] != self.checksum:
            raise DamagedDataError(
                f"the model {self.location} was replaced during the job.", "Start the job again."
            )
        model = Model.read(group)
        return model if self.clip else replace(model, target_range=None)
