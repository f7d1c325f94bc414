"""A tree of median splits that divides a table into cells."""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.types import Floats

# A split leaves at least this share of the rows on each side.
_LEAST_SIDE = 0.25


class Members(NamedTuple):
    """Rows cell by cell, in their order within each cell: their places and cells, ascending."""

    rows: NDArray[np.int64]
    cells: NDArray[np.int64]

    def of_cells(self, wanted: Sequence[int]) -> "Members":
        """Return the members of some cells."""
        kept = np.isin(self.cells, wanted)
        return Members(self.rows[kept], self.cells[kept])


class Side(NamedTuple):
    """One side of a split: scaled rows with a `column` above the `threshold`, or the others."""

    column: int
    threshold: float
    above: bool


@dataclass(frozen=True, eq=False)
class CellTree:
    """A binary tree whose leaves are the cells of a table.

    columns (m,): the column that each node splits; -1 for a leaf.
    thresholds (m,): scaled rows with a value of at most this go to the first child; 0 for a leaf.
    children (m,): the first of two consecutive children; for a leaf, the number of its cell.
    """

    columns: NDArray[np.int64]
    thresholds: Floats
    children: NDArray[np.int64]

    @classmethod
    def grown(cls, rows: Floats, *, most_rows: float, most_cells: int | None = None) -> Self:
        """Return the tree of scaled rows (n, p), in which nodes of more than `most_rows` are split.

        The largest is split first, at the median of the column with the largest deviation, among
        columns whose median leaves a quarter of the rows on each side. Without one it is a cell.
        """
        columns, thresholds, children = [-1], [0.0], [-1]
        # Of equally large nodes the first is split first.
        waiting = [(-len(rows), 0, np.arange(len(rows)))]
        leaves = 1
        while waiting and -waiting[0][0] > most_rows and leaves != most_cells:
            _, node, members = heapq.heappop(waiting)
            split = _split(rows[members])
            if split is None:
                continue
            columns[node], thresholds[node] = split
            first = rows[members, columns[node]] <= thresholds[node]
            children[node] = len(columns)
            for side in (members[first], members[~first]):
                heapq.heappush(waiting, (-len(side), len(columns), side))
                columns.append(-1)
                thresholds.append(0.0)
                children.append(-1)
            leaves += 1
        tree = cls(np.array(columns), np.array(thresholds), np.array(children))
        tree.children[tree.leaves] = np.arange(tree.n_cells)
        return tree

    @property
    def leaves(self) -> NDArray[np.int64]:
        """The nodes of the cells, in the order of the cells, int64 (L,)."""
        return np.array([node for node in self._in_order() if self.columns[node] < 0])

    def _in_order(self) -> list[int]:
        """Return the nodes in an order in which cells next to each other are neighbours."""
        ordered, waiting = [], [0]
        while waiting:
            node = waiting.pop()
            ordered.append(node)
            if self.columns[node] >= 0:
                first = int(self.children[node])
                waiting += [first + 1, first]
        return ordered

    @property
    def n_cells(self) -> int:
        """Number of cells L."""
        return int(np.count_nonzero(self.columns < 0))

    def splits(self) -> list[list[Side]]:
        """Return for every cell the sides of the splits above the cell, from the root."""
        of_nodes: dict[int, list[Side]] = {0: []}
        for node in range(len(self.columns)):
            if self.columns[node] >= 0:
                column, threshold = int(self.columns[node]), float(self.thresholds[node])
                for above in (False, True):
                    child = int(self.children[node]) + above
                    of_nodes[child] = [*of_nodes[node], Side(column, threshold, above)]
        leaves = {int(self.children[node]): node for node in np.flatnonzero(self.columns < 0)}
        return [of_nodes[int(leaves[cell])] for cell in range(self.n_cells)]

    def route(self, rows: Floats) -> Members:
        """Return the cells of scaled rows (b, p)."""
        nodes = np.zeros(len(rows), np.int64)
        inner = np.flatnonzero(self.columns[nodes] >= 0)
        while len(inner):
            split = nodes[inner]
            second = rows[inner, self.columns[split]] > self.thresholds[split]
            nodes[inner] = self.children[split] + second
            inner = np.flatnonzero(self.columns[nodes] >= 0)
        cells = self.children[nodes]
        order = np.argsort(cells, kind="stable")
        return Members(order, cells[order])


def _split(rows: Floats) -> tuple[int, float] | None:
    """Return column and threshold of the split of some rows; None if no column can be split."""
    deviations = rows.std(axis=0)
    least = _LEAST_SIDE * len(rows)
    for column in np.argsort(-deviations, kind="stable"):
        if not deviations[column] > 0:
            return None
        values = rows[:, column]
        threshold = float(np.median(values))
        n_first = np.count_nonzero(values <= threshold)
        if min(n_first, len(rows) - n_first) >= least:
            return int(column), threshold
    return None
