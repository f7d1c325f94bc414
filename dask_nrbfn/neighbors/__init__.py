"""The k nearest neighbours of every row, the row itself excluded."""
