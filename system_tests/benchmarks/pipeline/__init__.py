"""Generated activity, and the cost of the pipeline's jobs for it."""
