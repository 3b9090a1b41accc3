"""One of the processes of weights_gpu.py: the trainer on rank 0, else who decodes."""

from __future__ import annotations

import argparse
import contextlib
import gc
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from torch_ranks import Ranks, inner

BLOCK, WAIT_S, BUCKET = 128, 60.0, 1 << 30
LARGE = {"hidden": 4096, "mlp": 14336, "kv": 1024, "vocab": 128256, "layers": 32}
SMALL = {"hidden": 128, "mlp": 256, "kv": 128, "vocab": 512, "layers": 2}
FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}


def shapes(sizes: dict[str, int]) -> dict[str, tuple[int, ...]]:
    """Return the trainer's tensors by name."""
    h, mlp, kv = sizes["hidden"], sizes["mlp"], sizes["kv"]
    found: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (sizes["vocab"], h)
    }
    each = {
        "self_attn.q_proj": (h, h), "self_attn.k_proj": (kv, h),
        "self_attn.v_proj": (kv, h), "self_attn.o_proj": (h, h),
        "mlp.gate_proj": (mlp, h), "mlp.up_proj": (mlp, h), "mlp.down_proj": (h, mlp),
        "input_layernorm": (h,), "post_attention_layernorm": (h,),
    }  # fmt: skip
    for layer in range(sizes["layers"]):
        for name, shape in each.items():
            found[f"model.layers.{layer}.{name}.weight"] = shape
    return {**found, "model.norm.weight": (h,), "lm_head.weight": (sizes["vocab"], h)}


def parts_of(names: Any) -> dict[str, list[str]]:
    """Return the rollout's names, and the trainer's that each consists of."""
    found: dict[str, list[str]] = {}
    fused_by = {part: whole for whole, some in FUSED.items() for part in some}
    for name in names:
        parent, _, leaf = name.rpartition(".")
        base, _, kind = parent.rpartition(".")
        whole = fused_by.get(kind)
        found.setdefault(f"{base}.{whole}.{leaf}" if whole else name, []).append(name)
    return found


class Job:
    """What both processes have."""

    def __init__(self, ranks: Ranks, args: argparse.Namespace) -> None:
        from stretto.transfer import Engine

        self.ranks, self.torch, self.args = ranks, ranks.torch, args
        self.is_trainer = ranks.rank == 0
        self.shapes = shapes(SMALL if args.small else LARGE)
        self.fused = parts_of(self.shapes)
        self.device, self.dtype = ranks.device, self.torch.bfloat16
        self.version, self.rows = 0, []
        job = ranks.everybody(f"weights-gpu-{time.time_ns()}")[0]
        self.engine = Engine(f"{job}-{ranks.rank}", job=job)
        self.barrier()  # both are there
        if not self.is_trainer:
            self.engine.connect(f"{job}-0").wait(WAIT_S)
        if self.is_trainer:
            self.tensors = {n: self.empty(s) for n, s in self.shapes.items()}
        self.nbytes = sum(2 * self.torch.Size(s).numel() for s in self.shapes.values())

    def empty(self, shape: tuple[int, ...], dtype: Any = None) -> Any:
        """Return memory of the device."""
        return self.torch.zeros(shape, dtype=dtype or self.dtype, device=self.device)

    def whole(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the rollout's tensors."""
        found = {}
        for name, some in self.fused.items():
            first = self.shapes[some[0]]
            rows = sum(self.shapes[one][0] for one in some)
            found[name] = (rows, *first[1:])
        return found

    def drawn(self, name: str, out: Any) -> Any:
        """Draw what a tensor is in this version: alike on both GPUs."""
        number = list(self.shapes).index(name)
        chance = self.torch.Generator(self.device)
        chance.manual_seed(1000 * self.version + number)
        return out.normal_(0, 0.02, generator=chance)

    def fill(self) -> None:
        """Train: that is, draw the next version."""
        self.version += 1
        if self.is_trainer:
            for name, tensor in self.tensors.items():
                self.drawn(name, tensor)
        self.ranks.settle()
        self.barrier()

    def barrier(self) -> None:
        """Wait for the other process."""
        self.ranks.dist.barrier(group=self.ranks.control)

    def wrong(self, held: dict[str, Any], *, is_fp8: bool = False) -> int:
        """Return how many bytes are not what was drawn."""
        count = 0
        for name, some in self.fused.items():
            at = 0
            for one in some:
                shape = self.shapes[one]
                want = self.drawn(one, self.empty(shape))
                got = held[name][at : at + shape[0]]
                if is_fp8 and len(shape) == 2:
                    want, scales = self.quantised(want)
                    down = at // BLOCK
                    there = held[f"{name}_scale_inv"][down : down + len(scales)]
                    count += self.differ(scales, there)
                count += self.differ(want, got)
                at += shape[0]
        return count

    def differ(self, want: Any, got: Any) -> int:
        """Return in how many bytes two tensors differ."""
        one, other = (x.contiguous().view(self.torch.uint8) for x in (want, got))
        return 0 if self.torch.equal(one, other) else int((one != other).sum())

    def quantised(self, wide: Any) -> tuple[Any, Any]:
        """Return FP8 and scales by PyTorch's own operations."""
        rows, columns = wide.shape
        blocks = wide.float().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK)
        most = self.torch.tensor(448.0, device=self.device)  # a number is inverted
        scales = blocks.abs().amax(dim=(1, 3)) / most
        scales = self.torch.where(scales > 0, scales, 1.0)
        made = (blocks / scales[:, None, :, None]).view(rows, columns)
        return made.to(self.torch.float8_e4m3fn), scales


class Decode:
    """Steps that read all weights of a copy, one CUDA graph for each copy."""

    def __init__(self, job: Job, policy: Any) -> None:
        self.job, self.policy, self.torch = job, policy, job.torch
        self.is_gpu = job.ranks.is_gpu
        self.runs: list[list[tuple[Any, Any, int]]] = []
        """Of steps without anything between them: begin, end, version."""
        self.graphs: list[Any] = []
        self.stream = self.torch.cuda.Stream() if self.is_gpu else None  # of its own
        if self.is_gpu:
            with self.torch.cuda.stream(self.stream):
                self.capture(policy)

    def capture(self, policy: Any) -> None:
        """Capture the reading of each copy."""
        for tensors in policy.both:
            self.read(tensors)
            self.job.ranks.settle()
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph, capture_error_mode="thread_local"):
                self.read(tensors)
            self.graphs.append(graph)

    def read(self, tensors: dict[str, Any]) -> None:
        """Multiply by each matrix, as a decode of one token does."""
        for one in tensors.values():
            if one.ndim == 2 and one.element_size() == 2:
                x = self.torch.ones(one.shape[1], dtype=one.dtype, device=one.device)
                self.torch.mv(one, x)
            else:
                one.view(self.torch.uint8).amax()

    def step(self) -> int:
        """Do one; return the version's counter."""
        with self.policy.step(timeout=WAIT_S) as version:
            if not self.is_gpu:
                begun = time.perf_counter()
                self.read(self.policy.tensors)
                self.runs[-1].append((begun, time.perf_counter(), version.counter))
                return int(version.counter)
            begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            self.graphs[self.policy.live].replay()
            end.record()
        end.synchronize()  # whoever decodes reads a token after each step
        self.runs[-1].append((begin, end, version.counter))
        return int(version.counter)

    def until(self, counter: int) -> None:
        """Step until a version is there, and a few more."""
        self.runs.append([])
        stop = time.monotonic() + WAIT_S
        with self.torch.cuda.stream(self.stream):  # of None it is nothing
            while self.step() < counter:
                assert time.monotonic() < stop, f"version {counter} does not come"
            for _ in range(8):
                self.step()

    def took(self, one: Any, other: Any) -> float:
        """Return milliseconds between two marks."""
        if self.is_gpu:
            return float(one.elapsed_time(other))
        return 1e3 * (other - one)

    def said(self) -> dict[str, float]:
        """Return what steps and gaps took, at switches apart."""
        gaps, at_switch = [], []
        runs = self.runs[1:]  # the first is of what there was before
        for (_, end, was), (begin, _, now) in (
            two for run in runs for two in itertools.pairwise(run)
        ):
            (at_switch if was != now else gaps).append(self.took(end, begin))
        steps = [self.took(begin, end) for run in runs for begin, end, _ in run]
        return {
            "step_ms": round(statistics.median(steps), 3),
            "slowest_step_ms": round(max(steps), 3),
            "gap_ms": round(statistics.median(gaps), 3),
            "switch_gap_ms": round(statistics.median(at_switch), 3),
            "largest_gap_ms": round(max([*gaps, *at_switch]), 3),
        }


@contextlib.contextmanager
def pair(job: Job, name: str, *, copies: int, fp8: bool) -> Iterator[Any]:
    """Publish on one side, subscribe on the other."""
    from stretto import weights

    if job.is_trainer:
        cast = None
        if fp8:
            cast = {"*norm*": None, "*": weights.Float8(block=(BLOCK, BLOCK))}
        with weights.publish(
            job.engine, name, job.tensors, cast=cast, epoch="run", patience=WAIT_S
        ) as source:
            yield source
        return
    into = {}
    for one, shape in job.whole().items():
        is_made = fp8 and len(shape) == 2
        into[one] = job.empty(shape, job.torch.float8_e4m3fn if is_made else None)
        if is_made:
            blocks = tuple(n // BLOCK for n in shape)
            into[f"{one}_scale_inv"] = job.empty(blocks, job.torch.float32)
    with weights.subscribe(
        job.engine, name, into=into, names="vllm/llama", copies=copies,
        patience=WAIT_S, deadline=WAIT_S,
    ) as policy:  # fmt: skip
        yield policy


def ours(job: Job, way: str, repeats: int) -> dict[str, Any]:
    """Measure pushes until the rollout has switched."""
    from stretto.trace import record

    fp8, in_place = way == "fp8", way == "in place"
    name = way.replace(" ", "-")
    with (
        pair(job, name, copies=1 + (way != "one copy"), fp8=fp8) as mine,
        record() as r,
    ):
        pushes, switches, wrong, decode = [], [], 0, None
        for turn in range(repeats + 1):  # the first one compiles, maps and plans
            job.fill()
            if job.is_trainer:
                begun = time.perf_counter()
                push = mine.push(job.version, in_place=in_place)
                pushes.append(1e3 * (time.perf_counter() - begun))
                push.wait(WAIT_S)
                switches.append(1e3 * (time.perf_counter() - begun))
                push.end()
            else:
                if turn == 0:
                    mine.wait(timeout=WAIT_S)
                    decode = Decode(job, mine)
                decode.until(job.version)
                with mine.step(timeout=WAIT_S):
                    wrong += job.wrong(mine.tensors, is_fp8=fp8)
                job.ranks.settle()
            job.barrier()
        said = {"nbytes": mine.nbytes} if job.is_trainer else {}
        if decode is not None:
            said = {"wrong_bytes": wrong, **decode.said()}
    if job.is_trainer:
        said["push_ms"] = round(statistics.median(pushes[1:]), 2)
        said.update(figures(switches))
    else:
        said["pull_ms"] = pulls(r.recording.kinds, r.recording.calls)
    return said


def figures(times: list[float]) -> dict[str, Any]:
    """Return what switches took, the first one apart."""
    first, *rest = (round(one, 2) for one in times)
    median = round(statistics.median(rest), 2)
    return {"first_ms": first, "ms": median, "least_ms": min(rest), "samples_ms": rest}


def pulls(kinds: Any, calls: Any) -> float | None:
    """Return the median of what pulls took, from the recording."""
    wanted = [i for i, k in enumerate(kinds) if k.algorithm == "pull"]
    took = [1e-6 * float(c["end"] - c["start"]) for c in calls if c["kind"] in wanted]
    return round(statistics.median(took[1:]), 2) if len(took) > 1 else None


def by_nccl(job: Job, way: str, repeats: int) -> dict[str, Any]:
    """Measure a broadcast of all tensors, into the places of the fused ones."""
    dist = job.ranks.dist
    places = {}
    if not job.is_trainer:
        held = {n: job.empty(s) for n, s in job.whole().items()}
        for name, some in job.fused.items():
            at = 0
            for one in some:
                rows = job.shapes[one][0]
                places[one] = held[name][at : at + rows]
                at += rows
    mine = job.tensors if job.is_trainer else places
    group = job.ranks.groups[job.ranks.baseline]
    size = BUCKET // 1024 if job.args.small else BUCKET
    bucket = job.empty((size // 2,))

    def singly() -> None:
        for name in job.shapes:
            dist.broadcast(mine[name], 0, group=group)

    def bucketed() -> None:
        """Pack as many as fit, send them, and put them where they belong."""
        rest = [mine[name].view(-1) for name in job.shapes]
        while rest:
            some, at = [], 0
            while rest and at < bucket.numel():
                few = rest[0][: bucket.numel() - at]
                some.append((at, few))
                at += few.numel()
                rest[0] = rest[0][few.numel() :]
                if not rest[0].numel():
                    rest.pop(0)
            if job.is_trainer:
                for begin, few in some:
                    bucket[begin : begin + few.numel()].copy_(few)
            dist.broadcast(bucket[:at], 0, group=group)
            if not job.is_trainer:
                for begin, few in some:
                    few.copy_(bucket[begin : begin + few.numel()])

    step = bucketed if way == "buckets" else singly
    times, wrong = [], 0
    for _ in range(repeats + 1):
        job.fill()
        begun = time.perf_counter()
        step()
        job.ranks.settle()
        times.append(1e3 * (time.perf_counter() - begun))
        if not job.is_trainer:
            wrong += job.wrong(held)
    said = {"nbytes": job.nbytes, **figures(job.ranks.slowest(times))}
    return said if job.is_trainer else {"wrong_bytes": wrong}


def work(args: argparse.Namespace) -> int:
    """Be one of the two processes."""
    ranks = Ranks(args)
    job = Job(ranks, args)
    answers: dict[str, Any] = {"rows": []}
    for way in args.ways:
        if ranks.late():
            answers["cut"] = f"no time for {way} and what comes after"
            break
        measure = by_nccl if way in ("broadcast", "buckets") else ours
        said, wrong = ranks.tried(lambda m=measure, w=way: m(job, w, args.repeats))
        both = ranks.everybody(said or {})
        row = {"way": way, **both[0], **both[1], "failed": wrong}
        answers["rows"].append(row)
        ranks.say(row)
        ranks.write(answers)
        if wrong:
            break  # the two may be at different places
        gc.collect()
    job.engine.close()
    ranks.dist.destroy_process_group()
    return 0


def main() -> int:
    """Measure what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    inner(parser)
    parser.add_argument("--ways", nargs="+")
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--small", action="store_true")
    return work(parser.parse_args())


if __name__ == "__main__":
    sys.exit(main())
