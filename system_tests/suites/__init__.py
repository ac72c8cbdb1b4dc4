"""The test suites of client libraries, run against minibroker."""
