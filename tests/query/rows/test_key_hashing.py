"""A key of any type falls into the same key group, and has the same bytes, for ever.

These values are stored: other values would lose the state of every older query.
"""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from pyspark_ckpt.operator.rows.input import KEY_GROUP, InputColumns
from pyspark_ckpt.operator.rows.keys import KeyPlaces

KEYS: dict[str, dict[str, tuple[int, str]]] = {
    "byte": {
        "-128": (101, "91d080"),
        "0": (15, "9100"),
        "null": (42, "91c0"),
    },
    "short": {
        "-32768": (54, "91d18000"),
        "null": (42, "91c0"),
    },
    "int": {
        "-2147483648": (70, "91d280000000"),
        "7": (11, "9107"),
    },
    "long": {
        "-9223372036854775808": (123, "91d38000000000000000"),
        "7": (11, "9107"),
        "null": (42, "91c0"),
    },
    "float": {
        "0.1": (4, "91cb3fb99999a0000000"),
        "0.0": (93, "91cb0000000000000000"),
        "-0.0D": (93, "91cb0000000000000000"),
        "'NaN'": (79, "91cb7ff8000000000000"),
        "-'NaN'": (79, "91cb7ff8000000000000"),
        "null": (42, "91c0"),
    },
    "double": {
        "0.1": (107, "91cb3fb999999999999a"),
        "0.0": (93, "91cb0000000000000000"),
        "-0.0D": (93, "91cb0000000000000000"),
        "'NaN'": (79, "91cb7ff8000000000000"),
        "'-Infinity'": (36, "91cbfff0000000000000"),
        "null": (42, "91c0"),
    },
    "decimal(38,18)": {
        "0": (39, "91a530452d3138"),
        "-12345678901234567890.5": (
            107,
            "91d9282d31323334353637383930313233343536373839302e353030303030303030303030303030303030",
        ),
        "null": (42, "91c0"),
    },
    "decimal(38,0)": {
        "12345678901234567890123456789012345678": (
            32,
            "91d9263132333435363738393031323334353637383930313233343536373839303132333435363738",
        ),
        "-99999999999999999999999999999999999999": (
            6,
            "91d9272d3939393939393939393939393939393939393939393939393939393939393939393939393939",
        ),
        "null": (42, "91c0"),
    },
    "decimal(38,10)": {
        "1234567890123456789012345678.1234567891": (
            36,
            "91d927313233343536373839303132333435363738393031323334353637382e31323334353637383931",
        ),
        "null": (42, "91c0"),
    },
    "decimal(10,2)": {
        "0": (93, "91a4302e3030"),
        "1.5": (14, "91a4312e3530"),
        "null": (42, "91c0"),
    },
    "string": {
        "''": (92, "91a0"),
        "'äß😀'": (47, "91a8c3a4c39ff09f9880"),
        "'a\\u0000b'": (124, "91a3610062"),
        "null": (42, "91c0"),
    },
    "binary": {
        "X''": (92, "91c400"),
        "X'00FF'": (65, "91c40200ff"),
        "null": (42, "91c0"),
    },
    "boolean": {
        "true": (99, "91c3"),
        "false": (15, "91c2"),
        "null": (42, "91c0"),
    },
    "date": {
        "'1970-01-01'": (15, "9100"),
        "'1600-02-29'": (5, "91d2fffdf057"),
        "null": (42, "91c0"),
    },
    "timestamp": {
        "'1970-01-01 00:00:00Z'": (93, "9100"),
        "'1600-01-01 00:00:00.000001Z'": (32, "91d3ffd684a70d8e8001"),
        "null": (42, "91c0"),
    },
    "timestamp_ntz": {
        "'1970-01-01 00:00:00'": (93, "91b3313937302d30312d30312030303a30303a3030"),
        "'1600-01-01 00:00:00.000001'": (
            32,
            "91ba313630302d30312d30312030303a30303a30302e303030303031",
        ),
        "null": (42, "91c0"),
    },
    "interval day to second": {
        "interval '-1 02:03:04.5' day to second": (42, "91c40a91d3ffffffea2a0218e0"),
        "interval '0' second": (93, "91c4029100"),
        "null": (42, "91c40291c0"),
    },
    "interval year to month": {
        "interval '-1-2' year to month": (119, "91c40291f2"),
        "null": (42, "91c40291c0"),
    },
    "void": {
        "null": (42, "91c40291c0"),
    },
    "array<double>": {
        "array(0.0D, null)": (93, "91c40c9192cb0000000000000000c0"),
        "array(-0.0D, null)": (93, "91c40c9192cb0000000000000000c0"),
        "array('NaN')": (79, "91c40b9191cb7ff8000000000000"),
        "array()": (42, "91c4029190"),
        "array(null)": (42, "91c4039191c0"),
        "null": (42, "91c40291c0"),
    },
    "array<float>": {
        "array(0.1, '-Infinity')": (36, "91c4149192cb3fb99999a0000000cbfff0000000000000"),
        "array(-0.0D)": (93, "91c40b9191cb0000000000000000"),
        "array(0.0D)": (93, "91c40b9191cb0000000000000000"),
    },
    "array<string>": {
        "array('äß😀', '', null)": (42, "91c40d9193a8c3a4c39ff09f9880a0c0"),
        "array('null')": (41, "91c4079191a46e756c6c"),
    },
    "struct<a:float,b:struct<c:double,d:string>>": {
        "struct('NaN', struct(-0.0D, 'ä'))": (
            33,
            "91c4189192cb7ff800000000000092cb0000000000000000a2c3a4",
        ),
        "struct('NaN', struct(0.0D, 'ä'))": (
            33,
            "91c4189192cb7ff800000000000092cb0000000000000000a2c3a4",
        ),
        "struct(null, struct(null, null))": (42, "91c4069192c092c0c0"),
        "struct(null, null)": (42, "91c4049192c0c0"),
        "null": (42, "91c40291c0"),
    },
    "struct<l:long,dec:decimal(10,2),raw:binary,flag:boolean,day:date>": {
        "struct(9007199254740993, 1.5, X'00FF', true, '2024-02-29')": (
            26,
            "91c4189195cf0020000000000001a4312e3530c40200ffc3cd4d46",
        ),
        "struct(null, null, null, null, null)": (42, "91c4079195c0c0c0c0c0"),
    },
    "struct<t:timestamp,n:timestamp_ntz,i:interval day to second,m:interval year to month>": {
        "struct(timestamp'2024-11-03 09:30:00Z', timestamp_ntz'2024-11-03 09:30:00.5', "
        "interval '1.5' second, interval '1-2' year to month)": (
            45,
            "91c41a9194cf000625fecfe3d600cf000625fecfeb7720ce0016e3600e",
        ),
        "struct(null, null, null, null)": (42, "91c4069194c0c0c0c0"),
    },
    "array<array<struct<x:array<int>>>>": {
        "array(array(struct(array(1, null)), null), null)": (99, "91c409919292919201c0c0c0"),
        "array(array())": (42, "91c403919190"),
    },
}
"""For each type and value, as SQL: the key group of 128 and the stored key."""


def found(spark: SparkSession, ddl: str, values: list[str]) -> dict[str, tuple[int, str]]:
    """Return key group and stored bytes of each value of a type."""
    selects = [f"select {n} as n, cast({v} as {ddl}) k" for n, v in enumerate(values)]
    df = spark.sql(" union all ".join(selects))
    columns = InputColumns(df.select("k").schema, ["k"])
    key_group = F.pmod(F.hash(*columns.key_columns()), F.lit(128))
    sent = df.select("n", key_group.alias(KEY_GROUP), *columns.columns()).orderBy("n")
    (batch,) = sent.toArrow().combine_chunks().to_batches()
    arrived = columns.arriving(batch)
    groups, keys = columns.key_groups(arrived), columns.encoded_keys(arrived)
    return {
        values[n]: (group, key.hex())
        for n, group, key in zip(
            batch.column("n").to_pylist(), groups.tolist(), keys.to_pylist(), strict=True
        )
    }


@pytest.mark.soak_variants
@pytest.mark.parametrize("ddl", KEYS)
def test_key_groups_and_bytes(spark: SparkSession, ddl: str) -> None:
    """Scenario 40: hash and bytes are those of format 1 on every platform, with any seed.

    They are equal whether Spark compiles its expressions or not.
    """
    assert found(spark, ddl, list(KEYS[ddl])) == KEYS[ddl]
    compiled = spark.newSession()
    compiled.conf.set("spark.sql.codegen.wholeStage", "true")
    compiled.conf.set("spark.sql.codegen.factoryMode", "CODEGEN_ONLY")
    assert found(compiled, ddl, list(KEYS[ddl])) == KEYS[ddl]


@pytest.mark.parametrize("ddl", KEYS)
def test_key_groups_of_stored_keys(spark: SparkSession, ddl: str) -> None:
    """A key's bytes alone give the key group that its columns gave."""
    places = KeyPlaces(spark.sql(f"select cast(null as {ddl}) k").schema, 128)
    for key_group, data in KEYS[ddl].values():
        assert places.group_of_stored(bytes.fromhex(data)) == key_group
