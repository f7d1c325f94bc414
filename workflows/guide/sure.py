"""Draw the picture of intervals: new rows with uneven noise, the prediction, its band of 90 %.

    python workflows/guide/sure.py

writes `sure-light.svg` and `sure-dark.svg` into the pages of the guide.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from picture import PAGES, PALETTES, WIDTH, Palette, box, text

from dask_nrbfn import NRBFNRegressor

# Training rows, and new rows that the picture shows.
N_ROWS, N_SHOWN = 3000, 400
# Height of the panel and of the picture in pixels.
PANEL, HEIGHT = 300, 345
# The part of the plane that the panel shows.
LEFT, RIGHT, LOW, HIGH = 0.0, 10.0, -2.6, 2.6


class Band(NamedTuple):
    """The prediction (g, 2) and both ends (g, 2) of the band as points, and new rows (n, 2)."""

    curve: NDArray[np.float64]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    rows: NDArray[np.float64]
    inside: NDArray[np.bool_]


def main() -> None:
    """Write the picture for each theme."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=PAGES / "task", metavar="DIR")
    output = parser.parse_args().output
    band = fitted_band()
    for name, palette in PALETTES.items():
        path = output / f"sure-{name}.svg"
        path.write_text(picture(band, palette), encoding="utf-8")
        print(path)


def fitted_band() -> Band:
    """Return the prediction and the band of a network of training rows, and new rows."""
    draw = np.random.default_rng(0)
    x = draw.uniform(LEFT, RIGHT, N_ROWS + N_SHOWN)
    y = np.sin(x) + draw.normal(size=len(x)) * (0.1 + 0.06 * x)
    network = NRBFNRegressor().fit(x[:N_ROWS, None], y[:N_ROWS])
    grid, new = np.linspace(LEFT, RIGHT, 101), slice(N_ROWS, None)
    lower, upper = network.predict_interval(grid[:, None]).T
    ends = network.predict_interval(x[new, None])
    predicted = network.predict(grid[:, None])
    lines = (np.column_stack([grid, values]) for values in (predicted, lower, upper))
    inside = (ends[:, 0] <= y[new]) & (y[new] <= ends[:, 1])
    return Band(*lines, np.column_stack([x, y])[new], inside)


def picture(band: Band, palette: Palette) -> str:
    """Return the picture as SVG."""
    area = path_of(np.concatenate([band.lower, band.upper[::-1]]))
    shapes = [
        f'<path d="{area}Z" fill="{palette.classes[0]}" fill-opacity="0.25"/>',
        points(band.rows[band.inside], palette.classes[0]),
        points(band.rows[~band.inside], palette.classes[1]),
        f'<path d="{path_of(band.curve)}" fill="none" stroke="{palette.ink}" stroke-width="3"/>',
        box(0.5, 0.5, WIDTH - 1, PANEL - 1, palette.faint, "none", 1),
    ]
    share = f"{np.count_nonzero(band.inside)} of {len(band.inside)}"
    title = f"The band of 90 % contains {share} new rows"
    shapes.append(text(WIDTH / 2, PANEL + 32, title, palette))
    body = "\n".join(shapes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{title}</title>\n{body}\n</svg>\n'
    )


def path_of(places: NDArray[np.float64]) -> str:
    """Return the path through points of the plane."""
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in placed(places))


def points(rows: NDArray[np.float64], colour: str) -> str:
    """Return rows as points of the panel."""
    return "".join(
        f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.8" fill="{colour}"/>' for a, b in placed(rows)
    )


def placed(places: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points of the plane as pixels of the panel."""
    x = (places[:, 0] - LEFT) / (RIGHT - LEFT) * WIDTH
    y = (HIGH - places[:, 1]) / (HIGH - LOW) * PANEL
    return np.stack([x, y], axis=1)


if __name__ == "__main__":
    main()
