import re

import pytest

from tests.workflows.script import run_script


@pytest.mark.slow
def test_scene__both_maps_are_equal(tmp_path):
    process = run_script("workflows/arrays/scene.py", "--size", 120, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    lines = {line[:15].strip(): line[15:].strip() for line in process.stdout.splitlines()}
    assert re.fullmatch(r"\d+ of 28800, both maps are equal", lines["mapped pixels"])
    assert float(lines["error"].removesuffix(" %")) < 10
    shares = [
        float(lines[name].removesuffix(" %")) for name in ("water", "forest", "crops", "town")
    ]
    assert sum(shares) == pytest.approx(100, abs=0.3)


@pytest.mark.slow
def test_benchmark__prints_the_ratio(tmp_path):
    arguments = ("--dates", 1, "--size", 64, "--chunk", 32, "--bands", 3, "--labelled", 500)
    script = "workflows/benchmarks/scene.py"
    process = run_script(script, *arguments, "--basis-size", 30, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert re.search(r"^ratio +\d\.\d{3}  ", process.stdout, flags=re.MULTILINE)
    assert re.search(r"^map .* pixels a second, peak \d+ MiB$", process.stdout, re.MULTILINE)
