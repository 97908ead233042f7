"""Emulated engines: servers that speak an engine's HTTP dialect and behave like its scheduler, with no GPU and no weights.

`core` is the step loop (pure: it is told the time), `cost` the time of a step, `cache` the KV memory and its prefix cache,
`server` the loop behind a socket, `simulate` the same loop on a virtual clock, `published` the articles' tables.
"""
