"""Clients in threads of this process, connected by real sockets."""

import threading
import time

from verfedsv.network.hub import Hub
from verfedsv.network.link import Link
from verfedsv.network.messages import PROTOCOL, End, Hello


def hello_of(name, **others):
    """Return the first message of a client."""
    fields = {"protocol": PROTOCOL, "version": "0", "name": name, "session": f"of {name}", "time": time.time()}
    fields |= {"purpose": "train", "start": "", "alignment": "", "training": ""}
    return Hello(name, 0, 0, **fields | others)


class Wired:
    """A hub with these clients at the other ends of its connections; a transport."""

    def __init__(self, clients):
        self.events = []
        self.hub = Hub([client.name for client in clients], lambda _: None, on_event=self.events.append)
        self.port = self.hub.start("127.0.0.1:0", None)
        self.clients = {client.name: client for client in clients}
        self._threads = [threading.Thread(target=self._attend, args=(client,), daemon=True) for client in clients]
        for thread in self._threads:
            thread.start()
        assert not self.hub.wait_for_all(self.clients, 10, lambda: False)

    def _attend(self, client):
        Link(f"127.0.0.1:{self.port}", None, lambda: hello_of(client.name), client.answer).run()

    def exchange(self, requests, timeout=None):
        return self.hub.exchange(requests, timeout)

    def close(self):
        self.hub.stop(End("", 0, 0, "over", is_finished=True))
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()
