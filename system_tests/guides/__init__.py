"""The commands of the pages, run as a reader runs them."""
