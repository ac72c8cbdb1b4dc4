"""What clients must not notice: killed processes, restarts, hostile neighbours."""
