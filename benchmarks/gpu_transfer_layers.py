"""What gpu_transfer.py asks of a prefill: its layers are put as they are computed."""

from __future__ import annotations

from typing import Any

from gpu_transfer_cases import FILL, SPREAD
from gpu_transfer_worker import Side, median

from stretto.transfer import kv_layout


def layers(side: Side) -> None:
    """A prefill on rank 0 whose layers go to rank 1 as they are computed."""
    small = side.args.small
    count, tokens, hidden, inner = (
        (3, 64, 64, 128) if small else (80, 2048, 8192, 28672)
    )
    heads, kv, dim = (4, 4, 16) if small else (64, 8, 128)
    blocks = 2 * tokens // 16
    layout = kv_layout(
        "vllm/flash", layers=count, blocks=blocks, block=16, heads=kv, dim=dim
    )
    names = side.names(2)
    raw = side.memory(layout.part_bytes * count)
    parts = list(raw.view(count, -1))

    def share() -> None:
        raw.fill_(FILL)
        if side.rank < 2:
            side.share(names[side.rank], parts, layout)

    side.together(share)
    from_ = [SPREAD * k % blocks for k in range(tokens // 16)]
    to = [(SPREAD * k + 3) % blocks for k in range(tokens // 16)]
    made: dict[str, Any] = {}

    def make() -> None:
        if side.rank != 0:
            return
        a, b = side.mine[names[0]][from_], side.region(names[1], 1)[to]
        made["puts"] = [
            side.call(b.layer(n).prepare_put(a.layer(n))) for n in range(count)
        ]
        made["prefill"] = Prefill(side, raw, from_, count, tokens, hidden, inner,
                                  heads, kv, dim, blocks)  # fmt: skip

    side.together(make)
    figures: dict[str, Any] = {}

    def measure() -> None:
        if side.rank == 0:
            figures.update(_measure_layers(side, made["prefill"], made["puts"]))

    _, wrong = side.tried(measure)

    mine = {0: from_, 1: to}.get(side.rank)
    sums = side.everybody(
        _sums(side, raw, (count, 2, blocks, 16 * kv * dim), mine)
        if mine and not wrong
        else ""
    )
    side.said["checked"] += 1
    if not wrong and sums[0] != sums[1]:
        wrong = "layers differ"
    what, nbytes = f"{count} layers, {tokens} tokens", 4 * tokens * kv * dim
    _say(side, what, nbytes, side.everybody(figures)[0], wrong)
    side.drop(*names)


def _say(side: Side, what: str, nbytes: int, told: dict[str, Any], wrong: str) -> None:
    """Keep the row, and whether it reached its goal."""
    row: dict[str, Any] = {"stage": "layers", "what": what, "nbytes": nbytes, "us": {}}
    row["failed"] = {"layers": wrong} if wrong else {}
    if not wrong:
        row["us"] = {k: told[k] for k in ("put", "exposed", "plain", "with puts")}
        row["notes"] = [told["note"]]
    side.keep(row)
    if not wrong:
        ratio = told["exposed"] / told["put"]
        side.goal(row, f"exposed <= 1.3 x last put: {ratio:.2f}", ratio <= 1.3)


def _sums(side: Side, raw: Any, shape: tuple[int, ...], pages: list[int]) -> str:
    """Return a sum of each layer that says which bytes lie where in its pages."""
    torch = side.torch
    seen = raw.view(torch.int16).view(shape)
    part = seen[:, :, torch.tensor(pages, device=raw.device)].long()
    places = torch.arange(1, part[0, 0].numel() + 1, device=raw.device) % 8191
    return str((part.flatten(2) * places).sum(-1).tolist())


class Prefill:
    """Layers of matrices and attention, with keys and values stored in pages."""

    def __init__(
        self, side: Side, raw: Any, pages: list[int], count: int, tokens: int,
        hidden: int, inner: int, heads: int, kv: int, dim: int, blocks: int,
    ) -> None:  # fmt: skip
        torch = side.torch
        self.torch, self.count, self.heads, self.kv = torch, count, heads, kv
        kind = torch.bfloat16
        gen = torch.Generator(side.device).manual_seed(5)

        def drawn(rows: int, columns: int) -> Any:
            made = torch.empty(rows, columns, device=side.device, dtype=kind)
            return made.normal_(0, rows**-0.5, generator=gen)

        self.x = drawn(tokens, hidden).mul_(tokens**0.5)
        self.qkv = drawn(hidden, (heads + 2 * kv) * dim)
        self.o = drawn(heads * dim, hidden)
        self.gate_up, self.down = drawn(hidden, 2 * inner), drawn(inner, hidden)
        self.cache = raw.view(kind).view(count, 2, blocks, 16, kv, dim)
        self.pages = torch.tensor(pages, device=side.device)

    def layer(self, number: int, x: Any) -> Any:
        """Compute one layer, and keep its keys and values."""
        functional = self.torch.nn.functional
        made = (x @ self.qkv).unflatten(-1, (self.heads + 2 * self.kv, -1))
        q, k, v = made.split([self.heads, self.kv, self.kv], 1)
        for which, one in enumerate((k, v)):
            pages = one.reshape(len(self.pages), 16, self.kv, -1)
            self.cache[number, which].index_copy_(0, self.pages, pages)
        one = (t.transpose(0, 1).unsqueeze(0) for t in (q, k, v))
        out = functional.scaled_dot_product_attention(
            *one, is_causal=True, enable_gqa=True
        )
        x = x + out.squeeze(0).transpose(0, 1).flatten(1) @ self.o
        gate, up = (functional.layer_norm(x, x.shape[-1:]) @ self.gate_up).chunk(2, -1)
        x = x + (functional.silu(gate) * up) @ self.down
        return functional.layer_norm(x, x.shape[-1:])


def _measure_layers(side: Side, prefill: Prefill, puts: list[Any]) -> dict[str, Any]:
    """Return microseconds: a put alone, what is exposed, the prefill without and with.

    A layer's put follows the whole layer, as engines have it: the last one has nothing
    beside it.
    """
    torch = side.torch
    if not side.is_gpu:
        for number, put in enumerate(puts):
            prefill.layer(number, prefill.x)
            put()
        return {"put": 1.0, "exposed": 1.0, "plain": 1.0, "with puts": 1.0,
                "note": "not timed on a CPU"}  # fmt: skip
    here, beside = torch.cuda.current_stream(), torch.cuda.Stream()

    def event() -> Any:
        return torch.cuda.Event(enable_timing=True)

    alone, exposed, plain, both = [], [], [], []
    for turn in range(-1, 6):
        begin, end, last = event(), event(), event()
        moves = turn % 2 == 1 and turn > 0
        x = prefill.x
        torch.cuda.synchronize()
        begin.record()
        for number in range(prefill.count):
            x = prefill.layer(number, x)
            if moves:
                beside.wait_stream(here)
                with torch.cuda.stream(beside):
                    puts[number]()
        end.record()
        last.record(beside if moves else here)
        torch.cuda.synchronize()
        if moves:
            exposed.append(1e3 * max(0.0, end.elapsed_time(last)))
            both.append(1e3 * begin.elapsed_time(last))
        else:
            plain.append(1e3 * begin.elapsed_time(end))
    for _ in range(7):
        begin, end = event(), event()
        torch.cuda.synchronize()
        with torch.cuda.stream(beside):
            begin.record()
            puts[-1]()
            end.record()
        torch.cuda.synchronize()
        alone.append(1e3 * begin.elapsed_time(end))
    plain = plain[1:]  # the first one warms up
    note = f"plain {plain}, with puts {both}, exposed {exposed}, put alone {alone}"
    return {"put": median(alone), "exposed": median(exposed), "plain": median(plain),
            "with puts": median(both), "note": note}  # fmt: skip
