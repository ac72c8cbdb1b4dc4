"""Consumer groups: their members, assignments and committed offsets.

``group`` is the interface of every group type, and ``group_manager`` holds groups of all types; its
table ``GROUP_TYPES`` names them: ``classic_group``, with ``states`` and ``membership``, and
``consumer_group``, with ``consumer_member`` and ``assignors``; ``conversion`` makes one of the
other. ``events`` goes in and decisions come out: groups, ``offsets`` and ``group_manager``
are pure rules that never wait or read a clock. ``records``, ``consumer_records`` and ``state_log``
read and write Kafka's ``__consumer_offsets`` format. ``service`` is the thin shell in an I/O
worker: it parks waiting requests, runs the timer and carries out the decisions. Kafka's counterpart
is ``GroupCoordinator``.
"""
