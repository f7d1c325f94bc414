"""The columns of a table as inputs of an ONNX graph, and the features that are made of them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from dask_nrbfn.commands.onnx_graph import OWN, Graph
from dask_nrbfn.numeric.schema import UNSEEN, Column, Schema
from dask_nrbfn.sources.options import MISSING_VALUES


@dataclass(frozen=True)
class ColumnInputs:
    """Inputs (rows, 1) of a graph, one for each column of a table.

    columns: by the name of the input, in order.
    fills: whether missing values are filled; else all results of their rows are NaN.
    marks: texts of a missing category, in columns that have no such category.
    """

    columns: Mapping[str, Column]
    fills: bool
    marks: tuple[str, ...]

    @classmethod
    def of(cls, schema: Schema, outputs: Collection[str]) -> Self:
        """Return the inputs of a graph with the given outputs."""
        names = _input_names([column.name for column in schema.columns], outputs)
        marks = schema.written.get("missing_values", MISSING_VALUES)
        columns = dict(zip(names, schema.columns, strict=True))
        return cls(columns, schema.fills, tuple(dict.fromkeys(("", *marks))))

    def features(self, graph: Graph) -> Any:
        """Return the features (rows, p), as `Schema.expand` does."""
        features = [self._features_of(column, name, graph) for name, column in self.columns.items()]
        return graph.node("Concat", *features, axis=1)

    def _features_of(self, column: Column, name: str, graph: Graph) -> Any:
        """Return the features (rows, m) of a column, as `Column.write` does."""
        if column.kind == "category":
            return self._one_hot(column, graph.input(name, 1, np.object_), graph)
        # float32 would lose the time of day.
        dtype = np.dtype(np.float64) if column.kind == "date" else graph.dtype
        values = graph.input(name, 1, dtype)
        gaps = np.isnan(values)
        with graph.constants_of(dtype):
            filled = np.where(gaps, column.fill, values) if self.fills else values
            features = column.features_of(filled)
        if column.marks_missing:
            features.append(graph.cast(gaps, dtype))
        return graph.cast(graph.node("Concat", *features, axis=1), graph.dtype)

    def _one_hot(self, column: Column, texts: Any, graph: Graph) -> Any:
        """Return the features (rows, m) of texts (rows, 1)."""
        n_shown = len(column.categories) + column.others
        codes = dict.fromkeys(self.marks, n_shown)
        codes |= {text: code for code, text in enumerate(column.categories)}
        found = graph.node(
            "LabelEncoder",
            texts,
            domain="ai.onnx.ml",
            keys_strings=[*codes],
            values_int64s=[*codes.values()],
            default_int64=len(column.categories) if column.others else int(UNSEEN),
        )
        places = graph.constant(np.arange(len(column.feature_names)), np.int64)
        features = graph.cast(np.equal(found, places), graph.dtype)
        if self.fills:
            return features
        return np.where(np.equal(found, graph.constant(n_shown, np.int64)), np.nan, features)

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return what a program needs to fill each input, as JSON values."""
        return {name: self._described(column) for name, column in self.columns.items()}

    def _described(self, column: Column) -> dict[str, Any]:
        described: dict[str, Any] = {"column": column.name, "kind": column.kind}
        if column.kind == "category":
            described["categories"] = list(column.categories)
            described["others"] = column.others
            described["missing"] = [each for each in self.marks if each not in column.categories]
        return described


def _input_names(columns: Collection[str], outputs: Collection[str]) -> list[str]:
    """Return the names of columns, with underscores before those that a graph cannot have."""
    names, taken = list[str](), {*outputs, ""}
    for column in columns:
        name = column
        while name in taken or name.startswith(OWN) or (name != column and name in columns):
            name = f"_{name}"
        taken.add(name)
        names.append(name)
    return names
