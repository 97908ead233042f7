"""The worker process that holds the streams and writes stamped bytes to a spool."""
