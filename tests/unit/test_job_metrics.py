"""The figures of a job for a textfile collector and a Pushgateway, the latter a small server of the test's own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from statehold.errors import UsageError
from statehold.ops.process.job_metrics import JobMetrics, MetricsNotDelivered, PartitionFigures, deliver, registry_of

ROWS = [PartitionFigures(0, 1000, 90_000, 30_000, 1.5, True), PartitionFigures(1, 0, 400, 0, 0.25, False)]


def samples(text: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("partition", "")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_file_holds_every_figure_and_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "statehold-compact-clearing.prom"
    deliver(registry_of("clearing", ROWS, 12.5, ok=False), "clearing", file, None)
    found = samples(file.read_text())
    assert found["statehold_compaction_success", ""] == 0
    assert found["statehold_compaction_duration_seconds", ""] == 12.5
    assert found["statehold_compaction_finished_timestamp_seconds", ""] > 1.7e9
    assert found["statehold_compaction_keys", "0"] == 1000
    assert found["statehold_compaction_full_bytes", "0"] == 30_000
    assert found["statehold_compaction_proven", "1"] == 0
    assert [each.name for each in tmp_path.iterdir()] == [file.name]


def test_a_name_that_the_collector_would_pass_over_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.prom"):
        JobMetrics("clearing", tmp_path / "metrics.txt", None)


def test_a_run_that_ends_by_an_error_is_no_success(tmp_path: Path) -> None:
    file = tmp_path / "compact.prom"
    JobMetrics("clearing", file, "127.0.0.1:9").failed()
    assert samples(file.read_text())["statehold_compaction_success", ""] == 0


class _Gateway(HTTPServer):
    taken: dict[str, str]


class _Take(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        assert isinstance(self.server, _Gateway)
        self.server.taken[self.path] = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.send_response(202)
        self.end_headers()

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def gateway() -> Iterator[_Gateway]:
    with _Gateway(("127.0.0.1", 0), _Take) as server:
        server.taken = {}
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_push_replaces_the_figures_of_the_service(gateway: _Gateway) -> None:
    address = f"127.0.0.1:{gateway.server_port}"
    deliver(registry_of("clearing", ROWS, 12.5, ok=True), "clearing", None, address)
    (path,) = gateway.taken
    assert path == "/metrics/job/statehold-compaction/service/clearing"
    assert samples(gateway.taken[path])["statehold_compaction_success", ""] == 1


def test_a_gateway_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(MetricsNotDelivered, match=r"127\.0\.0\.1:9"):
        deliver(registry_of("clearing", ROWS, 1.0, ok=True), "clearing", None, "127.0.0.1:9")
