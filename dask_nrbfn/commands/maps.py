"""How a map lies in Zarr: results along the dimensions of a scene, as xarray opens them."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import dask.array as da
import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.errors import ZarrUserWarning

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.cubes import Box, Cube, Grid
from dask_nrbfn.storage.dense import read_finished
from dask_nrbfn.storage.group import RECORDED, mark_complete
from dask_nrbfn.storage.model import Model

if TYPE_CHECKING:
    import xarray as xr

KIND = "map"

# A chunk of a result with a layer for each class.
_CHUNK_BYTES = 16 * 2**20

# Attributes that say what the numbers of a variable are, which are others in its map.
_OF_NUMBERS = {
    *("units", "long_name", "standard_name", "scale_factor", "add_offset", "_Unsigned", "dtype"),
    *("_FillValue", "missing_value", "valid_min", "valid_max", "valid_range", "actual_range"),
    *("flag_values", "flag_meanings", "flag_masks", "cell_methods", "ancillary_variables"),
}


class Layers(NamedTuple):
    """The dimension along which a pixel has several values, and what these are called."""

    dimension: str
    names: NDArray[Any]

    @classmethod
    def of(cls, model: Model, cube: Cube) -> "Layers":
        """Return that of the scores of a model, beside the dimensions of a cube.

        Raises
        ------
        DataError
            If one of these has the same name.
        """
        if model.embeds:
            layers = cls("component", np.arange(model.n_targets))
        elif model.target_names is not None:
            layers = cls("target", np.array(model.target_names))
        else:
            layers = cls("class", model.classes)
        check_no_dimension(cube, layers.dimension)
        return layers


def check_no_dimension(cube: Cube, name: str) -> None:
    """Raise DataError if the pixels have a dimension that is named as something in their map."""
    if name in cube.grid.sizes:
        raise DataError(f"{cube.name} has a dimension named {name}, as its map has.", "Rename it.")


class Coding(NamedTuple):
    """How labels are stored: ``codes`` (K,) of the classes, and what stands for none.

    Those of classes that are numbers are the numbers.
    """

    codes: NDArray[Any]
    missing: int
    attributes: Mapping[str, Any]

    @classmethod
    def of(cls, classes: NDArray[Any]) -> "Coding":
        """Return it in the smallest type that holds all codes and, as its largest number, none."""
        is_text = _is_text(classes)
        codes = np.arange(len(classes)) if is_text else classes.astype(np.int64)
        types: Any = (np.uint8, np.int16, np.int32, np.int64)
        kind = next(
            of for of in map(np.iinfo, types) if of.min <= codes.min() and codes.max() < of.max
        )
        attributes = {}
        if is_text:
            # What CF calls meanings are words with blanks between them.
            meanings = ("_".join(label.split()) for label in classes.tolist())
            attributes = {"flag_values": codes.tolist(), "flag_meanings": " ".join(meanings)}
        return cls(codes.astype(kind.dtype), int(kind.max), attributes)


class MapLayout(NamedTuple):
    """Where the results of a model for a scene lie in its map.

    Attributes
    ----------
    grid : Grid
        The pixels; boxes of them are chunks of the map.
    axis : int
        Where layers lie: as the features of the scene.
    layers : Layers
    coding : Coding or None
        None: the model predicts numbers.
    """

    grid: Grid
    axis: int
    layers: Layers
    coding: Coding | None

    @classmethod
    def of(cls, cube: Cube, model: Model) -> "MapLayout":
        """Return that of the map of a cube."""
        layers = Layers.of(model, cube)
        labelled = model.target_names is None and not model.embeds
        coding = Coding.of(model.classes) if labelled else None
        return cls(cube.grid, cube.axis, layers, coding)

    def is_layered(self, name: str) -> bool:
        """Return whether a result has several values for each pixel."""
        return name != "label" and not (name == "value" and len(self.layers.names) == 1)

    def prepare(self, group: zarr.Group, cube: Cube, names: Sequence[str]) -> None:
        """Add the coordinates of a cube, and the arrays of results, unless they are there."""
        import xarray as xr

        new = [name for name in names if name not in group]
        if not new:
            return
        # Variables: a coordinate would bring further ones along, of a name of a result too.
        coords = {name: each.variable for name, each in cube.coords.items() if name not in names}
        # They lie along no dimension of their own, so that arrays must name them.
        named = " ".join(str(name) for name in coords if name not in self.grid.sizes)
        if any(map(self.is_layered, names)):
            dimension, layers = self.layers
            layers = layers.astype(object) if _is_text(layers) else layers
            coords[dimension] = xr.Variable(dimension, layers)
        results = {name: self._result(name, lasting(cube.attrs), named) for name in new}
        # What xarray writes of a group takes the place of all its attributes.
        attributes = group.attrs.asdict()
        how: Any = {"mode": "a", "zarr_format": 3, "consolidated": False}
        with warnings.catch_warnings():
            # Zarr has text in a way that other tools may not know yet.
            warnings.simplefilter("ignore")
            shown = xr.Dataset(coords=coords).drop_encoding()
            shown.to_zarr(group.store, **how)
            # Whoever finds the results finds all.
            arrays = xr.Dataset(results, attrs=attributes)
            arrays.to_zarr(group.store, **how, compute=False)

    def _result(self, name: str, about: dict[Any, Any], coordinates: str) -> "xr.Variable":
        """Return a result without values."""
        import xarray as xr

        coding = self.coding if name == "label" else None
        dtype = np.dtype(np.float32) if coding is None else coding.codes.dtype
        dims, shape = [*self.grid.sizes], [*self.grid.sizes.values()]
        chunks = [*self.grid.steps.values()]
        encoding: dict[str, Any] = {"coordinates": coordinates} if coordinates else {}
        if coding is not None:
            encoding["_FillValue"] = coding.missing
            about = about | dict(coding.attributes)
        if self.is_layered(name):
            n_layers = len(self.layers.names)
            n_together = _CHUNK_BYTES // (dtype.itemsize * math.prod(chunks))
            shape.insert(self.axis, n_layers)
            chunks.insert(self.axis, min(max(1, n_together), n_layers))
            dims.insert(self.axis, self.layers.dimension)
        encoding |= {"chunks": tuple(chunks), "compressors": ZstdCodec(level=1, checksum=True)}
        # One block, of which nothing is ever computed.
        return xr.Variable(dims, da.empty(shape, dtype=dtype, chunks=-1), about, encoding)

    def write(self, group: zarr.Group, name: str, box: Box, values: NDArray[Any]) -> None:
        """Write a result of the pixels of a box: (b, q), (b,) or (b, 1)."""
        place = [*box.values()]
        lengths = [each.stop - each.start for each in place]
        if self.is_layered(name):
            place.insert(self.axis, slice(None))
            shaped = np.moveaxis(values.reshape(*lengths, -1), -1, self.axis)
        else:
            shaped = values.reshape(lengths)
        _open(group, name)[tuple(place)] = shaped

    def missing_if_finished(
        self, group: zarr.Group, names: Sequence[str], index: tuple[int, ...]
    ) -> int | None:
        """Return how many pixels of a box have no result; None unless all of it is written."""
        first: Any = None
        for name in names:
            array = _open(group, name)
            for chunk in self._chunks(array, name, index):
                if (values := read_finished(array, chunk)) is None:
                    return None
                first = values if first is None else first
        if self.is_layered(names[0]):
            first = first.take(0, self.axis)
        none = np.isnan(first) if self.coding is None else first == self.coding.missing
        return int(np.count_nonzero(none))

    def _chunks(
        self, array: zarr.Array[Any], name: str, index: tuple[int, ...]
    ) -> Iterator[tuple[int, ...]]:
        """Yield the places of the chunks that a result of a box is in."""
        if not self.is_layered(name):
            yield index
            return
        n_chunks = -(-array.shape[self.axis] // array.chunks[self.axis])
        for layer in range(n_chunks):
            yield (*index[: self.axis], layer, *index[self.axis :])


def lasting(attributes: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return the attributes of a variable that are true of its map too."""
    return {name: value for name, value in attributes.items() if name not in _OF_NUMBERS}


def finish_map(group: zarr.Group, about: Mapping[Any, Any], identity: Mapping[str, str]) -> None:
    """Record that a map is complete, and what is said of its scene."""
    told = {
        str(name): value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        for name, value in about.items()
        if name not in RECORDED
    }
    mark_complete(group, kind=KIND, attributes={**told, **identity})
    with warnings.catch_warnings():
        # xarray looks for it, and warns where it is not.
        warnings.simplefilter("ignore", ZarrUserWarning)
        zarr.consolidate_metadata(group.store)


def _is_text(values: NDArray[Any]) -> bool:
    return values.dtype.kind in "TU"


def _open(group: zarr.Group, name: str) -> zarr.Array[Any]:
    array = group[name]
    assert isinstance(array, zarr.Array)
    # What is missing in a box must be told from what is not written.
    return array.with_config({"write_empty_chunks": True})
