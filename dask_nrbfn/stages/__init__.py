"""The stages of a fit, each of which reads what those before it wrote."""
