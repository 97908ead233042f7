"""How often the conclusions are right: the project's own code on simulated engines whose truth is known."""
