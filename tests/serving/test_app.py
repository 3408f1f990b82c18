"""What a reply leaves behind."""

import asyncio
from typing import Any

from localspec.serving.app import _first


def test_a_reply_that_is_cancelled_waits_for_nothing_more():
    async def run() -> None:
        answers: asyncio.Queue[Any] = asyncio.Queue()
        reply = asyncio.ensure_future(_first(answers, asyncio.get_running_loop().create_future()))
        await asyncio.sleep(0)
        reply.cancel()
        await asyncio.wait({reply})
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
