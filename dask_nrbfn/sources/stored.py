"""The stored values of tables in memory: frames of any library, and arrays of columns."""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import narwhals as nw
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dask_nrbfn.errors import Advice, DataError, ParameterError
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.numeric.types import Floats
from dask_nrbfn.sources.cells import CellError, encoded, filtered, stored_values
from dask_nrbfn.sources.decide import FOR_FRAMES, decide
from dask_nrbfn.sources.frames import as_frame, has_kinds
from dask_nrbfn.sources.survey import CellKind, ColumnSurvey, Roles, TableOptions
from dask_nrbfn.sources.tables import schema_columns
from dask_nrbfn.sources.tabular import SURVEY_ROWS, add_unseen, unseen_lines

logger = logging.getLogger(__name__)


def schema_of(
    X: Any, missing: str = "error", name: str = "X", *, weights: Any = None
) -> Schema | None:
    """Return the schema of a table in memory; None if all columns are numbers.

    name: the table, for errors.
    weights (n,): rows of weight 0 are ignored.
    X (n, c).
    """
    options = frame_options(missing)
    if not needs_schema(X, options, name):
        return None
    X = _framed(X, name)
    types = {column: {arrow} for column, arrow in types_of(X, name).items()}
    kept = None if weights is None else np.asarray(weights) != 0
    surveys = survey_columns(X, kinds_of(types, options, name), name, kept)
    return decided(surveys, options, gap=partial(_first_gap, X, surveys, name), name=name)


def frame_options(missing: str) -> TableOptions:
    """Return the options of a table in memory, all columns of which are features."""
    if missing not in ("error", "impute"):
        raise ParameterError(
            f"`missing` is {missing!r}.", "Give error or impute, or remove rows yourself."
        )
    return TableOptions(missing=missing)


def needs_schema(X: Any, options: TableOptions, name: str = "X") -> bool:
    """Return whether a schema is needed to make features of the columns of a table.

    name: the table, for errors.
    X (n, c).
    """
    return options.missing == "impute" or has_kinds(X, name)


def types_of(X: Any, name: str = "X") -> dict[str, pa.DataType]:
    """Return the Arrow types of the columns of a frame, or of an array (n, c) as x0, x1, ...

    name: the table, for errors.
    X (n, c).
    """
    frame = _framed(X, name)
    return {str(column.name): _arrow(column, name).type for column in frame.iter_columns()}


def kinds_of(
    types: Mapping[str, Collection[pa.DataType]], options: TableOptions, name: str = "X"
) -> dict[str, CellKind]:
    """Return the kind that the cells of each column are read as.

    types: types of each column in the parts of a table.
    name: the table, for errors.
    """
    kinds = {}
    for column, given in types.items():
        kind = options.kind(column, given)
        if kind is None:
            raise DataError(
                f"Column {column!r} of {name} has type {', '.join(map(str, given))}, which is not "
                "a number, boolean, text, category or date.",
                "Leave the column out, or convert it.",
            )
        kinds[column] = kind
    return kinds


def survey_columns(
    X: Any, kinds: Mapping[str, CellKind], name: str = "X", kept: NDArray[np.bool_] | None = None
) -> dict[str, ColumnSurvey]:
    """Return the survey of each column of a table, or of a part of one.

    kinds: kind that the cells of each column are read as.
    name: the table, for errors.
    kept (n,): which rows count, by default all.
    X (n, c).
    """
    surveys = {column: ColumnSurvey(kind) for column, kind in kinds.items()}
    for column in _framed(X, name).iter_columns():
        values = _arrow(column, name)
        # Weights of another shape are refused where they are used.
        if kept is not None and kept.shape == (len(values),):
            values = filtered(values, kept)
        for start in range(0, len(values), SURVEY_ROWS):
            surveys[str(column.name)].add(values.slice(start, SURVEY_ROWS))
    return surveys


def merged(parts: Sequence[Mapping[str, ColumnSurvey]]) -> dict[str, ColumnSurvey]:
    """Return the surveys of a table from the surveys of its parts."""
    return {name: reduce(add, (surveys[name] for surveys in parts)) for name in parts[0]}


def decided(
    surveys: Mapping[str, ColumnSurvey],
    options: TableOptions,
    gap: Callable[[str], str] | None = None,
    name: str = "X",
) -> Schema:
    """Return the schema of surveyed columns; choices that no option made are logged.

    gap: see `decide`.
    name: the table, for errors.
    """
    schema, lines, _ = decide(surveys, Roles(), options, gap=gap, remedies=FOR_FRAMES, origin=name)
    if surveys and not schema.columns:
        raise DataError(f"{name} has no feature: {lines[0]}", "Add feature columns.")
    for line in lines:
        logger.info("%s", Advice(line))
    return schema


def column_labels(X: Any, schema: Schema, name: str = "X") -> list[Any]:
    """Return the labels that the columns of a schema have in a frame, in the order of the schema.

    name: the table, for errors.
    """
    labels = {str(label): label for label in _framed(X, name).columns}
    names = tuple(labels)
    return [labels[column] for column in schema_columns(schema, names, name, names)]


def stored_rows(X: Any, schema: Schema, name: str = "X") -> Floats:
    """Return the stored rows of a table, float64 (n, c).

    name: name of `X`, for the errors.
    X (n, c).
    """
    frame = _framed(X, name, schema)
    given = {column.name: column for column in frame.iter_columns()}
    stored = np.empty((len(frame), len(schema.columns)))
    unseen: dict[str, ColumnSurvey] = {}
    for place, label in enumerate(column_labels(frame, schema, name)):
        cells = _arrow(given[label], name)
        try:
            stored[:, place] = stored_values(cells, schema.columns[place])
        except CellError as error:
            where = f"row {error.row} (the first is 0)"
            remedy = "Give a value of the column's kind, or a missing value."
            raise error.within(name, where, remedy) from error
        add_unseen(unseen, cells, stored[:, place], schema.columns[place])
    for line in unseen_lines(unseen):
        logger.warning("%s: %s", name, line)
    return stored


def check_gaps(
    stored: Floats,
    schema: Schema,
    *,
    first_row: int = 0,
    within: str = "",
    name: str = "X",
) -> None:
    """Raise DataError naming the first value that is missing and is not filled in.

    first_row: index of the first row, for the error.
    within: the part of the table that `first_row` counts in, for the error.
    name: the table, for errors.
    stored (b, c).
    """
    if schema.fills:
        return
    gaps = np.isnan(stored)
    if gaps.any():
        row, place = np.argwhere(gaps)[0]
        raise DataError(
            f"Column {schema.columns[place].name!r} of {name} has no value in row "
            f"{first_row + row}{within} (the first is 0).",
            FOR_FRAMES.gap,
        )


def _framed(X: Any, name: str, schema: Schema | None = None) -> nw.DataFrame[Any]:
    """Return a frame, or an array (n, c) as a frame with the columns of a schema."""
    frame = as_frame(X, name)
    if frame is not None:
        return frame
    # Masked cells have no value.
    rows = X if isinstance(X, np.ma.MaskedArray) else np.asarray(X)
    if rows.ndim != 2:
        raise DataError(
            f"{name} has shape {rows.shape}.",
            "Give a frame in memory, or a dense array with two dimensions.",
        )
    names = _array_names(rows.shape[1], name, schema)
    columns = {
        column: _arrow_of(partial(pa.array, values, from_pandas=True), column, name)
        for column, values in zip(names, rows.T, strict=True)
    }
    return nw.from_native(pa.table(columns), eager_only=True)


def _array_names(n_columns: int, name: str, schema: Schema | None) -> list[str]:
    """Return the names of the columns of an array: their numbers, or those of a schema."""
    numbered = [f"x{j}" for j in range(n_columns)]
    if schema is None:
        return numbered
    names = [column.name for column in schema.columns]
    if {*numbered} == {*names, *schema.ignored}:
        return numbered
    if len(names) != n_columns:
        raise DataError(
            f"{name} has {n_columns} columns, but the model was trained on {len(names)}.",
            "Give a frame, or an array, with the columns of the training rows.",
        )
    return names


def _first_gap(X: Any, surveys: Mapping[str, ColumnSurvey], name: str, wanted: str) -> str:
    """Return where a column first lacks a value, as part of an error."""
    (column,) = (each for each in _framed(X, name).iter_columns() if str(each.name) == wanted)
    values = _arrow(column, name)
    if surveys[wanted].kind in ("category", "text"):
        none = encoded(values)[0] < 0
    else:
        none = np.isnan(stored_values(values, surveys[wanted].column()))
    return f"of {name} has no value in row {none.argmax()} (the first is 0)"


def _arrow(column: nw.Series[Any], name: str) -> pa.Array:
    return _arrow_of(column.to_arrow, column.name, name)


def _arrow_of(convert: Callable[[], pa.Array], column: Any, name: str) -> pa.Array:
    try:
        return convert()
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise DataError(
            f"Column {column!r} of {name} has values of several types, or of an unknown "
            f"type ({error}).",
            "Convert the column to one type, such as float or str.",
        ) from error
