"""The config store: ZooKeeper's tree of nodes behind one interface.

``tree`` is the interface and its semantics, ``sqlite`` the embedded store. Users of a store cannot
tell the implementations apart; ``tests/contracts`` tests that.
"""
