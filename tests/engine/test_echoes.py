import asyncio
import gc
import logging
from pathlib import Path

import pytest
import zarr
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync
from zarr.storage import LocalStore

from dask_nrbfn.engine.echoes import leave_out_echoes


@pytest.fixture
def asyncio_log():
    log = logging.getLogger("asyncio")
    before = list(log.filters)
    log.filters.clear()
    yield log
    log.filters[:] = before


async def forget_failures(place):
    """Begin two requests that fail, and ask neither how it ended."""
    store = LocalStore(place / "file" / "inner")
    path = zarr.storage.StorePath(store, "x")
    value = default_buffer_prototype().buffer.from_bytes(b"1")
    tasks = [asyncio.ensure_future(path.set_if_not_exists(value)) for _ in range(2)]
    await asyncio.wait(tasks)


@pytest.mark.parametrize("left_out", [False, True])
def test_leave_out_echoes__of_zarr(tmp_path, caplog, asyncio_log, left_out):
    Path(tmp_path / "file").write_text("no directory")
    if left_out:
        leave_out_echoes()
        leave_out_echoes()
    sync(forget_failures(tmp_path))
    sync(asyncio.sleep(0))
    gc.collect()
    other = "future: <of something else> exception=OSError('/data/zarr/rows')"
    asyncio_log.error("Task exception was never retrieved\n%s", other)
    echoes = [message for message in caplog.messages if "set_if_not_exists" in message]
    assert len(echoes) == (0 if left_out else 2)
    assert "of something else" in caplog.text
