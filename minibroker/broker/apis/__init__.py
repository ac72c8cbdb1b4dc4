"""One file per API: everything the broker does about it, on one screen or two."""
