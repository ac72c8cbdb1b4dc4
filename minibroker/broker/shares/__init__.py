"""Share partitions (KIP-932): records in flight, sessions, and the stored state."""
