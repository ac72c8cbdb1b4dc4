"""The config store and whole brokers on real ZooKeeper servers."""
