"""The console's data: what its charts keep, and what another instance may send."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from statehold.config.settings import Settings
from statehold.ops.http.answers import as_json
from statehold.ops.http.console import facts
from statehold.ops.http.console.history import SPANS, History
from statehold.ops.http.console.instances import OtherInstance, instance_of
from statehold.ops.remote.remote_status import Reached, reach
from statehold.ports import GroupMember

URL = "http://web2:8470"
PARTITION = {"partition": 3, "phase": "live", "since": 1.0, "position": 9, "lag": 2}


def status(lag: int | None, records: int | None) -> dict[str, Any]:
    live = None if records is None else {"records": records}
    return {"partitions": [{"partition": 3, "lag": lag, "mailbox": 0, "live": live}]}


def test_a_long_span_keeps_the_peak_and_the_newest_count() -> None:
    history = History()
    for sample in range(12):
        history.note(status(lag=50_000 if sample == 5 else 1, records=sample))
    assert [point["partitions"] for point in history.after(0, 3_600)] == [{3: [50_000, 11, 0]}]
    assert len(history.after(0, 300)) == 12
    assert [point["number"] for point in history.after(10, 300)] == [11, 12]


def test_what_is_unknown_stays_unknown() -> None:
    history = History()
    history.note(status(lag=None, records=None))
    assert history.after(0)[0]["partitions"] == {3: [None, None, 0]}
    for lag in (None, 7, None, *[None] * 9):
        history.note(status(lag, None))
    assert history.after(0, 3_600)[0]["partitions"] == {3: [7, None, 0]}


def test_a_day_of_500_partitions_stays_small() -> None:
    history = History()
    rows = {"partitions": [{"partition": each, "lag": 1, "mailbox": 0, "live": None} for each in range(500)]}
    for _ in range(600):
        history.note(rows)
    assert {span: len(history.after(0, span)) for span in SPANS} == {300: 150, 3_600: 50, 21_600: 8, 86_400: 2}


def of_four(partitions: Any) -> OtherInstance:
    """What the console keeps of an answer with these partitions, if the input has four."""
    return instance_of(URL, Reached("client", "web2", {"partitions": partitions, "unknown": 1}), 4)


def test_another_release_may_send_more() -> None:
    other = of_four([{**PARTITION, "news": [1, 2]}])
    assert [(each.partition, each.phase, each.lag) for each in other.partitions] == [(3, "live", 2)]
    assert other.trouble == ""


@pytest.mark.parametrize(
    "partitions",
    [
        None,
        "live",
        [1],
        [{}],
        [{**PARTITION, "partition": "3"}],
        [{**PARTITION, "partition": -1}],
        [{**PARTITION, "phase": "x" * 100_000}],
        [{**PARTITION, "live": {"records": "many"}}],
    ],
)
def test_what_is_no_status_is_said_to_be_none(partitions: Any) -> None:
    other = of_four(partitions)
    assert other.partitions == []
    assert other.trouble.startswith(f"{URL}: its status cannot be read: ")


def test_a_long_cause_is_cut() -> None:
    other = of_four([{**PARTITION, "cause": "x" * 100_000}])
    assert len(other.partitions[0].cause or "") == 4_000


def test_a_partition_that_the_input_does_not_have_is_left_out() -> None:
    other = of_four([{**PARTITION, "partition": number} for number in (3, 3, 4, 10**15)])
    assert [each.partition for each in other.partitions] == [3]


def test_text_that_is_not_utf_8_is_no_status() -> None:
    class Liar(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'{"service": "desk", "url": "%s", "partitions": "\\ud800"}' % url.encode())

        def log_message(self, *_: Any) -> None: ...

    with HTTPServer(("127.0.0.1", 0), Liar) as server:
        url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.handle_request, daemon=True).start()
        (found,) = reach(Settings(), "desk", [GroupMember("1", f"desk@{url}", "web2", "", ())])
    assert found.status is None
    as_json(instance_of(url, found, 4))


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
@pytest.mark.parametrize(
    ("cause", "command"),
    [
        ("it failed", "statehold retry 3 --name desk"),
        ("Next: `statehold retry 3`", "statehold retry 3 --name desk"),
        ("x. Next: run `statehold txn abort 'a.b[3]'`, or `statehold retry 3`", "statehold txn abort 'a.b[3]'"),
        ("ValueError: Next: `statehold retry 3; rm -rf ~`", "statehold retry 3 --name desk"),
        ("ValueError: Next: `statehold retry $(id)`", "statehold retry 3 --name desk"),
        ("ValueError: Next: `statehold retry 3\nid`", "statehold retry 3 --name desk"),
        ("ValueError: Next: `statehold drain web1`. Next: `statehold repair rebase`", "statehold repair rebase"),
    ],
)
def test_the_command_to_copy_is_one_of_statehold(cause: str, command: str) -> None:
    page = Path(facts.__file__).parent / "static" / "partition.js"
    script = f"""
      import {{ nextCommand }} from {json.dumps(page.as_uri())};
      console.log(nextCommand({{ partition: 3, cause: {json.dumps(cause)} }}, "desk"));
    """
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert done.stdout == f"{command}\n"


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_a_report_can_be_asked_for_again_after_no_answer() -> None:
    page = Path(facts.__file__).parent / "static" / "pages.js"
    script = f"""
      class Node {{
        dataset = {{}};
        children = [];
        append(...children) {{ this.children.push(...children); }}
        replaceChildren(...children) {{ this.children = children; }}
        addEventListener() {{}}
      }}
      globalThis.document = {{ createElement: () => new Node() }};
      const {{ doctor }} = await import({json.dumps(page.as_uri())});
      const {{ node }} = doctor(async () => {{ throw new Error("the network is down"); }});
      await new Promise((wake) => setTimeout(wake, 10));
      const [heading, note, result] = node.children;
      console.log(heading.children[1].disabled, note.textContent, result.children[0].children[0].children[0]);
    """
    done = subprocess.run(["node", "--input-type=module", "-e", script], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("false ")
    assert "No answer: the network is down." in done.stdout


def test_a_silent_instance_says_why() -> None:
    assert instance_of(URL, Reached("client", "web2", trouble="refused"), 4).trouble == "refused"


def test_the_console_explains_an_error_without_markdown() -> None:
    parts = facts.explanation("RetentionGap")
    assert list(parts) == ["Meaning", "Safe", "Look at", "Do", "Call"]
    assert "$ statehold repair accept-gap MODULE:SERVICE --why TEXT --dry-run" in parts["Do"].splitlines()
    assert not any("](" in text for text in parts.values())


@pytest.mark.parametrize("name", ["KeyError", "lost", "StateholdDown", ""])
def test_the_console_explains_nothing_else(name: str) -> None:
    assert facts.explanation(name) == {}


@pytest.mark.parametrize(
    ("client", "url"),
    [
        ("desk@http://web2:8470", "http://web2:8470"),
        ("desk@https://web2.example.org/desk", "https://web2.example.org/desk"),
        ("desk", ""),
        ("desk@javascript:alert(1)", ""),
        ("desk@http://", ""),
        ("desk@http://[", ""),
        ("desk@file:///etc/passwd", ""),
    ],
)
def test_a_member_has_a_url_only_if_it_is_one_of_the_web(client: str, url: str) -> None:
    assert GroupMember("1", client, "web2", "", ()).url == url
