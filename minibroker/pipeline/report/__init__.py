"""One page that shows what happened: figures aggregated by Spark, drawn and written without it."""
