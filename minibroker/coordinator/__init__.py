"""Consumer groups: who is a member, who owns what, and how far each group has read.

``states``, ``events``, ``member``, ``group`` and ``offsets`` are rules: events and a moment go in,
decisions come out, nothing waits and nothing is written. ``records`` and ``journal`` know Kafka's
``__consumer_offsets`` format. ``service`` is the thin shell that an I/O worker holds: it parks
waiting clients, keeps the timer and writes what the rules decide. Kafka calls the whole thing
``GroupCoordinator``.
"""
