"""A Prefect server of its own on this machine, and flows that are served to it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus

from tests.engine.processes import PATIENCE_S, free_port, kill_tree, wait_until
from tests.workflows.script import ENVIRONMENT, ROOT

FLOW = ROOT / "workflows/jobs/flow.py"
FINAL_STATES = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class PrefectServer:
    """Asked through its REST interface, so that the tests' process imports nothing of Prefect."""

    def __init__(self, directory):
        self._directory, self._port = directory, str(free_port())
        self._url = f"http://127.0.0.1:{self._port}/api"
        self._environment = {
            **os.environ,
            **ENVIRONMENT,
            "PREFECT_HOME": str(directory / "home"),
            "PREFECT_API_URL": self._url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_LOGGING_EXTRA_LOGGERS": "dask_nrbfn",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        }

    @contextmanager
    def running(self):
        """Keep the server running."""
        command = ("-m", "prefect", "server", "start", "--port", self._port, "--no-ui")
        with self._process("server", sys.executable, *command):
            wait_until(self._is_healthy)
            yield self

    @contextmanager
    def serving(self, settings, *options):
        """Keep the flow served; give its deployment."""
        with self._process("flow", sys.executable, FLOW, settings, *options) as process:
            yield self._deployment(process, settings)

    @contextmanager
    def following(self, blocks, settings):
        """Run two blocks of the guide, the server and the flow of settings; give its deployment."""
        del self._environment["PREFECT_API_URL"]
        programs = os.path.dirname(sys.executable)
        self._environment["PATH"] = f"{programs}{os.pathsep}{self._environment['PATH']}"
        start, serve = (block.replace("4200", self._port) for block in blocks)
        with self._process("server", "bash", "-euc", start):
            wait_until(self._is_healthy)
            with self._process("flow", "bash", "-euc", serve, cwd=settings.parent) as process:
                yield self._deployment(process, settings)

    def _deployment(self, process, settings):
        """Return the deployment of a flow once the server has it."""
        found = []

        def is_there():
            assert process.poll() is None, (self._directory / "flow.log").read_text()
            deployments = self.ask("deployments/filter", {})
            served = {"settings": str(settings)}
            found.extend(each for each in deployments if each["parameters"] == served)
            return found

        wait_until(is_there)
        return found[0]

    @contextmanager
    def _process(self, name, *command, cwd="/"):
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [*map(str, command)],
                cwd=cwd,
                env=self._environment,
                stdout=log,
                stderr=log,
            )
        try:
            yield process
        finally:
            kill_tree(process.pid)
            process.wait(PATIENCE_S)

    def ask(self, path, body=None):
        """Return the server's answer to a request, a POST if it has a body."""
        answers = []
        wait_until(lambda: answers.extend(self._answers(path, body)) or answers)
        return answers[0]

    def _answers(self, path, body):
        """Return the answer, or none while the server's database is busy."""
        request = urllib.request.Request(
            f"{self._url}/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
                return [json.load(answer)]
        except urllib.error.HTTPError as error:
            with error:
                if error.code != HTTPStatus.SERVICE_UNAVAILABLE:
                    raise
            return []

    def _is_healthy(self):
        try:
            return self.ask("health")
        except urllib.error.URLError:
            return False

    def start_run(self, deployment, **parameters):
        """Start a flow run; return its id."""
        path = f"deployments/{deployment['id']}/create_flow_run"
        parameters = {**deployment["parameters"], **parameters}
        return self.ask(path, {"parameters": parameters})["id"]

    def finished(self, run_id):
        """Return the final state of a flow run."""
        states = []

        def is_final():
            states.append(self.ask(f"flow_runs/{run_id}")["state"])
            return states[-1]["type"] in FINAL_STATES

        wait_until(is_final, 3 * PATIENCE_S)
        return states[-1]

    def tasks(self, run_id):
        """Return the task runs of a flow run in the order of their starts."""
        body = {"flow_runs": {"id": {"any_": [run_id]}}}
        tasks = self.ask("task_runs/filter", body)
        return sorted(tasks, key=lambda task: task["start_time"] or "")

    def log(self, run_id):
        """Return what a flow run has logged."""
        body = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC"}
        return [line["message"] for line in self.ask("logs/filter", body)]
