"""Whether an engine gave its GPU memory back. Says nothing (None) where there is no NVIDIA driver."""

from __future__ import annotations

import time
from collections.abc import Sequence

SETTLE_S = 5.0
"""The driver takes a process's memory back some moments after its end."""

MARGIN_BYTES = 256 << 20
"""What contexts of others come and go with."""

POLL_S = 0.1


def used_bytes() -> tuple[int, ...] | None:
    """Memory in use on each GPU, by whomever; None without a driver or `nvidia-ml-py`."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a broken driver must not stop an engine's stop
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def kept(before: Sequence[int] | None, *, settle_s: float = SETTLE_S) -> tuple[str, ...]:
    """What is still in use beyond `before`, a line a GPU, after waiting for the driver. Empty when all is back."""
    if before is None:
        return ()
    deadline = time.monotonic() + settle_s
    while lines := held(before, used_bytes()):
        if time.monotonic() > deadline:
            return lines
        time.sleep(POLL_S)
    return ()


def held(before: Sequence[int], after: Sequence[int] | None) -> tuple[str, ...]:
    """Lines for the GPUs on which `after` is more than `before` and a margin. Pure."""
    return tuple(
        f"{(now - then) / 1e9:.1f} GB of memory on GPU {index}"
        for index, (then, now) in enumerate(zip(before, after or (), strict=False))
        if now - then > MARGIN_BYTES
    )
