"""Which device computes which rows: read off the masks, for suffixes and for token trees."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle_states import on_host
from test_verify import TREE, tree_block

from lookahead_jax import LookaheadConfig
from lookahead_jax.layout import VerificationBlock, build_layout
from lookahead_jax.shards import build_shards, shard_layout
from lookahead_jax.verify import verify_greedy

SHAPES = [(5, 4, 3), (3, 3, 5), (7, 5, 7), (1, 3, 1), (4, 6, 0), (15, 5, 15)]
DEVICES = [1, 2, 3, 4, 8, 16]


def tree_layout():
    """A layout whose candidate rows are a genuine tree instead of disjoint suffixes."""
    layout = build_layout(LookaheadConfig(4, 5, 3))
    block = tree_block(TREE, path_length=5)
    count = len(TREE)
    rows = np.array([0, *range(16, 16 + count - 1)], np.int32)
    mask = layout.mask.copy()
    mask[:, 16:, 16:] = np.eye(mask.shape[1] - 16, dtype=bool)
    for stage in mask:
        stage[np.ix_(rows, rows)] = block.ancestors
    logit_rows = np.concatenate(
        [layout.logit_rows[:, :5], np.tile(rows[1:], (len(mask), 1))], axis=1
    )
    return replace(layout, mask=mask, logit_rows=logit_rows, node_rows=rows, block=block)


LAYOUTS = {str(shape): build_layout(LookaheadConfig(*shape)) for shape in SHAPES}
LAYOUTS["tree"] = tree_layout()


@pytest.mark.parametrize("num_devices", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_device_has_what_its_rows_need_and_nothing_else(layout, num_devices):
    shards = shard_layout(layout, num_devices)
    width = layout.config.window_size
    w = shards.logit_rows.shape[2] - shards.nodes.shape[1]
    columns = [np.flatnonzero(shards.owners[:, 0] == device) for device in range(num_devices)]
    assert sorted(np.concatenate(columns).tolist()) == list(range(width))
    for device in range(num_devices):
        assert shards.owners[columns[device], 1].tolist() == list(range(len(columns[device])))
        nodes = shards.nodes[device][shards.is_node[device]]
        assert nodes[0] == 0
        assert not shards.nodes[device][~shards.is_node[device]].any()
        for stage in range(len(layout.rows)):
            rows, mask = shards.rows[device, stage], shards.mask[device, stage]
            deepest = layout.logit_rows[stage][1 + columns[device]]
            wanted = {0, *deepest.tolist(), *layout.node_rows[nodes].tolist()}
            need = np.flatnonzero(layout.mask[stage][sorted(wanted)].any(axis=0))
            count = len(need)
            assert sorted(rows[:count].tolist()) == need.tolist()
            assert not rows[count:].any()
            # A local row sees what its packed row sees, all of it, and padding nothing.
            for i in range(count):
                seen = rows[np.flatnonzero(mask[i])]
                assert sorted(seen) == np.flatnonzero(layout.mask[stage, rows[i]]).tolist()
            assert (mask[count:] == np.eye(len(rows), dtype=bool)[count:]).all()
            # Logits are those of the wanted rows, and row i is node i.
            assert rows[: len(nodes)].tolist() == layout.node_rows[nodes].tolist()
            asked = rows[shards.logit_rows[device, stage]]
            assert asked[0] == 0
            assert asked[1 : 1 + len(deepest)].tolist() == deepest.tolist()
            behind_root = layout.node_rows[nodes[1:]].tolist()
            assert asked[1 + w : w + len(nodes)].tolist() == behind_root


@pytest.mark.parametrize("num_devices", DEVICES)
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_leaf_is_verified_once(layout, num_devices):
    shards = shard_layout(layout, num_devices)
    leaves = set(range(1, len(layout.block.parents))) - set(layout.block.parents.tolist())
    own = [
        leaves & set(nodes[is_node].tolist())
        for nodes, is_node in zip(shards.nodes, shards.is_node, strict=True)
    ]
    assert sorted(leaf for part in own for leaf in part) == sorted(leaves)
    sizes = [len(part) for part in own]
    assert max(sizes) - min(sizes) <= 1


def test_rows_of_a_device():
    """(W, N, G) and how many rows a device of 1, 2, 4 and 8 computes.

    The closed form is an upper bound: the ordinary row and the base stripe, and a share of the
    other columns and of the candidates.
    """
    expected = {(7, 5, 7): (56, 32, 20, 14), (15, 5, 15): (120, 68, 40, 28)}
    for shape, rows in expected.items():
        config = LookaheadConfig(*shape)
        assert tuple(build_shards(config, n).num_rows for n in (1, 2, 4, 8)) == rows
    for width, size, guesses in SHAPES:
        for n in DEVICES:
            shares = -(-width // n) * (size - 2) + -(-guesses // n) * (size - 1)
            config = LookaheadConfig(width, size, guesses)
            assert build_shards(config, n).num_rows <= width + shares


def device_block(shards, device):
    block = shards.block
    return VerificationBlock(
        *(x[device] for x in (block.parents, block.depths, block.ancestors, block.paths))
    )


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["(5, 4, 3)", "(3, 3, 5)", "tree"]), st.sampled_from([2, 3, 8]), st.data())
def test_the_longest_of_the_devices_paths_is_that_of_the_whole_block(name, num_devices, data):
    layout = LAYOUTS[name]
    shards, count = shard_layout(layout, num_devices), len(layout.block.parents)
    token = st.integers(0, 1)
    listed = st.lists(token, min_size=count, max_size=count)
    tokens = np.array(data.draw(listed), np.int32)
    predictions = np.array(data.draw(listed), np.int32)
    valid = np.array([True, *data.draw(st.lists(st.booleans(), min_size=count, max_size=count))])
    valid = valid[:count]
    whole = on_host(verify_greedy(layout.block, tokens, valid, predictions, 4))
    parts = []
    for device in range(num_devices):
        nodes = shards.nodes[device]
        part = verify_greedy(
            device_block(shards, device),
            tokens[nodes],
            valid[nodes] & shards.is_node[device],
            predictions[nodes],
            4,
        )
        parts.append(on_host(part))
    winner = int(np.argmax([part.accepted for part in parts]))
    assert parts[winner].accepted == whole.accepted
    path = shards.nodes[winner][parts[winner].path]
    if name == "tree":
        # Equal children of one node may be chosen in another order.
        for depth in range(1, whole.accepted + 1):
            assert layout.block.parents[path[depth]] == path[depth - 1]
            assert valid[path[depth]]
            assert tokens[path[depth]] == predictions[path[depth - 1]]
        assert parts[winner].emitted.tolist() == predictions[path].tolist()
    else:
        assert path.tolist() == whole.path.tolist()
        assert parts[winner].emitted.tolist() == whole.emitted.tolist()
