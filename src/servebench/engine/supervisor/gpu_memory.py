"""Check that a stopped engine released its GPU memory. Needs the NVIDIA driver; without it nothing is checked."""

import time
from collections.abc import Sequence

SETTLE_S = 5.0
"""The driver reclaims a process's memory only some time after its end."""

MARGIN_BYTES = 256 << 20
"""Changes up to this size are attributed to other processes."""

POLL_S = 0.1


def used_bytes() -> tuple[int, ...] | None:
    """Return the memory in use on each GPU, by any process; None without a driver or `nvidia-ml-py`."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # noqa: BLE001 - a broken driver must not prevent an engine's stop
        return None
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return tuple(int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in handles)
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


def unreleased_memory(before: Sequence[int] | None) -> tuple[str, ...]:
    """Wait for the driver, then return one line for each GPU that uses more memory than `before`; empty if none does."""
    if before is None:
        return ()
    deadline = time.monotonic() + SETTLE_S
    while lines := memory_increase(before, used_bytes()):
        if time.monotonic() > deadline:
            return lines
        time.sleep(POLL_S)
    return ()


def memory_increase(before: Sequence[int], after: Sequence[int] | None) -> tuple[str, ...]:
    """Return one line for each GPU on which `after` exceeds `before` by more than the margin. Pure."""
    return tuple(
        f"{(now - then) / 1e9:.1f} GB of memory on GPU {index}"
        for index, (then, now) in enumerate(zip(before, after or (), strict=False))
        if now - then > MARGIN_BYTES
    )
