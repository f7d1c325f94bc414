"""Classifiers that the papers compare theirs with and that are no options of the library.

They hold all rows in memory and take what they can of the library's numeric parts.
"""
