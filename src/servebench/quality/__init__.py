"""Scorers: questions for the engine, and what their answers are worth."""
