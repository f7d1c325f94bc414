"""Draw the picture of the README: rows, sums over chunks, network.

    python workflows/guide/picture.py

writes `picture-light.svg` and `picture-dark.svg` into the pages of the guide.
"""

import argparse
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from contourpy import FillType, contour_generator
from numpy.typing import NDArray
from sklearn.datasets import make_moons

from dask_nrbfn import NRBFNClassifier

PAGES = Path(__file__).with_name("pages")

# Side of a panel, the gap between two, the height of the captions, and the size of their letters,
# in pixels: 12 on a phone, which shows the 800 pixels of the picture in 360.
SIDE, GAP, CAPTION, LETTERS = 240, 40, 100, 27
WIDTH, HEIGHT = 3 * SIDE + 2 * GAP, SIDE + CAPTION
# The part of the plane that a panel shows.
LEFT, RIGHT, LOW, HIGH = -1.6, 2.6, -1.5, 1.9


class Palette(NamedTuple):
    """Colours of one theme."""

    ink: str
    faint: str
    classes: tuple[str, str]
    areas: tuple[str, str]


PALETTES = {
    "light": Palette("#1f2933", "#9aa5b1", ("#0b7285", "#d9480f"), ("#e3f4f7", "#fdeee4")),
    "dark": Palette("#e4e7eb", "#7b8794", ("#3bc9db", "#ff922b"), ("#16343a", "#3d2a1c")),
}
CAPTIONS = (
    ("1. Rows near a", "boundary become", "the basis"),
    ("2. Every chunk", "of rows adds to", "two small sums"),
    ("3. One solve", "of these gives", "the network"),
)


def main() -> None:
    """Write the picture for each theme."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=PAGES, metavar="DIR")
    output = parser.parse_args().output
    X, y = make_moons(240, noise=0.22, random_state=3)
    paper = {"kernel": "gaussian", "scale": "none", "confidence_threshold": 0.9}
    network = NRBFNClassifier(alpha=1e-6, **paper).fit(X, y)
    for name, palette in PALETTES.items():
        path = output / f"picture-{name}.svg"
        path.write_text(picture(X, y, network, palette), encoding="utf-8")
        print(path)


def picture(
    X: NDArray[np.float64], y: NDArray[np.int64], network: NRBFNClassifier, palette: Palette
) -> str:
    """Return the picture as SVG."""
    panels = [
        basis_panel(X, y, network.basis_indices_, palette),
        sums_panel(palette),
        area_panel(network, palette) + basis_panel(X, y, np.arange(0), palette),
    ]
    parts = []
    for n, (panel, caption) in enumerate(zip(panels, CAPTIONS, strict=True)):
        texts = [
            text(SIDE / 2, SIDE + 30 * (row + 1), line, palette) for row, line in enumerate(caption)
        ]
        parts.append(f'<g transform="translate({n * (SIDE + GAP)} 0)">{panel}{"".join(texts)}</g>')
    parts += [arrow(n * (SIDE + GAP) - GAP + 8, palette) for n in (1, 2)]
    title = "Rows near a boundary become the basis, chunks add to sums, one solve gives the network"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif"><title>{title}</title>\n{body}\n</svg>\n'
    )


def basis_panel(
    X: NDArray[np.float64], y: NDArray[np.int64], basis: NDArray[np.int64], palette: Palette
) -> str:
    """Return the rows as points; if some are the basis, the others are faint."""
    marked = set(basis.tolist())
    points = []
    for n, (place, label) in enumerate(zip(placed(X), y, strict=True)):
        colour = palette.classes[label]
        size, opacity = (4.2, 1) if n in marked else (2.4, 0.35 if marked else 0.9)
        points.append(
            f'<circle cx="{place[0]:.1f}" cy="{place[1]:.1f}" r="{size}" fill="{colour}" '
            f'opacity="{opacity}"/>'
        )
    return frame(palette) + "".join(points)


def area_panel(network: NRBFNClassifier, palette: Palette) -> str:
    """Return the areas of the plane in which each class is predicted."""
    x, y = np.linspace(LEFT, RIGHT, 81), np.linspace(LOW, HIGH, 81)
    plane = np.stack(np.meshgrid(x, y), axis=-1)
    scores = network.decision_function(plane.reshape(-1, 2)).reshape(plane.shape[:2])
    generator = contour_generator(x, y, scores, fill_type=FillType.OuterOffset)
    shapes = [f'<rect width="{SIDE}" height="{SIDE}" fill="{palette.areas[0]}"/>']
    for points, offsets in zip(*generator.filled(0, np.inf), strict=True):
        rings = [placed(points[a:b]) for a, b in pairwise(offsets)]
        path = "".join("M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in ring) + "Z" for ring in rings)
        shapes.append(f'<path d="{path}" fill="{palette.areas[1]}" fill-rule="evenodd"/>')
    return "".join(shapes)


def sums_panel(palette: Palette) -> str:
    """Return chunks of rows that add to a square matrix and a thin one."""
    shapes = []
    for n in range(4):
        top = 14 + 56 * n
        shapes.append(box(16, top, 74, 42, palette.ink, palette.classes[n % 2], 0.18))
        shapes += [
            box(22, top + 6 + 11 * row, 62, 6, "none", palette.faint, 0.7) for row in range(3)
        ]
        line = f"M96 {top + 21} C120 {top + 21} 120 {SIDE / 2} 140 {SIDE / 2}"
        shapes.append(f'<path d="{line}" fill="none" stroke="{palette.faint}" stroke-width="2"/>')
    shapes.append(box(146, 76, 74, 74, palette.ink, palette.classes[0], 0.3))
    shapes.append(box(146, 158, 74, 14, palette.ink, palette.classes[1], 0.3))
    shapes.append(text(183, 122, "ΦᵀΦ", palette))
    shapes.append(text(183, 197, "FᵀΦ", palette))
    return "".join(shapes)


def placed(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return points of the plane as pixels of a panel."""
    x = (points[:, 0] - LEFT) / (RIGHT - LEFT) * SIDE
    y = (HIGH - points[:, 1]) / (HIGH - LOW) * SIDE
    return np.stack([x, y], axis=1)


def frame(palette: Palette) -> str:
    """Return the border of a panel."""
    return box(0.5, 0.5, SIDE - 1, SIDE - 1, palette.faint, "none", 1)


def box(
    x: float, y: float, width: float, height: float, stroke: str, fill: str, opacity: float
) -> str:
    """Return a rectangle."""
    return (
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="3" stroke="{stroke}" '
        f'fill="{fill}" fill-opacity="{opacity}"/>'
    )


def text(x: float, y: float, words: str, palette: Palette, size: int = LETTERS) -> str:
    """Return a centred line of text."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{palette.ink}" '
        f'text-anchor="middle">{words}</text>'
    )


def arrow(x: float, palette: Palette) -> str:
    """Return an arrow to the right, half-way up the panels."""
    y = SIDE / 2
    line = f"M{x} {y}h{GAP - 18}m-7 -6l7 6l-7 6"
    return f'<path d="{line}" fill="none" stroke="{palette.ink}" stroke-width="2"/>'


if __name__ == "__main__":
    main()
