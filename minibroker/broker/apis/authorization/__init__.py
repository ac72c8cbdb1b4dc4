"""Authorization checks of the APIs: the operation and resource that each request requires."""
