"""``python -m dask_nrbfn``."""

from dask_nrbfn.cli import main

if __name__ == "__main__":
    main()
