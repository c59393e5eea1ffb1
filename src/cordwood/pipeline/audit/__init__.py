"""AUDIT: gaps, duplicates, and whether the router's counts balance."""
