"""Emulated engines: servers that speak an engine's HTTP dialect and behave like its scheduler, without GPU or weights.

`scheduler` is the step loop (pure: time is an argument), `cost` the duration of a step, `memory` the KV memory with its prefix
cache, `engine` the loop in real time, `connection` its HTTP side.
"""
