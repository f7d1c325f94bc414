"""How a map lies in Zarr: results along the dimensions of a scene, as xarray opens them."""

import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import ZstdCodec
from zarr.errors import ZarrUserWarning

from dask_nrbfn.errors import DataError
from dask_nrbfn.sources.cubes import Box, Cube, Grid
from dask_nrbfn.sources.scene import Scene, carried_attributes, dimensions_of, names_of, open_scene
from dask_nrbfn.storage.dense import read_finished
from dask_nrbfn.storage.group import RECORDED, mark_complete
from dask_nrbfn.storage.model import Model

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
    def of(cls, model: Model) -> "Layers":
        """Return that of the scores of a model."""
        if model.embeds:
            return cls("component", np.arange(model.n_targets))
        if model.target_names is not None:
            return cls("target", np.array(model.target_names))
        return cls("class", model.classes)


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
        is_text = classes.dtype.kind in "TU"
        codes = np.arange(len(classes)) if is_text else classes.astype(np.int64)
        types: Any = (np.uint8, np.int16, np.int32, np.int64)
        kind = next(
            of for of in map(np.iinfo, types) if of.min <= codes.min() and codes.max() < of.max
        )
        attributes: dict[str, Any] = {"_FillValue": int(kind.max)}
        if is_text:
            # What CF calls meanings are words with blanks between them.
            meanings = ("_".join(label.split()) for label in classes.tolist())
            attributes |= {"flag_values": codes.tolist(), "flag_meanings": " ".join(meanings)}
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
    def of(cls, cube: Cube, feature_dim: str, model: Model) -> "MapLayout":
        """Return that of the map of a cube."""
        grid, layers = Grid.of(cube, feature_dim), Layers.of(model)
        if layers.dimension in grid.sizes:
            raise DataError(
                f"{cube.name} has a dimension named {layers.dimension}, as its map would have.",
                "Rename it.",
            )
        labelled = model.target_names is None and not model.embeds
        coding = Coding.of(model.classes) if labelled else None
        return cls(grid, cube.dimensions.index(feature_dim), layers, coding)

    def is_layered(self, name: str) -> bool:
        """Return whether a result has several values for each pixel."""
        return name != "label" and not (name == "value" and len(self.layers.names) == 1)

    def create(self, group: zarr.Group, name: str) -> None:
        """Add the array of a result, unless it is there."""
        if name in group:
            return
        coding = self.coding if name == "label" else None
        dtype = np.dtype(np.float32) if coding is None else coding.codes.dtype
        shape, chunks = [*self.grid.sizes.values()], [*self.grid.steps.values()]
        dimensions = [*self.grid.sizes]
        if self.is_layered(name):
            n_layers = len(self.layers.names)
            n_together = _CHUNK_BYTES // (dtype.itemsize * math.prod(chunks))
            shape.insert(self.axis, n_layers)
            chunks.insert(self.axis, min(max(1, n_together), n_layers))
            dimensions.insert(self.axis, self.layers.dimension)
        group.create_array(
            name,
            shape=shape,
            chunks=tuple(chunks),
            dtype=dtype,
            fill_value=np.nan if coding is None else coding.missing,
            dimension_names=dimensions,
            compressors=ZstdCodec(level=1, checksum=True),
            attributes={} if coding is None else dict(coding.attributes),
        )

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
        self, array: zarr.Array, name: str, index: tuple[int, ...]
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


def finish_map(
    group: zarr.Group,
    scene: Scene,
    layout: MapLayout,
    names: Sequence[str],
    identity: Mapping[str, str],
) -> None:
    """Add what the scene says of its pixels, and record that the map is complete."""
    source = open_scene(scene.place)
    about = carried_attributes(scene.cube.array)
    further = _further_coordinates(about, source)
    copied = []
    for name in (*layout.grid.sizes, *further):
        array = source.get(name)
        if isinstance(array, zarr.Array) and {*dimensions_of(array)} <= {*layout.grid.sizes}:
            attributes = _with_coordinates(carried_attributes(array), ())
            _write(group, name, np.asarray(array[...]), dimensions_of(array), attributes)
            copied.append(name)
    named = [name for name in further if name in copied]
    for name in names:
        result = group[name]
        result.attrs.put(_with_coordinates(lasting(about), named) | result.attrs.asdict())
    if any(map(layout.is_layered, names)):
        _write(group, layout.layers.dimension, layout.layers.names, layout.layers[:1], {})
    about = _with_coordinates(source.attrs.asdict(), ())
    told = {name: value for name, value in about.items() if name not in RECORDED}
    mark_complete(group, kind=KIND, attributes={**told, **identity})
    with warnings.catch_warnings():
        # xarray looks for it, and warns where it is not.
        warnings.simplefilter("ignore", ZarrUserWarning)
        zarr.consolidate_metadata(group.store)


def _further_coordinates(about: Mapping[str, Any], source: zarr.Group) -> list[str]:
    """Return the names of the coordinates of a variable that are no dimensions, as CF has them."""
    told = (about.get("coordinates"), source.attrs.get("coordinates"), about.get("grid_mapping"))
    words = [word.rstrip(":") for text in told for word in str(text or "").split()]
    return list(dict.fromkeys(words))


def _with_coordinates(attributes: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    kept = {name: value for name, value in attributes.items() if name != "coordinates"}
    return kept | ({"coordinates": " ".join(names)} if names else {})


def _write(
    group: zarr.Group,
    name: str,
    values: NDArray[Any],
    dimensions: Sequence[str],
    attributes: dict[str, Any],
) -> None:
    if values.dtype.kind in "SUTO":
        values = np.array(names_of(values), dtype=np.dtypes.StringDType()).reshape(values.shape)
    array = group.create_array(
        name,
        shape=values.shape,
        dtype=str if values.dtype.kind == "T" else values.dtype,
        dimension_names=dimensions,
        attributes=attributes,
        overwrite=True,
    )
    array[...] = values


def _open(group: zarr.Group, name: str) -> zarr.Array:
    array = group[name]
    assert isinstance(array, zarr.Array)
    # What is missing in a box must be told from what is not written.
    return array.with_config({"write_empty_chunks": True})
