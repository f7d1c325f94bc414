"""Scenes: Zarr groups, netCDF and other files that xarray opens."""

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePath
from types import ModuleType
from typing import TYPE_CHECKING, Any

from dask_nrbfn.errors import DamagedDataError, MissingDataError, ParameterError
from dask_nrbfn.sources.cubes import Cube, CubeSource, feature_dims
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.source import Reading
from dask_nrbfn.sources.zarr_arrays import opened_zarr

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True)
class Scene:
    """The chosen variables of a file or Zarr group, and the feature dimensions.

    Without feature dimensions, each variable is a feature.
    """

    place: File
    variables: tuple[str, ...]
    feature_dims: tuple[str, ...]

    @classmethod
    def at(cls, place: File, variables: Sequence[str] | None, feature_dim: str | None) -> "Scene":
        """Return the scene at a place.

        Without `variables`, the only variable along `feature_dim` and another dimension is chosen.
        """
        dims = feature_dims(feature_dim)
        if not dims and (variables is None or len(variables) == 1):
            raise ParameterError(
                f"{place} is read as a scene, but the dimension of its features is not known.",
                "Name the dimension with `feature_dim`, or several variables with `variable`.",
            )
        if variables is None:
            with open_scene(place) as opened:
                variables = [
                    str(name) for name, array in opened.data_vars.items() if {*dims} < {*array.dims}
                ]
            if len(variables) != 1:
                raise ParameterError(
                    f"{place} has {len(variables) or 'no'} variables along {feature_dim}"
                    f"{': ' * bool(variables)}{', '.join(variables)}.",
                    "Name variables with `variable`, and one of their dimensions with "
                    "`feature_dim`.",
                )
        return cls(place, tuple(variables), dims)

    def cube(self, opened: "xr.Dataset") -> Cube:
        """Return the variables of an opened scene."""
        arrays = {name: self.variable(opened, name) for name in self.variables}
        return Cube(arrays, self.feature_dims, str(self.place))

    def variable(self, opened: "xr.Dataset", name: str, option: str = "variable") -> "xr.DataArray":
        """Return a variable that an option names."""
        if name not in opened.variables:
            names = ", ".join(map(str, opened.data_vars)) or "none"
            raise ParameterError(
                f"`{option}` is {name}, but the variables of {self.place} are {names}.",
                f"Name an existing variable with `{option}`.",
            )
        return opened[name]

    def source(
        self,
        *,
        label: str | None = None,
        targets: Sequence[str] = (),
        unlabelled: int | str | float | None = None,
    ) -> CubeSource:
        """Return the pixels as rows, with labels or targets from other variables."""
        opened = open_scene(self.place)
        try:
            return CubeSource.of(
                self.cube(opened),
                label=None if label is None else self.variable(opened, label, "label"),
                targets={name: self.variable(opened, name, "target") for name in targets},
                unlabelled=unlabelled,
            )
        except BaseException:
            # The traceback of the error would keep the dataset open.
            opened.close()
            raise

    def digest(self, cube: Cube) -> str:
        """Return a digest of the place, the chosen variables and the boxes of a scene."""
        dims = ",".join(self.feature_dims) or None
        told = [str(self.place), self.variables, dims, cube.feature_names]
        return _digest([*told, cube.grid.sizes, cube.grid.steps, str(cube.dtype)])

    def state(self, cube: Cube) -> str:
        """Return a digest of the sizes and times of the files that a cube is stored in."""
        # A Zarr group has a directory for each variable; other directories change no pixel.
        names = {"", *cube.arrays, *cube.coords, *self.feature_dims}
        files = [each for each in self.place.stamps().items() if each[0].partition("/")[0] in names]
        return _digest(sorted(files))


def open_rows(reading: Reading) -> CubeSource:
    """Return the pixels of a scene that have all features."""
    scene = Scene.at(reading.place, reading.names("variable"), reading.feature_dim)
    targets = reading.names("target") or ()
    return scene.source(label=reading.label, targets=targets, unlabelled=reading.unlabelled)


def open_scene(place: File) -> "xr.Dataset":
    """Return a scene that xarray opened, its values decoded but not loaded; the caller closes it.

    While a process has a file open, HDF5 returns the old values even if the file is written again.
    """
    xr = import_xarray()
    # Some servers do not list directories.
    by_name = place.is_remote and PurePath(place.name).suffix in ("", ".zarr")
    is_zarr = by_name or place.name.endswith(".zip") or place.is_directory()
    how: dict[str, Any] = {"engine": "zarr"} if is_zarr else {}
    if is_zarr and place.is_remote:
        how["storage_options"] = dict(place.storage_options)
    target = place.open(jumps=True) if place.is_remote and not is_zarr else place.path
    try:
        with warnings.catch_warnings():
            # Warnings about metadata that is not consolidated, and about changes in later versions.
            warnings.simplefilter("ignore")
            opened = xr.open_dataset(target, **how, cache=False, decode_cf=not is_zarr)
            opened = _decoded(opened, place) if is_zarr else opened
    except FileNotFoundError as error:
        what = "Zarr group" if is_zarr else "file"
        raise MissingDataError(f"there is no {what} at {place}.", "Check the path.") from error
    except (ValueError, KeyError, TypeError, OSError, RuntimeError) as error:
        if "IO backends" in str(error):
            raise ParameterError(
                f"no installed engine of xarray can read {place}.",
                "Check the file, or install an engine: h5netcdf or netCDF4 for netCDF files.",
            ) from error
        raise DamagedDataError(
            f"{place} cannot be opened by xarray ({error}).",
            "Give a file that xarray.open_dataset can open and whose dimensions have names.",
        ) from error
    words = (str(each.attrs.get("grid_mapping", "")) for each in opened.data_vars.values())
    mappings = {word.rstrip(":") for text in words for word in text.split()}
    named = opened.set_coords([name for name in opened.data_vars if name in mappings])
    named.set_close(opened.close)
    return named


def _decoded(raw: "xr.Dataset", place: File) -> "xr.Dataset":
    """Return the values of a Zarr scene, in which 0 is a value unless `_FillValue` is stored as 0.

    Zarr v2 has the fill value 0 by default, and xarray reads it as missing. xarray's option
    `use_zarr_fill_value_as_mask` does not reach the store, and would keep -9999 too.
    """
    stored = opened_zarr(place)
    if stored.metadata.zarr_format == 2:
        for name, each in raw.variables.items():
            default = each.attrs.get("_FillValue") == 0
            if default and "_FillValue" not in stored[str(name)].attrs:
                del each.attrs["_FillValue"]
    return import_xarray().decode_cf(raw)


def _digest(told: list[Any]) -> str:
    return hashlib.blake2b(json.dumps(told).encode(), digest_size=16).hexdigest()


def import_xarray() -> ModuleType:
    """Return xarray; raise ParameterError if it is not installed."""
    try:
        import xarray
    except ImportError as error:
        raise ParameterError(
            f"scenes need a package that is not installed ({error}).",
            "Install dask-nrbfn[xarray], or leave `feature_dim` and `variable` out.",
        ) from error
    return xarray
