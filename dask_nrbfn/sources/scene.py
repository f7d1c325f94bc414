"""Scenes: Zarr groups of arrays with named dimensions, as xarray writes them and reads them."""

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import zarr

from dask_nrbfn.errors import DamagedDataError, DataError, MissingDataError, ParameterError
from dask_nrbfn.sources.cubes import Box, CubeSource
from dask_nrbfn.sources.dtypes import FLOAT64
from dask_nrbfn.sources.files import File

_DIMENSIONS = "_ARRAY_DIMENSIONS"
_SCALING = ("scale_factor", "add_offset")


class StoredCube:
    """A Zarr array with named dimensions, whose values are those that xarray shows.

    Parameters
    ----------
    array : zarr.Array
    name : str

    Notes
    -----
    The CF conventions: ``_FillValue``, in Zarr v2 the fill value, and ``missing_value`` stand for
    none, and numbers are ``stored * scale_factor + add_offset``. Types are as xarray chooses them.
    """

    def __init__(self, array: zarr.Array, name: str) -> None:
        self.name, self.array = name, array
        self.dimensions = dimensions_of(array) or tuple(f"axis_{i}" for i in range(array.ndim))
        self.shape, self.chunks = array.shape, array.chunks
        attributes: dict[str, Any] = array.attrs.asdict()
        self._unsigned = attributes.get("_Unsigned") == "true" and array.dtype.kind == "i"
        stored = np.dtype(f"u{array.dtype.itemsize}") if self._unsigned else array.dtype
        self._fills = _fill_values(array, attributes, stored)
        self._scaling = [attributes.get(name) for name in _SCALING]
        self.dtype = stored
        if self._scaling != [None, None]:
            self.dtype = FLOAT64
        elif self._fills and stored.kind in "iu":
            self.dtype = np.dtype(np.float32) if stored.itemsize <= 2 else FLOAT64

    def read(self, box: Box) -> np.ndarray:
        """Return what lies in a box, NaN for none; dimensions that it does not name are whole."""
        whole = slice(None)
        try:
            stored = np.asarray(self.array[tuple(box.get(name, whole) for name in self.dimensions)])
        except (ValueError, RuntimeError, TypeError) as error:
            raise DamagedDataError(
                f"{self.array.store_path} cannot be read ({error}).",
                "Restore the damaged chunk from a copy, or write the scene again.",
            ) from error
        if self._unsigned:
            stored = stored.view(f"u{stored.dtype.itemsize}")
        values = stored.astype(self.dtype, copy=False)
        for fill in self._fills:
            values = np.where(stored == fill, self.dtype.type(np.nan), values)
        factor, offset = self._scaling
        if factor is not None:
            values = values * factor
        return values if offset is None else values + offset


@dataclass(frozen=True)
class Scene:
    """What is mapped: a variable of a Zarr group, and which of its dimensions has the features.

    Attributes
    ----------
    place : File
    variable : str
    feature_dim : str
    """

    place: File
    variable: str
    feature_dim: str

    @classmethod
    def at(cls, place: File, variable: str | None, feature_dim: str | None) -> "Scene":
        """Return the scene at a place.

        Without a name it is of the only variable that has the dimension and another one.

        Raises
        ------
        MissingDataError, DamagedDataError
            If there is no Zarr group.
        ParameterError
            If no dimension is named, or several variables have it, or none.
        """
        if feature_dim is None:
            raise ParameterError(
                f"{place} is read as a scene, and nothing says where its features lie.",
                "Name their dimension with `feature_dim`.",
            )
        if variable is None:
            having = [
                name
                for name, array in open_scene(place).arrays()
                if feature_dim in (names := dimensions_of(array)) and len(names) > 1
            ]
            if len(having) != 1:
                raise ParameterError(
                    f"{place} has {len(having) or 'no'} variables along {feature_dim}"
                    f"{': ' * bool(having)}{', '.join(having)}.",
                    "Name one with `variable`, and its dimension of features with `feature_dim`.",
                )
            (variable,) = having
        return cls(place, variable, feature_dim)

    @property
    def cube(self) -> StoredCube:
        """The variable."""
        return self.other(self.variable)

    def other(self, name: str, option: str = "variable") -> StoredCube:
        """Return any variable of the same group, that was named by an option.

        Raises
        ------
        ParameterError
            If there is none of that name, or its dimensions have no names.
        """
        group = open_scene(self.place)
        array = group.get(name)
        if not isinstance(array, zarr.Array):
            names = ", ".join(name for name, _ in group.arrays()) or "none"
            raise ParameterError(
                f"`{option}` is {name}, and the variables of {self.place} are {names}.",
                "Name one of them.",
            )
        if array.ndim and not dimensions_of(array):
            raise DataError(
                f"the dimensions of {name} in {self.place} have no names.",
                "Write them as xarray does: dimension_names, or _ARRAY_DIMENSIONS in Zarr v2.",
            )
        return StoredCube(array, name)

    @property
    def feature_names(self) -> tuple[str, ...] | None:
        """Names of the features: the coordinates of their dimension, as text; None without any."""
        coordinate = open_scene(self.place).get(self.feature_dim)
        if not isinstance(coordinate, zarr.Array) or coordinate.ndim != 1:
            return None
        return names_of(np.asarray(coordinate[:]))


def open_scene_source(
    place: File,
    *,
    variable: str | None,
    feature_dim: str | None,
    label: str | None = None,
    targets: tuple[str, ...] = (),
    unlabelled: int | str | float | None = None,
) -> CubeSource:
    """Source of the pixels of a scene.

    Parameters
    ----------
    place : File
        A Zarr group.
    variable, feature_dim : str, optional
        As `Scene` has them.
    label : str, optional
        Variable with the labels of the pixels.
    targets : tuple of str
        Variables with numbers to be learned, instead of labels.
    unlabelled : int, float or str, optional
        As `CubeSource` has it.

    Raises
    ------
    MissingDataError, DamagedDataError, ParameterError, DataError
        If the scene cannot be used.
    """
    scene = Scene.at(place, variable, feature_dim)
    return CubeSource(
        scene.cube,
        scene.feature_dim,
        feature_names=scene.feature_names,
        label=None if label is None else scene.other(label, "label"),
        targets={name: scene.other(name, "target") for name in targets},
        unlabelled=unlabelled,
    )


def open_scene(place: File) -> zarr.Group:
    """Open a Zarr group that others wrote.

    Raises
    ------
    MissingDataError, DamagedDataError
        If there is none.
    """
    options = dict(place.storage_options) if place.is_remote else None
    try:
        return zarr.open_group(place.path, mode="r", storage_options=options)
    except FileNotFoundError as error:
        raise MissingDataError(f"there is no Zarr group at {place}.", "Check the path.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedDataError(
            f"{place} is no Zarr group, or a damaged one ({error}).", "Check the path."
        ) from error


def dimensions_of(array: zarr.Array) -> tuple[str, ...]:
    """Return the names of the dimensions of an array, none if they have no names."""
    names = getattr(array.metadata, "dimension_names", None) or array.attrs.get(_DIMENSIONS, ())
    return tuple(map(str, names))  # type: ignore[arg-type]


def carried_attributes(array: zarr.Array) -> dict[str, Any]:
    """Return the attributes of an array as xarray reads them from Zarr v3."""
    attributes = array.attrs.asdict()
    attributes.pop(_DIMENSIONS, None)
    fill = array.fill_value
    if array.metadata.zarr_format == 2 and fill is not None and array.dtype.kind in "iuf":
        # JSON has no NaN.
        packed = base64.standard_b64encode(struct.pack("<d", float(fill))).decode()
        attributes["_FillValue"] = packed if array.dtype.kind == "f" else int(fill)
    return attributes


def names_of(values: np.ndarray) -> tuple[str, ...]:
    """Return coordinates as text: what features are called.

    >>> names_of(np.array([0.49, 0.56])), names_of(np.array([b"red"]))
    (('0.49', '0.56'), ('red',))
    """
    given = values.tolist()
    return tuple(each.decode() if isinstance(each, bytes) else str(each) for each in given)


def _fill_values(array: zarr.Array, attributes: Mapping[str, Any], dtype: np.dtype) -> list[Any]:
    """Return the values of a type, as read, that stand for none, but for NaN."""
    if array.dtype.kind not in "iuf":
        return []
    fill: Any = array.fill_value
    if array.metadata.zarr_format == 3:
        fill = attributes.get("_FillValue")
        if isinstance(fill, str) and array.dtype.kind == "f":
            # As xarray writes what JSON may not hold.
            (fill,) = struct.unpack("<d", base64.standard_b64decode(fill))
    if dtype.kind == "u" and isinstance(fill, int | np.integer):
        # That of numbers which are meant without a sign may be told with one, as they are stored.
        fill = int(fill) % 2 ** (8 * dtype.itemsize)
    fills = [each for each in (attributes.get("missing_value"), fill) if each is not None]
    given = [each for fill in fills for each in np.ravel(fill).tolist()]
    return [each for each in given if isinstance(each, int | float) and each == each]
