"""A busy neighbour: takes a core in bursts of about a second, until it is stopped or its parent is gone."""

import os
import random
import time

MEAN_S = 1.0


def main() -> None:
    """Alternate between bursts and pauses of exponential lengths."""
    rng, parent = random.Random(1), os.getppid()
    while os.getppid() == parent:
        until = time.monotonic() + rng.expovariate(1 / MEAN_S)
        while time.monotonic() < until:
            sum(range(10_000))
        time.sleep(rng.expovariate(1 / MEAN_S))


if __name__ == "__main__":
    main()
