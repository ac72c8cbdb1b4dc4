"""Programs that carry out the operations of a workload with a client library."""
