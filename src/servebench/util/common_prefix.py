"""Compare texts."""


def common_prefix_length(one: str, other: str) -> int:
    """Return how many leading characters two texts share."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
