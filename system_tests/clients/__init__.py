"""The same scenarios for every client; see `model` for their vocabulary."""
