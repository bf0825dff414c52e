"""What every backend owes: functions of a mesh that raise AssertionError on the rank that sees a fault.

Each is called on every rank of a mesh with the axis "dp" (CONTRACT, any size), or with "pp" and "dp" of 2 each
(SUBGROUPS).
"""

from collections.abc import Callable

from shardlab.comm import Mesh
from tests.comm.contract_collectives import (
    all_gather_concatenates,
    all_gather_in_place,
    all_reduce_adds_in_rank_order,
    all_reduce_takes_maximum_and_minimum,
    all_to_all_transposes,
    all_to_all_with_splits,
    barrier_meets_by_name,
    broadcast_copies_from_any_index,
    reduce_scatter_adds_in_rank_order,
    reduce_scatter_into_its_input,
    sums_are_not_those_of_another_order,
)
from tests.comm.contract_counts import (
    groups_do_not_mix,
    groups_over_one_and_two_axes,
    labels_reach_the_ledger,
    start_forms_count_alike,
    wire_bytes_are_those_of_the_formulas,
    wrong_arguments_raise_alike_everywhere,
)
from tests.comm.contract_under_way import (
    a_group_of_one_is_a_copy,
    blocking_calls_pass_those_under_way,
    messages_go_round_a_ring,
    messages_pair_by_tag_and_then_in_order,
    parameters_can_be_moved,
    waits_come_in_any_order,
)

CONTRACT: tuple[Callable[[Mesh], None], ...] = (
    all_reduce_adds_in_rank_order,
    all_reduce_takes_maximum_and_minimum,
    sums_are_not_those_of_another_order,
    all_gather_concatenates,
    all_gather_in_place,
    reduce_scatter_adds_in_rank_order,
    reduce_scatter_into_its_input,
    all_to_all_transposes,
    all_to_all_with_splits,
    broadcast_copies_from_any_index,
    barrier_meets_by_name,
    messages_go_round_a_ring,
    messages_pair_by_tag_and_then_in_order,
    waits_come_in_any_order,
    blocking_calls_pass_those_under_way,
    parameters_can_be_moved,
    a_group_of_one_is_a_copy,
    wrong_arguments_raise_alike_everywhere,
    wire_bytes_are_those_of_the_formulas,
    start_forms_count_alike,
    labels_reach_the_ledger,
)
SUBGROUPS: tuple[Callable[[Mesh], None], ...] = (groups_over_one_and_two_axes, groups_do_not_mix)
