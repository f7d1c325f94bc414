"""The networks of cells: the tree that routes rows, and the arrays that differ between cells."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from dask_nrbfn.numeric.cell_tree import CellTree
from dask_nrbfn.numeric.types import Floats


class RoutedRows(NamedTuple):
    """A `cell`, the indices ``rows`` int64 (m,) of its rows, and the slice of its basis rows."""

    cell: int
    rows: NDArray[np.int64]
    basis: slice


@dataclass(frozen=True, eq=False)
class CellNetworks:
    """Tree, widths, column weights and intercepts of the networks of L cells.

    The model has the basis rows and weights of the networks, one cell after another, from `starts`
    (L + 1,). `roots` (L, p) multiply scaled rows.
    """

    tree: CellTree
    starts: NDArray[np.int64]
    widths: Floats
    roots: Floats
    intercepts: Floats
    n_rows: NDArray[np.int64]

    @property
    def n_cells(self) -> int:
        """Number of cells L."""
        return len(self.widths)

    @property
    def most_basis_rows(self) -> int:
        """Number of basis rows of the largest network."""
        return int(np.diff(self.starts).max())

    def of_rows(self, scaled: Floats, most_rows: int) -> Iterator[RoutedRows]:
        """Yield rows with the scaling of the basis cell by cell, at most `most_rows` together."""
        rows, cells = self.tree.route(scaled)
        for cell in range(self.n_cells):
            first, end = np.searchsorted(cells, [cell, cell + 1])
            basis = slice(int(self.starts[cell]), int(self.starts[cell + 1]))
            for start in range(first, end, most_rows):
                yield RoutedRows(cell, rows[start : min(start + most_rows, end)], basis)

    def feature_weights(self, root: Floats | None) -> Floats:
        """Return the mean column weights of the training rows; `root` (p,) is that of the table."""
        roots = self.roots if root is None else self.roots * root
        return np.asarray(self.n_rows @ roots**2 / self.n_rows.sum())

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by the names under which a model stores them."""
        of_tree = {f"tree_{each.name}": getattr(self.tree, each.name) for each in fields(CellTree)}
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "tree"}
        return of_tree | {f"cell_{name}": values for name, values in own.items()}

    @classmethod
    def array_names(cls) -> dict[str, tuple[str, ...]]:
        """Return the names of the stored arrays, each with the names of its dimensions."""
        nodes = dict.fromkeys((f"tree_{each.name}" for each in fields(CellTree)), ("node",))
        return nodes | {
            "cell_starts": ("cell_end",),
            "cell_widths": ("cell",),
            "cell_roots": ("cell", "feature"),
            "cell_intercepts": ("cell", "target"),
            "cell_n_rows": ("cell",),
        }

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> Self:
        """Return the networks that have these `arrays`."""
        tree = CellTree(*(arrays[f"tree_{each.name}"] for each in fields(CellTree)))
        names = [each.name for each in fields(cls) if each.name != "tree"]
        return cls(tree, *(arrays[f"cell_{name}"] for name in names))
