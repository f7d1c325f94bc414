"""Computations on one block of rows, with numpy and scipy only.

Letters of shapes: n rows, b rows of a block, p features, r basis rows, K classes, q targets (K for
classes), k neighbours, A models, L cells.

"hu-nrbfn" is the paper whose equations, algorithms and theorems are named, here and elsewhere in
the package: Z. Hu, G. Pan, Z. Wu, "Spectral-graph Based Classifications: Linear Regression for
Classification and Normalized Radial Basis Function Network", 2017.
"""
