"""A Prefect server and a served flow on this machine, by the commands of the guide."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from http import HTTPStatus

from tests.engine.processes import PATIENCE_S, free_port, kill_tree, wait_until
from tests.workflows.pages import GUIDE, blocks_of
from tests.workflows.script import ENVIRONMENT, ROOT

NEVER = "0 0 29 2 *"
FINAL_STATES = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}


class PrefectServer:
    """Asked through its REST interface, so that the tests' process imports nothing of Prefect."""

    def __init__(self, directory):
        self._directory, self._port = directory, str(free_port())
        self._environment = {
            **os.environ,
            **ENVIRONMENT,
            "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(directory / "home"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        }

    @contextmanager
    def serving(self, settings):
        """Start the server, and the flow in the directory of its settings; give its deployment."""
        (settings.parent / "workflows").symlink_to(ROOT / "workflows")
        start, serve = (
            block.text.replace("4200", self._port).replace("15 2 * * *", NEVER)
            for block in blocks_of(GUIDE / "task/schedule.md")
            if "Prefect server" in (block.reason or "")
        )
        with self._process("server", start, self._directory):
            wait_until(self._is_healthy)
            with self._process("flow", serve, settings.parent) as process:
                yield self._deployment(process)

    def _deployment(self, process):
        """Return the deployment of the flow once the server has it."""
        found = []

        def is_there():
            assert process.poll() is None, (self._directory / "flow.log").read_text()
            found.extend(self.ask("deployments/filter", {}))
            return found

        wait_until(is_there)
        return found[0]

    @contextmanager
    def _process(self, name, block, cwd):
        command, environment = ["bash", "-euc", block], self._environment
        with (self._directory / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=cwd, env=environment, stdout=log, stderr=log)
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
            f"http://127.0.0.1:{self._port}/api/{path}",
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

    def stages(self, run_id):
        """Return name, state and number of tries of the stages of a flow run, as they started."""
        tasks = self.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [run_id]}}})
        return [
            (task["name"].rsplit("-", 1)[0], task["state_type"], task["run_count"])
            for task in sorted(tasks, key=lambda task: task["start_time"] or "")
        ]

    def log(self, run_id):
        """Return what a flow run has logged."""
        body = {"logs": {"flow_run_id": {"any_": [run_id]}}, "sort": "TIMESTAMP_ASC"}
        return [line["message"] for line in self.ask("logs/filter", body)]
