"""A Parquet writer for the activity table: pages in compiled loops, footers in Python."""
