"""The blocks of the README and of the guide run as they are printed there."""

import os
import re
import subprocess
import sys
import tomllib

import pytest

from dask_nrbfn.params import FitLimits, FitParams, TuneParams
from tests.workflows.pages import (
    GUIDE,
    PAGES,
    ROOT,
    RUN,
    blocks_of,
    name_of,
    run_page,
    titles_run,
)

# Every reason for which a block is not run.
NOT_RUN = {
    "`.ci/run` and test_examples.py run it",
    "installs packages",
    "needs a GPU",
    "needs Kubernetes",
    "needs openpyxl",
    "needs Slurm",
    "needs docker",
    "needs several hosts",
    "starts a Prefect server that stays",
    "takes hours or needs data sets",
}


def has_blocks_to_run(page):
    return any(block.language in RUN and not block.reason for block in blocks_of(page))


@pytest.mark.slow
@pytest.mark.parametrize("page", [*filter(has_blocks_to_run, PAGES)], ids=name_of)
def test_page__blocks_run(page, tmp_path):
    run_page(page, tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page__every_block_is_run_or_listed(page):
    text, blocks = page.read_text(), blocks_of(page)
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks)
    assert {block.language for block in blocks} <= {*RUN, "text", "toml", "yaml", ""}
    assert {block.reason for block in blocks if block.reason} <= NOT_RUN
    files = {block.title for block in blocks if block.title and block.language in RUN}
    assert files <= titles_run(page)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page__names_files_that_exist(page):
    for place in re.findall(r"(?:\]\(|src(?:set)?=\")(?!https?:|#)([^)#\"]+)", page.read_text()):
        assert (page.parent / place).exists(), place
    for place in re.findall(r"(?<![\w/])(?:tests|workflows|cluster)/[\w./-]*\w", page.read_text()):
        assert (ROOT / place).exists(), place


@pytest.mark.parametrize("kind", [FitParams, FitLimits, TuneParams])
def test_reference__has_every_option(kind, monkeypatch):
    page = rendered("reference/parameters.md", monkeypatch)
    for name, option in kind.options().items():
        cells = [f"`--{name.replace('_', '-')}`", option.allowed, option.help]
        assert any(all(cell in line for cell in cells) for line in page.splitlines()), name


@pytest.mark.parametrize("page", sorted((GUIDE / "reference").glob("*.md")), ids=name_of)
def test_reference__has_no_part_left_open(page, monkeypatch):
    assert "{{" not in rendered(f"reference/{page.name}", monkeypatch)


def rendered(name, monkeypatch):
    """Return a page of the guide with what its hook fills in."""
    monkeypatch.syspath_prepend(str(ROOT / "workflows/guide"))
    from reference import on_page_markdown

    return on_page_markdown((GUIDE / name).read_text())


@pytest.mark.ci
@pytest.mark.slow
def test_guide__builds_without_warnings(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f"]
    process = subprocess.run(
        [*command, "workflows/guide/mkdocs.yml", "-d", str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "GITHUB_REPOSITORY": "owner/name"},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    for page in tmp_path.rglob("*.html"):
        # Readers need no network.
        assert re.findall(r"<(?:script|link|img)\b[^>]*\bhttps?://[^>]*", page.read_text()) == []
    home = (tmp_path / "index.html").read_text()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"<title>dask_nrbfn {version}</title>" in home
    assert '/owner/name">repository</a>' in home
    source = (GUIDE / "explanation/method.md").read_text()
    shown = (tmp_path / "explanation/method.html").read_text()
    assert shown.count("<math") == len(re.findall(r"\$\$.*?\$\$|\$.*?\$", source, re.DOTALL)) > 0
    assert r"\(" not in shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```bash\nno such thing\n```\n", "not found"),
        ("```python\nno such thing\n```\n", "SyntaxError"),
        # Blocks share their names, and their output is compared.
        ("```python\na = 1\n```\n```python\nprint(a + 1)\n```\n```text\n3\n```\n", "'3' is not"),
    ],
)
def test_page__a_block_that_fails_is_found(text, problem, tmp_path):
    (tmp_path / "page.md").write_text(text)
    (tmp_path / "here").mkdir()
    with pytest.raises(AssertionError, match=problem):
        run_page(tmp_path / "page.md", tmp_path / "here")
