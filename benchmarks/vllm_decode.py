"""vLLM as it is, decoding a model of Llama's shape on its own and on stretto.

    python benchmarks/vllm_decode.py --ranks 2 --shape 8b --out DIR
    python benchmarks/vllm_decode.py --packages FOLDER --out DIR --time-budget 200

Engines, each in processes of its own, all alive at the same time, measured in turn:

    vllm     its own default: its all_reduce by peer memory, and NCCL for what is larger
    nccl     the same with `disable_custom_all_reduce`
    stretto  the same with VLLM_PLUGINS=stretto, and nothing else changed

Weights are made up (`load_format="dummy"`, one seed), prompts are random tokens, and
nothing is fetched. TPOT is (time of all tokens - time of the first) / (tokens - 1), the
median of rounds; the tokens of `--prompts` greedy requests are compared number by
number. `--packages` is a folder of archives (*.tar.xz) with vLLM and what it needs, for
a machine without network; they are unpacked before torch is imported. vLLM's use of the
switch's multicast is turned off for every engine.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import random
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import traceback
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
SHAPES = {
    "8b": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
           "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256},
    "70b": {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 20,
            "num_attention_heads": 64, "num_key_value_heads": 8, "vocab_size": 128256},
    "tiny": {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 1024},
}  # fmt: skip
"""70b: a quarter of its layers, so that a rank's part lies on one GPU beside others."""
ENGINES: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "vllm": ({"VLLM_PLUGINS": ""}, {}),
    "nccl": ({"VLLM_PLUGINS": ""}, {"disable_custom_all_reduce": True}),
    "stretto": ({"VLLM_PLUGINS": "stretto"}, {}),
}
"""By name: what is set in the environment, and what vLLM is given."""
ALIKE = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",  # it would use multicast
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "NCCL_NVLS_ENABLE": "0",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
    "NVSHMEM_DISABLE_NVLS": "1",
    "PYTHONUNBUFFERED": "1",
}
KV_BYTES = 4 << 30


def config(shape: str) -> dict[str, Any]:
    """Return what `config.json` of a model says."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
        "max_position_embeddings": 4096, "initializer_range": 0.02,
        "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
        "attention_bias": False, "mlp_bias": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        "rope_theta": 500000.0, **SHAPES[shape],
    }  # fmt: skip


# One engine


def serve(args: argparse.Namespace) -> None:
    """Be an engine: make it, and do what the parent asks for."""
    door = Client(args.door, family="AF_UNIX")
    try:
        _serve(args, door)
    except BaseException:
        traceback.print_exc()
        door.send({"failed": traceback.format_exc()[-4000:]})
        raise


def given(args: argparse.Namespace) -> dict[str, Any]:
    """Return what vLLM is given, alike for all engines but for what theirs is."""
    batches = sorted({1, 2, 4, 8, 16, 32, 64} | set(args.batches))
    return {
        "model": args.model,
        "skip_tokenizer_init": True,
        "load_format": "dummy",
        "generation_config": "vllm",
        "dtype": "bfloat16",
        "seed": 0,
        "tensor_parallel_size": args.ranks,
        "distributed_executor_backend": "mp",
        "max_model_len": 1024,
        "max_num_seqs": max(batches),
        "enable_prefix_caching": False,
        "gpu_memory_utilization": args.memory,
        "kv_cache_memory_bytes": KV_BYTES,
        "compilation_config": {"cudagraph_capture_sizes": batches},
        **ENGINES[args.engine][1],
    }


def _serve(args: argparse.Namespace, door: Connection) -> None:
    began = time.perf_counter()
    import vllm
    from vllm import LLM, SamplingParams
    from vllm.platforms import current_platform

    made = time.perf_counter()
    llm = LLM(**given(args))
    door.send(
        {
            "vllm": vllm.__version__,
            "platform": f"{type(current_platform).__module__}."
            f"{type(current_platform).__name__}",
            "import_s": made - began,
            "start_s": time.perf_counter() - made,
        }
    )

    def run(count: int, prompt: int, tokens: int, seed: int) -> tuple[float, Any]:
        draw = random.Random(seed)
        vocabulary = SHAPES[args.shape]["vocab_size"]
        prompts: Any = [
            {"prompt_token_ids": [draw.randrange(2, vocabulary) for _ in range(prompt)]}
            for _ in range(count)
        ]
        how = SamplingParams(
            temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False
        )
        start = time.perf_counter()
        answers = llm.generate(prompts, how, use_tqdm=False)
        took = time.perf_counter() - start
        return took, [list(a.outputs[0].token_ids) for a in answers]

    while True:
        asked = door.recv()
        if asked is None:
            return
        if "batch" in asked:
            first, _ = run(asked["batch"], asked["prompt"], 1, 1)
            whole, _ = run(asked["batch"], asked["prompt"], asked["tokens"], 1)
            door.send({"first_s": first, "whole_s": whole})
        else:
            _, tokens = run(asked["count"], asked["prompt"], asked["tokens"], 7)
            door.send({"tokens": tokens})


# All of them


class Engine:
    """An engine's processes, and the way to them."""

    def __init__(
        self, name: str, words: list[str], env: dict[str, str], out: Path
    ) -> None:
        """Start its first process."""
        self.name, self.log = name, out / f"vllm_decode_{name}.log"
        self._listener = Listener(family="AF_UNIX")
        words = [*words, "--engine", name, "--door", str(self._listener.address)]
        cache = tempfile.mkdtemp(prefix=f"vllm-{name}-")
        env = env | ENGINES[name][0] | {"VLLM_CACHE_ROOT": cache}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).resolve()), *words],
                env=env, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self._door: Connection | None = None

    def meet(self, deadline: float) -> dict[str, Any]:
        """Return what it says once it can be asked."""
        self._listener._listener._socket.settimeout(1.0)  # type: ignore[attr-defined]
        while self._door is None:
            try:
                self._door = self._listener.accept()
            except TimeoutError:
                self._alive(deadline)
        return self.hear(deadline)

    def ask(self, **what: Any) -> None:
        """Ask for something."""
        assert self._door is not None, "an engine is met before it is asked"
        self._door.send(what)

    def hear(self, deadline: float) -> dict[str, Any]:
        """Return its answer."""
        assert self._door is not None, "an engine is met before it is heard"
        while not self._door.poll(1.0):
            self._alive(deadline)
        try:
            said: dict[str, Any] = self._door.recv()
        except EOFError:
            raise RuntimeError(f"{self.name} ended") from None
        if "failed" in said:
            raise RuntimeError(f"{self.name} failed: {said['failed']}")
        return said

    def _alive(self, deadline: float) -> None:
        if self.process.poll() is not None:
            raise RuntimeError(f"{self.name} ended with {self.process.returncode}")
        if time.monotonic() > deadline:
            raise TimeoutError(f"{self.name}: no answer within the time budget")

    def end(self) -> None:
        """End all of its processes."""
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, how)
                self.process.wait(5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                pass

    def story(self) -> str:
        """Return what its log says of a failure: errors, and the end."""
        lines = self.log.read_text(errors="replace").splitlines()
        told = [n for n, text in enumerate(lines) if "Traceback" in text]
        parts = [lines[told[0] : told[0] + 60]] if told else []
        return "\n".join(line[:300] for part in [*parts, lines[-40:]] for line in part)


def measure(args: argparse.Namespace, engines: list[Engine], end: float) -> Any:
    """Return times of rounds by engine and batch, and the tokens of each engine."""
    times: dict[str, dict[int, list[dict[str, float]]]] = {
        e.name: {b: [] for b in args.batches} for e in engines
    }
    tokens: dict[str, Any] = {}
    for engine in engines:  # also the first run of every size
        engine.ask(count=args.prompts, prompt=64, tokens=32)
        tokens[engine.name] = engine.hear(end)["tokens"]
        print(f"{engine.name}: {len(tokens[engine.name])} answers", flush=True)
    began = time.monotonic()
    for nth in range(args.rounds + 1):
        lap = time.monotonic()
        for batch in args.batches:
            for engine in engines if nth % 2 else engines[::-1]:
                engine.ask(batch=batch, prompt=128, tokens=args.tokens)
                said = engine.hear(end)
                if nth:  # the first round warms up
                    times[engine.name][batch].append(said)
        now = time.monotonic()
        if now + 1.3 * (now - lap) > end:
            print(f"{nth} of {args.rounds} rounds in {now - began:.0f} s", flush=True)
            break
    return times, tokens


def table(args: argparse.Namespace, times: Any) -> list[str]:
    """Return rows of TPOT and throughput, each beside the first engine's."""
    names = list(times)
    heads = ["batch", *(f"{n} TPOT ms" for n in names), *(f"{n} tok/s" for n in names)]
    heads += [f"TPOT {n} / {names[0]}" for n in names[1:]]
    lines = [f"| {' | '.join(heads)} |", f"| {' | '.join(['---:'] * len(heads))} |"]
    for batch in args.batches:
        rounds = {n: times[n][batch] for n in names}
        if not all(rounds.values()):
            continue
        step = {
            n: 1e3 * median(
                (r["whole_s"] - r["first_s"]) / (args.tokens - 1) for r in rounds[n]
            )
            for n in names
        }  # fmt: skip
        rate = {
            n: batch * args.tokens / median(r["whole_s"] for r in rounds[n])
            for n in names
        }
        cells = [str(batch), *(f"{step[n]:.3f}" for n in names)]
        cells += [f"{rate[n]:.1f}" for n in names]
        cells += [f"{step[n] / step[names[0]]:.3f}" for n in names[1:]]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def alike(tokens: dict[str, Any]) -> list[str]:
    """Return how many answers of each engine are the first one's, token by token."""
    (name, first), *others = tokens.items()
    kinds = len({token for answer in first for token in answer})
    lines = [f"- {name}: {len(first)} answers of {len(first[0])}, {kinds} kinds"]
    for other, answers in others:
        same = sum(a == b for a, b in zip(first, answers, strict=True))
        lines.append(f"- {other}: {same} of {len(first)} answers are {name}'s")
    return lines


def unpacked(folder: Path) -> str:
    """Return where the archives of a folder lie unpacked, with stretto's entry points.

    What `pip install stretto` would write, of the source beside this file.
    """
    into = Path(tempfile.mkdtemp(prefix="vllm-packages-"))
    for path in sorted(folder.glob("*.tar.xz")):
        with tarfile.open(path) as archive:
            archive.extractall(into, filter="data")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = into / "stretto-0.0.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stretto\nVersion: 0\n")
    lines = []
    for group, points in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{k} = {v}" for k, v in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return str(into)


def main() -> int:
    """Measure, and write what came of it."""
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--shape", choices=SHAPES, default="8b")
    parser.add_argument("--engines", default="vllm,stretto")
    parser.add_argument("--batches", default="1,8,64")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--memory", type=float, default=0.25, help="of a GPU, each")
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--time-budget", type=float, default=600.0)
    parser.add_argument("--engine", help=argparse.SUPPRESS)
    parser.add_argument("--door", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.batches = [int(b) for b in args.batches.split(",")]
    if args.engine:
        serve(args)
        return 0
    return compare(args)


def compare(args: argparse.Namespace) -> int:
    """Start all engines, measure them in turn, end them; 1: something failed."""
    end = time.monotonic() + args.time_budget
    args.out.mkdir(parents=True, exist_ok=True)
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    if args.packages:
        paths.insert(0, unpacked(args.packages))
    sys.path[:0] = [p for p in paths if p]
    env = dict(os.environ) | ALIKE
    env["PYTHONPATH"] = os.pathsep.join(p for p in paths if p)
    print(f"vllm {importlib.metadata.version('vllm')}", flush=True)
    model = tempfile.mkdtemp(prefix="llama-")
    (Path(model) / "config.json").write_text(json.dumps(config(args.shape)))
    words = ["--model", model, "--shape", args.shape, "--ranks", str(args.ranks)]
    words += ["--batches", ",".join(map(str, args.batches))]
    words += ["--memory", str(args.memory)]
    engines: list[Engine] = []
    said: dict[str, Any] = {"shape": args.shape, "ranks": args.ranks, "engines": {}}
    try:
        for name in args.engines.split(","):
            engines += [Engine(name, words, env, args.out)]
        for engine in engines:
            said["engines"][engine.name] = engine.meet(end)
            print(f"{engine.name}: {said['engines'][engine.name]}", flush=True)
        times, tokens = measure(args, engines, end)
    except (RuntimeError, TimeoutError) as e:
        print(f"FAILED {e}", flush=True)
        for engine in engines:
            print(f"\n--- {engine.name}\n{engine.story()}", flush=True)
        return 1
    finally:
        for engine in engines:
            engine.end()
    text = "\n".join([*table(args, times), "", *alike(tokens)]) + "\n"
    said |= {"times": times, "alike": alike(tokens)}
    (args.out / "vllm_decode.json").write_text(json.dumps(said, indent=1) + "\n")
    (args.out / "vllm_decode.md").write_text(text)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
