"""The interface of source formats: a `Request` of rows, the `Source` that it opens, its blocks."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple
from unicodedata import normalize

import numpy as np

from dask_nrbfn.errors import DataError, ParameterError
from dask_nrbfn.numeric.rows import Rows, canonical, stacked
from dask_nrbfn.numeric.schema import Schema
from dask_nrbfn.sources.dtypes import FLOAT64
from dask_nrbfn.sources.files import File
from dask_nrbfn.sources.options import ReadOptions

_NAMES_SHOWN = 10
# Narrower rows are as small when dense, and every step of a fit accepts dense rows.
_WIDE = 256
# Features of categories that take fewer bytes in all rows are dense: a fit learns more from these.
_DENSE_BYTES = 256 << 20
# CSR stores an int32 column index with each value.
_INDEX_BYTES = 4
# A larger number comes from a damaged header, or from a number that is no feature index.
_MAX_FEATURES = 2**24
# Bytes of the first dense rows, from which the number of values is estimated.
_SHOWN_BYTES = 2**24

FORM = "blanks or its Unicode form"
ONE_FORM = "Write the text in one form, such as unicodedata.normalize('NFC', text.strip())."


class Block(NamedTuple):
    """Consecutive rows: X (b, c), labels (b,) or float64 targets (b, q); None where absent."""

    X: Rows
    y: np.ndarray | None
    weights: np.ndarray | None = None
    ids: np.ndarray | None = None


class StoredAt(NamedTuple):
    """Location of rows that need not be copied: a Zarr store, and a path such as "obsm/X_pca"."""

    place: str
    path: str
    chunk_rows: int


@dataclass(kw_only=True)
class Source(ABC):
    """Rows of one table, in a fixed order. Size and types are known before the first block.

    x_dtype: type of every ``X`` block: integers or floats; in CSR float32 or float64.
    y_dtype: ``int64`` or StringDType for labels, ``float64`` for targets; None without them.
    schema: the columns of a table; ``X`` then has their stored values, NaN for a missing value.
    n_values: approximate number of stored values if blocks are in CSR; None for arrays.
    unlabelled: the marker in ``y`` for a missing label, where the source itself defines one.
    read_as: options with which the rows were read, as defaults for rows of a model.
    stored_at: where ``X`` is stored, if it need not be copied.
    boolean_labels: whether the labels 0 and 1 mean false and true.
    unseen: number of cells, read so far, whose category is not in the given schema, by column.
    """

    n_rows: int
    n_features: int
    x_dtype: np.dtype
    y_dtype: np.dtype | None
    has_weights: bool = False
    feature_names: tuple[str, ...] | None = None
    target_names: tuple[str, ...] | None = None
    schema: Schema | None = None
    id_dtype: np.dtype | None = None
    n_values: int | None = None
    unlabelled: int | str | float | None = None
    read_as: Mapping[str, str] | None = None
    stored_at: StoredAt | None = None
    boolean_labels: bool = False
    unseen: Mapping[str, int] = field(default_factory=dict)

    def blocks(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, `block_rows` at a time; the last block may be shorter."""
        return recut(self._parts(block_rows), block_rows)

    @abstractmethod
    def _parts(self, block_rows: int) -> Iterator[Block]:
        """Yield all rows in order, in blocks of any size; about `block_rows` rows are best."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """Rows that a format opens: where they are, how they are read, and for which model.

    place: the file or directory that the user named; empty if only a query or `rows` is given.
    files: its files in order.
    rows: a DuckDB relation, a frame or an Arrow reader.
    classes: the labels of a model.
    spoiled: whether cells of a table may be missing or of a wrong kind; both are read as missing.
    read_as: `Source.read_as` of the rows that a model was trained on: defaults for this place.
    """

    options: ReadOptions
    place: File = field(default_factory=partial(File, ""))
    files: Sequence[File] = ()
    rows: Any = None
    classes: Sequence[int | str] | None = None
    spoiled: bool = False
    read_as: Mapping[str, str] = field(default_factory=dict)


def recut(batches: Iterable[Any], block_rows: int) -> Iterator[Any]:
    """Yield the rows of blocks `block_rows` at a time, as views where one batch has them all."""
    held: list[Any] = []
    n_held = 0
    for batch in batches:
        n_rows = batch[0].shape[0]
        cuts = sorted({0, n_rows, *range(block_rows - n_held, n_rows, block_rows)})
        for start, stop in pairwise(cuts):
            parts = (None if column is None else column[start:stop] for column in batch)
            # A slice of rows in CSR is a copy.
            held.append(batch if stop - start == n_rows else batch._make(parts))
            n_held += stop - start
            if n_held == block_rows:
                yield _joined(held)
                held, n_held = [], 0
    if held:
        yield _joined(held)


def _joined(blocks: list[Any]) -> Any:
    if len(blocks) == 1:
        return blocks[0]
    columns: Any = zip(*blocks, strict=True)
    return blocks[0]._make(None if parts[0] is None else stacked(parts) for parts in columns)


def stored_values(source: Source, sparse: str) -> int | None:
    """Return about how many values of a source are stored in CSR; None if it is stored dense."""
    n_values, width = source.n_values, source.n_features
    if source.schema is not None and not source.schema.is_plain:
        return None
    if n_values is None and sparse == "yes":
        first = canonical(next(source.blocks(max(1, _SHOWN_BYTES // (width * 8)))).X)
        n_values = round(first.nnz / first.shape[0] * source.n_rows)
    if n_values is None or not _in_csr(sparse, n_values / source.n_rows, width, source.x_dtype):
        return None
    return n_values


def expanded_values(source: Source, sparse: str) -> int | None:
    """Return the largest number of nonzero values of a row in CSR; None if features are dense."""
    schema = source.schema
    if schema is None or schema.is_plain:
        return None
    is_small = source.n_rows * schema.n_features * FLOAT64.itemsize <= _DENSE_BYTES
    wanted = _in_csr(sparse, schema.row_values, schema.n_features, FLOAT64)
    return schema.row_values if wanted and not (is_small and sparse == "auto") else None


def _in_csr(sparse: str, row_values: float, n_features: int, dtype: np.dtype) -> bool:
    """Return whether rows are stored in CSR: with "auto" if they are wide and half as large."""
    half = n_features * dtype.itemsize / 2
    pays = n_features >= _WIDE and row_values * (dtype.itemsize + _INDEX_BYTES) < half
    return sparse == "yes" or (sparse == "auto" and pays)


def numbered_targets(n_targets: int) -> tuple[str, ...]:
    """Return names for targets without names: target, or target_0, target_1 and so on."""
    return ("target",) if n_targets == 1 else tuple(f"target_{j}" for j in range(n_targets))


def check_one_kind(option: str, labels: object, target: object) -> None:
    """Raise ParameterError if both labels, by an option, and numeric targets are given."""
    if labels is not None and target is not None:
        raise ParameterError(
            f"`{option}` and `target` are both given.",
            f"Give classes as `{option}`, or numbers as `target`.",
        )


def check_apart(option: str, name: str | None, *others: str | None) -> None:
    """Raise ParameterError if an option names one of the columns with another role."""
    if name is not None and name in others:
        raise ParameterError(
            f"`{option}`={name} also has another role, such as features, labels or weights.",
            f"Name a column or array without another role, or leave `{option}` out.",
        )


def check_found(
    wanted: Sequence[str], found: Sequence[str], origin: object, remedy: str, noun: str = "column"
) -> None:
    """Raise DataError unless each wanted name is among the names found, once."""
    counts = Counter(found)
    absent = [name for name in wanted if name not in counts]
    wrong = absent or [*dict.fromkeys(name for name in wanted if counts[name] > 1)]
    if not wrong:
        return
    has = f"no {noun}" if absent else f"several {noun}s"
    problem = f"{origin} has {has} {shown_names(wrong)}; it has {shown_names(found) or 'none'}"
    if not absent:
        places = [str(place) for place, name in enumerate(found, 1) if name == wrong[0]]
        problem += f", with {wrong[0]!r} in places {' and '.join(places)}"
    elif alike := in_other_form(absent, found):
        problem += f", of which {alike[0]!r} differs only in {FORM}"
        remedy = ONE_FORM
    raise DataError(f"{problem}.", remedy)


def in_other_form(wanted: Iterable[object], found: Iterable[object]) -> list[object]:
    """Return what was found that differs from a wanted text only in `FORM`."""
    forms = {normalize("NFC", str(each)).strip(): each for each in wanted}
    own = {each: forms.get(normalize("NFC", str(each)).strip(), each) for each in found}
    return [each for each, other in own.items() if other != each]


def shown_names(names: Sequence[str]) -> str:
    """Return the first names of columns, between quotes."""
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return ", ".join(map(repr, names[:_NAMES_SHOWN])) + more


def check_size(origin: str, *, n_rows: int, n_features: int) -> None:
    """Raise DataError if a table has no rows, no features, or more features than a row can have."""
    if not (n_features and n_rows):
        lacking = "rows" if n_features else "feature columns"
        raise DataError(f"{origin} is empty: it has no {lacking}.", f"Give some {lacking}.")
    if n_features > _MAX_FEATURES:
        raise DataError(
            f"{origin} has {n_features} feature columns.",
            f"Hash or project the rows to at most {_MAX_FEATURES} features.",
        )
