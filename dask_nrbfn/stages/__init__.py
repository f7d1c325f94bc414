"""The stages of a fit, each reading what the ones before it wrote, and what goes around them."""
