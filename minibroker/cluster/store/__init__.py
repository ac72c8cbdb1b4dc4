"""The config store: ZooKeeper's tree of paths behind one interface.

``tree`` is the interface and its semantics, ``sqlite`` the store that needs no server.  Whoever
uses a store must not be able to tell which one it is; ``tests/contracts`` holds them to that.
"""
