"""Consumer groups: their members, assignments and committed offsets.

``group`` is the interface of every group type, and ``group_types`` the table of the types. So far
there is one, the classic group: ``states``, ``events``, ``member``, ``membership``,
``classic_group`` and ``group_state_machine``. These modules and ``offsets`` are pure rules: they
take events and the current time and return decisions; they never wait or write. ``records`` and
``offsets_log`` read and write Kafka's ``__consumer_offsets`` format. ``service`` is the thin shell
in an I/O worker: it parks waiting requests, runs the timer and carries out the decisions. Kafka's
counterpart is ``GroupCoordinator``.
"""
