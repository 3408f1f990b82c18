"""Messages from another thread to an event loop: all arrive, in order, and one wake-up serves several."""

import asyncio
import threading

import pytest
from clocks import PATIENCE

from localspec.serving.room import Mailbox


async def never() -> None:
    await asyncio.Event().wait()


def told(story):
    """Run the story with a mailbox, and the future that is done when its client leaves."""

    async def main() -> None:
        left = asyncio.ensure_future(never())
        async with asyncio.timeout(PATIENCE):
            await story(Mailbox(left), left)
        left.cancel()

    asyncio.run(main())


def test_all_arrives_in_its_order():
    async def story(box, left):
        def work():
            for number in range(20_000):
                box.deliver(number)

        thread = threading.Thread(target=work)
        thread.start()
        found = []
        while len(found) < 20_000:
            found += [await box.next(), *box.rest()]
        thread.join()
        assert found == [*range(20_000)]

    told(story)


def test_who_is_behind_is_woken_once_and_takes_all(monkeypatch):
    async def story(box, left):
        woken, real = [], asyncio.get_running_loop().call_soon_threadsafe
        monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", lambda *a: woken.append(a) or real(*a))
        waiting = asyncio.ensure_future(box.next())
        await asyncio.sleep(0)
        for number in range(100):  # as from another thread, while the loop has no time
            box.deliver(number)
        assert await waiting == 0 and box.rest() == [*range(1, 100)] and len(woken) == 1
        box.deliver(100)
        assert len(woken) == 1 and await box.next() == 100 and box.rest() == []

    told(story)


@pytest.mark.parametrize("before", [True, False])
def test_when_the_client_is_gone_there_is_no_next_one(before):
    async def story(box, left):
        waiting = asyncio.ensure_future(box.next())
        if not before:
            await asyncio.sleep(0)
        left.cancel()
        assert await waiting is None
        box.deliver("late")
        assert await box.next() == "late" and await box.next() is None

    told(story)


def test_after_the_loop_nobody_minds():
    kept = []
    told(lambda box, left: asyncio.sleep(0, kept.append(box)))
    kept[0]._waits = True
    kept[0].deliver("x")
