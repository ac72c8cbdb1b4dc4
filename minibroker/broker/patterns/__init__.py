"""Patterns that come from outside, matched in time linear in the text."""
