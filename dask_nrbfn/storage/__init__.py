"""What lies on disk: datasets, runs and models, each one Zarr group."""
