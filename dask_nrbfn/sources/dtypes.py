"""Which numpy types features, labels and weights may have, and what they become."""

import numpy as np

from dask_nrbfn.errors import DataError

INT64 = np.dtype(np.int64)
FLOAT64 = np.dtype(np.float64)
STRING = np.dtypes.StringDType()


def feature_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Type that features of `dtype` are stored as, in the machine's byte order.

    Parameters
    ----------
    dtype : dtype
    name : str
        Name of the array, for the error.

    Returns
    -------
    dtype
        uint8 for bool, float32 for float16, otherwise `dtype` itself.

    Raises
    ------
    DataError
        If `dtype` is not bool, an integer, or a float of 16, 32 or 64 bits.
    """
    _refuse_objects(dtype, name)
    if dtype.kind == "b":
        return np.dtype(np.uint8)
    if dtype.kind in "iu":
        return dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.type is not np.longdouble:
        return np.dtype(np.float32) if dtype.itemsize < 4 else dtype.newbyteorder("=")
    raise DataError(
        f"{name} has dtype {dtype}.",
        "Write features as bool, integers, float16, float32 or float64.",
    )


def label_dtype(dtype: np.dtype, name: str) -> np.dtype:
    """Type that labels of `dtype` become: int64 for bool and numbers, StringDType for text.

    Parameters
    ----------
    dtype : dtype
    name : str
        Name of the array, for the error.

    Raises
    ------
    DataError
        If `dtype` is neither a number of up to 64 bits nor text.
    """
    _refuse_objects(dtype, name)
    if dtype.kind in "biu" or (dtype.kind == "f" and dtype.type is not np.longdouble):
        return INT64
    if dtype.kind in "US" or (dtype.kind == "T" and not hasattr(dtype, "na_object")):
        return STRING
    raise DataError(f"{name} has dtype {dtype}.", "Write labels as integers or strings.")


def check_weight_dtype(dtype: np.dtype, name: str) -> None:
    """Refuse weights of a type that does not become float64.

    Parameters
    ----------
    dtype : dtype
    name : str
        Name of the array, for the error.

    Raises
    ------
    DataError
        If `dtype` is not an integer or a float of up to 64 bits.
    """
    _refuse_objects(dtype, name)
    if dtype.kind not in "iuf" or dtype.type is np.longdouble:
        raise DataError(f"{name} has dtype {dtype}.", "Write weights as integers or floats.")


def to_labels(values: np.ndarray, name: str, *, first_row: int = 0) -> np.ndarray:
    """Labels (b,) as int64 or StringDType.

    Parameters
    ----------
    values : ndarray (b,)
        Labels of any type that `label_dtype` allows.
    name : str
        Name of the labels, for the error.
    first_row : int
        Row of the table that ``values[0]`` belongs to, for the error.

    Raises
    ------
    DataError
        If a number is not whole or outside int64, or bytes are not UTF-8.
    """
    target = label_dtype(values.dtype, name)
    if target == INT64:
        wrong = ~_whole(values)
        if wrong.any():
            row = int(wrong.argmax())
            raise DataError(
                f"{name} has the label {values[row]} in row {first_row + row} (the first is 0).",
                "Write labels as classes: whole numbers within int64, or strings.",
            )
        return values.astype(INT64)
    if values.dtype.kind == "S":
        try:
            values = np.strings.decode(values, "utf-8")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{name} has bytes that are not UTF-8 after row {first_row} (the first is 0).",
                "Write labels as UTF-8 text.",
            ) from error
    return values.astype(STRING)


def _whole(values: np.ndarray) -> np.ndarray:
    if values.dtype.kind == "f":
        # float64, because the bound 2**63 overflows float16; it is exact in float64, int64's
        # largest value is not.
        wide = values.astype(np.float64)
        return (wide == np.floor(wide)) & (wide >= -(2.0**63)) & (wide < 2.0**63)
    if values.dtype.kind == "u":
        return values <= np.uint64(np.iinfo(np.int64).max)
    return np.ones(values.shape, dtype=bool)


def _refuse_objects(dtype: np.dtype, name: str) -> None:
    # numpy counts StringDType as an object type too.
    if dtype.hasobject and dtype.kind != "T":
        raise DataError(
            f"{name} holds Python objects, which only pickle can read.",
            "Save it again with a type of its own, such as X.astype(float) or y.astype(str).",
        )
