"""The attacks, one module each: a seed and a deadline in, counts of what was done out."""
