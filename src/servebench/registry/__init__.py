"""Finds plugins by entry points and answers by kind and name."""
