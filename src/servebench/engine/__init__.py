"""Engines: how each is started, spoken to and stopped, and the launch strategies."""
