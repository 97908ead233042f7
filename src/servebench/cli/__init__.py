"""The command line: a function for each command."""
