"""The cells of a column of any Arrow type, as the numbers that are stored for them."""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dask_nrbfn.errors import DataError
from dask_nrbfn.numeric.schema import UNSEEN, Column, Kind
from dask_nrbfn.sources.dialect import BLANKS
from dask_nrbfn.sources.dtypes import NUMBER, TRUTH
from dask_nrbfn.sources.written import form_of

_DECIMAL_COMMA = r"^([+-]?[0-9]*),([0-9]+)$"
# Whole numbers in a column of decimal numbers, such as 3.0.
_WHOLE = r"^([+-]?[0-9]+)\.0+$"
_DAY_S = 86_400
_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
# Microseconds cover all years; nanoseconds, which are tried later, have more digits.
_TIMES = [pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")]
NOT_OF_KIND = {
    "number": "not a number",
    "boolean": "neither true nor false",
    "date": "not a date",
}
"""How errors describe a cell that is not of a kind."""


class CellError(DataError):
    """A cell cannot be read as its column's kind.

    column, text: name of the column, and text of the cell.
    what: what is wrong with the text, such as "not a number".
    row: index of the row in the array.
    """

    def __init__(self, column: str, text: str, what: str, row: int = 0) -> None:
        super().__init__(
            f"Column {column!r} has {text!r}, which is {what}.",
            f"Correct the cell, pass its text in `missing_values`, or give "
            f"`categorical`={column!r}.",
        )
        self.column, self.text, self.what, self.row = column, text, what, row

    def __reduce__(self) -> tuple[type["CellError"], tuple[str, str, str, int]]:
        return type(self), (self.column, self.text, self.what, self.row)

    def within(self, table: object, place: str, remedy: str | None = None) -> DataError:
        """Return the error with the place of the cell, such as "line 3" of a table.

        table: the table, for errors.
        remedy: how to mend the cell; default: all possible ways.
        """
        return DataError(
            f"Column {self.column!r} of {table} has {self.text!r} in {place}, which is "
            f"{self.what}.",
            remedy or self.args[1],
        )


def kind_of(arrow: pa.DataType) -> Kind | None:
    """Return the kind of a column of an Arrow type, None if no kind fits.

    A category of numbers counts as numbers; an option can make it a category.
    """
    if pa.types.is_dictionary(arrow):
        return kind_of(arrow.value_type)
    if pa.types.is_boolean(arrow):
        return "boolean"
    if pa.types.is_integer(arrow) or pa.types.is_floating(arrow) or pa.types.is_decimal(arrow):
        return "number"
    if pa.types.is_date(arrow) or pa.types.is_timestamp(arrow):
        return "date"
    return "category" if is_text(arrow) or pa.types.is_null(arrow) else None


def stored_values(array: pa.Array, column: Column, *, spoiled: bool = False) -> np.ndarray:
    """Return the stored values of the cells of a column, float64 (b,); NaN for missing ones.

    array (b,): of any type whose values, or whose texts, are of the column's kind.
    spoiled: whether a cell may be of another kind; its stored value is then infinite.

    Examples
    --------
    >>> stored_values(pa.array(["f", " m", None]), Column("sex", "category", ("f", "m")))
    array([ 0.,  1., nan])
    >>> stored_values(pa.array(["1970-01-02 12:00"]), Column("day", "date"))
    array([1.5])
    """
    if column.kind == "category":
        codes, texts = encoded(array)
        return np.append(_codes(texts, column), np.nan)[codes]
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_null(array.type):
        return np.full(len(array), np.nan)
    values = _read(array, column)
    bad = np.isnan(values)
    if bad.any() and (bad := bad & _has_value(array)).any():
        if spoiled:
            return np.where(bad, np.inf, values)
        row = int(bad.argmax())
        text = texts_of(array.slice(row, 1))[0].as_py()
        what = NOT_OF_KIND[column.kind] + f" written as {column.written}" * bool(column.written)
        raise CellError(column.name, text, what, row)
    return values


def encoded(array: pa.Array, *, as_written: bool = False) -> tuple[np.ndarray, pa.Array]:
    """Return an index for each cell, -1 if it is missing, and the texts that it points to.

    The texts are those of `texts_of`, or `as_written` except for blanks around them. Two texts of a
    dictionary may be equal.

    codes (b,)
    texts (m,)
    array (b,).
    """
    if not pa.types.is_dictionary(array.type):
        array = array.dictionary_encode()
    texts = array.dictionary
    if as_written and is_text(texts.type):
        texts = _none_if_empty(pc.utf8_trim(texts.cast(pa.string()), BLANKS))
    else:
        texts = texts_of(texts)
    places = np.append(np.arange(len(texts)), -1)
    places[:-1][pc.is_null(texts).to_numpy(zero_copy_only=False)] = -1
    codes = pc.fill_null(array.indices.cast(pa.int64()), -1).to_numpy(zero_copy_only=False)
    return places[codes], texts


def filtered(array: pa.Array, kept: np.ndarray) -> pa.Array:
    """Return the kept cells; string views, which pyarrow cannot filter, become strings.

    array (b,), kept (b,).
    """
    if array.type == pa.string_view():
        array = array.cast(pa.string())
    return array.filter(pa.array(kept))


def without_marks(cells: pa.Array, marks: Sequence[str]) -> pa.DictionaryArray:
    """Return text without blanks around it, null for markers of a missing value.

    cells (b,): text, also in a dictionary.
    marks: markers of a missing value.
    returns DictionaryArray (b,).
    """
    if not pa.types.is_dictionary(cells.type):
        cells = cells.dictionary_encode()
    texts = pc.utf8_trim(cells.dictionary.cast(pa.string()), BLANKS)
    none = pc.is_in(texts, pa.array(marks, pa.string()))
    texts = pc.if_else(none, pa.scalar(None, pa.string()), texts)
    return pa.DictionaryArray.from_arrays(cells.indices, texts)


def with_points(texts: pa.Array) -> pa.Array:
    """Return text in which numbers that have a decimal comma have a point."""
    return pc.replace_substring_regex(texts, _DECIMAL_COMMA, r"\1.\2")


def texts_of(values: pa.Array) -> pa.Array:
    """Return the cells as text without blanks around it, string (b,); null if missing.

    Whole numbers are written without a point, so that they have the same text in every format.
    """
    arrow = values.type
    if pa.types.is_decimal(arrow):
        return texts_of(values.cast(pa.float64()))
    if pa.types.is_floating(arrow):
        return _texts_of_floats(values)
    texts = values.cast(pa.string())
    if not is_text(arrow):
        return texts
    texts = pc.replace_substring_regex(pc.utf8_trim(texts, BLANKS), _WHOLE, r"\1")
    return _none_if_empty(texts)


def _none_if_empty(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)


def _texts_of_floats(values: pa.Array) -> pa.Array:
    values = values.cast(pa.float32()) if pa.types.is_float16(values.type) else values
    numbers = values.to_numpy(zero_copy_only=False)
    whole = (numbers == np.floor(numbers)) & (abs(numbers) < 2.0**63)
    integers = pa.array(np.where(whole, numbers, 0).astype(np.int64)).cast(pa.string())
    texts = pc.if_else(whole, integers, values.cast(pa.string()))
    return pc.if_else(np.isnan(numbers), pa.scalar(None, pa.string()), texts)


def _codes(texts: pa.Array, column: Column) -> np.ndarray:
    """Return the stored value of each text, float64 (m,)."""
    other = float(len(column.categories)) if column.others else UNSEEN
    known = pc.index_in(texts, pa.array(column.categories, pa.string()))
    codes = pc.fill_null(known.cast(pa.float64()), other).to_numpy(zero_copy_only=False)
    new = np.flatnonzero(codes == other)
    numbers = numbers_of(column.categories) if new.size else None
    if numbers is not None and len({*numbers}) == len(numbers):
        places = {number: place for place, number in enumerate(numbers)}
        codes = codes.copy()
        for place in new.tolist():
            number = numbers_of([texts[place].as_py() or ""])
            codes[place] = other if number is None else places.get(number[0], other)
    return codes


def numbers_of(texts: Collection[str]) -> list[Decimal] | None:
    """Return the exact numbers in texts, None if one is not a number, such as code 007.

    >>> numbers_of(["1.50"]) == numbers_of(["1.5"]), numbers_of(["1.5", "x"])
    (True, None)
    """
    numbers = [Decimal(text) for text in texts if NUMBER.fullmatch(text)]
    are_all = len(numbers) == len(texts) and all(map(Decimal.is_finite, numbers))
    return numbers if are_all else None


def _read(array: pa.Array, column: Column) -> np.ndarray:
    """Return the stored numbers (b,) of values or texts, NaN for missing values."""
    kind, form = column.kind, form_of(column.kind, column.written) if column.written else None
    if form is not None and (is_text(array.type) or (kind == "date" and _is_whole(array.type))):
        texts = array.cast(pa.string()) if is_text(array.type) else texts_of(array)
        array = pc.utf8_trim(texts, BLANKS).dictionary_encode()
        codes = pc.fill_null(array.indices, -1).to_numpy(zero_copy_only=False)
        return np.append(form.read(array.dictionary), np.nan)[codes]
    if is_text(array.type):
        texts = texts_of(array)
        read: Callable[[pa.Array], np.ndarray] = _READERS[kind]
        try:
            return read(texts)
        except pa.ArrowInvalid:
            # Read the few different texts one by one.
            codes, different = encoded(texts)
            return np.array([*(_alone(read, text) for text in different), np.nan])[codes]
    of = kind_of(array.type)
    if of == "date" and kind == "date":
        return _days(array)
    if of in ("number", "boolean") and kind != "date":
        if of == "boolean":
            array = array.cast(pa.uint8())
        values = array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)
        return values if kind == "number" else np.where(np.isin(values, (0, 1)), values, np.nan)
    return np.full(len(array), np.nan)


def _has_value(array: pa.Array) -> np.ndarray:
    if is_text(array.type):
        array = texts_of(array)
        has = pc.invert(pc.match_substring_regex(array, "^[+-]?nan$", ignore_case=True))
    else:
        has = pc.invert(pc.is_null(array, nan_is_null=True))
    return pc.fill_null(has, False).to_numpy(zero_copy_only=False)


def _alone(read: Callable[[pa.Array], np.ndarray], text: pa.Scalar) -> float:
    try:
        return float(read(pa.array([text.as_py()], pa.string()))[0])
    except pa.ArrowInvalid:
        return np.nan


def _numbers_of_texts(texts: pa.Array) -> np.ndarray:
    return texts.cast(pa.float64()).to_numpy(zero_copy_only=False)


def _truths_of_texts(texts: pa.Array) -> np.ndarray:
    values = np.array([*TRUTH.values(), 0.0, 1.0, np.nan])
    places = pc.index_in(texts, pa.array([*TRUTH, "0", "1"]))
    return values[pc.fill_null(places, -1).to_numpy(zero_copy_only=False)]


def _days_of_texts(texts: pa.Array) -> np.ndarray:
    for arrow in _TIMES[:-1]:
        with suppress(pa.ArrowInvalid):
            return _days(texts.cast(arrow))
    return _days(texts.cast(_TIMES[-1]))


_READERS: dict[Kind, Callable[[pa.Array], np.ndarray]] = {
    "number": _numbers_of_texts,
    "boolean": _truths_of_texts,
    "date": _days_of_texts,
}


def _days(array: pa.Array) -> np.ndarray:
    """Return days since 1970 of dates and times, the same whatever their unit."""
    if pa.types.is_date32(array.type):
        return array.cast(pa.int32()).cast(pa.float64()).to_numpy(zero_copy_only=False)
    unit = "ms" if pa.types.is_date64(array.type) else array.type.unit
    none = pc.is_null(array).to_numpy(zero_copy_only=False)
    ticks = pc.fill_null(array.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)
    # Nanoseconds since 1970 would not be exact as floats.
    days, rest = np.divmod(ticks, _DAY_S * _PER_SECOND[unit])
    return np.where(none, np.nan, days + rest / (_DAY_S * _PER_SECOND[unit]))


def _is_whole(arrow: pa.DataType) -> bool:
    return pa.types.is_integer(arrow) or pa.types.is_floating(arrow)


def is_text(arrow: pa.DataType) -> bool:
    """Return whether values of a type are text."""
    return arrow in (pa.string(), pa.large_string(), pa.string_view())
