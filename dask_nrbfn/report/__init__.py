"""Reports of plans and finished runs: text, JSON and an HTML page, made of the same facts."""
