"""Which addresses are on this machine."""

from ipaddress import ip_address


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine by its name; a host that is not given is."""
    try:
        return host is None or ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
