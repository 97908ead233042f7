"""Helpers shared by the tests of servebench and of its plugins: `from support.records import record`."""
