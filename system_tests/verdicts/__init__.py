"""Verdicts on real clients: one scenario for all of them, and a page with the results."""
