"""Results of another thread reach the coroutines of an event loop, all that have come with one wake-up."""

from __future__ import annotations

import asyncio
import gc
import math
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from statehold.client.arrivals import arrivals_here, within


def on_a_thread(call: Callable[[], object]) -> None:
    thread = threading.Thread(target=call)
    thread.start()
    thread.join()


def test_one_wake_up_hands_over_all_that_have_come(monkeypatch: pytest.MonkeyPatch) -> None:
    results = [Future[int]() for _ in range(50)]

    def bring() -> None:
        for number, result in enumerate(results):
            result.set_result(number)

    async def main() -> tuple[list[int], int]:
        loop, woken = asyncio.get_running_loop(), []
        threadsafe = loop.call_soon_threadsafe

        def wake(*arguments: Any, **options: Any) -> asyncio.Handle:
            woken.append(arguments)
            return threadsafe(*arguments, **options)

        monkeypatch.setattr(loop, "call_soon_threadsafe", wake)
        waiting = [arrivals_here().awaitable(result) for result in results]
        on_a_thread(bring)
        return await asyncio.gather(*waiting), len(woken)

    assert asyncio.run(main()) == (list(range(50)), 1)


def test_errors_arrive_and_what_waits_no_more_is_passed_over() -> None:
    failed, late, good = Future[int](), Future[int](), Future[int]()

    def bring() -> None:
        late.set_result(1)
        failed.set_exception(ValueError("no"))
        good.set_result(2)

    async def main() -> int:
        cancelled, broken, waiting = (
            arrivals_here().awaitable(late),
            arrivals_here().awaitable(failed),
            arrivals_here().awaitable(good),
        )
        cancelled.cancel()
        on_a_thread(bring)
        with pytest.raises(ValueError, match="no"):
            await broken
        return await waiting

    assert asyncio.run(main()) == 2
    assert late.result() == 1, "a caller that waits no more does not cancel the request of the others"


def test_results_come_again_after_a_wake_up_and_one_that_is_there_arrives() -> None:
    async def main() -> list[int]:
        found = []
        for number in range(3):
            result = Future[int]()
            if number == 1:
                result.set_result(number)
            waiting = arrivals_here().awaitable(result)
            if number != 1:
                on_a_thread(lambda result=result, number=number: result.set_result(number))  # type: ignore[misc]
            found.append(await asyncio.wait_for(waiting, 30))
        return found

    assert asyncio.run(main()) == [0, 1, 2]


def test_a_loop_that_has_ended_is_no_error_and_is_not_kept() -> None:
    results, loops = [Future[int]()], list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        arrivals_here().awaitable(results[0])

    asyncio.run(main())
    on_a_thread(lambda: results[0].set_result(1))
    results.clear()
    gc.collect()
    assert loops[0]() is None


def test_a_loop_that_ends_before_it_has_taken_all_is_forgotten_with_the_next_loop() -> None:
    results, loops = [Future[int](), Future[int]()], list[weakref.ref[asyncio.AbstractEventLoop]]()

    async def main(*brought: Future[int]) -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        for result in brought:
            arrivals_here().awaitable(result)
            result.set_result(1)  # its wake-up comes after the end

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main(*results))
    loop.close()
    del loop
    results.clear()
    asyncio.run(main(Future[int]()))
    gc.collect()
    assert loops[0]() is None


def test_a_wait_ends_with_its_time_and_leaves_what_comes_later_to_others() -> None:
    never, late = Future[int](), Future[int]()

    async def main() -> list[object]:
        waits = [within(never, 0.0), within(never, 0.01), within(late, 0.01), within(late, 60), within(late, math.inf)]
        tasks = [asyncio.create_task(each) for each in waits]
        await asyncio.wait(tasks[:3])
        on_a_thread(lambda: late.set_result(1))
        return await asyncio.gather(*tasks, return_exceptions=True)

    found = asyncio.run(main())
    assert list(map(type, found)) == [TimeoutError, TimeoutError, TimeoutError, int, int]
    assert not never.done()


def test_a_wait_ends_not_before_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        loop, ends = asyncio.get_running_loop(), list[float]()
        monkeypatch.setattr(loop, "call_at", lambda when, *_: ends.append(when))
        for seconds in (0.0, 0.001, 0.3, 1.0, 9.99, 10.0, 300.0, 1e6):
            now, wait = loop.time(), asyncio.create_task(within(Future[int](), seconds))
            await asyncio.sleep(0)
            assert now + seconds <= ends[-1] <= loop.time() + max(seconds, 0.25) * (1 + 1 / 64)
            wait.cancel()
        await asyncio.sleep(0)

    asyncio.run(main())


def test_waits_of_one_length_share_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[list[int], int]:
        loop, timers = asyncio.get_running_loop(), list[float]()
        call_at = loop.call_at

        def count(when: float, *arguments: Any, **options: Any) -> asyncio.TimerHandle:
            timers.append(when)
            return call_at(when, *arguments, **options)

        monkeypatch.setattr(loop, "call_at", count)
        results = [Future[int]() for _ in range(500)]
        waits = [asyncio.create_task(within(each, 3600)) for each in results]

        def bring() -> None:
            for result in results:
                result.set_result(1)

        on_a_thread(bring)
        return await asyncio.gather(*waits), len(timers)

    found, timers = asyncio.run(main())
    assert found == [1] * 500
    assert timers < 50
