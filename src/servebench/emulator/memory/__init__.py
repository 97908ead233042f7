"""KV memory in tokens, and the prefix caches: which part of a prompt need not be computed again.

Both keep what finished requests left until memory is needed, evict the least recently used first, and never evict what
a running request uses. They work on the text itself: every four characters are a token (see `text`).
"""
