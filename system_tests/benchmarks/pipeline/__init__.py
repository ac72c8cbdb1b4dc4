"""Generated activity, and what the pipeline's jobs take for it."""
