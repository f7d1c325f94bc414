"""The tables of a paper, its figures beside ours, in Markdown.

    python workflows/paper/tables.py hu
    python workflows/paper/tables.py hu --data FOLDER --only table-1 --sets colon glass
    python workflows/paper/tables.py que --data FOLDER --most-rows 10000

hu: Hu, Pan & Wu, normalized networks; que: Que & Belkin, networks revisited; xue: Xue, Chen & Zeng,
locality; lee: Lee & Izbicki, spectral series. The last column says whether a figure is reproduced
to the printed digit, close, or not, and why.
"""

import argparse
import warnings
from importlib import import_module
from pathlib import Path

import sets
from lines import HEADER, Table
from sets import Folder

from dask_nrbfn.errors import IllConditionedWarning

PAPERS = ("hu", "que", "xue", "lee")


def main() -> None:
    """Print the tables that are asked for, line by line as they are measured."""
    options = parse_options()
    folder = Folder(options.data, options.most_rows, options.splits)
    print(options.paper.__doc__.strip())
    # The penalties are the papers', of which some are too small for float64.
    warnings.simplefilter("ignore", IllConditionedWarning)
    for table in options.tables:
        print(f"\n## {table.name}: {table.title}\n\n{HEADER}")
        for name in table.sets:
            if options.sets is None or name in options.sets:
                print_lines(table, name, folder)


def parse_options() -> argparse.Namespace:
    """Return the command line's options, with the paper's module and its tables."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        epilog=sets.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paper", choices=PAPERS)
    parser.add_argument("--data", type=Path, help="folder of the .npz files")
    parser.add_argument("--only", nargs="+", metavar="TABLE", help="of all tables")
    parser.add_argument("--sets", nargs="+", metavar="NAME", help="of all data sets")
    parser.add_argument(
        "--most-rows", type=int, help="draw so many rows to train on of larger sets"
    )
    parser.add_argument(
        "--splits", type=int, default=10, help="of sets that have or need several; default: 10"
    )
    options = parser.parse_args()
    if options.data is not None and not options.data.is_dir():
        parser.error(f"{options.data} is no folder.")
    for name in ("most_rows", "splits"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1.")
    options.paper = import_module(f"papers.{options.paper}")
    tables = {table.name: table for table in options.paper.TABLES}
    if unknown := set(options.only or ()) - set(tables):
        parser.error(f"no table {', '.join(sorted(unknown))}; there are {', '.join(tables)}.")
    options.tables = [tables[name] for name in options.only or tables]
    names = list(dict.fromkeys(name for table in options.tables for name in table.sets))
    if unknown := set(options.sets or ()) - set(names):
        parser.error(f"no set {', '.join(sorted(unknown))}; there are {', '.join(names)}.")
    return options


def print_lines(table: Table, name: str, folder: Folder) -> None:
    """Print the lines of a data set, or that it is not here."""
    data = folder.find(name)
    if data is None:
        print(f"| {name} | | | | not here |")
        return
    for line in table.lines(data):
        cells = (name, line.what, line.paper, line.here, line.verdict)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
