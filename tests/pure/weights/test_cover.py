"""All that lies here is covered, once, from its own place; or both sides are named."""

from dataclasses import replace

import numpy as np
import pytest
from tests.pure.weights.random_models import Model

from stretto.errors import CallError, LayoutError, PlanError
from stretto.weights.boxes import are_apart, cut, volume
from stretto.weights.cover import There, Wanted, cover, prove_cover
from stretto.weights.manifest import Held, Manifest, grouped
from stretto.weights.names import Cat, Part, Stack, spec_of


def index(box, base=None):
    base = base or tuple((0, 0) for _ in box)
    return tuple(slice(a - x, b - x) for (a, b), (x, _) in zip(box, base, strict=True))


@pytest.mark.parametrize("seeds", [range(n, n + 100) for n in range(0, 500, 100)])
def test_random_models_arrive_as_a_full_gather_says(seeds):
    """500 models and layouts; what is not written stays poison, and differs."""
    for seed in seeds:
        model = Model(seed)
        ranks = [model.rank(r) for r in range(model.num_ranks)]
        there = There([manifest for manifest, _ in ranks])
        goals = list(model.destinations())
        wanted = [
            Wanted(name=n, shape=g.shape, dtype=str(g.dtype), spec=spec)
            for n, spec, g in goals
        ]
        into = {n: np.full(g.shape, 251, g.dtype) for n, _, g in goals}
        for read in cover(wanted, there, turn=seed):
            manifest, groups = ranks[read.rank]
            box = manifest.groups[read.group][0].box
            part = groups[read.group][read.index][index(read.box, box)]
            place = into[read.name][(*index(read.at), ...)]
            place[...] = part.reshape(place.shape)

        for name, _, goal in goals:
            assert np.array_equal(goal, into[name]), (seed, name)


def rank_of(*held):
    return grouped([Held(**one) for one in held])[0]


def rows(name, start, stop, of=8, dtype="float32"):
    box = ((start, stop), (0, 4))
    return {"name": name, "shape": (of, 4), "box": box, "dtype": dtype}


def want(name="w", shape=(8, 4), dtype="float32", spec=None):
    return Wanted(name=name, shape=shape, dtype=dtype, spec=spec or Part(name))


THERE = There(
    [rank_of(rows("w", 0, 4), rows("k_proj", 0, 8)), rank_of(rows("w", 4, 8))]
)


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (want("k_prog"), r"'k_prog' here comes from 'k_prog', .*has 'k_proj'"),
        (
            want(shape=(9, 4)),
            r"'w' here has shape \(9, 4\).*nothing is for \[8:9, 0:",
        ),
        (want(shape=(7, 4)), r"'w' here has shape \(7, 4\); the source gives \(8, 4\)"),
        (
            want(dtype="float16"),
            r"'w' here is float16, 'w' at the source float32",
        ),
        (
            want("x", (12, 4), spec=Cat("w", "w")),
            r"'x' here has .*\(12, 4\).*\(16, 4\)",
        ),
        (want("x", (2, 8, 4), spec=Stack("w")), r"\(1, 8, 4\).*for \[1:2, 0:8, 0:4\]"),
        (want("x", spec=Part("w", rank=0, of=3)), r"cannot be dealt out to 3"),
    ],
)
def test_what_does_not_fit_is_named_with_both_sides(one, said):
    """Missing, doubled, another shape or type: before a byte moves."""
    with pytest.raises(LayoutError, match=f"(?s){said}"):
        cover([one], THERE)


def test_what_no_rank_holds_is_named():
    """A source rank that is not there leaves a hole, and is not papered over."""
    there = There([rank_of(rows("w", 0, 4)), rank_of(rows("w", 6, 8))])

    with pytest.raises(LayoutError, match=r"needs 'w' \[4:6, 0:4\].*rank 0 \[0:4,"):
        cover([want()], there)


def test_source_ranks_that_disagree_are_named():
    """One name has one shape and one type on all ranks."""
    with pytest.raises(LayoutError, match=r"'w': source rank 0 says float32.*rank 1"):
        There([rank_of(rows("w", 0, 8)), rank_of(rows("w", 0, 8, dtype="float16"))])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda reads: reads[:-1], "writes 16 of 32 elements"),
        (lambda reads: [*reads, reads[0]], "written twice"),
        (lambda reads: [replace(reads[0], box=((1, 5), (0, 4))), reads[1]], "not hold"),
        (lambda reads: [replace(reads[0], at=reads[1].at), reads[1]], "twice"),
        (
            lambda reads: [
                replace(reads[0], at=reads[1].at), replace(reads[1], at=reads[0].at),
            ],
            "from another place",
        ),
        (lambda reads: [replace(reads[0], name="v"), reads[1]], "nobody wants"),
        (lambda reads: [replace(reads[0], at=((6, 10), (0, 4))), reads[1]], "outside"),
    ],
)  # fmt: skip
def test_reads_that_were_tampered_with_are_refused(change, said):
    """The proof shares nothing with the planner."""
    reads = list(cover([want()], THERE))

    with pytest.raises(PlanError, match=said):
        prove_cover([want()], change(reads), THERE)


def test_a_manifest_prints_and_parses():
    """What peers are told is what was meant; nonsense is refused."""
    manifest = rank_of(rows("w", 0, 4), rows("v", 0, 4), rows("k_proj", 0, 8))

    assert manifest == Manifest.parse(manifest.text)
    assert [["w", "v"], ["k_proj"]] == [[h.name for h in g] for g in manifest.groups]
    outside = manifest.text.replace("[0,4]", "[0,9]")
    nothing = '{"weights":1,"groups":[[[],[4],[[0,4]],"float32"]]}'
    for text in ("", "[]", '{"weights":2}', outside, nothing):
        with pytest.raises(CallError, match="makes no sense"):
            Manifest.parse(text)


def test_a_part_outside_of_its_tensor_is_refused():
    """A rank cannot hold what is not there."""
    with pytest.raises(LayoutError, match="is no part of shape"):
        Held(**rows("w", 4, 9))


@pytest.mark.parametrize(
    "spec",
    [
        Cat("w", axis=2), Cat("w", axis=-3), Stack("w", axis=3),
        Cat(Part("w", axis=0, of=2), axis=7),
    ],
)  # fmt: skip
def test_an_axis_that_is_not_there_is_named(spec):
    """Whatever is put together, with whose axes."""
    with pytest.raises(LayoutError, match=r"here: .*no axis -?\d of [23]"):
        cover([want("x", spec=spec)], THERE)


def test_boxes_are_cut_where_others_end():
    """Each part lies wholly in another box, or not at all."""
    parts = list(cut(((0, 8), (0, 4)), [((0, 3), (0, 4)), ((2, 8), (1, 4))]))

    assert 32 == sum(map(volume, parts))
    assert are_apart(parts)
    assert not are_apart([*parts, parts[0]])


LLAMA = {
    "model.layers.0.self_attn.qkv_proj.weight": ["q_proj", "k_proj", "v_proj"],
    "model.layers.0.mlp.gate_up_proj.weight": ["gate_proj", "up_proj"],
    "model.layers.0.self_attn.o_proj.weight": ["o_proj"],
    "model.layers.0.mlp.down_proj.weight": ["down_proj"],
    "model.norm.weight": ["norm"],
}


@pytest.mark.parametrize("of", [1, 2, 4])
def test_vllm_names_give_every_rank_its_shard(of):
    """Fused QKV with fewer KV heads than ranks, gate and up, rows and columns."""
    heads, kv, dim, hidden, mlp = 8, 2, 4, 32, 48
    rng = np.random.default_rng(of)
    sizes = {"q_proj": (heads * dim, hidden), "k_proj": (kv * dim, hidden),
             "v_proj": (kv * dim, hidden), "o_proj": (hidden, heads * dim),
             "gate_proj": (mlp, hidden), "up_proj": (mlp, hidden),
             "down_proj": (hidden, mlp), "norm": (hidden,)}  # fmt: skip
    for name, sources in LLAMA.items():
        base = name.rsplit(".", 2)[0]
        full = {f"{base}.{s}.weight": rng.random(sizes[s]) for s in sources}
        q = [full[f"{base}.{s}.weight"] for s in sources]
        for rank in range(of):
            shape, tiles = spec_of(
                "vllm/llama", name, rank=rank, of=of, kv_heads=kv
            ).tiles({n: v.shape for n, v in full.items()})
            made = np.full(shape, np.nan)
            for tile in tiles:
                made[index(tile.at)] = full[tile.source][index(tile.box)]
            if "qkv" in name:
                at = rank * kv // of if of > kv else rank
                goal = [np.split(q[0], of)[rank], np.split(q[1], min(of, kv))[at],
                        np.split(q[2], min(of, kv))[at]]  # fmt: skip
                goal = np.concatenate(goal)
            elif "gate_up" in name:
                goal = np.concatenate([np.split(one, of)[rank] for one in q])
            else:
                goal = q[0] if "norm" in name else np.split(q[0], of, 1)[rank]

            assert np.array_equal(goal, made), (name, rank)


def test_vllm_names_of_experts_and_tied_heads():
    """Packed experts come from one tensor each; a tied head from the embedding."""
    packed = spec_of("vllm/llama", "m.mlp.experts.w13_weight", experts=2, rank=1, of=2)
    tied = spec_of("vllm/llama", "lm_head.weight", tied=True)

    assert [
        f"m.mlp.experts.{e}.{p}_proj.weight" for e in (0, 1) for p in ("gate", "up")
    ] == list(packed.sources())
    assert Part("model.embed_tokens.weight") == tied
