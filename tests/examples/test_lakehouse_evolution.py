"""The columns that a table of the lake lacks, and the types that it cannot take."""

from __future__ import annotations

import pytest
from examples.lakehouse.evolution import TypeChanged, added
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StringType, StructType

LONG, TEXT = LongType(), StringType()


def struct(**fields: DataType) -> StructType:
    found = StructType()
    for name, kind in fields.items():
        found.add(name, kind)
    return found


def test_new_fields_are_found_at_any_depth() -> None:
    old, new = struct(count=LONG), struct(count=LONG, last=TEXT)
    assert list(added(struct(key=TEXT, after=old), struct(key=TEXT, after=new, day=LONG))) == [
        ("`after`.`last`", "string"),
        ("`day`", "bigint"),
    ]
    within = struct(lines=ArrayType(old), by_name=MapType(TEXT, old))
    assert list(added(within, struct(lines=ArrayType(new), by_name=MapType(TEXT, new)))) == [
        ("`lines`.element.`last`", "string"),
        ("`by_name`.value.`last`", "string"),
    ]


def test_a_field_that_is_gone_stays_in_the_lake() -> None:
    assert list(added(struct(count=LONG, Sum=LONG), struct(sum=LONG))) == []


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (struct(sum=LONG), struct(sum=TEXT), "column `sum` is bigint in the lake, and .* has string now. Nothing"),
        (struct(a=struct(b=LONG)), struct(a=struct(b=TEXT)), "column `a`.`b` is bigint"),
        (struct(a=struct(b=LONG)), struct(a=LONG), "column `a` is struct<b:bigint> .* has bigint"),
        (struct(a=MapType(TEXT, LONG)), struct(a=MapType(LONG, LONG)), "is map<string,bigint> .* has map<bigint,bigi"),
        (struct(a=ArrayType(LONG)), struct(a=ArrayType(TEXT)), "column `a`.element is bigint"),
    ],
)
def test_another_type_is_an_error_that_names_both(old: StructType, new: StructType, text: str) -> None:
    with pytest.raises(TypeChanged, match=text):
        list(added(old, new))
