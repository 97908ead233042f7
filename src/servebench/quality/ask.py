"""Sends items to an OpenAI-compatible endpoint, so many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import httpx

from servebench.contracts.quality import Answer, Item


def ask(
    items: Sequence[Item],
    *,
    base_url: str,
    model: str,
    concurrency: int,
    headers: Mapping[str, str],
    timeout_s: float = 120.0,
    verify_tls: bool = True,
) -> list[Answer]:
    """One answer an item, in order, at temperature 0. A failed request is an answer with `error`, never an exception."""
    return asyncio.run(
        _ask_all(
            items,
            url=f"{base_url}/chat/completions",
            model=model,
            concurrency=concurrency,
            headers=headers,
            timeout_s=timeout_s,
            verify_tls=verify_tls,
        )
    )


async def _ask_all(
    items: Sequence[Item],
    *,
    url: str,
    model: str,
    concurrency: int,
    headers: Mapping[str, str],
    timeout_s: float,
    verify_tls: bool,
) -> list[Answer]:
    gate = asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(
        headers=dict(headers), timeout=timeout_s, verify=verify_tls, trust_env=False, limits=httpx.Limits()
    ) as client:

        async def one(item: Item) -> Answer:
            async with gate:
                return await _ask_one(client, url, model, item)

        return list(await asyncio.gather(*(one(item) for item in items)))


async def _ask_one(client: httpx.AsyncClient, url: str, model: str, item: Item) -> Answer:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": item.prompt}],
        "temperature": 0,
        "max_tokens": item.max_tokens,
    }
    try:
        reply = await client.post(url, json=body)
        reply.raise_for_status()
        text = reply.json()["choices"][0]["message"]["content"]
    except httpx.HTTPError as problem:
        return Answer(
            item_id=item.item_id, text="", error=str(problem).splitlines()[0] if str(problem) else repr(problem)
        )
    except (ValueError, KeyError, IndexError, TypeError) as problem:
        return Answer(item_id=item.item_id, text="", error=f"not a chat completion: {problem!r}")
    return Answer(item_id=item.item_id, text=text or "")
