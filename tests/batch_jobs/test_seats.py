from __future__ import annotations

import asyncio

from service.batch_jobs.seats import Seat, Seats


def test_no_more_are_taken_than_there_are_and_they_go_round() -> None:
    async def main() -> None:
        seats, order = Seats(lambda num_taken: 2), list[str]()

        async def work(name: str) -> None:
            for _ in range(5):
                seat = await seats.take()
                order.append(name)
                assert seats.num_taken <= 2
                await asyncio.sleep(0.001)
                seat.give_back()
                seat.give_back()

        await asyncio.gather(work("a"), work("b"), work("c"))
        assert seats.num_taken == 0
        assert all(set(order[i : i + 3]) == set("abc") for i in range(0, 9, 3))

    asyncio.run(main())


def test_a_share_that_grows_by_itself_is_noticed() -> None:
    most = [0]

    async def main() -> None:
        seats = Seats(lambda num_taken: most[0])
        taking = asyncio.create_task(seats.take())
        await asyncio.sleep(0.03)
        assert not taking.done()
        most[0] = 1
        (await asyncio.wait_for(taking, 5)).give_back()

    asyncio.run(main())


def test_who_leaves_takes_no_seat() -> None:
    async def main() -> None:
        seats = Seats(lambda num_taken: 1)
        first = await seats.take()
        leaving, staying = asyncio.create_task(seats.take()), asyncio.create_task(seats.take())
        await asyncio.sleep(0)
        leaving.cancel()
        first.give_back()
        assert isinstance(await staying, Seat)
        granted = asyncio.create_task(seats.take())
        await asyncio.sleep(0)
        (await staying).give_back()
        granted.cancel()  # in the moment in which it has got one
        await asyncio.wait((granted,))
        assert seats.num_taken == 0

    asyncio.run(main())
