"""`statehold prove`: a document that fits, and one that was changed."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest
from tests.tools.recorded import Ledger

pytestmark = pytest.mark.kafka


@pytest.fixture
def key(ledger: Ledger, tmp_path: Path) -> str:
    file = tmp_path / "proof.key"
    assert ledger.run("prove", "--make-key", str(file)).returncode == 0
    assert file.stat().st_mode & 0o777 == 0o600
    return str(file)


def test_positions_keys_and_digests_are_those_of_the_commit_records(ledger: Ledger, key: str, tmp_path: Path) -> None:
    reported: dict[str, Any] = ledger.json("prove", ledger.target, "--key", key)

    assert [each["position"] for each in reported["partitions"]] == ledger.fed
    for each in reported["partitions"]:
        commit_record = ledger.commit_records(each["partition"])[-1]
        assert (each["n"], each["keys"]) == (commit_record["n"], commit_record["keys"])
        assert bytes.fromhex(each["digest"])[::-1] == commit_record["digest"]
    total = sum(int(each["digest"], 16) for each in reported["partitions"]) % 2**128
    assert reported["digest"] == f"{total:032x}"
    unsigned = {name: value for name, value in reported.items() if name != "signature"}
    text = json.dumps(unsigned, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    secret = Path(key).read_bytes().strip()
    assert reported["signature"]["value"] == hmac.new(secret, text, hashlib.sha256).hexdigest()

    file = tmp_path / "evening.json"
    file.write_text(json.dumps(reported, indent=1))
    good = ledger.run("prove", "--check", str(file), "--key", key, "--recompute")
    assert (good.returncode, good.stderr) == (0, "")
    assert "good: " in good.stdout
    assert "the states were rebuilt and are the same" in good.stdout


def test_a_document_of_other_positions_is_that_of_the_commit_records_before_them(ledger: Ledger, key: str) -> None:
    reported = ledger.json("prove", ledger.target, "--key", key, "--at", "0=650,1=n:11")

    position = reported["partitions"][0]["position"]
    commit_records = [commit_record["positions"][ledger.names.input] for commit_record in ledger.commit_records(0)]
    assert position == max(at for at in commit_records if at <= 650)
    assert reported["partitions"][1]["n"] == 11
    later = ledger.json("prove", ledger.target, "--key", key, "--at", "2100-01-01T00:00:00Z")
    assert [each["position"] for each in later["partitions"]] == ledger.fed


def test_a_changed_or_foreign_document_is_rejected(ledger: Ledger, key: str, tmp_path: Path) -> None:
    reported = ledger.json("prove", ledger.target, "--key", key)
    file = tmp_path / "evening.json"
    reported["partitions"][0]["keys"] += 1
    file.write_text(json.dumps(reported))
    changed = ledger.run("prove", "--check", str(file), "--key", key)
    assert changed.returncode == 1
    assert "the signature does not match: the document was changed" in changed.stderr

    other = tmp_path / "other.key"
    ledger.run("prove", "--make-key", str(other))
    reported["partitions"][0]["keys"] -= 1
    file.write_text(json.dumps(reported))
    assert ledger.run("prove", "--check", str(file), "--key", key).returncode == 0
    assert "it was signed with key " in ledger.run("prove", "--check", str(file), "--key", str(other)).stderr

    Path(key).chmod(0o644)
    assert "chmod 600" in ledger.run("prove", ledger.target, "--key", key).stderr
    assert "--make-key" in ledger.run("prove", ledger.target).stderr


def test_a_document_that_its_signer_got_wrong_is_found_by_computing_again(
    ledger: Ledger, key: str, tmp_path: Path
) -> None:
    from statehold.snapshot.inspect import proof

    reported = ledger.json("prove", ledger.target, "--key", key)
    del reported["signature"]
    reported["partitions"][1]["position"] += 1
    file = tmp_path / "evening.json"
    file.write_text(json.dumps(proof.signed(reported, Path(key).read_bytes().strip())))

    done = ledger.run("prove", "--check", str(file), "--key", key, "--recompute")

    assert done.returncode == 1
    assert f"partition 1: position is {ledger.fed[1]}, the document says {ledger.fed[1] + 1}" in done.stderr
