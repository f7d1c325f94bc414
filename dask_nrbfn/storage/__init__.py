"""Datasets, runs and models on disk; each is one Zarr group."""
