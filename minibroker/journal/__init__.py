"""The journal: what happened in a broker, in one order."""

from minibroker.journal.assertions import AssertionResult as AssertionResult
from minibroker.journal.bounded import Journal as Journal
