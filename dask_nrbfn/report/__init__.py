"""Reports of plans and finished runs: text and an HTML page, made of the same facts."""
