"""The id of the input in a client's metadata, by librdkafka's debug line."""

from __future__ import annotations

from statehold.kafka.common.topic_identity import TopicIdentity
from statehold.ports import InputTopic

LINE = "METADATA [rdkafka#consumer-5] [thrd:main]: Topic {} changed id from AAAAAAAAAAAAAAAAAAAAAA to {}"


def test_the_last_id_of_the_topic_is_kept() -> None:
    identity = TopicIdentity("orders")
    assert identity.topic == InputTopic("orders", "")
    for topic, found in (("orders", "Os1ZDnaITBuj8ibGyggPbQ"), ("orders", "nhgIIhlxQpGao/yhIp1xHA"), ("others", "x")):
        identity.logged(LINE.format(topic, found))
    assert identity.topic == InputTopic("orders", "nhgIIhlxQpGao/yhIp1xHA")


def test_other_lines_change_nothing() -> None:
    identity = TopicIdentity("orders")
    before = identity.topic
    identity.logged("PARTCNT [rdkafka#consumer-5] [thrd:main]: Topic orders partition count changed from 0 to 2")
    assert identity.topic is before
