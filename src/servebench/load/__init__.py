"""Drives load: plans in, stamped bytes out. Nothing here knows tokens, engines or files other than the spool."""
