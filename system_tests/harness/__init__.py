"""What every system test stands on: brokers as processes, jars, waiting, looking into /proc."""
