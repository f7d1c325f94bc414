"""Computations on one block of rows, with numpy and scipy only.

Shapes are written in the letters n rows, b rows of a block, p features, r basis rows, K classes,
k neighbours.

"hu-nrbfn" is the paper whose equations, algorithms and theorems are named, here and elsewhere in
the package: Z. Hu, G. Pan, Z. Wu, "Spectral-graph Based Classifications: Linear Regression for
Classification and Normalized Radial Basis Function Network", 2017.
"""
