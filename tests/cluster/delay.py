"""A TCP proxy that delays what it passes on, as a long way does.

python -m tests.cluster.delay PORT HOST:PORT SECONDS
"""

import asyncio
import contextlib
import sys


async def pass_on(reader, writer, seconds):
    """Write what is read, in order, each piece after the delay."""
    loop, pieces = asyncio.get_running_loop(), asyncio.Queue()

    async def write():
        while (piece := await pieces.get()) is not None:
            due, content = piece
            await asyncio.sleep(due - loop.time())
            writer.write(content)
            await writer.drain()

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        with contextlib.suppress(OSError):
            while content := await reader.read(2**16):
                pieces.put_nowait((loop.time() + seconds, content))
        pieces.put_nowait(None)
    writer.close()


async def serve(port, target, seconds):
    host, target_port = target.split(":")

    async def connect(reader, writer):
        try:
            with contextlib.suppress(OSError, ExceptionGroup):
                there = await asyncio.open_connection(host, int(target_port))
                async with asyncio.TaskGroup() as group:
                    group.create_task(pass_on(reader, there[1], seconds))
                    group.create_task(pass_on(there[0], writer, seconds))
        finally:
            writer.close()

    server = await asyncio.start_server(connect, port=port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2], float(sys.argv[3])))
