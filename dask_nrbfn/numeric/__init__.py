"""What is computed on one block of rows: numpy and scipy only.

Shapes are written in the letters n rows, b rows of a block, p features, r basis rows, K classes,
k neighbours.
"""
