"""Versions of the on-disk format, and how to read the attributes of earlier ones.

Format 4 added penalties, losses and numeric targets; 5 a schema that makes features from stored
values; 6 rows in CSR, and runs and models that project rows to coordinates; 7 datasets whose rows
stay in another store; 8 models whose calibration has biases; 9 models whose cells have networks. A
group records the lowest version whose readers understand it.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from dask_nrbfn.errors import DataError, NewerVersionError, ParameterError
from dask_nrbfn.numeric.calibration import Calibration
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.params import FitParams, Params, TuneParams

_AnyParams = TypeVar("_AnyParams", bound=Params)

FORMAT_VERSION = 4
"""The format of a group that has none of the features below."""

EXPANDED_VERSION, SPARSE_VERSION, REFERRING_VERSION, BIASED_VERSION, CELLS_VERSION = range(5, 10)

READ_VERSIONS = range(3, CELLS_VERSION + 1)

UPGRADE = "Upgrade dask_nrbfn: a newer version wrote the data."

_RENAMED = {"seed": "random_state"}


def stored_params(stored: Mapping[str, Any], place: object) -> FitParams:
    """Return the stored parameters of a fit, under their current names.

    Parameters
    ----------
    stored : mapping of str
    place : object
        For the error.

    Returns
    -------
    FitParams

    Raises
    ------
    NewerVersionError
        If a parameter or its value is unknown.

    Examples
    --------
    >>> stored_params({"alpha": 0.1, "seed": 3}, "run.zarr").random_state
    3
    """
    # Versions before cells did not store `cells`.
    return _known(FitParams, {"cells": 1, **stored}, place)


def stored_tuning(stored: Mapping[str, Any], place: object) -> TuneParams:
    """Return the stored parameters of a tuning; raises the errors of `stored_params`.

    Tunings that were stored before `effort` existed tried only the values that they list.

    Parameters
    ----------
    stored : mapping of str
    place : object
        For the error.

    Returns
    -------
    TuneParams

    >>> stored_tuning({"folds": 3}, "run.zarr").effort
    'quick'
    """
    return _known(TuneParams, {"effort": "quick", **stored}, place)


def _known(kind: type[_AnyParams], stored: Mapping[str, Any], place: object) -> _AnyParams:
    values = {_RENAMED.get(name, name): value for name, value in stored.items()}
    unknown = sorted(values.keys() - kind.options().keys())
    try:
        if not unknown:
            return kind(**values)
        problem = f"{place} was written with the unknown parameter {unknown[0]}."
    except ParameterError as error:
        problem = f"{place} was written with an unknown value: {error.problem}"
    raise NewerVersionError(problem, UPGRADE)


def todays_moments(
    packed_gram: Floats, cross: Floats, class_weights: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return the arrays of `Moments` from those of format 3: ``F' Phi`` and the diagonal of F'F.

    Parameters
    ----------
    packed_gram : float64 (r (r + 1) / 2,)
    cross : float64 (K, r)
    class_weights : float64 (K,)

    Returns
    -------
    tuple of three float64 arrays
        (r (r + 1) / 2,), (K + 1, r) and (K + 1, K + 1).

    >>> _, products, target_products = todays_moments(
    ...     np.array([2.0]), np.array([[0.5], [1.5]]), np.array([1.0, 3.0])
    ... )
    >>> products.tolist(), target_products.tolist()
    ([[2.0], [0.5], [1.5]], [[4.0, 1.0, 3.0], [1.0, 1.0, 0.0], [3.0, 0.0, 3.0]])
    """
    target_products = np.diag(np.append(class_weights.sum(), class_weights))
    target_products[0, 1:] = target_products[1:, 0] = class_weights
    return packed_gram, np.vstack([cross.sum(axis=0), cross]), target_products


def feature_attributes(schema: Schema | None, *, sparse: bool = False) -> dict[str, Any]:
    """Return the attributes that describe how features are made, with the format they need.

    Empty if the features are the stored values of an array.
    """
    recorded: dict[str, Any] = {} if schema is None else {"schema": schema.to_dict()}
    # An older reader would take stored values for features.
    if sparse:
        recorded["format_version"] = SPARSE_VERSION
    elif schema is not None and not schema.is_plain:
        recorded["format_version"] = EXPANDED_VERSION
    return recorded


def calibration_attributes(calibration: Calibration | None) -> dict[str, Any]:
    """Return the attributes of a calibration, with the format that biases need.

    Parameters
    ----------
    calibration : Calibration or None

    Returns
    -------
    dict
    """
    if calibration is None:
        return {"temperature": None}
    # An older reader would leave out the biases.
    version = {} if calibration.biases is None else {"format_version": BIASED_VERSION}
    return {**calibration.to_dict(), **version}


def read_schema(attributes: Mapping[str, Any], place: object) -> Schema | None:
    """Return the schema that the group at `place` records, None if it has none.

    Parameters
    ----------
    attributes : mapping of str
    place : object
        For the error.

    Returns
    -------
    Schema or None

    Raises
    ------
    NewerVersionError
        If the schema has unknown fields or values.
    """
    recorded = attributes.get("schema")
    try:
        return None if recorded is None else Schema.from_dict(recorded)
    except DataError as error:
        problem = f"{place} was written with an unknown schema: {error.problem}"
        raise NewerVersionError(problem, UPGRADE) from error
