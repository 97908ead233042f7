from support.fixtures import memory, record  # noqa: F401
