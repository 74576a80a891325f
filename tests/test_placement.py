"""Which blocks run close together: groups of SMs, and the order that keeps them so."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handwritten.tensor_catalog import H7, H8
from kernel import placement
from kernel.build import artifact
from kernel.contract import Argument, Pointers, Problem

GPCS = (range(6), range(6, 16), range(16, 20))
"""A chip of 20 SMs."""
GROUP_OF_SM = tuple(min(sms) for sms in GPCS for _ in sms)


def test_sms_that_shared_a_cluster_are_together_also_by_way_of_others():
    seen = [(1, 0), (2, 3), (3, 0), (4, 5, 2), *((sm, sm + 1) for sm in range(6, 15)), (19, 17, 16), (18, 19)]
    assert placement.groups(20, seen) == GROUP_OF_SM
    assert placement.groups(20, seen[::-1]) == GROUP_OF_SM
    assert placement.groups(3, []) == (0, 1, 2)


@given(st.permutations(range(10)))
def test_ranks_are_a_permutation_that_keeps_a_gpcs_clusters_together(pairs):
    landed = [2 * pair + side for pair in pairs for side in range(2)]
    ranks = placement.ranks(landed, 2, GROUP_OF_SM)
    assert sorted(ranks) == list(range(10))
    in_order = [GROUP_OF_SM[landed[2 * ranks.index(place)]] for place in range(10)]
    assert in_order == sorted(in_order)


def test_blocks_that_share_sms_keep_their_numbers():
    assert placement.ranks([4, 5, 0, 1, 4, 5], 2, GROUP_OF_SM) == bytes([0, 1, 2])


def test_only_the_order_is_marked_and_it_starts_as_the_identity():
    problem = Problem(m=4096, n=4096, k=64, dtype_in="float16", dtype_out="float16")
    pointers = Pointers(a=256, b=512, c=768)
    (with_order,), (without,) = H8.pack(problem, pointers), H7.pack(problem, pointers)
    assert with_order[:-1] == without
    assert with_order[-1] == Argument(data=bytes(range(132)), order=True)


@pytest.mark.nvcc
def test_the_kernel_that_finds_out_builds_and_leaves_room_for_any_block():
    resources = artifact(placement.unit()).resources["place"]
    assert resources.spill_bytes == 0
    assert resources.registers * 1024 <= 65536


@pytest.mark.gpu
def test_order_on_a_device_is_a_permutation_found_twice_alike():
    cupy = pytest.importorskip("cupy")
    if cupy.cuda.Device().compute_capability != "90":
        pytest.skip("the kernel is built for sm_90a")
    problem = Problem(m=4096, n=4096, k=64, dtype_in="float16", dtype_out="float16")
    (launch,) = H8.launches(problem)
    order = placement.order_of(launch)
    assert sorted(order) == list(range(launch.blocks // 2))
    placement._order.cache_clear()
    placement._groups.cache_clear()
    assert placement.order_of(launch) == order
