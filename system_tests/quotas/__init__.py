"""Client quotas tested on complete brokers with sockets and real clients."""
