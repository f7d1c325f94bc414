"""Labels as they are stored, and their class codes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.errors import DamagedDataError
from dask_nrbfn.storage.chunks import Mark, are_labelled


def codes_of(
    labels: NDArray[Any], classes: NDArray[Any], unlabelled: Mark | None, place: object
) -> NDArray[np.int64]:
    """Return the class code of each label of a dataset at `place`, -1 for none, int64 (b,).

    Raises
    ------
    DamagedDataError
        If a label is none of the classes.
    """
    if unlabelled is None:
        return _all_codes(labels, classes, place)
    labelled = are_labelled(labels, unlabelled)
    codes = np.full(len(labels), -1, dtype=np.int64)
    codes[labelled] = _all_codes(labels[labelled], classes, place)
    return codes


def _all_codes(labels: NDArray[Any], classes: NDArray[Any], place: object) -> NDArray[np.int64]:
    classes = classes.astype(labels.dtype)
    if labels.dtype.kind == "T":
        # Searching such texts reads beyond them from 16 bytes on (numpy/numpy#31533).
        own = {label: code for code, label in enumerate(classes.tolist())}
        codes = np.array([own.get(label, 0) for label in labels.tolist()], dtype=np.int64)
    else:
        codes = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)
    unknown = np.flatnonzero(classes[codes] != labels)
    if len(unknown):
        raise DamagedDataError(
            f"label {labels[unknown].tolist()[0]!r} of {place} is none of its classes.",
            "The labels were changed after the dataset was written; ingest it again.",
        )
    return codes.astype(np.int64, copy=False)
