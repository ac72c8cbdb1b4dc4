"""The HTML report of recorded activity: figures come from Spark; drawing and writing need none."""
