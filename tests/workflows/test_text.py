import re

import pytest

from tests.workflows.script import run_script


@pytest.mark.slow
def test_text__goes_from_a_matrix_to_predictions(tmp_path):
    options = ("--rows", "1500", "--basis-size", "300", "--output", "out")
    process = run_script("workflows/arrays/text.py", *options, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    title, header, *steps, network, machine = process.stdout.splitlines()
    assert title.startswith("1500 x 30000 rows, ")
    assert header.split() == ["seconds", "peak", "MiB"]
    peaks = {name: float(peak) for name, _, peak in map(str.split, steps)}
    assert list(peaks) == ["ingest", "tune", "evaluate", "predict"]
    # The rows as an array.
    assert max(peaks.values()) < 8 * 1500 * 30_000 / 2**20 + 200
    errors = [float(re.search(r"([0-9.]+) %", line)[1]) for line in (network, machine)]
    # Of 30 classes.
    assert max(errors) < 40
    assert len((tmp_path / "out/labels.csv").read_text().splitlines()) == 1001
