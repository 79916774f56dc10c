"""Many letters arrive at once, and none is acknowledged before it is durable: syncs of the same moment share a flush.

    python letters.py IMAGE

Makes the image. Each letter is a task of asyncio's that writes a file and awaits its sync.
"""

import asyncio
import sys

import syncline

LETTERS = 200


async def deliver(volume: syncline.Volume, number: int) -> None:
    with volume.open(f"/inbox/{number}", "w") as letter:
        letter.write(f"letter {number}\n")
        await letter.sync_async()


async def main(image: str) -> None:
    with syncline.Volume.create(image, 64 << 20) as volume:
        (volume / "inbox").mkdir()
        before = volume.stats().device_flushes
        await asyncio.gather(*(deliver(volume, number) for number in range(LETTERS)))
        flushes = volume.stats().device_flushes - before
        print("letters:", len(list((volume / "inbox").iterdir())))
        print("fewer flushes than letters:", flushes < LETTERS)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: letters.py IMAGE")
    asyncio.run(main(sys.argv[1]))
