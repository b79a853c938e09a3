"""Time auxiliary messages between a server and four clients of NVFlare, its proof-of-concept mode, all processes.

Run it by a Python that has nvflare. The server's job asks all clients at once and waits for all; each request and each
reply carries 2,000 float64, as bytes, which NVFlare does not have to convert. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

N_CLIENTS, N_WARM_UP, N_EXCHANGES = 4, 20, 200

JOB = """
import json
import time

from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply

CONTENT = bytes(8 * 2000)


class Ask(Controller):
    def __init__(self, path, warm_up, n_exchanges):
        super().__init__()
        self.path, self.warm_up, self.n_exchanges = path, warm_up, n_exchanges

    def start_controller(self, fl_ctx):
        pass

    def control_flow(self, abort_signal, fl_ctx):
        engine = fl_ctx.get_engine()
        clients = engine.get_clients()
        names, took = [client.name for client in clients], []
        end = time.time() + 120
        while time.time() < end:  # until the jobs of all clients listen
            if self.exchange(engine, names, fl_ctx):
                break
            time.sleep(1)
        for _ in range(self.warm_up + self.n_exchanges):
            begin = time.perf_counter()
            if not self.exchange(engine, names, fl_ctx):
                raise RuntimeError("a client did not answer")
            took.append(time.perf_counter() - begin)
        with open(self.path + ".part", "w") as file:
            json.dump({"clients": names, "seconds": took[self.warm_up:]}, file)
        import os
        os.rename(self.path + ".part", self.path)

    def exchange(self, engine, names, fl_ctx):
        request = Shareable()
        request["content"] = CONTENT
        replies = engine.send_aux_request(names, "embed", request, 10.0, fl_ctx)
        answered = [
            reply for reply in replies.values()
            if reply.get_return_code() == ReturnCode.OK and len(reply.get("content", b"")) == len(CONTENT)
        ]
        return len(answered) == len(names)

    def stop_controller(self, fl_ctx):
        pass


class Answer(Executor):
    def handle_event(self, event_type, fl_ctx):
        if event_type == EventType.START_RUN:
            fl_ctx.get_engine().register_aux_message_handler("embed", self.answer)

    def answer(self, topic, request, fl_ctx):
        reply = make_reply(ReturnCode.OK)
        reply["content"] = CONTENT
        return reply

    def execute(self, task_name, shareable, fl_ctx, abort_signal):
        return make_reply(ReturnCode.OK)
"""


def write_job(folder: Path, result: Path) -> None:
    """Write a job whose server asks and whose clients answer."""
    (folder / "app" / "config").mkdir(parents=True)
    (folder / "app" / "custom").mkdir()
    (folder / "app" / "custom" / "traffic.py").write_text(JOB)
    about = {"name": "traffic", "resource_spec": {}, "deploy_map": {"app": ["@ALL"]}, "min_clients": N_CLIENTS}
    (folder / "meta.json").write_text(json.dumps(about))
    asks = {"path": str(result), "warm_up": N_WARM_UP, "n_exchanges": N_EXCHANGES}
    server = {"format_version": 2, "workflows": [{"id": "ask", "path": "traffic.Ask", "args": asks}], "components": []}
    answer = {"tasks": ["none"], "executor": {"path": "traffic.Answer", "args": {}}}
    client = {"format_version": 2, "executors": [answer], "components": []}
    (folder / "app" / "config" / "config_fed_server.json").write_text(json.dumps(server))
    (folder / "app" / "config" / "config_fed_client.json").write_text(json.dumps(client))


def main() -> None:
    """Start everything, wait for the result, print it, stop everything."""
    program = str(Path(sys.executable).with_name("nvflare"))
    with tempfile.TemporaryDirectory() as name:
        folder, result = Path(name), Path(name) / "result.json"
        (folder / "home").mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "HOME": str(folder / "home"), "NVFLARE_POC_WORKSPACE": str(folder / "poc")}
        environment |= {"PATH": path, "OPENBLAS_NUM_THREADS": "1"}
        write_job(folder / "job", result)

        def call(*arguments: str) -> None:
            done = subprocess.run(  # noqa: S603
                [program, *arguments], env=environment, capture_output=True, text=True, check=False, cwd=folder
            )
            print(
                f"nvflare {' '.join(arguments)}: {done.returncode}",
                done.stdout[-800:],
                done.stderr[-800:],
                file=sys.stderr,
            )

        call("poc", "prepare", "-n", str(N_CLIENTS))
        try:
            call("poc", "start", "--timeout", "120")
            call("job", "submit", "-j", str(folder / "job"))
            end = time.monotonic() + 240
            while not result.exists() and time.monotonic() < end:
                time.sleep(0.5)
            if not result.exists():
                for log in folder.rglob("log.txt"):
                    print(log, log.read_text()[-3000:], file=sys.stderr)
                raise SystemExit("no result")
            found = json.loads(result.read_text())
        finally:
            call("poc", "stop")
    took = sorted(found["seconds"])
    print(json.dumps({"exchange": took[len(took) // 2], "p95": took[int(0.95 * len(took))], "load": os.getloadavg()}))


if __name__ == "__main__":
    main()
