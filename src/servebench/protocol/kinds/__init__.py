"""The kinds of requests: how each is sent, what its answers hold, and how they are checked."""
