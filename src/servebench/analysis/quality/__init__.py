"""Quality results: how many answers are right, whether two runs differ, and warnings about both."""
