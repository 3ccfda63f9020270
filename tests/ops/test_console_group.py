"""The console as the page of a group: failures of other instances, Kafka away, 128 partitions, and axe's rules."""

from __future__ import annotations

import os
from contextlib import ExitStack
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tests.support.brokers import started
from tests.support.browser import Browser, missing
from tests.support.desk import POISON, Fragile, Names, Order, a_desk, await_true, create_topics, feed

from statehold import Service
from statehold.dev import Cluster
from statehold.ops.http.server import OpsServer

pytestmark = [pytest.mark.kafka, pytest.mark.skipif(bool(missing()), reason=missing() or "there is one")]

PAGES = ("", "partition/0", "dead-letters", "timers", "calls", "lookup", "doctor", "configuration")


def picture(page: Browser, name: str) -> None:
    """Takes a picture for docs/images, if one is wanted."""
    if "STATEHOLD_IMAGES" in os.environ:
        page.screenshot(Path(os.environ["STATEHOLD_IMAGES"]) / f"{name}.png")


def running(stack: ExitStack, names: Names, instance: str) -> Service:
    service = a_desk(names, instance, handler=Fragile)
    stack.enter_context(OpsServer(service))
    stack.callback(service.stop)
    service.start()
    return service


def phases(service: Service) -> dict[int, str]:
    return {each["partition"]: each["phase"] for each in service.status()["partitions"]}


def findings(page: Browser) -> list[str]:
    """What axe complains about on the page."""
    axe = files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    script = f"{axe}; return window.axe.run().then((found) => found.violations)"
    violations: list[dict[str, Any]] = page.run(script)
    return [f"{each['id']}: {node['html']} {node['failureSummary']}" for each in violations for node in each["nodes"]]


def open_page(page: Browser, url: str, where: str) -> None:
    page.run("location.hash = arguments[0]", f"#/{where}")
    await_true(lambda: page.text("#page h2" if where else "#overview h2"), f"the page {where} is shown")


def test_a_partition_that_failed_on_another_instance_comes_first(kafka: Cluster, page: Browser) -> None:
    names = Names.new(kafka.bootstrap_servers)
    create_topics(a_desk(names), 4)
    with ExitStack() as stack:
        services = [running(stack, names, "web1"), running(stack, names, "web2")]
        await_true(lambda: all(len(phases(each)) == 2 for each in services), "each has two partitions")
        await_true(lambda: all(set(phases(each).values()) == {"live"} for each in services), "they are live")
        feed(names, [Order("ann", 1), Order("ann", POISON), Order("ann", 2)])
        failed = await_true(lambda: [each for each in services if "failed" in phases(each).values()], "one failed")[0]
        number = next(number for number, phase in phases(failed).items() if phase == "failed")
        other = next(each for each in services if each is not failed)
        page.open(f"{other.url}/")
        await_true(lambda: page.text("#verdict") == "1 failed", "the verdict is the group's")
        assert page.run("return document.querySelector('#verdict').dataset.state") == "bad"
        assert page.run("return document.querySelector('#tiles > li').dataset.partition") == str(number)
        tile = page.text("#tiles > li")
        assert "failed" in tile
        assert f"at {failed.url}" in tile
        assert "this order cannot be booked" in tile
        assert f"Partition {number} at {failed.url}" in page.text("#trouble")
        assert f"statehold retry {number} --name {names.service}" in page.text("#trouble")
        await_true(lambda: "3 of 4" in page.text("#totals"), "the others are live")
        page.run("location.hash = arguments[0]", f"#/partition/{number}")
        await_true(lambda: "Meaning" in page.text("#page .failure"), "the runbook says what it means")
        assert "HandlerFailed" in page.text("#page .failure h3")
        assert page.text("#page .failure code").startswith("statehold ")
        page.run("navigator.clipboard.writeText = async (text) => { window.copied = text }")
        page.click("#page .failure button")
        assert page.run("return window.copied") == page.text("#page .failure code")
        assert failed.url in page.run("return document.querySelector('#page p a[href*=partition]').href")
        assert findings(page) == []
        picture(page, "console-failed")


def test_no_page_breaks_a_rule_of_axe(kafka: Cluster, page: Browser) -> None:
    names = Names.new(kafka.bootstrap_servers)
    create_topics(a_desk(names), 2)
    with ExitStack() as stack:
        service = running(stack, names, "web1")
        await_true(lambda: set(phases(service).values()) == {"live"}, "it is live")
        feed(names, [Order("ann", 1)])
        page.open(f"{service.url}/")
        await_true(lambda: page.text("#verdict") == "ready", "it is ready")
        for scheme in ("light", "dark"):
            page.scheme(scheme)
            for where in PAGES:
                open_page(page, service.url, where)
                if where == "doctor":
                    await_true(lambda: "PASS" in page.text("#page table"), "the doctor has looked")
                assert findings(page) == [], f"{scheme} {where}"
        page.resize(390, 844)
        for where in PAGES:
            open_page(page, service.url, where)
            assert page.run("return document.documentElement.scrollWidth") <= 390, where
        assert [each for each in page.complaints() if "404" not in each] == []


def test_kafka_away_is_red(page: Browser) -> None:
    with started(Cluster) as cluster, ExitStack() as stack:
        names = Names.new(cluster.bootstrap_servers)
        create_topics(a_desk(names), 2)
        service = running(stack, names, "web1")
        await_true(lambda: set(phases(service).values()) == {"live"}, "it is live")
        page.open(f"{service.url}/")
        await_true(lambda: page.text("#verdict") == "ready", "it is ready")
        cluster.stop()
        await_true(lambda: page.text("#verdict") == "Kafka away", "the verdict says what is away")
        assert page.run("return document.querySelector('#verdict').dataset.state") == "bad"
        assert "Kafka has not answered for" in page.text("#trouble")


@pytest.mark.long
def test_128_partitions_fit_on_one_screen(kafka: Cluster, page: Browser) -> None:
    names = Names.new(kafka.bootstrap_servers)
    create_topics(a_desk(names), 128)
    with ExitStack() as stack:
        service = running(stack, names, "web1")
        page.open(f"{service.url}/")
        await_true(lambda: "128 live" in page.text("#legend"), "all are live")
        lowest = """
          const tiles = [...document.querySelectorAll('#tiles > li')];
          return Math.max(...tiles.map((each) => each.getBoundingClientRect().bottom))
        """
        assert page.run("return document.querySelectorAll('#tiles > li').length") == 128
        assert page.run(lowest) < 900
        assert findings(page) == []
        picture(page, "console-dense")


def test_a_page_whose_request_gets_no_answer_says_so_and_asks_again(kafka: Cluster, page: Browser) -> None:
    names = Names.new(kafka.bootstrap_servers)
    create_topics(a_desk(names), 2)
    with ExitStack() as stack:
        service = running(stack, names, "web1")
        await_true(lambda: set(phases(service).values()) == {"live"}, "it is live")
        page.open(f"{service.url}/")
        await_true(lambda: page.text("#verdict") == "ready", "it is ready")
        page.run(
            "window.real = window.fetch;"
            "window.fetch = (path, ...more) => path.startsWith('console/data') ? window.real(path, ...more)"
            "  : Promise.reject(new Error('the cable is cut'))"
        )
        for where in ("timers", "calls", "configuration", "lookup", "doctor", "dead-letters"):
            open_page(page, service.url, where)
            alert = await_true(lambda: page.text("#page [role=alert]"), f"{where} says that it got no answer")
            assert "the cable is cut" in alert, where
            assert "Asking" not in page.text("#page"), where
            assert findings(page) == [], where
        page.run("window.fetch = window.real")
        open_page(page, service.url, "timers")
        page.run("window.fetch = () => Promise.reject(new Error('once'))")
        open_page(page, service.url, "configuration")
        await_true(lambda: "once" in page.text("#page [role=alert]"), "it says so")
        page.run("window.fetch = window.real")
        page.click("#page [role=alert] button")
        await_true(lambda: "kafka.bootstrap_servers" in page.text("#page table"), "it has asked again")
        assert page.run("return document.querySelectorAll('#page [role=alert]').length") == 0
