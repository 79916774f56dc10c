#!/usr/bin/env python3
"""Stands in front of a server that is far away: what is sent to it arrives later, its answers at once.

usage: late.py PORT SERVER_PORT MILLISECONDS
"""

import asyncio
import sys

PORT, SERVER = (int(word) for word in sys.argv[1:3])
LATE = float(sys.argv[3]) / 1000


async def copy(reader, writer, late):
    """Pieces arrive in their order, each so late; the last is the end."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue()

    async def arrive():
        while True:
            due, piece = await pieces.get()
            if (rest := due - loop.time()) > 0:
                await asyncio.sleep(rest)
            if not piece:
                break
            writer.write(piece)
            await writer.drain()
        writer.close()

    arriving = asyncio.create_task(arrive())
    try:
        while piece := await reader.read(1 << 18):
            pieces.put_nowait((loop.time() + late, piece))
    except ConnectionError:
        pass
    pieces.put_nowait((loop.time() + late, b""))
    try:
        await arriving
    except ConnectionError:
        pass


async def connected(reader, writer):
    try:
        answers, requests = await asyncio.open_connection("127.0.0.1", SERVER)
    except OSError:
        writer.close()
        return
    await asyncio.gather(copy(reader, requests, LATE), copy(answers, writer, 0.0))


async def main():
    server = await asyncio.start_server(connected, "127.0.0.1", PORT, backlog=256)
    await server.serve_forever()


asyncio.run(main())
