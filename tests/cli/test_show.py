from dask.utils import format_bytes
from hypothesis import given
from hypothesis import strategies as st

from dask_nrbfn.cli.show import readable_bytes


@given(st.integers(0, 2**60) | st.integers(0, 60).map(lambda power: 2**power))
def test_readable_bytes__as_dask_writes_them(n_bytes):
    assert readable_bytes(n_bytes) == format_bytes(n_bytes)
