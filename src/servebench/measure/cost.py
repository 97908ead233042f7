"""Costs, from the price of a machine per hour."""

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


def usd_per_million(rate_per_s: float | None, price_usd_per_hour: float | None, count: int) -> float | None:
    """Return the dollars per million of what `count` machines produce at `rate_per_s`; None when unknown."""
    if price_usd_per_hour is None or not count or not rate_per_s:
        return None
    return price_usd_per_hour * count / SECONDS_PER_HOUR / rate_per_s * MILLION


def break_even_price(own_rate_per_s: float, rival_usd_per_million: float, count: int) -> float:
    """Return the hourly price of one machine at which a million costs as much as the rival's."""
    return rival_usd_per_million * own_rate_per_s * SECONDS_PER_HOUR / MILLION / max(count, 1)
