"""Draw the picture of the scales: rows with heavy tails as they are, standardized, and by rank.

    python workflows/guide/scales.py

writes `scales-light.svg` and `scales-dark.svg` into the pages of the guide.
"""

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from picture import CAPTION, GAP, HEIGHT, PAGES, PALETTES, SIDE, WIDTH, Palette, frame, text
from sklearn.datasets import make_moons

from dask_nrbfn.numeric.ranks import Line

CAPTIONS = (
    ("none: large numbers", "decide distances"),
    ("standard: the tail", "hides other rows"),
    ("rank: rows are", "evenly spread"),
)
# The share of a panel that its rows leave free on each side.
_MARGIN = 0.06


def main() -> None:
    """Write the picture for each theme."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=PAGES / "explanation", metavar="DIR")
    output = parser.parse_args().output
    Z, y = make_moons(240, noise=0.12, random_state=3)
    X = np.exp(2.2 * Z) * [1.0, 4.0]
    for name, palette in PALETTES.items():
        path = output / f"scales-{name}.svg"
        path.write_text(picture(X, y, palette), encoding="utf-8")
        print(path)


def picture(X: NDArray[np.float64], y: NDArray[np.int64], palette: Palette) -> str:
    """Return the picture as SVG."""
    lines = [Line.through(column) for column in X.T]
    scores = [np.interp(x, *line[:2]) for x, line in zip(X.T, lines, strict=True) if line]
    # All columns of a panel have one unit, as distances have.
    scaled = (X, (X - X.mean(axis=0)) / X.std(axis=0), np.column_stack(scores))
    parts = []
    for n, (rows, caption) in enumerate(zip(scaled, CAPTIONS, strict=True)):
        texts = [
            text(SIDE / 2, SIDE + 30 * (row + 1), line, palette, size=23)
            for row, line in enumerate(caption)
        ]
        panel = points(rows, y, palette) + frame(palette) + "".join(texts)
        parts.append(f'<g transform="translate({n * (SIDE + GAP)} 0)">{panel}</g>')
    body = "\n".join(parts)
    title = "The same rows with the scales none, standard and rank"
    height = HEIGHT - CAPTION + 75
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{title}</title>\n{body}\n</svg>\n'
    )


def points(rows: NDArray[np.float64], y: NDArray[np.int64], palette: Palette) -> str:
    """Return the rows as points of a panel."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    middle, unit = (low + high) / 2, (high - low).max() / (1 - 2 * _MARGIN)
    places = SIDE * (0.5 + (rows - middle) / unit * [1, -1])
    return "".join(
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.6" fill="{palette.classes[label]}" opacity="0.8"/>'
        for (a, b), label in zip(places, y, strict=True)
    )


if __name__ == "__main__":
    main()
