"""Parquet as the activity table's files have it: pages in compiled loops, footers by hand."""
