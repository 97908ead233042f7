"""How often the conclusions are right on real engines: `make proof`."""
