"""The papers, a module each: what they print, how they measure, and their `TABLES`."""
