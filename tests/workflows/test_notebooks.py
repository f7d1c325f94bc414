import pytest

from tests.workflows.script import ROOT, run_script

NOTEBOOKS = sorted(path.name for path in (ROOT / "workflows/notebooks").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks__run_as_scripts(name, tmp_path):
    process = run_script(f"workflows/notebooks/{name}", cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert "errors" in process.stdout
    assert not [*tmp_path.iterdir()]
