"""A proxy that treats connections as bad networks do: it cuts, delays, slows and splits what it carries.

gRPC is over TCP, so that nothing is reordered, repeated or lost within a connection; bytes come late, in other
portions, or the connection ends.
"""

import asyncio
import random
import threading


class Proxy:
    """Carries connections to a port; `chance` is that of a cut at each portion of at most `most` bytes."""

    def __init__(self, target, *, seed=0, chance=0.0, delay=0.0, most=65_536):
        self._target, self._rng = target, random.Random(seed)  # noqa: S311
        self._chance, self._delay, self._most = chance, delay, most
        self.n_cut = self.n_connections = 0
        self._loop, started = asyncio.new_event_loop(), threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self._thread.start()
        assert started.wait(5)

    def _run(self, started):
        asyncio.set_event_loop(self._loop)
        self._server = self._loop.run_until_complete(asyncio.start_server(self._connect, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        started.set()
        self._loop.run_forever()

    async def _connect(self, reader, writer):
        self.n_connections += 1
        try:
            there, back = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.close()
            return
        both = [asyncio.ensure_future(self._carry(*pair)) for pair in ((reader, back), (there, writer))]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        for task in both:
            task.cancel()
        await asyncio.gather(*both, return_exceptions=True)
        for end in (writer, back):
            end.transport.abort()  # as a cable that is cut: what was under way is lost

    async def _carry(self, reader, writer):
        try:
            while content := await reader.read(self._rng.randint(1, self._most)):
                if self._rng.random() < self._chance:
                    self.n_cut += 1
                    return
                if self._delay:
                    await asyncio.sleep(self._rng.uniform(0, self._delay))
                writer.write(content)
                await writer.drain()
        except OSError:
            return

    def close(self):
        def stop():
            self._server.close()
            for task in asyncio.all_tasks(self._loop):
                task.cancel()
            self._loop.call_soon(self._loop.stop)

        self._loop.call_soon_threadsafe(stop)
        self._thread.join(5)
        self._loop.close()
