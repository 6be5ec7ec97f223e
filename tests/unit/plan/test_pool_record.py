"""A plan keeps its pool by value, and what is read back is the pool it was made for."""

from dataclasses import fields, replace

import pytest
from plans import PLAN

from heterps_compile.cluster.devices import Cluster, DeviceType, Link, ParameterServer
from heterps_compile.cluster.load import builtin_names, load_cluster
from heterps_compile.plan import schema
from heterps_compile.plan.file import from_json, to_json
from heterps_compile.plan.plan import PoolDevice
from heterps_compile.plan.pool_record import devices_of, links_of, pool_part, server_of
from heterps_compile.plan.provenance import hash_cluster


def recorded(pool: Cluster) -> Cluster | None:
    plan = replace(
        PLAN, cluster=pool.name, currency=pool.currency, devices=pool.device_types, links=pool.links,
        parameter_server=pool.parameter_server,
    )  # fmt: skip
    part = schema.ClusterPart.model_validate(pool_part(plan))
    read = replace(plan, devices=devices_of(part), links=links_of(part), parameter_server=server_of(part))
    assert pool_part(read) == pool_part(plan)
    return read.pool


@pytest.mark.parametrize("pool", [PLAN.pool, *map(load_cluster, builtin_names())], ids=["whole", *builtin_names()])
def test_a_pool_comes_back_as_the_one_the_hash_is_of(pool):
    read = recorded(pool)
    assert read == replace(pool, description="", source="the plan")
    assert read is not None
    assert hash_cluster(read) == hash_cluster(pool)


def test_the_schema_has_every_field_of_the_pools_parts():
    def names(of: type) -> set[str]:
        return {field.name for field in fields(of)}

    parts = schema.DevicePart.model_fields.keys() - {"data_sheet"}
    assert parts == names(PoolDevice)
    assert parts | schema.DataSheet.model_fields.keys() == names(DeviceType)
    assert schema.LinkPart.model_fields.keys() == names(Link)
    assert schema.ServerPart.model_fields.keys() == names(ParameterServer)


def test_one_device_type_without_its_data_sheet_and_the_pool_is_not_known():
    unknown = PoolDevice("t4", "gpu", 0.35, 8, 16e9)
    plan = replace(PLAN, devices=(*PLAN.devices[:2], unknown))
    assert (PLAN.pool is not None, plan.pool) == (True, None)
    assert from_json(to_json(plan), "plan.json").devices[2] == unknown
